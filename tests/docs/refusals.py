"""docs/start-refusals.md: what each engine refuses at its start, and which of kvcalc know it.

Every yes and no is what comes of running the row's example, or of reading its line.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import kvcalc.checks.run as checks
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.targets import Target
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines import plan
from kvcalc.engines.refusals import TABLES, Row, by_code, rows
from kvcalc.engines.vllm.version import release
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from tests.cli.harness import Outcome, call
from tests.docs.parts import table

__all__ = ["FOLDER", "PAGE", "RELEASES", "Known", "checked", "known", "logged", "rendered"]

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs" / "start-refusals.md"
FOLDER = _ROOT / "tests" / "reports"
"""Where the examples' inputs/ lies."""

_LAST_PATCH = (6, 3, 5, 2, 2, 2, 0, 0, 1, 1, 0, 1, 1, 1, 2, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0)
RELEASES = tuple(
    f"0.{minor}.{patch}"
    for minor, last in enumerate(_LAST_PATCH, start=6)
    for patch in range(last + 1)
)
"""Of vLLM from 0.6.0 to 0.33.0, without what was published a second time."""

_AS_FITS = "as `fits`"
_HEAD = """\
# What engines refuse at their start

Made by `python -m tests.docs --write` from `kvcalc/engines/*/refusals.tsv`: not to be edited.

A row is a check that an engine makes between reading its arguments and being ready, and that hangs
on sizes or settings. *since* and *until* are the first and the last release with it; an empty cell
is the oldest and the newest that is known. The four columns behind them are what comes of running
the row's example: `plan` refuses it with this code or carries it as a condition on the memory,
`capacity` says so, `check` fails with this code, and `log` names it where it reads the engine's
line. *as `fits`*: it is told as memory that does not suffice. *no*: it hangs on what no command
says, such as another process, or the groups that a checkpoint is quantised by; the log alone shows
it.
"""


class Known(NamedTuple):
    """Which of kvcalc know a refusal, each as the page says it."""

    plan: str
    capacity: str
    check: str
    log: str


def checked(row: Row, version: str | None = None) -> tuple[list[Target], set[str]]:
    """Return what `kvcalc check` reads of an example, and the codes of what fails.

    Args:
        row: of a table.
        version: another release than the example's.
    """
    words = shlex.split(row.example)
    if version is not None:
        words[words.index("--engine-version") + 1] = version
    targets: list[Target] = []
    run = checks.run

    def recorded(found: Sequence[Target], **more: bool) -> CheckReport:
        targets.extend(found)
        return run(found, **more)

    with mock.patch.object(checks, "run", recorded):
        outcome = _call("check", "--format", "json", *words)
    assert outcome.out, (row.code, outcome.err)
    return targets, {r["assertion"] for r in outcome.results if r["status"] == "fail"}


def logged(engine: str, row: Row) -> str | None:
    """Return the code that `kvcalc log` gives of an engine's line, as the only one of a log."""
    text = f"{row.line}\n".encode()
    outcome = _call("log", "--format", "json", "--engine", engine, "-", stdin=text)
    assert outcome.code != 2, (row.code, outcome.err)
    found: str | None = outcome.results[0]["code"]
    return found


def _call(*words: str, stdin: bytes = b"") -> Outcome:
    old = Path.cwd()
    os.chdir(FOLDER)
    try:
        return call(*words, stdin=stdin)
    finally:
        os.chdir(old)


def known(engine: str, row: Row) -> Known:
    """Return which of kvcalc know a refusal."""
    targets, failed = checked(row) if row.example else ([], set())
    question = next((t.question for t in targets if t.question is not None), None)
    return Known(
        plan="no" if question is None else _of_plan(row.code, question),
        capacity="no" if question is None else _of_capacity(row.code, question),
        check=_said(row.code in failed, fits="fits" in failed),
        log=_said(row.line and logged(engine, row) == row.code),
    )


def _said(yes: object, *, fits: bool = False) -> str:
    return "yes" if yes else _AS_FITS if fits else "no"


def _of_plan(code: str, question: Question) -> str:
    try:
        made = plan(question.model, question.deployment)
    except UnsupportedError as error:
        return _said(error.code == code)
    return _said(any(floor.code == code for floor in made.floors))


def _of_capacity(code: str, question: Question) -> str:
    try:
        found = answer(question)
    except UnsupportedError as error:
        return _said(error.code == code)
    return _said(any(r.code == code for r in found.refusals), fits=not found.may_fit)


def _table_of(engine: str) -> str:
    cells = (
        (
            f"`{row.code}`",
            row.what,
            row.since,
            row.until,
            *known(engine, row),
            row.source.replace("|", "\\|"),
        )
        for row in rows(engine)
    )
    return table(
        ("code", "refusal", "since", "until", "plan", "capacity", "check", "log", "source"), cells
    )


_STATES = """\
## Sequences against the blocks of states, by release of vLLM

Whether a hybrid starts with the default of `max_num_seqs` on an H100 (1,024; 256 in V0), a cache of
2 GiB and a maximum of 131,072 tokens, and with how many blocks. The configs are small ones of the
tests (tests/reports/inputs): Qwen3.5, Qwen3-Next and Bamba.
"""
_HYBRIDS = ("hyb.json", "next.json", "bamba.json")
_CHECKS = ("sequences-over-state-blocks", "graphs-over-state-blocks")
_CAPPED = ((0, 18, 0), (0, 19, 1))
_CAPS = "config/compilation.py, adjust_cudagraph_sizes_for_mamba_cache: graphs are made smaller"


def _states() -> str:
    """Return the releases in their order, those together that answer alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for version in RELEASES:
        cells = (*(_start(name, version) for name in _HYBRIDS), _rule(version))
        alike.setdefault(cells, []).append(version)
    heads = ("releases", *(f"`{name}`" for name in _HYBRIDS), "the check and its source")
    return table(heads, ((", ".join(found), *cells) for cells, found in alike.items()))


@cache
def _model(name: str) -> ModelSpec:
    return load_model(str(FOLDER / "inputs" / name))


def _start(name: str, version: str) -> str:
    deployment = Deployment(
        engine="vllm", engine_version=version, gpu=load_gpu("h100-80gb"),
        kv_cache_memory_bytes=2**31, max_model_len=131_072,
    )  # fmt: skip
    try:
        found = answer(Question(_model(name), deployment))
    except UnsupportedError as error:
        assert "serve" in error.message, error.message
        return "not served"
    codes = [refusal.code for refusal in found.refusals if refusal.sure]
    assert found.fits is not bool(codes)
    return f"{'refused' if codes else 'starts'}, {found.num_blocks} blocks"


def _rule(version: str) -> str:
    number = release(version).number
    found = [r for code in _CHECKS for r in by_code("vllm")[code] if r.stands(number)]
    if found:
        return f"`{found[0].code}`: {found[0].source}"
    return _CAPS if _CAPPED[0] <= number <= _CAPPED[1] else "none"


def rendered() -> str:
    """Return the page."""
    parts = [_HEAD]
    parts += [f"## {engine}\n\n{_table_of(engine)}" for engine in TABLES]
    return "\n".join([*parts, f"{_STATES}\n{_states()}"])
