"""The weights on each GPU of a question, and what loading leaves beside them."""

from __future__ import annotations

from typing import Any

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.memory import Term
from kvcalc.core.model import PARTITION, ModelSpec, stage_partition
from kvcalc.core.plan import CachePlan
from kvcalc.core.weights import beside_bytes, weights_on_rank
from kvcalc.sizing.sizes import sizes_of

__all__ = ["least_without_cache", "weights_of"]


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
            drafts=_own_drafts(deployment),
            sizes=sizes,
        )
        if isinstance(draft, ModelSpec) and stage == len(found.ranks) - 1:
            # A draft model lies on the last stage, split as the model is.
            own = weights_on_rank(draft, tp=tp)
            low = max(0, own.low_bytes - _tables(draft, deployment, tp))
            term = _added(term, low, own.high_bytes, f" and the draft's, {own.source}")
        term = _added(term, 0, beside_bytes(model, tp), "")
        if "cpu_offload_gb" in deployment.engine_args:
            from kvcalc.engines.vllm.host import left_on_card  # few questions ask for it

            share = found.ranks[stage].share
            layers = model.num_hidden_layers // pp if share is None else share.num_hidden_layers
            term = left_on_card(term, model, deployment, layers)
        terms.append(term)
    return tuple(terms)


def _own_drafts(deployment: Deployment) -> bool:
    """Whether the model's own layers that propose tokens are loaded: `mtp`, or an older name."""
    method = deployment.speculative_method
    if method is None:
        proposes = deployment.num_speculative_tokens is not None
        return deployment.engine == "vllm" and proposes and deployment.draft_model is None
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

    Exact where a file tells the tensors; else as pipeline stages have them: the embedding stays on
    the host with the first layers, and the output lies with the last of them (llama-model.cpp,
    load_tensors). A model whose output is its embedding has it there a second time.
    """
    asked = quantization is not None or total_bytes is not None
    if not asked and all(rank.weights_bytes is not None for rank in found.ranks):
        return tuple(_exact(rank.weights_bytes or 0) for rank in found.ranks)
    counts = [0 if r.share is None else r.share.num_hidden_layers for r in found.ranks]
    if sum(counts) != model.num_hidden_layers:  # heads are shared out, and not layers
        return _by_head(model, counts, total_bytes, quantization)
    devices = [count for r, count in zip(found.ranks, counts, strict=True) if not r.on_host]
    on_host = sum(count for r, count in zip(found.ranks, counts, strict=True) if r.on_host)
    if not devices:
        whole = weights_on_rank(model, quantization=quantization, total_bytes=total_bytes)
        return (whole,) * len(found.ranks)
    sizes = (on_host, *devices)
    stages = [
        weights_on_rank(
            model,
            pp=len(sizes),
            stage=stage,
            sizes=sizes,
            quantization=quantization,
            total_bytes=total_bytes,
        )
        for stage in range(len(sizes))
    ]
    host, *others = stages
    if model.size is None or model.size.tie_word_embeddings is not False:
        layers = model.num_hidden_layers
        table = weights_on_rank(
            model,
            pp=2,
            stage=0,
            sizes=(0, layers),
            quantization=quantization,
            total_bytes=total_bytes,
        )
        others[-1] = _added(others[-1], 0, table.high_bytes, "")
    placed = iter(zip(devices, others, strict=True))
    terms = []
    for rank in found.ranks:
        count, term = (on_host, host) if rank.on_host else next(placed)
        if len(found.ranks) > 1:
            told = f"; {count} of {model.num_hidden_layers} layers"
            term = _added(term, 0, 0, told)
        terms.append(term)
    return tuple(terms)


def least_without_cache(model: ModelSpec, layers: int, **asked: Any) -> int:
    """Return the bytes of weights that so many layers and the output take of llama.cpp's cards.

    Args:
        model: with its sizes.
        layers: that leave the host, the output apart.
        asked: as in weights_on_rank.
    """
    first = model.num_hidden_layers - layers
    return weights_on_rank(model, pp=2, stage=1, sizes=(first, layers), **asked).low_bytes


def _by_head(
    model: ModelSpec, counts: list[int], total_bytes: int | None, quantization: str | None
) -> tuple[Term, ...]:
    """Return bounds for devices that each have some heads of every layer: anything up to all."""
    whole = weights_on_rank(model, quantization=quantization, total_bytes=total_bytes)
    source = f"{whole.source}; heads are shared out over the devices"
    term = Term(name="weights", low_bytes=0, high_bytes=whole.high_bytes, source=source)
    return (term,) * len(counts)


def _exact(size: int) -> Term:
    return Term(name="weights", low_bytes=size, high_bytes=size, source="the file's tensors")


def _added(term: Term, low: int, high: int, source: str) -> Term:
    return Term(
        name=term.name,
        low_bytes=term.low_bytes + low,
        high_bytes=term.high_bytes + high,
        source=term.source + source,
    )
