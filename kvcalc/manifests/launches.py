"""Servers among commands: behind `bash -c`, `docker run`, `ssh`, and what else stands before one.

Every carrier ends here: a container's command, a script's lines, a unit's ExecStart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.commands.programs import start_of
from kvcalc.manifests.docker_run import Run, docker_run
from kvcalc.manifests.found import Attached, GpuRequest, Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell import Ran, Script, parse

__all__ = ["Launch", "Place", "of_container", "of_script"]

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a)?sh")
_SHELL_OPTION = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
_CONTAINERS = {"docker", "podman", "nerdctl", "docker.io"}
_SILENT = {"echo", "printf", "grep", "pkill", "pgrep", "which", "type", "pip", "pip3", "apt-get"}
_TERMINALS = {"tmux", "screen", "ssh", "su", "runuser", "watch", "xterm", "gnome-terminal"}
_MOST_BEFORE = 40  # words before the command that counts


class Place(NamedTuple):
    """Where commands stand.

    Attributes:
        file: as errors name it.
        beside: reads a file beside it; None where there is none.
        depth: scripts that they stand in.
    """

    file: str = ""
    beside: Callable[[str], str | None] | None = None
    depth: int = 0

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
    """

    words: tuple[Word, ...]
    line: int
    env: Mapping[str, Word]
    image: Word | None = None
    gpu: GpuRequest = GpuRequest()
    name: str = ""
    attached: Mapping[str, Attached] = {}


def of_script(
    text: str,
    lines: Lines | int,
    env: Mapping[str, Word],
    place: Place,
    *,
    image: str | None = None,
    arguments: Sequence[Word] = (),
    zero: Word | None = None,
    closed: bool = False,
) -> tuple[list[Launch], Script]:
    """Return the servers that a script starts, and the script.

    Args:
        text: of it.
        lines: the file's lines that it stands on.
        env: what it sees.
        place: where it stands.
        image: of the container that it runs in.
        arguments: its own.
        zero: its `$0`.
        closed: it runs where nothing but `env` is set, and starts one of several servers that
            stand in different branches.

    Raises:
        InputError: with the line: nothing closes a quote or brace.
    """
    script = parse(
        text,
        lines,
        env,
        where=place.file,
        arguments=arguments,
        zero=zero,
        closed=closed,
        beside=place.beside,
        depth=place.depth,
    )
    found: list[Launch] = []
    branches: list[tuple[tuple[int, int], ...]] = []
    for ran in script.commands:
        launches = _of_ran(ran, image, place, script.files)
        if launches and closed:
            if any(_apart(ran.branch, other) for other in branches):
                continue
            branches.append(ran.branch)
        found += launches
    return _served(found), script


def of_container(
    words: Sequence[Word],
    image: Word | None,
    env: Mapping[str, Word],
    place: Place,
    *,
    lines: Lines | None = None,
    line: int = 0,
    likely: bool = False,
    closed: bool = True,
) -> list[Launch]:
    """Return the servers that a container starts.

    Args:
        words: its command and arguments; () where the image starts by itself.
        image: of it.
        env: what it sees.
        place: where it stands.
        lines: of the script behind `bash -c`, if that is the last of the words.
        line: where it begins.
        likely: it asks for devices: whatever an engine's image runs there is its server.
        closed: nothing but `env` can have set a variable of a script.

    Raises:
        InputError: as `of_script`.
    """
    name = None if image is None else image.text
    known = image_of(name)
    found = _behind(tuple(words), line, env, name, place, lines, {}, closed=closed)
    if found is None:
        whole = tuple(words)
        start = start_of(whole, known.program)
        found = []
        if not whole:
            if known.starts or (likely and known.program):
                found.append(Launch((), line, env, image))
        elif start.program is not None and not start.other:
            found.append(Launch(_from_program(whole), line, {**env, **start.env}, image))
        elif (rest := _after_dashes(whole)) and known.program is not None:
            found.append(Launch(rest, line, env, image))
        elif likely and (known.program is not None or _names_model(whole)) and not start.other:
            found.append(Launch(whole, line, env, image))
    return [each if each.image else each._replace(image=image) for each in found]


def _after_dashes(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the flags that a wrapper hands on: `/leader -- --n-gpu-layers 99`."""
    texts = [word.text for word in words]
    rest = words[texts.index("--") + 1 :] if "--" in texts else ()
    return rest if rest and rest[0].text.startswith("-") else ()


def _names_model(words: tuple[Word, ...]) -> bool:
    return any(re.match(r"--model(-id|-path|_id)?(=|$)", word.text) for word in words)


def _apart(one: tuple[tuple[int, int], ...], two: tuple[tuple[int, int], ...]) -> bool:
    """Whether two commands stand in different branches of one condition."""
    other = dict(two)
    return any(number in other and other[number] != place for number, place in one)


def _of_ran(
    ran: Ran, image: str | None, place: Place, files: Mapping[str, Attached]
) -> list[Launch]:
    words = ran.words
    if words and _base(words[0].text) in _SILENT:
        return []
    seen = {**ran.variables, **ran.env}
    found = _behind(words, ran.line, seen, image, place, None, files, closed=False)
    if found is not None:
        return found
    if ran.stdin is not None and (
        _SHELL.fullmatch(words[0].text) or _base(words[0].text) in _TERMINALS
    ):
        inner, _ = of_script(ran.stdin.text, ran.stdin.line, ran.env, place.inner, image=image)
        return inner
    start = start_of(words, None)
    if start.program is None or start.other:
        return []
    return [Launch(_from_program(words), ran.line, {**ran.env, **start.env}, attached=files)]


def _behind(
    words: tuple[Word, ...],
    line: int,
    env: Mapping[str, Word],
    image: str | None,
    place: Place,
    lines: Lines | None,
    files: Mapping[str, Attached],
    *,
    closed: bool,
) -> list[Launch] | None:
    """Return what starts behind a shell or a container's command; None where neither stands."""
    for at, word in enumerate(words[:_MOST_BEFORE]):
        base = _base(word.text)
        rest = words[at + 1 :]
        if _SHELL.fullmatch(word.text) and (script := _script(rest)) is not None:
            text, arguments = script
            inner, _ = of_script(
                text.text,
                lines or Lines(text.line),
                env,
                place.inner,
                image=image,
                arguments=arguments[1:],
                zero=arguments[0] if arguments else None,
                closed=closed,
            )
            return [each._replace(attached={**files, **each.attached}) for each in inner]
        if base in _CONTAINERS and (run := docker_run(rest, env, place.beside)) is not None:
            return _of_run(run, word.line or line, place, files)
        if base in _TERMINALS and rest and " " in rest[-1].text:
            inner, _ = of_script(rest[-1].text, rest[-1].line, env, place.inner, image=image)
            return inner
        if not _before(words, at):
            return None
    return None


def _of_run(run: Run, line: int, place: Place, files: Mapping[str, Attached]) -> list[Launch]:
    found = of_container(run.words, run.image, run.env, place, line=line, likely=run.asks)
    return [
        each._replace(gpu=run.gpu, name=each.name or run.name, attached={**files, **each.attached})
        for each in found
    ]


def _script(rest: tuple[Word, ...]) -> tuple[Word, tuple[Word, ...]] | None:
    """Return the script behind a shell's `-c`, and what follows it."""
    at = 0
    found = False
    while at < len(rest) and rest[at].text.startswith(("-", "+")):
        found |= _SHELL_OPTION.fullmatch(rest[at].text) is not None
        at += 2 if rest[at].text in ("-o", "+o", "-O", "--rcfile") else 1
    if not found or at >= len(rest):
        return None
    return rest[at], rest[at + 1 :]


def _before(words: tuple[Word, ...], at: int) -> bool:
    """Whether a word may stand before the command that counts."""
    text = words[at].text
    return at > 0 or _base(text) in _WRAPPERS or re.match(r"[A-Za-z_]\w*=", text) is not None


_WRAPPERS = {
    *("sudo", "exec", "nohup", "env", "time", "nice", "setsid", "timeout", "stdbuf", "command"),
    *("numactl", "taskset", "srun", "tini", "dumb-init", "gosu", "uv", "conda", "poetry", "doas"),
    *(
        "flox",
        "devbox",
        "op",
        "doppler",
        "mpirun",
        "entrypoint.sh",
        "ionice",
        "chrt",
        "singularity",
    ),
    *("apptainer", "nix", "catchsegv", "/usr/bin/env", "torchrun"),
}


def _from_program(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Drop assignments and `exec` before a program."""
    at = 0
    while at < len(words) and re.match(r"[A-Za-z_]\w*=|exec$|nohup$|env$", words[at].text):
        at += 1
    return words[at:] if at < len(words) else words


def _served(found: list[Launch]) -> list[Launch]:
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
        if _base(word.text) == "ollama":
            return words[at + 1].text
    return ""


def _base(text: str) -> str:
    return text.rsplit("/", 1)[-1]
