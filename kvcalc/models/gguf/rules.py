"""The rules that several architectures share: from the keys to what each layer keeps.

A rule returns one `Block` a layer, draft layers last. llama.cpp b11434: llama_model::create_memory
(`src/llama-model.cpp`) says which layer has which cache, load_arch_hparams in the file of the
architecture under `src/models/` which keys it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvcalc.core.layers import Cache
from kvcalc.models.gguf import recurrent, windows
from kvcalc.models.gguf.attention import Block, Heads, Latent, indexer
from kvcalc.models.gguf.fields import Fields

__all__ = [
    "Rule",
    "attend",
    "fixed_window",
    "hybrid",
    "latent",
    "listed_windows",
    "mixed",
    "optional_windows",
    "plain",
    "recurrent_only",
    "required_windows",
    "sparse_latent",
    "unheaded",
]

Rule = Callable[[Fields], list[Block]]

_NO_ATTENTION = "no attention"


def unheaded(caches: tuple[Cache, ...]) -> Block:
    """Return a layer, with the reason where it keeps nothing."""
    return Block(caches, "" if caches else _NO_ATTENTION)


def attend(fields: Fields, sizes: Sequence[int]) -> list[Block]:
    """Return layers that keep K and V: of the window's tokens, of all where it is 0."""
    heads = Heads(fields)
    return [unheaded(heads.sliding(i, window)) for i, window in enumerate(sizes)]


def plain(fields: Fields) -> list[Block]:
    """K and V of every token in every layer, whatever the file says of windows."""
    return attend(fields, (0,) * fields.blocks)


def required_windows(period: int, default: int | None = None, *, dense_first: bool = False) -> Rule:
    """Return the rule of an architecture that always slides, but for one layer of `period`."""

    def rule(fields: Fields) -> list[Block]:
        window = windows.required_window(fields, default)
        return attend(fields, windows.periodic(fields, window, period, dense_first=dense_first))

    return rule


def optional_windows(period: int, *, dense_first: bool = False) -> Rule:
    """Return the rule of an architecture that slides where the file has a window."""

    def rule(fields: Fields) -> list[Block]:
        window = windows.optional_window(fields)
        if not window:
            return plain(fields)
        return attend(fields, windows.periodic(fields, window, period, dense_first=dense_first))

    return rule


def fixed_window(period: int, tokens: int, *, dense_first: bool = False) -> Rule:
    """Return the rule of an architecture whose window is `tokens`, if the file has any."""

    def rule(fields: Fields) -> list[Block]:
        if not windows.optional_window(fields):
            return plain(fields)
        return attend(fields, windows.periodic(fields, tokens, period, dense_first=dense_first))

    return rule


def listed_windows(fields: Fields) -> list[Block]:
    """Slide in the layers that the file lists."""
    return attend(fields, windows.listed(fields, windows.required_window(fields)))


def latent(fields: Fields) -> list[Block]:
    """Keep a latent where the file describes one, else K and V of every head."""
    if not Latent.described(fields):
        return plain(fields)
    latents = Latent(fields)
    return [Block((latents.cache(i),)) for i in range(fields.blocks)]


def sparse_latent(fields: Fields, owners: Sequence[bool]) -> list[Block]:
    """Keep a latent in every layer and an indexer's key in the layers that own one."""
    latents, key = Latent(fields), indexer(fields)
    return [
        Block((latents.cache(i), key) if i < len(owners) and owners[i] else (latents.cache(i),))
        for i in range(fields.blocks)
    ]


def recurrent_only(state: Callable[[Fields], Cache]) -> Rule:
    """Return the rule of an architecture in which every layer has a state; drafts keep nothing."""

    def rule(fields: Fields) -> list[Block]:
        kept = Block((state(fields),))
        return [kept] * fields.main + [Block((), _NO_ATTENTION)] * fields.drafts

    return rule


def mixed(
    states: Sequence[bool], state: Cache, attention: Callable[[int], tuple[Cache, ...]]
) -> list[Block]:
    """Return layers that keep a state where `states` says so, and else what attention keeps."""
    return [
        Block((state,)) if recurs else unheaded(attention(i)) for i, recurs in enumerate(states)
    ]


def hybrid(state: Callable[[Fields], Cache], interval: int | None = None) -> Rule:
    """Return the rule of an architecture that mixes states and attention with K and V.

    Recurrent are the layers without KV heads, or with an `interval` all but every such one.
    """

    def rule(fields: Fields) -> list[Block]:
        if interval is None:
            states = recurrent.without_kv_heads(fields)
        else:
            states = recurrent.by_interval(fields, interval)
        return mixed(states, state(fields), Heads(fields).full)

    return rule
