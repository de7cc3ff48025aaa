"""A server among commands, and what may stand in front of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.manifests.found import (
    Attached,
    Branch,
    Finding,
    GpuRequest,
    Invocation,
    MemoryLimit,
    Word,
)
from kvcalc.manifests.requests import with_visible

__all__ = [
    "SHELL",
    "Launch",
    "Place",
    "after_dashes",
    "base_name",
    "from_program",
    "names_model",
    "script_of",
    "served",
    "stands_before",
]

SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a)?sh")
"""A shell's name."""

_SHELL_OPTION = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_WRAPPERS = {
    *("sudo", "exec", "nohup", "env", "time", "nice", "setsid", "timeout", "stdbuf", "command"),
    *("numactl", "taskset", "srun", "tini", "dumb-init", "gosu", "uv", "conda", "poetry", "doas"),
    *("flox", "devbox", "op", "doppler", "mpirun", "entrypoint.sh", "ionice", "chrt"),
    *("singularity", "apptainer", "nix", "catchsegv", "/usr/bin/env", "torchrun"),
}


def _as_it_is(word: Word) -> Word:
    return word


class Place(NamedTuple):
    """Where commands stand.

    Attributes:
        file: as errors name it.
        beside: reads a file beside it; None where there is none.
        depth: scripts that they stand in.
        finished: puts what is known of a template into a word that no script holds.
    """

    file: str = ""
    beside: Callable[[str], str | None] | None = None
    depth: int = 0
    finished: Callable[[Word], Word] = _as_it_is

    @property
    def inner(self) -> Place:
        """The place of a script that stands here."""
        return self._replace(depth=self.depth + 1)


class Launch(NamedTuple):
    """A server that a command starts.

    Attributes:
        words: of the command, without what stands before the program.
        line: where it begins.
        env: what the server sees.
        image: of its container, where the command itself names one (`docker run`).
        gpu: what the command itself asks for.
        name: that the command gives it (`--name`).
        attached: files that the script wrote before.
        under_entry_point: the command comes after the one that the image runs by itself.
        installed: package -> the release that was installed before.
        findings: what is wrong with the command as it stands.
        background: it runs on while what follows starts.
        branch, after, shm_bytes, memory_limit: see Invocation.
    """

    words: tuple[Word, ...]
    line: int
    env: Mapping[str, Word]
    image: Word | None = None
    gpu: GpuRequest = GpuRequest()
    name: str = ""
    attached: Mapping[str, Attached] = {}
    under_entry_point: bool = False
    installed: Mapping[str, str] = {}
    findings: tuple[Finding, ...] = ()
    background: bool = False
    branch: Branch = ()
    after: tuple[int, ...] = ()
    shm_bytes: int | None = None
    memory_limit: MemoryLimit | None = None

    def within(self, *place: int) -> Launch:
        """Return it with conditions that differ from those of scripts that stand elsewhere."""
        branch = tuple(((*place, *condition), arm) for condition, arm in self.branch)
        return self._replace(branch=branch)

    def started(self, name: str, carrier: str, file: str, line: int | None = None) -> Invocation:
        """Return the server as the file starts it, with the devices that its command asks for.

        Args:
            name: of it.
            carrier: what starts it.
            file: where it stands.
            line: where it begins; the command's own where nothing else is given.
        """
        return Invocation(
            name=name,
            carrier=carrier,
            file=file,
            line=self.line if line is None else line,
            words=self.words,
            image=self.image,
            env=self.env,
            gpu=with_visible(self.gpu, self.env),
            attached=self.attached,
            findings=self.findings,
            under_entry_point=self.under_entry_point,
            installed=self.installed,
            background=self.background,
            branch=self.branch if line is None else self.within(line).branch,
            after=self.after,
            shm_bytes=self.shm_bytes,
            memory_limit=self.memory_limit,
        )


def base_name(text: str) -> str:
    """Return a path's last part."""
    return text.rsplit("/", 1)[-1]


def stands_before(words: Sequence[Word], at: int) -> bool:
    """Whether a word may stand before the command that counts."""
    text = words[at].text
    return at > 0 or base_name(text) in _WRAPPERS or _ASSIGNED.match(text) is not None


def script_of(rest: Sequence[Word]) -> tuple[Word, tuple[Word, ...]] | None:
    """Return the script behind a shell's `-c`, and what follows it."""
    at = 0
    found = False
    while at < len(rest) and rest[at].text.startswith(("-", "+")):
        found |= _SHELL_OPTION.fullmatch(rest[at].text) is not None
        at += 2 if rest[at].text in ("-o", "+o", "-O", "--rcfile") else 1
    if not found or at >= len(rest):
        return None
    return rest[at], tuple(rest[at + 1 :])


def from_program(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Drop assignments and `exec` before a program."""
    at = 0
    while at < len(words) and re.match(r"[A-Za-z_]\w*=|exec$|nohup$|env$", words[at].text):
        at += 1
    return words[at:] if at < len(words) else words


def after_dashes(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the flags that a wrapper hands on: `/leader -- --n-gpu-layers 99`."""
    texts = [word.text for word in words]
    rest = words[texts.index("--") + 1 :] if "--" in texts else ()
    return rest if rest and rest[0].text.startswith("-") else ()


def names_model(words: Sequence[Word]) -> bool:
    """Whether a command names a model by a flag."""
    return any(re.match(r"--model(-id|-path|_id)?(=|$)", word.text) for word in words)


def served(found: list[Launch]) -> list[Launch]:
    """Drop `ollama pull` and its like where the server itself is started."""
    verbs = [_ollama(each.words) for each in found]
    serves = any(verb in ("serve", "start") for verb in verbs)
    return [
        each
        for each, verb in zip(found, verbs, strict=True)
        if verb in ("", "serve", "start") or (verb == "run" and not serves)
    ]


def _ollama(words: tuple[Word, ...]) -> str:
    for at, word in enumerate(words[:-1]):
        if base_name(word.text) == "ollama":
            return words[at + 1].text
    return ""
