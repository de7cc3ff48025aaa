"""What the other rooms ask of transformers: see `engines.engine`."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.engines.changes import Change
from kvcalc.engines.engine import Engine

__all__ = ["ENGINE"]


class _Transformers(Engine):
    sequences = None  # a library: its caller decides how many run

    def cache_levers(self, now: str) -> Iterator[Change]:
        """Yield nothing: it quantises caches by classes of its own."""
        del now
        yield from ()


ENGINE = _Transformers("transformers")
