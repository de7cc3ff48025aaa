"""Results of checks as JUnit XML, which GitLab, Jenkins and others show: a case an assertion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from kvcalc.answers.assertions import Check, told
from kvcalc.core.units import UnitSystem

__all__ = ["as_junit"]

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
