"""What vLLM's memory profile finds beside the weights: a formula of widths, in spans.

The profile runs one step of max_num_batched_tokens tokens, then the sampler on max_num_seqs rows of
logits, and takes the peak: v1/worker/gpu_model_runner.py, profile_run and _dummy_sampler_run (0.11,
0.19, 0.33); V0's is in `profile_v0`. What cannot be read there is a span. LOGIT_BYTES, CONTEXT and
COMMUNICATION are those of the fitted half of public starts (tests/engines/vllm/starts.tsv says
which half, test_starts.py holds them to it); GRAPHS are estimates that other logs print; workspaces
and towers are allowances, which only the whole span is judged by. The further a release is from
those that starts confirm, the wider its spans are (STARTS, doubt).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import Mla
from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm import profile_v0
from kvcalc.engines.vllm.scheduling import runs_ahead
from kvcalc.engines.vllm.settings import Settings
from kvcalc.weights.widths import Span, Widths, is_multimodal

__all__ = [
    "COMMUNICATION",
    "CONTEXT",
    "GRAPHS",
    "GRAPHS_COUNTED_SINCE",
    "HIDDEN_COPIES",
    "LOGIT_BYTES",
    "STARTS",
    "Step",
    "activation",
    "communication",
    "context",
    "counts_graphs",
    "doubt",
    "encoder",
    "graphs",
    "sampler_of",
    "steps_of",
    "token_table",
    "widened",
]

_GIB = 2**30
_HALF = 2
"""Bytes of an activation."""
_TOKEN_ID = 4

_NO_SORT_SINCE = (0, 17)
"""v1/sample/ops/topk_topp_triton.py; before, top-p sorts all logits with their indices."""
_V2_FOR_DENSE, _V2_FOR_ALL = (0, 25), (0, 29)
"""v1/worker/gpu/model_runner.py is the runner of dense models, later of all."""
GRAPHS_COUNTED_SINCE = (0, 20, 0)
"""VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 1 by default (envs.py)."""
_MORE_KERNELS_SINCE = (0, 12)
"""More is loaded beside torch; on Hopper and data-centre Blackwell all-reduce gets buffers of its
own (symmetric memory)."""

LOGIT_BYTES = {"sort": (37, 41), "v1": (13, 17), "v2": (2, 10)}
"""Bytes of a logit at the sampler's peak. In 16 bits and in 32 it is 6; softmax and noise in
32 bits make it 14 (V1 since 0.17); sorted values, 8-byte indices and the sort's own copies 38
(before); the second runner draws without either."""

HIDDEN_COPIES = {"sampling": (2, 4), "layers": (3, 7)}
"""Copies of the residual stream of a step that are alive while logits are sampled, and while an MLP
has its inner tensors."""

CONTEXT = {"before": (0.01, 0.30), "since": (0.05, 0.65)}
"""GiB that are not torch's on a GPU alone: kernels, cuBLAS, the allocator's rounding; before 0.12
and since."""
_CONTEXT_MOST = 0.03
"""Part of a small card that it does not exceed: smaller cards have fewer multiprocessors."""
_CONTEXT_SHARED = 3.5
"""GiB, where the host shares the memory: what it takes in the meantime counts as the engine's."""

COMMUNICATION = {"switched, wide": (0.5, 2.2), "switched": (0.1, 1.4), "bus": (0.0, 0.6)}
"""GiB that are not torch's, beyond CONTEXT, where ranks share the heads: by link and release."""
_STAGES = (0.0, 0.1)
"""GiB beyond CONTEXT where stages alone are split."""

GRAPHS = ((0.0, 0.0), (0.3, 0.0130))
"""What CUDA graphs are estimated to take, least and most: GiB, and a part of the card."""
_GRAPHS_LAYER = 0.026
"""GiB a layer where that is more, on a GPU that has whole ones: 1.59 GiB were logged of 64 layers
on 24 GiB, and 0.09 GiB of 64 that two such GPUs share."""
_GRAPHS_DRAFT = 5
"""Times that where a draft of its own proposes tokens, which is captured too: 6.24 GiB were logged
on 80 GiB; the model's own layers add next to nothing. What is not covered: 33 GiB estimated, and
8.6 taken, of a hybrid over data-parallel ranks of 288 GiB."""

_LATENT_WORKSPACE = 0.025
"""Part of the card that MLA's prefill and sparse indexers may take for workspaces."""
_TOWER = 0.045
"""Part of the card by which an encoder's own peak may lie above the language model's."""
_LARGEST_ITEM = 16_384
"""Tokens of the largest image or video where they exceed a step."""

STARTS = {"v0": 11, "sort": 12, "v1": 27, "v2": 3}
"""Public starts that lie inside of what is predicted, by the code that they were profiled with: V0,
and V1 by its sampler (test_starts.py)."""
_DOUBT_MOST = 0.3
_DOUBT_OF_GPU = 0.02
"""Part of the GPU that the peak may lie above what is predicted, for a doubt of 1."""
_TERMS_SINCE = (0, 6, 4)
"""Before, logs tell what was left alone and no terms of it: the most is doubted."""


class Step(NamedTuple):
    """What the profile runs: tokens, rows of logits, ranks, and which code samples.

    Attributes:
        tokens: of the step.
        rows: of logits; 0 on a stage that samples nothing.
        tp: ranks that share a layer.
        expert_tp: ranks that share an expert (1 where whole experts are dealt out).
        sampler: key of LOGIT_BYTES.
        in_parts: products are made in parts that are summed afterwards.
    """

    tokens: int
    rows: int
    tp: int
    expert_tp: int
    sampler: str
    in_parts: bool = False


def steps_of(
    model: ModelSpec, settings: Settings, deployment: Deployment, *, v0: bool, last: bool
) -> tuple[Step, ...]:
    """Return the steps that a rank may be profiled with: one where it is known which.

    Args:
        model: as vLLM runs it.
        settings: as resolved for V1.
        deployment: as asked for.
        v0: the engine before V1 starts.
        last: the rank's stage is the last.
    """
    step = Step(
        tokens=settings.max_num_batched_tokens,
        rows=min(settings.max_num_seqs, settings.max_num_batched_tokens) if last else 0,
        tp=settings.tp,
        expert_tp=1 if deployment.enable_expert_parallel else settings.tp,
        sampler=sampler_of(model, settings, v0=v0),
    )
    if not v0:
        return (step,)
    multimodal = is_multimodal(model)
    tokens = profile_v0.tokens_of(model, settings, deployment, multimodal=multimodal)
    rows = min(deployment.max_num_seqs or profile_v0.SEQS, tokens) if last else 0
    parts = profile_v0.sums_parts(model, settings)
    step = step._replace(tokens=tokens, rows=rows, in_parts=parts)
    items, _ = profile_v0.items_of(model, deployment)
    if not multimodal or not items:
        return (step,)
    # As many sequences as hold the largest items, at least one: model_runner.py, profile_run.
    one = step._replace(rows=min(1, rows))
    return (one, step, one._replace(tokens=max(tokens, items)))


def sampler_of(model: ModelSpec, settings: Settings, *, v0: bool) -> str:
    """Return which code samples in the profile: a key of LOGIT_BYTES."""
    line = settings.release.line
    if v0 or line < _NO_SORT_SINCE:
        return "sort"
    if line >= _V2_FOR_ALL or (line >= _V2_FOR_DENSE and runs_ahead(model)):
        return "v2"
    return "v1"


def activation(
    model: ModelSpec, widths: Widths, steps: tuple[Step, ...], card_bytes: int, itemsize: int
) -> Span:
    """Return the peak of torch's memory in the profile beyond the weights, of any of the steps."""
    found = [_peak(widths, step, itemsize) for step in steps]
    peak = Span(min(span.low for span in found), max(span.high for span in found))
    if any(isinstance(cache, Mla) for _, cache in model.caches()):
        peak += Span(0, int(card_bytes * _LATENT_WORKSPACE))
    return peak


def _peak(widths: Widths, step: Step, itemsize: int) -> Span:
    """Return the greater of an MLP's inner tensors and the sampler's.

    Each has copies of the residual stream; workspaces of experts stay. Logits in 32 bits need no
    copy in 32 bits.
    """
    stream = widths.hidden.times(step.tokens * itemsize)
    # Gate and up in one tensor and their product in another: three times the inner width; kernels
    # that quantise make a copy of the product. In eight parts, gate and up are there nine times.
    low, high = (32, 38) if step.in_parts else (6, 7)
    inner = widths.inner.times(step.tokens * itemsize * low, step.tokens * itemsize * high)
    layers = inner.over(2 * step.tp) + stream.times(*HIDDEN_COPIES["layers"])
    low, high = (size - _HALF * (itemsize > _HALF) for size in LOGIT_BYTES[step.sampler])
    logits = widths.vocab.times(step.rows * low, step.rows * high)
    sampling = logits + stream.times(*HIDDEN_COPIES["sampling"])
    return layers.or_more(sampling) + _experts(widths, step, itemsize)


def _experts(widths: Widths, step: Step, itemsize: int) -> Span:
    """Return workspaces of routed experts: fused_moe/modular_kernel.py, workspace shapes.

    Gate and up, or the outputs, of every token's experts share one tensor, the activated products
    have another; some kernels need neither.
    """
    if not widths.experts.high:
        return Span(0, 0)
    inner = widths.expert_inner.high // step.expert_tp
    width = max(2 * inner, widths.hidden.high) + inner
    return Span(0, step.tokens * widths.experts.high * width * itemsize)


def context(settings: Settings, card_bytes: int, *, shared: bool) -> Span:
    """Return what is not torch's on a GPU alone."""
    low, high = CONTEXT["since" if settings.release.line >= _MORE_KERNELS_SINCE else "before"]
    high = min(high, card_bytes / _GIB * _CONTEXT_MOST)
    return _gib(min(low, high), high + (_CONTEXT_SHARED if shared else 0))


def communication(settings: Settings) -> Span:
    """Return what is not torch's beyond that, because GPUs talk to each other."""
    if settings.tp == 1:
        return _gib(*(_STAGES if settings.pp > 1 else (0, 0)))
    return _gib(*COMMUNICATION[_link(settings)])


def token_table(settings: Settings) -> Span:
    """Return the token ids that are kept on the GPU for n-grams: max_num_seqs x max_model_len.

    v1/worker/gpu_model_runner.py, token_ids_gpu_tensor (0.18 on); the second runner keeps them in
    memory that host and GPU share.
    """
    spec = settings.speculation
    if spec is None or spec.method != "ngram_gpu":
        return Span(0, 0)
    size = settings.max_num_seqs * settings.max_model_len * _TOKEN_ID
    return Span(0 if settings.release.line >= _V2_FOR_DENSE else size, size)


def _link(settings: Settings) -> str:
    """Cards of data centres from Hopper on are taken to be switched; others share a bus."""
    switched = settings.card.family in (9, 10)
    if not switched:
        return "bus"
    return "switched, wide" if settings.release.line >= _MORE_KERNELS_SINCE else "switched"


def counts_graphs(settings: Settings) -> bool:
    """Whether the release takes CUDA graphs off the share; before, they come on top of it."""
    return settings.release.number >= GRAPHS_COUNTED_SINCE


def graphs(card_bytes: int, layers: int, *, tp: int, proposes: bool, shared: bool) -> Span:
    """Return what CUDA graphs are estimated to take (profile_cudagraph_memory).

    Args:
        card_bytes: of the GPU.
        layers: of the model.
        tp: ranks that share a layer.
        proposes: a draft proposes tokens, and not layers of the model's own.
        shared: the host shares the memory, and what it takes in the meantime counts as theirs.
    """
    (low, low_part), (high, high_part) = GRAPHS
    most = high + high_part * card_bytes / _GIB
    if tp == 1:
        most = max(most, layers * _GRAPHS_LAYER)
    most = most * (_GRAPHS_DRAFT if proposes else 1) + (_CONTEXT_SHARED if shared else 0)
    return Span(int(low * _GIB + low_part * card_bytes), int(most * _GIB))


def encoder(widths: Widths, step: Step, card_bytes: int, itemsize: int) -> Span:
    """Return what a tower adds: the encoder cache, and its own peak where it is the greater.

    The cache has room for the tokens of a step, or of the largest item: v1/core/
    encoder_cache_manager.py, compute_mm_encoder_budget; the profile fills it.
    """
    low = step.tokens * widths.hidden.low * itemsize
    high = max(step.tokens, _LARGEST_ITEM) * widths.hidden.high * itemsize
    return Span(min(low, high), high + int(card_bytes * _TOWER))


def doubt(settings: Settings, sampler: str, *, v0: bool) -> float:
    """Return how little is known of the code that profiles a start: of 0 to 0.3, 0.3 the least.

    The more starts with the same code lie in what is predicted, the smaller it is.
    """
    if settings.release.number < _TERMS_SINCE:
        return _DOUBT_MOST
    return min(_DOUBT_MOST, 1 / (1 + STARTS["v0" if v0 else sampler]))


def widened(span: Span, by: float, card_bytes: int = 0) -> Span:
    """Return a span wider by a doubt, and by its part of a GPU."""
    more = int(card_bytes * by * _DOUBT_OF_GPU)
    return Span(int(span.low * (1 - by)), int(span.high * (1 + by)) + more)


def _gib(low: float, high: float) -> Span:
    return Span(int(low * _GIB), int(high * _GIB))
