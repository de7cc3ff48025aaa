"""A reader of pickles that hold plain data: no class, no call, nothing that a pickle could run.

It is a machine of its own for the opcodes that lists, dicts, tuples, numbers and texts need.
Every other opcode is refused by its name, as is whatever no honest writer leaves: lengths beyond
the file, a container that holds itself, nesting without end. `pickle` itself is never asked.

What a caller does not want (stack traces, which are most of a memory snapshot) is passed over: the
values under such a key are never built, however many there are.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

from kvcalc.core.values import Value
from kvcalc.measure.feed import Feed
from kvcalc.measure.pickle_atoms import MAX_INT, MAX_LINE, MAX_TEXT, U4, U8, Atoms

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_OBJECTS", "MAX_TEXT", "SKIPPED", "Pickled", "unpickle"]

MAX_BYTES = 2**30
"""Of one file; what is passed over counts too."""

MAX_DEPTH = 32
"""Containers inside one another; snapshots need six."""

MAX_OBJECTS = 2_000_000
"""Values that wait to be put somewhere, and containers that are built."""

_MAX_MEMO = 50_000_000
_PROTOCOL = 5
_STOP = 0x2E
_BYTE = 0xFF
_HEAD = 16  # bytes that an opcode with its fixed argument may take

_ATOMS = re.compile(
    rb"(?:h.|j.{4}|K.|M..|J.{4}|N|\x88|\x89|G.{8}"
    rb"|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x04.{4}|\x03.{3}))+(?=[eu\]])",
    re.DOTALL,
)
"""References and numbers up to the end of a list or dict, or up to a list inside."""
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


class _Skipped:
    """Stands for a container that was passed over."""

    def __repr__(self) -> str:
        return "something that was not read"


SKIPPED = _Skipped()
_MISSING = object()


class Pickled(Value, frozen=True, kw_only=True):
    """What a pickle holds.

    Attributes:
        value: the top value.
        found: dicts among what was passed over that hold the text that was looked for.
    """

    value: Any
    found: tuple[dict[str, Any], ...] = ()


def unpickle(
    feed: Feed, where: str, *, skip: frozenset[str] = frozenset(), find: str = ""
) -> Pickled:
    """Read a pickle of plain data.

    Args:
        feed: the file, read forward once.
        where: how errors name it.
        skip: keys whose values are not built.
        find: a text; dicts among the skipped that hold it as a value are returned.

    Raises:
        InputError: an opcode that could do more than hold data, a length that lies, a limit
            exceeded, an end too soon or too late; always one line with the offset.
    """
    machine = _Machine(feed, where, skip, find)
    value = machine.run()
    return Pickled(value=value, found=tuple(machine.found[-_MOST_FOUND:]))


_MOST_FOUND = 100


class _Machine(Atoms):
    """A stack of values, the stacks under its marks, and the memo."""

    def __init__(self, feed: Feed, where: str, skip: frozenset[str], find: str) -> None:
        super().__init__(feed, where)
        self.skip = skip
        self.find = find
        self.found: list[dict[str, Any]] = []
        self.below: list[list[Any]] = []
        self.memo: list[Any] = []
        self.dark = 0  # marks that stand inside something passed over
        self.heights: dict[int, int] = {}  # containers by identity: levels inside, itself counted
        self.open: set[int] = set()  # those that are not put anywhere yet
        self.frame_end = 0
        self.found_at: list[bytes] = []  # opcodes that fetch the text that is looked for

    def run(self) -> Any:
        """Execute up to STOP and return the one value that is left."""
        feed, run = self.feed, _RUN
        grown = 0
        while True:
            if len(feed.data) - feed.position < _HEAD:
                if not feed.need(1):
                    self._refuse("it ends without its STOP")
                feed.need(_HEAD)
            if feed.base != grown:
                grown = feed.base
                self._check_size()
            code = feed.data[feed.position]
            feed.position += 1
            execute = run[code]
            if execute is None:
                if code == _STOP:
                    return self._stop()
                self._refuse_opcode(code)
            execute(self)

    def _stop(self) -> Any:
        if self.below or len(self.stack) != 1:
            self._refuse("its STOP leaves values on the stack, or none")
        if self.feed.offset < self.frame_end:
            self._refuse("a frame is longer than what follows")
        if self.feed.need(1):
            self._refuse("bytes follow its STOP")
        return self.stack[0]

    # ------------------------------------------------------------------ refusing

    def _refuse_opcode(self, code: int) -> NoReturn:
        self.feed.position -= 1
        name = _NAMES.get(code)
        if name is None:
            self._refuse(f"byte 0x{code:02x} is no pickle opcode")
        self._refuse(f"the pickle opcode {name} is not one that plain data needs: nothing was run")

    def _check_size(self) -> None:
        waiting = len(self.stack) + sum(map(len, self.below))
        if waiting > MAX_OBJECTS or len(self.heights) > MAX_OBJECTS:
            self._refuse(f"more than {MAX_OBJECTS:,} values")
        if len(self.memo) > _MAX_MEMO:
            self._refuse(f"more than {_MAX_MEMO:,} values are remembered")

    # ------------------------------------------------------------------ stack

    def _pop(self) -> Any:
        if not self.stack:
            self._refuse("a value is taken from an empty stack")
        return self.stack.pop()

    def _pop_mark(self) -> list[Any]:
        if not self.below:
            self._refuse("a mark is taken that was not set")
        items = self.stack
        self.stack = self.below.pop()
        if self.dark:
            self.dark -= 1
        return items

    def _passed_over(self) -> bool:
        """Whether a container that begins here is one that nobody wants."""
        if self.dark:
            return True
        if not self.stack:
            return False
        top = self.stack[-1]
        return top is SKIPPED or (type(top) is str and top in self.skip)

    def _new(self, container: Any) -> None:
        self.stack.append(container)
        self.heights[id(container)] = 1
        self.open.add(id(container))

    def _put(self, target: Any, items: list[Any]) -> None:
        """Note what a container now holds; refuse what would make a circle or a tower.

        A container is filled before it is put anywhere, itself included, so none can come to hold
        what holds it.
        """
        mine = id(target)
        if mine not in self.open:
            self._refuse("a container is filled that was finished before")
        heights = self.heights
        highest = 0
        for item in items:
            if type(item) in _CONTAINERS:
                name = id(item)
                height = heights[name]
                highest = max(highest, height)
                self.open.discard(name)
        if mine not in self.open:
            self._refuse("a container holds itself")
        if highest >= heights[mine]:
            if highest >= MAX_DEPTH:
                self._refuse(f"more than {MAX_DEPTH} levels deep")
            heights[mine] = highest + 1

    # ------------------------------------------------------------------ opcodes: frame and memo

    def proto(self) -> None:
        version = self._bytes(1)[0]
        if version > _PROTOCOL:
            self._refuse(f"pickle protocol {version} is not known")

    def frame(self) -> None:
        (length,) = U8.unpack(self._bytes(8))
        if self.feed.offset < self.frame_end:
            self._refuse("a frame begins inside another")
        self.frame_end = self.feed.offset + length
        if self.frame_end > self.feed.offset + MAX_BYTES:
            self._refuse("a frame is longer than what follows")

    def _memoize(self, index: int) -> None:
        memo = self.memo
        if not self.stack:
            self._refuse("nothing is there to be remembered")
        value = self.stack[-1]
        if self.find and value == self.find and type(value) is str:
            self.found_at.append(b"j" + U4.pack(index) if index > _BYTE else bytes((0x68, index)))
            if len(self.found_at) > _MOST_FOUND:
                self._refuse("a text is remembered again and again")
        if index == len(memo):
            memo.append(value)
        elif index < len(memo):
            memo[index] = value
        elif index - len(memo) <= MAX_TEXT:
            memo.extend([_MISSING] * (index - len(memo)))
            memo.append(value)
        else:
            self._refuse(f"place {index:,} of the memo is far beyond the last one")

    def memoize(self) -> None:
        self._memoize(len(self.memo))

    def binput(self) -> None:
        self._memoize(self._bytes(1)[0])

    def long_binput(self) -> None:
        self._memoize(U4.unpack(self._bytes(4))[0])

    def put(self) -> None:
        self._memoize(self._index())

    def _index(self) -> int:
        line = self._line(MAX_LINE)
        if not line.isdigit() or len(line) > MAX_INT:
            self._refuse("a place of the memo is no number")
        return int(line)

    def _get(self, index: int) -> None:
        value = self.memo[index] if index < len(self.memo) else _MISSING
        if value is _MISSING:
            self._refuse(f"nothing is remembered at place {index:,}")
        self.stack.append(value)

    def binget(self) -> None:
        self._get(self._bytes(1)[0])

    def long_binget(self) -> None:
        self._get(U4.unpack(self._bytes(4))[0])

    def get(self) -> None:
        self._get(self._index())

    # ------------------------------------------------------------------ opcodes: containers

    def mark(self) -> None:
        stack = self.stack
        if self.dark or (stack and stack[-1] is SKIPPED):
            self.dark += 1
            self._run_over()
        self.below.append(stack)
        self.stack = []
        if len(self.below) > 4 * MAX_DEPTH:
            self._refuse(f"more than {4 * MAX_DEPTH} marks inside one another")

    def _run_over(self) -> None:
        """Pass over the items of a container nobody wants, where they are references and numbers.

        All that matters of them is whether the text that is looked for is one.
        """
        feed = self.feed
        match = _ATOMS.match(feed.data, feed.position)
        if match is not None and not any(
            feed.data.find(get, feed.position, match.end()) >= 0 for get in self.found_at
        ):
            feed.position = match.end()

    def empty_list(self) -> None:
        if self._passed_over():
            self.stack.append(SKIPPED)
        else:
            self._new([])

    def empty_dict(self) -> None:
        if self._passed_over():
            self.stack.append(SKIPPED)
        else:
            self._new({})

    def empty_tuple(self) -> None:
        self._tuple([])

    def list_from_mark(self) -> None:
        items = self._pop_mark()
        self.empty_list()
        self._extend(self.stack[-1], items)

    def dict_from_mark(self) -> None:
        items = self._pop_mark()
        self.empty_dict()
        self._update(self.stack[-1], items)

    def tuple_from_mark(self) -> None:
        self._tuple(self._pop_mark())

    def _tuple(self, items: list[Any]) -> None:
        if self._passed_over():
            self.stack.append(SKIPPED)
            return
        made = tuple(items)
        if not made:  # there is one empty tuple: it is never open
            self.heights[id(made)] = 1
            self.stack.append(made)
            return
        self._new(made)
        self._put(made, items)

    def tuple1(self) -> None:
        self._tuple([self._pop()])

    def tuple2(self) -> None:
        last = self._pop()
        self._tuple([self._pop(), last])

    def tuple3(self) -> None:
        last, middle = self._pop(), self._pop()
        self._tuple([self._pop(), middle, last])

    def append(self) -> None:
        item = self._pop()
        self._extend(self._target(), [item])

    def appends(self) -> None:
        items = self._pop_mark()
        self._extend(self._target(), items)

    def setitem(self) -> None:
        value = self._pop()
        key = self._pop()
        self._update(self._target(), [key, value])

    def setitems(self) -> None:
        items = self._pop_mark()
        self._update(self._target(), items)

    def _target(self) -> Any:
        if not self.stack:
            self._refuse("there is nothing to put a value into")
        return self.stack[-1]

    def _extend(self, target: Any, items: list[Any]) -> None:
        if target is SKIPPED:
            return
        if type(target) is not list:
            self._refuse("items are added to what is no list")
        self._put(target, items)
        target.extend(items)

    def _update(self, target: Any, items: list[Any]) -> None:
        if target is SKIPPED:
            if self.find and self.find in items:
                self.found.append(_flat_pairs(items))
                del self.found[: -2 * _MOST_FOUND]
            return
        if type(target) is not dict:
            self._refuse("keys are set in what is no dict")
        if len(items) % 2:
            self._refuse("a key has no value")
        self._put(target, items)
        for key in items[::2]:
            if type(key) not in (str, int):
                self._refuse("a key is neither text nor number")
        target.update(zip(items[::2], items[1::2], strict=True))

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._pop_mark()

    def pop_mark(self) -> None:
        self._pop_mark()

    def dup(self) -> None:
        value = self._target()
        if type(value) in _CONTAINERS:
            self._refuse("a container is doubled before it is finished")
        self.stack.append(value)


_CONTAINERS = (list, dict, tuple)


def _flat_pairs(items: list[Any]) -> dict[str, Any]:
    pairs = zip(items[::2], items[1::2], strict=False)
    return {key: value for key, value in pairs if type(key) is str}


_OPCODES: dict[str, Callable[[_Machine], None]] = {
    "PROTO": _Machine.proto,
    "FRAME": _Machine.frame,
    "MEMOIZE": _Machine.memoize,
    "BINPUT": _Machine.binput,
    "LONG_BINPUT": _Machine.long_binput,
    "PUT": _Machine.put,
    "BINGET": _Machine.binget,
    "LONG_BINGET": _Machine.long_binget,
    "GET": _Machine.get,
    "NONE": _Machine.none,
    "NEWTRUE": _Machine.true,
    "NEWFALSE": _Machine.false,
    "BININT": _Machine.binint,
    "BININT1": _Machine.binint1,
    "BININT2": _Machine.binint2,
    "LONG1": _Machine.long1,
    "LONG4": _Machine.long4,
    "INT": _Machine.int_line,
    "LONG": _Machine.long_line,
    "FLOAT": _Machine.float_line,
    "BINFLOAT": _Machine.binfloat,
    "SHORT_BINUNICODE": _Machine.short_binunicode,
    "BINUNICODE": _Machine.binunicode,
    "BINUNICODE8": _Machine.binunicode8,
    "UNICODE": _Machine.unicode_line,
    "STRING": _Machine.string_line,
    "SHORT_BINSTRING": _Machine.short_binstring,
    "BINSTRING": _Machine.binstring,
    "SHORT_BINBYTES": _Machine.short_binbytes,
    "BINBYTES": _Machine.binbytes,
    "BINBYTES8": _Machine.binbytes8,
    "MARK": _Machine.mark,
    "EMPTY_LIST": _Machine.empty_list,
    "EMPTY_DICT": _Machine.empty_dict,
    "EMPTY_TUPLE": _Machine.empty_tuple,
    "LIST": _Machine.list_from_mark,
    "DICT": _Machine.dict_from_mark,
    "TUPLE": _Machine.tuple_from_mark,
    "TUPLE1": _Machine.tuple1,
    "TUPLE2": _Machine.tuple2,
    "TUPLE3": _Machine.tuple3,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.dup,
}
"""Every opcode that is executed, by the name that `pickletools` gives it; STOP ends the run."""

_RUN: list[Callable[[_Machine], None] | None] = [
    _OPCODES.get(_NAMES.get(code, "")) for code in range(256)
]
