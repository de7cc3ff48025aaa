"""Snapshots, out-of-memory texts and pool statistics with faults in them: no traceback, no second.

    python -m tests.measure.mutants_memory 10000

makes so many mutants, reads and answers each, and prints how long the slowest took.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from kvcalc.answers.allocator_fit import pool_fragmentation, snapshot_fragmentation
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes
from kvcalc.engines import plan
from kvcalc.measure.oom import read_oom_texts
from kvcalc.measure.pools import bfc_log, jax_stats
from kvcalc.measure.snapshot import read_snapshot
from kvcalc.models import load_model
from kvcalc.report.fragmentation import fragmentation_blocks
from kvcalc.report.oom import oom_blocks
from tests.measure.allocator.model import SyntheticAllocator, SyntheticOutOfMemoryError
from tests.measure.oom_samples import SAMPLES
from tests.measure.test_pools import LOG, STATS

__all__ = ["LONGEST_SECONDS", "mutants", "run", "slowest"]

LONGEST_SECONDS = 1.0

_LARGEST = 2**19
"""Bytes of a mutant: time grows with the text, by some seconds for each ten megabytes."""

_NUMBERS = (
    *("0", "-1", "1", "99999999999999999999", "9" * 300, "1e9", "NaN", "0.00", "512", "0.0000001"),
    *("18446744073709551616", "1152921504606846976", "4611686018427387904", "1,000", "- 5", ""),
)
_JUNK = ("\x00", "\x1b[", "\r", "é漢", "(" * 3000, "[" * 3000, "a" * 70_000, " " * 5000,
         "1" * 5000, "Tried to allocate ", "1.00 GiB is free. " * 300)  # fmt: skip

Mutant = tuple[str, str, bytes]
"""What it is read as, how it was made, and its bytes."""


def _allocator(rng: random.Random) -> SyntheticAllocator:
    """Return an allocator after some use."""
    allocator = SyntheticAllocator(
        rng.choice([200, 1000, 80_000]) * 2**20,
        expandable=rng.random() < 0.3,
        device=rng.choice([0, 0, 3]),
        max_split_size=rng.choice([None, None, 2**26]),
    )
    live: list[int] = []
    for _ in range(rng.randrange(60)):
        if live and rng.random() < 0.4:
            address = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.1:
                allocator.record_stream(address, 9)
            allocator.free(address)
        try:
            size = rng.choice([1, 512, 10**5, 2**20, 3 * 2**20, 11 * 2**20, 2**26])
            live.append(allocator.alloc(size, rng.choice([0, 0, 7]), rng.choice([(0, 0), (0, 1)])))
        except SyntheticOutOfMemoryError:
            break
    return allocator


def _snapshot(rng: random.Random) -> Any:
    value: Any = _allocator(rng).snapshot()
    frames = [{"name": "f", "filename": "x.py", "line": n} for n in range(rng.randrange(5))]
    for segment in value["segments"]:
        segment["frames"] = frames
        for block in segment["blocks"]:
            block["frames"] = rng.choice([frames, frames[:1], []])
    value["device_traces"] = [
        [
            {
                "action": rng.choice(["alloc", "oom"]),
                "size": 512,
                "device_free": 5,
                "frames": frames,
            }
            for _ in range(rng.randrange(8))
        ]
    ]
    return rng.choice([value, value, value["segments"]])


_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 512, 513, 2**21, 2**63, 2**200, 1.5, "large", "small", "inactive", ""),
    *([], {}, (0, 0), [[]], {"a": 1}, b"x", "x" * 5000),
)


def _altered(value: Any, rng: random.Random) -> None:
    """Change one value somewhere inside, drop one, or double one."""
    at = value
    for _ in range(rng.randrange(1, 6)):
        inside = list(at.values()) if isinstance(at, dict) else list(at)
        deeper = [v for v in inside if isinstance(v, (dict, list)) and v]
        if not deeper:
            break
        at = rng.choice(deeper)
    if isinstance(at, dict) and at:
        key = rng.choice(list(at))
        if rng.random() < 0.2:
            del at[key]
        elif type(at[key]) is int and rng.random() < 0.5:
            at[key] += rng.choice([-512, 512, 2**21, 1, -at[key]])
        else:
            at[key] = rng.choice(_VALUES)
    elif isinstance(at, list) and at:
        number = rng.randrange(len(at))
        change = rng.choice(["drop", "double", "value", "shuffle"])
        if change == "drop":
            del at[number]
        elif change == "double":
            at.append(at[number])
        elif change == "shuffle":
            rng.shuffle(at)
        else:
            at[number] = rng.choice(_VALUES)


def _spoiled(data: bytes, rng: random.Random) -> bytes:
    """Change bytes: one flipped, some cut out, some put in, some moved."""
    if not data:
        return bytes([rng.randrange(256)])
    at, length = rng.randrange(len(data)), rng.choice([1, 1, 2, 8, 100, 5000])
    match rng.randrange(5):
        case 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + rng.randbytes(length) + data[at:]
        case 3:
            return data[:at]
        case _:
            other = rng.randrange(len(data))
            return data[:at] + data[other : other + length] + data[at:]


def _snapshot_mutant(rng: random.Random) -> bytes:
    value = _snapshot(rng)
    if value and rng.random() < 0.7:
        for _ in range(rng.choice([0, 1, 1, 2])):
            _altered(value, rng)
    if rng.random() < 0.3:
        try:
            data = json.dumps(value).encode()
        except TypeError:  # bytes are no JSON
            data = pickle.dumps(value)
    else:
        data = pickle.dumps(value, rng.randrange(pickle.HIGHEST_PROTOCOL + 1))
    for _ in range(rng.choice([0, 0, 1, 1, 3])):
        data = _spoiled(data, rng)
    return data


def _text_mutant(text: str, rng: random.Random) -> bytes:
    words = text.split(" ")
    for _ in range(rng.choice([0, 1, 2, 5])):
        at = rng.randrange(len(words))
        match rng.randrange(6):
            case 0:
                words[at] = rng.choice(_NUMBERS)
            case 1:
                words[at] = "".join(
                    c if not c.isdigit() else rng.choice("0123456789.") for c in words[at]
                )
            case 2:
                del words[at]
            case 3:
                words.insert(at, rng.choice(_JUNK))
            case 4:
                words[at : at + 5] = words[at : at + 5] * rng.choice([2, 200])
            case _:
                words[at] = rng.choice(words)
        words = words or [""]
    data = " ".join(words).encode()
    return _spoiled(data, rng) if rng.random() < 0.3 else data


def mutants(count: int, seed: int = 1) -> Iterator[Mutant]:
    """Yield so many mutants, the same for the same seed."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        kind = rng.choice(["snapshot", "snapshot", "oom", "oom", "jax", "bfc"])
        if kind == "snapshot":
            data = _snapshot_mutant(rng)
        elif kind == "oom":
            names = rng.choices(list(SAMPLES), k=rng.choice([1, 1, 2, 5]))
            data = _text_mutant("\n".join(SAMPLES[name] for name in names), rng)
        else:
            data = _text_mutant(str(STATS) if kind == "jax" else LOG, rng)
        yield kind, f"{seed} {number}", data[:_LARGEST]


def run(kind: str, data: bytes, example: CachePlan) -> None:
    """Read a mutant, judge it and draw the answer; what it is refused with is one line."""
    text = data.decode("utf-8", "replace")
    try:
        if kind == "snapshot":
            read = read_snapshot("-", io.BytesIO(data))
            for device in read.devices[:3]:
                for asked in (None, 1, 2**21, 2**40):
                    found = snapshot_fragmentation(
                        example, read, device, request_bytes=asked, device_free_bytes=2**24
                    )
                    fragmentation_blocks(found, format_bytes)
        elif kind == "oom":
            for oom in read_oom_texts(text):
                oom_blocks(oom, format_bytes)
        else:
            pools = jax_stats(text) if kind == "jax" else [bfc_log(text)]
            for pool in pools:
                fragmentation_blocks(pool_fragmentation(example, pool), format_bytes)
    except KvcalcError as error:
        assert "\n" not in error.message + error.hint, error


def slowest(count: int, seed: int = 1) -> tuple[float, str]:
    """Run so many mutants and return the longest time with what took it.

    Raises:
        AssertionError: one of them left an error that is none of kvcalc's.
    """
    example = plan(load_model("llama-3.1-8b"), Deployment(max_model_len=8192))
    worst: tuple[float, str] = (0.0, "")
    runner: Callable[[str, bytes, CachePlan], None] = run
    for kind, name, data in mutants(count, seed):
        start = time.process_time()
        try:
            runner(kind, data, example)
        except Exception as error:
            raise AssertionError(f"mutant {name} ({kind}): {error!r}") from error
        worst = max(worst, (time.process_time() - start, f"{kind} {name}, {len(data)} B"))
    return worst


if __name__ == "__main__":
    seconds, what = slowest(int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0]))
    print(f"{sys.argv[1]} mutants; the slowest took {seconds:.3f} s: {what}")
    if seconds > LONGEST_SECONDS:
        sys.exit(f"more than {LONGEST_SECONDS} s")
