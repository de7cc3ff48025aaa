"""Files and folders -> the servers that they start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvcalc.core.errors import InputError
from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Attached, Server
from kvcalc.manifests.reading import read_source
from kvcalc.manifests.sources import NoServerError, Source, charts_of, find, is_values_of
from kvcalc.manifests.sources import beside as seen_from

__all__ = ["Found", "read_paths", "servers_of"]


class Found(NamedTuple):
    """What files start.

    Attributes:
        servers: in the order of the files.
        passed: what was met in a folder and could not be read, with the reason.
    """

    servers: tuple[Server, ...]
    passed: tuple[InputError, ...]


def read_paths(paths: Iterable[str], stdin: bytes | None = None) -> Found:
    """Return the servers that files, and the files of folders, start.

    Args:
        paths: files, folders, and `-` for stdin.
        stdin: what `-` holds; read from the process's own where it is not given.

    Raises:
        InputError: a file that was named starts no server, or is broken.
    """
    found: list[tuple[Source, list[Server]]] = []
    passed: list[InputError] = []
    for source in find(paths, stdin):
        try:
            found.append((source, servers_of(source)))
        except NoServerError:
            if source.given:
                raise
        except InputError as error:
            if source.given:
                raise
            passed.append(error)
    charts = charts_of(source.name for source, _ in found)
    servers = [
        server
        for source, each in found
        if source.given or not is_values_of(source.name, charts)
        for server in each
    ]
    return Found(tuple(servers), tuple(passed))


def servers_of(source: Source) -> list[Server]:
    """Return the servers that a file starts, at least one.

    Raises:
        InputError: as `read_source`; the source's own fault.
    """
    if source.fault is not None:
        raise source.fault

    def beside(path: str) -> Attached | None:
        text = source.folder.read(path)
        return None if text is None else Attached(seen_from(source.name, path), 1, text)

    found = read_source(source.name, source.text, source.folder)
    return [read(invocation, beside) for invocation in found]
