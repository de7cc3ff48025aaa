"""The reader of plain-data pickles: what it reads is what was written, and nothing is ever run."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InputError
from kvcalc.measure import unpickle as module
from kvcalc.measure.feed import Feed
from kvcalc.measure.unpickle import MAX_BYTES, MAX_DEPTH, SKIPPED, unpickle
from tests.guards import HANG


def read(data: bytes, **options: Any) -> Any:
    """Read a pickle of those bytes."""
    return unpickle(Feed(io.BytesIO(data), "x.pickle", MAX_BYTES), "x.pickle", **options).value


def refused(data: bytes) -> str:
    """Return what a pickle is refused with; within a second, in one line."""
    start = time.process_time()
    with pytest.raises(InputError) as error:
        read(data)
    assert time.process_time() - start < HANG
    assert "\n" not in str(error.value)
    assert error.value.hint
    assert error.value.where == "x.pickle"
    return error.value.message


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
)


def inside(atoms: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of plain data that hold such atoms."""
    return st.recursive(
        atoms,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.dictionaries(st.text(max_size=8), inner, max_size=5)
            | st.tuples(inner, inner)
            | st.tuples()
            | st.lists(inner, max_size=4).map(tuple)
        ),
        max_leaves=25,
    )


PLAIN = inside(ATOMS | st.binary(max_size=300))


@given(value=PLAIN, protocol=st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_round_trip(value: Any, protocol: int) -> None:
    """Every value of plain data is read as it was written, whatever the protocol."""
    assert read(pickle.dumps(value, protocol)) == value


@given(value=inside(ATOMS))
def test_round_trip_of_old(value: Any) -> None:
    """Those of old too; they write bytes as a call, which is refused."""
    for protocol in (0, 1, 2):
        assert read(pickle.dumps(value, protocol)) == value


@given(value=inside(ATOMS))
def test_optimized(value: Any) -> None:
    """A pickle that lost its unused places of the memo is read as well."""
    for protocol in (2, 3, 4):
        assert read(pickletools.optimize(pickle.dumps(value, protocol))) == value


def test_shared_values() -> None:
    """What stands twice is one value."""
    inner = ["x", 1]
    first, second = read(pickle.dumps([inner, inner]))
    assert first is second == inner


def test_long_batches() -> None:
    """Lists and dicts of many thousands are written in batches."""
    value = {"list": list(range(50_000)), "dict": {str(n): n for n in range(5_000)}}
    for protocol in (0, 2, 4):
        assert read(pickle.dumps(value, protocol)) == value


class TestSkipping:
    """Values under a key that nobody wants are not built."""

    VALUE = {
        "frames": [{"name": "f", "filename": "x.py", "line": 3}] * 3,
        "blocks": [{"size": 512, "frames": [{"name": "g"}, {"name": "h"}], "state": "inactive"}],
    }

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_gone(self, protocol: int) -> None:
        """They are passed over; what stands beside them is read."""
        value = read(pickle.dumps(self.VALUE, protocol), skip=frozenset({"frames"}))
        assert value["frames"] is SKIPPED
        (block,) = value["blocks"]
        assert block == {"size": 512, "frames": SKIPPED, "state": "inactive"}

    def test_names_that_stand_there_first(self) -> None:
        """A text that is first written in what is skipped is still known behind it."""
        name = "a name of its own"
        value = {"frames": [name, {"line": name}], "after": name}
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert read(pickle.dumps(value, protocol), skip=frozenset({"frames"}))["after"] == name

    def test_found(self) -> None:
        """Dicts among the skipped that hold the text looked for are returned, first and later."""
        frames = [{"name": f"f{n}"} for n in range(20)]
        entries = [
            {"action": "oom" if n in (3, 30, 40) else "alloc", "size": n, "frames": frames, "t": 1}
            for n in range(50)
        ]
        data = pickle.dumps({"device_traces": [entries], "segments": []})
        found = unpickle(
            Feed(io.BytesIO(data), "x", MAX_BYTES),
            "x",
            skip=frozenset({"device_traces", "frames"}),
            find="oom",
        ).found
        assert [entry["size"] for entry in found] == [3, 30, 40]

    def test_little_is_kept(self) -> None:
        """A hundred thousand skipped dicts leave next to nothing behind."""
        data = pickle.dumps({"frames": [{"line": n} for n in range(100_000)], "kept": [1]})
        machine = module._Machine(  # the machine itself, to look at its books
            Feed(io.BytesIO(data), "x", MAX_BYTES), "x", frozenset({"frames"}), ""
        )
        assert machine.run() == {"frames": SKIPPED, "kept": [1]}
        assert len(machine.heights) == 2


# --------------------------------------------------------------------- refusing

ALLOWED = {*module._OPCODES, "STOP"}
OTHERS = [opcode for opcode in pickletools.opcodes if opcode.name not in ALLOWED]

_ARGUMENTS = {
    "uint1": b"\x01",
    "uint2": b"\x01\x00",
    "int4": b"\x01\x00\x00\x00",
    "stringnl": b"'x'\n",
    "stringnl_noescape": b"x\n",
    "stringnl_noescape_pair": b"os\nsystem\n",
    "bytearray8": struct.pack("<Q", 1) + b"x",
}


def test_opcodes_that_call() -> None:
    """All that can fetch, call or build something is off the list."""
    names = {opcode.name for opcode in OTHERS}
    assert names >= {
        *("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"),
        *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"),
    }


@pytest.mark.parametrize("opcode", OTHERS, ids=lambda opcode: str(opcode.name))
@pytest.mark.parametrize("before", [b"", b"\x80\x04", b"\x80\x04}]N(", b"\x80\x04(]]"])
def test_every_other_opcode(opcode: Any, before: bytes) -> None:
    """Each is refused by its name, wherever it stands."""
    argument = _ARGUMENTS[opcode.arg.name] if opcode.arg is not None else b""
    said = refused(before + opcode.code.encode("latin-1") + argument + b"t.")
    assert f"opcode {opcode.name} " in said
    assert "nothing was run" in said


@pytest.mark.parametrize("code", sorted(set(range(256)) - set(module._NAMES)))
def test_no_opcode(code: int) -> None:
    """A byte that is no opcode at all is told as such."""
    assert "no pickle opcode" in refused(b"\x80\x04" + bytes([code]) + b".")


class Loud:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    """A pickle that would make a file makes none."""
    trap = tmp_path / "sprung"
    for value in (Loud(str(trap)), [1, {"segments": Loud(str(trap))}], OrderedDict(a=1), {1, 2}):
        refused(pickle.dumps(value, protocol))
    assert not trap.exists()


def nested(opening: bytes, closing: bytes, times: int) -> bytes:
    return b"\x80\x04" + opening * times + closing * times + b"."


HOSTILE = {
    "system by GLOBAL": b"cos\nsystem\n(S'echo x'\ntR.",
    "system by STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x06echo x\x85R.",
    "BUILD on a dict": b"\x80\x04}}b.",
    "EXT1": b"\x80\x04\x82\x01.",
    "persistent id": b"Px\n.",
    "lists inside lists": nested(b"]", b"a", 100_000),
    "marks inside marks": b"\x80\x04" + b"(" * 100_000 + b"l" * 100_000 + b".",
    "lists from marks": b"\x80\x04" + b"(" * 100 + b"l" * 100 + b".",
    "tuples inside tuples": b"\x80\x04N" + b"\x85" * 100_000 + b".",
    "dicts inside dicts": b"\x80\x04" + b"}K\x01" * 1_000 + b"N" + b"s" * 1_000 + b".",
    "a list that holds itself": b"\x80\x04]\x94h\x00a.",
    "a dict that holds itself": b"\x80\x04}\x94K\x01h\x00s.",
    "a circle of two": b"\x80\x04]\x94]\x94h\x00aa.",
    "a circle closed late": b"\x80\x04]\x94]\x94a0h\x01h\x00a.",
    "a doubled list": b"\x80\x04]2a.",
    "LONG4 of 1 GB": b"\x80\x04\x8b" + struct.pack("<i", 10**9) + b"x.",
    "LONG4 of less than nothing": b"\x80\x04\x8b" + struct.pack("<i", -1) + b"x.",
    "LONG1 of 255 bytes": b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".",
    "INT of a million digits": b"I" + b"9" * 10**6 + b"\n.",
    "LONG of a million digits": b"L" + b"9" * 10**6 + b"L\n.",
    "FLOAT of words": b"Fnought\n.",
    "BINUNICODE of 4 GB": b"\x80\x04X\xff\xff\xff\xff.",
    "BINUNICODE8 of 2^63": b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b".",
    "BINBYTES8 of 2^63": b"\x80\x04\x8e" + struct.pack("<Q", 2**63) + b".",
    "BINSTRING of less than nothing": b"\x80\x01T" + struct.pack("<i", -5) + b".",
    "text that is not UTF-8": b"\x80\x04\x8c\x02\xff\xfe.",
    "STRING without quotes": b"Sabc\n.",
    "a frame beyond the end": b"\x80\x04\x95" + struct.pack("<Q", 10**6) + b"N.",
    "a frame of 2^63": b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",
    "a frame in a frame": b"\x80\x04\x95" + struct.pack("<Q", 20) + b"\x95" + bytes(8) + b"N.",
    "protocol 9": b"\x80\x09N.",
    "nothing remembered there": b"\x80\x04h\x05.",
    "PUT far away": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "PUT of nothing": b"\x80\x02q\x00.",
    "GET of no number": b"gxx\n.",
    "STOP on nothing": b"\x80\x04.",
    "STOP on two": b"\x80\x04NN.",
    "STOP behind a mark": b"\x80\x04(N.",
    "bytes behind STOP": b"\x80\x04N.N",
    "APPEND to nothing": b"\x80\x04Na.",
    "APPEND to a dict": b"\x80\x04}Na.",
    "SETITEM in a list": b"\x80\x04]NNs.",
    "SETITEMS without a value": b"\x80\x04}(Nu.",
    "a key that is a list": b"\x80\x04}]Ns.",
    "a mark that was not set": b"\x80\x04]e.",
    "POP of nothing": b"\x80\x040.",
    "a line without an end": b"I123",
    "millions of values on the stack": b"\x80\x04" + b"N" * 4_000_000 + b".",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    """Nothing that no honest writer leaves is read, and none of it takes a second."""
    refused(HOSTILE[name])


def numbered(times: int, form: str) -> bytes:
    """Return opcodes with a number in each, so that no two values are equal."""
    return "".join(form.format(n) for n in range(times)).encode("latin-1")


DARK = b"\x80\x04}\x8c\x06frames]("
"""The beginning of a snapshot whose next values are passed over."""

FLOODS: dict[str, Callable[[], bytes]] = {
    "lists inside lists, closed at the end": lambda: nested(b"]", b"a", 2_000_000),
    "dicts and keys inside dicts": lambda: b"\x80\x04" + b"}K\x01" * 1_000_000,
    "tuples of one, side by side": lambda: b"\x80\x04(" + b"N\x85" * 1_500_000 + b"t.",
    "one text, five million times": lambda: (
        b"\x80\x04\x8c\x01a\x94(" + b"h\x00" * 5_000_000 + b"t."
    ),
    "one text into one list, for ever": lambda: (
        b"\x80\x04\x8c\x01a\x940]" + b"h\x00a" * 4_000_000 + b"."
    ),
    "values taken off again": lambda: b"\x80\x04N" + b"N0" * 4_000_000 + b".",
    "marks taken off again": lambda: b"\x80\x04N" + b"(N1" * 4_000_000 + b".",
    "one value remembered for ever": lambda: b"\x80\x04N" + b"\x94" * 5_000_000 + b".",
    "places left out of the memo": lambda: (
        b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", n << 20) for n in range(1, 1_000)) + b"."
    ),
    "texts that differ": lambda: b"\x80\x02(" + numbered(1_200_000, "X\x07\0\0\0{:07}") + b"l.",
    "long texts": lambda: b"\x80\x02(" + numbered(110, "X\0\0\x0f\0{:0983040}") + b"l.",
    "bytes": lambda: b"\x80\x03(" + numbered(1_200_000, "C\x07{:07}") + b"l.",
    "numbers as keys": lambda: (
        b"\x80\x02}("
        + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(300, 1_500_300))
        + b"u."
    ),
    "dicts side by side": lambda: b"\x80\x02](" + b"}(K\x01Nu" * 1_000_000 + b"e.",
    "dicts of one key as segments": lambda: (
        b"\x80\x02}X\x08\0\0\0segments]" + b"(}X\x07\0\0\0addressK\x01se" * 300_000 + b"s."
    ),
    "one key of one dict, set in batches for ever": lambda: (
        b"\x80\x02}" + b"(K\x01K\x02u" * 2_000_000 + b"."
    ),
    "one number into one list, for ever": lambda: b"\x80\x02]" + b"K\x01a" * 3_000_000 + b".",
    "lists in batches": lambda: b"\x80\x02]" + (b"(" + b"]" * 1_000 + b"e") * 2_000 + b".",
    "texts that are passed over": lambda: DARK + numbered(1_200_000, "X\x07\0\0\0{:07}") + b"eu.",
    "lists that are passed over": lambda: DARK + b"]\x94" * 5_000_000 + b"eu.",
    "into a list that is passed over": lambda: DARK + b"]" + b"Na" * 5_000_000 + b"eu.",
    "references that are passed over": lambda: DARK + b"]\x94" + b"h\x00a" * 5_000_000 + b"eu.",
    "found and found again": lambda: (
        b"\x80\x04}\x8c\x06frames](" + (b"}(" + b"\x8c\x03oomN" * 1_000 + b"u") * 2_000 + b"eu."
    ),
}

_CHILD = r"""
import re, sys, time
from kvcalc.core.errors import InputError
from kvcalc.measure.snapshot import read_snapshot
start = time.process_time()
try:
    read_snapshot(sys.argv[1])
except InputError as error:
    print(error.message)
spent = time.process_time() - start
with open("/proc/self/status") as file:
    print(spent, int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak is read from /proc")
@pytest.mark.parametrize("name", FLOODS)
def test_floods(name: str, tmp_path: Path) -> None:
    """Whatever is poured in, a refusal costs little time and less than 100 MB of the process."""
    path = tmp_path / "flood.pickle"
    path.write_bytes(FLOODS[name]())
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, check=True
    )
    said, figures = done.stdout.splitlines()
    spent, peak = map(float, figures.split())
    assert "byte " in said
    assert spent < HANG, said
    assert peak < 100e6, said


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x80\x02}" + b"(K\x01K\x02u" * 60_000 + b".", "opcodes, more than a snapshot"),
        (b"\x80\x02]" + b"}K\x01Nsa" * 12_000 + b".", "no segment nor block"),
        (b"\x80\x02]" + b"]a" * 12_000 + b".", "no segment nor block"),
        (b"\x80\x02]" + b"}(K\x01NK\x02Nua" * 130_000 + b".", "more than 120,000"),
        (DARK + b"}(" + b"\x8c\x03oomN" * 300 + b"ueu.", "an entry of a trace has 600"),
    ],
)
def test_what_no_snapshot_holds_is_refused_early(data: bytes, told: str) -> None:
    """By what it is made of, long before its size or its memory would tell."""
    start = time.process_time()
    with pytest.raises(InputError, match=told):
        unpickle(
            Feed(io.BytesIO(data), "x", MAX_BYTES), "x", skip=frozenset({"frames"}), find="oom"
        )
    assert time.process_time() - start < HANG


def test_texts_of_equal_letters() -> None:
    """Texts that a writer did not know again are one, so that long traces stay small."""
    value = read(b"\x80\x02(X\x02\0\0\0abX\x02\0\0\0abl.")
    assert value == ["ab", "ab"]
    assert value[0] is value[1]


def test_depth_that_is_read() -> None:
    """Nesting up to the limit is read, one level more is not."""
    value: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert read(pickle.dumps(value)) == value
    assert "levels deep" in refused(pickle.dumps([value]))


def test_truncated() -> None:
    """A pickle that ends too soon is refused wherever it was cut."""
    value = {"segments": [{"a": 1, "b": (2**40, "x" * 300), "c": [1.5, None, True]}] * 2}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(value, protocol)
        for end in range(len(data)):
            refused(data[:end])


def test_larger_than_the_limit() -> None:
    """The reader stops at its limit, wherever in the file it is."""
    data = pickle.dumps(["x" * 1000] * 10 + [f"{n:020}" for n in range(100_000)])
    with pytest.raises(InputError, match="larger than 1 MiB"):
        unpickle(Feed(io.BytesIO(data), "x", 2**20), "x")


def test_own_module_never_asks_pickle() -> None:
    """The product imports pickletools for the names alone, and never pickle."""
    folder = Path(module.__file__).parents[1]
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle\n" not in text, path
        assert "torch.load" not in text, path


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Any bytes are read or refused; no other error leaves the reader."""
    for head in (b"", b"\x80\x04", b"\x80\x04(", b"\x80\x04]\x94("):
        try:
            read(head + data)
        except InputError as error:
            assert "\n" not in str(error)
