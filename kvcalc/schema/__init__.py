"""JSON Schemas (draft 7) that ship with kvcalc; `python -m kvcalc.schema` writes them anew."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER", "names", "text"]

FOLDER = Path(__file__).parent
_ENDING = ".schema.json"


def names() -> list[str]:
    """Return the names of all schemas, sorted."""
    return sorted(path.name.removesuffix(_ENDING) for path in FOLDER.glob(f"*{_ENDING}"))


def text(name: str) -> str:
    """Return a schema's text."""
    return (FOLDER / f"{name}{_ENDING}").read_text(encoding="utf-8")
