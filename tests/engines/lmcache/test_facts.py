"""LMCache 0.5.6 (wheel), in figures worked out by hand from the files that each test names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.api import load_model, shape_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

LLAMA = load_model("llama-3.1-8b")
TOKEN = 131_072


def _plan(model: ModelSpec, deployment: dict[str, Any] | None = None, **args: Any) -> CachePlan:
    settings = {"max_model_len": 8192, **(deployment or {})}
    return plan(model, Deployment(engine="lmcache", engine_args=args, **settings))


def test_a_chunk_of_llama() -> None:
    """metadata.py: [2, 32, 256, 1024] in bf16; local_cpu_backend.py: 5.0 x 2**30 B a worker."""
    found = _plan(LLAMA)

    assert found.block_bytes == 256 * TOKEN == 33_554_432
    assert found.block_size == found.reuse_tokens == 256
    assert found.capacity().num_blocks == 5 * 2**30 // 33_554_432 == 160
    assert found.capacity().max_sequences == 5


@pytest.mark.parametrize(("n", "chunks"), [(0, 0), (255, 0), (256, 1), (511, 1), (512, 2)])
def test_partial_chunks_are_dropped(n: int, chunks: int) -> None:
    """token_database.py, _chunk_tokens without save_unfull_chunk."""
    found = _plan(LLAMA)

    assert found.held(n) == {"chunks": chunks}
    assert found.wastes(n).by_name() == dict.fromkeys(found.wastes(n).by_name(), 0)


def test_partial_chunks_are_stored_on_demand() -> None:
    found = _plan(LLAMA, save_unfull_chunk=True)

    assert found.bytes_held(300) == 300 * TOKEN
    assert any("rounded up to 4096 B" in line for line in found.unsupported)


def test_objects_are_rounded_up() -> None:
    """memory_management.py, AddressManager.ALIGN_BYTES: 4,096."""
    found = _plan(shape_model(3, 1, 80), chunk_size=10)  # 10 x 3 x 320 = 9,600 B

    assert found.block_bytes == 12_288
    assert found.wastes(10).page_padding_bytes == 12_288 - 9_600
    assert any("rounded up to 4096 B" in note for note in found.notes)


def test_objects_of_single_layers() -> None:
    """local_cpu_backend.py, get_full_chunk_size_bytes with layerwise: each is rounded up."""
    found = _plan(shape_model(3, 1, 80), chunk_size=10, use_layerwise=True)

    assert found.block_bytes == 3 * 4096  # 3,200 B each


def test_heads_and_stages_are_split_as_vllm_does() -> None:
    half = _plan(LLAMA, {"tensor_parallel_size": 2})
    assert (half.block_bytes, half.num_gpus) == (256 * TOKEN // 2, 2)

    stages = _plan(LLAMA, {"pipeline_parallel_size": 2})
    assert [rank.pools[0].unit_bytes for rank in stages.ranks] == [256 * TOKEN // 2] * 2
    assert stages.capacity().num_blocks == 320


def test_latents_are_stored_once() -> None:
    """metadata.py: kv_size 1; cache_engine.py: save_only_first_rank for MLA."""
    found = _plan(load_model("deepseek-v3"), {"tensor_parallel_size": 8})

    assert found.block_bytes == 256 * 61 * 576 * 2
    assert found.num_gpus == 1
    assert any("the first one alone" in note for note in found.notes)


def test_windows_are_stored_whole() -> None:
    """vllm_v1_adapter.py is no SupportsHMA connector: vLLM keeps windows as full attention."""
    found = _plan(load_model("gemma-3-27b"))

    assert found.block_bytes == 256 * 62 * 2 * 16 * 128 * 2
    assert any("stored whole" in note for note in found.notes)


def test_fp8_caches_are_stored_as_they_are() -> None:
    assert _plan(LLAMA, {"kv_cache_dtype": "fp8"}).block_bytes == 128 * TOKEN


@pytest.mark.parametrize(
    ("deployment", "args", "chunks"),
    [
        ({}, {"max_local_cpu_size": 20}, 640),
        ({}, {"max_local_cpu_size": 0.1}, 3),
        ({"kv_cache_memory_bytes": 2**30}, {}, 32),
        ({}, {"tier": "disk", "max_local_disk_size": 100.0}, 3200),
    ],
)
def test_tiers(deployment: dict[str, Any], args: dict[str, Any], chunks: int) -> None:
    """int(size x 1024**3) bytes, of each worker (local_cpu_backend.py, local_disk_backend.py)."""
    assert _plan(LLAMA, deployment, **args).capacity().num_blocks == chunks


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"chunks": 1}, "unknown setting of LMCache 'chunks'"),
        ({"chunk_size": 0}, "not a whole number from 1"),
        ({"max_local_cpu_size": 0}, "not a number of GB above 0"),
        ({"tier": "remote"}, "unknown tier"),
        ({"tier": "disk"}, "no bytes by default"),
        ({"save_unfull_chunk": 1}, "not true or false"),
        ({"save_unfull_chunk": True, "use_layerwise": True}, "partial chunks of single layers"),
    ],
)
def test_what_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UnknownNameError, InvalidValueError), match=message):
        _plan(LLAMA, **args)


def test_single_layers_of_latents_are_refused_on_several_ranks() -> None:
    with pytest.raises(UnsupportedError, match="single layers of a latent model"):
        _plan(load_model("deepseek-v3"), {"tensor_parallel_size": 2}, use_layerwise=True)


@pytest.mark.parametrize(
    ("name", "deployment", "message"),
    [
        ("qwen3.5-27b", {}, "stores gated_delta_net caches is not modelled"),
        ("deepseek-v4-flash", {}, "is not modelled"),
        ("llama-3.1-8b", {"kv_cache_dtype": "nvfp4"}, "a cache in nvfp4"),
        ("llama-3.1-8b", {"engine_version": "0.3.1"}, r"LMCache 0\.3\.1 is not known"),
        ("llama-3.1-8b", {"engine_version": "new"}, "is no LMCache release"),
        ("llama-3.1-8b", {"max_num_seqs": 8}, "LMCache has no max_num_seqs"),
    ],
)
def test_models_and_settings_that_are_refused(
    name: str, deployment: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _plan(load_model(name), deployment)


@SETTINGS
@given(
    some.models(), some.some_lengths, st.sampled_from((1, 16, 256)), st.booleans(), st.booleans()
)
def test_nothing_is_lost(
    spec: ModelSpec, lengths: Any, chunk: int, partial: bool, layerwise: bool
) -> None:
    try:
        found = _plan(spec, chunk_size=chunk, save_unfull_chunk=partial, use_layerwise=layerwise)
    except UnsupportedError:
        return
    for wastes in (found.wastes(lengths), found.wastes_at_admission(lengths)):
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
