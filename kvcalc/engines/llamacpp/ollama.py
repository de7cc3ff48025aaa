"""ollama's settings, which become those of the llama-server that it starts.

ollama fb30760 (August 2026) llm/llama_server.go, server/sched.go: `-c num_ctx x parallel`,
`-np parallel`, both cache types alike. It pins llama.cpp b10488.
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.architectures import architecture
from kvcalc.engines.llamacpp.args import OLLAMA, Args

__all__ = ["from_ollama"]

_GIB = 2**30
_BY_MEMORY = ((23 * _GIB, 4096), (47 * _GIB, 32768))
_MOST = 262144
_MODELS_PER_GPU = 3
_ONE_SEQUENCE = frozenset(
    (
        "qwen3vl",
        "qwen3vlmoe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
    )
)


def from_ollama(
    asked: Args, model: ModelSpec, deployment: Deployment, build: str, notes: list[str]
) -> Args:
    """Return llama-server's settings; those that were asked for where none is ollama's.

    Args:
        asked: settings of llama.cpp and of ollama.
        model: as published.
        deployment: as asked for.
        build: of llama.cpp, for refusals to name.
        notes: a line is added for what ollama makes of the settings.

    Raises:
        UsageError: settings of both.
    """
    if not any(name in asked for name in OLLAMA):
        return asked
    for name in ("ctx_size", "parallel", "kv_unified", "cache_type_k", "cache_type_v"):
        if name in asked:
            raise UsageError(
                f"{name} beside ollama's settings", hint="give llama.cpp's or ollama's, not both"
            )
    rest = Args({name: value for name, value in asked.items() if name not in OLLAMA})
    parallel = asked.number("num_parallel", 0, low=1) or asked.number(
        "ollama_num_parallel", deployment.max_num_seqs or 1, low=1
    )
    if architecture(model.architecture, build) in _ONE_SEQUENCE and parallel > 1:
        notes.append("ollama runs one sequence at once of this architecture")
        parallel = 1
    length = _length(asked, model, deployment, notes)
    rest["parallel"], rest["ctx_size"] = parallel, parallel * length
    word = asked.text("ollama_kv_cache_type")
    if word:
        rest["cache_type_k"] = rest["cache_type_v"] = word
    if "ollama_flash_attention" in asked and "flash_attn" not in rest:
        rest["flash_attn"] = asked.flag("ollama_flash_attention", default=True)
    notes.append(
        f"ollama starts llama-server with -c {parallel * length} -np {parallel}: a cache of"
        f" {format_count(length)} tokens each"
    )
    return rest


def runners(asked: Args, deployment: Deployment) -> int:
    """Return how many models ollama keeps loaded, each in a llama-server of its own.

    envconfig/config.go, OLLAMA_MAX_LOADED_MODELS; server/sched.go, defaultModelsPerGPU: three for
    each GPU unless told.
    """
    if not any(name in asked for name in OLLAMA):
        return 1
    default = _MODELS_PER_GPU * deployment.pipeline_parallel_size
    return asked.number("ollama_max_loaded_models", default, low=1)


def _length(asked: Args, model: ModelSpec, deployment: Deployment, notes: list[str]) -> int:
    """Return the tokens of one sequence: asked for, or by the memory of the card."""
    length = asked.number("num_ctx", 0, low=1) or asked.number("ollama_context_length", 0, low=1)
    if length and deployment.max_model_len not in (None, length):
        raise UsageError(
            f"max_model_len {format_count(deployment.max_model_len or 0)} and ollama's"
            f" {format_count(length)} tokens do not agree",
            hint="both are of one sequence: give one of the two",
        )
    length = length or deployment.max_model_len or 0
    if not length:
        gpu = deployment.gpu
        memory = (
            gpu.memory_bytes * deployment.pipeline_parallel_size if isinstance(gpu, GpuSpec) else 0
        )
        length = next((tokens for most, tokens in _BY_MEMORY if memory < most), _MOST)
        notes.append(f"ollama takes {format_count(length)} tokens by the memory of the cards")
    longest = model.max_position_embeddings
    if longest is not None and length > longest:
        notes.append(f"ollama takes no more than the {format_count(longest)} of the model")
        length = longest
    return length
