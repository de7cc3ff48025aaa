"""Presets with slips in them: each gives a model or its faults, and nothing else is raised."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import KvcalcError
from kvcalc.models.documents import Plain, read_document
from kvcalc.models.preset_files import check_document
from kvcalc.models.presets import preset_folder
from kvcalc.models.text import decode

FILES = [path.read_bytes() for path in sorted(preset_folder().glob("*/*.yaml"))]
TOKENS = [
    *("null", "true", "false", "0", "-1", "1", "1e9", "1.5", "012", "99999999999", "9" * 21),
    *("''", '"x"', "[]", "{}", "[[]]", "{a:", "1}", "~", ":", "-", ",", "#", "&a", "*a", "!!int"),
    *("mla", "indexer", "full_attention", "fp9", "int4", "q8_0", "float32"),
    *("repeat", "kind", "count", "layers", "caches", "note"),
]
MUTANTS = 1500


def outcome(data: bytes) -> str:
    """Return `model`, `faults` or `refused`; whatever else is raised fails the test."""
    try:
        preset, faults = check_document(read_document(decode(data, "f"), "f"))
    except KvcalcError as error:
        return "refused" if error.where and "\n" not in str(error) + error.hint else "badly said"
    assert (preset is None) == bool(faults)
    for fault in faults:
        assert fault.line >= 1
        assert fault.message
        assert fault.message.isprintable()
    return "faults" if faults else "model"


def _delete_line(lines: list[str], rng: random.Random) -> None:
    del lines[rng.randrange(len(lines))]


def _repeat_line(lines: list[str], rng: random.Random) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))


def _indent_line(lines: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(lines))
    lines[at] = rng.choice(["  ", " ", "\t", "- "]) + lines[at]


def _swap_word(lines: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(lines))
    words = lines[at].split(" ")
    words[rng.randrange(len(words))] = rng.choice(TOKENS)
    lines[at] = " ".join(words)


def _change_digit(lines: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(lines))
    digits = [index for index, c in enumerate(lines[at]) if c.isdigit()]
    if digits:
        index = rng.choice(digits)
        lines[at] = lines[at][:index] + rng.choice("0123456789-.x") + lines[at][index + 1 :]


def _change_character(lines: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(lines))
    if lines[at]:
        index = rng.randrange(len(lines[at]))
        sign = rng.choice("{}[]:,-?&*!|>'\"#%@` \t\0é")
        lines[at] = lines[at][:index] + sign + lines[at][index + rng.randrange(2) :]


SLIPS: list[Callable[[list[str], random.Random], None]] = [
    _delete_line,
    _repeat_line,
    _indent_line,
    _swap_word,
    _change_digit,
    _change_character,
]


def test_mutated_presets() -> None:
    rng = random.Random(20261129)
    seen = {"model": 0, "faults": 0, "refused": 0}
    for _ in range(MUTANTS):
        lines = rng.choice(FILES).decode().split("\n")
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            rng.choice(SLIPS)(lines, rng)
        seen[outcome("\n".join(lines).encode())] += 1
    # All three happen often, so the slips reach every stage.
    assert min(seen.values()) > MUTANTS // 20, seen


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FILES), st.data())
def test_replaced_bytes(file: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(file)))
    length = data.draw(st.integers(0, 40))
    changed = file[:start] + data.draw(st.binary(max_size=40)) + file[start + length :]
    assert outcome(changed) in ("model", "faults", "refused")


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=9),
)
_KEYS = st.sampled_from(
    [
        *("kind", "name", "layers", "draft_layers", "source", "expect", "bytes_per_token", "count"),
        *("caches", "repeat", "note", "num_kv_heads", "head_dim", "aliases", "dtype", "sources"),
        "x",
    ]
)
_VALUES: st.SearchStrategy[Plain] = st.recursive(
    st.one_of(_SCALARS, st.sampled_from(["model", "gpu", "mla", "full_attention", "indexer"])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_KEYS, inner, max_size=6)),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FILES), st.data())
def test_replaced_values(file: bytes, data: st.DataObject) -> None:
    """A whole value of a sound preset gives way to any other."""
    document = read_document(decode(file, "f"), "f")
    value = document.value
    assert isinstance(value, dict)
    key = data.draw(st.sampled_from(sorted(value)))
    holder: dict[str, Plain] | list[Plain] = value
    at: str | int = key
    while data.draw(st.booleans()):
        inner = holder[at]  # type: ignore[index]
        if isinstance(inner, dict) and inner:
            holder, at = inner, data.draw(st.sampled_from(sorted(inner)))
        elif isinstance(inner, list) and inner:
            holder, at = inner, data.draw(st.integers(0, len(inner) - 1))
        else:
            break
    holder[at] = data.draw(_VALUES)  # type: ignore[index]
    preset, faults = check_document(document)
    assert (preset is None) == bool(faults)
    assert all(fault.message.isprintable() for fault in faults)
