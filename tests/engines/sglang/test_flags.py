"""Every flag of SGLang's server: read by kvcalc, without a size, or refused by name.

`server_flags.txt` has the flags of 0.5.23 (server_args.py, arg_groups/fields), all spellings of one
on a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvcalc.api import load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.sglang.arguments import KNOWN_ARGUMENTS, full_name
from kvcalc.engines.sglang.flags import HARMLESS, REFUSED

LINES = Path(__file__).with_name("server_flags.txt").read_text(encoding="utf-8").splitlines()
SPELLINGS = [flag for line in LINES for flag in line.split()]
SIZES = (
    *("--tp-size", "--pp-size", "--dp-size", "--attn-dp-size", "--enable-dp-attention"),
    *("--dcp-size", "--page-size", "--context-length", "--mem-fraction-static", "--dtype"),
    *("--kv-cache-dtype", "--max-total-tokens", "--max-running-requests"),
    *("--chunked-prefill-size", "--swa-full-tokens-ratio", "--disable-hybrid-swa-memory"),
    *("--disable-radix-cache", "--disable-overlap-schedule", "--max-mamba-cache-size"),
    *("--mamba-full-memory-ratio", "--mamba-ssm-dtype", "--mamba-radix-cache-strategy"),
    *("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"),
    *("--dsa-prefill-backend", "--dsa-decode-backend", "--dsv4-attn-backend"),
    *("--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk"),
    *("--speculative-num-draft-tokens", "--cuda-graph-max-bs-decode", "--disable-cuda-graph"),
    *("--enable-hierarchical-cache", "--hicache-ratio", "--hicache-size"),
    *("--disaggregation-mode", "--disaggregation-decode-extra-slots"),
)
"""What sizes the pools, or decides about their pages: all of it is read."""

LLAMA = load_model("llama-3.1-8b")


def _plan(**args: Any) -> CachePlan:
    return plan(LLAMA, Deployment(engine="sglang", engine_args=args))


def _kinds(flag: str) -> list[str]:
    name = full_name(flag)
    kinds = {"read": KNOWN_ARGUMENTS, "harmless": HARMLESS, "refused": REFUSED}
    return [kind for kind, names in kinds.items() if name in names]


def test_every_flag_is_of_one_kind() -> None:
    assert len(LINES) >= 500
    assert {flag: found for flag in SPELLINGS if len(found := _kinds(flag)) != 1} == {}
    for line in LINES:  # as are all spellings of one
        assert len({kind for flag in line.split() for kind in _kinds(flag)}) == 1, line


def test_what_sizes_a_pool_is_read() -> None:
    assert {flag for flag in SIZES if _kinds(flag) != ["read"]} == set()
    assert set(SIZES) <= set(SPELLINGS)


def test_no_name_is_there_that_the_server_has_not() -> None:
    flags = {flag.lstrip("-").replace("-", "_") for flag in SPELLINGS}
    assert {*HARMLESS, *REFUSED} - flags == set()
    left = KNOWN_ARGUMENTS - {full_name(flag) for flag in SPELLINGS}
    assert all(name.startswith("SGLANG_") for name in left)  # variables of the environment


@pytest.mark.parametrize("name", ["host", "log_level", "schedule_policy", "--watchdog-timeout"])
def test_harmless_flags_change_nothing(name: str) -> None:
    assert _plan(**{name: 1}) == _plan()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_by_name_with_a_hint(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        _plan(**{"--" + name.replace("_", "-"): 1})
    assert name in str(caught.value)
    assert caught.value.hint


def test_a_name_that_is_none_is_unknown() -> None:
    with pytest.raises(UnknownNameError):
        _plan(hicache_sise=1)
