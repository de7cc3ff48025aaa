"""Two thousand damaged headers: a model or a KvcalcError, at once, and nothing else."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from kvcalc.core.errors import KvcalcError
from kvcalc.models.gguf import read_gguf
from tests.guards import HANG
from tests.models.gguf.test_oracle import MORE
from tests.models.gguf.writer import LIST, TEXT, Tensor, Writer, named

SEED = 20_260_601
BYTES = 200 * 2**20
COUNT = int(os.environ.get("KVCALC_MUTANTS", "2000"))

TENSORS = [Tensor("blk.0.attn_k.weight", (64, 4), 8, 272), Tensor("output.weight", (64,), 0, 256)]
HUGE = (0, 1, 2**16, 2**31 - 1, 2**32 - 1, 2**33, 2**60, 2**63, 2**64 - 1)


def flip(rng: random.Random, raw: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 8)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return raw


def cut(rng: random.Random, raw: bytearray) -> bytearray:
    return raw[: rng.randrange(len(raw))]


def lie(rng: random.Random, raw: bytearray) -> bytearray:
    at = rng.randrange(8, max(9, len(raw) - 8))
    raw[at : at + 8] = struct.pack("<Q", rng.choice(HUGE))
    return raw


def lie_in_type(rng: random.Random, raw: bytearray) -> bytearray:
    at = rng.randrange(4, max(5, len(raw) - 4))
    raw[at : at + 4] = struct.pack("<I", rng.choice([*range(20), 2**31, 2**32 - 1]))
    return raw


def splice(rng: random.Random, raw: bytearray) -> bytearray:
    a, b = sorted(rng.randrange(len(raw)) for _ in range(2))
    at = rng.randrange(len(raw))
    raw[at:at] = raw[a:b]
    return raw


def nest(rng: random.Random, raw: bytearray) -> bytearray:
    at = rng.randrange(24, len(raw))
    raw[at:at] = (
        struct.pack("<I", LIST) + struct.pack("<IQ", LIST, rng.choice((1, 3, 10**5))) * 2000
    )
    return raw


def bomb(rng: random.Random, raw: bytearray) -> bytearray:
    count = rng.choice((10**5, 10**6, 2**40))
    pair = Writer().text("bomb") + struct.pack("<IIQ", LIST, rng.choice((TEXT, LIST, 0)), count)
    raw[16:24] = struct.pack("<Q", rng.choice((1, 2, 60_000, 2**50)))
    raw[24:24] = pair + bytes(rng.choice((0, 10**5)))
    return raw


MUTATIONS: list[Callable[[random.Random, bytearray], bytearray]] = [
    *(flip, cut, lie, lie_in_type, splice, nest, bomb)
]


def change_value(rng: random.Random, row: dict[str, object]) -> bytes:
    """Return a well-formed file in which a key is senseless, of another type, or gone."""
    hp = dict(row["hp"]) if isinstance(row["hp"], dict) else {}
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(list(hp))
        odd = [0, -1, 1, 3, 2**31, 2**32 - 1, "text", 1.5, True, [], [0], [1, 2], ["a"], [-1] * 8]
        odd += [[1] * 5000, [2**31 - 1] * 8, "x" * 70_000, [True] * 8, [0] * 8]
        hp[key] = rng.choice(odd)
        if rng.random() < 0.2:
            del hp[key]
    return Writer().file(named(str(row["arch"]), hp), TENSORS)


def _traced(path: Path) -> int:
    """Return the most bytes that reading a file holds; apart from the timed reading."""
    tracemalloc.start()
    with contextlib.suppress(KvcalcError):
        read_gguf(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_mutants(tmp_path: Path) -> None:
    """No traceback, and none takes longer than a second or more than 200 MB."""
    rng = random.Random(SEED)
    path = tmp_path / "m.gguf"
    slowest, refused, largest = 0.0, 0, 0
    for number in range(COUNT):
        row = rng.choice(MORE)
        if number % 3 == 0:
            raw = change_value(rng, row)
        else:
            whole = bytearray(Writer().file(named(row["arch"], row["hp"]), TENSORS))
            raw = bytes(rng.choice(MUTATIONS)(rng, whole))
        path.write_bytes(raw)
        before = time.process_time()
        try:
            model = read_gguf(str(path))
        except KvcalcError as error:
            refused += 1
            said = str(error) + error.hint
            assert "\n" not in said
            assert len(said) < 400
            assert error.where
        else:
            assert model.spec.num_hidden_layers <= 1024
        slowest = max(slowest, time.process_time() - before)
        largest = max(largest, _traced(path))
    print(
        f"{refused} of {COUNT} refused, the slowest took {slowest * 1000:.1f} ms of CPU,"
        f" the largest {largest / 2**20:.1f} MiB"
    )
    assert largest < BYTES
    assert slowest < HANG
    assert refused > COUNT // 2
