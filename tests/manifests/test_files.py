"""Every file of files/ is read as expected.yaml says, and what is wrong with it is found there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc.answers.assertions import Check, parse_assertion
from kvcalc.checks.gather import Options, gather
from kvcalc.checks.run import run
from kvcalc.manifests import read_paths
from kvcalc.manifests.found import Finding, Server
from tests.manifests.compared import of_server
from tests.manifests.public_rows import Expected

HERE = Path(__file__).parent
FILES = HERE / "files"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load(
    (HERE / "expected.yaml").read_text(encoding="utf-8")
)
NEEDS = (1, 2, 3, 10, 11, 14, 15, 19, 21, 22, 29, 34)
each_file = pytest.mark.parametrize("name", EXPECTED)


def test_every_file_has_an_expectation_and_every_need_two_files() -> None:
    """Nothing lies there unread; a question has a wrong file and a cured one."""
    assert {file.name for file in FILES.iterdir()} == EXPECTED.keys()
    assert len(EXPECTED) >= 40
    for need in NEEDS:
        assert {f"need-{need:02}-bad.yaml", f"need-{need:02}-good.yaml"} <= EXPECTED.keys()


@each_file
def test_a_file_is_read_as_expected(name: str) -> None:
    """Servers, settings, cards, nodes, replicas, and no setting that the file does not give."""
    servers = servers_of(name)
    expected = EXPECTED[name]["servers"]
    assert [s.engine for s in servers] == [each["engine"] for each in expected]
    for found, each in zip(servers, expected, strict=True):
        assert list(of_server(each["engine"], found, expected_of(each))) == []
        assert found.invocation.replicas in (
            each.get("replicas"),
            None if "replicas" in each else 1,
        )
        assert found.invocation.line >= 1
        for setting in found.settings:
            assert setting.line >= 1
            assert setting.written


@each_file
def test_reading_alone_finds_what_is_wrong_on_its_line(name: str) -> None:
    """Mistyped, removed and misused flags; nothing in a file that is right."""
    found = [finding for server in servers_of(name) for finding in server.findings]
    assert placed(found) == sorted(EXPECTED[name].get("findings", ()))


@each_file
def test_a_check_finds_what_is_wrong_and_passes_what_is_cured(name: str) -> None:
    """Errors and warnings are exactly those expected, each on its line, one with the cure."""
    expected = EXPECTED[name]
    found = checked(name)
    failed = [each for each in found if each.status in ("fail", "warn", "refused")]
    wrong = {*expected.get("findings", ()), *expected.get("check", ())}
    assert {f"{each.assertion}@{each.line}" for each in failed} == wrong, [
        (each.assertion, each.line, each.message) for each in failed
    ]
    notes = {f"{each.assertion}@{each.line}" for each in found if each.status == "note"}
    assert set(expected.get("notes", ())) <= notes
    if "cure" in expected:
        assert any(expected["cure"] in each.hint for each in found), [e.hint for e in found]


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("need-")])
def test_a_question_is_answered_and_not_passed_over(name: str) -> None:
    """No assertion on a file that shows a mistake is skipped, but of models that no preset has."""
    skipped = [each for each in checked(name) if each.status == "skip"]
    assert all("q4_k_m" in each.message for each in skipped), skipped


def servers_of(name: str) -> list[Server]:
    """Return the servers of a file, read through stdin where its line says so."""
    if EXPECTED[name].get("stdin"):
        return list(read_paths(["-"], stdin=(FILES / name).read_bytes()).servers)
    return list(read_paths([str(FILES / name)]).servers)


def checked(name: str) -> tuple[Check, ...]:
    """Return the results of a check of a file."""
    given: Mapping[str, object] = EXPECTED[name].get("assertions", {})
    assertions = tuple(parse_assertion(each, limit) for each, limit in given.items())
    models = tuple(EXPECTED[name].get("models", ()))
    options = Options(gpu=EXPECTED[name].get("gpu"), models=models, assertions=assertions)
    return run(gather([str(FILES / name)], (), options), allow_skips=True).results


def expected_of(each: Mapping[str, Any]) -> Expected:
    """Return what a server is to be read as, in the form of the public rows."""
    texts = {key: text(value) for key, value in each["settings"].items()}
    optional = {key: text(value) for key, value in each.get("optional", {}).items()}
    devices, product = text(each.get("devices", "-")), each.get("product", "-")
    return Expected(each["model"], texts, optional, (devices,), tuple(product.split(",")))


def text(value: object) -> str:
    """Return a value of the table as a setting is compared."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def placed(findings: Iterable[Finding]) -> list[str]:
    """Return errors and warnings by code and line."""
    return sorted(f"{each.code}@{each.line}" for each in findings if each.level != "note")
