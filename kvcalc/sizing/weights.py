"""The weights on each GPU of a question, and what loading leaves beside them."""

from __future__ import annotations

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.memory import Term
from kvcalc.core.model import PARTITION, ModelSpec, stage_partition
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.size import ModelSize
from kvcalc.engines import engine_of
from kvcalc.sizing.sizes import sizes_of
from kvcalc.weights.formats import UNKNOWN_FORMAT, weight_width
from kvcalc.weights.loading import Loading, as_loaded
from kvcalc.weights.on_rank import beside_bytes, weights_on_rank

__all__ = ["as_weighed", "weights_of"]


def weights_of(
    model: ModelSpec,
    deployment: Deployment,
    found: CachePlan,
    *,
    total_bytes: int | None,
    quantization: str | None,
) -> tuple[Term, ...]:
    """Return the weights on a GPU of each rank of a plan.

    Args:
        model: as published.
        deployment: as it is to be served.
        found: the plan of both.
        total_bytes: of the whole model, instead of what is known of it.
        quantization: what they are kept in, instead of the checkpoint's own.

    Raises:
        UnsupportedError, UnknownNameError: nothing tells them, or no such format.
    """
    engine = engine_of(deployment.engine)
    loading = engine.loading(model, deployment, found)
    if engine.plans_by_weights:
        return _by_device(as_loaded(model, loading), found, total_bytes, quantization)
    tp, pp, replicas, groups = sizes_of(deployment)
    experts = tp * replicas if deployment.enable_expert_parallel else None
    sizes = stage_partition(
        deployment.engine_args.get(PARTITION) if pp > 1 else None, model.num_hidden_layers, pp
    )
    draft = deployment.draft_model
    terms = []
    for stage in range(len(found.ranks)):
        term = weights_on_rank(
            model,
            tp=tp,
            pp=pp,
            stage=stage,
            ep=experts,
            quantization=quantization,
            total_bytes=total_bytes,
            drafts=found.loads_drafts or _own_drafts(deployment),
            sizes=sizes,
            groups=groups,
            loading=loading,
        )
        draft_apart = isinstance(draft, ModelSpec) and not found.loads_drafts
        if isinstance(draft, ModelSpec) and draft_apart and stage == len(found.ranks) - 1:
            # A draft model lies on the last stage, split as the model is.
            own = weights_on_rank(draft, tp=tp, loading=Loading(dtype=loading.dtype))
            low = max(0, own.low_bytes - _tables(draft, deployment, tp))
            term = _added(term, low, own.high_bytes, f" and the draft's, {own.source}")
        term = _added(term, 0, beside_bytes(model, tp, loading), "")
        share = found.ranks[stage].share
        layers = model.num_hidden_layers // pp if share is None else share.num_hidden_layers
        asked = {"layers": layers, "quantization": quantization}
        terms.append(engine.left_on_gpu(term, model, deployment, found, **asked))
    return tuple(terms)


def _own_drafts(deployment: Deployment) -> bool:
    """Whether the model's own layers that propose tokens are loaded: `mtp`, or an older name."""
    method = deployment.speculative_method
    if method is None:
        proposes = deployment.num_speculative_tokens is not None
        unnamed = engine_of(deployment.engine).unnamed_drafts
        return unnamed and proposes and deployment.draft_model is None
    return method.endswith("mtp")


def _tables(draft: ModelSpec, deployment: Deployment, tp: int) -> int:
    """Bytes of embedding and head at most that a head of a draft takes from its target."""
    size = draft.size
    heads = deployment.speculative_method in ("eagle", "eagle3", "dflash", "dspark")
    if not heads or size is None or size.vocab_size is None or size.hidden_size is None:
        return 0
    return 2 * size.vocab_size * size.hidden_size * element_bytes(draft.dtype) // tp


def _by_device(
    model: ModelSpec, found: CachePlan, total_bytes: int | None, quantization: str | None
) -> tuple[Term, ...]:
    """Return the weights on each device of llama.cpp: layers lie where their caches lie.

    The plan tells them, by its tensors or by bounds of those that its file would have.
    """
    del total_bytes, quantization  # they are the model's own by now (as_weighed)
    if all(rank.weights_bytes is not None for rank in found.ranks):
        return tuple(_on_device(model, rank) for rank in found.ranks)
    return _by_head(model, [0] * len(found.ranks), None, None)


def _on_device(model: ModelSpec, rank: Rank) -> Term:
    low, size = rank.weights_bytes or 0, model.size or ModelSize()
    source = "the file's tensors"
    if not model.weights:
        source = (
            size.weights_source
            or f"counted from the widths, in {size.weights_dtype or model.dtype}"
        )
    return Term(name="weights", low_bytes=low, high_bytes=low + rank.weights_more, source=source)


def as_weighed(model: ModelSpec, total_bytes: int | None, quantization: str | None) -> ModelSpec:
    """Return a model whose weights are what was asked about, instead of what is known of them."""
    if total_bytes is None and quantization is None:
        return model
    # A total says more than a format of other engines, which a GGUF file has in part at most.
    known = quantization is not None and (
        total_bytes is None or weight_width(quantization).mixture is not None
    )
    size = msgspec.structs.replace(
        model.size or ModelSize(),
        parameters=None,
        weights_bytes=total_bytes,
        weights_error_bytes=None,
        weights_dtype=(quantization or "").strip().lower() if known else UNKNOWN_FORMAT,
        expert_dtype=None,
        encoder_bytes=0,
        kept=None,
        parts=(),
        weights_source=None if total_bytes is None else "as given",
    )
    return msgspec.structs.replace(model, size=size, weights=())


def _by_head(
    model: ModelSpec, counts: list[int], total_bytes: int | None, quantization: str | None
) -> tuple[Term, ...]:
    """Return bounds for devices that each have some heads of every layer: anything up to all."""
    whole = weights_on_rank(model, quantization=quantization, total_bytes=total_bytes)
    source = f"{whole.source}; heads are shared out over the devices"
    term = Term(name="weights", low_bytes=0, high_bytes=whole.high_bytes, source=source)
    return (term,) * len(counts)


def _added(term: Term, low: int, high: int, source: str) -> Term:
    return Term(
        name=term.name,
        low_bytes=term.low_bytes + low,
        high_bytes=term.high_bytes + high,
        source=term.source + source,
    )
