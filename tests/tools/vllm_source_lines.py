"""Where vLLM's releases print their start-up lines: python -m tests.tools.vllm_source_lines FOLDER.

FOLDER holds unpacked sources, one folder a release (`0.19.1/vllm/...`). The lines go to
`kvcalc/measure/logs/vllm_lines.tsv`, by which a log without a version is dated.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).parents[2] / "kvcalc" / "measure" / "logs" / "vllm_lines.tsv"

TEXTS = {
    "api_server.py": ("vLLM API server version", "Starting vLLM API server"),
    "utils.py": ("non-default args: ",),
    "model.py": ("Resolved architecture: ", "Using max model len "),
    "config.py": ("Resolved architecture: ", "Using max model len ", "Setting attention block size",
                  "Chunked prefill is enabled"),
    "scheduler.py": ("Chunked prefill is enabled",),
    "llm_engine.py": ("Initializing a", "# GPU blocks", "init engine (profile"),
    "core.py": ("Initializing a", "init engine (profile", "EngineCore failed to start"),
    "model_runner.py": ("Starting to load model", "oading model weights took",
                        "Model loading took", "Graph capturing finished"),
    "gpu_model_runner.py": ("Starting to load model", "oading model weights took",
                            "Model loading took", "Graph capturing finished",
                            "Encoder cache will be", "Estimated CUDA graph memory"),
    "worker.py": ("Memory profiling results", "Memory profiling takes",
                  "the current vLLM instance can use", "model weights take"),
    "gpu_worker.py": ("Available KV cache memory", "CUDA graph memory profiling is",
                      "CUDA graph pool memory", "Free memory on device", "In v0.19"),
    "kv_cache_utils.py": ("# GPU blocks", "KV cache size: ", "Maximum concurrency for",
                          "Add ", "Hybrid KV cache manager is disabled"),
    "kv_cache_planning.py": ("KV cache size: ", "Maximum concurrency for", "Add "),
    "gpu_executor.py": ("# GPU blocks", "Maximum concurrency for"),
    "distributed_gpu_executor.py": ("# GPU blocks", "Maximum concurrency for"),
    "executor_base.py": (" blocks: ", "Maximum concurrency for"),
    "default_loader.py": ("Loading weights took",),
    "interface.py": ("Setting attention block size",),
    "multiproc_executor.py": ("WorkerProc hit an exception",),
}  # fmt: skip
"""Source file -> what its messages of a start begin with, or hold."""

_LEVELS = re.compile(r"(?:info|warning|error|exception|debug)(?:_once)?")
_LONG, _SHORT = 500, 5
"""A message may have several lines, which a logger prints with one source line each; a word as
short as this counts where the message begins."""


def number_of(release: str) -> tuple[int, ...]:
    """Return what releases are sorted by."""
    return tuple(map(int, re.findall(r"\d+", release)))


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every message that a source file logs."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, level = node.func.value, node.func.attr
        if isinstance(owner, ast.Name) and owner.id == "logger" and node.args:
            text = _text(node.args[0])
            # A message in a name is one that a line before made: "msg" of gpu_worker.py.
            if isinstance(node.args[0], ast.Name):
                text = _made(source, node.args[0].id, node.lineno)
            if _LEVELS.fullmatch(level) and text:
                yield node.lineno, text


def _made(source: str, name: str, before: int) -> str:
    """Return the text that a name was last given before a line."""
    found = [
        (node.lineno, _text(node.value))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        and node.lineno < before
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return max(found)[1] if found else ""


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "%s" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return ""


def lines(folder: Path) -> dict[tuple[str, str], dict[int, list[str]]]:
    """Return (file, text) -> line -> the releases that print it there, the oldest first."""
    found: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    releases = sorted((p.name for p in folder.iterdir() if (p / "vllm").is_dir()), key=number_of)
    for release in releases:
        for path in sorted((folder / release / "vllm").rglob("*.py")):
            for line, message in messages_of(path):
                for text in TEXTS[path.name]:
                    at = message.find(text)
                    if (
                        0 <= at < (_LONG if len(text) > _SHORT else 1)
                        and release not in found[path.name, text][line]
                    ):
                        found[path.name, text][line].append(release)
    return found


def messages_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the messages of a file that prints some of a start."""
    if path.name in TEXTS:
        yield from messages(path.read_text(encoding="utf-8"))


def main() -> None:
    """Write the table."""
    rows = ["file\ttext\tlines"]
    for (file, text), of in sorted(lines(Path(sys.argv[1])).items()):
        told = ";".join(
            f"{line}={','.join(of[line])}"
            for line in sorted(of, key=lambda line: (number_of(of[line][0]), line))
        )
        rows.append(f"{file}\t{text}\t{told}")
    TABLE.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
