"""Every line of a formula is worked out again here, from its own text."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod

import pytest

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingWindow,
)
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.explain import explain_model, explain_plan, keeps
from kvcalc.core.kind import All, Chunks, EveryNth, Once, Span, Windowed
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rows
from kvcalc.core.recurrent import Rwkv, ShortConv
from kvcalc.core.rules import Grow
from tests.core import builders
from tests.core.builders import model, plan_of
from tests.core.test_plan import group, one_rank, pool, qwen35_in_vllm

# "(K and V)", "(bfloat16)", "(128 elements in q8_0)" and "of 4 tokens" behind an entry are remarks;
# other brackets are sums.
REMARK = re.compile(
    r"\((?:K and V|\d+ elements in \w+|\w*[a-z]\w*)\)|(?<=an entry) of [\d,]+ tokens?"
)
PIECE = re.compile(r"(?<![\w.])\d[\d,]*(?![\w.])|(?<= )x(?= )|[+()]")


def value(text: str) -> int:
    """Work out "2 x 3 x (4 x 5 + 6) B": products and sums, other words left out."""
    tokens = PIECE.findall(REMARK.sub("", text))

    def sum_of() -> int:
        total = product_of()
        while tokens and tokens[0] == "+":
            tokens.pop(0)
            total += product_of()
        return total

    def product_of() -> int:
        factors = [factor()]
        while tokens and tokens[0] == "x":
            tokens.pop(0)
            factors.append(factor())
        return prod(factors)

    def factor() -> int:
        head = tokens.pop(0)
        if head == "(":
            inner = sum_of()
            assert tokens.pop(0) == ")"
            return inner
        return int(head.replace(",", ""))

    result = sum_of()
    assert not tokens, f"left over in {text!r}: {tokens}"
    return result


def test_the_arithmetic_of_this_test() -> None:
    assert value("2 (K and V) x 32 layers x 8 KV heads x 128 x 2 B (bfloat16)") == 131_072
    assert value("3 x (4 x 5 + 1,000) B a token") == 3060


WIDE = FullAttention(num_kv_heads=4, head_dim=192, v_head_dim=128)
MODELS: dict[str, tuple[ModelSpec, str]] = {
    "article": (builders.ARTICLE, "auto"),
    "GQA in q8_0": (builders.LLAMA_8B, "q8_0"),
    "K and V apart": (builders.LLAMA_8B, "q8_0:q4_0"),
    "K and V of two widths": (model((3, (WIDE,))), "auto"),
    "K only": (model((3, (FullAttention(num_kv_heads=1, head_dim=576, v_head_dim=0),))), "auto"),
    "one head, K and V apart": (
        model((3, (FullAttention(num_kv_heads=1, head_dim=128),))),
        "fp8:bf16",
    ),
    "fp8 with scales": (builders.LLAMA_8B, "fp8_per_token_head"),
    "MLA": (builders.DEEPSEEK_V3, "auto"),
    "MLA without rope": (model((3, (Mla(kv_lora_rank=512, qk_rope_head_dim=0),))), "fp8"),
    "MLA with an indexer": (builders.DEEPSEEK_V32, "fp8_ds_mla"),
    "a plain indexer": (
        model((3, (builders.FULL, Indexer(index_head_dim=128, index_dtype="bfloat16")))),
        "fp8",
    ),
    "windows": (builders.GEMMA_3_27B, "auto"),
    "states": (builders.QWEN35_27B, "auto"),
    "compressed": (builders.DEEPSEEK_V4, "fp8_ds_mla"),
    "chunks and an encoder": (
        model(
            (
                2,
                (
                    ChunkedAttention(num_kv_heads=8, head_dim=128, attention_chunk_size=8192),
                    CrossAttention(num_kv_heads=20, head_dim=64, encoder_tokens=1500),
                ),
            ),
            (1, (SharedKv(source_layer=0),)),
        ),
        "auto",
    ),
    "other states": (
        model(
            (2, (ShortConv(hidden_size=2048, conv_kernel=3), Rwkv(hidden_size=128, head_size=64)))
        ),
        "auto",
    ),
}


@pytest.mark.parametrize("settings", [{}, {"tensor_parallel_size": 2}], ids=["tp1", "tp2"])
@pytest.mark.parametrize("name", MODELS)
def test_every_line_is_right(name: str, settings: dict[str, int]) -> None:
    """Both sides of every equation are the same number."""
    spec, dtype = MODELS[name]
    if settings and name in ("K only", "one head, K and V apart"):
        settings = {}
    plan = plan_of(spec, kv_cache_dtype=dtype, max_model_len=20_000, **settings)
    lines = explain_plan(plan, [100, 8192, 20_000])
    equations = [
        line.split(": ", 1)[1].split(" = ")
        for line in lines
        if " = " in line and not line.startswith("assumed:")
    ]

    assert len(equations) >= 3
    for sides in equations:
        for left, right in pairwise(sides):
            assert value(left) == value(right), sides
    ends = [line for line in lines if line.startswith("sequence of ")]
    assert [value(line.rsplit(" = ", 1)[1]) for line in ends] == [
        plan.bytes_used(n) for n in (100, 8192, 20_000)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_lines_add_up_to_the_model(name: str) -> None:
    """Rows, states and encoder rows of the lines are the model's."""
    spec, text = MODELS[name]
    dtype = kv_dtype(text, spec.dtype)
    lines = explain_model(spec, dtype)

    def ending(*words: str) -> int:
        return sum(value(line.rsplit(" = ", 1)[1]) for line in lines if line.endswith(tuple(words)))

    assert ending("B a sequence") == spec.state_bytes()
    if not any("an entry of" in line for line in lines):
        assert ending("a token", "a token in reach") == spec.bytes_per_token(dtype)
    if name == "chunks and an encoder":
        assert 1500 * ending("an encoder token") == spec.encoder_bytes()


def test_the_articles_formula() -> None:
    """The formula, the sum, a block and a session, as a reader can check them."""
    lines = explain_plan(plan_of(builders.ARTICLE, max_model_len=8192), [8192])

    formula = "2 (K and V) x 16 layers x 4 KV heads x 256 x 2 B (bfloat16)"
    assert lines[:4] == (
        f"full_attention: {formula} = 65,536 B a token",
        "sum: 65,536 B a token",
        "block: 16 slots x 65,536 B = 1,048,576 B",
        "sequence of 8,192 tokens: 8,192 x 65,536 B = 536,870,912 B",
    )
    assert lines[4:]
    assert all(line.startswith("assumed: ") for line in lines[4:])


def test_the_state_is_told() -> None:
    lines = explain_plan(plan_of(builders.QWEN35_27B, max_model_len=8192), [8192])

    assert (
        "gated_delta_net: 48 layers x (conv 3 x 10,240 x 2 B (bfloat16) + recurrent 48 x 128 x 128"
        " x 4 B (float32)) = 48 x 3,207,168 B = 153,944,064 B a sequence"
    ) in lines
    assert "sequence of 8,192 tokens: 8,192 x 65,536 B + 1 x 153,944,064 B = 690,814,976 B" in lines


def test_growth_that_is_no_whole_number() -> None:
    """Where a token adds a fraction, the sum is told for the tokens that make it whole."""
    entry = CompressedAttention(head_dim=512, qk_rope_head_dim=64, compress_ratio=3)
    lines = explain_plan(plan_of(model((1, (entry,)))), [6])

    assert any(line.startswith("sum: 1,024 B for every 3 tokens") for line in lines)


def test_the_fullest_rank_is_named() -> None:
    lines = explain_plan(plan_of(builders.DEEPSEEK_V3, pipeline_parallel_size=2), [1])

    assert "sum: 35,712 B a token, on the fullest rank" in lines


def test_without_rows() -> None:
    """A model of states alone has no block; one that keeps nothing has no terms."""
    states = explain_plan(plan_of(model((1, (builders.GDN_27B,)))), [5])
    assert not any(line.startswith("block:") for line in states)
    nothing = explain_plan(plan_of(model((1, ()))), [5])
    assert nothing[0] == "sum: 0 B a token"
    assert nothing[1].endswith("= 0 B")


def test_a_plan_without_a_model() -> None:
    """Where nothing says which layers a rank has, the formula is that of its groups."""
    lines = explain_plan(one_rank(pool(group(Grow(block_tokens=16)))), [5])
    assert lines == (
        "g: 1 layer x K 10 B = 10 B a token",
        "sum: 10 B a token",
        "block: 16 slots x 10 B = 160 B",
        "sequence of 5 tokens: 5 x 10 B = 50 B",
        "  reserved for it: 50 B in use + 110 B tail = 160 B",
    )


def test_a_block_of_rows_that_are_read_and_rows_that_are_not() -> None:
    """Each part of a block is written out; what windows no longer read is told apart."""
    read = Rows(rule=Grow(block_tokens=16, limit=4), payload={"k": 5})
    both = group(Grow(block_tokens=16), also=(read,), unit_bytes=240)
    lines = explain_plan(one_rank(pool(both)), [16])

    assert lines[3:] == (
        "block: 16 slots x 10 B + 16 slots x 5 B = 240 B",
        "sequence of 16 tokens: 16 x 10 B + 4 x 5 B = 180 B",
        "  reserved for it: 180 B in use + 60 B retention = 240 B",
    )


def test_blocks_shared_with_states() -> None:
    """In a pool whose groups share blocks the line is that of a block that is really handed out."""
    plan = qwen35_in_vllm(832, 3)
    (line,) = [line for line in explain_plan(plan, []) if line.startswith("block: ")]
    left, right = line.removeprefix("block: ").split(" = ")
    assert value(left) == value(right) == plan.block_bytes


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (All(), "every token"),
        (Windowed(tokens=1024), "last 1,024 tokens"),
        (Chunks(tokens=8192), "chunk of 8,192 tokens"),
        (EveryNth(ratio=128), "1 entry in 128 tokens"),
        (Once(tokens=1500), "1,500 encoder tokens"),
    ],
)
def test_keeps(span: Span, words: str) -> None:
    assert keeps(span) == words


def test_equal_layers_share_a_line() -> None:
    """Gemma-3's 21 runs are two lines: windows first, as in the model."""
    lines = explain_model(builders.GEMMA_3_27B, kv_dtype("auto", "bfloat16"))

    assert [line.split(": ")[0] for line in lines] == ["sliding_window", "full_attention"]
    assert lines[0].endswith("= 425,984 B a token in reach")
    assert isinstance(builders.WINDOW, SlidingWindow)
