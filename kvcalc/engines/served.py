"""Which architectures an engine serves, by release: the table `served.tsv` beside each engine.

The tables are read from the engines' own registries (tests.tools.served_architectures). What is in
none of them is not known to be served, and what a registry has not is refused by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal, NamedTuple, get_args

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError, nearest
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.core.tables import read_table

__all__ = [
    "HOW",
    "KINDS",
    "How",
    "Served",
    "check_kinds",
    "check_known",
    "check_served",
    "doubt_of",
    "served_by",
]

How = Literal[
    "own", "pooling", "draft", "transformers", "fallback", "pytorch", "turbomind", "elsewhere",
    "remote", "never",
]  # fmt: skip
"""By code of the engine's own; for pooling alone; beside a target model; by transformers' code, as
the registry says (transformers) or as it falls back on it for what it has not (fallback); by one
of two engines in one (pytorch, turbomind); by what is not modelled, if at all (elsewhere); by code
that lies with the checkpoint (remote); never."""
HOW: Final = get_args(How)

KINDS = (
    FullAttention, SlidingWindow, ChunkedAttention, CrossAttention, Mla, SlidingMla,
    CompressedAttention, Indexer, SharedKv, Mamba1, Mamba2, GatedDeltaNet, KimiDeltaAttention,
    LightningAttention, RgLru, ShortConv, Rwkv,
)  # fmt: skip
"""Kinds of caches that the rules of all engines were written for, or refuse. A new one comes here
when each engine was looked at."""

Number = tuple[int, int, int]

_NONE = "use --engine none for the model's own arithmetic"


class Served(NamedTuple):
    """One stretch of releases that serve an architecture.

    Attributes:
        since: the first; None for as old as known.
        until: the last; None where the newest known does.
        how: by whose code.
    """

    since: Number | None
    until: Number | None
    how: str


@cache
def served_by(package: str) -> Mapping[str, tuple[Served, ...]]:
    """Return architecture -> when it is served, as the table of an engine's package has it."""
    found: dict[str, tuple[Served, ...]] = {}
    for name, since, until, how in read_table(package, "served.tsv")[1:]:
        found[name] = (*found.get(name, ()), _span(since, until, how))
    return found


@cache  # hundreds of architectures share a few dozen spans
def _span(since: str, until: str, how: str) -> Served:
    return Served(number_of(since), number_of(until), how)


def number_of(text: str) -> Number | None:
    """Return a release as numbers to compare by; None for an empty cell."""
    if not text:
        return None
    major, minor, patch = map(int, text.split("."))
    return major, minor, patch


def check_known(model: ModelSpec, package: str, product: str) -> None:
    """Refuse an architecture that no release of an engine has.

    Raises:
        NotModelledError: nothing says whether one does.
    """
    name = model.architecture
    if name is not None and not name.islower() and name not in served_by(package):
        raise NotModelledError(
            f"no registry of {product} that kvcalc knows has the architecture {name}",
            hint=f"name the one that it is run as, or {_NONE}",
        )


def check_served(
    model: ModelSpec, package: str, product: str, at: Number, notes: list[str], *, newer: bool
) -> Served | None:
    """Refuse an architecture that a release does not serve; return how it does.

    Args:
        model: whose architecture is looked up; one without, or with that of a GGUF file, is taken
            as served: None is returned.
        package: of the engine, beside whose modules the table lies.
        product: what the engine is called.
        at: the release.
        notes: a line is added for what was assumed.
        newer: a later release was asked for than those whose registries are known.

    Raises:
        UnsupportedError: the release does not serve it.
        NotModelledError: nothing says whether it does.
    """
    name = model.architecture
    if name is None:
        return None
    if name.islower():
        notes.append(f"{name} is llama.cpp's word: {product} is taken to serve it")
        return None
    table = served_by(package)
    check_known(model, package, product)
    spans = table[name]
    release = f"{product} {'.'.join(map(str, at))}"
    for span in spans:
        if span.how != "never" and (span.since or at) <= at <= (span.until or at):
            return span
    if newer:
        raise NotModelledError(
            f"{release} does not serve {name}: whether a later release does is not known",
            hint=_NONE,
        )
    message, hint = _refusal(spans, at, release, name)
    if not hint:
        hint = _instead(name, table) + _NONE
    raise UnsupportedError(message, hint=hint, code="unserved-model")


def doubt_of(span: Served | None, model: ModelSpec, product: str) -> str:
    """Say what is not sure of whether an engine serves a model so; "" where nothing is in doubt.

    Raises:
        NotModelledError: layers of which nothing says how the other code keeps them.
    """
    if span is None or span.how not in _DOUBTS:
        return ""
    doubt = f"{product} has no {model.architecture} of its own: {_DOUBTS[span.how]}"
    plain = all(run.caches and isinstance(run.caches[0], _BY_HEAD) for run in model.layers)
    if not plain or any(len(run.caches) > 1 for run in model.layers):
        raise NotModelledError(
            f"{doubt}; what that keeps of {model.name}'s layers is not modelled", hint=_NONE
        )
    return doubt


_BY_HEAD = (FullAttention, SlidingWindow, ChunkedAttention)
_DOUBTS = {
    "fallback": "it runs transformers' code for it, if the one that is installed allows that",
    "elsewhere": "AutoDeploy or an engine that was built may serve it, whose caches are not"
    " modelled",
}


def check_kinds(model: ModelSpec, product: str) -> None:
    """Refuse a model with a kind of cache that the engines' rules were not written for.

    Raises:
        NotModelledError: naming the kind.
    """
    for _, kept in model.caches():
        if not isinstance(kept, KINDS):
            raise NotModelledError(
                f"how {product} keeps {kept.kind} layers is not modelled", hint=_NONE
            )


def _instead(name: str, table: Mapping[str, tuple[Served, ...]]) -> str:
    """Name what is served and begins the same, or reads much the same."""
    sure = ("own", "pooling", "pytorch", "turbomind", "transformers")
    served = [n for n, of in table.items() if of[-1].until is None and of[-1].how in sure]
    alike = [n for n in served if n.startswith(name.partition("For")[0])] or nearest(name, served)
    return f"it serves {' and '.join(alike[:3])}; " if alike else ""


def _refusal(spans: tuple[Served, ...], at: Number, release: str, name: str) -> tuple[str, str]:
    """Return why a release does not serve an architecture, and which does; "" for none."""
    later = [span.since for span in spans if span.since is not None and span.since > at]
    earlier = [span.until for span in spans if span.until is not None and span.until < at]
    if later:
        first = ".".join(map(str, min(later)))
        return f"{release} does not serve {name} yet: {first} does", (
            f"give --engine-version {first} or newer"
        )
    if earlier:
        last = ".".join(map(str, max(earlier)))
        return f"{release} no longer serves {name}: {last} was the last that did", (
            f"give --engine-version {last}"
        )
    return f"{release} does not serve {name}", ""
