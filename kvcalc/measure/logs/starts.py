"""From lines to starts: which lines belong to one start of one server, and what each one gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import gcd

from kvcalc.answers.finding_codes import FINDING_CODES
from kvcalc.answers.logs import Fact
from kvcalc.engines import engine_of
from kvcalc.engines.engine import Engine
from kvcalc.measure.logs.errors import (
    ERROR_WORDS,
    FRAME_WORDS,
    Ending,
    frame_of,
    inner,
    known_of,
    later,
    signal_of,
)
from kvcalc.measure.logs.line_patterns import Said, Shape, fact_of, read, shape, shapes_of_table
from kvcalc.measure.logs.lines import Stripped, strip, unfolded
from kvcalc.measure.logs.settings import MARKS, Settings, settings_of

__all__ = [
    "BY_ENGINE",
    "COMMON",
    "NEEDLES",
    "NO_ENGINE",
    "OOM_WORDS",
    "SHAPES",
    "Start",
    "matters",
    "shapes_near",
    "starts_of",
]

BY_ENGINE = shapes_of_table()
"""kvcalc's name of an engine -> the shapes of its lines."""

COMMON: tuple[Shape, ...] = (
    shape("pplication startup complete", "Application startup complete", says="ready",
          phase="serving", joins=True),
    shape("vicorn running on", "Uvicorn running on http", says="ready", phase="serving",
          joins=True),
    shape("is fired up and ready", "The server is fired up and ready", says="ready",
          phase="serving", joins=True),
)  # fmt: skip
"""Lines of the servers that engines are built on: a start that is there serves."""

OOM_WORDS = (
    "Tried to allocate",
    "out of memory",
    "OutOfMemoryError",
    "reserved by PyTorch but unallocated",
)
"""Of a line that belongs to an out-of-memory text."""


def _needles() -> tuple[str, ...]:
    """Return the needles of all shapes and settings, without those that hold another."""
    found = {one.needle for shapes in (*BY_ENGINE.values(), COMMON) for one in shapes}
    found |= {*MARKS, *OOM_WORDS, *ERROR_WORDS, *FRAME_WORDS}
    return tuple(sorted(word for word in found if not any(w != word and w in word for w in found)))


_STEP = 4
"""Letters of a piece: each needle of twice as many, less one, has one at a whole number of them."""
_SHORTEST = 2 * _STEP - 1

_COMMON = """
INFO: 10.0.0.1:12345 - "POST /v1/chat/completions HTTP/1.1" 200 OK  GET /health /metrics
INFO 10-03 08:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation
throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache
hit rate: 0.0% Decode batch. #running-req: 1, #token: 100, token usage: 0.01, gen throughput
(token/s): 100.0, #queue-req: 0 slot print_timing: id 0 | task 1 | prompt eval time = 1.00 ms / 1
tokens per second total time, n_tokens = update_slots: params_from_: srv log_server_r: request: POST
"""
"""What the lines of a server that serves are made of: most lines of most logs."""


class _Index:
    """Which of many words a line may have: those of which it has a piece, and the short ones.

    A line is cut at every fourth letter; wherever a word begins, some of the line's pieces lie
    whole within it. Of these the one that is in no common line is kept. So a line costs its
    length, not the number of words.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._at: dict[str, list[int]] = {}
        self._always: list[int] = []
        for number, word in enumerate(words):
            if len(word) < _SHORTEST:
                self._always.append(number)
                continue
            for first in range(_STEP):
                cut = [word[i : i + _STEP] for i in range(first, len(word) - _STEP + 1, _STEP)]
                best = min(cut, key=lambda piece: (piece in _COMMON, piece not in self._at))
                if number not in self._at.setdefault(best, []):
                    self._at[best].append(number)
        self._pieces = frozenset(self._at)

    def near(self, line: str) -> list[int]:
        """Return the numbers of the words that a line may have, in their order."""
        pieces = self._pieces.intersection(
            [line[i : i + _STEP] for i in range(0, len(line), _STEP)]
        )
        if not pieces:
            return self._always
        return sorted({*self._always, *(number for one in pieces for number in self._at[one])})


NEEDLES = _needles()
SHAPES: tuple[tuple[str, Shape], ...] = (
    *((engine, one) for engine, shapes in BY_ENGINE.items() for one in shapes),
    *(("", one) for one in COMMON),
)
"""The shapes with their engines; "" of those that belong to whatever start is there."""

_OF_NEEDLES = _Index(NEEDLES)
_OF_SHAPES = _Index([one.needle for _, one in SHAPES])


def matters(line: str) -> bool:
    """Whether a line may tell something; most lines of a serving log cannot."""
    return any(NEEDLES[number] in line for number in _OF_NEEDLES.near(line))


def shapes_near(text: str) -> Iterator[tuple[int, str, Shape]]:
    """Yield number, engine and shape of those whose needle a line has."""
    for number in _OF_SHAPES.near(text):
        engine, one = SHAPES[number]
        if one.needle in text:
            yield number, engine, one


# --------------------------------------------------------------------- starts
#
# From lines to starts: which lines belong to one start of one server, and what each one tells.
#
# Lines of several containers, ranks and engines may be mixed. A start is of one container and one
# engine; the next begins with a line that this one has had already, by the same process, once it
# was sized or had failed; with a line that a process prints once a start; or with another process
# of the same name.

_MOST_READINGS = 1024  # of one figure: more processes than any start has
_MOST_STARTS = 10_000
_MOST_OOM_LINES = 64
_MOST_DEVICES = 256
_MOST_SOURCES, _SOURCE = 256, 100
_SHARED_NAMES = ("Vllm", "Ray")
"""Names that several processes of one start have."""

_DIMENSION = re.compile(r"(?<![A-Z])(TP|PP|DP|EP)(\d{1,4})")
_NUMBERED = re.compile(r"^VllmWorker(?:Process)? rank=(\d{1,4})")
_MEMORY = "available_kv_cache"
_OF_THE_CARD = ("total_memory", "gpu_memory_utilization", "requested_memory", "free_memory")
_OF_VLLM = re.compile(r"APIServer|ApiServer|EngineCore|Worker_|VllmWorker")
_WORDING = ("since ", "until ")
"""Of flags that date a line, which may be that of a refusal."""

_LONG = 4_000  # characters of an out-of-memory line that are kept

_WORKER = re.compile(r"(?:^|[ _])(?:TP|PP|EP|DCP|PCP)\d|rank=\d|^RayWorker|^VllmWorkerProcess")
"""The name of a process that is one of several ranks of a start."""


NO_ENGINE = ("pytorch", "unknown")
"""Whose lines a start is of where no engine's are in it: an out-of-memory text, a known error."""


class Start:
    """One start of one server, as its lines tell it.

    Attributes:
        engine: kvcalc's name.
        source: the container or pod; "" where nothing tells it.
        first, last: lines that belong to it.
        settings: what its lines say that it was started with.
        flags: what lines without figures say: `too_long`, `others_hold`, `ascend`, ...
        sources: (source file, line in it) of a message -> its text: they date a log.
        oom: lines of an out-of-memory text.
        sized: the cache was sized, or the start has failed.
        one_line: tokens and concurrency are in one line.
        ending: the error that ended it, if one did.
        devices: device -> figure -> [least, most] bytes of its lines together.
        told: the last line with a figure that is of no failure.
        refused: the code of the first refusal in the engine's table that a line has, and its text.
        phase: what it was at, by its lines (phases.PHASES).
        frames: what it was at by the functions of the last traceback; "" for none.
        ended_at: what it was at when it ended: the functions of a traceback tell more than lines.
        ranks: processes that said something, in the order of their first lines.
    """

    def __init__(self, engine: str, source: str, line: int) -> None:
        self.engine = engine
        self.source = source
        self.first = self.last = line
        self.settings = Settings()
        self.flags: dict[str, int] = {}
        self.sources: dict[tuple[str, int], str] = {}
        self.oom: list[str] = []
        self.sized = False
        self.one_line = False
        self.ending = Ending()
        self.devices: dict[str, dict[str, list[int]]] = {}
        self.told = line
        self.refused: tuple[str, str] | None = None
        self.phase = self.frames = self.ended_at = ""
        self.ranks: dict[str, int] = {}
        self._told_by: dict[str, int] = {}
        self._pids: dict[str, str] = {}
        self._readings: dict[str, list[Said]] = {}
        self._keep: dict[str, str] = {}
        self._said: set[tuple[str, int]] = set()
        self._counts: dict[tuple[str, int], int] = {}

    @property
    def record(self) -> Engine:
        """The engine as the other rooms see it."""
        if self.engine in NO_ENGINE:
            return Engine(self.engine)
        return engine_of(self.engine)

    @property
    def version(self) -> str | None:
        """The engine's version as its lines say it; None where none does."""
        found = self._readings.get("engine_version")
        return found[-1][3].printed.strip(":,") if found else None

    @property
    def build(self) -> int | None:
        """llama.cpp's build; None where no line says it."""
        found = self._readings.get("build")
        return int(found[-1][3].low or 0) if found else None

    @property
    def died(self) -> bool:
        """Whether an error came last: nothing was told behind it."""
        ending = self.ending
        return "failed" in self.flags or ending.last > self.told_of(ending.rank)

    @property
    def died_later(self) -> bool:
        """Whether a server that had started died: nothing was told behind it."""
        return bool(self.ending.fatal) and self.ending.fatal_line > self.told

    @property
    def ready(self) -> bool:
        """Whether its lines say that it serves."""
        return "ready" in self.flags or "serving" in self.flags

    @staticmethod
    def is_worker(rank: str) -> bool:
        """Whether a process is the engine's own, and not the one that takes requests."""
        return _WORKER.search(rank) is not None or rank.startswith(("EngineCore", "Worker"))

    def told_of(self, rank: str) -> int:
        """Return the last line in which a process went on: of a rank, no other rank's."""
        if not _WORKER.search(rank):
            return self.told
        return max(
            (line for who, line in self._told_by.items() if who == rank or not _WORKER.search(who)),
            default=self.first,
        )

    def ends_before(self, shape_id: int, shape: Shape, stripped: Stripped) -> bool:
        """Whether a line is the first of the next start."""
        rank = stripped.rank
        known = self._pids.get(rank, stripped.pid)
        if stripped.pid != known and stripped.pid and not rank.startswith(_SHARED_NAMES):
            return True
        if (rank, shape_id) not in self._said:
            return False
        if "padding_layers" in shape.kinds and self._other_groups(shape, stripped.text):
            return True
        if shape.changes:
            return self.sized and "draft" not in self.flags and self._changes(shape, stripped.text)
        if shape.says == "loading" and self.flags["loading"] <= self.flags.get("draft", 0):
            return False  # the draft's own file
        if shape.once and (rank or (self.settings.whole("data_parallel_size") or 1) == 1):
            return True
        return shape.opens and (self.sized or not shape.kinds)

    def _changes(self, shape: Shape, text: str) -> bool:
        """Whether a line has another value than this start's, or comes after it served."""
        match = shape.expression.search(text)
        name = next(iter(shape.kinds))
        if match is None or name not in self._readings:
            return False
        return "serving" in self.flags or match[name] != self._readings[name][0][3].printed

    def _other_groups(self, shape: Shape, text: str) -> bool:
        """Whether padding layers are of another size of group than those that were told.

        vLLM prints a line a kind of layers: its layers and those that pad are whole groups of the
        one size (kv_cache_utils.py). What no size gives is of two releases' rules.
        """
        match = shape.expression.search(text)
        told = zip(
            (r[3].printed for r in self._readings.get("padding_layers", ())),
            (r[3].printed for r in self._readings.get("padding_waste", ())),
            strict=False,
        )
        pairs = [*told, (match["padding_layers"], match["padding_waste"])] if match else []
        size, most = 0, 0
        for printed, waste in pairs:
            layers, share = int(printed), float(waste)
            if share <= 0:
                return False
            size, most = gcd(size, round(layers * 100 / share) + layers), max(most, layers)
        return bool(pairs) and size <= most

    def add(self, shape_id: int, shape: Shape, stripped: Stripped, line: int) -> bool:
        """Take what a line tells by one shape; whether it has that shape."""
        found = False
        for match in shape.expression.finditer(stripped.text):
            found = True
            key = (stripped.rank, shape_id)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            ending = f"_{count}" if shape.numbered and count > 1 else ""
            self._take_device(match, shape)
            for name, kind in shape.kinds.items():
                text = match[name]
                if text is not None and name != "device":
                    of = match["device"] if shape.keep == "latest" else stripped.rank
                    said = of, line, stripped.times, read(text.strip(), kind)
                    self._take(name + ending, shape.keep, said)
        if not found:
            return False
        self._note(shape_id, shape, stripped, line)
        return True

    def _note(self, shape_id: int, shape: Shape, stripped: Stripped, line: int) -> None:
        """Remember that a line of a shape was said, by whom and where."""
        self._said.add((stripped.rank, shape_id))
        if stripped.pid:
            self._pids.setdefault(stripped.rank, stripped.pid)
        if "Maximum concurrency" in stripped.text and "KV cache size" in stripped.text:
            self.one_line = True
        for flag in (shape.says, "failed" if shape.fails else ""):
            if flag:
                self.flags[flag] = self.flags.get(flag, 0) + 1
        if shape.fails and shape.says in FINDING_CODES and self.refused is None:
            self.refused = shape.says, stripped.text
        self.sized = self.sized or shape.ends
        if not shape.fails and not shape.says.startswith(_WORDING):
            self.told = self._told_by[stripped.rank] = line
            self.frames = ""
        if shape.phase:
            self.phase = later(self.phase, shape.phase)
        self.ranks.setdefault(stripped.rank, line)
        if stripped.file and len(self.sources) < _MOST_SOURCES:
            self.sources.setdefault((stripped.file, stripped.number), stripped.text[:_SOURCE])
        self.last = line

    def _take(self, name: str, keep: str, said: Said) -> None:
        taken = self._readings.setdefault(name, [])
        self._keep.setdefault(name, keep)
        if len(taken) < _MOST_READINGS:
            taken.append(said)

    def _take_device(self, match: re.Match[str], shape: Shape) -> None:
        """Add what a line says of one device to what its other lines say of it."""
        if shape.keep not in ("sum", "latest") or "device" not in shape.kinds:
            return
        if len(self.devices) > _MOST_DEVICES:
            return
        of = self.devices.setdefault(match["device"], {})
        for name, kind in shape.kinds.items():
            if name != "device" and match[name] is not None:
                found = read(match[name], kind)
                both = of.setdefault(name, [0, 0])
                if found.low is None:
                    continue
                if shape.keep == "latest":
                    both[:] = 0, 0
                both[0] += int(found.low or 0)
                both[1] += int(found.high or 0)

    def facts(self) -> dict[str, Fact]:
        """Return every figure: of the rank with the least memory where ranks have their own."""
        rank = self.binding
        return {
            name: fact_of(taken, self._keep[name], rank) for name, taken in self._readings.items()
        }

    @property
    def binding(self) -> str:
        """The rank with the least memory for its cache, where several say theirs; "" for none.

        The number of blocks is the least of all ranks'; its figures add up by themselves.
        """
        said: dict[str, int] = {}
        for rank, _, _, reading in self._readings.get(_MEMORY, ()):
            if _WORKER.search(rank) and reading.low is not None:
                said[rank] = int(reading.low)
        return min(said, key=lambda rank: said[rank]) if len(said) > 1 else ""

    def by_rank(self) -> dict[str, dict[str, Fact]]:
        """Return rank -> its own figures, with those of the whole start that are no rank's.

        A card and its share are the same for all ranks, whichever says them. The start alone under
        "" where no two ranks have figures of their own.
        """
        ranks = {rank for rank, _, _, _ in self._readings.get(_MEMORY, ()) if _WORKER.search(rank)}
        if len(ranks) <= 1:
            return {"": self.facts()}
        found: dict[str, dict[str, Fact]] = {}
        for rank in sorted(ranks):
            mine = found[rank] = {}
            for name, taken in self._readings.items():
                own = [entry for entry in taken if entry[0] == rank]
                shared = [e for e in taken if not _WORKER.search(e[0]) or name in _OF_THE_CARD]
                if some := own or shared:
                    mine[name] = fact_of(some, self._keep[name])
        return found

    def workers(self) -> dict[str, int]:
        """Return how many ranks its processes' names show: by `TP`, `PP`, `DP`, `EP`; `all`.

        A name has the number of a dimension where it has more than one (v1/executor/
        multiproc_executor.py, setup_proc_title_and_log_prefix), so that TP0 alone shows two at
        least, which is told as 0: not how many.
        """
        found: dict[str, int] = {}
        for rank in self.ranks:
            for kind, number in _DIMENSION.findall(rank):
                found[kind] = max(found.get(kind, 0), int(number))
            if match := _NUMBERED.search(rank):
                found["all"] = max(found.get("all", 0), int(match[1]))
        return {kind: most + 1 if most else 0 for kind, most in found.items()}


def starts_of(lines: Iterable[tuple[int, str]]) -> list[Start]:
    """Return the starts in a log, in the order of their first lines."""
    open_: dict[tuple[str, str], Start] = {}
    done: list[Start] = []
    asking: Start | None = None
    for number, line in lines:
        if not matters(line):
            if asking is not None:
                asking = _take_more(asking, line, number)
            continue
        for piece in unfolded(line):
            asking = _take(open_, done, piece, number) or asking
        if len(done) > _MOST_STARTS:
            del done[: _MOST_STARTS // 2]
    return sorted([*done, *open_.values()], key=lambda start: start.first)


def _take(
    open_: dict[tuple[str, str], Start], done: list[Start], line: str, number: int
) -> Start | None:
    """Take what a line tells; the start whose error it leaves unsaid, None for none."""
    stripped = strip(line)
    engine = _take_shapes(open_, done, stripped, number)
    _take_settings(open_, stripped, number)
    if any(word in stripped.text for word in FRAME_WORDS):
        _take_frame(open_, stripped)
    if signal_of(stripped.text) is not None:
        return _take_error(open_, stripped, number)  # the host's memory: no text of PyTorch's
    if any(word in stripped.text for word in OOM_WORDS):
        _take_oom(open_, stripped, engine, number)
        return None
    latest = _latest(open_, stripped.source)
    said = any(word in stripped.text for word in ERROR_WORDS)
    if said or (latest is not None and latest.ending.expects(number)):
        return _take_error(open_, stripped, number)
    return None


def _take_more(start: Start, line: str, number: int) -> Start | None:
    """Take a line that may be the reason of an error; the start while more may come."""
    if not start.ending.expects(number):
        return None
    for piece in unfolded(line):
        start.ending.more(strip(piece).text, number)
    return start


def _latest(open_: dict[tuple[str, str], Start], source: str) -> Start | None:
    mine = [start for (where, _), start in open_.items() if where == source]
    return max(mine, key=lambda one: one.last, default=None)


def _take_shapes(
    open_: dict[tuple[str, str], Start], done: list[Start], stripped: Stripped, number: int
) -> str:
    """Take what a line tells by every shape that it has; the engine whose line it is."""
    text, engine_here = stripped.text, ""
    for shape_id, engine, found in shapes_near(text):
        if not found.expression.search(text):
            continue
        if found.joins:
            there = _latest(open_, stripped.source)
            if there is not None and engine in ("", there.engine):
                there.add(shape_id, found, stripped, number)
            continue
        key = (stripped.source, engine)
        start = open_.get(key)
        if start is not None and start.ends_before(shape_id, found, stripped):
            done.append(start)
            start = None
        if start is None:
            start = open_[key] = Start(engine, stripped.source, number)
        start.add(shape_id, found, stripped, number)
        engine_here = engine
    return engine_here


def _take_settings(open_: dict[tuple[str, str], Start], stripped: Stripped, number: int) -> None:
    for engine, found in settings_of(stripped.text):
        key = (stripped.source, engine)
        start = open_.get(key)
        if start is None:
            start = open_[key] = Start(engine, stripped.source, number)
        start.settings.update_from(found, number)
        start.last = max(start.last, number)


def _take_frame(open_: dict[tuple[str, str], Start], stripped: Stripped) -> None:
    """Keep what a traceback's function says of a start's phase."""
    start = _latest(open_, stripped.source)
    frame = frame_of(stripped.text)
    if start is not None and frame:
        start.frames = inner(start.frames, frame)


def _take_error(
    open_: dict[tuple[str, str], Start], stripped: Stripped, number: int
) -> Start | None:
    """Keep an error with the start that it may have ended: its container's latest."""
    start = _latest(open_, stripped.source)
    if start is None and signal_of(stripped.text) is not None:
        # Who runs a container tells its end: by its name, or of the only one.
        sources = {where for where, _ in open_}
        named = {where for where in sources if where and where in stripped.text}
        if len(of := named or sources) == 1:
            start = _latest(open_, next(iter(of)))
    if start is None and (known_of(stripped.text) is not None):
        engine = _engine_of(stripped)
        start = open_[stripped.source, engine] = Start(engine, stripped.source, number)
        start.told = start.first - 1
    if start is None:
        return None
    if start.ending.take(stripped.text, number, start.told_of(stripped.rank), stripped.rank):
        start.last = max(start.last, number)
        if start.ending.line == number:
            start.ended_at = start.frames or start.phase
    return start if start.ending.expects(number + 1) else None


def _engine_of(stripped: Stripped) -> str:
    """Return the engine whose process says a line of no engine's shape."""
    return "vllm" if _OF_VLLM.match(stripped.rank) else "unknown"


def _take_oom(
    open_: dict[tuple[str, str], Start], stripped: Stripped, engine: str, number: int
) -> None:
    """Keep an out-of-memory text with the start that it ended; of no engine, by itself."""
    source = stripped.source
    start = _latest(open_, source)
    if start is None:
        named = engine or "pytorch"
        start = open_[source, named] = Start(named, source, number)
    start.last = max(start.last, number)
    start.ended_at = start.frames or start.phase
    if len(start.oom) < _MOST_OOM_LINES:
        start.oom.append(stripped.text[:_LONG])
