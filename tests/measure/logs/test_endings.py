"""What ends a start or a server: errors of its own, and signals that others tell of."""

from __future__ import annotations

import io

import pytest

from kvcalc.answers.logs import LogAnswer
from kvcalc.measure.logs import Given, answered, compared, read_start
from kvcalc.measure.logs.errors import signal_of

INIT = (
    "(EngineCore pid=71) INFO 10-03 08:00:10 [core.py:99] Initializing a V1 LLM engine (v0.20.2)"
    " with config: model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16,"
    " max_seq_len=32768, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,"
    " kv_cache_dtype=auto"
)
MEMORY = "(EngineCore pid=71) INFO [gpu_worker.py:440] Available KV cache memory: 24.61 GiB"
TOKENS = "(EngineCore pid=71) INFO [kv_cache_utils.py:1708] GPU KV cache size: 201,600 tokens"
SERVED = [INIT, MEMORY, TOKENS]
DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace"
    " (above) for the root cause."
)
CUDA = "(EngineCore pid=71) ERROR [core.py:900] RuntimeError: CUDA error: an illegal memory access"


def _answer(*lines: str) -> LogAnswer:
    return answered(read_start("-", Given(), None, io.BytesIO("\n".join(lines).encode())))


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        ([CUDA, DEAD], "RuntimeError: CUDA error: an illegal memory access (line 4)"),
        (["IndexError: x", DEAD], "IndexError: x (line 4)"),
        (
            [
                "ValueError: of a request",
                "(EngineCore pid=71) ERROR [core.py:900] EngineCore encountered a fatal error.",
                "AssertionError: y",
                DEAD,
            ],
            "AssertionError: y (line 6)",
        ),
        (["Fatal Python error: Segmentation fault"], "Segmentation fault (line 4)"),
        (["Killed"], "Killed (line 4)"),
        ([DEAD], DEAD.rstrip(".") + " (line 4)"),
    ],
)
def test_a_server_that_died_later(behind: list[str], told: str) -> None:
    found = _answer(*SERVED, *behind)

    assert found.verdict.startswith(f"It started, and died later: {told}.")
    assert found.failure == told
    assert "kv_cache_tokens" in found.agrees
    assert found.levers == ()


def test_a_comparison_says_which_died_later() -> None:
    reads = [
        read_start("-", Given(), None, io.BytesIO("\n".join(lines).encode()))
        for lines in (SERVED, [*SERVED, CUDA, DEAD])
    ]
    assert compared(*reads).verdict.startswith("The second started, and died later: RuntimeError")


def test_an_error_of_a_request_is_outlived() -> None:
    found = _answer(*SERVED, "ValueError: the request is too long")
    assert found.failure is None
    assert found.levers


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/run.sh: line 3:    71 Killed                  vllm serve x", "Killed"),
        ("Killed", "Killed"),
        ("Memory cgroup out of memory: Killed process 71 (python)", "Killed (the kernel's out-of-"),
        ("Reason: OOMKilled", "Killed (OOMKilled)"),
        ("vllm-1 exited with code 137", "Killed (exit code 137)"),
        ("worker died (exitcode: -9) local_rank: 0", "Killed (exit code -9)"),
        ("Worker (pid:71) was sent SIGKILL! Perhaps out of memory?", "Killed (SIGKILL)"),
    ],
)
def test_a_start_that_the_host_killed(line: str, told: str) -> None:
    found = _answer(INIT, MEMORY, line)

    assert found.verdict.startswith(f"It did not start: {told}")
    assert any("host's memory" in cure for cure in found.cures)
    assert found.oom is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Fatal Python error: Segmentation fault", "Segmentation fault"),
        ("run.sh: line 9:   71 Segmentation fault      (core dumped) x", "Segmentation fault"),
        ("exited with code 139", "Segmentation fault (exit code 139)"),
        ("*** SIGABRT received at time=1", "Aborted (SIGABRT)"),
    ],
)
def test_a_start_that_another_signal_ended(line: str, told: str) -> None:
    found = _answer(INIT, MEMORY, line)
    assert found.verdict.startswith(f"It did not start: {told}. ")
    assert not any("host's memory" in cure for cure in found.cures)


@pytest.mark.parametrize(
    "line",
    [
        "exited with code 0",
        "exit status 1",
        '"OOMKilled": false',
        "sending SIGKILL to the children",
        "Killed requests: 3",
    ],
)
def test_no_signal(line: str) -> None:
    assert signal_of(line) is None


def test_the_reason_of_a_validation_and_its_cure() -> None:
    found = _answer(
        INIT,
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, User-specified max_model_len (262144) is greater than the derived"
        " max_model_len (max_position_embeddings=131072 or model_max_length=None in model's"
        " config.json). [type=value_error, input_value=x]",
    )

    assert found.failure is not None
    assert found.failure.startswith("User-specified max_model_len (262144) is greater")
    assert "[type=" not in found.failure
    assert any(cure.startswith("--max-model-len 131072:") for cure in found.cures)


def test_an_error_before_which_the_start_went_on_is_not_the_reason() -> None:
    found = _answer(INIT, "ImportError: an extra", MEMORY, "Killed")
    assert found.failure == "Killed"


@pytest.mark.parametrize("line", ["RuntimeError: NCCL error: unhandled", "ImportError: libx.so"])
def test_no_levers_after_an_error_of_no_size(line: str) -> None:
    assert _answer(INIT, MEMORY).levers
    assert _answer(INIT, MEMORY, line).levers == ()


def test_levers_after_an_error_of_length() -> None:
    line = "ValueError: the max_model_len is too long"
    assert _answer(INIT, MEMORY, line).levers


def test_words_of_two_logs_without_tokens() -> None:
    other = INIT.replace("max_seq_len=32768", "max_seq_len=16384")
    reads = [read_start("-", Given(), None, io.BytesIO(line.encode())) for line in (INIT, other)]
    assert compared(*reads).verdict.endswith("the first and the second log no tokens.")
