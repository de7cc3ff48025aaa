"""Lines in which a process says that it ends: the error that came first is the reason.

Engines write the error, then what it made fail ("Engine core initialization failed"), then the
error again in the parent process. A line counts where it begins with an exception's name, as
Python prints the last line of a traceback.
"""

from __future__ import annotations

import re

from kvcalc.core.errors import printable

__all__ = ["ERROR_WORDS", "Ending", "shortened"]

ERROR_WORDS = ("Error: ", "Exception: ", "failed to start")
"""Of a line that may end a start."""

_LONGEST = 200  # characters of an error that are shown
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


class Ending:
    """The error that ended a start, as far as its lines tell.

    Attributes:
        text: the first error's line; "" for none.
        line: where it stands.
        last: the last error's line.
    """

    def __init__(self) -> None:
        self.text = ""
        self.line = self.last = 0
        self._follows = False

    def take(self, text: str, line: int) -> bool:
        """Take a line if it is an error; whether it is."""
        match = _BEGINS.match(text)
        if match is None:
            return False
        follows = bool(_FOLLOWS.search(text[:_LONGEST]))
        if not self.text or (self._follows and not follows):
            self.text, self.line, self._follows = text, line, follows
        self.last = line
        return True

    @property
    def told(self) -> str:
        """The error as it is shown."""
        text = re.sub(r"^\(?[\w.]{1,60}:\d{1,6}\] ", "", self.text)
        return shortened(text.rstrip(". "), _LONGEST)


def shortened(text: str, longest: int) -> str:
    """Return a text of at most so many characters, with an ellipsis where some are left out."""
    text = printable(text)
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
