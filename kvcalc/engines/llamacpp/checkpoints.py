"""Context checkpoints: what of a sequence a server keeps in host memory to go back to.

llama.cpp b11434 tools/server/server-context.cpp (create_checkpoint) and common/common.cpp
(common_prompt_checkpoint): of the model's own context what cannot be computed anew from the cells
that stay (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY), and of a draft's context the same, which is every
cell of the sequence where the draft is neither windowed nor recurrent. The formats are those of
state_write in src/llama-context.cpp, llama-kv-cache.cpp and llama-memory-recurrent.cpp.
"""

from __future__ import annotations

from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.families import families
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.tensors import Kept

__all__ = ["checkpoint_bytes"]

_OF_DRAFTS = 9101
"""The last build that was read without the draft's part; 9113 has it."""

_WITHOUT_TOKEN = 10488
"""The last build whose cells of M-RoPE were read without a token; 10950 has it."""

_SEQUENCE = 8
_CACHE = 24
_TENSOR = 12
_CELL = 12
_PLACE, _PLACE_AND_TOKEN = 8, 12
_STATES, _STATE = 12, 8


def checkpoint_bytes(contexts: list[Context], settings: Settings, tokens: int) -> int:
    """Return the bytes of a checkpoint of a sequence of so many tokens; 0 where none is made.

    Args:
        contexts: the model's own first.
        settings: as resolved.
        tokens: of the sequence.
    """
    main, *drafts = contexts
    if not _partial(main):
        return 0
    if settings.build.number <= _OF_DRAFTS:
        drafts = []
    return sum(_state(context, settings, tokens) for context in (main, *drafts))


def _partial(context: Context) -> list[Kept]:
    """Return what of a context is written: states and windows; nothing where it has none."""
    return [
        kept
        for kept in context.kept
        if kept.cache == "state" or (kept.cache == "swa" and not context.sizes.swa_full)
    ]


def _state(context: Context, settings: Settings, tokens: int) -> int:
    """Return the bytes of a context's part of a sequence."""
    written = _partial(context) or context.kept
    total = _SEQUENCE
    states = [kept for kept in written if kept.cache == "state"]
    if states:
        total += _STATES + _STATE
    total += sum(_TENSOR * len(kept.payload) + sum(kept.payload.values()) for kept in states)
    for cache in dict.fromkeys(kept.cache for kept in written if kept.cache != "state"):
        layers = [kept for kept in written if kept.cache == cache]
        rows = sum(sum(kept.payload.values()) + kept.widened for kept in layers)
        limit = context.sizes.window if cache == "swa" else tokens
        cells = min(limit, tokens)
        total += _CACHE + sum(_TENSOR * len(kept.tensors) for kept in layers)
        total += cells * (_cell(context, settings) + rows)
    return total


def _cell(context: Context, settings: Settings) -> int:
    """Return the bytes of a cell beside its rows (state_write_meta): 12, more with M-RoPE."""
    if not any(family.axes > 1 for family in families(context.served.arch)):
        return _CELL
    older = settings.build.number <= _WITHOUT_TOKEN
    return _CELL + (_PLACE if older else _PLACE_AND_TOKEN)
