"""Every setting of SGLang 0.5.23 is modelled, harmless, or refused by name (fields.txt)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.sglang.arguments import KNOWN_ARGUMENTS
from kvcalc.engines.sglang.host import Host, host_tokens
from kvcalc.engines.sglang.options import HARMLESS, NOT_MODELLED
from kvcalc.models import load_model

FIELDS = (Path(__file__).parent / "fields.txt").read_text(encoding="utf-8").split()
"""Names in arg_groups/fields/*.py, the internal ones apart."""


def _plan(args: dict[str, Any], name: str = "llama-3.1-8b", **settings: Any) -> CachePlan:
    return plan(load_model(name), Deployment(engine="sglang", engine_args=args, **settings))


def test_every_setting_is_of_one_kind() -> None:
    kinds = (KNOWN_ARGUMENTS, HARMLESS, NOT_MODELLED.keys())

    assert len(FIELDS) == 538
    for name in FIELDS:
        assert sum(name in kind for kind in kinds) == 1, name
    own = {name for name in KNOWN_ARGUMENTS if not name.startswith("SGLANG_")}
    # The name of the field until 0.5.15.
    assert own - set(FIELDS) == {"cuda_graph_max_bs"}
    assert HARMLESS | NOT_MODELLED.keys() <= set(FIELDS)


@pytest.mark.parametrize("name", sorted(NOT_MODELLED))
def test_what_is_not_modelled_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name) as refused:
        _plan({name: 1})

    assert NOT_MODELLED[name] in str(refused.value)
    assert refused.value.hint


def test_the_harmless_change_nothing() -> None:
    plain = _plan({})

    for name in ("host", "log_level", "trust_remote_code", "schedule_policy", "quantization"):
        assert _plan({name: "x"}) == plain


def test_a_setting_that_sglang_has_not() -> None:
    with pytest.raises(KvcalcError, match="unknown SGLang setting 'swa_ratio'"):
        _plan({"swa_ratio": 0.5})


def test_the_largest_graph_has_two_names() -> None:
    notes = [_plan({name: 16}).notes for name in ("cuda_graph_max_bs", "cuda_graph_max_bs_decode")]

    assert notes[0] == notes[1] != _plan({}).notes


@pytest.mark.parametrize(
    ("host", "device", "page", "tokens"),
    [
        (Host(2.0, None, fits=True), 1000, 1, 2001),
        (Host(2.0, None, fits=True), 1024, 64, 2048 + 64),
        (Host(1.5, None, fits=False), 1000, 64, 1536),
        (Host(2.0, 30, fits=False), 1000, 1, int(30e9 // 131_072) + 1),
    ],
)
def test_tokens_of_the_host(host: Host, device: int, page: int, tokens: int) -> None:
    """HostKVCache: whole pages and one more."""
    assert host_tokens(host, device, 131_072, page) == tokens


@pytest.mark.parametrize(
    ("args", "note"),
    [
        ({"hicache_size": 30}, "the host's pool has 228,882 tokens: 30,000,021,504 B"),
        ({"hicache_ratio": 3}, "3 tokens for every token of the GPU's and a page more: 131,072 B"),
        ({}, "has 2 tokens for every token of the GPU's and a page more, fewer where"),
        ({"hicache_host_memory_mode": "buffer_only"}, "has 1.2 tokens"),
    ],
)
def test_copies_in_host_memory(args: dict[str, Any], note: str) -> None:
    """Beside the GPU's pools, which they leave as they are."""
    found = _plan({**args, "enable_hierarchical_cache": True})

    assert found.ranks == _plan({}).ranks
    assert any(note in line for line in found.notes)


def test_step_has_no_pool_of_windows_beside_copies() -> None:
    model = msgspec.structs.replace(load_model("gpt-oss-20b"), architecture="Step3p5ForCausalLM")
    given: tuple[dict[str, Any], ...] = ({}, {"enable_hierarchical_cache": True})
    pools = [
        len(plan(model, Deployment(engine="sglang", engine_args=args)).rank.pools) for args in given
    ]

    assert pools == [2, 1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"hicache_size": 30}, "hicache_size without a cache in host memory"),
        ({"enable_hierarchical_cache": True, "disaggregation_mode": "decode"}, "decoding server"),
    ],
)
def test_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(KvcalcError, match=message):
        _plan(args)
