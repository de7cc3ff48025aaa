"""Lines on a terminal, with the colours that it and its environment allow."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, detect_legacy_windows
from rich.text import Text

from kvcalc.report.table import Line

__all__ = ["styled"]


def styled(lines: Sequence[Line], width: int) -> str:
    """Return the lines with terminal codes; rich honours NO_COLOR, TERM and the like.

    An old Windows console knows no codes: then nothing is returned.
    """
    if detect_legacy_windows():
        return ""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=True, highlight=False, legacy_windows=False
    )
    for line in lines:
        text = Text.assemble(*line)
        text.rstrip()
        console.print(text, soft_wrap=True)
    return buffer.getvalue()
