"""An out-of-memory text inside a log, judged as `kvcalc frag --oom` judges it."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.oom_values import OutOfMemory

__all__ = ["judged"]


def judged(lines: Sequence[str]) -> OutOfMemory | None:
    """Return the verdict on the last out-of-memory text among lines; None where there is none."""
    if not lines:
        return None
    from kvcalc.measure.oom import read_oom  # only logs that have one need it

    for text in (*reversed(lines), "\n".join(lines)):
        found = read_oom(text)
        if found is not None:
            return found
    return None
