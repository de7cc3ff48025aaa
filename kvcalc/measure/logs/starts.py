"""From lines to starts: which lines belong to one start of one server, and what each one tells.

Lines of several containers, ranks and engines may be mixed. A start is of one container and one
engine; the next begins with a line that this one has had already, by the same process, once it was
sized or had failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcalc.core.logs import Fact
from kvcalc.measure.logs.catalogue import BY_ENGINE, OOM_WORDS, matters
from kvcalc.measure.logs.prefixes import Stripped, strip
from kvcalc.measure.logs.settings import Settings, settings_of
from kvcalc.measure.logs.shapes import Reading, Shape, read

__all__ = ["Start", "starts_of"]

_MOST_READINGS = 1024  # of one figure: more processes than any start has
_MOST_STARTS = 10_000
_MOST_OOM_LINES = 64
_LONG = 4_000  # characters of an out-of-memory line that are kept

_SHAPES: tuple[tuple[str, Shape], ...] = tuple(
    (engine, one) for engine, shapes in BY_ENGINE.items() for one in shapes
)


class Start:
    """One start of one server, as its lines tell it.

    Attributes:
        engine: kvcalc's name.
        source: the container or pod; "" where nothing tells it.
        first, last: lines that belong to it.
        settings: what its lines say that it was started with.
        flags: what lines without figures say: `too_long`, `others_hold`, `ascend`, ...
        files: source file -> line number in it, as printed: they date a log.
        oom: lines of an out-of-memory text.
        sized: the cache was sized, or the start has failed.
        one_line: tokens and concurrency are in one line.
    """

    def __init__(self, engine: str, source: str, line: int) -> None:
        self.engine = engine
        self.source = source
        self.first = self.last = line
        self.settings = Settings()
        self.flags: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.oom: list[str] = []
        self.sized = False
        self.one_line = False
        self._readings: dict[str, list[tuple[str, int, int, Reading]]] = {}
        self._keep: dict[str, str] = {}
        self._said: set[tuple[str, int]] = set()
        self._counts: dict[tuple[str, int], int] = {}

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

    def ends_before(self, shape_id: int, shape: Shape, rank: str) -> bool:
        """Whether a line is the first of the next start."""
        if not shape.opens or (rank, shape_id) not in self._said:
            return False
        return self.sized or not shape.kinds

    def add(self, shape_id: int, shape: Shape, stripped: Stripped, line: int) -> bool:
        """Take what a line tells by one shape; whether it has that shape."""
        found = False
        for match in shape.expression.finditer(stripped.text):
            found = True
            key = (stripped.rank, shape_id)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            ending = f"_{count}" if shape.numbered and count > 1 else ""
            for name, kind in shape.kinds.items():
                text = match[name]
                if text is not None:
                    self._take(name + ending, shape.keep, stripped, line, read(text.strip(), kind))
        if not found:
            return False
        self._said.add((stripped.rank, shape_id))
        if "Maximum concurrency" in stripped.text and "KV cache size" in stripped.text:
            self.one_line = True
        if shape.says:
            self.flags[shape.says] = self.flags.get(shape.says, 0) + 1
        if shape.fails:
            self.flags["failed"] = self.flags.get("failed", 0) + 1
        self.sized = self.sized or shape.ends
        if stripped.file:
            self.files.setdefault(stripped.file, stripped.number)
        self.last = line
        return True

    def _take(self, name: str, keep: str, stripped: Stripped, line: int, reading: Reading) -> None:
        taken = self._readings.setdefault(name, [])
        self._keep.setdefault(name, keep)
        if len(taken) < _MOST_READINGS:
            taken.append((stripped.rank, line, stripped.times, reading))

    def facts(self) -> dict[str, Fact]:
        """Return every figure, that of the rank that counts where ranks differ."""
        return {name: _fact(taken, self._keep[name]) for name, taken in self._readings.items()}


def _fact(taken: list[tuple[str, int, int, Reading]], keep: str) -> Fact:
    said = sum(times for _, _, times, _ in taken)
    by_rank = {rank: entry for entry in taken if (rank := entry[0])}
    latest = list(by_rank.values()) if len(by_rank) > 1 else taken
    numbers = [entry for entry in latest if entry[3].low is not None]
    spread = None
    if numbers and keep in ("least", "most"):
        ordered = sorted(numbers, key=lambda entry: (entry[3].low or 0, entry[1]))
        _, line, _, reading = ordered[0 if keep == "least" else -1]
        if ordered[0][3] != ordered[-1][3]:
            spread = (ordered[0][3].printed, ordered[-1][3].printed)
    elif numbers and keep == "sum":
        _, line, _, reading = taken[0]
        lows = [entry[3].low or 0 for entry in taken]
        highs = [entry[3].high or 0 for entry in taken]
        text = reading.printed if len(taken) == 1 else " + ".join(e[3].printed for e in taken[:8])
        reading = Reading(text, sum(lows), sum(highs), reading.unit)
    else:
        _, line, _, reading = taken[0 if keep == "first" else -1]
    return Fact(
        printed=reading.printed,
        low=reading.low,
        high=reading.high,
        unit=reading.unit,
        line=line,
        said=said,
        spread=spread,
    )


def starts_of(lines: Iterable[tuple[int, str]]) -> list[Start]:
    """Return the starts in a log, in the order of their first lines.

    Args:
        lines: with their numbers; read one at a time and not kept.
    """
    open_: dict[tuple[str, str], Start] = {}
    done: list[Start] = []
    for number, line in lines:
        if not matters(line):
            continue
        stripped = strip(line)
        engine = _take_shapes(open_, done, stripped, number)
        _take_settings(open_, stripped, number)
        if any(word in stripped.text for word in OOM_WORDS):
            _take_oom(open_, stripped, engine, number)
        if len(done) > _MOST_STARTS:
            del done[: _MOST_STARTS // 2]
    return sorted([*done, *open_.values()], key=lambda start: start.first)


def _take_shapes(
    open_: dict[tuple[str, str], Start], done: list[Start], stripped: Stripped, number: int
) -> str:
    """Take what a line tells by every shape that it has; the engine whose line it is."""
    text, engine_here = stripped.text, ""
    for shape_id, (engine, shape) in enumerate(_SHAPES):
        if shape.needle not in text or not shape.expression.search(text):
            continue
        key = (stripped.source, engine)
        start = open_.get(key)
        if start is not None and start.ends_before(shape_id, shape, stripped.rank):
            done.append(start)
            start = None
        if start is None:
            start = open_[key] = Start(engine, stripped.source, number)
        start.add(shape_id, shape, stripped, number)
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


def _take_oom(
    open_: dict[tuple[str, str], Start], stripped: Stripped, engine: str, number: int
) -> None:
    """Keep an out-of-memory text with the start that it ended; of no engine, by itself."""
    source = stripped.source
    mine = [start for (where, _), start in open_.items() if where == source]
    if not mine:
        named = engine or "pytorch"
        open_[source, named] = Start(named, source, number)
        mine = [open_[source, named]]
    start = max(mine, key=lambda one: one.last)
    start.last = max(start.last, number)
    if len(start.oom) < _MOST_OOM_LINES:
        start.oom.append(stripped.text[:_LONG])
