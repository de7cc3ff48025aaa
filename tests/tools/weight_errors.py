"""How far counted weights are from known ones: python -m tests.tools.weight_errors --write.

Of every published config that the table of checkpoints has bytes for, the bytes counted from
widths alone are compared with them. The result lies in `tests/core/weight_errors.tsv`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.weights.formats import WIDTHS
from kvcalc.weights.on_rank import weights_on_rank
from tests.tools.generate_presets import published
from tests.tools.preset_sizes import SHARED, Row, row_of, with_size

TABLE = Path(__file__).parents[1] / "core" / "weight_errors.tsv"
_PARTIAL = "sizing facts only"
"""What the index says of configs from which the widths of the weights were left out."""

COLUMNS = ("model", "bytes", "off by at most", "low", "high", "error", "known from")


class Compared(NamedTuple):
    """One checkpoint: what is known of it, and the bounds that were counted.

    Attributes:
        model: its repository.
        row: its bytes, and by how much those may be off.
        bounds: the bytes counted, None where they cannot be.
    """

    model: str
    row: Row
    bounds: tuple[int, int] | None

    @property
    def error(self) -> float | None:
        """How far the bounds are from what is known, in percent of it; 0 where they hold it."""
        if self.bounds is None:
            return None
        known = self.row.bytes
        below, above = self.bounds[0] - known, known - self.bounds[1]
        return 100 * max(0, below, above) / known

    @property
    def holds(self) -> bool:
        """Whether the bounds hold what is known, within what that may be off."""
        if self.bounds is None:
            return False
        off = self.row.error or 0
        return self.bounds[0] - off <= self.row.bytes <= self.bounds[1] + off


def counted(spec: ModelSpec, model: str) -> tuple[int, int] | None:
    """Return the bytes of a checkpoint counted from widths alone, its drafts included."""
    size = with_size(spec, [model])
    if size is not None:
        # What is known already must not answer.
        size = msgspec.structs.replace(
            size, parameters=None, weights_bytes=None, weights_error_bytes=None
        )
    try:
        term = weights_on_rank(msgspec.structs.replace(spec, size=size), drafts=True)
    except KvcalcError:
        return None
    return term.low_bytes, term.high_bytes


def compared() -> Iterator[Compared]:
    """Yield every row of the table whose model's config is there."""
    with (SHARED / "corpus" / "index.tsv").open(encoding="utf-8", newline="") as lines:
        index = csv.DictReader(lines, delimiter="\t")
        partial = {row["model_id"] for row in index if _PARTIAL in row["note"]}
    specs = {item.model_id: item.spec for item in published() if item.model_id not in partial}
    path = SHARED / "corpus" / "weights.tsv"
    with path.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines, delimiter="\t"):
            row, model = row_of(line, computed=True), line["model_id"]
            if row is None or model not in specs:
                continue
            size = with_size(specs[model], [model])
            # Those rows are parameters by two bytes, whatever the checkpoint is stored in.
            is_stored = size is not None and size.weights_dtype in WIDTHS
            if is_stored or not line["note"].startswith("computed"):
                yield Compared(model, row, counted(specs[model], model))


def text() -> str:
    """Return the table."""
    lines = ["\t".join(COLUMNS)]
    for item in compared():
        low, high = item.bounds or ("", "")
        error = "" if item.error is None else f"{item.error:.3f} %"
        off = item.row.error or 0
        fields = (item.model, item.row.bytes, off, low, high, error, item.row.source)
        lines.append("\t".join(str(field) for field in fields))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        TABLE.write_text(text(), encoding="utf-8", newline="\n")
    else:
        print(text(), end="")
