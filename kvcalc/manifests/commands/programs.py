"""Which server a command starts, looked at through what stands in front of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvcalc.manifests.found import Word

__all__ = ["PROGRAMS", "Start", "start_of"]

PROGRAMS = (
    "vllm",
    "vllm-ascend",
    "vllm-tpu",
    "huggingfaceserver",
    "sglang",
    "llama-server",
    "llama_cpp.server",
    "koboldcpp",
    "trtllm",
    "tgi",
    "lmdeploy",
    "ollama",
)
"""Servers by the grammar of their words."""


class Start(NamedTuple):
    """A server that a command starts.

    Attributes:
        program: a name of PROGRAMS; None where the command starts no server that is known.
        words: after the program, and after the sub-command that makes a server of it.
        env: assignments in front of it.
        how: the program as it was written: `vllm serve`, `dynamo.vllm`, `api_server`, ...
        spelled: the words say which program it is.
        other: it is a known program that serves nothing here (`vllm bench`).
    """

    program: str | None
    words: tuple[Word, ...]
    env: dict[str, Word]
    how: str = ""
    spelled: bool = False
    other: bool = False


_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII | re.DOTALL)
_PYTHON = re.compile(r"(?:python|pypy)(?:3(?:\.\d+)?t?)?(?:\.exe)?", re.ASCII)
_WRAPPERS = frozenset(
    [
        "env",
        "exec",
        "nohup",
        "sudo",
        "doas",
        "time",
        "timeout",
        "nice",
        "ionice",
        "chrt",
        "taskset",
        "setsid",
        "stdbuf",
        "numactl",
        "catchsegv",
        "tini",
        "dumb-init",
        "gosu",
        "su-exec",
        "unbuffer",
        "uv",
        "uvx",
        "poetry",
        "pipenv",
        "conda",
        "mamba",
        "micromamba",
        "pixi",
        "hatch",
        "torchrun",
        "accelerate",
        "mpirun",
        "mpiexec",
        "srun",
        "trtllm-llmapi-launch",
        "ray",
        "nsys",
        "ncu",
        "strace",
        "ltrace",
        "opentelemetry-instrument",
        "ddtrace-run",
        "dotenv",
        "op",
        "doppler",
        "infisical",
        "command",
        "builtin",
        "eval",
        "entrypoint.sh",
        "docker-entrypoint.sh",
        "nvidia_entrypoint.sh",
        "tgi-entrypoint.sh",
    ]
)
_ELSEWHERE = frozenset(
    ["docker", "podman", "nerdctl", "kubectl", "helm", "ssh", "bash", "sh", "zsh"]
)
"""What starts nothing here, or takes a script: whoever read the file reads that."""
_NOT_SERVED = frozenset(
    ["bench", "benchmark", "chat", "complete", "run-batch", "collect-env", "download", "list"]
)
_MODULES = (
    # module -> program, how it is called
    (r"vllm\.entrypoints\.openai\.(?:mm_)?api_server(?:_\w+)?", "vllm", "api_server"),
    (r"vllm\.entrypoints\.api_server", "vllm", "demo api_server"),
    (r"vllm\.entrypoints\.grpc_server", "vllm", "api_server"),
    (r"dynamo\.vllm(?:\.main)?", "vllm", "dynamo.vllm"),
    (r"huggingfaceserver", "huggingfaceserver", "huggingfaceserver"),
    (r"sglang(?:_router|_\w+)?\.launch_server|sglang_\w+", "sglang", "sglang.launch_server"),
    (r"dynamo\.sglang(?:\.\w+)?", "sglang", "dynamo.sglang"),
    (r"dynamo\.trtllm(?:\.main)?", "trtllm", "dynamo.trtllm"),
    (r"llama_cpp\.server", "llama_cpp.server", "llama_cpp.server"),
    (r"lmdeploy", "lmdeploy", ""),
    (r"vllm|vllm\.entrypoints\.cli\.main", "vllm", ""),
    (r"sglang|sglang\.cli\.main", "sglang", ""),
)
_NAMES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm-serve": "trtllm",
    "text-generation-launcher": "tgi",
    "lmdeploy": "lmdeploy",
    "ollama": "ollama",
    "llama-server": "llama-server",
    "llama-server.exe": "llama-server",
    "llamafile": "llama-server",
    "koboldcpp": "koboldcpp",
    "koboldcpp.py": "koboldcpp",
    "koboldcpp.exe": "koboldcpp",
}
_SCRIPTS = {"launch_server.py": "sglang", "api_server.py": "vllm"}
_SERVES = {
    "vllm": ("serve",),
    "sglang": ("serve",),
    "ollama": ("serve", "start", "run", "pull", "create"),
}
_MOST_WORDS = 400


def start_of(words: Sequence[Word], image: str | None) -> Start:
    """Return the server that words start.

    Args:
        words: of one command; flags alone where the image's own command takes them.
        image: the program that the image is of, where it is known.
    """
    env: dict[str, Word] = {}
    at, wrapped = 0, False
    while at < min(len(words), _MOST_WORDS):
        word = words[at]
        base = _base(word.text)
        if base in _ELSEWHERE:
            break
        found = _started(words, at, image, env)
        if found is not None:
            return found
        if (match := _ASSIGNED.fullmatch(word.text)) is not None:
            env[match[1]] = word._replace(text=match[2])
        elif base in _WRAPPERS or _PYTHON.fullmatch(base):
            wrapped = True
        elif not wrapped:
            break
        at += 1
    if wrapped:
        at = 0 if at >= len(words) else at
        return Start(None, tuple(words[at:]), env)
    rest = tuple(words[at:])
    if image is None or (rest and not _goes_with(rest[0].text, image)):
        return Start(None, rest, env)
    return Start(image, rest, env, "image")


def _started(
    words: Sequence[Word], at: int, image: str | None, env: dict[str, Word]
) -> Start | None:
    """Return the server whose program stands at a place; None where none does."""
    text, base = words[at].text, _base(words[at].text)
    rest = tuple(words[at + 1 :])
    if _PYTHON.fullmatch(base):
        return _module(words, at, env)
    program = _NAMES.get(base)
    if program is None and base.startswith("text-generation-launcher"):
        program = "tgi"
    if program is None and base.startswith("llama-server-"):  # a build of it, by its commit
        program = "llama-server"
    if program is None and base == "server" and ("llama" in text or image == "llama-server"):
        program = "llama-server"
    if program is None and base in _SCRIPTS and image == _SCRIPTS[base]:
        return Start(_SCRIPTS[base], rest, env, base, spelled=True)
    if program is None:
        return None
    return _with_command(program, base, rest, env)


def _with_command(
    program: str, base: str, rest: tuple[Word, ...], env: dict[str, Word]
) -> Start | None:
    """Return the server of a program that wants a sub-command; None where another is meant."""
    first = rest[0].text if rest else ""
    if program == "lmdeploy":
        served = [word.text for word in rest[:2]] == ["serve", "api_server"]
        if served:
            return Start(program, rest[2:], env, "lmdeploy serve api_server", spelled=True)
        return Start(program, rest, env, spelled=True, other=True)
    if program == "trtllm":
        if first == "serve":
            return Start(program, rest[1:], env, "trtllm-serve serve", spelled=True)
        other = first.startswith(("disaggregated", "mm_embedding", "grpc"))
        return Start(program, rest, env, "trtllm-serve", spelled=True, other=other)
    if program in _SERVES:
        if program == "ollama":
            return Start(program, rest, env, "ollama", spelled=True)
        if first in _SERVES[program]:
            return Start(program, rest[1:], env, f"{base} {first}", spelled=True)
        if first in _NOT_SERVED:
            return Start(program, rest, env, f"{base} {first}", spelled=True, other=True)
        return None  # `sudo -u vllm ...`: a user, or a folder
    return Start(program, rest, env, base, spelled=True)


def _module(words: Sequence[Word], at: int, env: dict[str, Word]) -> Start | None:
    """Return the server that `python -m MODULE`, or a script, starts."""
    for i in range(at + 1, min(len(words), at + 12)):
        text = words[i].text
        if text == "-m" and i + 1 < len(words):
            rest = tuple(words[i + 2 :])
            return _of_module(words[i + 1].text, rest, env)
        if text.startswith("-"):
            continue
        base = _base(text)
        if base in _SCRIPTS:
            return Start(_SCRIPTS[base], tuple(words[i + 1 :]), env, base, spelled=True)
        if base in _NAMES:
            return _with_command(_NAMES[base], base, tuple(words[i + 1 :]), env)
        return None
    return None


def _of_module(name: str, rest: tuple[Word, ...], env: dict[str, Word]) -> Start | None:
    for pattern, program, how in _MODULES:
        if re.fullmatch(pattern, name, re.ASCII):
            if not how:
                return _with_command(program, name, rest, env)
            return Start(program, rest, env, how, spelled=True)
    return None


def _goes_with(first: str, image: str) -> bool:
    """Whether words that begin so can be what an image's own command is given."""
    return (
        first.startswith(("-", "$", "{"))
        or first == "serve"
        or image == "ollama"
        or (image in ("vllm", "vllm-ascend") and "/" in first and not first.startswith("/bin"))
    )


def _base(text: str) -> str:
    return text.replace("\\", "/").rsplit("/", 1)[-1]
