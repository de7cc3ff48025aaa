"""Launchers with a list, a text for a shell, and a default that the environment may change."""

import os
import shlex
import subprocess
import sys

LENGTH = 8192


def sglang(model: str = "Qwen/Qwen2.5-7B-Instruct", share: float = 0.8) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            model,
            "--context-length",
            str(LENGTH),
            f"--mem-fraction-static={share}",
        ],
        check=True,
    )


def vllm() -> None:
    model = os.environ.get("MODEL", "meta-llama/Llama-3.1-8B-Instruct")
    os.system(f"vllm serve {model} --max-model-len {LENGTH} --port {os.environ['PORT']}")


def llama() -> None:
    subprocess.Popen(shlex.split("llama-server -m /m/llama-3.1-8b-q4_k_m.gguf -c 4096 -np 1"))


def bench() -> None:
    subprocess.run(["vllm", "bench", "serve", "--model", "a/b"], check=False)
