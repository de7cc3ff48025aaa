"""Results of checks as GitHub's workflow commands: annotations on the lines of a pull request.

docs.github.com, "Workflow commands for GitHub Actions": `%`, CR and LF are escaped in a message,
`:` and `,` in a property as well. About ten annotations of a kind are shown, so the worst come
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.answers.assertions import Check, told, worst_first
from kvcalc.core.units import UnitSystem

__all__ = ["as_commands"]

_COMMANDS = {
    "refused": "error",
    "fail": "error",
    "warn": "warning",
    "skip": "warning",
    "note": "notice",
}


def as_commands(results: Sequence[Check], units: UnitSystem) -> str:
    """Return one command a result that is not well; nothing for what passed.

    What was skipped is a warning: nobody knows whether it is well.
    """
    return "".join(f"{line}\n" for line in _commands(results, units))


def _commands(results: Sequence[Check], units: UnitSystem) -> Iterator[str]:
    for result in worst_first(results):
        command = _COMMANDS.get(result.status)
        if command is None:
            continue
        place = [f"file={_property(result.file)}"] if result.file not in ("", "-") else []
        if place and result.line:
            place.append(f"line={result.line}")
        properties = ",".join([*place, f"title={_property(_title(result))}"])
        message = told(result, units) + (f" -> {result.hint}" if result.hint else "")
        yield f"::{command} {properties}::{_data(message)}"


def _title(result: Check) -> str:
    of = f" of {result.workload}" if result.workload else ""
    return f"{result.name}{of}: {result.assertion}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
