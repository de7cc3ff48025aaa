"""The one seam to engines: other rooms import no engine's package and compare no engine's name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from kvcalc.engines import ALIASES, ENGINES

ROOT = Path(__file__).parents[2] / "kvcalc"
NAMES = {*ENGINES, *ALIASES} - {"none", "hf", "mlx"}
"""`none` is a word of many meanings, `hf` a scheme of addresses and `mlx` a kind of file."""

PACKAGES = {module.removeprefix("kvcalc.engines.").split(".")[0] for module in ENGINES.values()}

PROGRAMS = "manifests"
"""The room whose words are those of command lines and images: programs are called as engines."""

COMPARED = {
    "measure/logs/accounting.py": 1,
    "measure/logs/fixes.py": 2,
    "measure/logs/reading.py": 1,
    "measure/logs/release_guess.py": 2,
    "measure/logs/remedies.py": 7,
    "measure/logs/settings.py": 1,
    "measure/metrics/predicted.py": 2,
    "measure/probe/engine_query.py": 2,
}
"""Comparisons that are still there; none may come, and one that goes is taken off this list."""

IMPORTED = {
    "measure/logs/measured.py": 2,
    "measure/logs/predict.py": 1,
    "measure/logs/release_guess.py": 1,
    "measure/logs/remedies.py": 1,
}
"""Imports of engines' own modules that are still there, as COMPARED."""


def _outside() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("engines", PROGRAMS)
    ]


def _is_named(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in NAMES
        for part in ast.walk(node)
    )


def test_no_engine_is_named_in_a_condition() -> None:
    found: Counter[str] = Counter()
    for path, tree in _outside():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                found[path] += any(map(_is_named, (node.left, *node.comparators)))
    assert +found == Counter(COMPARED)


def test_no_engines_own_module_is_imported() -> None:
    found: Counter[str] = Counter()
    for path, tree in _outside():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "kvcalc.engines."
            ):
                found[path] += str(node.module).split(".")[2] in PACKAGES
    assert +found == Counter(IMPORTED)
