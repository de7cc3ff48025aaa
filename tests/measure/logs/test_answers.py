"""What a start is answered: agreement, causes, failures, cures, memory."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import kvcalc
from kvcalc.answers.logs import LogAnswer, LogComparison
from kvcalc.core.errors import InputError, InvalidValueError
from kvcalc.measure.logs import Given, answered, compared, read_start
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from tests.measure.logs.samples import ALL


def _answer(text: str, given: Given | None = None, start: int | None = None) -> LogAnswer:
    given = given or Given()
    return answered(read_start("-", given, start, io.BytesIO(text.encode())), given)


LLAMA = Given(model=load_model("llama-3.1-8b"))
AGREES = {
    "vllm-v1": (None, {"kv_cache_tokens", "max_concurrency"}),
    "vllm-v1-refused": (None, {"needed_memory", "max_model_len_that_fits"}),
    "vllm-v1-budget": (
        None,
        {
            "requested_memory",
            "available_kv_cache",
            "suggested_to_fit_gib",
            "suggested_to_fill_gib",
        },
    ),
    "vllm-v0": (
        None,
        {"num_gpu_blocks", "num_cpu_blocks", "max_concurrency", "available_kv_cache"},
    ),
    "sglang": (
        None,
        {"k_size", "v_size", "max_total_num_tokens"},
    ),
    "llama.cpp": (
        None,
        {
            *("cache_size", "k_size", "v_size", "cells", "cache_layers", "cache_seqs"),
            *("cache_streams", "kv_buffer"),
        },
    ),
    "tensorrt-llm": (LLAMA, {"num_gpu_blocks", "kv_cache_tokens", "pool_memory"}),
    "lmdeploy": (LLAMA, {"block_memory"}),
    "tgi": (None, set()),  # its blocks times their size are its tokens, whatever the model
}


@pytest.mark.parametrize("name", AGREES)
def test_every_engine_agrees_with_its_sample(name: str) -> None:
    given, names = AGREES[name]
    found = _answer(ALL[name], given)

    assert set(found.agrees) == names
    assert found.differences == ()
    assert names <= set(found.predicted) & set(found.facts)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen2.5-0.5b"])
@pytest.mark.parametrize(
    "log",
    [
        "# GPU blocks: 1381",
        "# GPU blocks: 1381\nMaximum concurrency for 2048 tokens per request: 10.79x",
        "GPU KV cache size: 2,048 tokens\nMaximum concurrency for 2,048 tokens per request: 1.00x",
        "launcher: KV-cache blocks: 9000, size: 1\nSetting max batch total tokens to 9000",
        "KV Cache is allocated. #tokens: 4096, K size\nmax_total_num_tokens=4096, context_len=4096",
    ],
)
def test_what_agrees_for_any_model_is_no_agreement(name: str, log: str) -> None:
    """Blocks that are read from a log and multiplied back say nothing of the model."""
    found = _answer(log, Given(model=load_model(name), settings={"engine_version": None}))
    assert found.agrees == ()
    assert "figure" not in found.verdict.partition("ready.")[2].partition("Nothing")[0]


def test_one_token_more_is_a_difference() -> None:
    """The prediction is no copy of what was logged."""
    found = _answer(ALL["vllm-v1"].replace("36,832", "37,040"))
    assert [d.name for d in found.differences] == ["kv_cache_tokens"]
    assert found.verdict.endswith("and knows no cause.")


@pytest.mark.parametrize(
    ("was", "now", "name"),
    [
        ("5.058", "272.00 MiB, V", None),
        ("K (q8_0):  272.00", "K (q8_0):  271.00", "k_size"),
        ("8192 cells", "8448 cells", "cells"),
    ],
)
def test_llamacpp_differences(was: str, now: str, name: str | None) -> None:
    found = _answer(ALL["llama.cpp"].replace(was, now))
    assert ({d.name for d in found.differences} >= {name}) if name else not found.differences


def test_draft_layers_are_found() -> None:
    """The 33rd layer of an EAGLE draft, which the log does not name."""
    log = (
        "Available KV cache memory: 51.63 GiB\nGPU KV cache size: 410,128 tokens\n"
        "Maximum concurrency for 131,072 tokens per request: 3.13x"
    )
    found = _answer(log, LLAMA._replace(settings={"engine_version": "0.9.1"}))
    assert {d.explained_by for d in found.differences} == {"draft layers"}


def test_another_dtype_is_found() -> None:
    log = "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 163,840 tokens"
    found = _answer(log, LLAMA._replace(settings={"engine_version": "0.10.2"}))
    assert {d.explained_by for d in found.differences} == {"other KV dtype"}


def test_the_least_rank_is_found() -> None:
    given = LLAMA._replace(settings={"engine_version": "0.10.2", "tensor_parallel_size": 4})
    log = "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 322,000 tokens"
    found = _answer(log, given)
    assert {d.explained_by for d in found.differences} == {"minimum over ranks"}
    assert all("decides: 9.83 GiB gives these figures" in d.why for d in found.differences)


def test_an_override_is_taken() -> None:
    log = (
        "Overriding num_gpu_blocks=5120 with num_gpu_blocks_override=100\n"
        "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 1,600 tokens"
    )
    found = _answer(log, LLAMA._replace(settings={"engine_version": "0.10.2"}))
    assert found.predicted["kv_cache_tokens"].low == 1600
    assert found.agrees == ()  # 100 blocks of 16 are 1,600 tokens of any model


def test_the_token_line_of_an_old_version_is_told() -> None:
    """Needs 4: tokens x length and concurrency contradict each other, and one of them is right."""
    given = Given(
        model=load_model("qwen3.5-27b"),
        settings={"engine_version": "0.19.0", "max_model_len": 32768},
    )
    log = (
        "GPU KV cache size: 290,864 tokens\n"
        "Maximum concurrency for 32,768 tokens per request: 33.04x"
    )
    found = _answer(log, given)
    assert found.differences == ()
    assert any("contradict each other" in note for note in found.notes)


def test_a_version_that_is_not_told_is_tried() -> None:
    """Without a version the token line tells which rule printed it."""
    given = Given(model=load_model("gemma-3-1b"), settings={"max_model_len": 2048})
    log = (
        "Available KV cache memory: 25.39 GiB\nGPU KV cache size: 950,864 tokens\n"
        "Maximum concurrency for 2,048 tokens per request: 461.21x"
    )
    found = _answer(log, given)
    assert {d.explained_by for d in found.differences} == {"version's rules"}


# --------------------------------------------------------------------- failures


def test_a_refusal_comes_first_with_its_arithmetic() -> None:
    found = _answer(ALL["vllm-v1-refused"])
    assert found.failure is not None
    assert found.verdict.startswith("It did not start: one sequence of 131072 tokens does not fit")
    for part in ("18.0 GiB", "5.06 GiB", "12.94 GiB short", "36832"):
        assert part in found.failure
    assert any("--max-model-len 36832" in cure for cure in found.cures)


def test_the_longest_of_an_old_refusal_is_computed() -> None:
    """The first V1 releases name no length that fits; kvcalc does."""
    log = (
        "Available KV cache memory: 5.06 GiB\n"
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00"
        " GiB KV cache is needed, which is larger than the available KV cache memory (5.06 GiB)."
        " The estimated maximum model length is 41440."
    )
    found = _answer(log, LLAMA._replace(settings={"engine_version": "0.9.2"}))
    assert set(found.agrees) == {"needed_memory", "max_model_len_that_fits"}


def test_memory_that_others_hold() -> None:
    log = (
        "ValueError: Free memory on device (18.00/24.00 GiB) on startup is less than desired GPU"
        " memory utilization (0.9, 21.6 GiB). Decrease GPU memory utilization"
    )
    found = _answer(log)
    assert found.failure is not None
    assert "others hold 6" in found.failure or "others hold 5.99" in found.failure
    assert any(cure.startswith("--gpu-memory-utilization 0.749") for cure in found.cures)


def test_nothing_left() -> None:
    lines = "Available KV cache memory: -1.25 GiB", "No available memory for the cache blocks."
    found = _answer("\n".join(lines), LLAMA)
    assert found.failure == "nothing is left for the cache: -1.25 GiB available"


def test_sglangs_share() -> None:
    """f_min = 1 - free / card."""
    log = (
        "Load weight begin. avail mem=79.00 GB\n"
        "Load weight end. type=X, dtype=torch.bfloat16, avail mem=7.90 GB, mem usage=71.10 GB.\n"
        "ValueError: Loaded weights leave no GPU memory for the KV cache under"
        " --mem-fraction-static=0.85."
    )
    found = _answer(log)
    assert found.failure is not None
    assert "0.900" in found.failure
    assert any("--mem-fraction-static" in cure for cure in found.cures)


def test_a_negative_profile_of_sglang() -> None:
    log = (
        "max_total_tokens=131072 is larger than the profiled value -561981. Use the profiled value"
    )
    assert any("less than nothing" in cure for cure in _answer(log).cures)


def test_a_buffer_that_is_not_the_cache() -> None:
    """Needs 27: which buffer failed."""
    log = (
        "llama_kv_cache: size = 544.00 MiB (8192 cells, 32 layers, 1/1 seqs), K (q8_0): 272.00 MiB,"
        " V (q8_0): 272.00 MiB\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc"
        " failed: out of memory"
    )
    found = _answer(log)
    assert found.failure is not None
    assert "it was not the cache" in found.failure


def test_graphs_that_gave_memory_away() -> None:
    """Needs 17."""
    found = _answer(ALL["vllm-v1-budget"])
    assert any("given away" in cure for cure in found.cures)
    assert any("--kv-cache-memory-bytes 20774391808" in cure for cure in found.cures)


# ----------------------------------------------------------------- memory, starts


def test_the_card_is_held_against_its_budget() -> None:
    found = _answer(ALL["vllm-v1"], Given(settings={"gpu": load_gpu("rtx-4090")}))
    terms = {term.name: term for term in found.terms}

    assert terms["weights"].agrees
    assert terms["cache"].logged is not None
    assert terms["cache"].predicted is not None
    assert found.total_bytes == load_gpu("rtx-4090").memory_bytes


def test_levers_are_those_of_the_logged_memory() -> None:
    found = _answer(ALL["vllm-v1"])
    lever = next(lever for lever in found.levers if lever.name == "cache in fp8")
    assert lever.figures is not None
    assert abs(lever.figures.kv_cache_tokens - 2 * 36_832) <= 64


def test_starts_are_chosen() -> None:
    twice = (
        ALL["vllm-v1"] + "\n" + ALL["vllm-v1"].replace("36,832", "36,800").replace("5.06", "5.05")
    )
    last, first = _answer(twice), _answer(twice, start=1)

    assert (last.start, last.starts, first.start) == (2, 2, 1)
    assert last.facts["kv_cache_tokens"].printed == "36,800"
    assert first.facts["kv_cache_tokens"].printed == "36,832"
    assert any("2 starts" in note for note in last.notes)
    with pytest.raises(InvalidValueError, match="no start 3"):
        _answer(twice, start=3)


def test_no_engine_is_refused() -> None:
    with pytest.raises(InputError, match="no start-up line") as caught:
        _answer("hello\nworld\n")
    assert "sglang" in caught.value.hint


def test_from_python(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_text(ALL["tensorrt-llm"], encoding="utf-8")
    model = kvcalc.load_model("llama-3.1-8b")
    found = kvcalc.read_log(str(path), model=model, deployment=kvcalc.Deployment())

    assert found.file == "serve.log"
    assert "pool_memory" in found.agrees


def test_the_model_of_a_log_is_no_path() -> None:
    """A path in a log is of another machine: it is never opened."""
    log = ALL["vllm-v1"].replace("Qwen/Qwen3-8B", "/etc/passwd")
    found = _answer(log)
    assert found.model is None
    assert any("is no preset" in note for note in found.notes)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B",
        "/models/Qwen3-8B",
        "Qwen/Qwen3-8B-AWQ",
        "qwen3-8b-Q4_K_M.gguf",
        "/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/abc",
    ],
)
def test_names_of_one_model(name: str) -> None:
    assert _answer(ALL["vllm-v1"].replace("Qwen/Qwen3-8B", name)).model == "qwen3-8b"


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),  # another card, of 16 GB
        ("NVIDIA GeForce RTX 4080 SUPER", None),
    ],
)
def test_the_card_of_a_log(name: str, card: str | None) -> None:
    line = f"  Device 0: {name}, compute capability 8.6, VMM: yes\n"
    found = _answer(line + ALL["llama.cpp"])
    assert found.gpu == card
    assert any("is none that kvcalc knows" in note for note in found.notes) is (card is None)


# --------------------------------------------------------------------- comparison


def _both(first: str, second: str, given: Given | None = None) -> LogComparison:
    reads = [
        read_start("-", given or Given(), None, io.BytesIO(t.encode())) for t in (first, second)
    ]
    return compared(*reads)


def test_nothing_changed() -> None:
    found = _both(ALL["vllm-v1"], ALL["vllm-v1"])
    assert found.changed == ()
    assert found.tokens_gained == 0


def test_what_a_setting_cost() -> None:
    """Needs 18: another cache dtype, the same memory: the tokens are the setting's alone."""
    second = (
        ALL["vllm-v1"]
        .replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8")
        .replace("36,832", "73,664")
        .replace("1.12x", "2.25x")
    )
    found = _both(ALL["vllm-v1"], second)
    first = found.changed[0]

    assert found.tokens_gained == 73_664 - 36_832
    assert first.name == "kv_cache_dtype"
    assert first.tokens is not None
    assert abs(first.tokens - 36_832) <= 32
    assert sum(row.tokens or 0 for row in found.changed) == found.tokens_gained


def test_what_memory_cost() -> None:
    """The parts add up to the difference of the logged tokens."""
    second = (
        ALL["vllm-v1"].replace("15.2683", "16.2683").replace("5.06 GiB", "4.06 GiB")
        .replace("36,832", "29,552").replace("1.12x", "0.90x")
    )  # fmt: skip
    found = _both(ALL["vllm-v1"], second)
    rows = {row.name: row for row in found.changed}

    assert rows["weights_memory"].tokens is not None
    assert abs(rows["weights_memory"].tokens + 2**30 // 147_456) <= 32
    assert sum(row.tokens or 0 for row in found.changed) == found.tokens_gained == 29_552 - 36_832


def test_printing_with_other_digits_is_no_change() -> None:
    second = ALL["vllm-v1"].replace("15.2683 GiB", "15.27 GiB")
    assert _both(ALL["vllm-v1"], second).changed == ()
