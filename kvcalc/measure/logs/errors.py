"""Lines in which a start fails: errors, the phase they belong to, signals and known causes.

A worker may be ahead of another by a line; what any of them has begun, all have.
"""

from __future__ import annotations

import re
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from kvcalc.core.errors import printable
from kvcalc.core.tables import read_table
from kvcalc.measure.logs.line_patterns import compiled

__all__ = [
    "ERROR_WORDS",
    "FRAME_WORDS",
    "KNOWN_NEEDLES",
    "PHASES",
    "SIGNAL_WORDS",
    "Ending",
    "Known",
    "Signal",
    "frame_of",
    "inner",
    "known_of",
    "later",
    "shortened",
    "signal_of",
    "whole",
]

PHASES = MappingProxyType(
    {
        "": "starting",
        "loading": "loading the weights",
        "profiling": "profiling a step",
        "allocating": "allocating the cache",
        "capturing": "capturing CUDA graphs",
        "warming": "warming up",
        "opening": "opening the API",
        "serving": "serving",
    }
)
"""Phase -> in words, in the order of a start."""

_ORDER = {name: place for place, name in enumerate(PHASES)}

_FRAMES = MappingProxyType(
    {
        "load_model": "loading",
        "load_weights": "loading",
        "create_weights": "loading",
        "process_weights_after_loading": "loading",
        "initialize_model": "loading",
        "determine_available_memory": "profiling",
        "determine_num_available_blocks": "profiling",
        "profile_run": "profiling",
        "profile_cudagraph_memory": "profiling",
        "initialize_from_config": "allocating",
        "initialize_kv_cache": "allocating",
        "_allocate_kv_cache": "allocating",
        "_allocate_kv_cache_tensors": "allocating",
        "initialize_cache": "allocating",
        "_init_cache_engine": "allocating",
        "init_memory_pool": "allocating",
        "capture_model": "capturing",
        "_capture_cudagraphs": "capturing",
        "capture_one_batch_size": "capturing",
        "init_cuda_graphs": "capturing",
        "init_device_graphs": "capturing",
        "compile_or_warm_up_model": "warming",
        "_dummy_sampler_run": "warming",
        "run_busy_loop": "serving",
        "event_loop_normal": "serving",
        "event_loop_overlap": "serving",
    }
)
"""Function of an engine -> the phase of a start that it belongs to."""

FRAME_WORDS = tuple(f", in {name}" for name in _FRAMES)
"""Of a traceback's line that names one of them."""

_FRAME = re.compile(r"File \"[^\"\n]{1,300}\", line \d{1,6}, in (?P<name>\w{1,80})\b")
_OUTER = ("serving", "warming")
"""Phases whose functions call those of others, which then tell more."""


def frame_of(text: str) -> str:
    """Return the phase of the function that a traceback's line names; "" for none."""
    match = _FRAME.search(text)
    return _FRAMES.get(match["name"], "") if match else ""


def later(one: str, other: str) -> str:
    """Return the later of two phases."""
    return max(one, other, key=_ORDER.__getitem__)


def inner(found: str, frame: str) -> str:
    """Return the phase of a traceback, whose outer frames come first, with one more of them."""
    return frame if not found or found in _OUTER else found


# --------------------------------------------------------------------- signals
#
# Lines that say that a process was ended by a signal: of shells, kernels, container engines.
#
# The host's kernel ends a process with signal 9 where its memory runs out, and so does a
# container's limit; no line of the engine itself tells of it. 128 + a signal is a shell's exit
# code, a negative one Python's.

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


# --------------------------------------------------------------------- known errors
#
# Errors whose cause is known and is no matter of size, by what their lines say.
#
# A row of the table (known_errors.tsv) is a line's template, the cause in words, and what to
# change. The more telling rows come first: of several lines around an end the one with the first
# row tells the cause. A row that is marked `ends` ends a start where no exception is raised: a
# command's own usage errors.


class Known(NamedTuple):
    """What an error's line says.

    Attributes:
        row: of the table: less is more telling.
        cause: in words; "" where the error's own words say it.
        cure: what to change.
        ends: it ends the process, whatever the line begins with.
    """

    row: int
    cause: str
    cure: str
    ends: bool = False


class _Row(NamedTuple):
    ends: bool
    needle: str
    expression: re.Pattern[str]
    cause: str
    cure: str


@cache
def _table() -> tuple[_Row, ...]:
    rows = read_table("kvcalc.measure.logs", "known_errors.tsv")
    return tuple(
        _Row(ends == "ends", needle, compiled(template)[0], cause, cure)
        for ends, needle, template, cause, cure in rows[1:]
    )


KNOWN_NEEDLES = tuple(dict.fromkeys(row.needle for row in _table()))
"""Of each line that the table tells the cause of."""


def known_of(text: str) -> Known | None:
    """Return what the table says of a line; None where it knows nothing of it.

    >>> known_of("RuntimeError: No CUDA GPUs are available").cause
    'no GPU is visible to the process'
    """
    text = text[:_LONG]
    for number, row in enumerate(_table()):
        if row.needle in text and (match := row.expression.search(text)):
            told = {name: printable(value.rstrip(".,;: ")) for name, value in
                    match.groupdict(default="").items()}  # fmt: skip
            return Known(number, row.cause.format(**told), row.cure.format(**told), row.ends)
    return None


# --------------------------------------------------------------------- errors
#
# Lines in which a process says that it ends: the error that came first is the reason.
#
# Engines write the error, then what it made fail ("Engine core initialization failed"), then the
# error again in the parent process. A line counts where it begins with an exception's name, as
# Python prints the last line of a traceback. A server that serves outlives most errors, which are a
# request's; what it does not outlive is said in lines of their own.

ERROR_WORDS = (
    *("Error: ", "Exception: ", "failed to start", "Value error, "),
    *("encountered a fatal error", "loop has died", "sigquit", "hit an exception"),
    *("validation error", "Traceback (most recent call last)"),
    *SIGNAL_WORDS,
    *KNOWN_NEEDLES,
)
"""Of a line that may end a start, or a server that had started."""

_LONGEST = 400  # characters of an error that are shown
_LOOKED_AT = 200
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

_CUT = re.compile(r"hit an exception\b|Traceback \(most recent call last\)")
"""What comes before an error whose own line the log may have lost."""

_INVALID = re.compile(r"\d{1,4} validation errors? for (\w{1,60})")
_REASON = re.compile(r"\s*(?:Value error, |Assertion failed, )?(.{1,2000}?)(?: \[type=|$)")
_FIELD = re.compile(r"[\w.\[\]-]{1,80}")
_SAID = ("Value error, ", "Assertion failed, ", " [type=")
"""pydantic's error, whose field and reason are in the next lines."""

_UNSAID = re.compile(r"(?:Error|Exception):?\s*$|:\s*$")
"""An error that says nothing by itself: its reason is in the next line."""

_NEXT = 8
"""Lines behind an error that may be its reason: ranks write theirs in between."""


class Ending:
    """The error that ended a start, or the server later, as far as its lines tell.

    Attributes:
        text: the first error's line since the start last went on; "" for none.
        line: where it stands.
        last: the last error's line.
        rank: the process that said the first; "" where nothing tells it.
        fatal: what a server that had started died of; "" for nothing.
        fatal_line: where it stands.
        killed: a signal ended it that the host sends whose memory runs out.
        cut: a traceback began, or a worker failed, and no line says why.
        served: the error is one that only a server that served can have.
    """

    def __init__(self) -> None:
        self.text = self.fatal = self.rank = ""
        self.line = self.last = self.fatal_line = 0
        self.killed = self.cut = self.served = False
        self._follows = self._announced = self._vague = False
        self._recent = ("", 0)
        self._known: list[tuple[int, Known]] = []
        self._open = ("", 0)

    def take(self, text: str, line: int, told: int = 0, rank: str = "") -> bool:
        """Take a line if it is an error; whether it is.

        Args:
            text: without its prefixes.
            line: its number.
            told: the last line in which the start went on: an error before it ended nothing.
            rank: the process that says it.
        """
        if told > self.fatal_line:
            self.fatal, self.fatal_line, self.killed = "", 0, False
        known = known_of(text)
        if known is not None:
            self._known = [(where, one) for where, one in self._known if where > told]
            self._known.append((line, known))
        if self._take_reason(text, line):
            return True
        if _ANNOUNCED.search(text):
            self._announced = self.served = True
            return False
        self.served = self.served or "EngineDeadError" in text
        signal = signal_of(text)
        concluded = _CONCLUDED.search(text[:_LOOKED_AT]) is not None
        ends = known is not None and known.ends
        cut = _CUT.search(text[:_LOOKED_AT]) is not None
        if signal is None and not concluded and not ends and not cut and not _begins(text):
            return known is not None and self.text != ""
        shown = text if signal is None else signal.told
        if signal is not None and (known := known_of(signal.told)) is not None:
            self._known.append((line, known))
        follows = concluded or cut or bool(_FOLLOWS.search(text[:_LOOKED_AT]))
        went_on = told > self.last and not (follows and not cut)
        if not self.text or went_on or (self._follows and not follows):
            self.text, self.line, self.rank, self._follows = shown, line, rank, follows
            self.killed, self.cut = signal is not None and signal.killed, cut
            self._open = (text, line) if _INVALID.search(text) or _UNSAID.search(text) else ("", 0)
        self._take_fatal(shown, line, signal is not None, concluded)
        if not follows:
            self._recent = (shown, line)
        self.last = line
        return True

    def expects(self, line: int) -> bool:
        """Whether a line may be the reason of an error that said none."""
        text, where = self._open
        return bool(text) and where < line <= where + _NEXT

    def more(self, text: str, line: int) -> None:
        """Take a line that no word of an error is in, if an error's reason was to come."""
        if self.expects(line) and text.strip():
            self._take_reason(text, line)

    def _take_reason(self, text: str, line: int) -> bool:
        """Take what a line says of the error that came before; whether it does."""
        said = any(word in text for word in _SAID)
        model = _INVALID.search(self.text)
        if said and (model is None or line - self.line >= _NEAR):
            if self.text or not text.startswith(_SAID[:2]):
                return False
            found = _REASON.match(text)
            self.text, self.line, self.last = found[1] if found else text, line, line
            return True
        if model is None:
            if self.expects(line) and not _begins(text):
                self.text, self._open = f"{self.text.rstrip(': ')}: {text.strip()}", ("", 0)
                self.last = line
                return True
            return False
        if said:
            found = _REASON.match(text)
            field = self.text.rpartition("\n")[2] if "\n" in self.text else ""
            reason = found[1] if found is not None else text
            self.text = ": ".join(filter(None, (model[1], field, reason)))
            self.last, self._open = line, ("", 0)
            return True
        if self.expects(line) and _FIELD.fullmatch(text.strip()):
            self.text = f"{self.text.partition(chr(10))[0]}\n{text.strip()}"
            self.last = line
            return True
        return False

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
        elif signal or self._announced or self._vague or _FATAL.search(text[:_LOOKED_AT]):
            self.fatal, self.fatal_line, self._vague = text, line, False
            self._announced = False

    @property
    def follows(self) -> bool:
        """Whether the error is what another made fail, which is in other lines."""
        return self._follows

    @property
    def known(self) -> Known | None:
        """What is known of the error: of the lines around it, the one that tells the most."""
        near = [one for line, one in self._known if abs(line - self.line) < _NEAR]
        return min(near, default=None) if self.text else None

    @property
    def told(self) -> str:
        """The error as it is shown: its cause where that is known, with the error's own words."""
        known, shown = self.known, _shown(self.text)
        return f"{known.cause} ({shown})" if known is not None and known.cause else shown

    @property
    def told_fatal(self) -> str:
        """What a server that had started died of, as it is shown, with its line."""
        return f"{_shown(self.fatal)} (line {self.fatal_line:,})" if self.fatal else ""


def _begins(text: str) -> bool:
    return _BEGINS.match(text) is not None or _INVALID.match(text) is not None


def _shown(text: str) -> str:
    text = text.replace("\n", " ")
    return shortened(re.sub(r"^\(?[\w.]{1,60}:\d{1,6}\] ", "", text).rstrip(". "), _LONGEST)


def whole(text: str) -> str:
    """Return an error's whole message, without what pydantic puts around it."""
    text = re.sub(r"^\s*(?:Value error|Assertion failed), ", "", text).split(" [type=")[0]
    return shortened(text.strip(), _WHOLE)


def shortened(text: str, longest: int) -> str:
    """Return a text of at most so many characters, with an ellipsis where some are left out."""
    text = printable(text)
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
