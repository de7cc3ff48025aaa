"""A guard against work that grows faster than its input.

How long things take is measured by tests/bench, on an idle machine; in the suite, beside other
tests, a time tells a hang alone.
"""

from __future__ import annotations

__all__ = ["HANG"]

HANG = 20.0
"""Seconds of CPU: what takes a second may take several; what is quadratic takes minutes."""
