"""What TensorRT-LLM leaves for the cache: a part of what is free at the peak of a profile run.

TensorRT-LLM _torch/pyexecutor/_util.py, KvCacheCreator: a run of max_num_tokens tokens with a small
cache; free_gpu_memory_fraction of what is left of the card beside its peak. No public start was
found that names card, model and all figures: the spans of what is not in the source are wide.
"""

from __future__ import annotations

from fractions import Fraction

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.memory import MemoryBudget, Term, gib_term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.visible import named_card, whole_card
from kvcalc.engines.tensorrt_llm.settings import Settings
from kvcalc.weights.widths import Span, Widths, widths_of

__all__ = ["budgets"]

_MAX_NUM_TOKENS = 8192
"""llm_args.py, TorchLlmArgs: tokens of a step."""
_CONTEXT = (0.3, 1.5)
_GRAPHS = (0.1, 3.0)
_COMMUNICATION = (0.1, 2.5)
_TOWER = (0.0, 6.0)


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of one GPU of each of the plan's ranks.

    Args:
        model: as published.
        deployment: as asked for; it must name the card.
        plan: of both.
        weights: one term a rank.
        free_bytes: what is free of the card before the server starts; None where it is alone.

    Raises:
        UnsupportedError: no card is named.
        InvalidValueError: another number of weights than of ranks.
    """
    require_ranks(weights, len(plan.ranks))
    gpu = named_card(deployment)
    assert isinstance(plan.resolved, Settings)  # noqa: S101 - as `plan` leaves it
    settings = plan.resolved
    part = Fraction(str(settings.fraction))
    widths = widths_of(model)
    dtype = model.dtype if deployment.dtype == "auto" else deployment.dtype
    tp = deployment.tensor_parallel_size
    peak = _peak(widths, tp, settings.batch, element_bytes(dtype))
    terms = [
        Term(
            name="activation",
            low_bytes=peak.low,
            high_bytes=peak.high,
            source=f"a step of {_MAX_NUM_TOKENS} tokens and logits of at most {settings.batch}"
            " requests (_util.py, the estimation run)",
        ),
        gib_term(
            "graphs",
            *_GRAPHS,
            "CUDA graphs: captured before the estimation run, which they are in the peak of, let go"
            " and captured again (py_executor_creator.py, create_py_executor): not measured",
        ),
        gib_term("context", *_CONTEXT, "the driver's context and kernels: not measured"),
    ]
    if tp * settings.pp > 1:
        terms.append(gib_term("communication", *_COMMUNICATION, "NCCL: not measured"))
    if widths.multimodal:
        terms.append(gib_term("other", *_TOWER, "the encoder's own peak: not measured", "encoder"))
    return tuple(
        whole_card(
            gpu,
            f"; the cache gets free_gpu_memory_fraction {settings.fraction} of what is free at the"
            " peak of the estimation run",
            (weight, *_states(rank), *terms),
            free_bytes=free_bytes,
            part=part,
        )
        for weight, rank in zip(weights, plan.ranks, strict=True)
    )


def _states(rank: Rank) -> tuple[Term, ...]:
    """Return the slots of states, which the peak of the estimation run holds already."""
    size = rank.beside_bytes
    if not size:
        return ()
    source = "slots of states, one for each of max_batch_size (MambaHybridCacheManager)"
    return (Term(name="other", low_bytes=size, high_bytes=size, source=source, label="states"),)


def _peak(widths: Widths, tp: int, batch: int, itemsize: int) -> Span:
    """Return a step's peak: inner tensors of an MLP or logits, experts', copies of the stream."""
    tokens = _MAX_NUM_TOKENS
    stream = widths.hidden.times(tokens * itemsize)
    inner = widths.inner.times(tokens * itemsize * 3, tokens * itemsize * 4).over(tp)
    rows = min(batch, tokens)
    logits = Span(0, widths.vocab.high * rows * 10)
    wide = max(2 * widths.expert_inner.high, widths.hidden.high) + widths.expert_inner.high
    experts = Span(0, tokens * widths.experts.high * wide * itemsize)
    return stream.times(2, 8) + inner.or_more(logits) + experts
