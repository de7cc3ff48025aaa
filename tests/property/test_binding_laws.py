"""One GPU binds an answer, and its figures are of one GPU: blocks of its size are in its cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

import pytest

from kvcalc.answers.capacity import CapacityAnswer, Figures
from kvcalc.answers.per_token import per_token
from kvcalc.answers.plan_summary import summarise
from kvcalc.answers.results import PerToken
from kvcalc.core.capacity import capacity
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import add_rates
from kvcalc.engines import ENGINES, plan
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu, model_names
from kvcalc.sizing import Question, answer

_GIB = 2**30
_LAYOUTS = ((1, 1), (8, 1), (8, 2), (4, 2), (1, 4))
_EVERY = 20  # of the presets here; all of them were tried when this was written
_FIRST = ("deepseek-v3", "deepseek-v3.1-nvfp4", "kimi-k2.6-nvfp4", "gemma-3-1b", "qwen1.5-72b")
_MODELS = tuple(dict.fromkeys((*_FIRST, *sorted(set(model_names([])))[::_EVERY])))


def _questions(engine: str) -> Iterator[Question]:
    card = load_gpu("h200")
    for name in _MODELS:
        model = load_model(name)
        longest = min(4096, model.longest or 4096)
        for tp, pp in _LAYOUTS:
            for memory in (None, 4 * _GIB):
                deployment = Deployment(
                    engine=engine,
                    gpu=card,
                    tensor_parallel_size=tp,
                    pipeline_parallel_size=pp,
                    kv_cache_memory_bytes=memory,
                    max_model_len=longest,
                )
                yield Question(model, deployment)


def _in_the_cache(found: CapacityAnswer | Figures) -> bool:
    if found.num_blocks is None or found.block_bytes is None or found.kv_cache_bytes is None:
        return True
    return found.num_blocks * found.block_bytes <= found.kv_cache_bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_the_blocks_are_in_the_cache(engine: str) -> None:
    for question in _questions(engine):
        try:
            found = answer(question)
        except KvcalcError:
            continue
        where = (question.model.name, question.deployment.tensor_parallel_size)
        for one in (found, found.low, found.high):
            assert _in_the_cache(one), where
        if found.low.starts and found.bytes_per_token is not None:
            grown = found.bytes_per_token * found.max_model_len
            assert found.fixed_bytes + grown == found.needed_bytes, where


_LINE = re.compile(
    r" = ([\d,]+) B (a token|an entry of ([\d,]+) tokens?|a sequence|an encoder token)"
)


def _in_formula(found: PerToken) -> tuple[tuple[int, int], int]:
    """Return what the lines of a formula come to: (bytes, tokens) of growth, and of a state."""
    rates, states = [], 0
    for line in found.explain[: next(i for i, x in enumerate(found.explain) if x[:5] == "sum: ")]:
        made = _LINE.search(line)
        assert made is not None, line
        size = int(made[1].replace(",", ""))
        if made[2] == "a token":
            rates.append((size, 1))
        elif made[3]:
            rates.append((size, int(made[3].replace(",", ""))))
        elif made[2] == "a sequence":
            states += size
    return add_rates(rates), states


@pytest.mark.parametrize("engine", ENGINES)
def test_the_formula_and_the_layers_come_to_the_figures(engine: str) -> None:
    """What is printed as the formula adds up to what is printed as its sum, for every engine."""
    for question in _questions(engine):
        try:
            made = plan(question.model, question.deployment)
        except KvcalcError:
            continue
        found = per_token(made, tokens=[1024], explain=True)
        (size, tokens), states = _in_formula(found)
        grown, period = add_rates([(size, tokens * made.rank.token_factor)])
        where = (question.model.name, made.kv_cache_dtype)
        assert (grown, period) == (found.growth.bytes, found.growth.tokens), where
        assert states == found.state_bytes + found.encoder_bytes * ("Fixed(" in str(made)), where
        whole = [group.bytes_per_token for group in found.layers]
        told = sum(n or 0 for n in whole)
        exact = Fraction(found.growth.bytes, found.growth.tokens)
        assert told == exact if None not in whole else told < exact, where
        assert sum(group.state_bytes for group in found.layers) == found.state_bytes, where


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_with_a_memory_says_the_same(engine: str) -> None:
    """Of equal memories the rank that needs the most is the one that holds the fewest."""
    for question in _questions(engine):
        if question.deployment.kv_cache_memory_bytes is None:
            continue
        try:
            made = plan(question.model, question.deployment)
            found = capacity(made, 4 * _GIB)
            shown = summarise(made, kv_cache_bytes=4 * _GIB)
        except KvcalcError:
            continue
        blocks, size = found.num_blocks, found.block_bytes
        assert shown.block_bytes == size
        assert not blocks or not size or blocks * size <= 4 * _GIB, question.model.name
        if blocks and made.split == "one_pool":
            assert found.needed_bytes == made.bytes_needed(made.max_model_len)


def test_the_stage_with_less_left_binds() -> None:
    """The stage with the embedding has less left for its cache, and blocks of its own size."""
    deployment = Deployment(
        engine="vllm",
        gpu=load_gpu("h200"),
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        max_model_len=32768,
    )
    found = answer(Question(load_model("deepseek-v3"), deployment))
    left = [sum(rank.cache_bytes) // 2 for rank in found.budget]
    assert found.kv_cache_bytes in left
    assert _in_the_cache(found)


def test_counted_blocks_are_the_cache() -> None:
    """num_gpu_blocks_override takes the place of the bytes that are given, on a GPU or on none."""
    for gpu in (None, load_gpu("l40s")):
        deployment = Deployment(
            engine="vllm",
            gpu=gpu,
            kv_cache_memory_bytes=2 * _GIB,
            num_gpu_blocks_override=10_000,
            max_model_len=8192,
        )
        found = answer(Question(load_model("llama-3.1-8b"), deployment))
        assert found.num_blocks == 10_000
        assert found.kv_cache_bytes == (None if gpu is None else 10_000 * 2**21)
        assert found.fits is (None if gpu is None else True)
