"""What real servers printed of their caches is what kvcalc says, within two decimals of a MiB."""

from __future__ import annotations

import json

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import Pool
from kvcalc.engines import plan, start_up_log
from tests.conftest import ABSENT, SHARED
from tests.engines.llamacpp.log_cases import CASES, LISTED, LogCase

_MIB = 2**20
_OFF = 0.0051  # two decimals


def _sums(pools: list[Pool]) -> tuple[float, float, float]:
    """Return MiB in all, of K (of R) and of V (of S)."""
    first = second = 0
    for pool in pools:
        payload, units = pool.groups[0].payload, pool.units or 0
        last = payload.get("recurrent", 0) + pool.unit_bytes - sum(payload.values())
        last += payload.get("v", 0)
        first += units * (pool.unit_bytes - last)
        second += units * last
    return (first + second) / _MIB, first / _MIB, second / _MIB


@pytest.mark.parametrize("case", CASES, ids=[f"{c.case}-{c.args['parallel']}" for c in CASES])
def test_a_log_is_reproduced(case: LogCase) -> None:
    found = plan(
        case.model(), Deployment(engine="llama.cpp", engine_args=case.args, **case.settings)
    )
    pools = {pool.name: pool for pool in found.rank.pools}

    for names, printed in case.mib.items():
        ours = _sums([pools[name] for name in names.split(" + ")])
        for figure, mib in zip(printed, ours, strict=True):
            assert figure is None or abs(figure - mib) < _OFF, (names, printed, ours)
    for name, cells in case.cells.items():
        streams = 1 if case.args.get("kv_unified") else case.args["parallel"]
        assert pools[name].units == cells * streams


def test_the_lines_of_a_log() -> None:
    """The figures stand as llama.cpp writes them."""
    case = next(case for case in CASES if case.case == "llamacpp-128")
    found = plan(case.model(), Deployment(engine="llama.cpp", engine_args=case.args))
    cells, states = start_up_log(found, None)
    assert cells == (
        "llama_kv_cache: size = 4224.00 MiB (135168 cells,   8 layers,  4/1 seqs),"
        " K (f16): 2112.00 MiB, V (f16): 2112.00 MiB"
    )
    assert states == (
        "llama_memory_recurrent: size =  201.00 MiB (     4 cells,  32 layers,  4 seqs  0 rs_seq),"
        " R (f32):    9.00 MiB, S (f32):  192.00 MiB"
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_reproduced_or_listed() -> None:
    path = SHARED / "logs" / "cases.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    engines = ("llama.cpp", "ollama", "ik_llama.cpp")
    verifiable = {
        case["id"]: case
        for case in cases
        if case["engine"].startswith(engines) and case.get("verifiable")
    }
    known = {case.case for case in CASES}
    assert set(verifiable) == known | set(LISTED)
    assert not known & set(LISTED)
    for case in CASES:
        told = verifiable[case.case]
        if told.get("k_mib") and "kv" in case.mib and case.mib["kv"][1] and "131" not in case.case:
            assert case.mib["kv"][1:] == (told["k_mib"], told["v_mib"])
