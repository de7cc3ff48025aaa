"""Every output format by its name: what commands print from, and what tests go through.

Results hold texts out of logs, pages, models and manifests that strangers wrote. `render` is the
one way from results to text: no format gets a text before `fit` has gone over it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvcalc.core.credentials import without_credentials
from kvcalc.core.errors import printable
from kvcalc.core.units import UnitSystem
from kvcalc.report.blocks import Block

if TYPE_CHECKING:
    from kvcalc.answers.check_report import CheckReport

__all__ = ["COMMON", "OWN", "Answer", "Screen", "fit", "names", "render"]

_BLOCK_MARKS = "█░─"


class Answer(NamedTuple):
    """What a command answers, whatever the format.

    Attributes:
        command: whose results they are.
        version: kvcalc's.
        inputs: of the JSON document.
        results: of one kind, in input order.
        notes, warnings: of the JSON document; the others have them on stderr.
        members: further keys of the JSON document.
    """

    command: str
    version: str
    inputs: Mapping[str, Any]
    results: Sequence[Any]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    members: Mapping[str, Any] = {}


class Screen(NamedTuple):
    """What a text is for; a file, where nothing is said.

    Attributes:
        width: columns; None where nothing is wrapped.
        encoding: in which it will be written.
        colours: it is a terminal, which may show them.
    """

    width: int | None = None
    encoding: str = "utf-8"
    colours: bool = False

    def shows(self, text: str) -> bool:
        """Whether its encoding has these characters."""
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True


def names(command: str) -> tuple[str, ...]:
    """Return the formats of a command, those of every command first."""
    return tuple({**COMMON, **OWN.get(command, {})})


def render(form: str, answer: Answer, units: UnitSystem, screen: Screen | None = None) -> str:
    """Return an answer in a format, without credentials and without what steers a terminal."""
    # JSON has escapes of its own for such characters, and programs read what was there.
    shown = Answer(*(fit(part, escaped=form != "json") for part in answer))
    formats = {**COMMON, **OWN.get(answer.command, {})}
    return formats[form](shown, units, screen or Screen())


def fit(value: Any, *, escaped: bool) -> Any:
    """Return a value in which no text holds credentials or, `escaped`, steers a terminal.

    What holds nothing of the kind is returned as it is.
    """
    match value:
        case str():
            return without_credentials(printable(value) if escaped else value)
        case msgspec.Struct():
            made = value
            for name in value.__struct_fields__:
                old = getattr(value, name)
                new = fit(old, escaped=escaped)
                if new is not old:
                    made = copy.copy(value) if made is value else made
                    msgspec.structs.force_setattr(made, name, new)
            return made
        case dict():
            pairs = {
                fit(key, escaped=escaped): fit(item, escaped=escaped) for key, item in value.items()
            }
            return value if pairs == value else pairs
        case list():
            items = [fit(item, escaped=escaped) for item in value]
            return value if items == value else items
        case tuple():
            made_of = tuple(fit(item, escaped=escaped) for item in value)
            return value if made_of == value else made_of
    return value


Render = Callable[[Answer, UnitSystem, Screen], str]


def _blocks(answer: Answer, units: UnitSystem) -> Sequence[Block]:
    if answer.command == "check":
        from kvcalc.report import checks_table

        return checks_table.blocks(_report(answer), units)
    if answer.command == "diff":
        from kvcalc.report import difference

        return difference.blocks(answer.results, units)
    from kvcalc.report.views import view

    return view(answer.results, units)


def _report(answer: Answer) -> CheckReport:
    from kvcalc.answers.check_report import CheckReport  # of one command

    return CheckReport(results=tuple(answer.results), **answer.members)


def _table(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    from kvcalc.report import table

    width, ascii_only = screen.width or table.UNLIMITED, not screen.shows(_BLOCK_MARKS)
    lines = table.render(_blocks(answer, units), width=width, ascii_only=ascii_only)
    if not screen.colours:
        return table.plain(lines)
    from kvcalc.report.terminal import styled

    return styled(lines, width) or table.plain(lines)


def _json(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del units
    from kvcalc.report.records import as_json

    document = {
        "schema": f"kvcalc.{answer.command}/1",
        "kvcalc_version": answer.version,
        "inputs": answer.inputs,
        "results": answer.results,
        "notes": answer.notes,
        "warnings": answer.warnings,
        **answer.members,
    }
    text = as_json(document)
    return text if screen.shows(text) else as_json(document, ascii_only=True)


def _csv(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del units, screen
    from kvcalc.report.records import as_csv

    return as_csv(answer.results)


def _markdown(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del screen
    from kvcalc.report import markdown

    return markdown.render(_blocks(answer, units))


def _check_csv(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del units, screen
    from kvcalc.report.checks_table import COLUMNS
    from kvcalc.report.records import columns_csv

    return columns_csv(COLUMNS, answer.results)


def _check_comment(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del screen
    from kvcalc.report import checks_table, markdown

    return markdown.render(checks_table.comment(_report(answer), units))


def _github(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del screen
    from kvcalc.report.ci_formats import as_commands

    return as_commands(answer.results, units)


def _junit(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del screen
    from kvcalc.report.ci_formats import as_junit

    return as_junit(answer.results, units)


def _gitlab(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del screen
    from kvcalc.report.ci_formats import as_code_quality

    return as_code_quality(answer.results, units)


def _diff_csv(answer: Answer, units: UnitSystem, screen: Screen) -> str:
    del units, screen
    from kvcalc.answers.changes import Changed  # of one command
    from kvcalc.report.records import columns_csv

    return columns_csv(Changed.__struct_fields__, answer.results)


COMMON: Mapping[str, Render] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
}
"""The formats of every command."""

OWN: Mapping[str, Mapping[str, Render]] = {
    "check": {
        "csv": _check_csv,
        "markdown": _check_comment,
        "github": _github,
        "junit": _junit,
        "gitlab": _gitlab,
    },
    "diff": {"csv": _diff_csv},
}
"""The formats of one command; they take the place of the common ones."""
