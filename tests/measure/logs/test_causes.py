"""Causes: what was given first, nothing that the log rules out; one figure alone is a may be."""

from __future__ import annotations

import io
from typing import Any

import pytest

from kvcalc.answers.logs import LogAnswer
from kvcalc.measure.logs import Given, answered, read_start
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from tests.measure.logs.samples import ALL

LLAMA = load_model("llama-3.1-8b")
RANKS = "\n".join(
    (
        (
            "(EngineCore pid=7) INFO [core.py:99] Initializing a V1 LLM engine (v0.20.2) with"
            " config: model='meta-llama/Llama-3.1-70B-Instruct', speculative_config=None,"
            " dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=4,"
            " pipeline_parallel_size=1, data_parallel_size=1, kv_cache_dtype=auto"
        ),
        *(
            f"(Worker_TP{rank} pid={rank}) INFO [gpu_worker.py:440] Available KV cache memory:"
            f" 31.{size} GiB"
            for rank, size in enumerate(("20", "05", "15", "20"))
        ),
        "(EngineCore pid=7) INFO [kv_cache_utils.py:1708] GPU KV cache size: 406,976 tokens",
        (
            "(EngineCore pid=7) INFO [kv_cache_utils.py:1713] Maximum concurrency for 32,768 tokens"
            " per request: 12.42x"
        ),
    )
)
"""31.05 GiB over 81,920 B a token on each of four ranks are 25,436 blocks of 16."""


def _answer(text: str, given: Given | None = None, **settings: Any) -> LogAnswer:
    given = (given or Given())._replace(settings=settings)
    return answered(read_start("-", given, None, io.BytesIO(text.encode())), given)


def _causes(found: LogAnswer) -> set[str | None]:
    return {d.explained_by for d in found.differences}


@pytest.mark.parametrize(
    ("name", "value", "logged"),
    [
        ("tensor_parallel_size", 8, "4"),
        ("tensor_parallel_size", 2, "4"),
        ("pipeline_parallel_size", 2, "1"),
        ("kv_cache_dtype", "fp8", "auto"),
        ("max_model_len", 8192, "32768"),
    ],
)
def test_what_is_given_against_the_log_is_the_cause(name: str, value: Any, logged: str) -> None:
    found = _answer(RANKS, **{name: value})

    assert _causes(found) == {f"given {name}"}
    assert any(f"{name} {value} is given, where the log says {logged}" in n for n in found.notes)
    assert f"explained by given {name}." in found.verdict


def test_two_things_given_are_both_named() -> None:
    found = _answer(RANKS, tensor_parallel_size=8, kv_cache_dtype="fp8")
    assert _causes(found) == {"given kv_cache_dtype, given tensor_parallel_size"} or _causes(
        found
    ) == {"given tensor_parallel_size, given kv_cache_dtype"}


def test_another_model_than_the_logs() -> None:
    found = _answer(RANKS, Given(model=LLAMA))

    assert _causes(found) == {"given model"}
    assert any("where the log says llama-3.1-70b" in note for note in found.notes)


def test_the_same_spelled_otherwise_is_no_contradiction() -> None:
    log = RANKS.replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8").replace("406,976", "813,952")
    found = _answer(log.replace("12.42", "24.84"), kv_cache_dtype="fp8_e4m3")
    assert not any("is given, where" in note for note in found.notes)
    assert found.differences == ()


def test_a_model_of_another_architecture() -> None:
    """The name of a log may be a path; its architecture is not."""
    log = (
        "[TP0] Load weight end. type=GptOssForCausalLM, dtype=torch.bfloat16, avail mem=60.00 GB\n"
        "[TP0] KV Cache is allocated. #tokens: 100000, K size: 1.14 GB, V size: 1.14 GB"
    )
    found = _answer(log, Given(model=LLAMA))
    assert _causes(found) == {"given model"}
    assert any("GptOssForCausalLM" in d.why for d in found.differences)
    assert _answer(log, Given(model=load_model("gpt-oss-20b"))).notes == ()


@pytest.mark.parametrize(
    "config", ["tensor_parallel_size=1, ", "tensor_parallel_size=1, kv_cache_dtype=auto, "]
)
def test_what_the_log_states_is_no_cause(config: str) -> None:
    """Four times the tokens of one GPU would be four GPUs, and the log says that it is one."""
    log = (
        "Initializing a V1 LLM engine (v0.10.2) with config: model='meta-llama/Llama-3.1-8B',"
        f" {config}max_seq_len=32768\nAvailable KV cache memory: 24.61 GiB\n"
        "GPU KV cache size: 806,496 tokens"
    )
    assert _causes(_answer(log)) == {None}
    assert _causes(_answer(log.replace("tensor_parallel_size=1, ", ""))) == {"tensor parallel"}


def test_no_draft_where_the_log_says_none() -> None:
    lines = (
        (
            "Initializing a V1 LLM engine (v0.9.1) with config: model='meta-llama/Llama-3.1-8B',"
            " {}tensor_parallel_size=1, max_seq_len=131072"
        ),
        "Available KV cache memory: 51.63 GiB\nGPU KV cache size: 410,128 tokens",
    )
    log = "\n".join(lines)
    assert _causes(_answer(log.format(""))) == {"draft layers"}
    assert _causes(_answer(log.format("speculative_config=None, "))) == {None}


def test_all_ranks_are_here() -> None:
    """Where each rank's memory is logged, no rank has less than the least of them."""
    log = RANKS.replace("406,976", "204,000").replace("12.42", "6.23")
    assert _causes(_answer(log)) == {None}


def test_one_figure_is_a_may_be() -> None:
    """Among so many causes one gives a single figure by chance."""
    one = "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 163,840 tokens"
    found = _answer(one, Given(model=LLAMA), engine_version="0.10.2")
    assert found.verdict.endswith("What differs may be explained by other KV dtype.")
    assert all(d.why.startswith("may be: ") for d in found.differences)


def test_two_figures_are_enough() -> None:
    """A need and a length that fits are two; tokens and their concurrency are one."""
    two = (
        "ValueError: To serve at least one request with the models's max seq len (131072), (8.0 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (5.06 GiB). The"
        " estimated maximum model length is 82896."
    )
    found = _answer(two, Given(model=LLAMA), engine_version="0.9.2")
    assert found.verdict.endswith("What differs is explained by other KV dtype.")
    again = (
        "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 163,840 tokens\n"
        "Maximum concurrency for 32,768 tokens per request: 5.00x"
    )
    found = _answer(again, Given(model=LLAMA), engine_version="0.10.2", max_model_len=32768)
    assert "may be explained by other KV dtype" in found.verdict


def test_what_is_missing_is_of_the_logs_own_figures() -> None:
    """16 GiB by kvcalc, 8 GiB by the log: what is short is short of the log's."""
    log = (
        "ValueError: To serve at least one request with the models's max seq len (131072), (8.0 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (5.00 GiB)."
    )
    found = _answer(log, Given(model=LLAMA), engine_version="0.9.2")
    assert found.failure is not None
    assert "2.99 GiB to 3.01 GiB short" in found.failure


def test_no_lever_offers_the_cause() -> None:
    log = "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 163,840 tokens"
    found = _answer(log, Given(model=LLAMA), engine_version="0.10.2")
    assert found.levers
    assert not any("fp8" in lever.name for lever in found.levers)


def test_the_release_is_of_the_line_that_dates_it() -> None:
    """Lines of other functions of the same file stand elsewhere in it."""
    log = (
        "INFO [kv_cache_utils.py:1152] Add 2 padding layers, may waste at most 9.09% KV cache"
        " memory\nINFO [kv_cache_utils.py:1708] GPU KV cache size: 1,024 tokens"
    )
    assert _answer(log, Given(model=LLAMA)).engine_version == "0.20.1"


def test_a_cause_of_two_settings() -> None:
    """A state's block grows with fewer bytes a token and with prefix caching."""
    model = load_model("qwen3.5-27b")
    from kvcalc.core.capacity import logged_figures
    from kvcalc.core.deployment import Deployment
    from kvcalc.engines import plan

    made = plan(
        model,
        Deployment(
            engine="vllm", engine_version="0.20.2", kv_cache_dtype="fp8",
            enable_prefix_caching=True, max_model_len=131072, speculative_method="mtp",
            num_speculative_tokens=2,
        ),
    )  # fmt: skip
    size = 30 * 2**30
    figures = logged_figures(made, size)
    log = (
        "Initializing a V1 LLM engine (v0.20.2) with config: model='Qwen/Qwen3.5-27B',"
        " max_seq_len=131072, tensor_parallel_size=1\n"
        f"Setting attention block size to {made.block_size} tokens to ensure\n"
        "Available KV cache memory: 30.00 GiB\n"
        f"GPU KV cache size: {figures.kv_cache_tokens:,} tokens\n"
        f"Maximum concurrency for 131,072 tokens per request: {figures.max_concurrency:.2f}x"
    )
    found = _answer(log)
    assert "other KV dtype" in str(_causes(found))
    assert "draft layers" in str(_causes(found))


# ------------------------------------------------------------------------- the card


def test_a_card_that_it_was_not() -> None:
    """32.89 GiB of weights and 31.05 GiB of cache were on no card of 24 GiB."""
    log = RANKS + "\n(Worker_TP0 pid=0) Model loading took 32.89 GiB memory and 3 seconds"
    found = _answer(log, gpu=load_gpu("rtx-3090"))
    assert "It was not on rtx-3090: weights and cache come to 63.93 GiB" in found.verdict
    assert "It was not on" not in _answer(log, gpu=load_gpu("h200")).verdict


def test_what_is_outside_is_in_the_verdict() -> None:
    found = _answer(ALL["vllm-v1"], gpu=load_gpu("h100-80gb"))
    names = {term.name for term in found.terms if term.agrees is False}
    assert names
    assert all(name in found.verdict for name in names)


# --------------------------------------------------------------------------- shares


def test_a_share_with_two_decimals_is_a_range() -> None:
    """V0 prints 0.785 as 0.78: the budget that it logs is of the whole share."""
    log = (
        "the current vLLM instance can use total_gpu_memory (40.00GiB) x gpu_memory_utilization"
        " (0.78) = 31.38GiB\nmodel weights take 5.00GiB; non_torch_memory takes 0.10GiB; PyTorch"
        " activation peak memory takes 1.00GiB; the rest of the memory reserved for KV Cache is"
        " 25.28GiB."
    )
    found = _answer(log)
    assert "requested_memory" in found.agrees
    assert found.differences == ()


def test_a_share_of_v1_is_exact() -> None:
    log = (
        "Free memory on device (39.00/40.00 GiB) on startup. Desired GPU memory utilization is"
        " (0.78, 31.38 GiB). Actual usage is 5.0 GiB for weight, 1.0 GiB for peak activation, 0.1"
        " GiB for non-torch memory, and 0.2 GiB for CUDAGraph memory."
    )
    assert "requested_memory" in {d.name for d in _answer(log).differences}


def test_one_size_in_more_digits_is_no_spread() -> None:
    log = (
        "Model loading took 8.5107 GiB and 3 seconds\nFree memory on device (39.00/40.00 GiB) on"
        " startup. Desired GPU memory utilization is (0.9, 36.0 GiB). Actual usage is 8.51 GiB for"
        " weight, 1.0 GiB for peak activation, 0.1 GiB for non-torch memory, and 0.2 GiB for"
        " CUDAGraph memory."
    )
    fact = _answer(log).facts["weights_memory"]
    assert (fact.printed, fact.spread) == ("8.5107 GiB", None)


# --------------------------------------------------------------------------- cures


def test_weights_that_leave_nothing() -> None:
    log = (
        "the current vLLM instance can use total_gpu_memory (14.74GiB) x gpu_memory_utilization"
        " (0.90) = 13.27GiB\nmodel weights take 14.99GiB; non_torch_memory takes 0.05GiB; PyTorch"
        " activation peak memory takes 1.21GiB; the rest of the memory reserved for KV Cache is"
        " -2.98GiB.\nValueError: No available memory for the cache blocks."
    )
    found = _answer(log)
    assert found.failure is not None
    assert "the weights alone (14.99 GiB) are more than the 13.27 GiB" in found.failure
    assert any("--tensor-parallel-size 2" in cure for cure in found.cures)
    assert any("no --gpu-memory-utilization" in cure for cure in found.cures)


def test_a_share_that_would_do() -> None:
    log = (
        "Free memory on device (79.00/80.00 GiB) on startup. Desired GPU memory utilization is"
        " (0.5, 40.0 GiB).\nAvailable KV cache memory: -4.00 GiB\n"
        "ValueError: No available memory for the cache blocks."
    )
    found = _answer(log)
    assert any("--gpu-memory-utilization above 0.551" in cure for cure in found.cures)
    assert any("4 GiB are missing" in cure for cure in found.cures)


def test_sglangs_share_stands_among_its_arguments() -> None:
    log = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, mem_fraction_static=0.85)\n"
        "Load weight begin. avail mem=20.00 GB\nLoad weight end. type=X, dtype=torch.bfloat16,"
        " avail mem=2.00 GB, mem usage=18.00 GB.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    )
    found = _answer(log)
    assert found.failure is not None
    assert "--mem-fraction-static 0.85" in found.failure


def test_window_pools_are_no_ranks() -> None:
    log = (
        "[TP0] KV Cache is allocated. #tokens: 100000, K size: 1.14 GB, V size: 1.14 GB\n"
        "[TP0] KV Cache is allocated. #tokens: 80000, K size: 0.92 GB, V size: 0.92 GB\n"
        "[TP0] full_max_total_num_tokens=100000, swa_max_total_num_tokens=80000\n"
        "max_total_num_tokens=100000, chunked_prefill_size=8192, context_len=131072"
    )
    found = _answer(log, Given(model=load_model("gpt-oss-20b")))
    assert found.facts["max_total_num_tokens"].spread is None
    assert "max_total_num_tokens" in found.agrees
    assert found.differences == ()


def test_a_share_that_should_have_been_enough() -> None:
    """60 of 80 GiB are free after loading: 0.85 leaves something, and it failed all the same."""
    log = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, mem_fraction_static=0.85)\n"
        "Load weight begin. avail mem=80.00 GB\nLoad weight end. type=X, dtype=torch.bfloat16,"
        " avail mem=60.00 GB, mem usage=20.00 GB.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    )
    found = _answer(log)
    assert found.failure is not None
    assert "though by what was free 0.25" in found.failure
    assert any("--mem-fraction-static above 0.85" in cure for cure in found.cures)
