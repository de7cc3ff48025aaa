"""Settings that a log does not name and that its figures give, and the memory of one device."""

from __future__ import annotations

import io
from typing import Any

import pytest

from kvcalc.answers.logs import LogAnswer
from kvcalc.api import shape_model
from kvcalc.measure.logs import Given, answered, read_start
from kvcalc.models import load_model

MIB = 2**20
LLAMA = load_model("llama-3.1-8b")
SEVEN = shape_model(32, 32, 128)
"""512 KiB a token: a block of 64 tokens is 32 MiB."""


def _answer(text: str, model: Any = LLAMA, args: Any = None, **settings: Any) -> LogAnswer:
    given = Given(model=model, settings=settings, args=args or {})
    return answered(read_start("-", given, None, io.BytesIO(text.encode())), given)


def _setting(found: LogAnswer, name: str) -> str:
    return next(named.value for named in found.settings if named.name == name)


# ------------------------------------------------------------------------ llama.cpp


def test_a_context_by_the_bytes_of_its_cache() -> None:
    """131,072 B a token: 2,048 MiB are 16,384 cells."""
    log = "llama_new_context_with_model: KV self size = 2048.00 MiB, K (f16): 1024.00 MiB, V (f16): 1024.00 MiB"  # noqa: E501
    found = _answer(log)

    assert _setting(found, "ctx_size") == "16384"
    assert {"cache_size", "k_size", "v_size"} <= set(found.agrees)
    assert found.differences == ()


def test_a_context_that_is_given_stays() -> None:
    log = "llama_new_context_with_model: KV self size = 2048.00 MiB"
    assert _setting(_answer(log, args={"ctx_size": 8192}), "ctx_size") == "8192"


def test_cells_of_an_older_padding() -> None:
    """15,008 cells are no multiple of 256."""
    size = 15_008 * 131_072 / MIB
    found = _answer(f"llama_new_context_with_model: KV self size = {size:.2f} MiB")
    assert {d.explained_by for d in found.differences} == {"cells' padding"}


def test_sequences_by_their_states() -> None:
    log = "llama_memory_recurrent: size = 448.88 MiB ( 3 cells, 64 layers, 3 seqs 0 rs_seq)"
    found = _answer(log, load_model("qwen3.5-27b"))
    assert _setting(found, "parallel") == "3"
    assert "state_size" in found.agrees
    assert "state_seqs" not in found.agrees  # it is what the number was taken from


def test_the_allocation_that_failed_was_the_cache() -> None:
    log = (
        "llama_context: n_ctx = 131072\nllama_context: n_seq_max = 1\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0:"
        " cudaMalloc failed: out of memory\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv"
        " cache"
    )
    found = _answer(log)
    assert found.failure is not None
    assert "it was the cache, 131,072 tokens by kvcalc" in found.failure
    unknown = answered(read_start("-", Given(), None, io.BytesIO(log.encode())))
    assert unknown.failure == "an allocation of 16384.00 MiB failed: it was the cache"


def _cache_term(log: str) -> tuple[int, int]:
    found = answered(read_start("-", Given(), None, io.BytesIO(log.encode())))
    term = next(term for term in found.terms if term.name == "cache")
    assert term.logged is not None
    return term.logged


def _holds(span: tuple[int, int], mib: float) -> bool:
    return span[0] <= mib * MIB <= span[1]


@pytest.mark.parametrize(
    ("lines", "mib"),
    [
        (
            (
                "llama_kv_cache: size = 100.00 MiB (8192 cells, 12 layers, 1/1 seqs)",
                "llama_kv_cache: size = 3.25 MiB ( 256 cells, 12 layers, 1/1 seqs)",
            ),
            103.25,
        ),
        (
            (
                "llama_kv_cache: size = 512.00 MiB (8192 cells, 12 layers, 1/1 seqs)",
                "llama_memory_recurrent: size = 112.50 MiB (1 cells, 48 layers)",
            ),
            624.5,
        ),
        (
            (
                "llama_kv_cache: Vulkan0 KV buffer size = 512.00 MiB",
                "llama_memory_recurrent: size = 448.00 MiB ( 1 cells, 64 layers, 1 seqs 2 rs_seq)",
            ),
            960,
        ),
        (
            (
                "llama_kv_cache_init: CUDA0 KV buffer size = 992.00 MiB",
                "llama_kv_cache_init: CPU KV buffer size = 32.00 MiB",
                "llama_new_context_with_model: KV self size = 1024.00 MiB",
            ),
            992,
        ),
        (
            (
                "llama_kv_cache: CUDA0 KV buffer size = 400.00 MiB",
                "llama_kv_cache: CUDA1 KV buffer size = 500.00 MiB",
                "llama_kv_cache: size = 900.00 MiB (8192 cells, 12 layers, 1/1 seqs)",
            ),
            500,
        ),
    ],
)
def test_the_cache_of_one_gpu(lines: tuple[str, ...], mib: float) -> None:
    """All caches and states of the card with the most; the host's part is on no card."""
    assert _holds(_cache_term("\n".join(lines)), mib)


def test_compute_buffers_of_the_host_are_on_no_card() -> None:
    log = (
        "llama_context: CUDA0 compute buffer size = 560.00 MiB\n"
        "llama_context: CUDA_Host compute buffer size = 24.00 MiB\nllama_context: n_ctx = 256"
    )
    found = answered(read_start("-", Given(), None, io.BytesIO(log.encode())))
    term = next(term for term in found.terms if term.name == "compute buffers")
    assert term.logged is not None
    assert _holds(term.logged, 560)


# ------------------------------------------------------------------- other engines


def test_a_block_by_its_bytes() -> None:
    """64 MiB of 512 KiB a token: 128 tokens."""
    log = "[TM][INFO] [BlockManager] block_size = 64 MB\n[BlockManager] max_block_count = 100"
    found = _answer(log, SEVEN)

    assert _setting(found, "cache_block_seq_len") == "128"
    assert found.predicted["kv_cache_tokens"].low == 12_800
    assert found.differences == ()


FREE = "Memory usage when calculating max tokens in paged kv cache: total: 31.84 GiB, available: {} GiB"  # noqa: E501


@pytest.mark.parametrize("release", [None, "0.20", "1.0"])
def test_the_manager_whose_line_it_is_rounds_up(release: str | None) -> None:
    """0.9 x 10.00 GiB over 65,536 B are 147,456 tokens, 4,608 blocks; a byte more is a block more.

    From 9.995 to 10.005 GiB that is 147,382.. to 147,529.. tokens: 4,606 to 4,611 blocks, where
    rounded down they would be 4,605 to 4,610.
    """
    log = FREE.format("10.00") + "\nNumber of blocks in KV cache primary pool: {}\n"
    log += "Number of tokens per block: 32."
    settings = {} if release is None else {"engine_version": release}
    for count, right in ((4605, False), (4606, True), (4611, True), (4612, False)):
        found = _answer(log.format(count), kv_cache_dtype="fp8", **settings)
        assert ("num_gpu_blocks" in found.agrees) is right, count


def test_tokens_a_block_by_their_number() -> None:
    """0.9 x 20 GiB over 512 KiB are 36,864 tokens: 576 blocks of 64, 1,152 of 32."""
    for count, block in ((576, "64"), (1152, "32")):
        log = FREE.format("20.00").replace("31.84", "39.39")
        log += f"\nNumber of blocks in KV cache primary pool: {count}"
        found = _answer(log, SEVEN)
        assert _setting(found, "block_size") == block
        assert "num_gpu_blocks" in found.agrees


@pytest.mark.parametrize(("size", "kernels"), [(1, "flashinfer"), (16, "paged")])
def test_tgis_kernels_by_their_blocks(size: int, kernels: str) -> None:
    log = f"text_generation_launcher: KV-cache blocks: 9000, size: {size}\n"
    log += f"Setting max batch total tokens to {9000 * size}"
    found = _answer(log)
    assert _setting(found, "attention_backend") == kernels
    assert found.agrees == ()  # for any model


# ------------------------------------------------- steps, states, padding layers


def _window(cells: int) -> str:
    """8,192 cells x 12 layers x 1,024 elements x 34/32 B are 102 MiB."""
    return (
        "llama_kv_cache: size = 102.00 MiB ( 8192 cells, 12 layers, 1/1 seqs), K (q8_0): 51.00 MiB,"
        " V (q8_0): 51.00 MiB\n"
        f"llama_kv_cache_iswa: creating     SWA KV cache, size = {cells} cells\n"
        f"llama_kv_cache: size = {102 * cells / 8192:.2f} MiB ({cells} cells, 12 layers, 1/1 seqs)"
    )


@pytest.mark.parametrize(("cells", "step"), [(256, "128"), (1280, "1024"), (2304, "2048")])
def test_a_step_by_the_cells_of_a_window(cells: int, step: str) -> None:
    """A window of 128 and one step, padded to 256."""
    found = _answer(_window(cells), load_model("gpt-oss-20b"))

    assert _setting(found, "ubatch_size") == step
    assert "cells_2" in found.agrees
    assert found.differences == ()


def test_a_default_step_is_not_derived() -> None:
    found = _answer(_window(768), load_model("gpt-oss-20b"))
    assert not any(named.name == "ubatch_size" for named in found.settings)
    assert "cells_2" in found.agrees


def test_a_step_that_is_given_stays() -> None:
    found = _answer(_window(256), load_model("gpt-oss-20b"), args={"ubatch_size": 512})
    assert {"cells_2", "cache_size_2"} <= {d.name for d in found.differences}


def _states(slots: int) -> str:
    """48 layers x 48 heads x 128 x 128 x 4 B, and 48 x 10,240 x 3 x 2 B, a slot; one is spare."""
    recurrent = (slots + 1) * 48 * 48 * 128 * 128 * 4 / 2**30
    conv = (slots + 1) * 48 * 10_240 * 3 * 2 / 2**30
    return (
        f"Mamba Cache is allocated. conv_state size: {conv:.2f}GB, ssm_state size:"
        f" {recurrent:.2f}GB"
    )


@pytest.mark.parametrize("slots", [3, 10, 186])
def test_slots_of_states_by_their_bytes(slots: int) -> None:
    found = _answer(_states(slots), load_model("qwen3.5-27b"))

    assert _setting(found, "max_mamba_cache_size") == str(slots)
    assert {"ssm_state_size", "conv_state_size"} <= set(found.agrees)


def test_states_that_no_number_of_slots_has_are_not_predicted() -> None:
    log = "Mamba Cache is allocated. conv_state size: 0.02GB, ssm_state size: 0.50GB"
    found = _answer(log, load_model("qwen3.5-27b"))

    assert found.predicted == {}
    assert found.differences == ()
    assert any("number of their slots is not logged" in note for note in found.notes)


def test_requests_that_are_given_are_slots_without_a_tree() -> None:
    """SGLang without its radix cache keeps a state a request."""
    found = _answer(
        "Mamba Cache is allocated. conv_state size: 0.02GB, ssm_state size: 0.50GB",
        load_model("qwen3.5-27b"),
        args={"disable_radix_cache": True},
        max_num_seqs=8,
    )
    told = found.predicted["ssm_state_size"]
    assert told.low <= 9 * 48 * 48 * 128 * 128 * 4 <= told.high  # one is spare
    assert {d.name for d in found.differences} == {"ssm_state_size"}


def test_padding_layers_of_two_releases_are_two_starts() -> None:
    """19 layers in groups of 18 lack 17; 18 in groups of 19 lack 1: no size gives both."""
    line = "Add {} padding layers, may waste at most {}% KV cache memory"
    log = line.format(17, 89.47) + "\n" + line.format(1, 5.56)
    settings = {"speculative_method": "eagle3", "num_speculative_tokens": 1}
    given = Given(model=load_model("gpt-oss-120b"), settings=settings)
    first, second = (
        answered(read_start("-", given, start, io.BytesIO(log.encode())), given) for start in (1, 2)
    )

    assert (first.starts, second.starts) == (2, 2)
    assert first.facts["padding_layers"].printed == "17"
    assert second.facts["padding_layers"].printed == "1"
    told = {d.explained_by for found in (first, second) for d in found.differences}
    assert told == {"version's rules"}


def test_padding_layers_of_two_kinds_are_one_start() -> None:
    """Groups of 4: 6 layers lack 2, and 3 lack 1."""
    line = "Add {} padding layers, may waste at most {}% KV cache memory"
    found = _answer(line.format(2, 33.33) + "\n" + line.format(1, 33.33))
    assert found.starts == 1
    assert found.facts["padding_layers"].low == 3
