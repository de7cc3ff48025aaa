"""Servers among commands: behind `bash -c`, `docker run`, `ssh`, and what else stands before one.

Every carrier ends here: a container's command, a script's lines, a unit's ExecStart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.core.errors import printable
from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.commands.programs import start_of
from kvcalc.manifests.found import Attached, Branch, Finding, GpuRequest, MemoryLimit, Word, apart
from kvcalc.manifests.launched import (
    SHELL,
    Launch,
    Place,
    after_dashes,
    base_name,
    from_program,
    names_model,
    script_of,
    served,
    stands_before,
)
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.packages import installed_by
from kvcalc.manifests.requests import (
    DEFAULT_SHM,
    SHM,
    memory_limit,
    of_device,
    of_gpus_option,
    shm_size,
    with_visible,
)
from kvcalc.manifests.shell import Ran, Script, parse
from kvcalc.manifests.substitution import read_env_file

__all__ = ["Launch", "Place", "of_container", "of_script"]


_CONTAINERS = {"docker", "podman", "nerdctl", "docker.io"}
_SILENT = {"echo", "printf", "grep", "pkill", "pgrep", "which", "type", "pip", "pip3", "apt-get"}
_TERMINALS = {"tmux", "screen", "ssh", "su", "runuser", "watch", "xterm", "gnome-terminal"}
_MOST_BEFORE = 40  # words before the command that counts
_FLAG = re.compile(r"--?[A-Za-z]")
_WAITS = re.compile(
    r"(?:^|[ /])(?:sleep +([0-9]{1,6})s?|curl|wget|nc|wait[-_](?:for|until)\S*)(?= |$)"
)
_LEAST_SLEEP = 20  # seconds: a shorter sleep waits for no model to load
_LONGEST_WAIT = 2_000  # characters of a command
_MOST_SHOWN = 40


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
    installed: Mapping[str, str] | None = None,
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
        installed: package -> the release that was installed before it runs.

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
    branches: list[Branch] = []
    packages = dict(installed or {})
    before: Ran | None = None  # the last command that started a server
    ready: tuple[int, ...] = ()  # the lines of those that the script has waited for
    for number, ran in enumerate(script.commands):
        packages |= installed_by(ran.words)
        launches = _of_ran(ran, image, place, script.files)
        if _waits(ran):
            ready = tuple(each.line for each in found)
        if before is not None and _FLAG.match(ran.words[0].text):
            if ran.branch == before.branch:
                found[-1] = found[-1]._replace(findings=(*found[-1].findings, _dropped(ran)))
            before = None
            continue
        before = None
        if launches and closed:
            alternatives = tuple(each for each in ran.branch if each[0][0] > 0)
            if any(apart(alternatives, other) for other in branches):
                continue
            branches.append(alternatives)
        before = ran if launches else None
        for each in launches:
            begun = each if each.image else each._replace(installed={**packages, **each.installed})
            found.append(
                begun._replace(
                    background=begun.background or ran.background,
                    branch=(*ran.branch, *begun.within(number, 0).branch),
                    after=(*ready, *begun.after),
                )
            )
    return served(found), script


def _waits(ran: Ran) -> bool:
    """Whether a command waits for what was started before: a health check, a long sleep."""
    text = " ".join(word.text for word in ran.words[:_MOST_BEFORE])[:_LONGEST_WAIT]
    found = _WAITS.search(text)
    return found is not None and (found[1] is None or int(found[1]) >= _LEAST_SLEEP)


def _dropped(ran: Ran) -> Finding:
    """Return the finding of flags that a line break parted from their command."""
    word = ran.words[0]
    shown = word.shown if word.variables else printable(word.text.partition("=")[0])[:_MOST_SHOWN]
    return Finding(
        "dropped-flags",
        "error",
        f"{shown} is no part of the command above it, which ends before: the server starts"
        " without it",
        "end the line before with a backslash and nothing behind it, and take comments out",
        word.line or ran.line,
    )


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
    under_entry_point: bool = False,
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
        under_entry_point: the words come after the command that the image runs by itself.

    Raises:
        InputError: as `of_script`.
    """
    name = None if image is None else place.finished(image).text
    known = image_of(name)
    found = _behind(tuple(words), line, env, name, place, lines, {}, closed=closed)
    if found is None:
        whole = tuple(place.finished(word) for word in words)
        start = start_of(whole, known.program)
        found = []
        if not whole:
            if known.starts or (likely and known.program):
                found.append(Launch((), line, env))
        elif start.program is not None and not start.other:
            found.append(Launch(from_program(whole), line, {**env, **start.env}))
        elif (rest := after_dashes(whole)) and known.program is not None:
            found.append(Launch(rest, line, env))
        elif likely and (known.program is not None or names_model(whole)) and not start.other:
            found.append(Launch(whole, line, env))
    return [
        each if each.image else each._replace(image=image, under_entry_point=under_entry_point)
        for each in found
    ]


def _of_ran(
    ran: Ran, image: str | None, place: Place, files: Mapping[str, Attached]
) -> list[Launch]:
    words = ran.words
    if words and base_name(words[0].text) in _SILENT:
        return []
    seen = {**ran.variables, **ran.env}
    found = _behind(words, ran.line, seen, image, place, None, files, closed=False)
    if found is not None:
        return found
    if ran.stdin is not None and (
        SHELL.fullmatch(words[0].text) or base_name(words[0].text) in _TERMINALS
    ):
        inner, _ = of_script(ran.stdin.text, ran.stdin.line, ran.env, place.inner, image=image)
        return inner
    start = start_of(words, None)
    if start.program is None or start.other:
        return []
    return [Launch(from_program(words), ran.line, {**ran.env, **start.env}, attached=files)]


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
        base = base_name(word.text)
        rest = words[at + 1 :]
        if SHELL.fullmatch(word.text) and (script := script_of(rest)) is not None:
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
            return [each._replace(background=True) for each in inner]
        if not stands_before(words, at):
            return None
    return None


def _of_run(run: Run, line: int, place: Place, files: Mapping[str, Attached]) -> list[Launch]:
    found = of_container(
        run.words,
        run.image,
        run.env,
        place,
        line=line,
        likely=run.asks,
        under_entry_point=run.under_entry_point,
    )
    return [
        each._replace(
            gpu=run.gpu,
            name=each.name or run.name,
            attached={**files, **each.attached},
            background=each.background or run.detached,
            shm_bytes=run.shm_bytes,
            memory_limit=run.memory_limit,
        )
        for each in found
    ]


# `docker run [OPTIONS] IMAGE [COMMAND]`, and podman's and nerdctl's.

_BOOLEANS = {
    *("--rm", "--detach", "--interactive", "--tty", "--init", "--privileged", "--read-only"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
    *("--disable-content-trust", "--quiet", "--tls-verify", "--rmi", "--no-hosts", "--env-host"),
}
_SHORT_BOOLEANS = re.compile(r"-[ditPq]+")
_DETACHED = re.compile(r"-[itPqp]*d[ditPqp]*$|--detach(?:=true)?$")
_MOUNTS = ("-v", "--volume", "--mount", "--tmpfs")
_SHORT_VALUES = "aecfhlmpuvw"
_MOST_BETWEEN = 6  # words between `docker` and `run`
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
    for at, word in enumerate(words[: _MOST_BETWEEN + 1]):
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
