"""Laws of vLLM's plans, over presets as they ship and settings as they come."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvcalc.answers.plan_summary import summarise
from kvcalc.core.capacity import start_up_need
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.lengths import Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.units import UNIT_SYSTEMS
from kvcalc.core.waste import Wastes
from kvcalc.engines import plan, start_up_log
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu, preset_folder
from kvcalc.report.table import plain, render
from kvcalc.report.views import view

SETTINGS = settings(max_examples=300, deadline=None, database=None)

NAMES = sorted(path.stem for path in (preset_folder() / "models").glob("*.yaml"))
# Kinds of models that few presets have, so that they come up as often as the common one.
RARE = (
    "qwen3.5-27b",
    "gemma-3-27b",
    "gpt-oss-120b",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "llama-4-scout",
    "jamba-v0.1",
    "falcon-mamba-7b",
    "nemotron-3-nano-30b-a3b",
    "kimi-k3",
)
CARDS = ("h100-80gb", "a100-80gb", "l4", "b200", "rtx-pro-6000")
OLDER = ("0.6.4", "0.9.2", "0.9.2+v0", "0.10.0", "0.15.1", "0.19.1", "0.23", "0.26", "0.28", "0.30")

Asked = tuple[str, dict[str, Any]]
"""A preset's name and the settings of its deployment."""


@cache
def model(name: str) -> ModelSpec:
    return load_model(name)


@cache
def card(name: str) -> GpuSpec:
    return load_gpu(name)


def asked(*versions: str | None) -> st.SearchStrategy[Asked]:
    """Deployments of presets; what is None is left to the engine."""
    proposals: list[dict[str, Any]] = [
        {"speculative_method": "ngram", "num_speculative_tokens": 3},
        {"speculative_method": "eagle", "num_speculative_tokens": 1},
        {"speculative_method": "mtp", "num_speculative_tokens": 2},
    ]
    chosen: dict[str, st.SearchStrategy[Any]] = {
        "engine_version": st.sampled_from(versions),
        "gpu": st.sampled_from(CARDS),
        "max_model_len": st.sampled_from((None, 1, 16, 17, 1000, 4096, 8192, 32_768, 131_072)),
        "tensor_parallel_size": st.sampled_from((1, 1, 2, 4, 8)),
        "pipeline_parallel_size": st.sampled_from((1, 1, 1, 2, 3)),
        "decode_context_parallel_size": st.sampled_from((*[None] * 9, 2)),
        "kv_cache_dtype": st.sampled_from((*["auto"] * 6, "fp8", "fp8", "bf16", "fp8_ds_mla")),
        "block_size": st.sampled_from((None, None, None, 16, 32, 64, 128, 256)),
        "enable_prefix_caching": st.sampled_from((None, None, True, False)),
        "async_scheduling": st.sampled_from((None, None, True, False)),
        "disable_hybrid_kv_cache_manager": st.sampled_from((None, None, None, None, True)),
        "max_num_batched_tokens": st.sampled_from((None, None, 512, 2048)),
    }
    return st.tuples(
        st.sampled_from(NAMES) | st.sampled_from(RARE),
        st.builds(
            lambda first, second: {k: v for k, v in {**first, **second}.items() if v is not None},
            st.fixed_dictionaries(chosen),
            st.sampled_from([*[dict[str, Any]()] * 7, *proposals]),
        ),
    )


def planned(question: Asked) -> CachePlan | None:
    """Return the plan, or None for a refusal; nothing else may come of a question."""
    name, given = question
    try:
        deployment = Deployment(engine="vllm", **{**given, "gpu": card(given["gpu"])})
        found = plan(model(name), deployment)
    except KvcalcError as error:
        event("refused")
        assert isinstance(error, UnsupportedError | UnknownNameError | InvalidValueError)
        assert error.message
        # What a group or pool says of itself is no word to a user: a plan that does not add up.
        assert not error.message.startswith(("group ", "pool ", "a waste", "wastes "))
        return None
    event("planned")
    return found


def paid_for(found: CachePlan) -> bool:
    """Whether memory decides how large it is: V0 has so many places for states."""
    return any(pool.units is None for pool in found.rank.pools)


def least(found: CachePlan, rank: Rank) -> int:
    """Return the bytes from which on a rank's start-up check lets the maximum pass."""
    spared = found.check_spares_reserved
    reserved = sum(pool.reserved_units * pool.unit_bytes for pool in rank.pools if spared)
    return start_up_need(found, rank, found.max_model_len) + reserved


@SETTINGS
@given(asked(None, *OLDER))
def test_a_plan_that_adds_up_or_a_refusal(question: Asked) -> None:
    """Reserved = used + the wastes, in whole blocks, on every rank, and no less than is held."""
    found = planned(question)
    if found is None:
        return
    longest = found.max_model_len
    for n in {1, longest // 2, longest}:
        for wastes in (
            found.wastes(n),
            found.wastes_at_admission(n),
            found.wastes_all_ranks(n),
            found.contiguous().wastes(n),
        ):
            assert isinstance(wastes, Wastes)  # which cannot be made of parts that do not add up
        for rank in found.ranks:
            local = rank.local(n)
            needed = rank.bytes_needed(n)
            assert needed == sum(pool.need(local) * pool.unit_bytes for pool in rank.pools)
            assert needed == rank.wastes(Lengths({n: 1}), admission=True).reserved_bytes
            for group in rank.groups():
                assert {rows.rule.held(local) for rows in group.rows} == {group.rule.held(local)}
                if "num_speculative_tokens" not in question[1]:
                    assert group.rule.held(local) <= group.rule.peak(local)
    assert found.block_size is not None
    assert longest == question[1].get("max_model_len", longest)
    assert found.num_gpus == (
        question[1]["tensor_parallel_size"] * question[1]["pipeline_parallel_size"]
    )


@SETTINGS
@given(asked(None))
def test_it_starts_from_the_need_and_a_null_block_on(question: Asked) -> None:
    """The newest release: to the byte, on the stage that needs the most."""
    found = planned(question)
    if found is None:
        return
    n = found.max_model_len
    budget = max(rank.bytes_needed(n) + rank.pools[0].unit_bytes for rank in found.ranks)
    enough, less = found.capacity(budget), found.capacity(budget - 1)

    assert (enough.fits, enough.max_model_len_that_fits) == (True, n)
    assert enough.max_sequences >= 1
    assert (less.fits, less.max_sequences) == (False, 0)
    assert less.max_model_len_that_fits < n


@SETTINGS
@given(asked(None, *OLDER), st.integers(1, 2**37))
def test_whole_blocks_of_any_cache(question: Asked, budget: int) -> None:
    """In every release: no byte over the cache, and a start exactly where its check says so."""
    found = planned(question)
    if found is None or not paid_for(found):
        return
    capacity = found.capacity(budget)
    (pool, *others) = capacity.pools

    assert capacity.num_blocks in (pool.units, None)
    assert pool.units == budget // pool.unit_bytes or others
    assert pool.total_bytes <= budget
    assert capacity.overhead_bytes >= 0
    assert capacity.max_sequences * pool.needed_units <= max(0, pool.units - pool.reserved_units)
    assert capacity.fits == all(budget >= least(found, rank) for rank in found.ranks)
    assert capacity.fits == (capacity.max_model_len_that_fits == found.max_model_len)


@SETTINGS
@given(asked(None, *OLDER), st.integers(1, 2**37))
def test_what_is_said_of_a_plan(question: Asked, budget: int) -> None:
    """The summary is the plan's, the log agrees with it, and its tables fit 80 columns."""
    found = planned(question)
    if found is None:
        return
    log = start_up_log(found, budget)
    told = summarise(found, kv_cache_bytes=budget, log=log)
    start = told.start_up

    assert start is not None
    assert log or not paid_for(found)
    assert start.fits != any(line.startswith("ValueError: ") for line in log)
    assert (
        told.needed_bytes == told.request.reserved_bytes == found.bytes_needed(told.max_model_len)
    )
    assert sum(group.layers for group in told.groups) > 0
    for units in UNIT_SYSTEMS:
        shown = plain(render(view([told], units), width=80, ascii_only=False))
        for line in shown.splitlines():  # what the engine prints is not broken, to be searched for
            assert len(line) <= 80 or " " not in line.strip() or line.strip() in log, line
