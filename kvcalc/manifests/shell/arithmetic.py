"""`$((expression))`, where all of its variables have whole numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from kvcalc.manifests.shell.state import State, flat

__all__ = ["arithmetic"]

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_LONGEST = 200


def arithmetic(text: str, state: State) -> int | None:
    """Return what `$((text))` is, where all of its variables have whole numbers."""
    if len(text) > _LONGEST or not re.fullmatch(r"[\w\s$+*/%(){}-]*", text):
        return None
    text = re.sub(r"\$\{?(\w+)\}?", r"\1", text).strip()
    try:
        return _evaluated(ast.parse(text, mode="eval").body, state)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None


def _evaluated(node: ast.expr, state: State) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            value = state.values.get(name)
            text = None if value is None else flat(value)
            if text is None or not re.fullmatch(r"-?[0-9]{1,15}", text.strip()):
                raise ValueError(name)
            return int(text)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluated(inner, state)
        case ast.BinOp(left=left, op=op, right=right):
            one, two = _evaluated(left, state), _evaluated(right, state)
            if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](one, two)
            if isinstance(op, ast.Div | ast.FloorDiv):
                return abs(one) // abs(two) * (1 if (one < 0) == (two < 0) else -1)
            if isinstance(op, ast.Mod):
                return one % two
    raise ValueError("not arithmetic")
