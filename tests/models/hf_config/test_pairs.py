"""A sizing key left out, null or changed: the number of the config class, or a refusal.

`pairs.jsonl` holds what the classes of transformers 5.24 resolve small configs to; it is recorded
by `record_pairs.py`, which says what its lines mean.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Mla,
    SharedKv,
    SlidingWindow,
)
from kvcalc.core.errors import KvcalcError
from kvcalc.core.layers import Cache
from kvcalc.models.hf_config import read_config
from kvcalc.models.hf_config.registry import ARCHITECTURES

PAIRS = Path(__file__).with_name("pairs.jsonl")

Layers = list[Any]
Row = dict[str, Any]

UNKNOWN: dict[str, str] = {}
"""Architecture that kvcalc does not read -> why; any other that is refused as unknown fails."""

DIFFERENT: dict[str, str] = {
    'gemma4_text: use_bidirectional_attention "all"': (
        "the class sets is_causal to false: an encoder in vLLM, which keeps nothing"
    ),
    'mpt: attn_config {"attn_type": "multiquery_attention"}': (
        "one KV head in llm-foundry, whose checkpoints these are; the class has the type and its"
        " modelling code no such attention"
    ),
    "lfm2: conv_dim 48": "vLLM 0.33 models/lfm2.py reads conv_dim, the class the hidden size",
}
"""Row -> why kvcalc's number is another than the class's."""

_FULL = "vLLM gives a window layer without a window full attention; transformers cannot run it"
_SISTERS = (
    "the class leaves None, with which its modelling code fails; as in its sister classes there is"
    " a KV head for each query head"
)

MORE_THAN_THE_CLASS: dict[str, str] = {
    "cohere2: sliding_window null": _FULL,
    "gemma2: sliding_window null": _FULL,
    "gemma3: sliding_window null": _FULL,
    "gemma3_text: sliding_window null": _FULL,
    "gpt_oss: sliding_window null": _FULL,
    "olmo3: sliding_window null": _FULL,
    "qwen2_moe (2): sliding_window null": _FULL,
    "exaone4: sliding_window null": _FULL + "; the class divides by a pattern of zero layers",
    "ernie4_5_moe: num_key_value_heads null": _SISTERS,
    "nemotron: num_key_value_heads left out": _SISTERS,
    "nemotron: num_key_value_heads null": _SISTERS,
    "qwen2_moe: num_key_value_heads null": _SISTERS,
    "qwen2_moe (2): num_key_value_heads null": _SISTERS,
    'exaone4: sliding_window_pattern "LLLG"': "as published in the older files of EXAONE 4",
    'mpt: attn_config {"attn_type": "grouped_query_attention", "kv_n_heads": 2}': (
        "llm-foundry has the type, the class of transformers not yet"
    ),
}
"""Row that the class refuses -> why kvcalc gives a number all the same.

Beside these stand the nulls where the class takes none: null and an absent key are one to kvcalc.
"""


@cache
def pairs() -> list[Row]:
    return [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]


def recorded(row: Row) -> Layers | None:
    """Return the layers as the class has them, in the terms of `ours`."""
    resolved = row["resolved"]
    if resolved is None:
        return None
    layers: Layers = json.loads(json.dumps(resolved["layers"]))
    assert sum(count for count, _ in layers) == resolved["num_hidden_layers"], row["id"]
    return layers


def ours(architecture: str, config: dict[str, Any]) -> Layers:
    """Return the layers as kvcalc reads them."""
    model = read_config({"architectures": [architecture], **config}, "config.json", "x")
    layers: Layers = []
    for run in model.layers:
        caches = [_signature(c) for c in run.caches]
        if config["model_type"] == "t5":  # relative positions: the class says no encoder length
            caches = [c[:-1] if c[0] == "cross" else c for c in caches]
        if layers and layers[-1][1] == caches:
            layers[-1][0] += run.count
        else:
            layers.append([run.count, caches])
    return layers


def _signature(c: Cache) -> list[Any]:
    match c:
        case FullAttention() | SlidingWindow() | ChunkedAttention() | CrossAttention():
            v = c.head_dim if c.v_head_dim is None else c.v_head_dim
            sizes = [c.num_kv_heads, c.head_dim, v]
            match c:
                case FullAttention():
                    return ["full", *sizes]
                case SlidingWindow():
                    return ["window", *sizes, c.sliding_window]
                case ChunkedAttention():
                    return ["chunk", *sizes, c.attention_chunk_size]
                case CrossAttention():
                    return ["cross", *sizes, c.encoder_tokens]
        case Mla():
            return ["mla", c.kv_lora_rank, c.qk_rope_head_dim]
        case SharedKv():
            return ["shared"]
    states = {state.role: state.shape for state in c.states()}
    # kvcalc keeps what the next token needs: a row less than the kernel is wide.
    rows, channels = states.get("conv", (0, 0))
    return ["state", rows + 1, channels, list(states.get("recurrent", ()))]


def without_nulls(config: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_nulls(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value is not None
    }


def verdict(row: Row) -> tuple[str, str]:
    """Return one of sized, refused, null, listed, unknown and wrong, and what is to be said."""
    architecture, config, name = row["architecture"], row["config"], row["id"]
    theirs = recorded(row)
    if architecture not in ARCHITECTURES:
        return ("listed" if architecture in UNKNOWN else "unknown"), architecture
    try:
        layers = ours(architecture, config)
    except KvcalcError as error:
        return "refused", str(error)
    if layers == theirs:
        return "sized", ""
    said = f"{name}: {layers}, the class has {theirs or row['why']}"
    if name in DIFFERENT or (theirs is None and name in MORE_THAN_THE_CLASS):
        return "listed", said
    bare = without_nulls(config)
    if theirs is None and bare != config and ours(architecture, bare) == layers:
        return "null", said
    return "wrong", said


@cache
def verdicts() -> dict[str, tuple[str, str]]:
    return {row["id"]: verdict(row) for row in pairs()}


def test_a_changed_key_gives_the_number_of_the_class_or_a_refusal() -> None:
    """Kinds, heads, sizes, windows and order of the layers, for every recorded pair."""
    wrong = [said for kind, said in verdicts().values() if kind == "wrong"]

    assert not wrong, "\n".join(wrong)


def test_every_architecture_of_the_pairs_is_read() -> None:
    """None is refused as unknown, but those listed with their reason."""
    unknown = {said for kind, said in verdicts().values() if kind == "unknown"}

    assert not unknown


def test_most_pairs_are_sized() -> None:
    """The promise is not kept by refusing."""
    kinds = Counter(kind for kind, _ in verdicts().values())

    assert len(verdicts()) == len(pairs()) >= 300
    assert kinds["sized"] >= 0.7 * len(pairs())
    assert len({row["config"]["model_type"] for row in pairs()}) >= 40


def test_every_config_is_sized_before_a_key_is_changed() -> None:
    """The small configs themselves are read as their classes read them."""
    whole = {row["id"] for row in pairs() if row["id"].endswith(": as it is")}

    assert len(whole) >= 70
    assert {name: verdicts()[name] for name in whole if verdicts()[name][0] != "sized"} == {}


def test_every_listed_row_is_needed() -> None:
    """The tables hold no row that is refused, or sized as the class sizes it."""
    listed = DIFFERENT.keys() | MORE_THAN_THE_CLASS.keys()

    assert {name for name, (kind, _) in verdicts().items() if kind == "listed"} >= listed
    assert not set(UNKNOWN) - {row["architecture"] for row in pairs()}
