"""What contradicts itself in a deployment: its file, its settings, its card and its plan."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.checks.gpu_findings import on_requests, on_shared_memory
from kvcalc.checks.plan_findings import on_plan
from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.manifests.found import Finding

__all__ = ["contradictions"]

_OF_MEMORY = (
    *("sequences-out-of-reach", "speculation-costs-cache", "fraction-out-of-interval"),
    *("two-limits", "share-without-effect"),
)
"""Findings that hang on how much memory there is."""


def contradictions(
    target: Target, sized: Sized | None, *, only_plan: bool = False
) -> list[Finding]:
    """Return the findings on a target.

    Args:
        target: what is checked.
        sized: its figures; None where there are none: the file's own contradictions are found.
        only_plan: the memory is not known.

    Raises:
        KvcalcError: the engine refuses its settings.
    """
    return list(_all(target, sized, only_plan=only_plan))


def _all(target: Target, sized: Sized | None, *, only_plan: bool) -> Iterator[Finding]:
    yield from on_requests(target)
    yield from on_shared_memory(target)
    for line in () if target.question is None else target.question.model.contradictions:
        yield Finding(
            "checkpoint-contradicts-config",
            "warning",
            line,
            "one of its files is another checkpoint's: download them again, of one revision",
        )
    if sized is None:
        return
    for finding in on_plan(target, sized):
        if not (only_plan and finding.code in _OF_MEMORY):
            yield finding
