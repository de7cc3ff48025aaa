"""Every row of transformers 5.24 that says what the layers hold, against kvcalc's reading."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

from kvcalc.core.attention import CrossAttention, Mla
from kvcalc.core.kind import Chunks, EveryNth, Once, Windowed
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config
from kvcalc.models.hf_config.class_defaults import class_defaults

from .oracles import ABSENT, SHARED, Signatures, spec

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

IN_THE_CORPUS = {
    "jamba(default=Jamba-v0.1)": "ai21labs--Jamba-v0.1",
    "mamba2(default=codestral-mamba-7b)": "mistralai--Mamba-Codestral-7B-v0.1",
    "deepseek_v3(default=V3)": "deepseek-ai--DeepSeek-V3",
    "deepseek_v32(default)": "deepseek-ai--DeepSeek-V3.2",
    "glm_moe_dsa(default)": "zai-org--GLM-5",
    "qwen3_next(default)": "Qwen--Qwen3-Next-80B-A3B-Instruct",
    "longcat_flash(default)": "meituan-longcat--LongCat-Flash-Chat",
    "mamba-2.8b-shape": "state-spaces--mamba-2.8b-hf",
    "t5-small(default)": "google-t5--t5-small",
    "t5-11b-shape": "google-t5--t5-11b",
    "whisper-large-v3-shape": "openai--whisper-large-v3",
    "gpt2(default=gpt2-small)": "openai-community--gpt2",
}
"""Built-in case -> the published model of that shape."""

LEFT_OUT = {
    "Alibaba-NLP--gte-Qwen2-7B-instruct": "an encoder in vLLM: is_causal is false, which"
    " transformers does not look at",
    "RedHatAI--DeepSeek-V4-Flash-NVFP4-FP8": "cache classes of its own: a test of its own",
    "deepseek-ai--DeepSeek-V4-Flash": "cache classes of its own: a test of its own",
    "falcon-40b-shape": "transformers repeats K and V for every query head; vLLM does not",
    "minimax-text-01-shape": "states in a cache class of its own, outside the layers",
    "recurrent_gemma(default=2b)": "recurrent states on the module, not in the cache",
    "quantized llama 2L kv8 hd128": "a cache dtype, not a model",
    "zamba2(default=Zamba2-2.7B)": "no published file of that shape; test_states has the model",
    "bamba-9b": "the class's 256 states a head are not the published model's 128",
    "kimi_linear(default)": "the class's own list has one attention layer less than the model",
    "falcon_h1(default)": "class defaults that no published model has",
    "falcon-mamba(default)": "class defaults that no published model has",
    "lfm2(default)": "class defaults that no published model has",
    "qwen3_5_text(default)": "class defaults that no published model has",
    "modernbert-decoder(default)": "an architecture that kvcalc does not read",
    "doge(default)": "an architecture that kvcalc does not read",
    "vaultgemma(default)": "an architecture that kvcalc does not read",
}
"""Row's name -> why it is not compared."""

WINDOW_OFF_BY = {
    "XiaomiMiMo--MiMo-V2-Flash": 1,  # the class adds one to sliding_window_size; vLLM does not
}
"""Row's name -> tokens that transformers' window has more than the config's."""


@cache
def all_rows() -> list[dict[str, Any]]:
    path = SHARED / "oracle" / "transformers_results.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def model_of(name: str, source: str, model_cls: str) -> ModelSpec:
    """Return kvcalc's reading of what a row was asked of.

    A built-in case is class defaults and a few keys; so is the nested part of a published file.
    """
    if name in IN_THE_CORPUS:
        return spec(IN_THE_CORPUS[name])
    if not source.startswith("builtin: "):
        return spec(name)
    model_type, keys = source.removeprefix("builtin: ").split(" ", 1)
    assert class_defaults(model_type).values, f"{name}: no table of defaults"
    part = {"model_type": model_type, **json.loads(keys)}
    return read_config({"architectures": [model_cls], "text_config": part}, name, name)


def held(row: dict[str, Any]) -> Signatures:
    """Return the layers by the tensors that they hold, the batch of one left out of the shapes."""
    found: Signatures = Counter()
    for layer in row["layers"]:
        tensors = []
        for text in layer["tensors"]:
            match = re.fullmatch(r"(\w+)(?:\[\w+\])?\[([\d, ]+)\]:\w+", text)
            assert match, text
            name = match[1].replace("idx_keys", "indexer_keys")
            sizes = [int(size) for size in match[2].split(",")][1:]
            if name == "indexer_keys":
                sizes = sizes[-2:]  # one class has a dimension for its single head
            # Which of two caches an encoder-decoder's layer is, is told by the class's prefix.
            tensors.append((layer["cls"].partition(":")[0] == "cross", name, tuple(sizes)))
        if "idx_cumulative_length" in str(tensors):
            tensors = [t for t in tensors if t[1] != "idx_cumulative_length"]
        found[tuple(sorted(tensors))] += layer["n"]
    return found


def expected(row: dict[str, Any], model: ModelSpec) -> Signatures:
    """Return the same of kvcalc's layers after the row's tokens."""
    found: Signatures = Counter()
    for run in model.layers:
        for tensors in _layer(row, run):
            found[tuple(sorted(tensors))] += run.count
    return found


def _layer(row: dict[str, Any], run: LayerRun) -> list[list[tuple[Any, ...]]]:
    """Return the tensors of a layer: one list, or one each for its own and its encoder's tokens.

    A LongCat layer with two latents counts as two layers.
    """
    cross = [c for c in run.caches if isinstance(c, CrossAttention)]
    latents = [c for c in run.caches if isinstance(c, Mla)]
    parts: list[list[Cache]]
    if cross:
        parts = [[c] for c in run.caches]
    elif len(latents) > 1:
        parts = [[c] for c in latents]
    else:
        parts = [list(run.caches)]
    return [[t for c in part for t in _tensors(row, c)] for part in parts]


def _tensors(row: dict[str, Any], c: Cache) -> list[tuple[Any, ...]]:
    tokens = _tokens(row, c)
    cross = isinstance(c, CrossAttention)
    found: list[tuple[Any, ...]] = []
    for cached in c.rows():
        match cached.role:
            case "index":
                found.append((cross, "indexer_keys", (tokens, cached.width)))
            case role:
                name = {"k": "keys", "v": "values", "latent": "keys", "rope": "values"}[role]
                found.append((cross, name, (cached.count, tokens, cached.width)))
    for state in c.states():
        if state.role == "conv":
            # All K columns, transposed; kvcalc keeps the K - 1 that a next token needs.
            kernel_rows, channels = state.shape
            found.append((cross, "conv_states", (channels, kernel_rows + 1)))
        else:
            found.append((cross, "recurrent_states", state.shape))
    return found


def _tokens(row: dict[str, Any], c: Cache) -> int:
    static = "max_cache_len" in row
    tokens: int = row["max_cache_len"] if static else row["tokens"]
    match c.span:
        case Windowed(tokens=window) | Chunks(tokens=window):
            window += WINDOW_OFF_BY.get(row["name"], 0)
            # A growing cache keeps the window without the token that is being computed.
            return min(tokens, window if static else window - 1)
        case EveryNth(ratio=ratio):
            return tokens // ratio
        case Once():
            return int(row["enc_tokens"])
        case _:
            return tokens


def compared_rows() -> list[dict[str, Any]]:
    """Return the rows that say what layers hold, without those that are left out."""
    said = [row for row in all_rows() if "layers" in row and "source" in row]
    return [row for row in said if row["name"] not in LEFT_OUT]


def test_layers_hold_what_transformers_says() -> None:
    """KV heads, head sizes, latents, windows, indexers and state shapes of every row."""
    differences = {}
    for row in compared_rows():
        model = model_of(row["name"], row["source"], row["model_cls"])
        ours, theirs = expected(row, model), held(row)
        if ours != theirs:
            differences[row["name"], row["steps"]] = f"ours {dict(ours)}, theirs {dict(theirs)}"

    assert not differences
    assert len({row["name"] for row in compared_rows()}) >= 150


def test_every_row_is_compared_or_left_out_for_a_reason() -> None:
    """Rows without layers are errors, twins, or checks of the meta device against a real run."""
    names = {row["name"] for row in all_rows() if "layers" in row}
    assert set(LEFT_OUT) <= names
    assert set(IN_THE_CORPUS) <= names
    for row in all_rows():
        if "layers" not in row:
            assert row.keys() & {"same_as", "error", "agree"}, row["name"]


def test_twins_hold_the_same() -> None:
    """A config that was not run, since an equal one was, is compared with that one's rows.

    Rows of 17 such twins are not among the results, being of models outside the corpus, and one
    twin is a DeepSeek-V4.
    """
    twins = {row["name"]: row["same_as"] for row in all_rows() if "same_as" in row}
    absent = set()
    for name, twin in twins.items():
        said = [row for row in compared_rows() if row["name"] == twin]
        if not said:
            absent.add(name)
        for row in said:
            assert expected(row, spec(name)) == held(row), (name, row["steps"])

    assert len(twins) == 42
    assert len(absent) == 17 + 1


def test_deepseek_v4_keeps_a_window_and_compressed_entries() -> None:
    """Layers by ratio, widths, the window's rows, and one entry for every `ratio` tokens."""
    said = [row for row in all_rows() if "layers" in row and "DeepSeek-V4" in row["name"]]
    assert said
    for row in said:
        ours: Counter[Any] = Counter()
        for run in spec(row["name"]).layers:
            kept = [(type(c).__name__, _tokens(row, c), c.rows()) for c in run.caches]
            ours[
                tuple(
                    sorted(
                        (kind, tokens, sum(r.width for r in rows)) for kind, tokens, rows in kept
                    )
                )
            ] += run.count
        theirs: Counter[Any] = Counter()
        for layer in row["layers"]:
            kept_there = []
            for text in layer["tensors"]:
                match = re.fullmatch(r"([\w\[\]]+?)\[1, ([\d, ]+)\]:\w+", text)
                assert match, text
                *_, tokens, width = (int(size) for size in match[2].split(","))
                kind = {
                    "keys": "SlidingMla",
                    "compressed_kv[compressor]": "CompressedAttention",
                    "compressed_kv[indexer]": "Indexer",
                }.get(match[1])
                if kind:
                    kept_there.append((kind, tokens, width))
            theirs[tuple(sorted(kept_there))] += layer["n"]
        assert ours == theirs, row["steps"]
