"""What kvcalc says under the settings of an oracle row, in that oracle's own terms.

Shared by the tests of the recurrent, latent and sparse families, which compare every row of the
models that those families read; a row left out is counted there with its reason.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

import msgspec

from kvcalc.core.attention import Indexer, Mla
from kvcalc.core.dtypes import cache_dtype, kv_dtype
from kvcalc.core.errors import KvcalcError
from kvcalc.core.kind import All, EveryNth, StateTensor, Windowed
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec, row_bytes
from kvcalc.core.states import LLAMA_CPP_STATES, VLLM_STATES, StateLayout
from kvcalc.models.hf_config import read_config
from kvcalc.models.hf_config.registry import ARCHITECTURES, NESTED
from tests.models.hf_config.oracles import (
    SHARED,
    Signatures,
    config,
    our_signatures,
    spec,
    vllm_rows,
)

_read = cache(spec)


def models(*modules: str) -> list[str]:
    """Return the corpus's models that these modules of `families` read; none without a corpus."""
    index = SHARED / "corpus" / "index.tsv"
    if not index.is_file():
        return []
    lines = (line.split("\t") for line in index.read_text(encoding="utf-8").splitlines()[1:])
    return sorted(
        file.split("/")[1].removesuffix(".json")
        for file, _, architecture, *_ in lines
        if ARCHITECTURES.get(architecture) in modules
    )


def lines_of(name: str) -> list[dict[str, Any]]:
    path = SHARED / "oracle" / name
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------- vLLM


@cache
def vllm_by_model() -> dict[str, list[dict[str, Any]]]:
    """Return the rows that say what the layers are, by model."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in vllm_rows() if SHARED.is_dir() else []:
        found.setdefault(row["model"], []).append(row)
    return found


def _on_rank(row: dict[str, Any]) -> ModelSpec:
    """Return what a rank keeps with the row's dtype; draft layers where the row drafts by MTP."""
    model = _read(row["model"])
    speculation = row["case"].get("speculative_config", {})
    layers = model.layers + (model.draft_layers if speculation.get("method") == "mtp" else ())
    count = sum(run.count for run in layers)
    # vLLM turns float32 into bfloat16, and a case may ask for float16.
    model = msgspec.structs.replace(
        model, dtype=row["model_dtype"], layers=layers, num_hidden_layers=count
    )
    return model.on_rank(row["tp"])


def _with_case(row: dict[str, Any], states: tuple[StateTensor, ...]) -> tuple[StateTensor, ...]:
    """Return the states as a case asks for them: another dtype, rows for speculative tokens.

    vLLM 0.33 mamba_utils.py: Mamba-1 has no such rows; the kinds with a state a head have.
    """
    if not states or states[-1].role != "recurrent":
        return states
    more = row["case"].get("speculative_config", {}).get("num_speculative_tokens", 0)
    asked = row["case"].get("mamba_ssm_cache_dtype")
    changed = []
    for state in states:
        if state.role == "conv" and len(states[-1].shape) == 3:
            kernel_rows, channels = state.shape
            changed.append(msgspec.structs.replace(state, shape=(kernel_rows + more, channels)))
        elif state.role == "recurrent" and asked:
            changed.append(msgspec.structs.replace(state, dtype=asked))
        else:
            changed.append(state)
    return tuple(changed)


def ours_for_vllm(row: dict[str, Any]) -> Signatures:
    """Return what kvcalc says the layers of the row's rank are."""
    model = _on_rank(row)
    found: Signatures = Counter()
    for signature, n in our_signatures(model).items():
        if signature[0] != "state":
            found[signature] += n
    for n, c in model.caches():
        states = _with_case(row, c.states())
        if states and states[0].role != "compressor":
            shapes = tuple(state.shape for state in states)
            found["state", shapes, tuple(s.dtype or model.dtype for s in states)] += n
    return found


def packing_unknown(row: dict[str, Any]) -> bool:
    """Whether the row's KV dtype packs K and V in a way that the core has no dtype for yet."""
    return str(row.get("kv_cache_dtype", "")).startswith("turboquant_")


def vllm_bytes(row: dict[str, Any]) -> Signatures:
    """Return the bytes of a token, an entry or a state of each layer, padding left out."""
    found: Signatures = Counter()
    for s in row["layer_specs"]:
        page = s.get("unpadded_page_size_bytes", s["page_size_bytes"])
        if s["class"] == "MambaSpec":
            found["state", page] += s["num_layers"]
        else:
            found["row", page * s.get("tokens_per_state", 1) // s["block_size"]] += s["num_layers"]
    return found


def ours_in_bytes(row: dict[str, Any]) -> Signatures:
    """Return the same of kvcalc, under the KV dtype that the row resolved to."""
    model = _on_rank(row)
    resolved = row.get("kv_cache_dtype", "auto")
    dtype = kv_dtype(resolved, model.dtype)
    found: Signatures = Counter()
    for n, c in model.caches():
        if size := row_bytes(c, dtype):
            found["row", size] += n
        states = _with_case(row, c.states())
        size = sum(VLLM_STATES.bytes_of(state, model.dtype) for state in states)
        if states and states[0].role == "compressor":
            found["row", size // states[0].shape[1]] += n  # kept as rows of a window
        elif states:
            found["state", size] += n
    return found


def vllm_models_of(*modules: str) -> set[str]:
    """Return the models of which there are rows, by the architecture that vLLM resolved."""
    return {
        model
        for model, found in vllm_by_model().items()
        if ARCHITECTURES.get(found[0]["arch"]) in modules
    }


def is_like_one_compared(model: str, *modules: str) -> bool:
    """Whether a model without rows has the layers of one of these modules' that has some."""
    ours = our_signatures(_read(model))
    return any(our_signatures(_read(other)) == ours for other in vllm_models_of(*modules))


# ---------------------------------------------------------------------- transformers

_TENSOR = re.compile(r"(\w+)(?:\[(\w+)\])?\[([\d, ]*)\]:(\w+)")


@cache
def transformers_by_model() -> dict[str, list[dict[str, Any]]]:
    """Return the rows with layers, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in lines_of("transformers_results.jsonl"):
        if "layers" in row and "steps" in row:
            found.setdefault(row["name"], []).append(row)
    return found


def transformers_names_of(*modules: str) -> set[str]:
    """Return the names of the rows whose class is one that these modules read."""
    return {
        name
        for name, found in transformers_by_model().items()
        if ARCHITECTURES.get(found[0]["model_cls"]) in modules
    }


@cache
def transformers_same_as() -> dict[str, str]:
    """Return which models have no rows of their own, and whose rows are theirs."""
    rows = lines_of("transformers_results.jsonl")
    return {row["name"]: row["same_as"] for row in rows if "same_as" in row}


def transformers_tensors(row: dict[str, Any]) -> Signatures:
    """Return the tensors of all layers; the batch of one is left out of the shapes."""
    found: Signatures = Counter()
    for layer in row["layers"]:
        for text in layer["tensors"]:
            match = _TENSOR.fullmatch(text)
            assert match, text
            name, _, shape, dtype = match.groups()
            if name.endswith("cumulative_length"):  # a counter of the static cache
                continue
            sizes = tuple(int(size) for size in shape.split(","))[1:]
            found[name, sizes, dtype] += layer["n"]
    return found


def ours_for_transformers(row: dict[str, Any], model: ModelSpec) -> Signatures:
    """Return the tensors that transformers 5.24 would hold for kvcalc's layers.

    A convolution keeps its newest input too and is transposed; a recurrent state is float32.
    """
    found: Signatures = Counter()
    for n, c in model.caches():
        tokens = _tokens(row, c)
        if isinstance(c, Indexer):
            name = "indexer_keys" if c.index_dtype == "fp8_block128" else "idx_keys"
            heads = () if name == "indexer_keys" else (1,)
            found[name, (*heads, tokens, c.index_head_dim), "bfloat16"] += n
        elif isinstance(c, Mla):
            found["keys", (1, tokens, c.kv_lora_rank), "bfloat16"] += n
            found["values", (1, tokens, c.qk_rope_head_dim), "bfloat16"] += n
        else:
            for cached in c.rows():
                name = {"k": "keys", "v": "values"}[cached.role]
                found[name, (cached.count, tokens, cached.width), "bfloat16"] += n
        for state in c.states():
            if state.role == "conv":
                kernel_rows, channels = state.shape
                found["conv_states", (channels, kernel_rows + 1), "bfloat16"] += n
            else:
                found["recurrent_states", state.shape, "float32"] += n
    return found


def _tokens(row: dict[str, Any], c: Cache) -> int:
    """Return the tokens that a layer holds: all, or one less than the window (all, if static)."""
    static = "max_cache_len" in row
    tokens: int = row["max_cache_len"] if static else row["tokens"]
    match c.span:
        case Windowed(tokens=window):
            return min(tokens, window if static else window - 1)
        case EveryNth(ratio=ratio):
            return tokens // ratio
        case All():
            return tokens
        case other:
            raise AssertionError(other)


def silent_changes(model: str, by_rule: Collection[str]) -> list[str]:
    """Return the keys without which a config gives other layers, with no refusal and no note.

    Args:
        model: a config of the corpus.
        by_rule: keys that say something else than what follows from other keys without them.
    """
    values = config(model)
    nested = next((key for key in NESTED if key in values), None)
    part = values[nested] if nested else values
    whole = read_config(values, "config.json", model)
    found = []
    for key in part:
        less = {k: v for k, v in part.items() if k != key}
        try:
            read = read_config({**values, nested: less} if nested else less, "config.json", model)
        except KvcalcError:
            continue
        said = Counter(read.notes) != Counter(whole.notes)
        if read.layers != whole.layers and not said and key not in by_rule:
            found.append(key)
    return found


def from_keys(entries: Iterable[tuple[str, Any]]) -> ModelSpec:
    """Return the reading of a config that is not in the corpus."""
    return read_config({"dtype": "bfloat16", **dict(entries)}, "config.json", "built in")


# ---------------------------------------------------------------------- llama.cpp


@cache
def llama_cpp_rows() -> list[dict[str, Any]]:
    """Return the rows of contexts that could be made."""
    rows = lines_of("llamacpp_results.jsonl")
    return [row for row in rows if row.get("ok") and row.get("hp") and "caches" in row]


def sequences(row: dict[str, Any], snapshots: bool) -> int:
    """Return how many states the context holds; `snapshots` where n_rs_seq is honoured."""
    states: int = max(1, row["n_seq_max"])
    return states * (1 + row["ctx"].get("n_rs_seq", 0)) if snapshots else states


def state_bytes(model: ModelSpec, *roles: str, layout: StateLayout = LLAMA_CPP_STATES) -> int:
    """Return the bytes of the states of these roles, one sequence."""
    return sum(
        n * layout.bytes_of(state, model.dtype)
        for n, c in model.caches()
        for state in c.states()
        if state.role in roles
    )


def only(model: ModelSpec, kind: type, ratio: int) -> ModelSpec:
    """Return the model with the caches of one kind alone, one entry for `ratio` tokens."""
    runs = tuple(
        msgspec.structs.replace(
            run,
            caches=tuple(
                c
                for c in run.caches
                if isinstance(c, kind) and getattr(c, "compress_ratio", 1) == ratio
            ),
        )
        for run in model.layers
    )
    return msgspec.structs.replace(model, layers=runs)


def layers_with(model: ModelSpec, *kinds: type) -> list[int]:
    """Return the indices of the layers that keep a cache of one of these kinds."""
    found: list[int] = []
    index = 0
    for run in model.layers:
        if any(isinstance(c, kinds) for c in run.caches):
            found += range(index, index + run.count)
        index += run.count
    return found


_GGML = {"f16": "float16", "f32": "float32", "bf16": "bfloat16"}


def cell_bytes(model: ModelSpec, context: dict[str, Any], *kinds: type) -> tuple[int, int]:
    """Return (K bytes, V bytes) of one cell of all layers of some kinds; a latent is K alone.

    llama.cpp keeps an indexer's key in the type of K, whatever the published reference does.
    """
    types = [context.get(f"type_{side}", "f16") for side in "kv"]
    k_type, v_type = (cache_dtype(_GGML.get(name, name)) for name in types)
    k = v = 0
    for n, c in model.caches():
        if isinstance(c, kinds):
            mine = [msgspec.structs.replace(row, dtype=None) for row in c.rows()]
            k += n * sum(k_type.bytes_of(row) for row in mine if row.role != "v")
            v += n * sum(v_type.bytes_of(row) for row in mine if row.role == "v")
    return k, v
