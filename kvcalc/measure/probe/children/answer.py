"""The last line that a child prints: its answer, or why there is none, found among other output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["MARK", "reply"]

MARK = "kvcalc-answer "


def reply(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the question on stdin; an error of the engine is an answer too."""
    question = json.load(sys.stdin)
    # What an engine prints goes to stderr, whether Python prints it or a library below it.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        told: dict[str, Any] = {"answer": answer(question)}
    except ImportError as error:
        told = {"missing": str(error)}
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(out, "w", encoding="utf-8") as stdout:
        stdout.write(f"\n{MARK}{json.dumps(told)}\n")
