"""YAML as people deploy it: text as written, the line of everything, nothing that harms."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError
from kvcalc.manifests.documents import MAX_DEPTH, Node, read_documents


def one(text: str) -> Node:
    (document,) = read_documents(text, "x.yaml")
    return document


def test_scalars_stay_as_they_are_written() -> None:
    """A flag's value is text; numbers and truths are asked for where they are meant."""
    node = one("a: 0.90\nb: 012\nc: 'yes'\nd: on\ne: ~\nf: \"~\"\ng: 4\n")

    assert [node.get(key).text for key in "abcd"] == ["0.90", "012", "yes", "on"]
    assert node.get("d").is_true
    assert node.get("e").is_null
    assert not node.get("f").is_null
    assert node.get("g").number == 4
    assert node.get("missing", "deeper").is_null


def test_every_value_has_its_line() -> None:
    """Of keys, items, documents, and of the text of a block."""
    text = "---\na:\n  - x\n  - {b: 1}\n---\nc: |\n  one\n  two\nd: >-\n  three\n\n  four five\n"
    first, second = read_documents(text, "x.yaml")

    assert first.key_lines == {"a": 2}
    assert [item.line for item in first.get("a").items] == [3, 4]
    block = second.get("c")
    assert [block.lines().at(at, block.raw.count("\n", 0, at)) for at in (0, 4)] == [7, 8]
    folded = second.get("d")
    assert [folded.lines().at(folded.raw.index(word), 0) for word in ("three", "four", "five")] == [
        10,
        12,
        12,
    ]


def test_anchors_merges_tags_and_json() -> None:
    """A merge gives way to a key of its own; a tag is dropped; tabs may indent JSON."""
    node = one("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nt: !custom v\n1: one\n")

    assert {k: v.text for k, v in node.get("use").fields.items()} == {"y": "3", "x": "1"}
    assert node.get("t").text == "v"
    assert node.get("1").text == "one"
    assert one('{\n\t"a": [1,\n\t2]}').get("a").items[1].text == "2"


def test_a_key_that_stands_twice_is_noted_and_the_last_counts() -> None:
    """Helm takes such files."""
    node = one("a: 1\nb: 2\na: 3\n")

    assert node.get("a").text == "3"
    assert list(node.duplicates) == [("a", 3, 1)]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a:\n\tb: 1\n", 2, "a tab indents this line"),
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
        ("a: &a [*a]\n", 1, "&a holds itself"),
        ("a: *b\n", 1, "no anchor &b"),
        ("? [a]\n: b\n", 1, "used as a key"),
        ("a: b\n\x07c: d\n", 2, "U\\+0007"),
        ("\n".join(" " * i + "a:" for i in range(MAX_DEPTH + 2)), MAX_DEPTH + 1, "levels deep"),
        ("[" * 500, 1, "levels deep"),
    ],
)
def test_what_harms_is_refused_on_its_line(text: str, line: int, message: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=message) as caught:
        read_documents(text, "x.yaml")

    assert caught.value.where == f"x.yaml:{line}"
    assert "\n" not in str(caught.value)


def test_aliases_that_expand_are_counted_before_they_do() -> None:
    """Nine levels of nine: four hundred million values in a few lines."""
    rows = ["a0: &a0 [x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]

    with pytest.raises(InputError, match="aliases put in"):
        read_documents("\n".join(rows), "x.yaml")
