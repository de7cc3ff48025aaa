"""Every flag of llama-server: read by kvcalc, without a size, or refused by name.

`server_flags.txt` has the flags of b11434 (common/arg.cpp, those that llama-server takes), all
spellings of one on a line.
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
from kvcalc.engines.llamacpp.args import KNOWN, OLLAMA, OWN, full_name
from kvcalc.engines.llamacpp.flags import HARMLESS, REFUSED

LINES = Path(__file__).with_name("server_flags.txt").read_text(encoding="utf-8").splitlines()
SPELLINGS = [flag for line in LINES for flag in line.split()]
SIZES = (
    *("--ctx-size", "--parallel", "--kv-unified", "--kv-unified-per-slot", "--cache-type-k"),
    *("--cache-type-v", "--flash-attn", "--swa-full", "--batch-size", "--ubatch-size"),
    *("--n-gpu-layers", "--tensor-split", "--split-mode", "--main-gpu", "--device"),
    *("--override-tensor", "--cpu-moe", "--n-cpu-moe", "--n-cpu-ffn", "--no-kv-offload"),
    *("--fit", "--fit-ctx", "--fit-target", "--ctx-checkpoints", "--cache-ram"),
    *("--cache-type-k-draft", "--n-gpu-layers-draft"),
)
"""What sizes caches, or decides where they and the weights lie: all of it is read."""

LLAMA = load_model("llama-3.1-8b")


def _plan(**args: Any) -> CachePlan:
    given = {"ctx_size": 8192, "parallel": 2, **args}
    return plan(LLAMA, Deployment(engine="llama.cpp", engine_args=given))


def _kind(flag: str) -> str:
    name = full_name(flag)
    kinds = {"read": name in KNOWN, "harmless": name in HARMLESS, "refused": name in REFUSED}
    return " ".join(kind for kind, found in kinds.items() if found)


def test_every_flag_is_of_one_kind() -> None:
    assert len(LINES) >= 250
    kinds = {flag: _kind(flag) for flag in SPELLINGS}
    assert {
        flag: kind for flag, kind in kinds.items() if kind not in ("read", "harmless", "refused")
    } == {}
    # All spellings of a flag are of the same kind, but for those that switch it off.
    for line in LINES:
        assert len({kinds[flag] for flag in line.split()}) == 1, line


def test_what_sizes_a_cache_is_read() -> None:
    assert {flag for flag in SIZES if _kind(flag) != "read"} == set()
    assert set(SIZES) <= set(SPELLINGS)


def test_no_name_is_there_that_the_server_has_not() -> None:
    flags = {flag.lstrip("-").replace("-", "_") for flag in SPELLINGS}
    assert {*HARMLESS, *REFUSED} - flags == set()
    of_the_library = {"rs_seq"}  # llama_context_params: n_rs_seq
    assert {*KNOWN} - {full_name(flag) for flag in SPELLINGS} == {*OLLAMA, *OWN, *of_the_library}


@pytest.mark.parametrize("name", ["threads", "-C", "temp", "host", "cache_reuse", "warmup"])
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
        _plan(thread=1)


def test_a_pool_that_is_switched_off() -> None:
    args = {"ctx_size": 8192, "parallel": 2}
    apart = plan(LLAMA, Deployment(engine="llama.cpp", engine_args={**args, "-no-kvu": True}))
    assert apart == _plan()
    shared = plan(LLAMA, Deployment(engine="llama.cpp", engine_args={**args, "no-kvu": False}))
    assert shared == _plan(kv_unified=True)
