"""A reader of pickles that hold plain data: no class, no call, nothing that a pickle could run.

It is a machine of its own for the opcodes that lists, dicts, tuples, numbers and texts need.
Every other opcode is refused by its name, as is whatever no honest writer leaves: lengths beyond
the file, a container that holds itself, nesting without end, more opcodes than the bytes of a
snapshot or its dicts and lists hold, more memory than one needs. All of it is counted while
opcodes are read, so that a refusal costs some tenths of a second and less than 100 MB.
`pickle` itself is never asked.

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
from kvcalc.measure.pickle_atoms import MAX_HELD, MAX_TEXT, U8
from kvcalc.measure.pickle_containers import (
    MAX_BEGUN,
    MAX_BUILT,
    MAX_DEPTH,
    MAX_PLACES,
    SKIPPED,
    Containers,
)

__all__ = [
    "MAX_BEGUN",
    "MAX_BUILT",
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_HELD",
    "MAX_OPCODES",
    "MAX_PLACES",
    "MAX_TEXT",
    "SKIPPED",
    "Pickled",
    "unpickle",
]

MAX_BYTES = 2**30
"""Of one file; what is passed over counts too."""

MAX_OPCODES = 1_200_000
"""That are executed beside those that the size of the file allows; a block has 16."""

_FREE, _OF_ONE = 150_000, 64  # opcodes of whatever, and of each container; a segment of old has 60
_FREE_DARK = 400_000  # of what is passed over, whatever it is
_BUILT, _PASSED_OVER = 8, 3  # bytes that have an opcode; frames with names of their own have it
_SLICE = 20_000  # opcodes between two looks at the books
_PROTOCOL = 5
_STOP = 0x2E
_HEAD = 16  # bytes that an opcode with its fixed argument may take
_MOST_FOUND = 100

_ATOMS = re.compile(
    rb"(?:h.|j.{4}|K.|M..|J.{4}|N|\x88|\x89|G.{8}"
    rb"|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x04.{4}|\x03.{3}))+(?=[eu\]])",
    re.DOTALL,
)
"""References and numbers up to the end of a list or dict, or up to a list inside."""
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


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


class _Machine(Containers):
    """Executes opcodes up to STOP."""

    def __init__(self, feed: Feed, where: str, skip: frozenset[str], find: str) -> None:
        super().__init__(feed, where, skip, find)
        self.frame_end = 0

    def run(self) -> Any:
        """Execute up to STOP and return the one value that is left."""
        feed, run = self.feed, _RUN
        slices = 0
        while True:
            self._check(slices * _SLICE)
            slices += 1
            for _ in range(_SLICE):
                if len(feed.data) - feed.position < _HEAD:
                    if not feed.need(1):
                        self._refuse("it ends without its STOP")
                    feed.need(_HEAD)
                code = feed.data[feed.position]
                feed.position += 1
                execute = run[code]
                if execute is None:
                    if code == _STOP:
                        return self._stop()
                    self._refuse_opcode(code)
                execute(self)

    def _check(self, executed: int) -> None:
        dark = self.dark_bytes
        by_size = MAX_OPCODES + (self.feed.offset - dark) // _BUILT
        by_content = _FREE + self.built * _OF_ONE
        if executed > min(by_size, by_content) + min(dark, _FREE_DARK) + dark // _PASSED_OVER:
            self._refuse(
                f"{executed:,} opcodes, more than a snapshot of so many"
                f" {'bytes' if by_size < by_content else 'dicts and lists'} has"
            )
        if len(self.memo) > MAX_PLACES:
            self._refuse(f"more than {MAX_PLACES:,} values are remembered")
        if self.held > MAX_HELD:
            self._refuse_size()

    def _stop(self) -> Any:
        if self.below or len(self.stack) != 1:
            self._refuse("its STOP leaves values on the stack, or none")
        if self.feed.offset < self.frame_end:
            self._refuse("a frame is longer than what follows")
        if self.feed.need(1):
            self._refuse("bytes follow its STOP")
        return self.stack[0]

    def _refuse_opcode(self, code: int) -> NoReturn:
        self.feed.position -= 1
        name = _NAMES.get(code)
        if name is None:
            self._refuse(f"byte 0x{code:02x} is no pickle opcode")
        self._refuse(f"the pickle opcode {name} is not one that plain data needs: nothing was run")

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
