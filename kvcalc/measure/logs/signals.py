"""Lines that say that a process was ended by a signal: of shells, kernels, container engines.

The host's kernel ends a process with signal 9 where its memory runs out, and so does a container's
limit; no line of the engine itself tells of it. 128 + a signal is a shell's exit code, a negative
one Python's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["SIGNAL_WORDS", "Signal", "signal_of"]

SIGNAL_WORDS = (
    *("Killed", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "Segmentation fault"),
    *("Bus error", "Aborted", "Illegal instruction"),
    *("Fatal Python error", "exit code", "Exit Code", "exitcode", "exited with code"),
    "exit status",
)
"""Of a line that may name a signal."""

_NAMES = {4: "Illegal instruction", 6: "Aborted", 7: "Bus error", 9: "Killed",
          11: "Segmentation fault"}  # fmt: skip
_WORDS = {"SIGILL": 4, "SIGABRT": 6, "SIGBUS": 7, "SIGKILL": 9, "SIGSEGV": 11}
_SHELL = r"(?:[^\s:]{1,80}: (?:line \d{1,9}: )?)?\s{0,16}(?:\[\d{1,4}\][+-]?\s{1,4})?"
_BY_SHELL = re.compile(
    _SHELL + r"(?:\d{1,9}\s{1,4})?(?P<name>Killed|Segmentation fault|Bus error|Aborted"
    r"|Illegal instruction)(?:\s*$|\s*\(core dumped\)|\s{2})"
)
_BY_KERNEL = re.compile(r"Killed process \d{1,9}|\bOOMKilled\b(?!\"?\s*[:=]\s*\"?[Ff]alse)")
_PYTHON = re.compile(r"Fatal Python error: (?P<name>.{1,120})")
_SIGNAL = re.compile(r"(?<![Ss]ending )(?<![Ss]end )\b(?P<name>SIG(?:KILL|SEGV|ABRT|BUS|ILL))\b")
_CODE = re.compile(
    r"(?:[Ee]xit [Cc]ode|exitcode|exited with code|exit status)\"?[:=]?\s{0,2}(?P<code>-?\d{1,3})\b"
)
_LONG = 4_000  # characters of a line that are looked at
_SHELLS = 128
_KILL = 9


class Signal(NamedTuple):
    """A signal that ended a process.

    Attributes:
        told: its name, with the words that told it.
        killed: it is the one that the host sends whose memory runs out.
    """

    told: str
    killed: bool


def signal_of(text: str) -> Signal | None:
    """Return the signal that a line says a process was ended by; None for none.

    >>> signal_of("exited with code 137")
    Signal(told='Killed (exit code 137)', killed=True)
    >>> signal_of("exited with code 1") is None
    True
    """
    if not any(word in text for word in SIGNAL_WORDS):
        return None
    text = text[:_LONG]
    if _BY_KERNEL.search(text):
        by = "OOMKilled" if "OOMKilled" in text else "the kernel's out-of-memory killer"
        return Signal(f"Killed ({by})", killed=True)
    if found := _PYTHON.search(text):
        return Signal(found["name"], killed=False)
    if found := _BY_SHELL.match(text):
        return Signal(found["name"], found["name"] == "Killed")
    if found := _CODE.search(text):
        code = int(found["code"])
        number = -code if code < 0 else code - _SHELLS
        name = _NAMES.get(number)
        return None if name is None else Signal(f"{name} (exit code {code})", number == _KILL)
    if found := _SIGNAL.search(text):
        number = _WORDS[found["name"]]
        return Signal(f"{_NAMES[number]} ({found['name']})", number == _KILL)
    return None
