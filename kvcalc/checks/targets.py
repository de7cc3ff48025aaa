"""What is checked: a question with everything that a file says beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcalc.answers.assertions import Assertion, CheckLevel
from kvcalc.checks.sized import Load
from kvcalc.core.deployment import GpuSpec
from kvcalc.manifests.found import Finding, Server
from kvcalc.sizing import Question

__all__ = ["Fault", "Target"]


class Fault(NamedTuple):
    """Something that kvcalc could not read or does not know by that name: exit code 2.

    Attributes:
        code: of finding_codes, by which a level can be set.
        line, file: where it stands; the target's own where it is not said.
    """

    code: str
    message: str
    hint: str
    line: int = 0
    file: str = ""


class Target(NamedTuple):
    """One deployment to check.

    Attributes:
        name: unique in a run.
        file, line: where it begins; "" and 0 for a command.
        engine, engine_version, model: as they were read; None where nothing says them.
        gpu: the card; None where nothing names one that is known.
        question: None where something is missing; `reason` says what.
        reason, hint: why there is no question, and how to give what is missing.
        no_card: why no card is known, and how to name it; None where one is, or the cache is given.
        faults: names that are not known, or a broken file; with one there is no question.
        copies: servers of this kind beside each other.
        price: of an hour of one GPU.
        flags: cures are spelled as the engine's own flags.
        auto_length: the engine shortens the maximum to what fits.
        findings: what is wrong with the file.
        assertions: by name.
        levels: of findings by code.
        loads: workloads.
        figures: which figure of an estimate is compared: expected, low, high.
        server: what was read, where it was a manifest or a command.
        lines: of what kvcalc.yaml says, by setting; in `settings_file`.
        asked_release: the release is the caller's, and no file's: an unknown one is a slip.
    """

    name: str
    file: str = ""
    line: int = 0
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    gpu: GpuSpec | None = None
    question: Question | None = None
    reason: str = ""
    hint: str = ""
    no_card: tuple[str, str] | None = None
    faults: tuple[Fault, ...] = ()
    copies: int = 1
    price: float | None = None
    flags: bool = False
    auto_length: bool = False
    findings: tuple[Finding, ...] = ()
    assertions: Mapping[str, Assertion] = {}
    levels: Mapping[str, CheckLevel] = {}
    loads: tuple[Load, ...] = ()
    figures: str = "expected"
    server: Server | None = None
    lines: Mapping[str, int] = {}
    settings_file: str = ""
    asked_release: bool = False
