"""What weights take on one GPU: exact where all is known, within bounds where it is not."""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path

import msgspec
import pytest

from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize, Tower
from kvcalc.models import load_model, shape_model
from kvcalc.models.presets import load_model_preset
from kvcalc.models.weights import Tensor, summarise, with_weights
from kvcalc.weights.formats import weight_width
from kvcalc.weights.loading import Loading
from kvcalc.weights.on_rank import beside_bytes, weights_on_rank
from kvcalc.weights.parameters import count_parts, parameters, total
from tests.conftest import ABSENT, SHARED

TABLE = Path(__file__).with_name("weight_errors.tsv")
GIB = 2**30

PUBLISHED = {
    # total_size of the checkpoint's index over two bytes
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-3b": 3_212_749_824,
    "qwen3-4b": 4_022_468_096,
}

NOT_HELD = {
    "THUDM/chatglm3-6b-32k": "64 B more: its index counts a buffer of 32 rotary frequencies",
    "Alibaba-NLP/gte-Qwen2-7B-instruct": "layers of an encoder keep no cache, so that their heads"
    " are not in the model: refused",
    "intfloat/e5-mistral-7b-instruct": "MistralModel has no output matrix; the other program"
    " counted one",
}
"""Checkpoint -> why the bounds do not hold what the table says of it."""


def bare(name: str) -> ModelSpec:
    """Return a preset's model without what is known of its weights, its widths alone."""
    spec = load_model_preset(name).spec
    assert spec.size is not None
    unknown = {"parameters": None, "weights_bytes": None, "weights_error_bytes": None}
    return msgspec.structs.replace(spec, size=msgspec.structs.replace(spec.size, **unknown))


def sized(spec: ModelSpec, **changes: object) -> ModelSpec:
    """Return a model with other sizes."""
    size = spec.size or ModelSize()
    return msgspec.structs.replace(spec, size=msgspec.structs.replace(size, **changes))


def span(model: ModelSpec, **settings: object) -> tuple[int, int]:
    """Return the bounds of a rank's weights."""
    term = weights_on_rank(model, **settings)  # type: ignore[arg-type]  # settings by name
    return term.low_bytes, term.high_bytes


# ------------------------------------------------------------------ parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameters(name: str) -> None:
    """Where all widths are known the count is exact: the published one."""
    known = PUBLISHED[name]

    assert total(count_parts(bare(name))) == (known, known)
    assert parameters(load_model_preset(name).spec) == (known, known)


def test_a_count_is_its_parts() -> None:
    """Llama-3.1-8B by hand: 32 layers of hidden size 4096, 8 KV heads of 128."""
    h, layers = 4096, 32

    assert count_parts(bare("llama-3.1-8b")) == {
        "embedding": (128_256 * h,) * 2,
        "head": (128_256 * h,) * 2,
        "attention": (layers * 2 * h * h,) * 2,
        "kv": (layers * 2 * h * 1024,) * 2,
        "mlp": (layers * 3 * h * 14_336,) * 2,
        "norm": ((2 * layers + 1) * h,) * 2,
        "encoder": (0, 0),
    }


def test_stages_add_up() -> None:
    """Layers of two halves are those of the whole; what stands outside counts in each."""
    model = bare("deepseek-v3")
    whole, outside = count_parts(model), ("embedding", "head", "encoder", "draft")
    halves = [count_parts(model, 0, 31), count_parts(model, 31, 61)]

    assert "mlp" not in halves[1]  # the three dense layers come first
    for part in ("attention", "latent", "experts", "shared", "router", "mlp"):
        added = [h.get(part, (0, 0)) for h in halves]
        assert tuple(map(sum, zip(*added, strict=True))) == whole[part]
    assert all(h[part] == whole[part] for h in halves for part in outside)  # type: ignore[index]  # parts are tuples


def test_counted_weights_are_near_known_ones() -> None:
    """Of all checkpoints with known bytes, the bounds hold more than nine in ten.

    The table states the error of each: python -m tests.tools.weight_errors --write.
    """
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    outside, widest = set(), 0.0
    for row in rows:
        off, known = int(row["off by at most"]), int(row["bytes"])
        if not row["low"]:
            outside.add(row["model"])
            continue
        low, high = int(row["low"]), int(row["high"])
        widest = max(widest, (high - low) / known)
        if not low - off <= known <= high + off:
            outside.add(row["model"])
        expected = 100 * max(0, low - known, known - high) / known
        assert row["error"] == f"{expected:.3f} %"

    assert outside == set(NOT_HELD)
    assert len(outside) * 10 <= len(rows)
    assert widest < 0.07


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_table_of_errors_is_current() -> None:
    """It is what the corpus and the code give now."""
    from tests.tools.weight_errors import text

    assert TABLE.read_text(encoding="utf-8") == text()


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        (shape_model(2, 2, 64), "hidden_size and vocab_size"),
        (sized(bare("llama-3.1-8b"), vocab_size=None), "vocab_size"),
        (sized(bare("llama-3.1-8b"), intermediate_size=None), "intermediate_size"),
        (sized(bare("deepseek-v3"), num_experts=None), "experts"),
        (sized(bare("deepseek-v3"), qk_nope_head_dim=None), "qk_nope_head_dim"),
        (bare("zamba2-7b"), "stored once and used many times"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_what_is_missing_is_named(model: ModelSpec, missing: str) -> None:
    """Without a width there is no count, and the way out is said."""
    with pytest.raises(UnsupportedError, match=missing) as caught:
        weights_on_rank(model)
    assert "--weights SIZE" in caught.value.hint


def test_a_tower_widens_the_bounds() -> None:
    """Its tables and projectors are not in a config."""
    plain = bare("llama-3.1-8b")
    tower = Tower(hidden_size=1024, intermediate_size=4096, num_layers=24)
    low, high = total(count_parts(sized(plain, towers=(tower,))))
    base = total(count_parts(plain))[0]

    assert low - base == 24 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert high > low
    # A class with a tower and a config that hides it: up to the largest that is published.
    hidden = msgspec.structs.replace(plain, architecture="Llama4ForConditionalGeneration")
    assert count_parts(hidden)["encoder"] == (0, 6_000_000_000)


# ------------------------------------------------------------------ bytes


def test_whole_model() -> None:
    """On one GPU a known total is itself."""
    assert span(load_model("llama-3.1-8b")) == (16_060_522_496,) * 2
    assert span(bare("llama-3.1-8b")) == (16_060_522_496,) * 2


def test_a_given_total_replaces_what_is_known() -> None:
    """--weights SIZE is of the whole model."""
    assert span(load_model("llama-3.1-8b"), total_bytes=10 * GIB) == (10 * GIB, 10 * GIB)
    assert span(shape_model(2, 2, 64), total_bytes=GIB) == (GIB, GIB)
    low, high = span(shape_model(2, 2, 64), total_bytes=GIB, tp=2)
    assert low <= GIB // 2 <= high < GIB


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel(tp: int) -> None:
    """Norms are whole on every rank, all else is divided."""
    norms = 65 * 4096 * 2
    expected = norms + (16_060_522_496 - norms) // tp

    assert span(bare("llama-3.1-8b"), tp=tp) == (expected, expected)
    low, high = span(load_model("llama-3.1-8b"), tp=tp)
    assert low <= expected <= high <= low + 1


def test_kv_heads_in_copies() -> None:
    """With more ranks than KV heads each rank keeps one head, as others do."""
    kv, norms = 32 * 2 * 4096 * 1024 * 2, 65 * 4096 * 2
    rest = 16_060_522_496 - kv - norms
    expected = norms + kv // 8 + rest // 16

    assert span(bare("llama-3.1-8b"), tp=16) == (expected, expected)


def test_latents_are_whole_on_every_rank() -> None:
    """Of DeepSeek's projections those down to the latents are not divided."""
    latent = count_parts(bare("deepseek-v3"))["latent"]
    one, eight = span(bare("deepseek-v3")), span(bare("deepseek-v3"), tp=8)

    assert latent == (61 * 7168 * (512 + 64 + 1536),) * 2
    assert eight[0] > (one[0] - latent[0]) // 8 + latent[0]


def test_pipeline_stages() -> None:
    """The first keeps the embedding, the last the head; together they are the model."""
    stages = [span(bare("llama-3.1-8b"), pp=2, stage=stage) for stage in (0, 1)]

    # The norm after the last layer is the last stage's alone (vLLM models/llama.py).
    assert sum(low for low, _ in stages) == 16_060_522_496
    # A tied embedding is kept on both.
    tied = [span(bare("llama-3.2-3b"), pp=2, stage=stage)[0] for stage in (0, 1)]
    table = 128_256 * 3072 * 2
    assert sum(tied) == PUBLISHED["llama-3.2-3b"] * 2 + table


def test_padded_vocabulary() -> None:
    """Rows are padded to a multiple of 64, where an engine pads at all."""
    model = sized(bare("llama-3.1-8b"), vocab_size=100_001)
    low, high = span(model)

    assert high - low == 2 * (100_032 - 100_001) * 4096 * 2


def test_experts_on_other_ranks() -> None:
    """Expert parallelism divides experts alone: with attention whole, experts by eight."""
    parts = count_parts(bare("qwen3-30b-a3b-fp8"))
    low, high = span(bare("qwen3-30b-a3b-fp8"), quantization="bfloat16", ep=8)
    rest = sum(size for part, (size, _) in parts.items() if part != "experts")

    assert (low, high) == (2 * rest + 2 * parts["experts"][0] // 8,) * 2


def test_drafts_are_apart() -> None:
    """They are in the checkpoint, and loaded only with speculation."""
    without, with_ = span(bare("deepseek-v3")), span(bare("deepseek-v3"), drafts=True)

    assert without[1] < with_[0]
    assert span(load_model("deepseek-v3"), drafts=True)[0] > 640 * GIB


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [("fp8", 8), ("int8", 8), ("awq", 4), ("gptq", 4), ("nvfp4", 4.5), ("mxfp4", 4.25),
     ("bnb-4bit", 4.125), ("bitsandbytes", 4.125), ("w8a8", 8)],
)  # fmt: skip
def test_formats(quantization: str, bits: float) -> None:
    """Embedding and head stay as they are; the rest has the format's width and scales."""
    tables = 2 * 128_256 * 4096 * 2
    rest = PUBLISHED["llama-3.1-8b"] - 2 * 128_256 * 4096
    low, high = span(bare("llama-3.1-8b"), quantization=quantization)

    assert tables + rest * bits / 8 <= low <= high
    # Recipes of 4-bit floats may leave attention, 4.3 GB of which 2.2 in 4 bits, as it is.
    kept = 2_000_000_000 if quantization in ("nvfp4", "mxfp4") else 0
    norms = 65 * 4096 * 4  # in 32 bits at most
    assert high <= tables + rest * (bits + 0.625) / 8 + kept + norms


@pytest.mark.parametrize(
    ("type_", "bits"),
    [("Q8_0", 8.5008), ("Q6_K", 6.5633), ("Q5_K_M", 5.7036), ("Q5_K_S", 5.5704),
     ("Q4_K_M", 4.8944), ("Q4_K_S", 4.6672), ("IQ4_NL", 4.6818), ("IQ4_XS", 4.4597),
     ("Q3_K_L", 4.2979), ("Q3_K_S", 3.6429), ("Q2_K", 3.1593)],
)  # fmt: skip
def test_ggml_types_are_of_tables_too(type_: str, bits: float) -> None:
    """Bits a weight that llama.cpp states for Llama-3.1-8B (tools/quantize/README.md).

    It rounds them to four digits, half of the last of which is 50 kB of the file.
    """
    low, high = span(bare("llama-3.1-8b"), quantization=type_)
    known = PUBLISHED["llama-3.1-8b"] * bits / 8
    rounded = PUBLISHED["llama-3.1-8b"] * 0.000_05 / 8

    assert low - rounded <= known <= high + rounded
    assert high - low < 0.4 * known


def test_what_a_quantisation_keeps() -> None:
    """gpt-oss leaves attention in bf16 and says so: bounds fall together."""
    model = bare("gpt-oss-20b")
    low, high = span(model)

    assert high - low < 0.001 * low
    assert span(sized(model, kept=None))[1] > high - 2 * 2**20
    assert span(sized(model, kept=()))[0] < low


def test_unknown_formats() -> None:
    """A format that is not known is refused by name."""
    with pytest.raises(UnknownNameError, match="fp5"):
        weights_on_rank(bare("llama-3.1-8b"), quantization="fp5")
    with pytest.raises(UnsupportedError, match="not known"):
        weights_on_rank(sized(bare("llama-3.1-8b"), weights_dtype="unknown"))
    assert weight_width("BF16") == weight_width("float16")


@pytest.mark.parametrize(
    "settings",
    [{"tp": 0}, {"pp": -1}, {"ep": 0}, {"stage": 1}, {"pp": 2, "stage": 2}, {"tp": True}],
)
def test_senseless_ranks(settings: dict[str, int]) -> None:
    """Ranks are counted from 1, stages from 0."""
    with pytest.raises(InvalidValueError):
        weights_on_rank(load_model("llama-3.1-8b"), **settings)  # type: ignore[arg-type]  # settings by name


def test_bounds_hold_on_every_preset() -> None:
    """Whatever is known, a rank's bounds are in order, and more ranks hold no more each."""
    refused = 0
    for path in sorted(Path(__file__).parents[2].glob("presets/models/*.yaml")):
        model = load_model(str(path))
        try:
            one, four = span(model), span(model, tp=4)
        except UnsupportedError:
            refused += 1
            continue
        assert 0 < four[0] <= four[1], path.stem
        assert four[1] <= one[1], path.stem
        assert one[0] <= 4 * four[1], path.stem
    assert refused <= 6


def test_tables_of_positions() -> None:
    """Llama-3.1-8B: 131,072 rows of 128 in 16 bits; Gemma-3 has one for each kind of layer."""
    assert beside_bytes(load_model("llama-3.1-8b")) == 32 * 2**20
    assert beside_bytes(load_model("gemma-3-1b")) == 2 * 32_768 * 256 * 2
    assert beside_bytes(load_model("bloom-560m")) == 0


def test_copies_of_latent_matrices() -> None:
    """DeepSeek-V3 on eight ranks: 61 layers of 512 x 16 heads x 256 in 16 bits."""
    tables = 163_840 * 64 * 2

    assert beside_bytes(load_model("deepseek-v3"), 8) == tables + 61 * 512 * 16 * 256 * 2


# ------------------------------------------------------------------ as they are loaded


def parts_of(*tensors: tuple[str, str, tuple[int, ...]]) -> ModelSpec:
    """Return Llama-3.1-8B with the headers of these (name, dtype, shape) instead of its own."""
    sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
    found = [
        Tensor(name, dtype, shape, prod(shape) * sizes[dtype]) for name, dtype, shape in tensors
    ]
    return with_weights(load_model("llama-3.1-8b"), summarise(found, shards=1), "headers")


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, 64), ("bfloat16", 32), ("float16", 32), ("float32", 64)]
)
def test_a_float32_checkpoint_is_run_in_its_dtype(dtype: str | None, expected: int) -> None:
    """Every plain tensor is copied into a parameter of the dtype of the run."""
    model = parts_of(
        ("model.layers.0.mlp.up_proj.weight", "F32", (4, 3)),
        ("model.layers.0.input_layernorm.weight", "F32", (4,)),
    )

    assert span(model, loading=Loading(dtype=dtype)) == (expected, expected)


def test_float32_among_16_bits_is_kept_or_cast() -> None:
    """Which of them an engine keeps is not said by a checkpoint: both ends are there."""
    model = parts_of(
        ("model.layers.0.mlp.up_proj.weight", "BF16", (40, 30)),
        ("model.layers.0.linear_attn.A_log", "F32", (4,)),
    )

    assert span(model, loading=Loading(dtype="bfloat16")) == (2408, 2416)
    assert span(model, loading=Loading(dtype="float32")) == (4816, 4816)


def test_packed_weights_and_their_scales_stay() -> None:
    """fp8 and its scales are as stored in any dtype; what is left plain is cast."""
    model = parts_of(
        ("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (400, 300)),
        ("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", (4, 3)),
        ("model.embed_tokens.weight", "BF16", (64, 10)),
    )

    assert span(model, loading=Loading(dtype="float16")) == (121_328, 121_328)
    assert span(model, loading=Loading(dtype="float32")) == (122_608, 122_608)


def test_a_known_total_is_run_in_its_dtype() -> None:
    """The published total of Llama-3.1-8B, twice as wide."""
    stored = PUBLISHED["llama-3.1-8b"]

    assert span(load_model("llama-3.1-8b"), loading=Loading(dtype="float32")) == (4 * stored,) * 2
    assert span(load_model("llama-3.1-8b"), loading=Loading(dtype="float16")) == (2 * stored,) * 2
    given = span(load_model("llama-3.1-8b"), loading=Loading(dtype="float32"), total_bytes=10**10)
    assert given == (10**10, 10**10)


def test_what_stays_in_float32_whatever_the_run() -> None:
    """GLM-4.5's gates and their biases, 89 layers of 160 experts; Falcon-Mamba's decay rates."""
    for name, wide in (("glm-4.5", 89 * 160 * 5121), ("falcon-mamba-7b", 64 * 8192 * 16)):
        model = load_model(name)
        low, high = span(model)
        assert span(model, loading=Loading(dtype=model.dtype)) == (low, high + 2 * wide)


def test_tables_of_positions_are_in_the_dtype_of_the_run() -> None:
    """131,072 rows of 128: 32 MiB in 16 bits, 64 in float32."""
    model = load_model("llama-3.1-8b")

    assert beside_bytes(model) == beside_bytes(model, loading=Loading(dtype="float16")) == 2**25
    assert beside_bytes(model, loading=Loading(dtype="float32")) == 2**26
    assert beside_bytes(model, loading=Loading(dtype="float16", table_bytes=4)) == 2**26
