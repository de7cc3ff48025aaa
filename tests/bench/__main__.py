"""Ratios that kvcalc promises: python -m tests.bench, on an idle machine.

Prints `name ratio limit ok|over` a line and leaves with 1 when one is over. Times are compared
with a yardstick on the same machine in the same minute, so the ratios mean the same everywhere;
those named `in` a time, with the time that was promised outright.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kvcalc
from tests.models.gguf.test_large import write_large

REPEATS = 15
REQUESTS = 10_000_000
CONFIG_SECONDS = 0.030
GGUF_SECONDS = 0.5
PLAN_SECONDS = 0.030
PLAN_REPEATS = 20
PLANS_SECONDS = 2.0
CAPACITY_SECONDS = 0.050
LEVERS_SECONDS = 0.5
CHECK_SECONDS = 2.0
DEPLOYMENTS = 200


def cpu_seconds(*command: str) -> float:
    """Return the CPU time, user and system, of one run of a Python command.

    Compiled modules are kept between runs, as an installation keeps them.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def start_up() -> float:
    """Start-up CPU of a per-token run against importing the three packages that it prints with."""
    pairs = [
        (
            cpu_seconds("-m", "kvcalc", "per-token", "llama-3.1-8b"),
            cpu_seconds("-c", "import typer, rich.table, yaml"),
        )
        for _ in range(REPEATS)
    ]
    ours, yardstick = zip(*pairs, strict=True)
    return float(statistics.median(ours) / statistics.median(yardstick))


def config_over_preset() -> float:
    """CPU that a config of 100 layers costs more than a preset, against the 30 ms promised."""
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 100,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "layer_types": [
            "full_attention" if i % 6 == 5 else "sliding_attention" for i in range(100)
        ],
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        pairs = [
            (
                cpu_seconds("-m", "kvcalc", "per-token", str(path)),
                cpu_seconds("-m", "kvcalc", "per-token", "gemma-3-27b"),
            )
            for _ in range(REPEATS)
        ]
    ours, preset = zip(*pairs, strict=True)
    return float(statistics.median(ours) - statistics.median(preset)) / CONFIG_SECONDS


def large_gguf() -> float:
    """CPU of reading a sparse GGUF file of 40 GiB, vocabulary and all, against half a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.gguf"
        write_large(path)
        ours = [cpu_seconds("-m", "kvcalc", "per-token", str(path)) for _ in range(REPEATS)]
    return float(statistics.median(ours)) / GGUF_SECONDS


def plan_over_per_token() -> float:
    """CPU that a plan of vLLM's costs more than a per-token table, against the 30 ms promised."""
    engine = ("--engine", "vllm", "--gpu", "h100-80gb", "--max", "8192")
    pairs = [
        (
            cpu_seconds("-m", "kvcalc", "plan", "qwen3.5-27b", *engine, "--kv-memory", "15GiB"),
            cpu_seconds("-m", "kvcalc", "per-token", "qwen3.5-27b"),
        )
        for _ in range(PLAN_REPEATS)
    ]
    ours, table = zip(*pairs, strict=True)
    return float(statistics.median(ours) - statistics.median(table)) / PLAN_SECONDS


def capacity_over_per_token(*more: str, seconds: float) -> float:
    """CPU that a capacity question costs more than a per-token table, against what is promised."""
    asked = ("capacity", "llama-3.1-8b", "--engine", "vllm", "--gpu", "h100-80gb", "--max", "8192")
    pairs = [
        (
            cpu_seconds("-m", "kvcalc", *asked, *more),
            cpu_seconds("-m", "kvcalc", "per-token", "llama-3.1-8b"),
        )
        for _ in range(PLAN_REPEATS)
    ]
    ours, table = zip(*pairs, strict=True)
    return float(statistics.median(ours) - statistics.median(table)) / seconds


def capacity_question() -> float:
    """A question about one card."""
    return capacity_over_per_token(seconds=CAPACITY_SECONDS)


def capacity_levers() -> float:
    """The same with all levers."""
    return capacity_over_per_token("--levers", seconds=LEVERS_SECONDS)


def check_deployments(failing: int) -> float:
    """CPU of one check of 200 Deployments, `failing` of which do not fit, against 2 s."""
    models = ("Llama-3.1-8B-Instruct", "Llama-3.1-70B-Instruct", "Llama-3.3-70B-Instruct")
    documents = []
    for i in range(DEPLOYMENTS):
        tp = 1 if i < failing else 8  # no 70B model fits one card, nor so long a sequence beside 8B
        length = 80_000 + 16 * i if i < failing else 8192 + 16 * i
        documents.append(
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: chat-{i}}}\nspec:\n"
            "  template:\n    spec:\n      containers:\n        - name: vllm\n"
            "          image: vllm/vllm-openai:v0.20.2\n          args:\n"
            f"            - --model=meta-llama/{models[i % 3]}\n"
            f"            - --tensor-parallel-size={tp}\n            - --max-model-len={length}\n"
            f"          resources: {{limits: {{nvidia.com/gpu: {tp}}}}}\n"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deploy.yaml"
        path.write_text("---\n".join(documents), encoding="utf-8")
        command = ("-m", "kvcalc", "check", "--no-fail", "--gpu", "l40s")
        memory = ("--gpu-memory", "30GiB", str(path))
        ours = [cpu_seconds(*command, *memory) for _ in range(3)]
    return float(statistics.median(ours)) / CHECK_SECONDS


def thousand_plans() -> float:
    """CPU of a thousand different plans of vLLM's through the API, against the 2 s promised."""
    presets = ("llama-3.1-8b", "qwen3.5-27b", "gemma-3-27b", "deepseek-v3", "gpt-oss-20b")
    models = [kvcalc.load_model(name) for name in presets]
    card = kvcalc.load_gpu("h100-80gb")
    start = time.process_time()
    for i in range(1000):
        deployment = kvcalc.Deployment(
            engine="vllm", gpu=card, max_model_len=2048 + i, tensor_parallel_size=1 << i % 4
        )
        kvcalc.plan(models[i % len(models)], deployment)
    return (time.process_time() - start) / PLANS_SECONDS


def seconds(run: Callable[[], object]) -> float:
    """Return the best time of several runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def compare_requests() -> float:
    """Comparing 10 million requests in memory against one sum over each of their two arrays."""
    from kvcalc.workload.traces import lengths_from_arrays

    rng = np.random.Generator(np.random.PCG64(7))
    prompts = np.clip(rng.lognormal(6.3, 1.2, REQUESTS), 1, 7000).astype(np.int64)
    outputs = np.clip(rng.lognormal(5.0, 1.0, REQUESTS), 1, 1000).astype(np.int64)
    plan = kvcalc.plan(kvcalc.load_model("llama-3.1-8b"), kvcalc.Deployment(max_model_len=8192))
    ours = seconds(lambda: kvcalc.compare(plan, lengths_from_arrays(prompts, outputs)))
    return ours / seconds(lambda: (prompts.sum(), outputs.sum()))


BENCHES: dict[str, tuple[Callable[[], float], float]] = {
    "start_up_cpu": (start_up, 1.6),
    "compare_10m_requests": (compare_requests, 6.0),
    "config_over_preset_in_30ms": (config_over_preset, 1.0),
    "gguf_40gib_in_half_a_second": (large_gguf, 1.0),
    "plan_over_per_token_in_30ms": (plan_over_per_token, 1.0),
    "capacity_over_per_token_in_50ms": (capacity_question, 1.0),
    "levers_over_per_token_in_500ms": (capacity_levers, 1.0),
    "1000_plans_in_2s": (thousand_plans, 1.0),
    "check_200_deployments_in_2s": (lambda: check_deployments(10), 1.0),
    "check_200_deployments_that_fail_in_2s": (lambda: check_deployments(DEPLOYMENTS), 1.0),
}


def main() -> int:
    """Run every bench and print its line."""
    over = False
    for name, (bench, limit) in BENCHES.items():
        ratio = bench()
        over = over or ratio > limit
        print(f"{name} {ratio:.2f} {limit:g} {'over' if ratio > limit else 'ok'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
