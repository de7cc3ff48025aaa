"""Variables put into words, as far as a script gives them values; the rest stays as written.

A value is kept in segments, so that a list of flags in one variable, split at its blanks, still
knows which flag holds a variable that nobody gave a value.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvcalc.manifests.found import Word
from kvcalc.manifests.shell.tree import Literal, Raw, Substitution, Variable

__all__ = ["Segment", "State", "Value", "arithmetic", "as_value", "as_word", "expand", "flat"]

_BLANK = "\ue002"  # a blank inside something unresolved, which does not split a word
_LINE = "\ue003"
_MAX_VALUE = 200_000  # characters of one value
_MAX_SEGMENTS = 1_000  # pieces of one value: a script that doubles one forty times says nothing
_DEFAULTS = {":-", "-", ":=", "="}
_ALTERNATES = {":+", "+"}
_TRIMS = {"#", "##", "%", "%%"}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class Segment(NamedTuple):
    """A piece of a value.

    Attributes:
        text: of it.
        variables: the variable that it came out of.
        unresolved: variables without a value, which it holds as they were written.
        line: where it stands, if that is not where it is used: an element of an array.
    """

    text: str
    variables: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    line: int = 0


Value = tuple[Segment, ...]


def _nothing(_text: str) -> Value | None:
    return None


class State:
    """What is known where a command stands.

    Attributes:
        values: of variables.
        lines: where they were set.
        arrays: of arrays.
        exported: the names that started programs see.
        arguments: `$1`, `$2`, ...; None where nobody knows them.
        substitute: what `$(command)` gives; None where it is not known.
        zero: `$0`; None where nobody knows it.
        closed: nothing but what is known can have set a variable, as in a container.
        ended: the script, or the function, ends here (`exec`, `exit`, `return`).
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.lines: dict[str, int] = {}
        self.arrays: dict[str, tuple[Value, ...]] = {}
        self.exported: set[str] = set()
        self.arguments: tuple[Value, ...] | None = ()
        self.substitute: Callable[[str], Value | None] = _nothing
        self.zero: Value | None = None
        self.closed = False
        self.ended = ""

    def copy(self) -> State:
        """Return one that can be changed alone."""
        other = State()
        other.values = dict(self.values)
        other.lines = dict(self.lines)
        other.arrays = dict(self.arrays)
        other.exported = set(self.exported)
        other.arguments = self.arguments
        other.substitute = self.substitute
        other.zero = self.zero
        other.closed = self.closed
        other.ended = self.ended
        return other


def as_value(word: Word) -> Value:
    """Return a word as a value."""
    return (Segment(word.text, word.variables, word.unresolved),)


def as_word(value: Value, line: int, file: str = "") -> Word:
    """Return a value as a word that stands on a line, if not its own says otherwise."""
    return Word(
        "".join(s.text for s in value).replace(_BLANK, " ").replace(_LINE, "\n"),
        next((s.line for s in value if s.line), line),
        _united(s.variables for s in value),
        _united(s.unresolved for s in value),
        file,
    )


def flat(value: Value) -> str | None:
    """Return a value's text; None where a part of it is not known."""
    if any(segment.unresolved for segment in value):
        return None
    return "".join(segment.text for segment in value)


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


def _variable(part: Variable, state: State, fields: _Fields, *, quoted: bool) -> None:  # noqa: C901, PLR0912 - one branch a form
    if part.name in ("@", "*") or part.subscript in ("@", "*"):
        _several(part, state, fields, quoted=quoted)
        return
    value = _looked_up(part, state)
    named = (part.name,)
    fields.begun |= quoted  # an empty value in quotes is a word
    if part.operator in _DEFAULTS | _ALTERNATES:
        known = None if value is None else flat(value)
        empty = value is None or (known == "" and part.operator.startswith(":"))
        if empty != (part.operator in _DEFAULTS):
            if part.operator in _ALTERNATES:
                return
            value = value or ()
        elif part.argument is None:
            return
        else:
            _add(part.argument, state, fields, quoted=quoted, name=part.name)
            if part.operator in (":=", "="):
                given = expand(part.argument, state, split=False)
                state.values[part.name] = given[0] if given else ()
            return
    elif value is not None and part.operator in _TRIMS:
        value = _trimmed(part, value, state)
    elif part.operator not in ("", "?", ":?"):
        value = None
    if value is None and fields.unset_is_empty and part.name not in state.values:
        value = ()
    elif value is None:
        value = (_unknown(part.written, part.name),)
    else:
        value = tuple(s if s.unresolved else s._replace(variables=named) for s in value)
    if quoted or not fields.split:
        for segment in value:
            fields.put(segment)
        if not value and quoted:
            fields.put(Segment(""))
    else:
        fields.put_split(value)


def _several(part: Variable, state: State, fields: _Fields, *, quoted: bool) -> None:  # noqa: C901, PLR0912 - one branch a form
    """Put all elements of an array, or all arguments."""
    if part.operator and part.operator not in _DEFAULTS | _ALTERNATES:
        fields.put(_unknown(part.written, part.name))
        return
    values = state.arguments if part.name in ("@", "*") else state.arrays.get(part.name)
    if values is None and part.name in state.values:
        values = (state.values[part.name],)
    if part.operator in _ALTERNATES:
        if values and part.argument is not None:
            _add(part.argument, state, fields, quoted=quoted)
        return
    if not values and part.operator in _DEFAULTS:
        if part.argument is not None:
            _add(part.argument, state, fields, quoted=quoted)
        return
    if values is None:
        fields.put(_unknown(part.written, part.name))
        return
    if "*" in (part.name, part.subscript) and quoted:
        for number, value in enumerate(values):
            if number:
                fields.put(Segment(" "))
            for segment in value:
                fields.put(segment)
        return
    for number, value in enumerate(values):
        if number:
            fields.cut()
        if quoted:
            fields.begun = True
            for segment in value:
                fields.put(segment)
        else:
            fields.put_split(value)
    if not values and quoted and not fields.current:
        fields.begun = False  # "$@" of nothing is no word


def _looked_up(part: Variable, state: State) -> Value | None:
    name = part.name
    if name == "0":
        return state.zero
    if name.isdigit():
        number = int(name) - 1 if len(name) < 4 else 10_000  # noqa: PLR2004
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
    if text is None or pattern is None or len(text) > 500:  # noqa: PLR2004
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
    return (_unknown(part.written, part.written),) if value is None else value


def arithmetic(text: str, state: State) -> int | None:
    """Return what `$((text))` is, where all of its variables have whole numbers."""
    if len(text) > 200 or not re.fullmatch(r"[\w\s$+*/%(){}-]*", text):  # noqa: PLR2004
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


def _unknown(written: str, name: str) -> Segment:
    text = written.replace(" ", _BLANK).replace("\t", _BLANK).replace("\n", _LINE)
    return Segment(text, (), (" ".join(name.split())[:80],))


def _united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))
