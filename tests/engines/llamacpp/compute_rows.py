"""llama.cpp's compute buffers of the recorded contexts, and kvcalc's."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.model import ModelSpec
from kvcalc.engines.llamacpp.compute import Interval, buffer_of
from kvcalc.engines.llamacpp.contexts import contexts_of
from kvcalc.engines.llamacpp.settings import resolve
from tests.engines.llamacpp.rows import deployment, model, rows

__all__ = ["ComputeTally", "compute_tally", "interval"]


class ComputeTally(NamedTuple):
    """What became of the questions.

    Attributes:
        exact: answers that kvcalc gives to the byte, by architecture.
        within: answers inside a wider interval, by architecture.
        unknown: contexts that kvcalc gives no bytes for, by architecture or reason.
        refused: contexts that llama.cpp refuses.
        wrong: answers outside, a line each.
    """

    exact: Counter[str]
    within: Counter[str]
    unknown: Counter[str]
    refused: int
    wrong: tuple[str, ...]


def sized(row: dict[str, Any]) -> ModelSpec:
    """Return a row's model with the vocabulary that the row was asked with."""
    spec = model(row["model"])
    if "vocab" not in row or spec.size is None:
        return spec
    size = msgspec.structs.replace(spec.size, vocab_size=row["vocab"])
    return msgspec.structs.replace(spec, size=size)


def interval(
    row: dict[str, Any], *, gpu: bool = False, every_layer: bool = False
) -> Interval | None:
    """Return kvcalc's bytes of a row's compute buffer.

    A model from key-values alone has every tensor that llama.cpp can use, scales of experts too.
    """
    spec = sized(row)
    settings = resolve(spec, deployment(row["ctx"]), [])
    main = contexts_of(spec, settings, [])[0]
    return buffer_of(
        main,
        settings,
        gpu=gpu,
        outputs=row["outputs"],
        every_tensor="vocab" in row,
        every_layer=every_layer,
    )


def compute_tally(name: str = "rows.jsonl") -> ComputeTally:
    """Return the tally of a file of questions."""
    exact: Counter[str] = Counter()
    within: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    refused, wrong = 0, []
    for row in rows(name):
        if row.get("refused"):
            refused += 1
            continue
        arch = model(row["model"]).architecture or ""
        if row["ctx"].get("ctx_type") == "mtp":
            unknown[f"{arch} (mtp)"] += 1
            continue
        found = interval(row)
        if found is None:
            unknown[arch] += 1
        elif found.exact and found.low == row["compute"]:
            exact[arch] += 1
        elif not found.exact and found.low <= row["compute"] <= found.high:
            within[arch] += 1
        else:
            wrong.append(f"{row['name']}: llama.cpp {row['compute']}, kvcalc {found[:2]}")
    return ComputeTally(exact, within, unknown, refused, tuple(wrong))
