"""What every engine leaves of a card for the cache: its rule, term by term."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import msgspec
import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.core.visible import DRIVER_CONTEXT, driver_context, visible
from kvcalc.engines import ENGINES, budgets, plan
from kvcalc.models import load_model
from kvcalc.models.presets import all_gpus, load_gpu
from tests.engines.vllm.starts import model_of

_GIB = 2**30
_WIDEST, _WIDEST_SHARED = ((44, 0.08), (20, 0.10), (0, 0.14)), 0.12
"""Part of a GPU of so many GiB or more that a span may be wide; where the host shares it."""
_WITH_BUDGET = (
    "vllm",
    "sglang",
    "llama.cpp",
    "tensorrt-llm",
    "transformers",
    "lmdeploy",
    "mlx-lm",
    "exllamav2",
    "exllamav3",
)
_PAGED = {"cache_implementation": "paged"}


def _weights(gib: float = 15.0) -> Term:
    size = int(gib * _GIB)
    return Term(name="weights", low_bytes=size, high_bytes=size, source="a test")


def _budgets(
    engine: str, *, gpu: str = "h100-80gb", model: str = "llama-3.1-8b", **given: object
) -> tuple[MemoryBudget, ...]:
    spec = model_of(model)
    if engine == "transformers":
        given.setdefault("engine_args", _PAGED)
    deployment = Deployment(engine=engine, gpu=load_gpu(gpu), **given)  # type: ignore[arg-type]  # fields by name
    planned = plan(spec, deployment)
    return budgets(spec, deployment, planned, (_weights(),) * len(planned.ranks))


def _term(budget: MemoryBudget, name: str) -> Term:
    (found,) = [term for term in (*budget.terms, *budget.outside) if term.name == name]
    return found


@pytest.mark.parametrize("engine", _WITH_BUDGET)
def test_every_engine(engine: str) -> None:
    """A budget has the weights given, sources for all terms, and leaves the rest of the card."""
    (budget,) = _budgets(engine)
    assert budget.terms[0] == _weights()
    assert all(term.source for term in (*budget.terms, *budget.outside))
    low, high = budget.cache_bytes
    assert 30 * _GIB < low <= high < 70 * _GIB
    assert "h100-80gb" in budget.share_source


@pytest.mark.parametrize("engine", ENGINES)
def test_refusals(engine: str) -> None:
    """An engine without a budget is refused by name; without a card, and for missing weights."""
    model = model_of("llama-3.1-8b")
    args = _PAGED if engine == "transformers" else {}
    named = Deployment(engine=engine, gpu=load_gpu("h100-80gb"), engine_args=dict(args))
    if engine not in _WITH_BUDGET:
        with pytest.raises(UnsupportedError, match=engine):
            budgets(model, Deployment(engine=engine), plan(model, Deployment(engine=engine)), ())
        return
    with pytest.raises(InvalidValueError, match="weights"):
        budgets(model, named, plan(model, named), ())
    unnamed = msgspec.structs.replace(named, gpu=None)
    planned = plan(model, unnamed)
    with pytest.raises(UnsupportedError) as refused:
        budgets(model, unnamed, planned, (_weights(),) * len(planned.ranks))
    assert refused.value.hint


@pytest.mark.parametrize(("release", "part"), [("0.19.1", "0.9"), ("0.20.2", "0.92")])
def test_vllm_share(release: str, part: str) -> None:
    """The share is the fraction of what the runtime sees, rounded up; its default by release."""
    (budget,) = _budgets("vllm", engine_version=release)
    seen = int(79.09 * _GIB), int(79.26 * _GIB)
    assert budget.share_bytes == tuple(ceil(Fraction(part) * size) for size in seen)
    assert f"gpu_memory_utilization {part} (the default of {release})" in budget.share_source


def test_vllm_graphs_by_release() -> None:
    """Graphs come on top of the share before 0.20.2, within it since, and not with eager steps."""
    (before,) = _budgets("vllm", engine_version="0.19.1")
    (since,) = _budgets("vllm", engine_version="0.20.2")
    (eager,) = _budgets("vllm", engine_version="0.20.2", enforce_eager=True)
    assert [t.name for t in before.outside] == ["graphs"]
    assert "graphs" in [t.name for t in since.terms]
    assert not since.outside
    for budget in (before, since, eager):  # there before the share is checked
        assert [t.name for t in budget.before] == ["context"]
    assert "graphs" not in [t.name for t in (*eager.terms, *eager.outside)]


def test_vllm_sampler() -> None:
    """8,192 tokens and 1,024 rows of 128,256 logits: 14 B a logit since 0.17, 38 B before."""
    logits = 1024 * 128_256
    (sorting,) = _budgets("vllm", engine_version="0.16.0")
    (drawing,) = _budgets("vllm", engine_version="0.17.1")
    for budget, each in ((sorting, 38), (drawing, 14)):
        activation = _term(budget, "activation")
        held = 3 * 8192 * 4096 * 2
        assert activation.low_bytes <= each * logits + held <= activation.high_bytes
    assert _term(drawing, "activation").high_bytes < _term(sorting, "activation").low_bytes


def test_vllm_stages() -> None:
    """The last stage alone samples; each is told for itself."""
    first, last = _budgets("vllm", engine_version="0.19.1", pipeline_parallel_size=2)
    assert _term(first, "activation").high_bytes < _term(last, "activation").low_bytes


def test_vllm_given_memory() -> None:
    """kv_cache_memory_bytes is what the cache gets, whatever else is taken."""
    (budget,) = _budgets("vllm", kv_cache_memory_bytes=10 * _GIB)
    assert budget.cache_bytes == (10 * _GIB, 10 * _GIB)
    assert _weights() in budget.terms
    plain = _budgets("vllm")[0]
    assert budget.share_bytes == plain.share_bytes  # it must be free all the same: request_memory
    assert budget.checks_share and plain.checks_share


def test_small_cards_have_small_contexts() -> None:
    """No default of 0.92 leaves less of a card than the driver's context takes of it at most."""
    for name in ("t4", "rtx-4090", "l40s", "a100-40gb", "h100-80gb", "h200", "b200"):
        gpu = load_gpu(name)
        low, high = driver_context(gpu)
        assert 0 < low < high <= DRIVER_CONTEXT[1]
        assert high * 2**30 < visible(gpu).low_bytes * 0.08


def test_tensorrt_counts_its_graphs() -> None:
    """They are captured before the estimation run, in whose peak they are: nothing comes later."""
    (budget,) = _budgets("tensorrt-llm")
    assert "graphs" in [t.name for t in budget.terms]
    assert not budget.outside and not budget.before
    assert budget.shortfall("low") <= 0


def test_vllm_adapters() -> None:
    """Slots for adapters take memory by number and rank; the cache's plan does not change."""
    model = model_of("llama-3.1-8b")
    plain = Deployment(engine="vllm", gpu=load_gpu("h100-80gb"))
    slots = msgspec.structs.replace(plain, engine_args={"max_loras": 4, "max_lora_rank": 64})
    assert plan(model, plain) == plan(model, slots)
    (budget,) = budgets(model, slots, plan(model, slots), (_weights(),))
    other = _term(budget, "other")
    # All projections of 32 layers at rank 64, four times: a published adapter of rank 64 has
    # 167,772,160 parameters for this model (r x (in + out) over seven projections).
    assert other.low_bytes < 4 * 167_772_160 * 2 * 1.02
    assert other.high_bytes > 4 * 167_772_160 * 2 * 0.98
    with pytest.raises(UnknownNameError, match="max_lora"):
        plan(model, msgspec.structs.replace(plain, engine_args={"max_lora": 1}))


def test_vllm_encoder() -> None:
    """A model with a tower has a term for its profile and cache; one without has none."""
    (tower,) = _budgets("vllm", model="mistral-small-3.1-24b")
    (text,) = _budgets("vllm")
    assert "other" in [t.name for t in tower.terms]
    assert "other" not in [t.name for t in text.terms]
    assert _term(tower, "other").low_bytes == 8192 * 5120 * 2


def test_unknown_widths_are_said() -> None:
    """A model whose config told no widths has wider spans and says so."""
    bare = msgspec.structs.replace(model_of("llama-3.1-8b"), size=None)
    deployment = Deployment(engine="vllm", gpu=load_gpu("h100-80gb"))
    (wide,) = budgets(bare, deployment, plan(bare, deployment), (_weights(),))
    (narrow,) = _budgets("vllm")
    assert wide.cache_bytes[0] < narrow.cache_bytes[0]
    assert narrow.cache_bytes[1] < wide.cache_bytes[1]
    assert "guessed" in _term(wide, "activation").source


@pytest.mark.parametrize("gpu", [p.spec.name for p in all_gpus()])
def test_every_card(gpu: str) -> None:
    """On every GPU vLLM's span for a small text model is narrow.

    8 % of 48 GiB and more, 10 % of 20 GiB and more, 14 % below, where a few hundred MiB of kernels
    and graphs are more; 12 % where the host shares the memory.
    """
    model = model_of("qwen2.5-1.5b")
    deployment = Deployment(engine="vllm", gpu=load_gpu(gpu), dtype="float16")
    try:
        planned = plan(model, deployment)
    except KvcalcError as refused:
        assert "CUDA" in refused.message
        return
    (budget,) = budgets(model, deployment, planned, (_weights(3),))
    low, high = budget.cache_bytes
    widest = next(part for gib, part in _WIDEST if budget.total_bytes >= gib * _GIB)
    if load_gpu(gpu).memory_kind == "unified":
        widest = _WIDEST_SHARED
    assert 0 < high - low <= widest * budget.total_bytes


def test_tensorrt_llm_part() -> None:
    """The cache gets free_gpu_memory_fraction of what is left at the peak."""
    (budget,) = _budgets("tensorrt-llm", engine_args={"free_gpu_memory_fraction": 0.5})
    assert budget.cache_part == (1, 2)
    left = budget.share_bytes[1] - sum(t.low_bytes for t in budget.terms)
    assert budget.cache_bytes[1] == left // 2


def test_lmdeploy_logits() -> None:
    """The PyTorch engine keeps (max_prefill_token_num + 2 max_batch_size) rows of 16-bit logits."""
    (budget,) = _budgets("lmdeploy")
    assert budget.cache_part == (4, 5)
    (activation,) = [term for term in budget.terms if term.name == "activation"]
    assert activation.exact and activation.low_bytes % (128_256 * 2) == 0
    (turbomind,) = _budgets("lmdeploy", engine_args={"backend": "turbomind"})
    assert "activation" not in [t.name for t in turbomind.terms]


def test_transformers_caches() -> None:
    """Continuous batching takes 0.9 of what is free; a cache that grows has no budget."""
    (paged,) = _budgets("transformers")
    (dynamic,) = _budgets("transformers", engine_args={}, max_model_len=8192)
    assert paged.cache_part == (9, 10) and dynamic.cache_part == (1, 1)


def test_llama_cpp_margin() -> None:
    """What fit leaves free is for nothing that is known: where all fits, the cache may have it.

    The compute buffer is about what a CPU's is.
    """
    (budget,) = _budgets("llama.cpp", max_model_len=8192)
    assert budget.share_bytes[0] == int(79.09 * _GIB)
    compute = _term(budget, "activation")
    assert compute.low_bytes < 138_430_496 < compute.high_bytes  # as measured, outputs limited


def test_llama_cpp_host() -> None:
    """A card does not tell what the host has: of it only what it keeps is told."""
    model = model_of("llama-3.1-8b")
    deployment = Deployment(
        engine="llama.cpp", gpu=load_gpu("h100-80gb"), engine_args={"n_gpu_layers": 8}
    )
    planned = plan(model, deployment)
    device, host = budgets(model, deployment, planned, (_weights(),) * len(planned.ranks))
    assert device.total_bytes == load_gpu("h100-80gb").memory_bytes
    assert host.cache_bytes[0] > 2**59
    assert host.terms == (_weights(),)


def test_sglang_vision_tower() -> None:
    """Qwen3.5's tower of 27 layers, 1,152 wide; SGLang counts 24 where the config says `depth`.

    SGLang 0.5.23 arg_groups/memory_hook.py: 0.95 x (1 - 0.1 x (ratio - 1)), against 24 x 1,024.
    """
    bounds = [0.95 * (1 - 0.1 * (n * 1152**2 / (24 * 1024**2) - 1)) for n in (27, 24)]
    deployment = Deployment(engine="sglang", gpu=load_gpu("h100-80gb"), max_model_len=8192)
    model = load_model("qwen3.5-27b")
    (budget,) = budgets(model, deployment, plan(model, deployment), (_weights(),))
    kept = budget.share_bytes[1] - budget.share_bytes[0]
    assert 0.83 * (bounds[1] - bounds[0]) * 75 * _GIB < kept < 4 * _GIB
