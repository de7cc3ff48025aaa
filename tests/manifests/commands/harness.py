"""A command as a carrier hands it on, and what is read of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Attached, GpuRequest, Invocation, Server, Word

__all__ = ["codes", "fields", "invocation", "level", "read_command", "value", "words"]


def words(command: str) -> tuple[Word, ...]:
    """Return the words of a command as a shell parts them, all on line 1."""
    return tuple(Word(text, 1) for text in shlex.split(command))


def invocation(
    command: str | tuple[Word, ...],
    *,
    image: str | None = None,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    carrier: str = "command",
    engine: str | None = None,
    under_entry_point: bool = False,
) -> Invocation:
    """Return what a carrier would hand on."""
    return Invocation(
        "server",
        carrier,
        "deploy.yaml",
        1,
        words(command) if isinstance(command, str) else command,
        image=Word(image, 2) if image is not None else None,
        env={name: Word(text, 3) for name, text in (env or {}).items()},
        gpu=GpuRequest(),
        attached={path: Attached(path, 10, text) for path, text in (files or {}).items()},
        engine=engine,
        under_entry_point=under_entry_point,
    )


def read_command(
    command: str | tuple[Word, ...],
    *,
    image: str | None = None,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    carrier: str = "command",
    engine: str | None = None,
    under_entry_point: bool = False,
) -> Server:
    """Return the server that a command starts."""
    return read(
        invocation(
            command,
            image=image,
            env=env,
            files=files,
            carrier=carrier,
            engine=engine,
            under_entry_point=under_entry_point,
        )
    )


def fields(server: Server) -> dict[str, object]:
    """Return the settings by name."""
    return {setting.name: setting.value for setting in server.settings}


def value(server: Server, name: str) -> object:
    """Return a setting; "absent" where it was not read."""
    return fields(server).get(name, "absent")


def codes(server: Server) -> list[str]:
    """Return the codes of all findings, in order."""
    return [finding.code for finding in server.findings]


def level(server: Server, code: str) -> str:
    """Return the level of the one finding of a code."""
    (found,) = [finding for finding in server.findings if finding.code == code]
    return found.level
