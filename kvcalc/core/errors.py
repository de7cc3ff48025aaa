"""What can go wrong, said in one line, with one line on what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ChecksFailed",
    "InputError",
    "InputFaults",
    "InvalidValueError",
    "KvcalcError",
    "NotModelledError",
    "UnavailableError",
    "UnknownNameError",
    "UnknownReleaseError",
    "UnsupportedError",
    "UsageError",
    "WithoutEffectError",
    "nearest",
    "printable",
]


_MOST_LISTED = 45  # names in one hint; of more, only the nearest are told


class KvcalcError(Exception):
    """Base of every error that kvcalc raises on purpose.

    Args:
        message: one line that says what is wrong.
        hint: one line that says what to do; empty where there is nothing to add.
        where: the file and line, or the option, that holds the fault.
    """

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class UsageError(KvcalcError):
    """Options that contradict each other or cannot be read."""


class InvalidValueError(KvcalcError, ValueError):
    """A value outside the range that its meaning allows."""


class InputError(KvcalcError):
    """A file that cannot be read as what it was given for."""


class InputFaults(InputError):  # noqa: N818 - several errors, not one
    """Every fault of a file that is read, in the order of its lines.

    Args:
        errors: one or more, each with its place.
    """

    def __init__(self, errors: Iterable[KvcalcError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        more = len(self.errors) - 1
        also = f" (and {more} more fault{'s' if more > 1 else ''})" if more else ""
        super().__init__(first.message + also, hint=first.hint, where=first.where)


class UnknownNameError(KvcalcError):
    """A name (preset, GPU, dtype, engine, option) that kvcalc does not know."""

    def __init__(
        self, what: str, name: str, known: Iterable[str], *, where: str = "", hint: str = ""
    ) -> None:
        candidates = sorted(known)
        close = nearest(name, candidates)
        if not hint:
            parts = [f"did you mean {' or '.join(close)}?"] if close else []
            if len(candidates) <= _MOST_LISTED:
                parts.append(f"known: {', '.join(candidates)}")
            hint = " ".join(parts) or f"{len(candidates)} are known, none like it"
        super().__init__(f"unknown {what} {name!r}", hint=hint.strip(), where=where)
        self.name = name
        self.suggestions = close


class UnsupportedError(KvcalcError):
    """A combination that the engine refuses.

    What kvcalc itself does not know is a NotModelledError, and never a refusal.

    Args:
        message, hint, where: as of every error.
        code: the finding that the refusal is reported as (answers.finding_codes).
        setting: the setting that is refused, by its name in a Deployment or its engine_args; empty
            where no single one is.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        where: str = "",
        code: str = "engine-refuses",
        setting: str = "",
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.code = code
        self.setting = setting


class NotModelledError(UnsupportedError):
    """What an engine may well run, and kvcalc does not know: a card, a release, a layer kind."""


class UnknownReleaseError(NotModelledError):
    """A release of an engine whose rules kvcalc does not know."""


class WithoutEffectError(UnsupportedError):
    """A setting that has no effect beside the others; `settings` names what can be left out."""

    def __init__(self, message: str, *, settings: tuple[str, ...], hint: str = "") -> None:
        super().__init__(message, hint=hint, setting=settings[0])
        self.settings = settings


class ChecksFailed(KvcalcError, AssertionError):  # noqa: N818 - what happened, not an error of ours
    """Checks that failed, where a program asked for an exception."""


class UnavailableError(KvcalcError):
    """Something needed is not there: a GPU, an extra that is not installed, a server."""


def printable(text: str) -> str:
    """Escape what would break a line, move the cursor, or not encode as UTF-8."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the known names that resemble `name`, the best first."""
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), folded, n=count, cutoff=0.6)
    return [folded[k] for k in close]
