"""What MLC-LLM logs about its cache: cpp/serve/config.cc, InferForKVCache."""

from __future__ import annotations

import re

from kvcalc.core.capacity import pool_units
from kvcalc.core.plan import CachePlan
from kvcalc.engines.mlc_llm.settings import Settings

__all__ = ["mode_note", "start_up_log"]

_NOTE = "engine mode {}: prefill chunks of {} tokens, {} in the cache"
_OPEN = "as many tokens as memory holds"
_READ = re.compile(
    rf"engine mode (\w+): prefill chunks of (\d+) tokens, (\d+ tokens|{_OPEN}) in the cache"
)


def mode_note(settings: Settings, total: int | None) -> str:
    """Return the note that says what of the log the plan has no field for.

    Local and interactive mode prefill no more at once than the cache, or a sequence, can hold.
    """
    chunk = settings.chunk
    if settings.mode != "server":
        limits = (chunk, total, settings.max_model_len)
        chunk = min(limit for limit in limits if limit is not None)
    return _NOTE.format(settings.mode, chunk, _OPEN if total is None else f"{total} tokens")


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the line that says what the engine decided.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: what is left for pages; None where the settings fix them.
    """
    told = next(found for note in plan.notes if (found := _READ.fullmatch(note)))
    mode, chunk, said = told.groups()
    total = said.removesuffix(" tokens")
    if said == _OPEN:
        units, *_ = pool_units(plan, plan.rank, kv_cache_bytes)
        total = str(units * (plan.block_size or 1))
    decided = (
        f'The actual engine mode is "{mode}". So max batch size is {plan.max_sequences}, max KV'
        f" cache token capacity is {total}, prefill chunk size is {chunk}."
    )
    return (decided,)
