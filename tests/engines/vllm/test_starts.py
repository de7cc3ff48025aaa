"""What vLLM leaves for its cache, predicted, against what public starts logged.

The split: every other row of starts.tsv is of the fitted half. Only those may decide the numbers of
kvcalc/engines/vllm/profile.py, which the first tests hold to; the held-out half judges them.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.engines.vllm import profile
from kvcalc.engines.vllm.profile import CONTEXT, HIDDEN_COPIES, LOGIT_BYTES
from kvcalc.engines.vllm.settings import resolve
from kvcalc.engines.vllm.version import release
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.weights.widths import is_multimodal, widths_of
from tests.engines.starts import COLUMNS
from tests.engines.vllm.starts import Start, model_of, rows, starts

_GIB = 2**30
_WIDEST, _WIDEST_WITH_TOWER = 0.08, 0.15
_WIDEST_V0, _WIDEST_V0_WITH_TOWER = 0.12, 0.30
"""Of the engine before V1, whose step may be of the whole maximum, and of whose profile few starts
are known."""
_WIDEST_OLD = 0.20
"""Before 0.6.4, whose logs tell no terms."""
_WIDEST_SHARED = 0.12
"""Of a GPU that shares the host's memory: what the host takes meanwhile counts as the engine's, in
the profile and in the graphs' own measurement."""
_SMALL = 12.0
"""GiB: below it, a few hundred MiB that nobody can know are more than a part of the card."""
_HITS, _OFF = 0.80, 0.03


def _half(name: str) -> list[Start]:
    return [start for start in starts() if start.facts["half"] == name]


def test_split() -> None:
    """No more than half of the starts may decide a number, and both halves have every kind."""
    fit, held = _half("fit"), _half("held")
    assert len(fit) + len(held) == len(starts()) >= 40
    assert abs(len(fit) - len(held)) <= 1
    for half in (fit, held):
        assert len({start.facts["gpu"] for start in half}) >= 5
        assert len({start.facts["release"] for start in half}) >= 5
        assert any(int(start.facts["tp"]) > 1 for start in half)


@pytest.mark.parametrize("half", ["fit", "held"])
def test_predicted(half: str) -> None:
    """Four of five starts lie in the span; the middle is off by 3 % of the card at the median."""
    found = _half(half)
    hits = sum(start.hit for start in found)
    assert hits / len(found) >= _HITS, [s.facts["id"] for s in found if not s.hit]
    assert median(start.off for start in found) <= _OFF


@pytest.mark.parametrize("start", starts(), ids=lambda start: str(start.facts["id"]))
def test_width(start: Start) -> None:
    """A span of V1 is at most 8 % of the card, 15 % where a model has a tower; V0's is wider."""
    if start.card < _SMALL:
        assert start.width * start.card <= 1.2
        return
    if start.facts["gpu"] in ("dgx-spark", "gb10"):
        assert start.width <= _WIDEST_SHARED
        return
    tower = is_multimodal(model_of(start.facts["model"]))
    widest = _WIDEST_WITH_TOWER if tower else _WIDEST
    if start.v0:
        widest = _WIDEST_V0_WITH_TOWER if tower else _WIDEST_V0
        widest = widest if _tells_terms(start) else _WIDEST_OLD
    assert start.width <= widest


def _tells_terms(start: Start) -> bool:
    return release(start.facts["release"]).number >= (0, 6, 4)


def test_width_follows_what_is_known() -> None:
    """The starts behind each profile are counted, and a profile of fewer starts is wider."""
    counted = Counter(
        "v0" if start.v0 else start.step.sampler
        for start in starts()
        if start.hit and _tells_terms(start)
    )
    assert counted == profile.STARTS
    assert all(_tells_terms(start) or start.v0 for start in starts())

    def doubt(version: str, sampler: str) -> float:
        deployment = Deployment(engine="vllm", engine_version=version, gpu=load_gpu("a100-80gb"))
        _, settings = resolve(load_model("llama-3.1-8b"), deployment, [])
        return profile.doubt(settings, sampler, v0=version.startswith(("0.2", "0.4", "0.6")))

    assert doubt("0.19.0", "v1") < doubt("0.11.0", "sort") < doubt("0.6.6", "sort")
    assert doubt("0.6.6", "sort") < doubt("0.33.0", "v2") < doubt("0.4.1", "sort")
    assert doubt("0.4.1", "sort") == doubt("0.2.0", "sort")


def test_misses_are_explained() -> None:
    """A start outside its span has a cause beside it, and a hit needs none in the table."""
    table = rows()
    assert all(len(row) == len(COLUMNS) for row in table)
    for row in table:
        assert (row[-2] == "yes") or row[-1], row[0]


def test_context_is_the_fitted_half_s() -> None:
    """What is not torch's on one GPU: the span covers the fitted half and little more."""
    logged: dict[str, list[float]] = {"before": [], "since": []}
    for start in _half("fit"):
        facts = start.facts
        if start.v0 and release(facts["release"]).number < (0, 6, 5):
            continue  # what other processes take counts as the engine's (profile_v0)
        if facts["tp"] == facts["pp"] == "1" and facts["non_torch_gib"]:
            line = tuple(map(int, facts["release"].split(".")[:2]))
            logged["since" if line >= (0, 12) else "before"].append(float(facts["non_torch_gib"]))
    for era, found in logged.items():
        low, high = CONTEXT[era]
        assert low <= min(found) and max(found) <= high, era
        assert high - max(found) <= 0.25, era


def test_communication_is_the_fitted_half_s() -> None:
    """What is not torch's where ranks share heads lies in the span of both terms."""
    found = [
        start
        for start in _half("fit")
        if int(start.facts["tp"]) > 1 and start.facts["non_torch_gib"]
    ]
    assert len(found) >= 4
    for start in found:
        low, high = start.term("context", "communication")
        assert low <= float(start.facts["non_torch_gib"]) <= high, start.facts["id"]


def test_a_logit_is_the_fitted_half_s() -> None:
    """Bytes of a logit at the sampler's peak, worked back from logged peaks of the fitted half."""
    worked: dict[str, list[float]] = {}
    for start in _half("fit"):
        if not start.facts["activation_gib"] or not start.hit:
            continue
        widths = widths_of(model_of(start.facts["model"]))
        rows_of, tokens, sampler = start.step.rows, start.step.tokens, start.step.sampler
        logits = rows_of * widths.vocab.high / _GIB
        stream = tokens * widths.hidden.high * 2 / _GIB
        peak = float(start.facts["activation_gib"])
        if widths.experts.high or not rows_of or logits * LOGIT_BYTES[sampler][0] < peak * 0.7:
            continue  # experts or an MLP decide this peak
        middle = sum(HIDDEN_COPIES["sampling"]) / 2
        worked.setdefault(sampler, []).append((peak - middle * stream) / logits)
    assert {"sort", "v1"} <= worked.keys()
    for sampler, found in worked.items():
        low, high = LOGIT_BYTES[sampler]
        assert low <= min(found) and max(found) <= high, (sampler, found)


def test_terms_have_sources() -> None:
    """Every term says where it is from, and the graphs are outside where they are not counted."""
    for start in starts():
        for term in (*start.budget.terms, *start.budget.outside):
            assert term.source
        counted = any(term.name == "graphs" for term in start.budget.terms)
        later = any(term.name == "graphs" for term in start.budget.outside)
        eager = bool(start.facts["enforce_eager"])
        at = release(start.facts["release"]).number
        assert counted == (not eager and at >= profile.GRAPHS_COUNTED_SINCE)
        assert later == (not eager and not counted)
