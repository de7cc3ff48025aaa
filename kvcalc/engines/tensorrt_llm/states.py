"""States of hybrids: slots of their own, made before the blocks and beside their bytes.

TensorRT-LLM _torch/pyexecutor/mamba_cache_manager.py, MambaHybridCacheManager of early 2026 (1.2):
a slot for each of max_batch_size; _util.py names its models. Later managers keep states elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnknownReleaseError, UnsupportedError
from kvcalc.core.kind import CacheBase
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Group, Pool
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2
from kvcalc.core.rules import Slots
from kvcalc.core.units import format_count
from kvcalc.engines.tensorrt_llm.settings import Settings

__all__ = ["check_states", "of_states", "state_pool"]

_KINDS: dict[str, type[CacheBase]] = {
    "NemotronHForCausalLM": Mamba2,
    "Qwen3NextForCausalLM": GatedDeltaNet,
}
_RELEASE = "1.2"


def check_states(model: ModelSpec, settings: Settings) -> None:
    """Refuse hybrids whose states are not modelled.

    Raises:
        UnsupportedError: another model or release than those read, or a setting that moves states.
    """
    kinds = {cache.kind: type(cache) for _, cache in model.caches() if cache.states()}
    for kind, made in kinds.items():
        if _KINDS.get(model.architecture or "") is not made:
            raise NotModelledError(
                f"TensorRT-LLM's cache of {model.name}'s {kind} layers is not modelled",
                hint="use --engine none for the model's own arithmetic",
            )
    if not kinds:
        return
    if settings.release != _RELEASE and not settings.release.startswith(f"{_RELEASE}."):
        raise UnknownReleaseError(
            f"TensorRT-LLM {settings.release} keeps states by rules that were not read",
            hint=f"choose engine_version {_RELEASE}",
        )
    for set_so, what in (
        (settings.v2, "use_kv_cache_manager_v2"),
        (settings.pp > 1, "pipeline parallelism"),
        (settings.windows is not None, "max_attention_window"),
    ):
        if set_so:
            raise NotModelledError(
                f"{what} beside states is not modelled for TensorRT-LLM", hint="leave it out"
            )
    if settings.state_dtype is None and _own_dtypes(model) - {settings.model_dtype}:
        raise NotModelledError(
            f"releases differ in the dtype of {model.name}'s states: some take the config's"
            f" {', '.join(sorted(_own_dtypes(model)))}, others the model's {settings.model_dtype}",
            hint="name it: mamba_ssm_cache_dtype",
        )


def _own_dtypes(model: ModelSpec) -> set[str]:
    return {
        state.dtype
        for _, cache in model.caches()
        for state in cache.states()
        if state.dtype is not None
    }


def state_pool(model: ModelSpec, settings: Settings) -> Pool | None:
    """Return the slots of one rank; None for a model without states.

    Channels of a convolution are divided as a whole, heads of a state as heads.

    Raises:
        UnsupportedError: heads or channels that the ranks do not divide.
    """
    payload: dict[str, int] = {}
    layers = 0
    for count, cache in model.caches():
        states = cache.states()
        layers += count if states else 0
        for state in states:
            conv = state.role == "conv"
            split, dtype = state.shape[1 if conv else 0], settings.model_dtype
            if split % settings.tp:
                what = "channels of a convolution" if conv else "heads of a state"
                raise UnsupportedError(
                    f"TensorRT-LLM cannot split {split} {what} over {settings.tp} ranks",
                    hint=f"choose a tensor-parallel size that divides {split}",
                    code="heads-over-ranks",
                    setting="tensor_parallel_size",
                )
            if not conv and settings.state_dtype is not None:
                dtype = settings.state_dtype
            size = state.elements // settings.tp * element_bytes(dtype)
            payload[state.role] = payload.get(state.role, 0) + count * size
    if not payload:
        return None
    unit = sum(payload.values())
    group = Group(name="state", layers=layers, rule=Slots(), payload=payload, unit_bytes=unit)
    return Pool(name="states", groups=(group,), unit_bytes=unit, units=settings.batch, beside=True)


def of_states(pool: Pool | None) -> Iterator[str]:
    """Say what the slots take."""
    if pool is None:
        return
    slots = pool.units or 0
    yield (
        f"{format_count(slots)} slots of states (max_batch_size) take"
        f" {format_count(pool.total_bytes(slots))} B before the blocks, beside the bytes given"
    )
    yield "requests share no blocks: the manager of hybrids asks for enable_block_reuse false"
