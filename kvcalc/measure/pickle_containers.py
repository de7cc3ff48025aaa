"""The part of the pickle machine that builds: lists, dicts and tuples, the memo, and their limits.

What is built is charged to an account when its opcode is read, so that a file is refused for what
it would come to and not for what it has become.
"""

from __future__ import annotations

from typing import Any

from kvcalc.measure.feed import Feed
from kvcalc.measure.pickle_atoms import MAX_INT, MAX_LINE, U4, Atoms

__all__ = ["MAX_BEGUN", "MAX_BUILT", "MAX_DEPTH", "MAX_PLACES", "SKIPPED", "Containers"]

MAX_DEPTH = 32
"""Containers inside one another; snapshots need six."""

MAX_BEGUN = 100_000
"""Containers that are begun and not put anywhere: how deep they will lie is seen only then."""

MAX_BUILT = 120_000
"""Containers that are built: a dict for each block, of which there are 80,000 at most, and a dict,
a list and a pair for each segment."""

MAX_PLACES = 50_000_000
"""Of the memo; a trace needs one for each 20 bytes or more."""

_MARKS = 4 * MAX_DEPTH
_BYTE = 0xFF
_MAX_POPS = 1_000  # values taken off the stack again, which no writer of plain data does
_MOST_FOUND = 100
_MAX_STRANGE = (
    10_000  # containers in lists that are no dicts of two keys, as segments and blocks are
)
_LEAST_KEYS = len(("size", "state"))  # of a block that a profiler wrote
_MAX_ENTRY = 400  # keys and values of a dict of a trace; they have some twenty
_CONTAINERS = (list, dict, tuple)
_OF_CONTAINER, _OF_ITEM, _OF_WAITING, _OF_GAP = 200, 48, 40, 8  # bytes, about


class _Skipped:
    """Stands for a container that was passed over."""

    def __repr__(self) -> str:
        return "something that was not read"


SKIPPED = _Skipped()
_MISSING = object()


class Containers(Atoms):
    """A stack of values, the stacks under its marks, and the memo.

    Args:
        feed: the file, read forward.
        where: how errors name it.
        skip: keys whose values are not built.
        find: a text; dicts among the skipped that hold it as a value are kept in `found`.
    """

    def __init__(self, feed: Feed, where: str, skip: frozenset[str], find: str) -> None:
        super().__init__(feed, where)
        self.skip = skip
        self.find = find
        self.found: list[dict[str, Any]] = []
        self.below: list[list[Any]] = []
        self.memo: list[Any] = []
        self.dark = 0  # marks that stand inside something passed over
        self.pops = 0
        self.built = 0
        self.strange = 0
        self._dark_since = 0
        self._dark_bytes = 0
        self.heights: dict[int, int] = {}  # containers by identity: levels inside, itself counted
        self.open: set[int] = set()  # those that are not put anywhere yet
        self.found_at: list[bytes] = []  # opcodes that fetch the text that is looked for

    @property
    def held(self) -> int:
        """Bytes that are taken, about: what is built, and what waits to be put somewhere."""
        return self.spent + _OF_WAITING * (len(self.stack) + sum(map(len, self.below)))

    @property
    def dark_bytes(self) -> int:
        """Bytes of the file that lay inside something passed over."""
        return self._dark_bytes + (self.feed.offset - self._dark_since if self.dark else 0)

    def _run_over(self) -> None:
        """Pass over items that nobody wants, where that can be done at once."""

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
            if not self.dark:
                self._dark_bytes += self.feed.offset - self._dark_since
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
        if len(self.open) >= MAX_BEGUN:
            self._refuse(f"more than {MAX_BEGUN:,} lists, dicts and tuples that nothing holds")
        self.built += 1
        if self.built > MAX_BUILT:
            self._refuse(f"more than {MAX_BUILT:,} lists, dicts and tuples")
        self._charge(_OF_CONTAINER)
        self.stack.append(container)
        self.heights[id(container)] = 1
        self.open.add(id(container))

    def _put(self, target: Any, items: list[Any]) -> None:
        """Note what a container will hold; refuse what would make a circle or a tower.

        A container is filled before it is put anywhere, itself included, so none can come to hold
        what holds it.
        """
        mine = id(target)
        if mine not in self.open:
            self._refuse("a container is filled that was finished before")
        self._charge(_OF_ITEM * len(items))
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

    # ------------------------------------------------------------------ opcodes: memo

    def _memoize(self, index: int) -> None:
        if not self.stack:
            self._refuse("nothing is there to be remembered")
        value = self.stack[-1]
        if self.find and value == self.find and type(value) is str:
            self.found_at.append(b"j" + U4.pack(index) if index > _BYTE else bytes((0x68, index)))
            if len(self.found_at) > _MOST_FOUND:
                self._refuse("a text is remembered again and again")
        memo = self.memo
        if index == len(memo):
            memo.append(value)
        elif index < len(memo):
            memo[index] = value
        else:
            self._charge(_OF_GAP * (index - len(memo)))
            memo.extend([_MISSING] * (index - len(memo)))
            memo.append(value)

    def memoize(self) -> None:
        self._memoize(len(self.memo))

    def _unicode(self, data: bytes, encoding: str) -> None:
        super()._unicode(data, encoding)
        feed = self.feed  # nearly every text is remembered: that is done at once
        if feed.data[feed.position : feed.position + 1] == b"\x94":
            feed.position += 1
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
            if not self.dark:
                self._dark_since = self.feed.offset
            self.dark += 1
            self._run_over()
        self.below.append(stack)
        self.stack = []
        if len(self.below) > _MARKS:
            self._refuse(f"more than {_MARKS} marks inside one another")

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
        target = self._target()
        if target is not SKIPPED:
            self._extend(target, [item])

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
        for item in items:
            if type(item) in _CONTAINERS and (type(item) is not dict or len(item) < _LEAST_KEYS):
                self.strange += 1
        if self.strange > _MAX_STRANGE:
            self._refuse(f"more than {_MAX_STRANGE:,} in its lists that are no segment nor block")
        target.extend(items)

    def _update(self, target: Any, items: list[Any]) -> None:
        if target is SKIPPED:
            if self.find and self.find in items:
                if len(items) > _MAX_ENTRY:
                    self._refuse(f"an entry of a trace has {len(items):,} keys and values")
                self._charge(_OF_ITEM * len(items))
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

    def _taken_off(self) -> None:
        self.pops += 1
        if self.pops > _MAX_POPS:
            self._refuse("values are taken off the stack again and again")

    def pop(self) -> None:
        self._taken_off()
        if self.stack:
            self.stack.pop()
        else:
            self._pop_mark()

    def pop_mark(self) -> None:
        self._taken_off()
        self._pop_mark()

    def dup(self) -> None:
        value = self._target()
        if type(value) in _CONTAINERS:
            self._refuse("a container is doubled before it is finished")
        self.stack.append(value)


def _flat_pairs(items: list[Any]) -> dict[str, Any]:
    pairs = zip(items[::2], items[1::2], strict=False)
    return {key: value for key, value in pairs if type(key) is str}
