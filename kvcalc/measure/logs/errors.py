"""Lines in which a process says that it ends: the error that came first is the reason.

Engines write the error, then what it made fail ("Engine core initialization failed"), then the
error again in the parent process. A line counts where it begins with an exception's name, as
Python prints the last line of a traceback. A server that serves outlives most errors, which are a
request's; what it does not outlive is said in lines of their own.
"""

from __future__ import annotations

import re

from kvcalc.core.errors import printable
from kvcalc.measure.logs.signals import SIGNAL_WORDS, signal_of

__all__ = ["ERROR_WORDS", "Ending", "shortened", "whole"]

ERROR_WORDS = (
    *("Error: ", "Exception: ", "failed to start", "Value error, "),
    *("encountered a fatal error", "loop has died", "sigquit"),
    *SIGNAL_WORDS,
)
"""Of a line that may end a start, or a server that had started."""

_LONGEST = 200  # characters of an error that are shown
_WHOLE = 1_000  # of one whose meaning is known
_NEAR = 1000
"""Lines between an error and the line that says the server died of it: tracebacks are long."""

_BEGINS = re.compile(
    r"(?:\(?[\w.]{1,60}:\d{1,6}\] )?"
    r"(?:(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): "
    r"|(?:EngineCore|Engine process|Engine core|WorkerProc)\w{0,20} failed to start)"
)
_FOLLOWS = re.compile(
    r"initiali[sz]ation failed|failed to start[. ]*$|[Ss]ee root cause|[Ss]ee stack trace"
    r"|died unexpectedly|was cancelled|CalledProcessError|Broken pipe"
)
"""What an error made fail in its turn."""

_FATAL = re.compile(r"(?:CUDA|HIP|NCCL) error|cudaError|device-side assert")
"""Errors after which the process's card is of no use to it."""

_ANNOUNCED = re.compile(r"encountered a fatal error")
"""The error that it died of is in the lines behind."""

_CONCLUDED = re.compile(r"DeadError: |loop has died|[Rr]eceived sigquit")
"""The error that it died of is in the lines before."""

_INVALID = re.compile(r"\d{1,4} validation errors? for (\w{1,60})")
_VALUE = re.compile(r"\s*Value error, (.{1,2000})")
"""pydantic's error, whose reason is in the next lines."""


class Ending:
    """The error that ended a start, or the server later, as far as its lines tell.

    Attributes:
        text: the first error's line since the start last went on; "" for none.
        line: where it stands.
        last: the last error's line.
        fatal: what a server that had started died of; "" for nothing.
        fatal_line: where it stands.
        killed: a signal ended it that the host sends whose memory runs out.
    """

    def __init__(self) -> None:
        self.text = self.fatal = ""
        self.line = self.last = self.fatal_line = 0
        self.killed = False
        self._follows = self._announced = self._vague = False
        self._recent = ("", 0)

    def take(self, text: str, line: int, told: int = 0) -> bool:
        """Take a line if it is an error; whether it is.

        Args:
            text: without its prefixes.
            line: its number.
            told: the last line in which the start went on: an error before it ended nothing.
        """
        if self._take_reason(text, line):
            return True
        if told > self.fatal_line:
            self.fatal, self.fatal_line, self.killed = "", 0, False
        if _ANNOUNCED.search(text):
            self._announced = True
            return False
        signal = signal_of(text)
        concluded = _CONCLUDED.search(text[:_LONGEST]) is not None
        if signal is None and not concluded and _BEGINS.match(text) is None:
            return False
        text = text if signal is None else signal.told
        follows = concluded or bool(_FOLLOWS.search(text[:_LONGEST]))
        went_on = told > self.last and not follows
        if not self.text or went_on or (self._follows and not follows):
            self.text, self.line, self._follows = text, line, follows
            self.killed = signal is not None and signal.killed
        self._take_fatal(text, line, signal is not None, concluded)
        if not follows:
            self._recent = (text, line)
        self.last = line
        return True

    def _take_reason(self, text: str, line: int) -> bool:
        """Take what a validation says of the error that came before; whether it does."""
        found = _VALUE.match(text)
        if found is None:
            return False
        model = _INVALID.search(self.text)
        if model is not None and line - self.line < _NEAR:
            reason = found[1].split(" [type=")[0]
            self.text = f"{model[1]}: {reason}"
        self.last = line if model is not None else self.last
        return model is not None

    def _take_fatal(self, text: str, line: int, signal: bool, concluded: bool) -> None:
        """Take an error as what a server died of, if it says so or another line does."""
        if self.fatal and not self._vague:
            return
        if concluded:
            before, where = self._recent
            near = bool(before) and line - where < _NEAR
            if not self.fatal:
                self.fatal, self.fatal_line = (before, where) if near else (text, line)
                self._vague = not near
        elif signal or self._announced or self._vague or _FATAL.search(text[:_LONGEST]):
            self.fatal, self.fatal_line, self._vague = text, line, False
            self._announced = False

    @property
    def told(self) -> str:
        """The error as it is shown."""
        return _shown(self.text)

    @property
    def told_fatal(self) -> str:
        """What a server that had started died of, as it is shown, with its line."""
        return f"{_shown(self.fatal)} (line {self.fatal_line:,})" if self.fatal else ""


def _shown(text: str) -> str:
    return shortened(re.sub(r"^\(?[\w.]{1,60}:\d{1,6}\] ", "", text).rstrip(". "), _LONGEST)


def whole(text: str) -> str:
    """Return an error's whole message, without what pydantic puts around it."""
    text = re.sub(r"^\s*(?:Value error|Assertion failed), ", "", text).split(" [type=")[0]
    return shortened(text.strip(), _WHOLE)


def shortened(text: str, longest: int) -> str:
    """Return a text of at most so many characters, with an ellipsis where some are left out."""
    text = printable(text)
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
