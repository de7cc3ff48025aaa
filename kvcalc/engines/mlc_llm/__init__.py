"""Engine `mlc-llm`: what MLC-LLM's serving engine allocates, to the last page.

Read from source: mlc-llm at 79d603f (2026-07-23) and TVM's paged_kv_cache.cc, attn_utils.h and
rnn_state.cc as it builds them. Nothing was run.
"""

from __future__ import annotations

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Slots, Window
from kvcalc.core.units import cdiv, format_number_of
from kvcalc.engines.every_token import kept_group
from kvcalc.engines.mlc_llm.estimate import token_price, total_tokens
from kvcalc.engines.mlc_llm.layers import Shape, shape_of, states_of
from kvcalc.engines.mlc_llm.models import compiled
from kvcalc.engines.mlc_llm.settings import PAGE, RELEASES, Settings, resolve
from kvcalc.engines.mlc_llm.start_up import mode_note, start_up_log

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that MLC-LLM makes.

    Raises:
        UnsupportedError: what it refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes: list[str] = []
    found = compiled(model)
    shape = shape_of(model, found, deployment.tensor_parallel_size)
    settings = resolve(model, deployment, found, shape.window, notes)
    model = msgspec.structs.replace(model, dtype=settings.dtype, kv_cache_dtype=None)
    if shape.window is not None and settings.sinks:
        raise NotModelledError(
            f"pages of a window that keeps the first {settings.sinks} tokens are not modelled",
            hint="attention_sink_size=0 in engine_args",
        )
    total = total_tokens(settings, shape, notes)
    length = settings.max_model_len
    if total is not None and deployment.max_model_len is None and total < length:
        length = total
        notes.append("a sequence is no longer than the cache that all share")
    pages = _pages(settings, shape, total)
    states = _states(model, settings)
    if states is not None and total is None:
        raise NotModelledError(
            "pages beside states are known only where their number is",
            hint="give max_total_sequence_length in engine_args",
        )
    notes.append(mode_note(settings, total))
    notes.extend(_moved(settings, shape, pages))
    return CachePlan(
        engine="mlc-llm",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.dtype,
        model_dtype=settings.dtype,
        block_size=PAGE,
        ranks=(
            Rank(
                name="rank",
                pools=(pages,) if states is None else (pages, states),
                multiplicity=settings.tp,
            ),
        ),
        split="bytes" if total is None else "fixed",
        max_model_len=length,
        max_sequences=min(settings.sequences, settings.chunk),
        reuse_tokens=1 if settings.prefix_caching and not (states or shape.window) else None,
        report="tokens",
        notes=tuple(notes),
        unsupported=_not_modelled(total),
        convention=(_BUDGET, _ADMISSION),
        source="MLC-LLM 79d603f: cpp/serve/config.cc, EstimateMemoryUsageOnMode; TVM"
        " src/runtime/vm/paged_kv_cache.cc, paged_attention_kv_cache_create",
    )


def _pages(settings: Settings, shape: Shape, total: int | None) -> Pool:
    """Return the pool of pages: the tokens' own, one more, and two a sequence where it slides."""
    size = element_bytes(settings.dtype)
    payload = shape.payload(size)
    page = PAGE * sum(payload.values())
    if shape.window is None:
        group = kept_group(shape.spans, payload, PAGE, page)
    else:
        group = Group(
            name="window",
            layers=shape.layers,
            rule=Window(block_tokens=PAGE, window=shape.window, extra_blocks=1),
            payload={role: shape.layers * b for role, b in payload.items()},
            unit_bytes=shape.layers * page,
            block_size=PAGE,
        )
    spare = 1 + (2 * settings.sequences if shape.window is not None else 0)
    return Pool(
        name="pages",
        groups=(group,),
        unit_bytes=group.unit_bytes,
        units=None if total is None else cdiv(total, PAGE),
        reserved_units=spare,
        reserved_is_extra=True,
        check_unit_bytes=int(PAGE * token_price(shape)),  # 16 x 1.25 B is a whole number
    )


def _states(model: ModelSpec, settings: Settings) -> Pool | None:
    """Return the slots of states: one a sequence and one for each that the prefix cache keeps."""
    found = states_of(model)
    if found is None:
        return None
    unit = sum(found.payload.values())
    group = Group(
        name="state", layers=found.layers, rule=Slots(), payload=found.payload, unit_bytes=unit
    )
    return Pool(
        name="states",
        groups=(group,),
        unit_bytes=unit,
        units=settings.sequences + settings.recycled,
        reserved_units=settings.recycled,
    )


def _moved(settings: Settings, shape: Shape, pages: Pool) -> list[str]:
    spare = format_number_of(pages.reserved_units, "page")
    lines = [f"{spare} more than the tokens need"]
    if shape.window is None and any(span.limit is not None for span in shape.spans):
        lines.append("every layer keeps every token: windows and chunks save nothing")
    if shape.latent:
        lines.append("the estimate prices an MLA row twice, as K and V; the pages hold it once")
    if settings.dtype == "float32":
        lines.append("the estimate prices K and V as float16; the pages hold float32")
    return lines


_BUDGET = (
    "The bytes given are what gpu_memory_utilization (0.85) of the card leaves after the weights,"
    " twice the temporary buffer and the workspaces; a token is priced at 1.25 B above its rows."
)
_ADMISSION = (
    "Sequences hold no more tokens together than max_total_sequence_length; a prefill starts when"
    " a page and eight tokens are left for each sequence."
)
_ROUNDING = (
    "bytes are counted in whole pages: MLC-LLM rounds the tokens that fit up to a page, and makes"
    " no more than its most sequences can hold at their longest"
)


def _not_modelled(total: int | None) -> tuple[str, ...]:
    read = "MLC-LLM's rules were read in its source (79d603f), not compared with a running engine"
    return (read,) if total is not None else (read, _ROUNDING)
