"""Weights that vLLM keeps on the host: --cpu-offload-gb, by release.

0.5.3 to 0.16 model_executor/models/utils.py, maybe_offload_to_cpu; since 0.17
model_executor/offloader/uva.py. Parameters of the layers move, one after another, until so many
bytes have: the last one goes as a whole. The embedding and the head stay.
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.memory import Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv, format_bytes
from kvcalc.engines.vllm.arguments import gib_of
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.scheduling import runs_ahead
from kvcalc.engines.vllm.version import Release, release
from kvcalc.weights.widths import widths_of

__all__ = ["check_offload", "left_on_gpu", "note_on_offload"]

_ONE_GROUP = ((0, 9, 1), (0, 19, 1))
"""First and last release whose v1/worker/gpu_model_runner.py, may_reinitialize_input_batch, stops
where the groups' block sizes are not the one that it began with."""

_REPACKED_STAY = (0, 17)
"""First line whose model_loader/utils.py, device_loading_context, moves anew what a kernel made of
a moved parameter; before, it stays on the GPU, as V1 shows the host's memory as a GPU's."""

_NOT_READ = ((0, 22), (0, 28))
"""Lines, the last one apart, whose second runner (v1/worker/gpu/model_runner.py) makes no
offloader: all weights stay on the GPU, and nothing says so (vllm-project/vllm#51396)."""
_PACKED_TOO = (0, 24)
"""First line that gives it quantised models as well."""
_DENSE_RUN_BY_IT = (0, 25)
_RUN_BY_IT = {
    "Qwen3ForCausalLM": (0, 22),
    "LlamaForCausalLM": (0, 23),
    "MistralForCausalLM": (0, 23),
    "DeepseekV2ForCausalLM": (0, 24),
    "Qwen2MoeForCausalLM": (0, 24),
    "GraniteMoeForCausalLM": (0, 24),
    "InklingForCausalLM": (0, 26),
    "InklingForConditionalGeneration": (0, 26),
    "LongcatFlashNgramForCausalLM": (0, 26),
    "KimiK3ForConditionalGeneration": (0, 27),
}
"""Architecture -> the first line that gives it the second runner (config/vllm.py,
DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES); since 0.25 all dense models without states have it too."""

_PLAIN = (None, "float32", "bfloat16", "float16")


def _is_read(model: ModelSpec, at: Release, *, packed: bool) -> bool:
    """Whether the runner of a model reads the setting."""
    first, end = _NOT_READ
    if not first <= at.line < end or is_pooling(model) or (packed and at.line < _PACKED_TOO):
        return True
    since = _RUN_BY_IT.get(model.architecture or "", end)
    dense = at.line >= _DENSE_RUN_BY_IT and runs_ahead(model)
    return at.line < since and not dense


def _is_packed(model: ModelSpec, asked: str | None) -> bool:
    """Whether weights are quantised, or become so as they are loaded."""
    stored = None if model.size is None else model.size.weights_dtype
    return asked is not None or stored not in _PLAIN


def check_offload(model: ModelSpec, deployment: Deployment, at: Release, groups: int) -> None:
    """Check that V1 starts with weights on the host.

    Args:
        model: as vLLM runs it.
        deployment: as asked for.
        at: the release.
        groups: of layers that share a table of blocks.

    Raises:
        UnsupportedError: more than one, and a release that then stops.
    """
    first, last = _ONE_GROUP
    if gib_of(deployment, "cpu_offload_gb") is None or groups == 1:
        return
    if first <= at.number <= last:
        raise UnsupportedError(
            f"vLLM {at} does not start with cpu_offload_gb for {model.name}: its layers have"
            f" {groups} groups of blocks",
            hint="leave cpu_offload_gb out, or use vLLM 0.20.0 or later",
            code="cpu-offload-groups",
            setting="cpu_offload_gb",
        )


def note_on_offload(model: ModelSpec, deployment: Deployment, at: Release) -> str | None:
    """Return a line about a setting that is not read; None otherwise."""
    if gib_of(deployment, "cpu_offload_gb") is None or _is_read(
        model, at, packed=_is_packed(model, None)
    ):
        return None
    return (
        f"cpu_offload_gb has no effect: the runner that vLLM {at} has for {model.name} does not"
        " read it (before 0.28), and all weights stay on the GPU"
    )


def left_on_gpu(
    term: Term,
    model: ModelSpec,
    deployment: Deployment,
    *,
    layers: int,
    version: str,
    asked: str | None,
) -> Term:
    """Return the weights that stay on a GPU beside those that cpu_offload_gb moves.

    V0 copies a layer's parameters to the GPU for every step, which its profile counts.

    Args:
        term: all weights of the GPU.
        model: with its sizes.
        deployment: as asked for.
        layers: of the GPU.
        version: as the plan has it.
        asked: what the weights are kept in, instead of the checkpoint's own.
    """
    limit, at = gib_of(deployment, "cpu_offload_gb"), release(version)
    packed = _is_packed(model, asked)
    if limit is None or not _is_read(model, at, packed=packed):
        return term
    widths = widths_of(model)
    tables = 2 * widths.vocab.high * widths.hidden.high * element_bytes(model.dtype)
    tables = min(term.low_bytes, cdiv(tables, deployment.tensor_parallel_size))
    layer = cdiv(term.high_bytes, max(1, layers))
    most = min(term.high_bytes, limit + layer)
    least = min(limit, term.low_bytes - tables)
    v0 = at.engine == "v0"
    if packed and not v0 and at.line < _REPACKED_STAY:
        least = 0
    return Term(
        name=term.name,
        low_bytes=max(0, term.low_bytes - most),
        high_bytes=term.high_bytes - least + layer * v0,
        source=f"{term.source}; cpu_offload_gb moves {format_bytes(limit)} to the host",
    )
