"""From a GGUF file to the model that it holds."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.layers import LayerRun, merge_runs
from kvcalc.core.model import ModelSpec, Trait
from kvcalc.core.size import ModelSize, WeightPart
from kvcalc.core.values import NonNegative, Positive, Value
from kvcalc.models.gguf.architectures import Architecture, architecture
from kvcalc.models.gguf.attention import Block
from kvcalc.models.gguf.fields import Fields
from kvcalc.models.gguf.header import Entry, Header, Tensors, broken, read_header
from kvcalc.models.text import printable, shown
from kvcalc.weights.formats import UNKNOWN_FORMAT

__all__ = ["GgufModel", "model_of_entries", "read_gguf"]


_DTYPE = "float16"
_DTYPE_NOTE = "GGUF files say no dtype of K and V: float16 is llama.cpp's default cache type"
_MAX_NAME = 100
_TRAITS: dict[str, tuple[Trait, ...]] = {
    "bloom": ("alibi",),
    "mpt": ("alibi",),
    "gpt-oss": ("attention_sinks",),
}
"""llama.cpp b11434 llama-model.cpp: architectures with biases by distance, or with sinks."""


class GgufModel(Value, frozen=True, kw_only=True):
    """A model and its weights as a GGUF file has them.

    Attributes:
        file: the path as it was given.
        spec: the layers and what each keeps, as llama.cpp reads the file.
        version: of the format.
        byte_order: `little` or `big`.
        tensors: tensors described in the files that were read.
        weights_bytes: bytes of all tensors; None where there are none, or a type or a file of a
            split is not known.
        layer_weights: bytes by layer, draft layers last; empty where weights_bytes is None.
        shards: files that the model is split into.
        draft_layers_in_main: llama.cpp keeps K and V of the draft layers in the main context too.
    """

    file: str
    spec: ModelSpec
    version: Positive
    byte_order: str
    tensors: NonNegative
    weights_bytes: int | None
    layer_weights: tuple[int, ...] = ()
    shards: Positive = 1
    draft_layers_in_main: bool = False


def read_gguf(path: str) -> GgufModel:
    """Read a GGUF file's header; of a model in several files, the first of them.

    Raises:
        InputError: missing, not a GGUF file, damaged, or without what its architecture needs.
        UnsupportedError: an architecture that kvcalc does not know, or that keeps no KV cache.
    """
    file = printable(path)
    header = _open(path, file)
    shards = shard_count(header.entries, path, file)
    name = _architecture_name(header, file)
    known = architecture(name, file)
    try:
        fields, blocks = _layers(name, known, header, shards, file)
        tensors, notes = _weights(path, header, shards)
        return _model(file, header, fields, blocks, known, tensors, notes, shards)
    except KvcalcError as error:
        if error.where:
            raise
        # A core value refused a number; it does not know which file gave it.
        raise InputError(error.message, hint=error.hint, where=file) from None


def model_of_entries(entries: Mapping[str, Entry], file: str) -> ModelSpec:
    """Return the model that a file's key-values describe, where the file itself is not there.

    Args:
        entries: as `llama_model_loader` prints them.
        file: how errors name them.

    Raises:
        InputError: without what the architecture needs.
        UnsupportedError: an architecture that kvcalc does not know, or that keeps no KV cache.
    """
    header = Header(3, "little", dict(entries), Tensors())
    name = _architecture_name(header, file)
    known = architecture(name, file)
    fields, blocks = _layers(name, known, header, 1, file)
    return _model(file, header, fields, blocks, known, None, [], 1).spec


def _open(path: str, file: str) -> Header:
    hint = "give the path of a GGUF file"
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise InputError("is a directory", hint=hint, where=file)
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise InputError("is not a file", hint=hint, where=file)
        with open(path, "rb") as stream:
            return read_header(stream, os.fstat(stream.fileno()).st_size, file)
    except FileNotFoundError:
        raise InputError("no such file", hint=hint, where=file) from None
    except PermissionError:
        hint = "make the file readable"
        raise InputError("permission denied", hint=hint, where=file) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise InputError(f"cannot be read: {reason}", hint=hint, where=file) from None


def _architecture_name(header: Header, file: str) -> str:
    kind = header.entries.get("general.type", "model")
    if kind not in ("model", "mmproj"):
        what = f"this is a GGUF of type {kind!r:.40}, not a model"
        raise broken(file, printable(what), "give the file of the model itself")
    name = header.entries.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise broken(file, "general.architecture is missing", "convert the model anew")
    return printable(name)


def _layers(
    name: str, known: Architecture, header: Header, shards: int, file: str
) -> tuple[Fields, list[Block]]:
    fields = Fields(name, header.entries, file)
    if known.drafts_by_weights and shards == 1:
        fields.drop_drafts_without_weights(header.tensors)
    return fields, known.rule(fields)


def _weights(path: str, header: Header, shards: int) -> tuple[Tensors | None, list[str]]:
    """Return the tensors of all files, None where some are not known, and notes on them."""
    tensors = header.tensors
    for number in range(2, shards + 1):
        other = sibling(path, number, shards)
        if other is None or not os.path.isfile(other):
            missing = f"file {number} of {shards} is not beside it"
            return None, [f"the model is split: {missing}, so its weights are not known"]
        tensors = tensors.joined(_open(other, printable(other)).tensors)
    notes = [f"the model is split into {shards} files"] if shards > 1 else []
    if not tensors.described:
        return None, [*notes, "the file holds no tensors, so the weights are not known"]
    if shards > 1 and header.entries.get("split.tensors.count") != tensors.described:
        return None, [*notes, "its files do not hold the tensors they should: weights not known"]
    if tensors.unknown:
        types = ", ".join(str(type_) for type_ in sorted(tensors.unknown)[:5])
        count = sum(tensors.unknown.values())
        notes.append(
            f"weights not known: {count} tensors of ggml types that kvcalc does not know ({types})"
        )
        return None, notes
    return tensors, notes


def _model(
    file: str,
    header: Header,
    fields: Fields,
    blocks: list[Block],
    known: Architecture,
    tensors: Tensors | None,
    notes: list[str],
    shards: int,
) -> GgufModel:
    # A file of draft layers alone is a model of its own: llama.cpp then filters none.
    main = len(blocks) - fields.drafts or len(blocks)
    drafts = blocks[main:]
    in_main = known.drafts_in_main and bool(drafts)
    spec = ModelSpec(
        name=_name(header, file),
        num_hidden_layers=main,
        dtype=_DTYPE,
        layers=_runs(blocks[:main]),
        max_position_embeddings=fields.number("context_length"),
        draft_layers=_runs(drafts),
        architecture=fields.arch,
        num_attention_heads=fields.heads(),
        traits=_TRAITS.get(fields.arch, ()),
        size=model_size(fields, len(blocks), len(drafts), tensors),
        weights=() if tensors is None else tensors.known,
        notes=(_DTYPE_NOTE, *_notes(fields, blocks, in_main=in_main), *notes),
    )
    layers = (
        () if tensors is None else tuple(tensors.by_layer.get(i, 0) for i in range(len(blocks)))
    )
    return GgufModel(
        file=file,
        spec=spec,
        version=header.version,
        byte_order=header.byte_order,
        tensors=header.tensors.described if tensors is None else tensors.described,
        weights_bytes=None if tensors is None else tensors.total,
        layer_weights=layers,
        shards=shards,
        draft_layers_in_main=in_main,
    )


def _name(header: Header, file: str) -> str:
    name = header.entries.get("general.name")
    if isinstance(name, str) and name.strip():
        return printable(name.strip())[:_MAX_NAME]
    return os.path.basename(file) or file


def _notes(fields: Fields, blocks: list[Block], *, in_main: bool) -> list[str]:
    kinds = {cache.kind for block in blocks for cache in block.caches}
    notes = []
    if "indexer" in kinds:
        notes.append("indexer keys count in float16: llama.cpp keeps them in the cache type of K")
    window = fields.has("attention.sliding_window")
    if window and not kinds & {"sliding_window", "chunked_attention", "sliding_mla"}:
        notes.append("llama.cpp does not use the file's sliding_window: every token is kept")
    if fields.arch in ("deepseek2", "mistral4") and "mla" not in kinds:
        notes.append(
            "a file without key_length_mla, from before llama.cpp kept latents: K and V of every"
            " head are kept; a new conversion keeps far less"
        )
    if in_main:
        notes.append("llama.cpp keeps K and V of the draft layers in the main context as well")
    return notes


def _runs(blocks: Sequence[Block]) -> tuple[LayerRun, ...]:
    return merge_runs(LayerRun(count=1, caches=caches, note=note) for caches, note in blocks)


# Models in several files: `NAME-00001-of-00003.gguf` and so on.
#
# The first file holds all key-values, each file the infos of its own tensors. llama.cpp b11434,
# `src/llama-model-loader.cpp` (split.no, split.count, split.tensors.count).

_NAME = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf\Z", re.IGNORECASE | re.ASCII)
_MAX_SHARDS = 99_999


def shard_count(entries: dict[str, Entry], path: str, file: str) -> int:
    """Return of how many files the model consists: 1 where it is not split.

    Raises:
        InputError: this is a later file than the first, or what it says of itself is senseless.
    """
    count, number = entries.get("split.count", 1), entries.get("split.no", 0)
    if type(count) is not int or not 0 <= count <= _MAX_SHARDS:
        raise broken(file, f"split.count is {_said(count)}, no number of files")
    if type(number) is not int or not 0 <= number < max(count, 1):
        raise broken(file, f"split.no is {_said(number)}, and the model has {count} files")
    if number:
        raise _later(path, file, number, count)
    return max(count, 1)


def sibling(path: str, number: int, count: int) -> str | None:
    """Return the path of another file of the model, by the name of this one; None if it has none.

    >>> sibling("m-00001-of-00003.gguf", 2, 3)
    'm-00002-of-00003.gguf'
    """
    match = _NAME.search(path)
    if match is None or int(match[2]) != count:
        return None
    return f"{path[: match.start()]}-{number:05}-of-{count:05}{path[match.end() - 5 :]}"


def _later(path: str, file: str, number: int, count: int) -> InputError:
    first = sibling(file, 1, count) if sibling(path, 1, count) else None
    hint = f"give {first}" if first else "give the first of its files"
    message = f"this is file {number + 1} of a model in {count} files"
    return InputError(f"{message}, and only the first describes it", hint=hint, where=file)


def _said(value: Entry) -> str:
    return "a list" if isinstance(value, tuple) else shown(value)


# The widths and weights that a GGUF file states beside its cache: all of them optional.
#
# llama.cpp b11434 src/llama-model.cpp (llama_model_base::load_hparams); numbers of file types:
# include/llama.h (llama_ftype). A value that makes no sense
# is left out: sizes change nothing of the cache.

_AS_WIDE = frozenset(("granitemoe", "hunyuan-moe", "llama", "minimax-m2", "phimoe"))
"""Architectures whose experts are as wide as feed_forward_length, whatever the other key says."""
_FILE_TYPES = {
    0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1",
    10: "q2_k", 11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m",
    16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 25: "iq4_nl", 30: "iq4_xs", 32: "bfloat16",
    38: "mxfp4",
}  # fmt: skip


def model_size(fields: Fields, blocks: int, drafts: int, tensors: Tensors | None) -> ModelSize:
    """Return the sizes that a file's keys and tensors give.

    Args:
        fields: the keys.
        blocks: layers, draft layers included.
        drafts: draft layers, which are the last.
        tensors: of all files; None where they are not known.
    """
    inner = fields.by_layer("feed_forward_length")
    heads = fields.by_layer("attention.head_count")
    experts = fields.quietly("expert_count")
    dense = fields.quietly("leading_dense_block_count") or 0
    step = fields.quietly("interleave_moe_layer_step") or 1
    rope = fields.quietly("rope.dimension_count")
    head = fields.quietly("attention.key_length_mla")
    if head is None and fields.quietly("attention.kv_lora_rank") is not None:
        head = fields.quietly("attention.key_length")
    value = fields.quietly("attention.value_length_mla")
    kind = fields.file_type()
    return ModelSize(
        hidden_size=fields.quietly("embedding_length"),
        intermediate_size=max(inner, default=0) or None,
        vocab_size=fields.vocabulary(),
        num_experts=experts,
        num_experts_per_tok=fields.quietly("expert_used_count") if experts else None,
        moe_intermediate_size=_expert_width(fields, inner) if experts else None,
        num_moe_layers=max(1, (fields.main - dense) // step) if experts else None,
        first_moe_layer=dense if experts else None,
        shared_intermediate_size=_shared(fields) if experts else None,
        q_lora_rank=fields.quietly("attention.q_lora_rank"),
        kv_lora_rank=fields.quietly("attention.kv_lora_rank"),
        qk_nope_head_dim=head - rope if head and rope and head > rope else None,
        v_head_dim=value or (fields.quietly("attention.value_length") if head else None),
        index_n_heads=fields.quietly("attention.indexer.head_count"),
        layer_heads=_varying(heads),
        layer_inner=_varying(inner),
        weights_bytes=None if tensors is None else tensors.total,
        weights_dtype=UNKNOWN_FORMAT if kind is None else _FILE_TYPES.get(kind, UNKNOWN_FORMAT),
        weights_source=None if tensors is None else "the tensors of the GGUF file",
        parts=() if tensors is None else _parts(tensors, blocks, drafts),
    )


def _parts(tensors: Tensors, blocks: int, drafts: int) -> tuple[WeightPart, ...]:
    """Return one part a layer, one of the draft layers, and one of what stands outside."""
    main = blocks - drafts
    layers = {i: size for i, size in tensors.by_layer.items() if i < main}
    draft = sum(size for i, size in tensors.by_layer.items() if i >= main)
    rest = tensors.total - sum(layers.values()) - draft
    parts = [WeightPart(kind="other", layer=None, divided_bytes=rest)]
    parts += [
        WeightPart(kind="other", layer=i, divided_bytes=size) for i, size in sorted(layers.items())
    ]
    if draft:
        parts.append(WeightPart(kind="draft", layer=None, divided_bytes=draft))
    return tuple(parts)


def _expert_width(fields: Fields, inner: tuple[int, ...]) -> int | None:
    own = fields.quietly("expert_feed_forward_length")
    if own is None or fields.arch in _AS_WIDE:
        return max(inner, default=0) or None
    return own


def _shared(fields: Fields) -> int:
    known = fields.quietly("expert_shared_feed_forward_length")
    if known is not None:
        return known
    each = fields.quietly("expert_feed_forward_length") or 0
    return each * (fields.quietly("expert_shared_count") or 0)


def _varying(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers if len(set(numbers)) > 1 else ()
