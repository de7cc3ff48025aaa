"""llama.cpp's compute buffers of the recorded contexts, and kvcalc's."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import msgspec

from kvcalc.engines.llamacpp.compute import Interval, buffer_of
from kvcalc.engines.llamacpp.contexts import Context, contexts_of
from kvcalc.engines.llamacpp.settings import Settings, resolve
from tests.engines.llamacpp.rows import deployment, model, rows

__all__ = ["FILES", "ComputeTally", "architecture", "asked", "compute_tally", "interval"]

FILES = {"rows.jsonl": "models.json", "compute.jsonl": "compute_models.json"}
"""Questions -> their models: the shared ones, and further ones about compute buffers alone."""


class ComputeTally(NamedTuple):
    """What became of the questions.

    Attributes:
        exact: answers that kvcalc gives to the byte, by architecture.
        within: answers inside a wider interval, by architecture.
        unknown: contexts that kvcalc gives no bytes for, by architecture or reason.
        refused: contexts that llama.cpp refuses.
        wrong: answers outside, a line each.
        widest: the most that an interval's upper bound is of its lower one.
    """

    exact: Counter[str]
    within: Counter[str]
    unknown: Counter[str]
    refused: int
    wrong: tuple[str, ...]
    widest: float


def asked(row: dict[str, Any], file: str) -> tuple[Context, Settings]:
    """Return the context of a row, its model with the vocabulary that it was asked with."""
    spec = model(row["model"], FILES[file])
    if "vocab" in row and spec.size is not None:
        size = msgspec.structs.replace(spec.size, vocab_size=row["vocab"])
        spec = msgspec.structs.replace(spec, size=size)
    settings = resolve(spec, deployment(row["ctx"]), [])
    return contexts_of(spec, settings, [])[0], settings


def interval(
    row: dict[str, Any], file: str, *, gpu: bool = False, every_layer: bool = False
) -> Interval | None:
    """Return kvcalc's bytes of a row's compute buffer.

    A model from key-values alone has every tensor that llama.cpp can use, scales of experts too.
    """
    main, settings = asked(row, file)
    return buffer_of(
        main,
        settings,
        gpu=gpu,
        outputs=row["outputs"],
        every_tensor="vocab" in row,
        every_layer=every_layer,
    )


def architecture(row: dict[str, Any], file: str) -> str:
    """Return llama.cpp's name of a row's architecture."""
    return model(row["model"], FILES[file]).architecture or ""


@cache
def compute_tally(name: str = "rows.jsonl") -> ComputeTally:
    """Return the tally of a file of questions."""
    exact: Counter[str] = Counter()
    within: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    refused, wrong, widest = 0, [], 1.0
    for row in rows(name):
        if row.get("refused"):
            refused += 1
            continue
        arch = architecture(row, name)
        if row["ctx"].get("ctx_type") == "mtp":
            unknown[f"{arch} (mtp)"] += 1
            continue
        found = interval(row, name)
        if found is None:
            unknown[arch] += 1
        elif found.exact and found.low == row["compute"]:
            exact[arch] += 1
        elif not found.exact and found.low <= row["compute"] <= found.high:
            within[arch] += 1
            widest = max(widest, found.high / found.low)
        else:
            wrong.append(f"{row['name']}: llama.cpp {row['compute']}, kvcalc {found[:2]}")
    return ComputeTally(exact, within, unknown, refused, tuple(wrong), widest)
