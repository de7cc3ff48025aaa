"""The weights on each GPU of a question, and what loading leaves beside them."""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import Term
from kvcalc.core.model import PARTITION, ModelSpec, stage_partition
from kvcalc.core.plan import CachePlan
from kvcalc.core.weights import beside_bytes, weights_on_rank
from kvcalc.sizing.sizes import sizes_of

__all__ = ["weights_of"]


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
    if deployment.engine == "llama.cpp":
        return _by_device(model, found, total_bytes, quantization)
    tp, pp, replicas, _ = sizes_of(deployment)
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
            drafts=deployment.speculative_method == "mtp",
            sizes=sizes,
        )
        if isinstance(draft, ModelSpec) and stage == len(found.ranks) - 1:
            # A draft model lies on the last stage, split as the model is.
            own = weights_on_rank(draft, tp=tp)
            term = _added(term, own.low_bytes, own.high_bytes, f" and the draft's, {own.source}")
        terms.append(_added(term, 0, beside_bytes(model, tp), ""))
    return tuple(terms)


def _by_device(
    model: ModelSpec, found: CachePlan, total_bytes: int | None, quantization: str | None
) -> tuple[Term, ...]:
    """Return the weights on each device of llama.cpp: layers lie where their caches lie.

    Exact where a file tells the tensors; else by the number of layers, give or take the output,
    which lies with the last of them, and the embedding, which stays on the host.
    """
    whole = weights_on_rank(model, quantization=quantization, total_bytes=total_bytes)
    asked = quantization is not None or total_bytes is not None
    layers = model.num_hidden_layers
    terms = []
    for rank in found.ranks:
        if rank.weights_bytes is not None and not asked:
            size = rank.weights_bytes
            terms.append(
                Term(name="weights", low_bytes=size, high_bytes=size, source="the file's tensors")
            )
        elif len(found.ranks) == 1:
            terms.append(whole)
        else:
            count = rank.share.num_hidden_layers if rank.share is not None else layers
            low = whole.low_bytes * count * 4 // (5 * layers)
            high = min(whole.high_bytes, whole.high_bytes * (count * 5 + layers) // (5 * layers))
            source = f"{whole.source}; {count} of {layers} layers"
            terms.append(Term(name="weights", low_bytes=low, high_bytes=high, source=source))
    return tuple(terms)


def _added(term: Term, low: int, high: int, source: str) -> Term:
    return Term(
        name=term.name,
        low_bytes=term.low_bytes + low,
        high_bytes=term.high_bytes + high,
        source=term.source + source,
    )
