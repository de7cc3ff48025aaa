"""The weights of a draft: what it brings beside its layers, and if the cache is sized after it.

A draft makes an embedding and a head of its own as it is loaded (models/*_mtp.py, *_nextn.py), and
gets the target's in their place once the caches are there (speculative/eagle_worker_v2.py,
alloc_memory_pool and init_lm_head). Since 0.5.14 the draft is loaded before the cache is sized, so
that the cache has to do without both tables for good; before, the draft came after the cache, into
what mem_fraction_static keeps back (managers/scheduler.py, init_model_worker).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv, round_up
from kvcalc.core.weight_shapes import shape_of
from kvcalc.core.weight_split import VOCABULARY_MULTIPLE
from kvcalc.core.weights import weights_on_rank
from kvcalc.engines.sglang.settings import Settings

__all__ = ["Loaded", "loaded"]

_ITEMSIZE = 2
_SHARE_THEIR_OWN = ("Qwen3_5", "Ernie4_5")
"""Beginnings of architectures whose draft has one table for both where the model's are tied."""


class Loaded(NamedTuple):
    """Where the weights of a rank lie.

    Attributes:
        inside: what is there when the cache is sized.
        beside: what comes after it.
        freed: bytes of `inside` that are given back once the cache is there, at least.
    """

    inside: tuple[Term, ...]
    beside: tuple[Term, ...] = ()
    freed: int = 0


def loaded(
    weights: Term, model: ModelSpec, deployment: Deployment, settings: Settings, *, last: bool
) -> Loaded:
    """Return where the weights of a rank lie.

    Args:
        weights: of the rank, the draft's layers included.
        model: as SGLang runs it.
        deployment: as asked for.
        settings: as resolved.
        last: the rank is of the last pipeline stage, where the draft is.
    """
    found = settings.speculation
    if found is None or not found.layers or not last:
        return Loaded((weights,))
    tables = _tables(model, settings) if found.own else (0, 0)
    if settings.release.loads_draft_first:
        if not tables[1]:
            return Loaded((weights,))
        own = _term(tables, "the draft's own embedding and head, which the target's replace later")
        return Loaded((weights, own), freed=tables[0])
    draft = _of_draft(model, deployment, settings)
    low, high = weights.low_bytes - draft[1], weights.high_bytes - draft[0]
    target = Term(
        name="weights",
        low_bytes=max(0, low),
        high_bytes=max(0, low, high),
        source=f"{weights.source}; the draft is loaded after the cache is sized",
    )
    after = (draft[0], draft[1] + tables[1])
    return Loaded((target,), (_term(after, "the draft, loaded after the cache is sized"),))


def _term(span: tuple[int, int], what: str) -> Term:
    low, high = span
    source = f"{what} (speculative/eagle_worker_v2.py, init_lm_head)"
    return Term(name="weights", low_bytes=low, high_bytes=high, source=source, label="draft")


def _of_draft(model: ModelSpec, deployment: Deployment, settings: Settings) -> tuple[int, int]:
    """Return the bytes of a draft's weights on a rank, as the weights of the rank count them."""
    draft = deployment.draft_model
    if settings.speculation is not None and not settings.speculation.own:
        if not isinstance(draft, ModelSpec):
            return 0, 0
        term = weights_on_rank(draft, tp=settings.tp)
        return term.low_bytes, term.high_bytes
    with_it, without = (
        weights_on_rank(model, tp=settings.tp, pp=settings.pp, stage=settings.pp - 1, drafts=drafts)
        for drafts in (True, False)
    )
    ends = (with_it.low_bytes - without.low_bytes, with_it.high_bytes - without.high_bytes)
    return max(0, min(ends)), max(0, *ends)


def _tables(model: ModelSpec, settings: Settings) -> tuple[int, int]:
    """Return the bytes of a draft's embedding and head on a rank, beyond what its layers count.

    Both are divided by the ranks; under DP attention by those of a group, or not at all.
    """
    size = model.size
    shape = shape_of(model.architecture)
    if size is None or size.vocab_size is None or size.hidden_size is None:
        return 0, 0
    if shape is not None and shape.draft_tables:
        return 0, 0  # the checkpoint's draft has both, and they are counted with its layers
    tied = size.tie_word_embeddings
    if tied is None and shape is not None:
        tied = shape.tied
    one = bool(tied) and (model.architecture or "").startswith(_SHARE_THEIR_OWN)
    whole = round_up(size.vocab_size, VOCABULARY_MULTIPLE) * size.hidden_size * _ITEMSIZE
    count = 1 if one else 2
    least, most = count * cdiv(whole, settings.tp), count * cdiv(whole, settings.attn_tp)
    known = shape is not None and shape.draft_tables is False
    return (least if known else 0), most
