"""Variables put into words, as far as a script gives them values; the rest stays as written."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Sequence

from kvcalc.manifests.shell.state import Segment, State, Value, flat, unknown
from kvcalc.manifests.shell.tree import Literal, Raw, Substitution, Variable

__all__ = ["arithmetic", "expand"]


_MAX_VALUE = 200_000  # characters of one value
_MAX_SEGMENTS = 1_000  # pieces of one value: a script that doubles one forty times says nothing
_DIGITS = 3  # of an argument's number
_MOST_ARGUMENTS = 10_000
_LONGEST = 500  # characters of a value that is trimmed
_DEFAULTS = {":-", "-", ":=", "="}
_ALTERNATES = {":+", "+"}
_TRIMS = {"#", "##", "%", "%%"}


def expand(
    raw: Raw, state: State, *, split: bool = True, unset_is_empty: bool = False
) -> list[Value]:
    """Return what a word becomes: none, one or several.

    Args:
        raw: the word.
        state: the values that are known. `${X:=word}` sets one.
        split: whether unquoted values are split at their blanks, as of a command's words.
        unset_is_empty: of a variable that nothing sets; it stays as written otherwise.
    """
    fields = _Fields(split=split, unset_is_empty=unset_is_empty)
    _add(raw, state, fields, quoted=False)
    return fields.finish()


class _Fields:
    """Words under construction."""

    def __init__(self, *, split: bool, unset_is_empty: bool) -> None:
        self.split = split
        self.unset_is_empty = unset_is_empty
        self.done: list[Value] = []
        self.current: list[Segment] = []
        self.begun = False
        self.size = 0
        self.count = 0

    def put(self, segment: Segment) -> None:
        self.size += len(segment.text)
        self.count += 1
        if self.current and self.current[-1][1:] == segment[1:]:
            self.count -= 1
            segment = segment._replace(text=self.current.pop().text + segment.text)
        if self.size <= _MAX_VALUE and self.count <= _MAX_SEGMENTS:
            self.current.append(segment)
        self.begun = True

    def put_split(self, value: Value) -> None:
        """Put a value whose blanks end words."""
        for segment in value:
            pieces = re.split(r"([ \t\n]+)", segment.text)
            for piece in pieces:
                if not piece:
                    continue
                if piece.isspace():
                    self.cut()
                else:
                    self.put(segment._replace(text=piece))

    def put_value(self, value: Value, *, quoted: bool) -> None:
        """Put a value: in one piece where it is quoted, split at its blanks otherwise."""
        if not quoted and self.split:
            self.put_split(value)
            return
        for segment in value:
            self.put(segment)
        if not value and quoted:
            self.put(Segment(""))

    def put_joined(self, values: Sequence[Value]) -> None:
        """Put several values as one word, with blanks between them."""
        for number, value in enumerate(values):
            if number:
                self.put(Segment(" "))
            for segment in value:
                self.put(segment)

    def put_each(self, values: Sequence[Value], *, quoted: bool) -> None:
        """Put several values, each a word of its own."""
        for number, value in enumerate(values):
            if number:
                self.cut()
            if quoted:
                self.begun = True
                for segment in value:
                    self.put(segment)
            else:
                self.put_split(value)
        if not values and quoted and not self.current:
            self.begun = False  # "$@" of nothing is no word

    def cut(self) -> None:
        if self.begun and len(self.done) < _MAX_SEGMENTS:
            self.done.append(tuple(self.current))
        self.current, self.begun = [], False

    def finish(self) -> list[Value]:
        self.cut()
        return self.done


def _add(raw: Raw, state: State, fields: _Fields, *, quoted: bool, name: str = "") -> None:
    """Put a word's parts; as the value of a variable `name` where they are its default."""
    for part in raw.parts:
        if isinstance(part, Literal):
            named = (name,) if name else ()
            if name and fields.split and not (quoted or part.quoted):
                fields.put_split((Segment(part.text, named),))
            else:
                fields.put(Segment(part.text, named))
            continue
        inside = quoted or part.quoted
        if isinstance(part, Variable):
            _variable(part, state, fields, quoted=inside)
            continue
        value = _substituted(part, state)
        if inside or not fields.split:
            for segment in value:
                fields.put(segment)
        else:
            fields.put_split(value)


def _variable(part: Variable, state: State, fields: _Fields, *, quoted: bool) -> None:
    if part.name in ("@", "*") or part.subscript in ("@", "*"):
        _several(part, state, fields, quoted=quoted)
        return
    value = _looked_up(part, state)
    fields.begun |= quoted  # an empty value in quotes is a word
    if part.operator in _DEFAULTS | _ALTERNATES:
        empty = value is None or (flat(value) == "" and part.operator.startswith(":"))
        if empty is (part.operator in _DEFAULTS):
            _instead(part, state, fields, quoted=quoted)
            return
        if part.operator in _ALTERNATES:
            return
        value = value or ()
    elif value is not None and part.operator in _TRIMS:
        value = _trimmed(part, value, state)
    elif part.operator not in ("", "?", ":?"):
        value = None
    if value is None and fields.unset_is_empty and part.name not in state.values:
        value = ()
    fields.put_value(_told(part, value), quoted=quoted)


def _told(part: Variable, value: Value | None) -> Value:
    """Return a value that knows its variable; the variable as written where it has none."""
    if value is None:
        return (unknown(part.written, part.name),)
    named = (part.name,)
    return tuple(s if s.unresolved else s._replace(variables=named) for s in value)


def _instead(part: Variable, state: State, fields: _Fields, *, quoted: bool) -> None:
    """Put the word behind the operator, which `:=` makes the variable's value."""
    if part.argument is None:
        return
    _add(part.argument, state, fields, quoted=quoted, name=part.name)
    if part.operator in (":=", "="):
        given = expand(part.argument, state, split=False)
        state.values[part.name] = given[0] if given else ()


def _several(part: Variable, state: State, fields: _Fields, *, quoted: bool) -> None:
    """Put all elements of an array, or all arguments."""
    if part.operator and part.operator not in _DEFAULTS | _ALTERNATES:
        fields.put(unknown(part.written, part.name))
        return
    values = state.arguments if part.name in ("@", "*") else state.arrays.get(part.name)
    if values is None and part.name in state.values:
        values = (state.values[part.name],)
    if part.operator in _ALTERNATES or (part.operator in _DEFAULTS and not values):
        if bool(values) is (part.operator in _ALTERNATES) and part.argument is not None:
            _add(part.argument, state, fields, quoted=quoted)
    elif values is None:
        fields.put(unknown(part.written, part.name))
    elif "*" in (part.name, part.subscript) and quoted:
        fields.put_joined(values)
    else:
        fields.put_each(values, quoted=quoted)


def _looked_up(part: Variable, state: State) -> Value | None:
    name = part.name
    if name == "0":
        return state.zero
    if name.isdigit():
        number = int(name) - 1 if len(name) <= _DIGITS else _MOST_ARGUMENTS
        known = state.arguments or ()
        return known[number] if number < len(known) else None
    array = state.arrays.get(name)
    if array is not None:
        number = int(part.subscript) if re.fullmatch("[0-9]{1,4}", part.subscript) else 0
        return array[number] if number < len(array) else ()
    if part.subscript:
        return None
    return state.values.get(name)


def _trimmed(part: Variable, value: Value, state: State) -> Value | None:
    """Return a value without what `#` or `%` cut off."""
    text = flat(value)
    given = expand(part.argument, state, split=False) if part.argument else []
    pattern = flat(given[0]) if given else None
    if text is None or pattern is None or len(text) > _LONGEST:
        return None
    match = re.compile(fnmatch.translate(pattern)).match
    ends = range(len(text) + 1)
    longest = len(part.operator) > 1
    if part.operator[0] == "#":
        for end in reversed(ends) if longest else ends:
            if match(text[:end]):
                return (Segment(text[end:]),)
    else:
        for start in ends if longest else reversed(ends):
            if match(text[start:]):
                return (Segment(text[:start]),)
    return (Segment(text),)


def _substituted(part: Substitution, state: State) -> Value:
    value: Value | None
    if part.kind == "arithmetic":
        number = arithmetic(part.text, state)
        value = None if number is None else (Segment(str(number)),)
    else:
        value = state.substitute(part.text)
    return (unknown(part.written, part.written),) if value is None else value


# `$((expression))`, where all of its variables have whole numbers.

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_LONGEST_SUM = 200


def arithmetic(text: str, state: State) -> int | None:
    """Return what `$((text))` is, where all of its variables have whole numbers."""
    if len(text) > _LONGEST_SUM or not re.fullmatch(r"[\w\s$+*/%(){}-]*", text):
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
