"""`docker run [OPTIONS] IMAGE [COMMAND]`, and podman's and nerdctl's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.manifests.found import GpuRequest, MemoryLimit, Word
from kvcalc.manifests.requests import (
    DEFAULT_SHM,
    SHM,
    memory_limit,
    of_device,
    of_gpus_option,
    shm_size,
    with_visible,
)
from kvcalc.manifests.substitution import read_env_file

__all__ = ["Run", "docker_run"]

_BOOLEANS = {
    *("--rm", "--detach", "--interactive", "--tty", "--init", "--privileged", "--read-only"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
    *("--disable-content-trust", "--quiet", "--tls-verify", "--rmi", "--no-hosts", "--env-host"),
}
_SHORT_BOOLEANS = re.compile(r"-[ditPq]+")
_DETACHED = re.compile(r"-[itPqp]*d[ditPqp]*$|--detach(?:=true)?$")
_MOUNTS = ("-v", "--volume", "--mount", "--tmpfs")
_SHORT_VALUES = "aecfhlmpuvw"
_MOST_BEFORE = 6  # words between `docker` and `run`
_VERBS = {"run", "create"}
_OTHER_VERBS = {"build", "compose", "pull", "exec", "logs", "stop", "rm"}


class Run(NamedTuple):
    """A container that a command starts.

    Attributes:
        image: of it.
        words: its entry point where one is given, and what follows the image.
        env: what it sees.
        gpu: what it asks for.
        name: that it is given; "" without.
        asks: whether it asks for devices.
        under_entry_point: the words come after the command that the image runs by itself.
        detached: it runs on while what follows starts.
        shm_bytes: the size of its own /dev/shm; None where it has the host's.
        memory_limit: the host memory that it may have; None where nothing limits it.
    """

    image: Word
    words: tuple[Word, ...]
    env: Mapping[str, Word]
    gpu: GpuRequest
    name: str
    asks: bool
    under_entry_point: bool = False
    detached: bool = False
    shm_bytes: int | None = None
    memory_limit: MemoryLimit | None = None


def docker_run(
    words: Sequence[Word],
    outer: Mapping[str, Word],
    beside: Callable[[str], str | None] | None,
) -> Run | None:
    """Return the container that the words after `docker` start; None where they start none.

    Args:
        words: `run`, options, image, command.
        outer: what the command itself sees: `-e NAME` takes it from there.
        beside: reads a file beside (`--env-file`).
    """
    at = _after_verb(words)
    if at is None:
        return None
    options = _Options(outer, beside)
    while at < len(words) and _is_option(words, at):
        options.detached |= _DETACHED.match(words[at].text) is not None
        name, value, at = _option(words, at)
        options.take(name, value)
        options.share(name, value.text)
    if at >= len(words):
        return None
    return options.run(words[at], tuple(words[at + 1 :]))


def _after_verb(words: Sequence[Word]) -> int | None:
    """Return where the options of `run` begin; None where another verb stands."""
    for at, word in enumerate(words[: _MOST_BEFORE + 1]):
        if word.text in _VERBS:
            return at + 1
        if word.text in _OTHER_VERBS:
            return None
    return None


class _Options:
    """What the options of `docker run` have said so far."""

    def __init__(
        self, outer: Mapping[str, Word], beside: Callable[[str], str | None] | None
    ) -> None:
        self.outer = outer
        self.beside = beside
        self.env: dict[str, Word] = {}
        self.gpu = GpuRequest()
        self.name = ""
        self.entry: tuple[Word, ...] | None = None
        self.asks = False
        self.detached = False
        self.shm: int | None = DEFAULT_SHM
        self.memory: MemoryLimit | None = None

    def take(self, option: str, value: Word) -> None:
        """Take one option."""
        match option:
            case "-e" | "--env":
                _environment(self.env, value, self.outer)
            case "--env-file" if self.beside is not None:
                for key, text in read_env_file(self.beside(value.text) or "").items():
                    self.env[key] = Word(text, value.line)
            case "--gpus":
                self.gpu = of_gpus_option(value)
            case "--device":
                self.gpu = _with_device(self.gpu, of_device(value))
            case "--name":
                self.name = value.text
            case "--entrypoint":  # an empty one takes the image's away
                self.entry = (value,) if value.text else ()
            case "--runtime":
                self.asks = True
            case "-m" | "--memory":
                self.memory = memory_limit(value.text, value.line)
            case _:
                pass

    def share(self, option: str, value: str) -> None:
        """Take an option that says what /dev/shm is; one out of a variable may be any."""
        if option == "--shm-size":
            self.shm = shm_size(value)
        elif option == "--ipc" and value.startswith(("private", "shareable")):
            return
        elif option in ("", "--ipc") or (option in _MOUNTS and SHM in value):
            self.shm = None

    def run(self, image: Word, rest: tuple[Word, ...]) -> Run:
        """Return the container of an image that is given these words."""
        return Run(
            image,
            (*(self.entry or ()), *rest),
            self.env,
            with_visible(self.gpu, self.env),
            self.name,
            self.asks or self.gpu.resource is not None,
            under_entry_point=self.entry is None,
            detached=self.detached,
            shm_bytes=self.shm,
            memory_limit=self.memory,
        )


def _is_option(words: Sequence[Word], at: int) -> bool:
    word = words[at]
    if word.text.startswith("-"):
        return True
    if word.unresolved and word.text.startswith("$") and at + 1 < len(words):
        following = words[at + 1].text  # `$OPTIONS image`, or the image itself
        return following.startswith("-") is False and "/" in following and "=" not in following
    return False


def _option(words: Sequence[Word], at: int) -> tuple[str, Word, int]:
    """Return an option's name, its value, and where the next word stands."""
    word = words[at]
    text = word.text
    name, equals, given = text.partition("=")
    if not text.startswith("-"):
        return "", word, at + 1
    short = not text.startswith("--")
    if equals and (not short or len(name) == len("-e")):
        return name, word._replace(text=given), at + 1
    if text in _BOOLEANS or _SHORT_BOOLEANS.fullmatch(text):
        return text, word._replace(text=""), at + 1
    if short and len(text) > len("-e"):
        if text[1] in _SHORT_VALUES:
            return text[:2], word._replace(text=text[2:]), at + 1
        last = f"-{text[-1]}"  # -itp 8000:8000
        return last, words[at + 1] if at + 1 < len(words) else word, at + 2
    if at + 1 < len(words):
        return text, words[at + 1], at + 2
    return text, word._replace(text=""), at + 1


def _environment(env: dict[str, Word], value: Word, outer: Mapping[str, Word]) -> None:
    key, equals, text = value.text.partition("=")
    if equals:
        env[key] = value._replace(text=text)
    elif key in outer:
        env[key] = outer[key]
    else:
        env[key] = Word(f"${key}", value.line, (), (key,))


def _with_device(gpu: GpuRequest, more: GpuRequest) -> GpuRequest:
    """Return a request with one more device: each `--device` names its own."""
    if gpu.resource is None:
        return more
    if gpu.visible is None or more.visible is None:
        return gpu
    visible = (*gpu.visible, *more.visible)
    return gpu._replace(devices=len(visible), visible=visible)
