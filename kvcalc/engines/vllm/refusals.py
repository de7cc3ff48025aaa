"""vLLM's own start-up refusals by release: refusals.tsv, asked by the rules that know one."""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.refusals import by_code
from kvcalc.engines.vllm.version import Release

__all__ = ["refuse", "stands"]


def stands(code: str, at: Release) -> bool:
    """Whether a release has a check."""
    return any(row.stands(at.number) for row in by_code("vllm")[code])


def refuse(at: Release, code: str, message: str, *, hint: str, setting: str = "") -> None:
    """Refuse what the check of that code does not let pass, where the release has it.

    Args:
        at: the release.
        code: the finding that it is reported as.
        message: what is wrong.
        hint: what to do.
        setting: that is refused.

    Raises:
        UnsupportedError: the release has the check.
    """
    if stands(code, at):
        raise UnsupportedError(message, hint=hint, code=code, setting=setting)
