"""Context checkpoints: sizes that servers logged, and who keeps how many."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.api import load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.llamacpp.contexts import contexts_of, draft_context
from kvcalc.engines.llamacpp.host import checkpoint_bytes
from kvcalc.engines.llamacpp.settings import resolve

MIB = 2**20
Q8_DRAFT = {"cache_type_k_draft": "q8_0", "cache_type_v_draft": "q8_0"}


def _deployed(
    build: str | None, method: str | None, draft: Any, args: dict[str, Any]
) -> Deployment:
    return Deployment(
        engine="llama.cpp",
        engine_version=build,
        engine_args={"ctx_size": 262144, "parallel": 1, **args},
        speculative_method=method,
        draft_model=draft,
    )


def _size(
    name: str,
    tokens: int,
    *,
    build: str | None = None,
    method: str | None = None,
    draft: str | None = None,
    **args: Any,
) -> int:
    model = load_model(name)
    other = None if draft is None else load_model(draft)
    deployment = _deployed(build, method, other, args)
    settings = resolve(model, deployment, [])
    contexts = contexts_of(model, settings, [])
    if other is not None:
        contexts.append(draft_context(other, model, settings, []))
    return checkpoint_bytes(contexts, settings, tokens)


def test_states_alone_whatever_the_length() -> None:
    """Logged: 149.626 MiB at 36,943 tokens as at 77,849."""
    assert {round(_size("qwen3.5-27b", n) / MIB, 3) for n in (36943, 77849)} == {149.626}


def test_a_draft_layer_is_in_it_token_by_token() -> None:
    """Logged with a draft's cache in q8_0: 230.431 MiB at 38,584 tokens.

    The states, and for each token K and V of one layer (2 x 1,024 elements) and 20 B.
    """
    found = _size("qwen3.5-27b", 38584, build="b9246", method="mtp", **Q8_DRAFT)
    assert round(found / MIB, 3) == 230.431
    at = [_size("qwen3.5-27b", n, build="b9246", method="mtp", **Q8_DRAFT) for n in (1, 2)]
    assert at[1] - at[0] == 2 * 1024 * 34 // 32 + 20
    slot = _size("qwen3.5-27b", 262144, build="b9246", method="mtp") * 32
    assert round(slot / 2**30, 1) == 36.8


def test_cells_have_a_token_since_the_autumn_of_2026() -> None:
    """llama-kv-cells.h, llama_kv_cell_ext: 8 B at b10488, 12 B at b10950."""
    sizes = {
        build: _size("qwen3.5-27b", 1001, build=build, method="mtp")
        - _size("qwen3.5-27b", 1, build=build, method="mtp")
        for build in ("b10488", "b10950")
    }
    assert sizes == {"b10488": 1000 * (4096 + 20), "b10950": 1000 * (4096 + 24)}


def test_drafts_are_in_it_since_may_2026() -> None:
    alone = _size("qwen3.5-27b", 5000, build="b9101")
    assert _size("qwen3.5-27b", 5000, build="b9101", method="mtp") == alone
    assert _size("qwen3.5-27b", 5000, build="b9113", method="mtp") > alone


def test_windows_and_nothing_else() -> None:
    """Measured with a small file: 8 B, 24 B a cache, 24 B a layer, 12 B a cell and its rows."""
    layers, rows = 52, 2 * 16 * 128 * 2
    by_hand = 8 + 24 + 24 * layers + 1024 * (12 + layers * rows)
    assert {_size("gemma-3-27b", n) for n in (1024, 131072)} == {by_hand}
    assert _size("gemma-3-27b", 100) == 8 + 24 + 24 * layers + 100 * (12 + layers * rows)
    assert _size("gemma-3-27b", 1024, swa_full=True) == 0


def test_a_draft_model_is_in_it_whole() -> None:
    """A draft that is neither windowed nor recurrent is written cell by cell."""
    more = [
        _size("gemma-3-27b", n, draft="llama-3.1-8b", method="draft") - _size("gemma-3-27b", n)
        for n in (2000, 2001)
    ]
    assert more[1] - more[0] == 12 + 32 * 2 * 8 * 128 * 2


def test_models_that_can_go_back_have_none() -> None:
    assert _size("llama-3.1-8b", 5000) == 0
    assert _size("llama-3.1-8b", 5000, draft="llama-3.1-8b", method="draft") == 0


@pytest.mark.parametrize(
    ("build", "count"), [("b6465", 3), ("b7600", 8), ("b9093", 32), (None, 32)]
)
def test_how_many_by_default(build: str | None, count: int) -> None:
    """common.h: n_swa_checkpoints 3 in August 2025, then n_ctx_checkpoints 8, and 32 by b9093."""
    model = load_model("gemma-3-27b")
    deployment = _deployed(build, None, None, {"flash_attn": "on"})
    made: CachePlan = plan(model, deployment)
    (part,) = [part for part in made.host if part.name == "context checkpoints"]
    assert part.high_bytes == count * _size("gemma-3-27b", 131072)
    assert f"{count} for each" in part.source
