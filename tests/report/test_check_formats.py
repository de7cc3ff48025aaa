"""Results of checks in the formats that CI systems read, each by a reader of that format."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from typing import NamedTuple

import pytest

from kvcalc.answers.assertions import Check, Found, check, parse_assertion, skipped, summary
from kvcalc.answers.check_report import CheckReport, Deployed, ReadSetting
from kvcalc.report import checks_table, ci_formats, markdown, records, table

NASTY = 'a%b\n::error::c, d: "e" <f> |g| é &amp; \x07]]>'
"""What formats escape, each in its own way."""


def finding(status: str, message: str = "m", **fields: object) -> Check:
    level = {"fail": "error", "refused": "error", "warn": "warn", "note": "note"}[status]
    given = {"hint": "h", "file": "dir/deploy.yaml", "line": 7, "where": "dir/deploy.yaml:7"}
    return Check(
        name="chat", assertion="idle-gpus", level=level, status=status,  # type: ignore[arg-type]
        message=message, **{**given, **fields},  # type: ignore[arg-type]
    )  # fmt: skip


def asserted(name: str, limit: object, value: float, line: int = 3) -> Check:
    assertion = parse_assertion(name, limit, file="kvcalc.yaml", line=line)
    return check("chat", assertion, Found(value), hint="max_model_len 4352 passes")


RESULTS = (
    asserted("min_max_concurrency", 32, 40.0),
    asserted("min_max_concurrency", {"limit": 32, "level": "warn"}, 17.0, line=4),
    asserted("max_kv_cache_bytes", "40GiB", 41 * 2**30, line=5),
    skipped("chat", parse_assertion("fits", given=True), "no card", "name it"),
    asserted("fits", "off", 1.0),
    finding("refused", "unknown model 'x'"),
    finding("note", "cache is kept 2 times"),
    finding("fail", NASTY, hint=NASTY, file="a,b:c%.yaml", where="a,b:c%.yaml:7"),
)
REPORT = CheckReport(results=RESULTS, deployments=(), summary=summary(RESULTS))


class Command(NamedTuple):
    name: str
    properties: dict[str, str]
    message: str


def workflow_commands(text: str) -> list[Command]:
    """Read lines as GitHub's runner does (actions/runner, ActionCommand.cs, TryParseV2)."""
    found = []
    for line in text.splitlines():
        head, _, message = line.removeprefix("::").partition("::")
        assert line.startswith("::"), line
        name, _, rest = head.partition(" ")
        properties = {}
        for pair in rest.split(",") if rest else ():
            key, _, value = pair.partition("=")
            for mark, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
                value = value.replace(mark, sign)
            properties[key] = value.replace("%25", "%")
        for mark, sign in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            message = message.replace(mark, sign)
        found.append(Command(name, properties, message))
    return found


def test_github() -> None:
    """What did not pass, what was skipped too, is annotated on its line, the worst first."""
    found = workflow_commands(ci_formats.as_commands(RESULTS, "binary"))

    assert [c.name for c in found] == ["error", "error", "error", "warning", "warning", "notice"]
    assert found[0].properties == {
        "file": "dir/deploy.yaml",
        "line": "7",
        "title": "chat: idle-gpus",
    }
    assert found[1].properties["file"] == "kvcalc.yaml"
    assert found[1].properties["line"] == "5"
    assert found[1].message == "kv_cache_bytes 41 GiB > 40 GiB -> max_model_len 4352 passes"
    assert found[2].properties["file"] == "a,b:c%.yaml"
    assert found[2].message == f"{NASTY} -> {NASTY}"


def test_github_without_a_file() -> None:
    """A command has no line to be shown at; it is an annotation all the same."""
    text = ci_formats.as_commands([finding("fail", file="", line=0, where="")], "binary")

    assert workflow_commands(text)[0].properties == {"title": "chat: idle-gpus"}


_NUMBERS = {"tests", "failures", "errors", "skipped"}
_CHILDREN = {"failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message"}}


def test_junit() -> None:
    """The XML holds what the schema of JUnit reports (junit-10.xsd of Jenkins' xUnit) asks for."""
    root = ET.fromstring(ci_formats.as_junit(RESULTS, "binary"))  # noqa: S314 - our own

    assert root.tag == "testsuites"
    assert {*root.attrib} == {"name", "time", *_NUMBERS}
    for suite in root:
        assert suite.tag == "testsuite"
        assert {"name", "time", *_NUMBERS} == {*suite.attrib}
        cases = list(suite)
        assert int(suite.attrib["tests"]) == len(cases)
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{kind}"))
        for case in cases:
            assert case.tag == "testcase"
            assert {"classname", "name", "time"} <= {*case.attrib}
            assert {*case.attrib} <= {"classname", "name", "time", "file", "line"}
            assert len(case) <= 1
            for child in case:
                assert {*child.attrib} <= _CHILDREN.get(child.tag, set())
    assert int(root.attrib["tests"]) == len(RESULTS)
    assert [root.attrib[name] for name in ("failures", "errors", "skipped")] == ["2", "1", "2"]


def test_junit_escapes() -> None:
    """What XML cannot hold is replaced, all else comes back as it was."""
    root = ET.fromstring(ci_formats.as_junit(RESULTS, "binary"))  # noqa: S314 - our own
    case = root.findall("testsuite/testcase")[-1]
    (failure,) = case
    shown = NASTY.replace("\x07", "\ufffd")

    assert failure.attrib["message"] == shown
    assert failure.text == f"{shown}\n{shown}\na,b:c%.yaml:7"
    assert case.attrib["file"] == "a,b:c%.yaml"


_SEVERITIES = ("info", "minor", "major", "critical", "blocker")


def test_gitlab() -> None:
    """Every entry has what GitLab's Code Quality report needs, and nothing twice."""
    text = ci_formats.as_code_quality(RESULTS, "binary")
    entries = json.loads(text)

    assert not text.startswith("\ufeff")
    assert [e["severity"] for e in entries] == [
        *("critical", "major", "major", "minor", "info", "info")
    ]
    for entry in entries:
        assert isinstance(entry["description"], str)
        assert isinstance(entry["check_name"], str)
        assert re.fullmatch("[0-9a-f]{64}", entry["fingerprint"])
        assert entry["severity"] in _SEVERITIES
        assert not entry["location"]["path"].startswith(("./", "/"))
        assert isinstance(entry["location"]["lines"]["begin"], int)
        assert entry["location"]["lines"]["begin"] >= 1
    marks = [e["fingerprint"] for e in entries]
    assert len(marks) == len(set(marks))
    assert entries[1]["location"] == {"path": "kvcalc.yaml", "lines": {"begin": 5}}


def test_gitlab_fingerprints_hold_no_figures() -> None:
    """An entry stays the same while its figure and its line move, and differs from all others."""

    def mark(result: Check) -> str:
        return str(json.loads(ci_formats.as_code_quality([result], "binary"))[0]["fingerprint"])

    one = asserted("min_max_concurrency", 32, 17.0)
    assert mark(one) == mark(asserted("min_max_concurrency", 64, 3.0, line=99))
    assert mark(one) != mark(asserted("min_max_sequences", 32, 17))
    assert mark(finding("fail")) != mark(finding("fail", file="other.yaml"))
    both = json.loads(ci_formats.as_code_quality([finding("fail"), finding("fail")], "binary"))
    assert both[0]["fingerprint"] != both[1]["fingerprint"]


def test_gitlab_path_of_a_command() -> None:
    """An entry must name a file; a path never begins with `./`."""
    entries = json.loads(
        ci_formats.as_code_quality(
            [finding("fail", file="", line=0), finding("fail", file="./a/../b.yaml")], "binary"
        )
    )

    assert [e["location"]["path"] for e in entries] == ["kvcalc.yaml", "b.yaml"]


def test_csv() -> None:
    """A row a result, numbers exact, nothing where there is no value."""
    rows = list(csv.DictReader(io.StringIO(records.columns_csv(checks_table.COLUMNS, RESULTS))))

    assert len(rows) == len(RESULTS)
    assert rows[2]["limit"] == str(40 * 2**30)
    assert rows[2]["actual"] == str(41 * 2**30)
    assert rows[0]["actual"] == "40.0"
    assert rows[4]["limit"] == "true"
    assert rows[5]["operator"] == rows[5]["actual"] == ""
    assert rows[7]["message"] == NASTY
    assert rows[7]["file"] == "a,b:c%.yaml"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_table(width: int) -> None:
    """The worst come first; lines fit the width, and no number is cut."""
    results = (*RESULTS[:-1], asserted("max_needed_bytes", 10**15, 10**15 + 1))
    report = CheckReport(results=results, deployments=(), summary=summary(results))
    shown = table.plain(
        table.render(checks_table.blocks(report, "binary"), width=width, ascii_only=True)
    )
    lines = shown.splitlines()

    assert lines[0].startswith("REFUSED")
    assert lines[-1].startswith("1 refused") or width == 40
    assert max(len(line) for line in lines) <= max(width, 30)
    assert "1000000000000001" in shown.replace("\n", "")
    words = [line.split()[0] for line in lines if re.match("[A-Z]{3,} ", line)]
    assert words == ["REFUSED", "FAIL", "FAIL", "WARN", "SKIP", "NOTE", "PASS", "OFF"]


def test_markdown() -> None:
    """What is not well is a table whose cells no text can break."""
    text = markdown.render(checks_table.comment(REPORT, "binary"))
    rows = [line for line in text.splitlines() if line.startswith("|")]

    assert text.startswith("### kvcalc check: 1 refused, 2 failed, 1 warned, 1 passed, 1 skipped")
    assert len(rows) == 2 + 6
    for row in rows:
        assert len(re.sub(r"\\\|", "", row).strip("|").split("|")) == 5
    assert "- PASS chat: max\\_concurrency 40.00 \\>= 32" in text


def test_decimal() -> None:
    """Sizes are printed in the units that are asked for."""
    text = ci_formats.as_commands(RESULTS, "decimal")

    assert "kv_cache_bytes 44.02 GB > 42.95 GB" in text


def test_what_was_read() -> None:
    """What was read is a table of settings with the places that they were read at."""
    setting = ReadSetting(
        name="max_model_len", value=8192, kind="field", written="--max-model-len", where="a.yaml:3"
    )
    one = Deployed(
        name="chat", file="a.yaml", line=1, engine="vllm", engine_version="0.10.0",
        model="m", gpu=None, read=(setting,),
    )  # fmt: skip
    report = CheckReport(results=(), deployments=(one,), summary=summary(()))
    shown = table.plain(
        table.render(checks_table.blocks(report, "binary"), width=80, ascii_only=True)
    )

    assert "chat: vllm 0.10.0" in shown
    assert re.search(r"max_model_len +8192 +--max-model-len +a.yaml:3", shown)
