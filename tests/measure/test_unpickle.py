"""Pickles of plain data: what is read is what was written, and nothing is ever run."""

from __future__ import annotations

import pickle
import pickletools
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InputError
from kvcalc.measure import snapshot
from kvcalc.measure.snapshot import MAX_PICKLE_BYTES, unpickle
from tests.guards import HANG


@pytest.fixture(autouse=True, scope="module")
def _untried() -> Iterator[None]:
    """Thousands of pickles here are small and tame; FLOODS are read in processes of their own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot, "_tried", lambda _: 0)
        yield


def read(data: bytes) -> Any:
    """Read a pickle of those bytes."""
    return unpickle(data, "x.pickle")


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


# --------------------------------------------------------------------- refusing


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
    for value in (Loud(str(trap)), [1, {"segments": Loud(str(trap))}], OrderedDict(a=1)):
        assert "nothing was run" in refused(pickle.dumps(value, protocol))
    assert not trap.exists()


def nested(opening: bytes, closing: bytes, times: int) -> bytes:
    return b"\x80\x04" + opening * times + closing * times + b"."


HOSTILE = {
    "system by GLOBAL": b"cos\nsystem\n(S'echo x'\ntR.",
    "system by STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x06echo x\x85R.",
    "BUILD on a dict": b"\x80\x04}}b.",
    "EXT1": b"\x80\x04\x82\x01.",
    "persistent id": b"Px\n.",
    "LONG4 of less than nothing": b"\x80\x04\x8b" + struct.pack("<i", -1) + b"x.",
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
    "protocol 9": b"\x80\x09N.",
    "nothing remembered there": b"\x80\x04h\x05.",
    "PUT far away": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "PUT of nothing": b"\x80\x02q\x00.",
    "GET of no number": b"gxx\n.",
    "STOP on nothing": b"\x80\x04.",
    "bytes behind STOP": b"\x80\x04N.N",
    "APPEND to nothing": b"\x80\x04Na.",
    "APPEND to a dict": b"\x80\x04}Na.",
    "SETITEMS without a value": b"\x80\x04}(Nu.",
    "a key that is a list": b"\x80\x04}]Ns.",
    "a mark that was not set": b"\x80\x04]e.",
    "POP of nothing": b"\x80\x040.",
    "a line without an end": b"I123",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    """Nothing that no honest writer leaves is read, and none of it takes a second."""
    refused(HOSTILE[name])


FLOODS: dict[str, Callable[[], bytes]] = {
    "a place of the memo far away": lambda: b"\x80\x02Nr\xff\xff\xff\x7f.",
    "empty dicts": lambda: b"\x80\x04](" + b"}" * (MAX_PICKLE_BYTES - 10) + b"e.",
    "lists inside lists": lambda: nested(b"]", b"a", 2_000_000),
    "a key of tuples inside tuples": lambda: b"\x80\x04})" + b"\x85" * 3_000_000 + b"Ns.",
    "a text of 4 GB": lambda: b"\x80\x04X\xff\xff\xff\xff.",
    "a file of hundreds of megabytes": lambda: b"\x80\x04" + b"N" * 300_000_000 + b".",
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
    """A file that wants much memory is refused, and gets no more than the limit."""
    path = tmp_path / "flood.pickle"
    path.write_bytes(FLOODS[name]())
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, check=True
    )
    said, figures = done.stdout.splitlines()
    spent, peak = map(float, figures.split())
    assert said
    assert spent < 2 * HANG, said
    assert peak < 1e9, said


def test_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that ends too soon is refused wherever it was cut."""
    monkeypatch.setattr(
        snapshot, "_tried", lambda _: 0
    )  # thousands of processes would be waited for
    value = {"segments": [{"a": 1, "b": (2**40, "x" * 300), "c": [1.5, None, True]}] * 2}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(value, protocol)
        for end in range(len(data)):
            refused(data[:end])


def test_larger_than_the_limit() -> None:
    """A pickle beyond the limit is refused before it is looked at."""
    assert "larger than 128 MiB" in refused(b"\x80\x04" + b"N" * MAX_PICKLE_BYTES + b".")


def test_nothing_loads_by_pickle_itself() -> None:
    """One module imports pickle, for the Unpickler that refuses every name."""
    folder = Path(sys.modules[unpickle.__module__].__file__ or "").parents[1]
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert ("import pickle\n" in text) == (path.name == "snapshot.py"), path
        assert "pickle.load" not in text, path
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
