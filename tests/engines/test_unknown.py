"""What no engine's rules know, an architecture or a kind of layer: none is counted silently."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.core.attention import FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import Row
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import CacheBase
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import ENGINES, plan

_ENGINES = [name for name in ENGINES if name != "none"]


class Novel(CacheBase, frozen=True, kw_only=True, tag="novel"):
    """A kind that no engine has: K and V of eight heads, of every token."""

    def rows(self) -> tuple[Row, ...]:
        return (Row(role="k", width=128, count=8), Row(role="v", width=128, count=8))

    def describe(self) -> str:
        return "novel"


def _model(cache: Any, architecture: str | None) -> ModelSpec:
    full = FullAttention(num_kv_heads=8, head_dim=128)
    made = ModelSpec(
        name="made-up",
        num_hidden_layers=4,
        num_attention_heads=32,
        dtype="bfloat16",
        layers=(LayerRun(count=4, caches=(full,)),),
        architecture=architecture,
        max_position_embeddings=8192,
    )
    return msgspec.structs.replace(made, layers=(LayerRun(count=4, caches=(cache,)),))


def _plan(engine: str, model: ModelSpec) -> CachePlan:
    return plan(model, Deployment(engine=engine, max_model_len=4096))


@pytest.mark.parametrize("engine", _ENGINES)
class TestUnknown:
    """Every engine says that it does not know it, or that the engine has it not."""

    @pytest.mark.parametrize("architecture", ["NovelForCausalLM", "LlamaForCausalLM2"])
    def test_architecture(self, engine: str, architecture: str) -> None:
        """An architecture that no registry has is refused, or planned under an assumption."""
        model = _model(FullAttention(num_kv_heads=8, head_dim=128), architecture)
        with pytest.raises(UnsupportedError) as caught:
            _plan(engine, model)
        assert architecture in caught.value.message
        assert caught.value.hint

    def test_kind(self, engine: str) -> None:
        """A kind of layer that has no rule is not modelled, though the architecture is served."""
        with pytest.raises(NotModelledError) as caught:
            _plan(engine, _model(Novel(), "LlamaForCausalLM"))
        assert "novel" in caught.value.message

    def test_none(self, engine: str) -> None:
        """A model without an architecture is planned, and the plan says what is assumed."""
        model = _model(FullAttention(num_kv_heads=8, head_dim=128), None)
        try:
            made = _plan(engine, model)
        except NotModelledError as error:
            assert "architecture" in error.message + error.hint
            return
        assert any("architecture" in line for line in (*made.notes, *made.convention)), made.notes
