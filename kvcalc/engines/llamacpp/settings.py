"""A deployment as llama.cpp resolves it: every default put in, every setting it has checked.

llama.cpp b11434 common/common.h (common_params), common/arg.cpp (the flags), tools/server
(the slots) and llama_context::llama_context in src/llama-context.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import NotModelledError, UnsupportedError, UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp import args
from kvcalc.engines.llamacpp.architectures import architecture
from kvcalc.engines.llamacpp.args import OLLAMA, Args
from kvcalc.engines.llamacpp.cells import Cells
from kvcalc.engines.llamacpp.placing import Placing, gpu_layers, placing_of
from kvcalc.engines.llamacpp.slots import Asked, cells_of, fits
from kvcalc.engines.llamacpp.types import CacheTypes, cache_types
from kvcalc.engines.llamacpp.version import Build, Rules, build, checkpoints_by_default, rules_of

__all__ = ["MARGIN", "Settings", "resolve"]


# ollama's settings, which become those of the llama-server that it starts.
#
# ollama fb30760 (August 2026) llm/llama_server.go, server/sched.go: `-c num_ctx x parallel`,
# `-np parallel`, both cache types alike. It pins llama.cpp b10488.

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


_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "pipeline_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "kv_cache_memory_bytes",
    "max_model_len",
    "max_num_seqs",
    "num_speculative_tokens",
    "speculative_method",
    "draft_model",
    "engine_args",
}
_HINTS = {
    "tensor_parallel_size": "llama.cpp splits layers over devices: tensor_split, or"
    " pipeline_parallel_size for equal shares",
    "max_num_batched_tokens": "give batch_size and ubatch_size in engine_args",
    "block_size": "llama.cpp hands out single cells",
    "gpu_memory_utilization": "llama.cpp takes what its context needs, whatever the card has",
}
_MIB = 2**20
MARGIN = 1024 * _MIB
"""Bytes that fit leaves free on a device unless told (common_params: fit_params_target)."""


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        cells: cells, streams and sequences of the context.
        types: cache types of K and V; `draft_types` those of a draft context.
        flash: flash attention is on.
        swa_full: sliding layers keep as many cells as the others.
        rs_seq: rollback snapshots of a state that are asked for.
        method: how tokens are proposed; None where none are.
        checkpoints: context checkpoints a slot (host memory).
        mapped: weights on the host are mapped from the file.
        cache_ram: MiB of the prompt cache in host memory; -1 without a limit.
        cache_ram_given: that was asked for, and is not the default.
        runners: servers at once, each with a model of its own (ollama).
        fits: what was not given is made to fit into memory (fit); a context not below fit_ctx
            tokens.
        ctx_given: the context was given, and fit leaves it.
        margins: bytes that fit leaves free on each device; a single one is for all of them.
        compute: bytes of compute buffers by device that fit counts; empty where nobody told.
    """

    build: Build
    rules: Rules
    cells: Cells
    types: CacheTypes
    draft_types: CacheTypes
    flash: bool
    swa_full: bool
    rs_seq: int
    method: str | None
    placing: Placing
    draft_gpu_layers: int | None
    checkpoints: int
    cache_ram: int
    mapped: bool
    cache_ram_given: bool
    runners: int
    fits: bool
    fit_ctx: int
    ctx_given: bool
    margins: tuple[int, ...]
    compute: tuple[int, ...]


def resolve(
    model: ModelSpec, deployment: Deployment, notes: list[str], flipped: str = ""
) -> Settings:
    """Return the settings of a deployment.

    Args:
        model: as published.
        deployment: as asked for.
        notes: a line is added for what was assumed or changed.
        flipped: a change of rules that is taken the other way (version.open_changes).

    Raises:
        UnsupportedError: a setting that llama.cpp has not, or that kvcalc does not model.
        InvalidValueError, UnknownNameError, UsageError: a setting that makes no sense.
    """
    for name in deployment.changed():
        if name not in _KNOWN:
            hint = _HINTS.get(name, "leave it out")
            raise UnsupportedError(f"llama.cpp has no {name}", hint=hint)
    if deployment.dtype != "auto":
        raise UnsupportedError(
            "llama.cpp's cache does not follow the model dtype",
            hint="give --kv-cache-dtype, or cache_type_k and cache_type_v in engine_args",
        )
    found = build(deployment.engine_version)
    given = args.read(deployment.engine_args)
    asked = from_ollama(given, model, deployment, found.text, notes)
    rules = rules_of(found, flipped)
    flash = _flash(asked, rules)
    method, rs_seq = _speculation(asked, deployment)
    fitting = fits(asked, rules)
    notes.extend(_without_fit(asked) if not fitting else ())
    return Settings(
        build=found,
        rules=rules,
        cells=cells_of(Asked(model, deployment, asked, rules, found, flash), notes),
        types=cache_types(
            deployment.kv_cache_dtype, asked.text("cache_type_k"), asked.text("cache_type_v")
        ),
        draft_types=cache_types(
            "auto", asked.text("cache_type_k_draft"), asked.text("cache_type_v_draft")
        ),
        flash=flash,
        swa_full=asked.flag("swa_full", default=False),
        rs_seq=rs_seq,
        method=method,
        placing=placing_of(deployment, asked, found.number),
        draft_gpu_layers=gpu_layers(asked, "n_gpu_layers_draft"),
        checkpoints=asked.number("ctx_checkpoints", checkpoints_by_default(found.number), low=0),
        cache_ram=asked.number("cache_ram", 8192, low=-1),
        mapped=_mapped(asked),
        cache_ram_given=asked.given("cache_ram"),
        runners=runners(given, deployment),
        fits=fitting,
        fit_ctx=asked.number("fit_ctx", 4096, low=1),
        ctx_given=deployment.max_model_len is not None
        or any(asked.given(name) for name in ("ctx_size", "kv_unified_per_slot")),
        margins=_mebibytes(asked, "fit_target") or (MARGIN,),
        compute=_mebibytes(asked, "compute_mib"),
    )


def _mebibytes(asked: Args, name: str) -> tuple[int, ...]:
    """Return bytes by device of a list of MiB; empty where it was not given."""
    return tuple(int(mib * _MIB) for mib in asked.numbers(name) or ())


_MAPPED = ("auto", "mmap", "mmap+mlock")


def _mapped(asked: Args) -> bool:
    """Whether weights on the host are mapped from the file (--load-mode)."""
    mode = asked.choice("load_mode", (*_MAPPED, "none", "mlock", "dio"))
    return mode is None or mode in _MAPPED


def _without_fit(asked: Args) -> Iterator[str]:
    """Yield which settings of fit are given though it does not run."""
    given = [name for name in ("fit_ctx", "fit_target") if asked.given(name)]
    if given:
        yield f"{' and '.join(given)} without effect: nothing is made to fit (fit)"


def _flash(asked: Args, rules: Rules) -> bool:
    """Whether flash attention is on; `auto` counts as on, which every usual backend can."""
    word = asked.choice("flash_attn", ("auto", "on", "off"))
    return rules.auto_flash if word is None else word != "off"


_WITH_TARGET = ("eagle3", "dflash", "dspark")


def _speculation(asked: Args, deployment: Deployment) -> tuple[str | None, int]:
    """Return how tokens are proposed, and the snapshots of a state that this takes.

    tools/server: need_n_rs_seq; only drafts that read the target's own layers roll states back.
    """
    method = deployment.speculative_method
    known = ("mtp", "draft", "draft_model", "ngram", *_WITH_TARGET)
    if method is None and deployment.draft_model is not None:
        method = "draft"
    if method is not None and method not in known:
        raise UnsupportedError(
            f"llama.cpp does not speculate by {method!r:.40}", hint="mtp, draft or ngram"
        )
    if method in _WITH_TARGET:
        raise NotModelledError(
            f"kvcalc does not model {method} drafts in llama.cpp, which share the target's context",
            hint="mtp, draft or ngram",
        )
    method = "draft" if method == "draft_model" else method
    if method == "draft" and deployment.draft_model is None:
        raise UsageError("a draft needs a model", hint="give draft_model")
    if method in ("mtp", "ngram") and deployment.draft_model is not None:
        raise UsageError(f"{method} has no draft model", hint="leave draft_model out")
    if deployment.num_speculative_tokens is not None and method is None:
        raise UsageError(
            "num_speculative_tokens without a method", hint="give speculative_method: mtp"
        )
    default = 0
    if method == "mtp":
        default = deployment.num_speculative_tokens or 3  # common_params_speculative: n_max
    return method, asked.number("rs_seq", default, low=0)
