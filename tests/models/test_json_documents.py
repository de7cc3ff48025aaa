"""What the JSON reader takes, what it refuses, and that it says where."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path

import pytest

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.models.json_documents import MAX_DEPTH, decode_json, read_json, read_json_file
from kvcalc.models.text import DocumentError
from tests.conftest import ABSENT, SHARED
from tests.guards import HANG


def test_a_config_is_read_as_json_reads_it() -> None:
    text = (
        '{"a": [1, -2.5, 1e3, true, null], "b": {"c": "\\u00e9\\"[{"}, "n": 18446744073709551616}'
    )
    assert read_json(text, "f") == json.loads(text)
    assert read_json(f"\ufeff\r\n {text}\n", "f") == json.loads(text)


def test_what_only_python_calls_json() -> None:
    """Published configs hold a bare Infinity."""
    value = read_json('{"a": [0.0, Infinity], "b": -Infinity, "c": NaN}', "f")
    assert value["a"][1] == math.inf
    assert value["b"] == -math.inf
    assert math.isnan(value["c"])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("\n \n", 1, "the file is empty"),
        ("\n[1]", 2, "the file holds a list, not a JSON object"),
        ('"x"', 1, "the file holds 'x', not a JSON object"),
        ("null", 1, "the file holds nothing, not a JSON object"),
        ('{"a": 1,\n"b": }', 2, "not valid JSON: expecting value (column 6)"),
        ('{"a": 1}\nx', 2, "not valid JSON: extra data (column 1)"),
        ('{"a": 1\n\n', 1, "not valid JSON: expecting ',' delimiter (column 1)"),
        ('{"a": "x', 1, "not valid JSON: unterminated string (column 7)"),
        ('{"a": "\x01"}', 1, "not valid JSON: invalid control character (column 8)"),
        ('{"a": 1,\n"a": 2}', 2, "'a' stands twice, first on line 1"),
        ('{"a": 1,\n"\\u0061": 2}', 2, "'a' stands twice, first on line 1"),
        ('{"x": {"a": 1},\n"y": [{"b":\n{"a": 1, "\\"": 2, "a": 3}}]}', 3, "'a' stands twice"),
        ('{"a":\n' + "9" * 21 + "}", 2, "'999999"),
        ('{"a": -' + "9" * 5000 + "}", 1, "beyond any number of a model"),
        ('{"a":\n1e999}', 2, "'1e999' is beyond any number of a model"),
        ('{"a": 1.' + "9" * 5000 + "e400}", 1, "beyond any number of a model"),
        ('{"a": "\\ud800"}', 1, "half of a surrogate pair in a text"),
        ('{"a": 1,\n"\\udc00": 2}', 2, "half of a surrogate pair in a text"),
        ('{"a":\n' + "[" * 100, 2, "more than 64 levels deep"),
        ('{"a":' * 200_000, 1, "more than 64 levels deep"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", 1, "more than 64 levels deep"),
    ],
)
def test_refusals_name_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_json(text, "config.json")
    assert message in caught.value.message
    assert caught.value.where == f"config.json:{line}"
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_the_same_key_in_other_objects() -> None:
    text = '{"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": ":", ":": "a"}}'
    assert read_json(text, "f") == json.loads(text)


def test_brackets_in_strings_are_no_levels() -> None:
    text = json.dumps({"a": '\\"[{' * 500, "b": "[" * 500, "c": '{"' * 99, "d": "\\"})
    assert read_json(text, "f") == json.loads(text)
    depth = MAX_DEPTH - 1
    assert read_json('{"a": ' + "[" * depth + "]" * depth + "}", "f")


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert read_json('{"a": "\\ud83d\\ude00"}', "f") == {"a": "\U0001f600"}


def test_limits() -> None:
    with pytest.raises(InputError, match="larger than 50 characters"):
        read_json('{"a": "' + "x" * 50 + '"}', "f", max_characters=50)
    with pytest.raises(InputError, match="more than 500000 values"):
        read_json('{"a": [' + "0," * 600_000 + "0]}", "f")
    with pytest.raises(InputError, match="more than 9 values"):
        read_json('{"a": [0,0,0,0,0,0,0,0,0]}', "f", max_values=9)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa9"}\r\n')
    assert read_json_file(file) == {"a": "é"}
    assert read_json_file(str(file), "it") == {"a": "é"}
    file.write_bytes(b'{"a":\n"\xff"}')
    with pytest.raises(DocumentError, match="not UTF-8 text") as caught:
        read_json_file(file, "it")
    assert caught.value.where == "it:2"
    with pytest.raises(InputError, match="larger than 5 bytes"):
        read_json_file(file, max_characters=5)
    with pytest.raises(InputError, match="larger than 5 bytes"):
        decode_json(b"x" * 6, "f", max_bytes=5)
    with pytest.raises(InputError, match="is a directory"):
        read_json_file(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_json_file(tmp_path / "x")
    with pytest.raises(InputError, match="cannot be read"):
        read_json_file("a\0b")


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="permission denied"):
        read_json_file(tmp_path / "x")


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_published_config_is_read_quickly() -> None:
    texts = [
        path.read_text(encoding="utf-8")
        for path in sorted((SHARED / "corpus").glob("*/*.json"))
        if path.parent.name in ("configs", "reconstructed")
    ]
    start = time.process_time()
    values = [read_json(text, "f") for text in texts]
    spent = time.process_time() - start
    assert len(values) > 300
    assert repr(values) == repr([json.loads(text) for text in texts])
    assert spent < HANG


def test_mutated_texts() -> None:
    rng = random.Random(20261129)
    base = json.dumps(
        {"a": [1, 2.5, {"b": 'c\\"', "d": [[], {}]}], "e": None, "f": {"g": True}}, indent=1
    )
    pieces = ["{", "}", "[", "]", '"', ",", ":", "\\", "\n", "9" * 22, "1e999", "\\ud800", "a", "-"]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(3000):
        text = base
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(pieces) * rng.choice([1, 1, 70]) + text[at + 1 :]
        try:
            assert isinstance(read_json(text, "f"), dict)
            outcomes["read"] += 1
        except KvcalcError as error:
            assert error.where.startswith("f")
            assert (error.message + error.hint).isprintable()
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100, outcomes
