"""The tables of architectures by release, and what the engines make of what is not in them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import CACHE_KINDS
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.served import HOW, KINDS, Served, served_by
from kvcalc.models import load_model
from kvcalc.models.hf_config.registry import ARCHITECTURES

_TABLES = [f"kvcalc.engines.{name}" for name in (
    "vllm", "sglang", "lmdeploy", "tensorrt_llm", "transformers")]  # fmt: skip
_UNTIL = {
    "ArcticForCausalLM": (0, 28, 0), "AquilaForCausalLM": (0, 24, 0),
    "BambaForCausalLM": (0, 23, 0), "Grok1ForCausalLM": (0, 24, 0),
    "InternLMForCausalLM": (0, 23, 0), "MPTForCausalLM": (0, 28, 0),
    "MiniMaxM1ForCausalLM": (0, 23, 0), "MiniMaxText01ForCausalLM": (0, 23, 0),
    "MiniMaxVL01ForConditionalGeneration": (0, 23, 0), "MptForCausalLM": (0, 28, 0),
    "Phi3SmallForCausalLM": (0, 9, 2), "QWenLMHeadModel": (0, 23, 0),
    "StableLMEpochForCausalLM": (0, 28, 0), "XverseForCausalLM": (0, 23, 0),
}  # fmt: skip
"""vLLM 0.33 models/registry.py, _PREVIOUSLY_SUPPORTED_MODELS, of what kvcalc reads. It says 0.23.0
of Baichuan, whose classes stand in the registry of 0.24.0 as well."""
_BEGINNING = (0, 0, 0)
_END = (9_999, 0, 0)


@pytest.mark.parametrize("package", _TABLES)
class TestTables:
    """What the tables must keep, whatever is written into them."""

    def test_order(self, package: str) -> None:
        """Names are sorted, and the stretches of each follow each other."""
        table = served_by(package)
        assert list(table) == sorted(table)
        for name, spans in table.items():
            ends = [_ends(span) for span in spans]
            flat = [end for pair in ends for end in pair]
            assert flat == sorted(flat), name
            assert all(a[1] < b[0] for a, b in pairwise(ends)), name
            assert all(span.how in HOW for span in spans)
            assert (len(spans) == 1) or all(span.how != "never" for span in spans)

    def test_every_architecture_that_is_read(self, package: str) -> None:
        """Each that kvcalc reads is in the table, if only as never served."""
        assert set(ARCHITECTURES) <= set(served_by(package))


def _ends(span: Served) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return span.since or _BEGINNING, span.until or _END


def test_every_kind_has_been_looked_at() -> None:
    """A new kind of cache is refused by every engine until it is written into KINDS."""
    assert set(KINDS) == set(CACHE_KINDS.values())


def test_what_the_registry_says_of_itself() -> None:
    """The registry tells until when it had what is gone: those of the releases agree."""
    table = served_by("kvcalc.engines.vllm")
    assert {name: table[name][-1].until for name in _UNTIL} == _UNTIL


def _asked(model: ModelSpec | str, release: str | None = None, **settings: Any) -> CachePlan:
    made = load_model(model) if isinstance(model, str) else model
    settings = {"engine": "vllm", "max_model_len": 2048, **settings}
    return plan(made, Deployment(engine_version=release, **settings))


def _as(architecture: str) -> ModelSpec:
    return msgspec.structs.replace(load_model("llama-3.1-8b"), architecture=architecture)


class TestVllm:
    """vLLM's registry of a release decides."""

    @pytest.mark.parametrize(("name", "release", "message"), [
        ("GPTNeoForCausalLM", "0.33.0", "vLLM 0.33.0 does not serve GPTNeoForCausalLM"),
        ("GPTNeoForCausalLM", "0.5.0", "vLLM 0.5.0 does not serve GPTNeoForCausalLM"),
        ("Qwen3ForCausalLM", "0.8.3", "does not serve Qwen3ForCausalLM yet: 0.8.4 does"),
        ("QWenLMHeadModel", "0.24.0", "no longer serves QWenLMHeadModel: 0.23.0 was the last"),
        ("ChatGLMForConditionalGeneration", "0.8.0", "yet: 0.8.4 does"),
    ])  # fmt: skip
    def test_refused(self, name: str, release: str, message: str) -> None:
        """What it has not yet, not any more, or never."""
        with pytest.raises(UnsupportedError, match=message) as caught:
            _asked(_as(name), release)
        assert caught.value.code == "unserved-model"
        assert not isinstance(caught.value, NotModelledError)

    @pytest.mark.parametrize(("name", "release"), [
        ("Qwen3ForCausalLM", "0.8.4"), ("QWenLMHeadModel", "0.23.0"), ("LlamaForCausalLM", "0.2.0"),
        ("ChatGLMForConditionalGeneration", "0.7.2"), ("SmolLM3ForCausalLM", "0.33.0"),
        ("LlamaForSequenceClassification", "0.10.0")])  # fmt: skip
    def test_served(self, name: str, release: str) -> None:
        """What it has, by its own code or by the registry's word for transformers'."""
        assert not _asked(_as(name), release).doubt

    def test_fallback(self) -> None:
        """What it runs by transformers' code is planned, and the answer says so."""
        found = _asked(_as("HeliumForCausalLM"), "0.33.0")
        assert found.doubt == (
            "vLLM 0.33.0 has no HeliumForCausalLM of its own: it runs transformers' code for it, if"
            " the one that is installed allows that"
        )

    def test_fallback_of_other_layers(self) -> None:
        """How that code keeps what is no K and V by head is not known."""
        with pytest.raises(NotModelledError, match="runs transformers' code"):
            _asked("llama-3.2-11b-vision", "0.33.0")

    def test_newer(self) -> None:
        """A newer release than those known may serve what they do not."""
        with pytest.raises(NotModelledError, match="whether a later release does is not known"):
            _asked(_as("GPTNeoForCausalLM"), "0.34.0")

    def test_override(self) -> None:
        """hf_overrides names another class; every other change of the config is not modelled."""
        as_llama = {"hf_overrides": '{"architectures": ["LlamaForCausalLM"]}'}
        assert _asked(_as("GPTNeoForCausalLM"), engine_args=as_llama)
        for other in ('{"architectures": ["LlamaForCausalLM"], "num_experts": 0}', "{}", "[", "3"):
            with pytest.raises(NotModelledError, match="hf_overrides"):
                _asked(_as("GPTNeoForCausalLM"), engine_args={"hf_overrides": other})


def test_the_nearest_name_that_is_served() -> None:
    """What an engine calls such models is near."""
    with pytest.raises(UnsupportedError) as caught:
        _asked(_as("MiniMaxM3ForCausalLM"), engine="sglang")
    assert "MiniMaxM3SparseForCausalLM" in caught.value.hint


def test_tensorrt_llm_elsewhere() -> None:
    """What the PyTorch backend has no class for is in doubt."""
    assert "AutoDeploy" in _asked(_as("GraniteForCausalLM"), engine="tensorrt-llm").doubt
    assert not _asked(_as("LlamaForCausalLM"), engine="tensorrt-llm").doubt
