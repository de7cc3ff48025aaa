"""Command lines of random options with extreme values, each run in this process under limits.

    python -m tests.cli.extremes SEED COUNT

prints those that are faults of kvcalc's own, take more than two seconds of the processor, or need
more than three gibibytes.
"""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import typer

from kvcalc.cli.app import build
from tests.cli.harness import Outcome, call

__all__ = ["command_lines", "fault"]

SECONDS = 2
_BYTES = 3 * 2**30

_MODELS = (
    *("llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "gpt-oss-20b", "qwen3.5-27b", "jamba-v0.1"),
    *("qwen2.5-0.5b", "qwen3-next-80b-a3b", "llama-3.1-405b", "deepseek-v4-flash"),
)
_GPUS = ("l4", "h100-80gb", "t4", "mi300x", "b200", "rtx-4090")
_ENGINES = (
    *("vllm", "vllm", "vllm", "sglang", "sglang", "llama.cpp", "llama.cpp", "tensorrt-llm"),
    *("lmdeploy", "transformers", "mlx-lm", "exllamav3", "mlc-llm", "tgi", "none"),
)
_NUMBERS = (
    *("1", "2", "3", "7", "8", "64", "255", "1024", "1025", "65535", "1000000", "10000000"),
    *("2147483647", "2147483648", "99999999999999999999"),
)
_TOKENS = ("1", "15", "16", "17", "1024", "131072", "10000000", "2147483647")
_SIZES = ("0B", "1B", "1MiB", "250MiB", "1GiB", "24GiB", "1TiB", "1024PiB", "123456789")
_SHARES = ("1e-300", "0.0001", "0.001", "0.01", "0.5", "0.999", "1")
_OF_ENGINES = (
    *("tp_size", "pp_size", "dp_size", "mem_fraction_static", "page_size", "chunked_prefill_size"),
    *("max_running_requests", "max_total_tokens", "context_length", "max_mamba_cache_size"),
    *("ctx_size", "ubatch_size", "batch_size", "parallel", "n_gpu_layers", "tensor_split"),
    *("swa_full", "num_ctx", "n_cpu_moe", "device_memory", "max_tokens", "max_seq_len"),
    *("free_gpu_memory_fraction", "max_batch_size", "session_len", "cache_max_entry_count"),
    *("cache_block_seq_len", "num_gpu_blocks", "max_cache_len", "max_loras", "cpu_offload_gb"),
    *("max_num_blocks", "swap_space", "hicache_ratio", "speculative_num_steps"),
    *("VLLM_PP_LAYER_PARTITION", "kv_cache_memory_bytes"),
)
_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("tp", "pp", "dp", "dcp", "max_num_batched_tokens", "max_num_seqs", "block"),
            *("num_gpu_blocks_override", "num_speculative_tokens", "sequences", "instances"),
            *("ctx_size", "parallel", "n_gpu_layers"),
        ),
        _NUMBERS,
    ),
    **dict.fromkeys(("max", "at", "tokens"), _TOKENS),
    **dict.fromkeys(
        ("kv_memory", "gpu_memory", "gpu_free", "weights", "free", "largest", "request"), _SIZES
    ),
    "gpu_memory_utilization": _SHARES,
    "kv_cache_dtype": ("fp8", "bf16", "q8_0", "nvfp4"),
    "dtype": ("float32", "float16"),
    "quantization": ("fp8", "int4", "q4_k_m"),
    "solve": ("max-model-len", "max-num-seqs", "gpus", "tp", "gpu-memory-utilization", "ngl"),
    "lengths": ("1", "2147483647", "1000000x5", "99999x131072,1"),
    "over": ("exclude", "keep"),
    "speculative_method": ("mtp", "ngram"),
    "holes": ("1GiB", "100000x1B"),
    "engine_version": ("0.33.0", "0.20.0", "0.9.2", "b6000"),
}
_COMMANDS = (*["capacity"] * 6, *["plan"] * 3, "per-token", "compare", "frag", "layers")
_FLAGS = ("levers", "layouts", "suggest", "explain", "require_fit")


def command_lines(seed: int, count: int) -> Iterator[list[str]]:
    """Yield so many command lines, the same for the same seed."""
    chosen = random.Random(seed)
    commands: dict[str, Any] = typer.main.get_command(build()).commands  # type: ignore[attr-defined]  # of the group
    for _ in range(count):
        name = chosen.choice(_COMMANDS)
        params = {p.name: p.opts[0] for p in commands[name].params if p.param_type_name == "option"}
        words = [name, chosen.choice(_MODELS)]
        if chosen.random() < 0.1:
            words = [name]
            for flag in ("--layers", "--kv-heads", "--head-dim"):
                words += [flag, chosen.choice(_NUMBERS)]
        if "engine" in params and chosen.random() < 0.8:
            words += ["--engine", chosen.choice(_ENGINES)]
        if "gpu" in params and chosen.random() < 0.8:
            words += ["--gpu", chosen.choice(_GPUS)]
        known = [option for option in params if option in _VALUES]
        for option in chosen.sample(known, min(len(known), chosen.choice((1, 1, 2, 2, 3, 4, 6)))):
            words += [params[option], chosen.choice(_VALUES[option])]
        if "engine_arg" in params and chosen.random() < 0.4:
            values = (*_NUMBERS, *_SHARES, *_SIZES, "true", "1,2,3")
            words += ["--engine-arg", f"{chosen.choice(_OF_ENGINES)}={chosen.choice(values)}"]
        words += [params[f] for f in _FLAGS if f in params and chosen.random() < 0.12]
        yield words


def fault(outcome: Outcome) -> str:
    """Return what is wrong with an outcome; empty for nothing."""
    if outcome.code not in (0, 1, 2, 3):
        return f"exit {outcome.code}: {outcome.err[-300:]}"
    if "Traceback" in outcome.err:
        return "a traceback"
    return "" if len(outcome.errors) == (outcome.code == 2) else outcome.err[-300:]


def _limited() -> None:
    """End what takes too long or too much; only where the system has such limits."""
    import resource
    import signal

    class SlowError(BaseException):
        """Raised in the middle of whatever takes too long."""

    def slow(*_: object) -> None:
        raise SlowError

    signal.signal(signal.SIGPROF, slow)
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))


def main(seed: int, count: int) -> int:
    """Run the command lines and print what is wrong; return how many are."""
    import signal

    _limited()
    call("capacity", "llama-3.1-8b", "--gpu", "l4")  # imports are not the command lines' own
    wrong = 0
    for words in command_lines(seed, count):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            found = fault(call(*words))
        except BaseException as error:
            found = type(error).__name__
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if found:
            wrong += 1
            print(shlex.join(words), found, flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]))))
