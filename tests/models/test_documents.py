"""The strict YAML reader: what it reads, what it refuses and where it says so."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.models.documents import MAX_DEPTH, MAX_NODES, read_document
from kvcalc.models.text import MAX_BYTES, DocumentError, decode, read_stream, read_text, shown


@pytest.fixture(params=["c", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: where it was built without libyaml there is only the slow one."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML was built without libyaml")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-5", -5),
        ("+5", 5),
        ("18446744073709551616", 2**64),
        ("1e9", 1e9),
        ("1.5", 1.5),
        ("-2.5E-3", -0.0025),
        # What YAML 1.1 turns into something else:
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("True", "True"),
        ("NULL", "NULL"),
        ("012", "012"),
        ("0x1F", "0x1F"),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("16:30", "16:30"),
        ("190:20:30", "190:20:30"),
        ("2026-11-29", "2026-11-29"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("=", "="),
        ("9.0.1", "9.0.1"),
        ("\u0661", "\u0661"),
        # Quotes and blocks always hold text:
        ('"5"', "5"),
        ("'true'", "true"),
        ("''", ""),
        ("|\n  5\n", "5\n"),
        (">\n  a\n  b\n", "a b\n"),
    ],
)
def test_a_scalar_means_one_thing(text: str, value: object) -> None:
    document = read_document(f"key: {text}\n", "f.yaml")
    assert isinstance(document.value, dict)
    found = document.value["key"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.usefixtures("parser")
def test_a_merge_key_is_a_key_like_any_other() -> None:
    assert read_document("<<: 1\n", "f").value == {"<<": 1}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "'a' stands twice, first on line 1"),
        ("x:\n  a: 1\n  'a': 2\n", 3, "stands twice, first on line 2"),
        ("{a: 1, a: 2}", 1, "stands twice"),
        ("a: 1\n2: b\n", 2, "the key 2 is not text"),
        ("true: b\n", 1, "the key true is not text"),
        ("a: 1\n~: b\n", 2, "the key nothing is not text"),
        ("? [a]\n: b\n", 1, "a list or mapping is used as a key"),
        ("? {a: b}\n: b\n", 1, "a list or mapping is used as a key"),
        ("a: 1\nb: !!python/object:os.system 1\n", 2, "the tag '!!python/object:os.system'"),
        ("a: !!str 1\n", 1, "the tag '!!str'"),
        ("a: ! 1\n", 1, "the tag '!'"),
        ("a: !x [1]\n", 1, "the tag '!x'"),
        ("!y\na: 1\n", 1, "the tag '!y'"),
        ("a: &x 1\n", 1, "the anchor or alias 'x'"),
        ("a: &x [1]\n", 1, "the anchor or alias 'x'"),
        ("a: 1\nb: *x\n", 2, "the anchor or alias 'x'"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins here"),
        ("", 1, "the file is empty"),
        ("# nothing\n", 1, "the file is empty"),
        ("a: 1\nb: 123456789012345678901\n", 2, "a whole number of more than 20 digits"),
        (f"a: {'9' * 5000}\n", 1, "a whole number of more than 20 digits"),
        ("a: 1e999\n", 1, "beyond any number"),
        ("a:\n\t- b\n", 2, "a tab indents this line"),
        ("a: 1\n  \tb: 2\nc: 3\n", 2, "a tab indents this line"),
        ("a: b: c\n", 1, "not valid YAML: mapping values are not allowed"),
        ("a: [1, 2\n", 1, "not valid YAML"),
        ('a: 1\nb: "c\n', 2, "not valid YAML"),
        ("- a\nb: c\n", 2, "not valid YAML"),
        ("a: @b\n", 1, "not valid YAML"),
        ('a: "\\U00110000"\n', 1, "not valid YAML"),
        ("a: 1\nb: \x07\n", 2, "a character that YAML does not allow (U+0007)"),
        ("a: \x00", 1, "a character that YAML does not allow (U+0000)"),
        ("a: \ud800", 1, "a character that YAML does not allow (U+D800)"),
        ('a: 1\nb: "\\e[2J"\n', 2, "a control character in a text (U+001B)"),
        ('"\\0": 1\n', 1, "a control character in a text (U+0000)"),
    ],
)
def test_what_is_refused_is_said_in_one_line(text: str, line: int, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_document(text, "f.yaml")
    error = caught.value
    assert words in error.message
    assert (error.line, error.where) == (line, f"f.yaml:{line}")
    assert error.hint
    assert "\n" not in error.message + error.hint


@pytest.mark.usefixtures("parser")
def test_the_depth_has_a_limit() -> None:
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_document(nested, "f").line((0,)) == 1
    for text in (f"[{nested}]", "[" * 100_000, "{a: " * 100_000, "- " * 20_000):
        with pytest.raises(DocumentError, match="levels deep"):
            read_document(text, "f")


def test_the_number_of_values_has_a_limit() -> None:
    read_document("[" + "1," * (MAX_NODES - 1) + "]", "f")
    with pytest.raises(DocumentError, match=f"more than {MAX_NODES} values"):
        read_document("[" + "1," * MAX_NODES + "]", "f")


def test_the_size_has_a_limit() -> None:
    comment = "a: 1\n#" + "x" * (MAX_BYTES - 6)
    assert read_document(comment, "f").value == {"a": 1}
    with pytest.raises(DocumentError, match="larger than 1 MiB"):
        read_document(comment + "x", "f")
    with pytest.raises(InputError, match="larger than 1 MiB"):
        decode(comment.encode() + b"x", "f")


@pytest.mark.usefixtures("parser")
def test_every_value_knows_its_line() -> None:
    text = "# one\na: 1\nb:\n  - {c: 2}\n  -\n    d:\n      e: 3\n"
    document = read_document(text, "f.yaml")
    lines = {
        (): 1,
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 4,
        ("b", 0, "c"): 4,
        ("b", 1): 6,
        ("b", 1, "d"): 6,
        ("b", 1, "d", "e"): 7,
        # What is not there has the line of what should hold it.
        ("z",): 1,
        ("b", 1, "missing", "deeper"): 6,
        ("b", 9): 3,
    }
    assert {path: document.line(path) for path in lines} == lines


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    text = decode(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f")
    document = read_document(text, "f")
    assert document.value == {"a": 1, "b": 2}
    assert document.line(("b",)) == 2


@pytest.mark.parametrize(
    ("data", "where", "words"),
    [
        (b"a: 1\nb: \xff\n", "f:2", "not UTF-8 text (byte 0xff)"),
        (b"\xef\xbb\xbfa: 1\nb\n\xc3(", "f:3", "not UTF-8 text (byte 0xc3)"),
        (b"a\n\0", "f:2", "a NUL byte"),
        ("a: 1".encode("utf-16"), "f", "this is UTF-16 text"),
        (b"GGUF\3\0\0\0", "f", "this is a GGUF file"),
        (b"PK\3\4", "f", "this is a zip file"),
        (b"\x1f\x8b\x08", "f", "this is a gzip file"),
    ],
)
def test_bytes_that_are_not_text_are_refused(data: bytes, where: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        decode(data, "f")
    assert words in caught.value.message
    assert caught.value.where == where


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for path, words in [
        (str(tmp_path), "is a directory"),
        (str(tmp_path / "missing.yaml"), "no such file"),
        (str(tmp_path / "nul\0.yaml"), "cannot be read"),
        ("x" * 10_000, ""),  # POSIX and Windows give it different names
    ]:
        with pytest.raises(InputError) as caught:
            read_text(path)
        assert words in caught.value.message
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(
    sys.platform == "win32" or not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="nothing is unreadable to root, nor by mode on Windows",
)
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1", encoding="utf-8")
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        read_text(path)


def test_permission_denied_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> BinaryIO:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="permission denied"):
        read_text("f.yaml")


def test_a_stream_is_read_to_its_end() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(3, size or 0))

    assert read_stream(Slow(b"abcdefgh")) == "abcdefgh"
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_stream(io.BytesIO(b"x" * (MAX_BYTES + 1)))
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(InputError, match="cannot be read"):
        read_stream(closed)


def test_no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="there is no stdin"):
        read_stream(None)


def test_values_are_shown_on_one_line() -> None:
    shown_values = [shown(v) for v in ("a\nb", True, None, [1], {"a": 1}, 1.5, "é", "x" * 99)]
    expected = ["'a\\nb'", "true", "nothing", "a list", "a mapping", "1.5", "'é'"]
    assert shown_values[:-1] == expected
    assert shown_values[-1] == "'" + "x" * 39 + "…'"


# Text made of YAML's own signs reaches far more of the parser than random text does.
_SIGNS = st.lists(
    st.sampled_from([*"{}[]:,-?&*!|>'\"#%@`~ \n\t\r\\0a9.", "\n  ", "---\n", ": ", "- ", "<<: "])
).map("".join)


def refusal(data: bytes | str) -> KvcalcError | None:
    try:
        read_document(data if isinstance(data, str) else decode(data, "f"), "f")
    except KvcalcError as error:
        return error
    return None


@settings(deadline=None)
@given(st.one_of(st.text(), _SIGNS, st.binary(), _SIGNS.map(str.encode)))
def test_nothing_else_is_raised(data: bytes | str) -> None:
    error = refusal(data)
    assert error is None or (error.where and "\n" not in str(error) + error.hint)
