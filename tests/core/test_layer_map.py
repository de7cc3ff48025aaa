"""Which layer keeps what, as letters and spans, and where two models differ."""

from __future__ import annotations

import msgspec

from kvcalc.answers.layer_map import layer_diff, layer_map
from kvcalc.answers.results import LayerDifference
from kvcalc.core.attention import FullAttention, SharedKv, SlidingWindow
from kvcalc.core.layers import LayerRun
from tests.core import builders
from tests.core.builders import model


def test_gemma() -> None:
    """Five windows and a global layer, ten times, and two windows more."""
    found = layer_map(builders.GEMMA_3_27B)

    assert found.strip == "wwwwwF" * 10 + "ww"
    assert len(found.strip) == found.num_hidden_layers == 62
    assert [(s.first, s.last) for s in found.spans[:3]] == [(0, 4), (5, 5), (6, 10)]
    assert found.spans[0].keeps == "last 1,024 tokens"
    assert found.spans[0].bytes_per_token == 8192
    assert found.bytes_per_token == 62 * 8192
    assert found.kv_cache_dtype == "bfloat16"
    assert found.draft_spans == ()


def test_qwen35() -> None:
    found = layer_map(builders.QWEN35_27B, "fp8")

    assert found.strip == "sssF" * 16
    assert (found.spans[0].keeps, found.spans[0].state_bytes) == ("one state", 3_207_168)
    assert found.spans[1].bytes_per_token == 2048
    assert found.state_bytes == 153_944_064


def test_a_letter_for_every_shape() -> None:
    """Other shapes of a kind get other letters; a note makes a layer another one."""
    windows = [
        SlidingWindow(num_kv_heads=1, head_dim=64, sliding_window=size) for size in range(1, 90)
    ]
    spec = model(*[(1, (window,)) for window in windows])
    strip = layer_map(spec).strip

    assert strip[0] == "w"
    assert len(set(strip)) >= 60
    assert set(strip[-5:]) == {"?"}
    noted = msgspec.structs.replace(
        builders.LLAMA_8B,
        num_hidden_layers=2,
        layers=(
            LayerRun(count=1, caches=(SharedKv(),)),
            LayerRun(count=1, caches=(), note="no attention"),
        ),
    )
    assert layer_map(noted).strip == "-."
    assert [s.shape for s in layer_map(noted).spans] == ["reads another layer", "no attention"]
    assert layer_map(noted).spans[1].keeps == "nothing"


def test_draft_layers_are_apart() -> None:
    spec = msgspec.structs.replace(
        builders.DEEPSEEK_V3, draft_layers=(LayerRun(count=1, caches=(builders.MLA,)),)
    )
    found = layer_map(spec)

    assert found.strip == "M" * 61
    assert [(s.first, s.last, s.letter) for s in found.draft_spans] == [(0, 0, "M")]


def test_no_difference() -> None:
    found = layer_diff(builders.LLAMA_8B, builders.LLAMA_8B)

    assert (found.equal_layers, found.differences) == (32, ())


def test_differences() -> None:
    """Equal neighbours are told once; past a model's end there is nothing."""
    left = model((2, (builders.FULL,)), (2, (builders.WINDOW,)))
    right = model((2, (builders.FULL,)), (1, (FullAttention(num_kv_heads=4, head_dim=128),)))
    found = layer_diff(left, right)

    assert found.equal_layers == 2
    words = "sliding_window: 16 KV heads x 128, last 1,024 tokens"
    assert found.differences == (
        LayerDifference(
            first=2, last=2, left=words, right="full_attention: 4 KV heads x 128, every token"
        ),
        LayerDifference(first=3, last=3, left=words, right=""),
    )
    assert found.bytes_per_token == (2 * 4096 + 2 * 8192, 2 * 4096 + 2048)
    assert layer_diff(model((1, ())), model((1, (SharedKv(),)))).differences[0].left == "nothing"
