"""From files, folders, stdin and a command to targets; kvcalc.yaml among them is its own file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kvcalc.answers.assertions import Assertion
from kvcalc.checks.cards import card_of
from kvcalc.checks.context import Context
from kvcalc.checks.file import (
    DEFAULT_FILE,
    CheckFile,
    Entry,
    is_check_file,
    read_check_file,
)
from kvcalc.checks.models import Models, Named
from kvcalc.checks.servers import of_alternatives, of_entry
from kvcalc.checks.sized import Load
from kvcalc.checks.targets import Fault, Target
from kvcalc.checks.workloads import load_of
from kvcalc.core.credentials import without_credentials
from kvcalc.core.errors import InputError, KvcalcError, UsageError
from kvcalc.core.units import format_bytes
from kvcalc.manifests.found import Attached, Server
from kvcalc.manifests.sources import (
    Folder,
    NoServerError,
    PassedOverError,
    Source,
    charts_of,
    decoded,
    find,
    is_values_of,
)
from kvcalc.models.text import printable

__all__ = ["Options", "gather", "read_settings"]


class Options(NamedTuple):
    """What a caller says of a run, beside the files.

    Attributes:
        settings: a kvcalc.yaml whose assertions, models and levels hold for every file; None for
            none.
        gpu, gpu_memory, gpu_free, host_memory, engine_version, sequences, quantization: see
            Context.
        models: further served names, `NAME=PRESET`, or a preset alone for what is not known.
        assertions: by name, above all files'.
        folders: folders of presets.
    """

    settings: CheckFile | None = None
    gpu: str | None = None
    gpu_memory: int | None = None
    gpu_free: int | None = None
    host_memory: int | None = None
    engine_version: str | None = None
    sequences: int | None = None
    quantization: str | None = None
    models: tuple[str, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    folders: tuple[Path, ...] = ()


def read_settings(path: str) -> CheckFile:
    """Read a kvcalc.yaml by its path.

    Raises:
        InputError: it is missing or broken.
    """
    from kvcalc.models.text import read_text

    return read_check_file(read_text(path), printable(path), os.path.dirname(path))


def gather(
    paths: Sequence[str],
    command: Sequence[str],
    options: Options,
    stdin: bytes | None = None,
    notes: list[str] | None = None,
) -> list[Target]:
    """Return what is to be checked, in the order in which it is named.

    Args:
        paths: files, folders, `-`; kvcalc.yaml in the current folder where nothing is named.
        command: a serve command.
        options: of the run.
        stdin: what `-` holds; the process's own where it is not given.
        notes: gains a line for every model of the options that nothing serves.

    Raises:
        UsageError: there is nothing to check.
        InputError: nothing at all could be read.
    """
    if not paths and not command:
        if not os.path.isfile(DEFAULT_FILE):
            raise UsageError(
                "which files?",
                hint=f"write {DEFAULT_FILE}, or name what you deploy: kvcalc check deploy.yaml,"
                " kvcalc check -- vllm serve MODEL",
            )
        paths = [DEFAULT_FILE]
    broken: list[tuple[str, KvcalcError]] = []
    used: set[str] = set()
    context = _context(options, options.settings, used)
    _check_loadable(options, context.models)
    servers = _of_command(command) if command else ()
    targets = [target for server in servers for target in of_alternatives(server, context)]
    for path in paths:
        try:
            targets += _of_path(path, options, context, stdin, used)
        except KvcalcError as error:
            broken.append((path, error))
    if broken and not targets:
        raise broken[0][1]
    targets += [_unreadable(path, error) for path, error in broken]
    if not targets:
        raise InputError(
            "no server is started by what was named",
            hint="name the files that start one: a Deployment, a compose file, a script",
            where=", ".join(printable(p) for p in paths),
        )
    if notes is not None:
        notes.extend(_unused(options, used))
    return _named_apart(targets)


def _check_loadable(options: Options, models: Models) -> None:
    """Load every model of the options, whether or not anything is served by its name."""
    for given in options.models:
        try:
            models.load(given.partition("=")[2] or given)
        except KvcalcError as error:
            error.where = error.where or "--model"
            raise


def _unused(options: Options, used: set[str]) -> Iterator[str]:
    """Yield a line for every model of the options that nothing serves."""
    for given in options.models:
        name, equals, _ = given.partition("=")
        if name in used:
            continue
        why = f"nothing serves {printable(name)}" if equals else "every model served is known"
        yield f"--model {printable(given)} has no effect: {why}"


def _context(options: Options, settings: CheckFile | None, used: set[str]) -> Context:
    """Return what holds for every file that has no kvcalc.yaml of its own.

    Raises:
        UsageError: two models for one name, or for what is not known.
    """
    named: dict[str, Named] = {}
    fallback: str | None = None
    for given in options.models:
        name, equals, source = given.partition("=")
        source = source if equals else name
        before = fallback if not equals else named[name].source if name in named else None
        if before not in (None, source):
            raise UsageError(
                f"{before} and {source} are both given" + (f" for {name}" if equals else ""),
                hint="give one of them" + ("" if equals else ", or NAME=MODEL for each name"),
                where="--model",
            )
        if equals:
            named[name] = Named(source)
        else:
            fallback = source
    defaults = settings.defaults if settings is not None else Entry("", 0)
    models = Models(
        {**(settings.models if settings is not None else {}), **named},
        fallback=fallback,
        folders=options.folders,
        base=settings.folder if settings is not None else "",
        used=used,
    )
    gpu = defaults.settings.get("gpu")
    _within_card(options)
    return Context(
        models=models,
        gpu=options.gpu,
        gpu_memory=options.gpu_memory,
        gpu_free=options.gpu_free,
        host_memory=options.host_memory,
        default_gpu=None if gpu is None else str(gpu.value),
        engine_version=options.engine_version,
        sequences=options.sequences,
        quantization=options.quantization,
        beside=defaults.beside,
        assertions={**defaults.assertions, **{a.name: a for a in options.assertions}},
        levels=defaults.levels,
        price=settings.price if settings is not None else None,
        figures=settings.figures if settings is not None else "expected",
    )


def _within_card(options: Options) -> None:
    """Check that no more of a card is said to be free than it has.

    Raises:
        UsageError: it is.
    """
    total = options.gpu_memory
    if total is None and options.gpu is not None:
        total = card_of(options.gpu).memory_bytes
    if options.gpu_free is not None and total is not None and options.gpu_free > total:
        raise UsageError(
            f"{format_bytes(options.gpu_free)} are free of a card of {format_bytes(total)}",
            hint="give less than the whole card",
            where="--gpu-free",
        )


def _of_path(
    path: str, options: Options, context: Context, stdin: bytes | None, used: set[str]
) -> Iterator[Target]:
    found: list[tuple[Source, list[Server], list[Target]]] = []
    for source in find([path], stdin):
        name = source.name.lower()
        text = _text_of(source) if name == "-" or name.endswith((".yaml", ".yml")) else None
        try:
            if text is not None and is_check_file(source.name, text):
                found.append((source, [], list(_of_check_file(source, text, options, used))))
            else:
                found.append((source, _servers(source), []))
        except KvcalcError as error:
            if source.given:
                raise
            found.append((source, [], list(_unread(source.name, error))))
    charts = charts_of(source.name for source, servers, _ in found if servers)
    for source, servers, targets in found:
        yield from targets
        if not is_values_of(source.name, charts):
            for server in servers:
                yield from of_alternatives(server, context)


def _servers(source: Source) -> list[Server]:
    """Return the servers that a file starts.

    Raises:
        InputError: it cannot be read, or starts none.
    """
    from kvcalc.manifests.paths import servers_of  # runs of kvcalc.yaml alone do without

    return servers_of(source)


def _of_command(words: Sequence[str]) -> list[Server]:
    """Return the servers that a command starts, as it is typed in a shell.

    Raises:
        InputError: it starts none that kvcalc knows.
    """
    from kvcalc.manifests import read_source  # as above
    from kvcalc.manifests.commands import read

    hint = "write it as you type it: kvcalc check -- vllm serve MODEL"
    try:
        found = read_source("command.sh", shlex.join(words), Folder("."))
    except InputError:
        raise InputError("no server that kvcalc knows in this command", hint=hint) from None
    here = Folder(".")

    def beside(path: str) -> Attached | None:
        text = here.read(path)
        return None if text is None else Attached(path, 1, text)

    return [
        read(one._replace(name="command", file="", line=0, carrier="command"), beside)
        for one in found
    ]


def _text_of(source: Source) -> str | None:
    try:
        return decoded(source.text, source.name)
    except KvcalcError:  # told by whoever reads it
        return None


def _of_check_file(source: Source, text: str, options: Options, used: set[str]) -> Iterator[Target]:
    folder = "" if source.name == "-" else os.path.dirname(source.name)
    file = read_check_file(text, printable(source.name), folder)
    if not file.deployments:
        if not source.given:
            return  # settings alone, met in a folder
        raise InputError(
            "no deployment to check",
            hint="write deployments: with a list under it, or name the manifests to check",
            where=file.file,
        )
    context = _context(options, file, used)
    loads: dict[str, Load] = {}
    for entry in file.deployments:
        chosen = tuple(_load(name, file, loads) for name in entry.workloads)
        if not entry.files:
            over = {a.name: a for a in options.assertions}
            entry = entry._replace(assertions={**entry.assertions, **over})  # noqa: PLW2901 - options last
            yield of_entry(entry, context, file.file, chosen, file.defaults)
            continue
        yield from _of_files(entry, file, context, chosen)


def _load(name: str, file: CheckFile, loads: dict[str, Load]) -> Load:
    if name not in loads:
        loads[name] = load_of(file.workloads[name], file.folder)
    return loads[name]


def _of_files(
    entry: Entry, file: CheckFile, context: Context, loads: tuple[Load, ...]
) -> Iterator[Target]:
    started: list[tuple[Source, list[Server]]] = []
    for source in find(os.path.join(file.folder, name) for name in entry.files):
        try:
            started.append((source, _servers(source)))
        except KvcalcError as error:
            if source.given:
                raise
            yield from _unread(source.name, error)
    charts = charts_of(source.name for source, _ in started)
    servers = [s for source, each in started if not is_values_of(source.name, charts) for s in each]
    if entry.server is not None:
        names = [server.invocation.name for server in servers]
        servers = [s for s in servers if s.invocation.name == entry.server]
        if not servers:
            raise InputError(
                f"no server {entry.server!r:.60} in {', '.join(entry.files)}",
                hint=f"there are {', '.join(names) or 'none'}",
                where=f"{file.file}:{entry.line}",
            )
    for server in servers:
        own = server.invocation.name
        name = entry.name if len(servers) == 1 else f"{entry.name}/{own}"
        yield from of_alternatives(server, context, entry, name=name, loads=loads)


def _unread(path: str, error: KvcalcError) -> Iterator[Target]:
    """Yield what is told of a file that was met in a folder and not read."""
    if isinstance(error, NoServerError):
        return
    target = _unreadable(path, error)
    if isinstance(error, PassedOverError):
        target = target._replace(faults=(), reason=f"not read: {error.message}", hint=error.hint)
    yield target


def _unreadable(path: str, error: KvcalcError) -> Target:
    file, _, line = error.where.rpartition(":")
    number = int(line) if line.isdecimal() else 0
    return Target(
        printable(path),
        file if number else printable(path),
        number,
        faults=(Fault("unreadable", error.message, error.hint),),
    )


def _named_apart(targets: list[Target]) -> list[Target]:
    """Return targets with names that differ, so that results can be told apart."""
    counts: dict[str, int] = {}
    for target in targets:
        counts[target.name] = counts.get(target.name, 0) + 1
    taken: set[str] = set()
    found = []
    for target in targets:
        name = target.name
        if counts[name] > 1 and target.file:
            name = f"{target.file}:{name}"
        number, unique = 2, name
        while unique in taken:
            unique = f"{name} ({number})"
            number += 1
        taken.add(unique)
        shown = without_credentials(printable(unique))
        found.append(target._replace(name=shown, file=printable(target.file)))
    return found
