"""Results of checks in the formats of CI systems: JUnit, GitHub's commands, GitLab's reports."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from kvcalc.answers.assertions import Check, told, worst_first
from kvcalc.core.units import UnitSystem

__all__ = ["as_code_quality", "as_commands", "as_junit"]


_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 allows in no document, not even escaped."""


def as_junit(results: Sequence[Check], units: UnitSystem) -> str:
    """Return a test suite a deployment, in the order of the results; no two cases of one name.

    A failure is what failed; `skipped` is what was switched off or could not be asked; `error` is
    what could not be read. Warnings and notes pass, and are told in the case's output.
    """
    suites: dict[str, list[Check]] = {}
    for result in results:
        suites.setdefault(result.name, []).append(result)
    taken: dict[tuple[str, str], int] = {}
    counts = _counts(results)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="kvcalc" {counts}>']
    for name, cases in suites.items():
        lines.append(f"  <testsuite name={_attribute(name)} {_counts(cases)}>")
        for case in cases:
            about = _about(case)
            number = taken[name, about] = taken.get((name, about), 0) + 1
            lines += _case(case, about if number == 1 else f"{about} ({number})", units)
        lines.append("  </testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _counts(results: Sequence[Check]) -> str:
    failed = sum(r.status == "fail" for r in results)
    refused = sum(r.status == "refused" for r in results)
    skipped = sum(r.status in ("skip", "off") for r in results)
    return (
        f'tests="{len(results)}" failures="{failed}" errors="{refused}" skipped="{skipped}"'
        ' time="0"'
    )


def _about(result: Check) -> str:
    of = f" of {result.workload}" if result.workload else ""
    return f"{result.assertion}{of}"


def _case(result: Check, name: str, units: UnitSystem) -> list[str]:
    place = f" file={_attribute(result.file)}" if result.file else ""
    if result.line:
        place += f' line="{result.line}"'
    head = (
        f'    <testcase classname={_attribute(result.name)} name={_attribute(name)}{place} time="0"'
    )
    said = told(result, units)
    body = said + (f"\n{result.hint}" if result.hint else "")
    if result.where:
        body += f"\n{result.where}"
    match result.status:
        case "fail":
            inner = f'<failure message={_attribute(said)} type="check">{_text(body)}</failure>'
        case "refused":
            inner = f'<error message={_attribute(said)} type="refused">{_text(body)}</error>'
        case "skip" | "off":
            inner = f"<skipped message={_attribute(said)}>{_text(body)}</skipped>"
        case "warn" | "note":
            inner = f"<system-out>{_text(f'{result.status}: {body}')}</system-out>"
        case _:
            return [f"{head}/>"]
    return [f"{head}>", f"      {inner}", "    </testcase>"]


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)


def _text(text: str) -> str:
    return escape(_clean(text))


def _attribute(text: str) -> str:
    return quoteattr(_clean(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


# Results of checks as GitHub's workflow commands: annotations on the lines of a pull request.
#
# docs.github.com, "Workflow commands for GitHub Actions": `%`, CR and LF are escaped in a message,
# `:` and `,` in a property as well. About ten annotations of a kind are shown, so the worst come
# first.

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


# Results of checks as GitLab's Code Quality report: one entry a result that is not well.
#
# docs.gitlab.com, "Code Quality report format": description, check_name, fingerprint, severity,
# location.path (relative, without a leading ./), location.lines.begin.

_SEVERITIES = {
    "refused": "critical",
    "fail": "major",
    "warn": "minor",
    "skip": "info",
    "note": "info",
}
_NO_FILE = "kvcalc.yaml"
"""Where an entry is put that belongs to no file: each must have a path."""


def as_code_quality(results: Sequence[Check], units: UnitSystem) -> str:
    """Return the report as JSON, the worst first.

    A fingerprint stays the same while a result is about the same thing: it holds the deployment,
    the assertion and the file, and no measured value nor line.
    """
    seen: dict[str, int] = {}
    entries = []
    for result in worst_first(results):
        severity = _SEVERITIES.get(result.status)
        if severity is None:
            continue
        path = _path(result.file)
        about = "\0".join((path, result.name, result.assertion, result.workload or ""))
        number = seen[about] = seen.get(about, 0) + 1  # two findings of one kind differ
        mark = hashlib.sha256(f"{about}\0{number}".encode("utf-8", "surrogatepass")).hexdigest()
        entries.append(
            {
                "description": _description(result, units),
                "check_name": f"kvcalc/{result.assertion}",
                "fingerprint": mark,
                "severity": severity,
                "location": {"path": path, "lines": {"begin": max(1, result.line)}},
            }
        )
    return json.dumps(entries, indent=2, ensure_ascii=True) + "\n"


def _path(file: str) -> str:
    if file in ("", "-"):
        return _NO_FILE
    return posixpath.normpath(file.replace("\\", "/"))


def _description(result: Check, units: UnitSystem) -> str:
    of = f" of {result.workload}" if result.workload else ""
    hint = f" -> {result.hint}" if result.hint else ""
    return f"{result.name}{of}: {told(result, units)}{hint}"
