"""Memory snapshots of PyTorch, pickle or JSON, and how plain data is read out of a pickle.

Without a class or function there is nothing that a pickle could call: `find_class` refuses every
name and `persistent_load` every reference. What is left is a file that wants too much memory. Its
size is limited before it is read, and it is loaded in a process of its own first.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn, TypeGuard

from kvcalc.allocator.segments import MIN_BLOCK, SMALL_SEGMENT, Block, OomEvent, Segment, Snapshot
from kvcalc.core.errors import InputError, KvcalcError, printable
from kvcalc.core.units import format_bytes, format_count
from kvcalc.measure.feed import file_name, read_up_to
from kvcalc.models.json_documents import decode_json, read_json
from kvcalc.models.text import shown

__all__ = [
    "MAX_BLOCKS",
    "MAX_JSON_BYTES",
    "MAX_PICKLE_BYTES",
    "read_snapshot",
    "snapshot_of",
    "unpickle",
]

MAX_PICKLE_BYTES = 128 * 2**20
"""Bytes of a pickle; most of a large one are the stack traces of its history."""

_HINT = "a snapshot is what torch.cuda.memory._dump_snapshot writes; record it anew"
_TOO_MUCH = 3
_TRIAL = f"""
import pickle, sys
class Plain(pickle.Unpickler):
    def find_class(self, *_):
        raise SystemExit(0)
    persistent_load = find_class
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({2 * 2**30}, {2 * 2**30}))
except (ImportError, OSError, ValueError):
    pass
try:
    Plain(sys.stdin.buffer, encoding="latin-1").load()
except (MemoryError, RecursionError):
    sys.exit({_TOO_MUCH})
except Exception:
    pass
"""
"""Loads a pickle where it may do no harm: ten bytes can ask for gigabytes (a memo index of 2**31),
and the hash of a tuple inside millions of others ends a process. What is wrong with a pickle that
loads, or that fails as it should, is said by `unpickle`."""


def unpickle(data: bytes, where: str) -> Any:
    """Return the value of a pickle of plain data; any fault is one InputError, named by `where`."""
    if len(data) > MAX_PICKLE_BYTES:
        raise InputError(
            f"a pickle larger than {format_bytes(MAX_PICKLE_BYTES)}",
            hint="record less history: it is what makes such files large",
            where=where,
        )
    if _tried(data) != 0:
        raise InputError("its values take too much memory", hint=_HINT, where=where)
    stream = io.BytesIO(data)
    try:
        value = _PlainData(stream, encoding="latin-1").load()
    except KvcalcError as error:
        error.where = where
        raise
    except (MemoryError, RecursionError):
        raise InputError("its values take too much memory", hint=_HINT, where=where) from None
    except Exception as error:  # a broken pickle raises errors of many kinds
        reason = printable(str(error) or type(error).__name__)[:100]
        raise InputError(f"a broken pickle: {reason}", hint=_HINT, where=where) from None
    if stream.read(1):
        raise InputError("bytes follow the end of its pickle", hint=_HINT, where=where)
    return value


class _PlainData(pickle.Unpickler):
    """An unpickler without classes and functions."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        text = printable(f"{module}.{name}")[:60]
        raise InputError(f"it names {text}, which is not plain data: nothing was run", hint=_HINT)

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise InputError(
            "it names an object outside, which is not plain data: nothing was run", hint=_HINT
        )


def _tried(data: bytes) -> int:
    """Load a pickle in a process of its own and return how that leaves: 0 unless it is harmed."""
    command = (sys.executable, "-I", "-c", _TRIAL)
    # The interpreter that runs now, with a program of ours.
    done = subprocess.run(command, input=data, capture_output=True, check=False)  # noqa: S603
    return done.returncode


# --------------------------------------------------------------------- snapshot
#
# PyTorch's memory snapshots: pickle or JSON, of `_snapshot()`, `_dump_snapshot` or the bare list.
#
# Keys as of torch 1.8 to 2.13: blocks of old have no address, and `history` instead of frames;
# snapshots that a profiler made have blocks with no more than size and state. What a snapshot says
# of itself must agree: blocks fill their segment without a gap, and its sums are theirs. Free
# blocks keep the `requested_size` of their last use, which says nothing and is not read.

MAX_JSON_BYTES = 2**26
"""Of a snapshot in JSON; a pickle may have MAX_PICKLE_BYTES."""

MAX_BLOCKS = 80_000
"""Of all segments together; a card of 80 GiB in use has some thousands."""

_MAX_VALUES = 20_000_000
_MAX_SIZE = 2**60
_MAX_SHOWN = 2**128  # Python writes no number of millions of digits
_HEAD = 16
_STATES = {
    "active_allocated": "allocated",
    "active_awaiting_free": "awaiting",
    "active_pending_free": "awaiting",
    "inactive": "free",
}
_FOREIGN = {
    b"\x1f\x8b": ("a gzip file", "unpack it first: gunzip"),
    b"PK\x03\x04": ("a zip file", "torch.save writes such; a snapshot is a plain pickle or JSON"),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "unpack it first: unzstd"),
    b"BZh": ("a bzip2 file", "unpack it first: bunzip2"),
    b"\xfd7zX": ("an xz file", "unpack it first: unxz"),
    b"<": ("a web page", "give the snapshot that the page was made of"),
}
_FORMATS_HINT = "give what torch.cuda.memory._dump_snapshot wrote, or the JSON of memory_snapshot()"


def read_snapshot(source: str, stdin: BinaryIO | None = None) -> Snapshot:
    """Read a snapshot from a file, or from stdin for `-`.

    Args:
        source: a path, or `-`; a pickle of up to 32 MiB, or JSON of up to 64 MiB.
        stdin: what `-` stands for; the process's own when None.
    """
    where = file_name(source)
    data = read_up_to(source, MAX_JSON_BYTES + 1, stdin)
    if not data:
        raise InputError("the file is empty", hint=_FORMATS_HINT, where=where)
    head = data[:_HEAD]
    for magic, (what, hint) in _FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"this is {what}", hint=hint, where=where)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return snapshot_of(_json(data, where), where)
    if head[:1] not in (b"\x80", b"(", b"]", b"}"):
        raise InputError("this is neither a pickle nor JSON", hint=_FORMATS_HINT, where=where)
    return snapshot_of(unpickle(data, where), where)


def _json(data: bytes, where: str) -> Any:
    if len(data) > MAX_JSON_BYTES:
        raise InputError(
            f"JSON larger than {format_bytes(MAX_JSON_BYTES)}",
            hint="leave out frames and device_traces, or give the pickle",
            where=where,
        )
    text = decode_json(data, where, max_bytes=MAX_JSON_BYTES)
    bare = text.lstrip().startswith("[")
    document = read_json(
        '{"segments":' + text + "}" if bare else text,
        where,
        max_characters=MAX_JSON_BYTES + 16,
        max_values=_MAX_VALUES,
    )
    return document["segments"] if bare else document


def snapshot_of(value: object, where: str = "the snapshot") -> Snapshot:
    """Check a snapshot that is at hand: the dict of `_snapshot()`, or the list in it."""
    limit = None
    events: tuple[OomEvent, ...] = ()
    if isinstance(value, dict):
        if "segments" not in value:
            keys = ", ".join(
                shown(key, 20) if isinstance(key, str) else _kind(key) for key in list(value)[:4]
            )
            _refuse(where, f"no segments among its keys ({keys})")
        limit = _max_split(value.get("allocator_settings"))
        events = tuple(_failed(value.get("device_traces")))
        value = value["segments"]
    if not isinstance(value, (list, tuple)):
        _refuse(where, f"the segments are {_kind(value)}, not a list")
    segments = []
    blocks = 0
    for number, entry in enumerate(value):
        segment = _segment(entry, where, f"segment {number}")
        blocks += len(segment.blocks)
        if blocks > MAX_BLOCKS:
            _refuse(where, f"more than {format_count(MAX_BLOCKS)} blocks")
        segments.append(segment)
    _check_apart(segments, where)
    return Snapshot(segments=tuple(segments), max_split_size=limit, oom_events=events)


def _refuse(where: str, message: str) -> NoReturn:
    raise InputError(message, hint=_FORMATS_HINT, where=where)


def _kind(value: object) -> str:
    if type(value) is int and abs(value) >= _MAX_SHOWN:
        return "a whole number of many digits"
    if isinstance(value, (str, int, float, dict, list, type(None))):
        return shown(value)
    return f"a {type(value).__name__}"


def _failed(traces: object) -> Iterator[OomEvent]:
    """Yield the failed allocations of traces, where they were read."""
    for trace in traces if isinstance(traces, (list, tuple)) else ():
        for entry in trace if isinstance(trace, (list, tuple)) else ():
            if isinstance(entry, dict) and entry.get("action") == "oom":
                size, free = entry.get("size"), entry.get("device_free", entry.get("addr"))
                if _is_size(size) and _is_size(free):
                    yield OomEvent(asked_bytes=size, device_free_bytes=free)


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_SIZE


def _max_split(settings: object) -> int | None:
    """Return the setting, which is -1 or beyond all sizes where there is none."""
    value = settings.get("max_split_size") if isinstance(settings, dict) else None
    return value if type(value) is int and SMALL_SEGMENT < value <= _MAX_SIZE else None


def _segment(entry: object, where: str, name: str) -> Segment:
    if not isinstance(entry, dict):
        _refuse(where, f"{name} is {_kind(entry)}, not a dict")

    def whole(key: str, default: int | None = None) -> int:
        value = entry.get(key, default)
        # A stream is an address in some versions, which may be any whole number.
        if type(value) is not int or not 0 <= value < 2**64:
            _refuse(where, f"{name}: {key} is {_kind(value)}, not a whole number")
        return value

    kind = entry.get("segment_type")
    if kind not in ("large", "small"):
        _refuse(where, f"{name}: segment_type is {_kind(kind)}, not large or small")
    expandable = entry.get("is_expandable", False)
    if type(expandable) is not bool:
        _refuse(where, f"{name}: is_expandable is {_kind(expandable)}, not true or false")
    address, total = whole("address", 0), whole("total_size")
    blocks = tuple(_blocks(entry.get("blocks"), address, where, name))
    made = Segment(
        device=whole("device", 0),
        address=address,
        stream=whole("stream", 0),
        pool=_pool(entry.get("segment_pool_id", (0, 0)), where, name),
        small=kind == "small",
        expandable=expandable,
        blocks=blocks,
    )
    if total == 0 or total % SMALL_SEGMENT:
        _refuse(where, f"{name}: {format_count(total)} B is no multiple of 2 MiB")
    sums = {
        "total_size": made.total,
        "allocated_size": sum(b.size for b in blocks if b.state == "allocated"),
        "active_size": sum(b.size for b in blocks if b.state != "free"),
    }
    in_use = [b.requested for b in blocks if b.state != "free"]
    if "requested_size" in entry and None not in in_use:
        sums["requested_size"] = sum(requested or 0 for requested in in_use)
    for key, total in sums.items():
        if key in entry and whole(key) != total:
            _refuse(
                where,
                f"{name}: {key} is {format_count(entry[key])} B, but its blocks add up to"
                f" {format_count(total)} B",
            )
    return made


def _pool(value: object, where: str, name: str) -> tuple[int, int]:
    if isinstance(value, (list, tuple)) and len(value) == len(("owner", "number")):
        first, second = value
        if _is_size(first) and _is_size(second):
            return first, second
    _refuse(where, f"{name}: segment_pool_id is {_kind(value)}, not a pair of whole numbers")


def _blocks(entries: object, at: int, where: str, segment: str) -> Iterator[Block]:
    if not isinstance(entries, (list, tuple)) or not entries:
        _refuse(where, f"{segment}: its blocks are {_kind(entries) if entries else 'none'}")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            _refuse(where, f"{segment}, block {number} is {_kind(entry)}, not a dict")
        size, state = entry.get("size"), entry.get("state")
        if not _is_size(size) or size == 0 or size % MIN_BLOCK:
            _refuse(
                where, f"{segment}, block {number}: size is {_kind(size)}, no multiple of 512 B"
            )
        if type(state) is not str or state not in _STATES:
            _refuse(where, f"{segment}, block {number}: state is {_kind(state)}, which is unknown")
        if entry.get("address", at) != at:
            _refuse(where, f"{segment}, block {number} does not begin where the one before it ends")
        requested = entry.get("requested_size")
        if state == "inactive":
            requested = None
        elif requested is not None and not (_is_size(requested) and requested <= size):
            _refuse(
                where,
                f"{segment}, block {number}: requested_size is {_kind(requested)}, not a part of"
                " its size",
            )
        yield Block(size=size, state=_STATES[state], requested=requested)  # type: ignore[arg-type]  # one of the three
        at += size


def _check_apart(segments: list[Segment], where: str) -> None:
    """Refuse segments that lie on one another, where addresses are told."""
    end: dict[int, int] = {}
    for segment in sorted(segments, key=lambda s: (s.device, s.address)):
        if segment.address:
            if segment.address < end.get(segment.device, 0):
                _refuse(where, f"two segments lie on one another at {segment.address:#x}")
            end[segment.device] = segment.address + segment.total
