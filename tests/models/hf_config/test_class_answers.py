"""300 changed configs and what transformers' own config classes made of them.

`class_answers.jsonl` was recorded from transformers 5.24.0: a sizing key of a config of the corpus
deleted, nulled or set to another value, and the layers that the class then resolved to (count,
kind, KV heads, head size, window). A refusal is right where the sizes are gone; another number
never is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.attention import ChunkedAttention, FullAttention, SharedKv, SlidingWindow
from kvcalc.core.errors import KvcalcError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config

from .oracles import ABSENT, SHARED, config

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

ANSWERS = Path(__file__).with_name("class_answers.jsonl")


def answers() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]


def changed(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the change made."""
    values = config(answer["model"])
    part = values
    *parents, key = answer["path"]
    for parent in parents:
        part = part[parent]
    match answer["change"]:
        case "delete":
            del part[key]
        case "null":
            part[key] = None
        case "set":
            part[key] = answer["value"]
    return values


def in_their_terms(model: ModelSpec) -> list[list[Any]]:
    found: list[list[Any]] = []
    for run in model.layers:
        (cache,) = run.caches
        terms = _terms(cache)
        if found and found[-1][1:] == terms:
            found[-1][0] += run.count
        else:
            found.append([run.count, *terms])
    return found


def _terms(cache: Cache) -> list[Any]:
    match cache:
        case SharedKv():
            return ["shared"]
        case FullAttention(num_kv_heads=heads, head_dim=size):
            return ["full", heads, size, None]
        case SlidingWindow(num_kv_heads=heads, head_dim=size, sliding_window=window):
            return ["sliding", heads, size, window]
        case ChunkedAttention(num_kv_heads=heads, head_dim=size, attention_chunk_size=chunk):
            return ["chunked", heads, size, chunk]
        case other:
            raise AssertionError(other)


def test_a_changed_config_is_what_its_class_makes_of_it_or_refused() -> None:
    """The same layers, or one of our errors with its place and what to do."""
    differ = []
    equal = 0
    for answer in answers():
        try:
            model = read_config(changed(answer), "config.json", answer["model"])
        except KvcalcError as error:
            assert error.where == "config.json"
            assert error.hint
            continue
        if in_their_terms(model) == answer["layers"]:
            equal += 1
        else:
            differ.append((answer["model"], answer["change"], answer["path"]))

    assert len(answers()) == 300
    assert not differ
    # Refused are those that lack a size which every published file has.
    assert equal >= 270
