"""What is checked: a question with everything that a file says beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcalc.checks.sized import Load
from kvcalc.core.checks import Assertion, CheckLevel
from kvcalc.core.deployment import GpuSpec
from kvcalc.manifests.found import Finding, Server
from kvcalc.sizing import Question

__all__ = ["Target"]


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
        refused: the model is not known, or the file is broken: exit 2.
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
    refused: bool = False
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
