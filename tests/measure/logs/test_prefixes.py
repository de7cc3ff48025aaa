"""What stands before a line is taken off, whoever put it there."""

from __future__ import annotations

import json

import pytest

from kvcalc.answers.logs import Fact
from kvcalc.measure.logs.lines import strip
from kvcalc.measure.logs.starts import Start, starts_of

TEXT = "Available KV cache memory: 5.06 GiB"
PREFIXES = {
    "vllm": "INFO 06-23 14:21:48 [gpu_worker.py:232] ",
    "vllm v0": "INFO 06-23 14:21:48 worker.py:241] ",
    "process": "(EngineCore_DP0 pid=71) INFO 10-03 08:00:00 [gpu_worker.py:298] ",
    "worker": "(Worker_TP0 pid=9) INFO 10-03 08:00:00 [gpu_worker.py:298] ",
    "worker without pid": "(Worker_TP1) ",
    "expert": "(Worker_DP1_EP1 pid=12) ",
    "old worker": "(VllmWorkerProcess pid=88) INFO 08-01 10:00:00 worker.py:1] ",
    "ranked worker": "(VllmWorker rank=1 pid=77) INFO 04-01 10:00:00 [gpu_worker.py:1] ",
    "ray": "(RayWorkerWrapper pid=12, ip=10.0.0.1) INFO 07-01 10:00:00 [gpu_worker.py:1] ",
    "docker": "2025-10-03T08:00:00.123456789Z ",
    "kubernetes": "2025-10-03T08:00:00.123456789Z stderr F ",
    "kubectl": "[pod/llm-0/vllm] ",
    "compose": "vllm-1  | INFO 10-03 08:00:00 [gpu_worker.py:298] ",
    "journald": "Nov 30 15:34:38 node-7 vllm[123]: ",
    "loki": '2025-10-03T08:00:00Z {app="vllm", pod="x-1"} ',
    "sglang": "[2025-07-22 10:00:00 TP0] ",
    "sglang ranks": "[2025-07-22 10:00:00 DP0 TP0 EP0] ",
    "sglang bare": "[TP3] ",
    "llama.cpp": "0.00.351.243 I ",
    "systemd llama": "llama[1]: ",
    "mpi": "[1,0]<stdout>: ",
    "all at once": "web-1 | 2025-10-03T08:00:00Z (Worker_TP0 pid=9) INFO 10-03 08:00:00 [a.py:1] ",
    "colour": "\x1b[1;36m(EngineCore_DP0 pid=71)\x1b[0;0m \x1b[32mINFO\x1b[0m 10-03 08:00:00"
    " [a.py:2] ",
    "colour escaped": "\\u001b[1;36m(EngineCore pid=71)\\u001b[0;0m ",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefix_is_taken_off(name: str) -> None:
    assert strip(PREFIXES[name] + TEXT).text == TEXT


@pytest.mark.parametrize("key", ["log", "message", "msg"])
def test_json_lines(key: str) -> None:
    line = json.dumps({key: PREFIXES["colour"] + TEXT + "\n", "stream": "stderr", "time": "t"})
    assert strip(line).text == TEXT


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("worker", "Worker_TP0"),
        ("ranked worker", "VllmWorker rank=1"),
        ("ray", "RayWorkerWrapper 12 10.0.0.1"),
        ("sglang ranks", "DP0 TP0 EP0"),
        ("docker", ""),
    ],
)
def test_the_process_is_kept(prefix: str, rank: str) -> None:
    assert strip(PREFIXES[prefix] + TEXT).rank == rank


def test_a_restarted_process_keeps_its_name() -> None:
    """Pids change, ranks do not."""
    first, second = (f"(Worker_TP0 pid={pid}) {TEXT}" for pid in (7, 8))
    assert strip(first).rank == strip(second).rank


def test_repeated_lines_count() -> None:
    found = strip(f"{PREFIXES['ray']}{TEXT} [repeated 30x across cluster]")
    assert found.times == 30


def _only(text: str) -> dict[str, Fact]:
    starts = starts_of(enumerate(text.split("\n"), 1))
    assert len(starts) == 1, [(s.engine, s.first) for s in starts]
    return starts[0].facts()


def _starts(*lines: str) -> list[Start]:
    return starts_of(enumerate(lines, 1))


def test_the_rank_with_the_least_memory_counts() -> None:
    memory = ("8.30", "8.11", "8.25", "8.30")
    lines = [
        f"(Worker_TP{n} pid={n}) Available KV cache memory: {m} GiB" for n, m in enumerate(memory)
    ]
    fact = _only("\n".join([*lines, "GPU KV cache size: 178,880 tokens"]))["available_kv_cache"]

    assert (fact.printed, fact.said, fact.line) == ("8.11 GiB", 4, 2)
    assert fact.spread == ("8.11 GiB", "8.30 GiB")


def test_ranks_without_names_count_too() -> None:
    lines = [f"Available KV cache memory: {m} GiB" for m in ("8.30", "8.11")]
    assert _only("\n".join(lines))["available_kv_cache"].printed == "8.11 GiB"


def test_the_rank_that_loads_the_most_counts() -> None:
    lines = [
        f"(Worker_TP{n}) Model loading took {m} GiB and 1 seconds" for n, m in ((0, 7), (1, 8))
    ]
    assert _only("\n".join(lines))["weights_memory"].printed == "8 GiB"


def test_starts_are_told_apart_by_their_first_line() -> None:
    banner = "vLLM API server version 0.10.2"
    sized = "GPU KV cache size: 1,024 tokens"
    found = _starts(banner, TEXT, sized, banner, TEXT.replace("5.06", "4.00"), sized)

    assert [s.facts()["available_kv_cache"].printed for s in found] == ["5.06 GiB", "4.00 GiB"]
    assert [(s.first, s.last) for s in found] == [(1, 3), (4, 6)]


def test_starts_without_a_first_line_are_told_apart_by_the_memory() -> None:
    """A memory line after a token line is of the next start: the two are never mixed."""
    sized = "GPU KV cache size: 1,024 tokens"
    found = _starts(TEXT, sized, TEXT.replace("5.06", "4.00"), sized.replace("1,024", "900"))

    pairs = [
        (s.facts()["available_kv_cache"].printed, s.facts()["kv_cache_tokens"].printed)
        for s in found
    ]
    assert pairs == [("5.06 GiB", "1,024"), ("4.00 GiB", "900")]


def test_a_crash_loop_is_many_starts() -> None:
    refused = "ValueError: No available memory for the cache blocks. Try increasing"
    found = _starts(*[TEXT, refused] * 5)
    assert len(found) == 5
    assert all("nothing_left" in s.flags for s in found)


def test_data_parallel_engines_are_one_start() -> None:
    """Each engine core of a start prints its own lines; a second of them is no second start."""
    lines = []
    for rank in range(4):
        lines += [
            f"(EngineCore_DP{rank} pid={rank}) {TEXT}",
            f"(EngineCore_DP{rank} pid={rank}) GPU KV cache size: 1,0{rank}4 tokens",
        ]
    fact = _only("\n".join(lines))["kv_cache_tokens"]
    assert (fact.printed, fact.said) == ("1,004", 4)


def test_containers_are_read_apart() -> None:
    """Two servers whose lines are mixed keep their own figures."""
    found = _starts(
        f"a-1 | {TEXT}",
        "b-1 | Available KV cache memory: 9.00 GiB",
        "a-1 | GPU KV cache size: 1,024 tokens",
        "b-1 | GPU KV cache size: 2,048 tokens",
    )
    pairs = {
        s.source: (s.facts()["available_kv_cache"].printed, s.facts()["kv_cache_tokens"].printed)
        for s in found
    }
    assert pairs == {"a-1": ("5.06 GiB", "1,024"), "b-1": ("9.00 GiB", "2,048")}


def test_engines_are_read_apart() -> None:
    """Lines of two engines in one stream, without any prefix."""
    found = _starts(
        TEXT,
        "llama_kv_cache: size = 10.00 MiB ( 256 cells, 2 layers, 1/1 seqs)",
        "GPU KV cache size: 1,024 tokens",
    )
    assert {s.engine for s in found} == {"vllm", "llama.cpp"}


def test_two_lines_run_together() -> None:
    """Two ranks that write at once leave no line break between them."""
    both = f"(Worker_TP0 pid=1) {TEXT}(Worker_TP1 pid=2) Available KV cache memory: 4.00 GiB"
    assert _only(both)["available_kv_cache"].printed == "4.00 GiB"


def test_a_refusal_over_two_lines() -> None:
    found = _only(
        "ValueError: To serve at least one request with the models's max seq len (4096),\n"
        "0.11 GiB KV cache is needed, which is larger than the available KV cache memory (0.07"
        " GiB). Based on the available memory, the estimated maximum model length is 2624."
    )
    assert {n: f.printed for n, f in found.items()} == {
        "max_model_len": "4096",
        "needed_memory": "0.11 GiB",
        "available_kv_cache": "0.07 GiB",
        "max_model_len_that_fits": "2624",
    }


def test_draft_pools_are_numbered_by_rank() -> None:
    line = "[TP{r}] KV Cache is allocated. #tokens: {n}, K size: {k} GB, V size: {k} GB"
    found = _only("\n".join(
        line.format(r=r, n=n, k=k) for n, k in ((100, "7.63"), (90, "2.38")) for r in (0, 1)
    ))  # fmt: skip
    assert found["k_size"].printed == "7.63 GiB"
    assert found["k_size_2"].printed == "2.38 GiB"
    assert "k_size_3" not in found
