"""Will it fit, how much is there, and what to change: questions put to plans and budgets."""

from __future__ import annotations

from kvcalc.sizing.answer import answer
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve import SETTINGS

__all__ = ["SETTINGS", "Question", "answer"]
