"""Laws of engines that were read from source, over presets and settings as they come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvcalc.answers.plan_summary import summarise
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    KvcalcError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan
from kvcalc.core.waste import Wastes
from kvcalc.engines import ENGINES, plan, start_up_log
from tests.property.test_vllm_laws import NAMES, RARE, model

SETTINGS = settings(max_examples=150, deadline=None, database=None)

READ = ("tgi", "mlc-llm", "vllm-tpu", "vllm-ascend")
"""Engines of which no answers were recorded; the others' are asked for in tests/engines."""
OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "tgi": (
        {"attention_backend": "paged"},
        {"attention_backend": "flashdecoding"},
        {
            "engine_args": {
                "free_memory": 60 * 2**30,
                "total_memory": 80 * 2**30,
                "max_batch_prefill_tokens": 4096,
            }
        },
    ),
    "mlc-llm": (
        {"engine_args": {"mode": "server"}},
        {"engine_args": {"mode": "interactive", "attention_sink_size": 0}},
        {"engine_args": {"quantization": "q0f32", "max_total_sequence_length": 10_001}},
    ),
    "vllm-tpu": (
        {"engine_args": {"model_impl_type": "flax_nnx"}},
        {"engine_args": {"model_impl_type": "vllm"}},
    ),
    "vllm-ascend": ({"num_speculative_tokens": 2, "speculative_method": "mtp"},),
}


def asked(engine: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Deployments of presets; what is None is left to the engine."""
    chosen: dict[str, st.SearchStrategy[Any]] = {
        "max_model_len": st.sampled_from((None, None, 1, 17, 4096, 8192, 131_072)),
        "tensor_parallel_size": st.sampled_from((1, 1, 1, 2, 4, 8)),
        "kv_cache_dtype": st.sampled_from((*["auto"] * 4, "fp8")),
        "enable_prefix_caching": st.sampled_from((None, None, True, False)),
        "max_num_seqs": st.sampled_from((None, None, 1, 7)),
    }
    return st.tuples(
        st.sampled_from(NAMES) | st.sampled_from((*RARE, "llama-3.1-8b", "mistral-7b-v0.1")),
        st.builds(
            lambda first, second: {k: v for k, v in {**first, **second}.items() if v is not None},
            st.fixed_dictionaries(chosen),
            st.sampled_from(({}, *OWN[engine])),
        ),
    )


def planned(engine: str, question: tuple[str, dict[str, Any]]) -> CachePlan | None:
    """Return the plan, or None for a refusal; nothing else may come of a question."""
    name, given = question
    try:
        found = plan(model(name), Deployment(engine=engine, **given))
    except KvcalcError as error:
        event("refused")
        assert isinstance(error, UnsupportedError | UnknownNameError | InvalidValueError)
        assert error.message
        assert not error.message.startswith(("group ", "pool ", "a waste", "wastes "))
        return None
    event("planned")
    return found


def test_every_engine_is_asked_for_somewhere() -> None:
    assert set(READ) < set(ENGINES)
    assert set(OWN) == set(READ)


@pytest.mark.parametrize("engine", READ)
@SETTINGS
@given(st.data())
def test_a_plan_that_adds_up_or_a_refusal(engine: str, data: st.DataObject) -> None:
    """Reserved = used + the wastes, in whole blocks, and no less than is held; it can be told."""
    found = planned(engine, data.draw(asked(engine)))
    if found is None:
        return
    assert found.engine == engine
    assert found.notes and found.unsupported and found.convention and found.source
    longest = found.max_model_len
    for n in {1, longest // 2, longest}:
        for wastes in (
            found.wastes(n),
            found.wastes_at_admission(n),
            found.wastes_all_ranks(n),
            found.contiguous().wastes(n),
        ):
            assert isinstance(wastes, Wastes)
            assert wastes.reserved_bytes == wastes.used_bytes + wastes.waste_bytes
        assert found.wastes(n).reserved_bytes == found.bytes_held(n)
        needed = found.rank.wastes(Lengths({n: 1}), admission=True).reserved_bytes
        assert found.bytes_needed(n) == needed
    assert summarise(found).needed_bytes == found.bytes_needed(longest)


@pytest.mark.parametrize("engine", READ)
@SETTINGS
@given(st.data(), st.sampled_from((1, 10**9, 20 * 2**30, 80 * 2**30, 2**42)))
def test_memory_is_told_and_more_holds_no_fewer(
    engine: str, data: st.DataObject, budget: int
) -> None:
    """What is logged has a line at least, and twice the memory holds as many sequences or more."""
    found = planned(engine, data.draw(asked(engine)))
    if found is None:
        return
    less, more = found.capacity(budget), found.capacity(2 * budget)

    assert less.max_sequences <= more.max_sequences
    assert less.kv_cache_tokens <= more.kv_cache_tokens
    assert start_up_log(found, budget)
    if less.fits and found.max_sequences is None:
        assert less.max_model_len_that_fits == found.max_model_len
    try:
        fixed = found.capacity(None)
    except UsageError:
        return
    assert fixed.kv_cache_tokens > 0
