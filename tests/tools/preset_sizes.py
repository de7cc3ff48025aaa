"""The `size:` of presets: widths from published configs, weights from the table of checkpoints.

`../shared/corpus/weights.tsv` says where each number was found. Tensor bytes (`total_size` of an
index) count as they are; sums of files have headers in them and may be rounded, so that they get
an error; a repository with two copies of the weights, another build of them, and rows that were
themselves computed from a config say nothing here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.weights.formats import WIDTHS
from kvcalc.weights.parameters import parameters

SHARED = Path(__file__).parents[3] / "shared"

_HALF_STEP = 2**30 // 200 + 1  # of sizes rounded to 0.01 GiB
_HEADERS = 2000  # headers and paddings are less than one part in so many of a file
_BY_NAME = (("nvfp4", "nvfp4"), ("fp8", "fp8"))


class Row(NamedTuple):
    """One checkpoint of the table."""

    bytes: int
    error: int | None
    source: str


@cache
def rows() -> dict[str, Row]:
    """Return the rows that say what a checkpoint's tensors take, the best of each model."""
    found: dict[str, Row] = {}
    path = SHARED / "corpus" / "weights.tsv"
    with path.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines, delimiter="\t"):
            row = row_of(line)
            name = line["model_id"].lower()
            # An exact row replaces one with an error, never the other way round.
            if row is not None and (name not in found or row.error is None):
                found[name] = row
    return found


def row_of(line: dict[str, str], *, computed: bool = False) -> Row | None:
    """Return what a line of the table says of a checkpoint's tensors; None for nothing.

    Args:
        line: by the table's columns.
        computed: take lines that another program counted from the same config as well.
    """
    note, source, size = line["note"], line["source"], int(line["total_size_bytes"])
    if computed and note.startswith("computed"):
        return Row(size, None, "counted by another program")
    if note.startswith("computed") or "more than one copy" in note or "GGUF" in note:
        return None
    if note.startswith("rounded"):
        said = "sum of the repository's safetensors files as kaito's model catalogue lists it"
        return Row(size, _HALF_STEP + size // _HEADERS, f"{said}, rounded to 0.01 GiB")
    if "file bytes" in note:
        return Row(size, size // _HEADERS, "sum of the repository's safetensors files")
    if "total_size" in source or "index.json" in source:
        return Row(size, None, "total_size of the checkpoint's index")
    if "tensor bytes" in note or "bytes" in source:
        return Row(size, None, "tensor bytes")
    return None


def with_size(spec: ModelSpec, model_ids: Iterable[str]) -> ModelSize | None:
    """Return the sizes of a model as its preset gives them.

    Args:
        spec: as its config was read.
        model_ids: the repositories that the preset stands for, the one it was read from first.
    """
    size = spec.size
    if size is None:
        return None
    ids = list(model_ids)
    # Some repositories leave their quantisation to a file beside the config.
    if size.weights_dtype in WIDTHS:
        for word, name in _BY_NAME:
            if re.search(rf"[-_]{word}\b", ids[0].lower()):
                size = msgspec.structs.replace(size, weights_dtype=name)
    spec = msgspec.structs.replace(spec, size=size)
    try:
        low, high = parameters(spec)
    except KvcalcError:
        low, high = 0, 1
    counted = low if low == high else None
    row = next((rows()[i.lower()] for i in ids if i.lower() in rows()), None)
    if row is not None and row.error is None:
        # An index is of this very checkpoint: it also says what could not be counted.
        width = WIDTHS.get(size.weights_dtype or "")
        exact = row.bytes * 8 // int(width.low) if width is not None else counted
        return _told(size, counted if counted is not None else exact, row)
    if counted is not None and size.weights_dtype in WIDTHS:
        width = WIDTHS[size.weights_dtype]
        stored = counted * int(width.low) // 8
        return _told(size, counted, Row(stored, None, "parameters counted from the config"))
    return _told(size, counted, row)


def _told(size: ModelSize, parameters_: int | None, row: Row | None) -> ModelSize:
    if row is None:
        return msgspec.structs.replace(size, parameters=parameters_)
    return msgspec.structs.replace(
        size,
        parameters=parameters_,
        weights_bytes=row.bytes,
        weights_error_bytes=row.error,
        weights_source=row.source,
    )
