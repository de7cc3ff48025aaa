"""Engine none: the model's own arithmetic, on one rank and on many."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.core.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    SharedKv,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.kind import All
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Slots, Window
from kvcalc.engines import ENGINES, plan
from kvcalc.engines.none import CONVENTION, DEFAULT_MAX_MODEL_LEN
from tests.core import builders
from tests.core.builders import GIB, model, plan_of

LLAMA, DEEPSEEK, GEMMA, QWEN35 = (
    builders.LLAMA_8B,
    builders.DEEPSEEK_V3,
    builders.GEMMA_3_27B,
    builders.QWEN35_27B,
)


def test_defaults() -> None:
    """Blocks of 16, the model dtype, the model's own longest sequence."""
    found = plan_of(LLAMA)

    assert (found.engine, found.engine_version, found.model) == ("none", None, "test")
    assert (found.block_size, found.kv_cache_dtype) == (16, "bfloat16")
    assert found.max_model_len == DEFAULT_MAX_MODEL_LEN == 8192
    assert found.block_bytes == 16 * 131_072
    assert (found.num_gpus, found.split, found.notes) == (1, "one_pool", ())
    assert found.convention == (CONVENTION["rows"], CONVENTION["pages"])
    assert found.source
    long = ModelSpec(
        name="test",
        num_hidden_layers=32,
        dtype="bfloat16",
        layers=LLAMA.layers,
        max_position_embeddings=131_072,
    )
    assert plan_of(long).max_model_len == 131_072
    assert plan_of(long, max_model_len=100).max_model_len == 100


@pytest.mark.parametrize(("spec", "sessions"), [(builders.ARTICLE, 30), (QWEN35, 23)])
def test_sessions_in_15_gib(spec: ModelSpec, sessions: int) -> None:
    """The article's thirty sessions are twenty-three once the state is counted."""
    assert plan_of(spec, max_model_len=8192).capacity(15 * GIB).max_sequences == sessions


@pytest.mark.parametrize(
    ("spec", "tp", "per_rank", "everywhere"),
    [
        (LLAMA, 1, 131_072, 131_072),
        (LLAMA, 2, 65_536, 131_072),
        (LLAMA, 8, 16_384, 131_072),
        (LLAMA, 16, 16_384, 262_144),
        (builders.LLAMA_70B, 4, 81_920, 327_680),
        (DEEPSEEK, 1, 70_272, 70_272),
        (DEEPSEEK, 8, 70_272, 562_176),
        (GEMMA, 1, 507_904, 507_904),
        (GEMMA, 4, 126_976, 507_904),
        (QWEN35, 1, 65_536, 65_536),
        (QWEN35, 4, 16_384, 65_536),
        (QWEN35, 8, 16_384, 131_072),
    ],
)
def test_tensor_parallel(spec: ModelSpec, tp: int, per_rank: int, everywhere: int) -> None:
    """Heads are split, then repeated; MLA is on every rank."""
    found = plan_of(spec, tensor_parallel_size=tp)

    assert found.num_gpus == tp
    assert found.growth() == (per_rank, 1)
    assert found.growth_all_ranks() == (everywhere, 1)


@pytest.mark.parametrize(
    ("tp", "expected"),
    [(1, 153_944_064), (2, 48 * 1_603_584), (4, 48 * 801_792), (8, 48 * 400_896)],
)
def test_states_of_a_rank(tp: int, expected: int) -> None:
    """48 states divided as in vLLM; all ranks together keep the state once."""
    found = plan_of(QWEN35, tensor_parallel_size=tp)

    assert found.fixed_bytes(Slots) == expected
    assert found.wastes_all_ranks(0).used_bytes == 153_944_064


@pytest.mark.parametrize(("tp", "copies"), [(8, 1), (16, 2), (32, 4)])
def test_repeated_heads_are_noted(tp: int, copies: int) -> None:
    found = plan_of(LLAMA, tensor_parallel_size=tp)

    expected = (
        f"{copies} of {tp} tensor-parallel ranks keep the same rows: the cache is stored {copies}"
        " times"
    )
    assert list(found.notes) == [expected] * (copies > 1)


def test_a_part_of_the_layers_is_repeated() -> None:
    spec = model((1, (FullAttention(num_kv_heads=2, head_dim=64),)), (1, (builders.FULL,)))
    (note,) = plan_of(spec, tensor_parallel_size=4).notes

    assert note.endswith("stored 2 times in part of the layers")


@pytest.mark.parametrize(("pp", "layers"), [(2, (31, 30)), (4, (15, 15, 16, 15)), (61, (1,) * 61)])
def test_pipeline_parallel(pp: int, layers: tuple[int, ...]) -> None:
    """Each stage keeps its own layers, and the fullest one is shown."""
    found = plan_of(DEEPSEEK, pipeline_parallel_size=pp, max_model_len=8192)

    assert [rank.bytes_used(8192) for rank in found.ranks] == [n * 1152 * 8192 for n in layers]
    assert found.bytes_used(8192) == max(layers) * 1152 * 8192
    assert [rank.name for rank in found.ranks] == [f"stage {i}" for i in range(pp)]
    assert found.wastes_all_ranks(8192).used_bytes == DEEPSEEK.sequence_bytes(8192)


def test_uneven_stages_are_noted() -> None:
    (note,) = plan_of(DEEPSEEK, pipeline_parallel_size=4).notes

    assert note == "61 layers over 4 stages: 15 + 15 + 16 + 15; the fullest stage is shown"
    assert plan_of(LLAMA, pipeline_parallel_size=4).notes == ()


def test_tensor_and_pipeline_parallel() -> None:
    found = plan_of(LLAMA, tensor_parallel_size=2, pipeline_parallel_size=4, data_parallel_size=3)

    assert found.num_gpus == 8  # of one replica
    assert found.growth() == (16_384, 1)
    assert found.growth_all_ranks() == (131_072, 1)


@pytest.mark.parametrize(
    ("spec", "settings", "held"),
    [
        (DEEPSEEK, {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 1024 * 70_272),
        (DEEPSEEK, {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, 4096 * 70_272),
        (LLAMA, {"tensor_parallel_size": 16, "decode_context_parallel_size": 2}, 4096 * 16_384),
        (
            builders.DEEPSEEK_V32,
            {"tensor_parallel_size": 8, "decode_context_parallel_size": 4},
            2048 * 78_324,
        ),
    ],
)
def test_decode_context_parallel(spec: ModelSpec, settings: dict[str, int], held: int) -> None:
    """Ranks that would keep the same rows share the tokens instead."""
    found = plan_of(spec, max_model_len=8192, **settings)

    assert found.bytes_held(8192) == held
    copies = {True: settings["tensor_parallel_size"], False: 2}[spec is not LLAMA]
    shared = copies // settings["decode_context_parallel_size"]
    assert found.wastes_all_ranks(8192).used_bytes == shared * spec.sequence_bytes(8192)
    assert len(found.notes) == (shared > 1)


def test_states_are_not_shared_out() -> None:
    """Tokens are shared, a state is not: every rank keeps its heads' state."""
    spec = model((3, (builders.GDN_27B,)), (1, (builders.MLA,)))
    found = plan_of(spec, tensor_parallel_size=4, decode_context_parallel_size=4)

    assert found.fixed_bytes(Slots) == 3 * 801_792
    assert found.wastes_all_ranks(400).used_bytes == 3 * 3_207_168 + 400 * 1152


@pytest.mark.parametrize(
    ("spec", "tp", "match"),
    [
        (GEMMA, 32, "does not split sliding_window caches"),
        (builders.DEEPSEEK_V4, 8, "does not split sliding_mla caches"),
        (LLAMA, 8, "only 1 of 8 ranks keep the same full_attention rows"),
        (builders.LLAMA_70B, 16, "only 2 of 16 ranks"),
    ],
)
def test_context_parallelism_refused(spec: ModelSpec, tp: int, match: str) -> None:
    """Windows are refused, and so are ranks that all keep heads of their own."""
    with pytest.raises(UnsupportedError, match=match) as caught:
        plan_of(spec, tensor_parallel_size=tp, decode_context_parallel_size=8)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("spec", "tp", "match"),
    [
        (LLAMA, 3, "8 heads cannot be split over 3 ranks"),
        (LLAMA, 12, "8 heads"),
        (model((40, (FullAttention(num_kv_heads=10, head_dim=128),))), 4, "10 heads"),
        (QWEN35, 32, "16 key heads cannot be split over 32"),
    ],
)
def test_heads_that_do_not_divide(spec: ModelSpec, tp: int, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        plan_of(spec, tensor_parallel_size=tp)


def test_more_stages_than_layers() -> None:
    with pytest.raises(UnsupportedError, match="61 layers cannot be split over 62"):
        plan_of(DEEPSEEK, pipeline_parallel_size=62)


REFUSED: list[tuple[str, object]] = [
    ("engine_version", "0.33.0"),
    ("max_num_seqs", 8),
    ("max_num_batched_tokens", 2048),
    ("gpu_memory_utilization", 0.9),
    ("num_gpu_blocks_override", 100),
    ("enable_prefix_caching", False),
    ("async_scheduling", True),
    ("enforce_eager", True),
    ("disable_hybrid_kv_cache_manager", True),
    ("enable_expert_parallel", True),
    ("attention_backend", "FLASH_ATTN"),
    ("mamba_cache_dtype", "float32"),
    ("mamba_ssm_cache_dtype", "float32"),
    ("num_speculative_tokens", 2),
    ("speculative_method", "mtp"),
    ("draft_model", "x"),
    ("engine_args", {"page_size": 1}),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_settings_of_engines_are_refused(name: str, value: Any) -> None:
    """What would move no number here is refused, not ignored."""
    with pytest.raises(UnsupportedError, match=f"engine none has no {name}") as caught:
        plan_of(LLAMA, **{name: value})

    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu", "h100-80gb"),
        ("gpu", GpuSpec(name="x", title="X", memory_bytes=GIB)),
        ("kv_cache_memory_bytes", GIB),
    ],
)
def test_settings_that_move_no_row(name: str, value: Any) -> None:
    assert plan_of(LLAMA, **{name: value}) == plan_of(LLAMA)


def test_replicas() -> None:
    """Data-parallel replicas change no figure; a note says whose they are."""
    found = plan_of(LLAMA, data_parallel_size=4)

    assert (found.num_gpus, found.growth()) == (1, (131_072, 1))
    assert len(found.notes) == 1
    assert found.notes[0].startswith("4 replicas")


def test_every_setting_is_known_or_refused() -> None:
    """No field of a deployment is left without an answer."""
    known = {
        "engine",
        "gpu",
        "dtype",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "kv_cache_dtype",
        "block_size",
        "max_model_len",
        "kv_cache_memory_bytes",
    }
    refused = {name for name, _ in REFUSED}
    assert known | refused == set(Deployment.__struct_fields__)


def test_dtypes() -> None:
    """`dtype` is the model's, which states and `auto` rows follow; the KV dtype is the rows'."""
    assert plan_of(LLAMA, dtype="float32").growth() == (262_144, 1)
    assert plan_of(LLAMA, dtype="fp16").kv_cache_dtype == "float16"
    assert plan_of(LLAMA, kv_cache_dtype="fp8").growth() == (65_536, 1)
    wide = plan_of(QWEN35, dtype="float32", kv_cache_dtype="fp8")
    assert wide.growth() == (32_768, 1)
    assert wide.fixed_bytes(Slots) == 48 * (3 * 10_240 * 4 + 48 * 128 * 128 * 4)
    with pytest.raises(UnsupportedError, match="fp8"):
        plan_of(LLAMA, dtype="fp8")
    with pytest.raises(UnknownNameError):
        plan_of(LLAMA, kv_cache_dtype="fp9")
    with pytest.raises(UnsupportedError, match="packs"):
        plan_of(LLAMA, kv_cache_dtype="fp8_ds_mla")


def _rules(found: CachePlan) -> list[tuple[str, object, int]]:
    return [(pool.name, pool.groups[0].rule, pool.groups[0].layers) for pool in found.rank.pools]


def test_what_the_checkpoint_asks_for() -> None:
    """A checkpoint's own KV dtype is what `auto` means; a typed one wins."""
    spec = msgspec.structs.replace(DEEPSEEK, kv_cache_dtype="fp8_e4m3")

    assert plan_of(spec).growth() == (35_136, 1)
    assert plan_of(spec).kv_cache_dtype == "fp8_e4m3"
    assert plan_of(spec, kv_cache_dtype="bfloat16").growth() == (70_272, 1)


def test_pools_of_gemma() -> None:
    """Windows have blocks of their own, in a ring; layers that keep all share one pool."""
    found = plan_of(GEMMA, max_model_len=131_072)

    assert _rules(found) == [
        ("every token", Grow(block_tokens=16), 10),
        ("window 1024", Window(block_tokens=16, window=1024, ring=True), 52),
    ]
    assert found.split == "fungible"
    assert found.held(8192) == {"every token": 512, "window 1024": 64}
    assert found.bytes_held(8192) == 10 * 8192 * 8192 + 52 * 8192 * 1024
    assert found.wastes(8192).waste_bytes == 0


def test_pools_in_the_order_a_reader_expects() -> None:
    """Growing blocks first, then entries, windows, chunks, the encoder, and states."""
    spec = model(
        (1, (builders.GDN_27B,)),
        (1, (CrossAttention(num_kv_heads=8, head_dim=64, encoder_tokens=1500),)),
        (1, (ChunkedAttention(num_kv_heads=8, head_dim=64, attention_chunk_size=8192),)),
        (2, (SlidingWindow(num_kv_heads=8, head_dim=64, sliding_window=128),)),
        (1, (SlidingWindow(num_kv_heads=4, head_dim=64, sliding_window=256),)),
        (1, (builders.HCA,)),
        (3, (SharedKv(source_layer=1),)),
        (1, (builders.FULL,)),
        (1, (builders.MLA, Indexer(index_head_dim=128))),
    )
    found = plan_of(spec, block_size=32)

    assert _rules(found) == [
        ("every token", Grow(block_tokens=32), 3),
        ("1 in 128", Compressed(block_entries=32, ratio=128), 1),
        ("window 128", Window(block_tokens=32, window=128, ring=True), 2),
        ("window 256", Window(block_tokens=32, window=256, ring=True), 1),
        ("chunk 8192", Chunk(block_tokens=32, chunk=8192, ring=True), 1),
        ("encoder", Fixed(block_tokens=1500, tokens=1500), 1),
        ("state", Slots(), 2),
    ]
    assert found.rank.pools[0].groups[0].payload == {
        "k": 8 * 256,
        "v": 8 * 256,
        "latent": 1024,
        "rope": 128,
        "index": 132,
    }
    assert found.fixed_bytes(Fixed) == 1500 * 2 * 8 * 64 * 2
    assert found.rank.pools[-1].groups[0].payload == {
        "conv": 61_440,
        "recurrent": 3_145_728,
        "compressor": 524_288,
    }


def test_the_state_note() -> None:
    """A note says what other engines hold."""
    (note,) = plan_of(QWEN35).notes

    assert note == (
        "a sequence keeps 153,944,064 B of state whatever its length, in vLLM's layout;"
        " transformers holds 154,927,104 and llama.cpp holds 156,893,184"
    )


def test_the_state_note_where_engines_agree() -> None:
    """Compressor states are in 32 bits everywhere."""
    notes = plan_of(builders.DEEPSEEK_V4, kv_cache_dtype="fp8_ds_mla").notes

    assert len(notes) == 1
    assert notes[0].endswith("in vLLM's layout")


def test_a_model_that_keeps_nothing() -> None:
    found = plan_of(model((2, (SharedKv(),)), (1, ())))

    assert found.rank.pools == ()
    assert found.bytes_needed(8192) == 0


def test_no_page_is_widened() -> None:
    """The convention: tails are the only waste of a paged cache."""
    for spec in (LLAMA, DEEPSEEK, GEMMA, QWEN35):
        wastes = plan_of(spec).wastes([1, 200, 1023, 1025, 5000])
        assert wastes.waste_bytes == wastes.tail_bytes


def test_engines() -> None:
    """An engine that is known but not modelled is told apart from one that is not known."""
    assert plan(LLAMA, Deployment()).engine == "none"
    for name in {"vllm", "sglang", "llama.cpp", "tensorrt-llm", "transformers"} - set(ENGINES):
        with pytest.raises(UnsupportedError, match=f"does not model engine '{name}' yet"):
            plan(LLAMA, Deployment(engine=name))
    with pytest.raises(UnknownNameError, match="unknown engine 'nome'") as caught:
        plan(LLAMA, Deployment(engine="nome"))
    assert caught.value.suggestions == ["none"]


def test_context_parallel_size_divides_tensor_parallel_size() -> None:
    with pytest.raises(InvalidValueError, match="does not divide"):
        plan_of(DEEPSEEK, tensor_parallel_size=8, decode_context_parallel_size=3)
    assert builders.MLA.span == All()
