"""Servers among commands: behind `bash -c`, `docker run`, `ssh`, and what else stands before one.

Every carrier ends here: a container's command, a script's lines, a unit's ExecStart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kvcalc.core.errors import printable
from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.commands.programs import start_of
from kvcalc.manifests.docker_run import Run, docker_run
from kvcalc.manifests.found import Attached, Branch, Finding, Word, apart
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
from kvcalc.manifests.shell import Ran, Script, parse

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
