"""docs/start-refusals.md says what the tables and kvcalc say now."""

from __future__ import annotations

from tests.docs.refusals import PAGE, rendered


def test_the_page_is_current() -> None:
    """`python -m tests.docs --write` would change nothing."""
    assert PAGE.read_text(encoding="utf-8") == rendered()
