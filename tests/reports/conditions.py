"""What is right of a command's outcome, as one cell of `cases.tsv` says it.

A cell is conditions joined by ` && `:

- `exit=1`: the exit code;
- `out~REGEX`, `out!~REGEX`: found, or not found, in stdout and stderr together;
- `first~REGEX`: found in the first line of stdout;
- `PATH==VALUE`, and `!=`, `<=`, `>=`, `<`, `>`: a value of the JSON document on stdout; PATH is
  keys and positions joined by dots (`results.0.num_blocks`), VALUE is JSON;
- `PATH~REGEX`, `PATH!~REGEX`: found, or not found, in a value of the document, written as JSON.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

from tests.cli.harness import Outcome

__all__ = ["broken"]

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(
    r"(?P<what>[\w.-]+?)(?P<how>==|!=|<=|>=|!~|~|=|<|>)(?P<value>.*)", re.DOTALL
)


def broken(right: str, outcome: Outcome) -> list[str]:
    """Return the conditions of a cell that an outcome does not meet, each with what was there."""
    found = []
    for condition in right.split(" && "):
        there = _unmet(condition, outcome)
        if there is not None:
            found.append(f"{condition}\n  there: {there}")
    return found


def _unmet(condition: str, outcome: Outcome) -> str | None:
    """Return what is there instead; None where the condition is met."""
    parts = _CONDITION.fullmatch(condition)
    assert parts is not None, f"no condition: {condition}"
    what, how, value = parts["what"], parts["how"], parts["value"]
    if what == "exit":
        return None if outcome.code == int(value) else f"exit {outcome.code}\n{outcome.err}"
    if what in ("out", "first"):
        text = outcome.out + outcome.err if what == "out" else outcome.out.partition("\n")[0]
        return None if _found(value, text) == (how == "~") else text
    there = _at(outcome.document, what)
    if how in ("~", "!~"):
        text = json.dumps(there, ensure_ascii=False)
        return None if _found(value, text) == (how == "~") else text
    return None if _COMPARED[how](there, json.loads(value)) else json.dumps(there)


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None


def _at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document
