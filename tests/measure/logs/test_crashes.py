"""Starts that end: told apart from the next, with the error that came first."""

from __future__ import annotations

import io

import pytest

from kvcalc.answers.logs import LogAnswer
from kvcalc.measure.logs import Given, answered, compared, read_start, starts_of
from kvcalc.models import load_model

INIT = (
    "(EngineCore_DP0 pid={pid}) INFO 10-03 08:00:10 [core.py:75] Initializing a V1 LLM engine"
    " (v0.10.2) with config: model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16,"
    " max_seq_len=32768, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,"
    " kv_cache_dtype=auto"
)
MEMORY = "(EngineCore_DP0 pid={pid}) INFO [gpu_worker.py:298] Available KV cache memory: {size} GiB"
TOKENS = "(EngineCore_DP0 pid={pid}) INFO [kv_cache_utils.py:864] GPU KV cache size: {n} tokens"
STOPPED = "(EngineCore_DP0 pid=71) ERROR [core.py:708] EngineCore failed to start."
LLAMA = Given(model=load_model("llama-3.1-8b"))


def _first(pid: int = 71) -> list[str]:
    return [INIT.format(pid=pid), MEMORY.format(pid=pid, size="24.61")]


def _second(pid: int = 171) -> list[str]:
    return [
        *(INIT.format(pid=pid), MEMORY.format(pid=pid, size="30.00")),
        TOKENS.format(pid=pid, n="245,760"),
    ]


def _without_pids(lines: list[str]) -> list[str]:
    return [line.partition(") ")[2] for line in lines]


def _answer(lines: list[str], given: Given | None = None, start: int | None = None) -> LogAnswer:
    given = given or Given()
    stream = io.BytesIO("\n".join(lines).encode())
    return answered(read_start("-", given, start, stream), given)


@pytest.mark.parametrize(
    "between", [[], ["RuntimeError: NCCL error"], [STOPPED, "RuntimeError: NCCL error"]]
)
@pytest.mark.parametrize("pids", [True, False])
def test_a_start_after_a_crash(between: list[str], pids: bool) -> None:
    """The memory of a start that crashed is never held against the tokens of the next."""
    lines = [*_first(), *between, *_second()]
    found = _answer(lines if pids else _without_pids(_first()) + between + _without_pids(_second()))

    assert (found.start, found.starts) == (2, 2)
    assert "kv_cache_tokens" in found.agrees
    assert found.differences == ()
    assert found.facts["available_kv_cache"].said == 1


def test_another_process_of_the_same_name_is_of_the_next_start() -> None:
    """Where the first line of the second start is lost, its pid tells."""
    found = starts_of(enumerate([*_first(), *_second()[1:]], 1))
    assert len(found) == 2


def test_workers_of_one_name_are_one_start() -> None:
    """V0's workers share a name and differ by their pids."""
    lines = [
        f"(VllmWorkerProcess pid={pid}) INFO Available KV cache memory: 4.0{pid} GiB"
        for pid in (1, 2, 3)
    ]
    (found,) = starts_of(enumerate(lines, 1))
    assert found.facts()["available_kv_cache"].printed == "4.01 GiB"


def test_data_parallel_engines_without_a_prefix_are_one_start() -> None:
    init = INIT.partition(") ")[2].replace("data_parallel_size=1", "data_parallel_size=2")
    assert len(starts_of(enumerate([init, init, MEMORY.format(pid=1, size="5.00")], 1))) == 1


def test_a_context_of_another_size_is_of_the_next_start() -> None:
    """llama-server that was started anew, of whose lines only those of the context are here."""
    line = "llama_kv_cache: size = {m}.00 MiB ({n} cells, 32 layers, 1/1 seqs)"
    lines = [
        *("llama_context: n_ctx = 8192", line.format(m=1024, n=8192)),
        *("llama_context: n_ctx = 32768", line.format(m=4096, n=32768)),
    ]
    found = _answer(lines, LLAMA)

    assert found.starts == 2
    assert "cache_size" in found.agrees
    assert "cache_size_2" not in found.facts


def test_slots_and_drafts_are_no_starts() -> None:
    cache = "llama_kv_cache: size = 16.00 MiB (512 cells, 8 layers, 1/1 seqs)"
    lines = [
        *("loading draft model", "llama_context: n_ctx = 1024", cache, "slot: n_ctx = 512"),
        *("llama_context: n_ctx = 512", cache),
    ]
    assert len(starts_of(enumerate(lines, 1))) == 1


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (["RuntimeError: NCCL error: unhandled"], "RuntimeError: NCCL error: unhandled"),
        (["Traceback (most recent call last):", "ImportError: libx.so"], "ImportError: libx.so"),
        (
            [STOPPED, "(EngineCore_DP0 pid=71) ERROR ValueError: Model Foo is not supported."],
            "ValueError: Model Foo is not supported",
        ),
        (
            ["x.y.OwnError: why", "RuntimeError: Engine core initialization failed. See root"],
            "x.y.OwnError: why",
        ),
        (["(core.py:708] EngineCore failed to start: no room"], "EngineCore failed to start: no"),
    ],
)
def test_the_error_that_came_first_is_told(behind: list[str], told: str) -> None:
    found = _answer([*_first(), *behind])

    assert found.failure is not None
    assert found.failure.startswith(told)
    assert found.verdict.startswith(f"It did not start: {told}")


def test_an_error_that_ended_nothing_is_none() -> None:
    """A start that went on, and one that served and then failed a request."""
    error = "ModuleNotFoundError: No module named 'extra'"
    went_on = _answer([INIT.format(pid=71), error, *_second(71)[1:]])
    served = _answer([*_second(71), "ValueError: the request is too long"])

    assert went_on.failure is served.failure is None
    assert went_on.verdict.startswith("It started")


def test_an_error_is_cut_with_an_ellipsis() -> None:
    found = _answer([*_first(), "RuntimeError: " + "x" * 5000 + "\x1b[2J"])
    assert found.failure is not None
    assert found.failure.endswith("…")
    assert len(found.failure) <= 400


@pytest.mark.parametrize(
    "line",
    [
        "KV Cache is allocated. #tokens: 1000, K size: 1.00 GB, V size: 1.00 GB",
        "KV Cache is allocated. #tokens: 1000, KV size: 1.00 GB",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 631",
        "`--kv-cache-memory=1000` (9.31 GiB) to fully utilize gpu memory",
    ],
)
def test_a_cache_that_was_sized(line: str) -> None:
    """One line that is told of a cache that is there is enough."""
    found = _answer([line])
    assert found.outcome == "sized"
    assert "the cache was sized; the log ends before the server is ready" in found.verdict


def test_a_cache_that_was_not() -> None:
    assert _answer(_first()).verdict.startswith("The log ends before the cache was sized.")


def test_a_request_that_is_refused_ends_no_start() -> None:
    line = (
        "RequestError: The max KV cache length of input sequences (900) exceeds the KV cache"
        " manager's maximum supported length (512)."
    )
    found = _answer([line])
    assert found.failure is None
    assert found.verdict.startswith("It serves, and refused a request: 900 tokens")


def test_a_manager_that_is_none_is_passed_over() -> None:
    line = "[MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache ({n})."
    found = _answer([line.format(size="9.00", n=1024), line.format(size="0.00", n=0)])
    assert found.facts["kv_cache_tokens"].printed == "1024"


def _both(first: list[str], second: list[str]) -> str:
    reads = [
        read_start("-", Given(), None, io.BytesIO("\n".join(lines).encode()))
        for lines in (first, second)
    ]
    return compared(*reads).verdict


def test_a_comparison_says_first_what_ended() -> None:
    out = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has a total"
        " capacity of 44.39 GiB of which 1.20 GiB is free. Of the allocated memory 40.50 GiB is"
        " allocated by PyTorch, and 0.20 GiB is reserved by PyTorch but unallocated."
    )
    good = _second()
    left = [INIT.format(pid=1), MEMORY.format(pid=1, size="-3.25"), ("No available memory for the"
            " cache blocks.")]  # fmt: skip

    assert _both(good, [*good, out]).startswith("The second ran out of memory after the cache")
    assert _both(good, left).startswith("The second did not start: nothing is left")
    assert _both([*_first(), "RuntimeError: x"], good).startswith("The first did not start: R")
    assert _both(good, _first()).startswith("The second ends before the cache was sized.")


def test_a_comparison_counts_in_words() -> None:
    second = _second()
    second[0] = second[0].replace("max_seq_len=32768", "max_seq_len=16384")
    assert _both(_second(), second) == "The tokens are the same; 1 setting or figure differs."


def test_two_engines_are_not_counted_part_by_part() -> None:
    """No change of one engine's memory is the cause of another's tokens."""
    other = [
        (
            "[TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=9.00 GB,"
            " mem usage=15.08 GB."
        ),
        "[TP0] max_total_num_tokens=100000, chunked_prefill_size=8192, context_len=32768",
    ]
    first = [*_second(), "Model loading took 32.00 GiB memory and 3 seconds"]
    reads = [
        read_start("-", LLAMA, None, io.BytesIO("\n".join(lines).encode()))
        for lines in (first, other)
    ]
    found = compared(*reads)

    assert next(row for row in found.changed if row.name == "engine").second == "sglang"
    assert all(row.tokens is None for row in found.changed)
    assert found.verdict == "145,760 tokens lost."


def test_a_text_that_names_only_what_is_unallocated() -> None:
    """An out-of-memory text is recognised by the allocator's figures too."""
    line = "320 MiB asked, card free 287 MiB; 627.40 MiB is reserved by PyTorch but unallocated"
    (found,) = starts_of([(1, line)])
    assert found.engine == "pytorch"
    assert found.oom == [line]
