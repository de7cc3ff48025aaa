"""What a preset file holds, and how one document becomes a preset or a list of faults.

Two kinds of file: `kind: model` and `kind: gpu`. Each carries where its facts were read; a model
also carries the figures that it must give (`expect`), which are checked on every load, so that a
slip in a preset is found where it was made and not in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, TypeVar, cast

import msgspec

from kvcalc.core.deployment import MAX_BYTES, GpuSpec
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.errors import KvcalcError
from kvcalc.core.layers import CACHE_KINDS, MAX_LAYERS, Cache, LayerRun, merge_runs
from kvcalc.core.model import ModelSpec, Trait
from kvcalc.core.size import KeptPart, ModelSize
from kvcalc.core.values import Positive, Value
from kvcalc.models.documents import Document, KeyPath, Plain
from kvcalc.models.faults import Fault, Faults, in_one_line, named, unknown
from kvcalc.models.text import shown

__all__ = [
    "Expect",
    "GpuPreset",
    "ModelFile",
    "ModelPreset",
    "Source",
    "Variant",
    "check_document",
    "check_gpu",
    "check_model",
]


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
_FIGURES = (
    "memory_bytes",
    "compute_capability",
    "architecture",
    "memory_bandwidth_bytes_per_s",
    "dense_flops",
)
_TELLING = {"model": "layers", "gpu": "memory_bytes"}
"""What no other file has: the key that tells a preset whose `kind` is missing."""


class Source(Value, frozen=True, kw_only=True):
    """Where a model's facts were read.

    Attributes:
        repository: such as `meta-llama/Llama-3.1-8B`.
        file: the file in it, such as `config.json`.
        note: what the file leaves open and where that was read.
        maximum: where the longest sequence was read a second time: files are edited for runtimes
            that take less.
        retrieved: the day, YYYY-MM-DD.
    """

    repository: _Text
    file: _Text
    note: str = ""
    maximum: str = ""
    retrieved: str = ""


class Expect(Value, frozen=True, kw_only=True):
    """What the model must come to, from elsewhere than this program.

    Attributes:
        bytes_per_token: KV cache dtype -> bytes a token while every window is open.
        state_bytes: fixed state a sequence.
        confirmed_by: engines, logs or papers that say so.
    """

    bytes_per_token: Annotated[dict[str, _Bytes], msgspec.Meta(min_length=1)]
    state_bytes: _Bytes = 0
    confirmed_by: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]


class Variant(Value, frozen=True, kw_only=True):
    """Names of a preset whose own files differ from it in something that no layer depends on.

    Attributes:
        names: of repositories, and other spellings.
        source: where that was read.
        max_position_embeddings, stretched_position_embeddings, dtype, kv_cache_dtype,
            kv_cache_method: instead of the preset's.
        weights_dtype, expert_dtype, weights_bytes, kept: the same of its sizes; of weights in
            another format the bytes are those given here, or are counted.
    """

    names: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    source: _Text
    max_position_embeddings: Positive | None = None
    stretched_position_embeddings: Positive | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    kv_cache_method: str | None = None
    weights_dtype: str | None = None
    expert_dtype: str | None = None
    weights_bytes: _Bytes | None = None
    kept: tuple[KeptPart, ...] | None = None

    def differences(self) -> dict[str, str | int | tuple[str, ...]]:
        """Return what differs, by key."""
        keys = [key for key in self.__struct_fields__ if key not in ("names", "source")]
        return {key: value for key in keys if (value := getattr(self, key)) is not None}

    def of(self, spec: ModelSpec, name: str) -> ModelSpec:
        """Return a preset's model as this variant of it has it.

        Raises:
            KvcalcError: what differs makes no sense of that model.
        """
        told = self.differences()
        changes: dict[str, object] = {
            key: told[key] for key in told if key in spec.__struct_fields__
        }
        if "max_position_embeddings" in changes:
            changes.setdefault("stretched_position_embeddings", None)
        size = spec.size or ModelSize()
        own: dict[str, object] = {key: told[key] for key in told if key in size.__struct_fields__}
        if "weights_dtype" in own:
            gone = ("expert_dtype", "kept", "weights_bytes", "weights_error_bytes")
            own = dict.fromkeys((*gone, "weights_source"), None) | own
        if "weights_bytes" in own and own["weights_bytes"] is not None:
            own["weights_source"] = self.source
        if own:
            changes["size"] = msgspec.structs.replace(size, **own)
        line = f"{name}: {', '.join(f'{key} {_told(told[key])}' for key in told)} ({self.source})"
        return msgspec.structs.replace(
            spec, **{**changes, "origin": self.names[0], "notes": (*spec.notes, line)}
        )


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


class ModelPreset(Value, frozen=True, kw_only=True):
    """A model and where it comes from; `file` is the file's name without its folder."""

    spec: ModelSpec
    title: str
    aliases: tuple[str, ...]
    variants: tuple[Variant, ...] = ()
    source: Source
    expect: Expect
    file: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that leads to it."""
        own = (name for variant in self.variants for name in variant.names)
        return (self.spec.name, *self.aliases, *own)

    def called(self, name: str) -> ModelPreset:
        """Return the preset as the variant of that name has it, or as it is."""
        folded = name.strip().lower()
        for variant in self.variants:
            if folded in (one.lower() for one in variant.names):
                return msgspec.structs.replace(self, spec=variant.of(self.spec, name.strip()))
        return self


class GpuPreset(Value, frozen=True, kw_only=True):
    """A GPU; `file` is the file's name without its folder."""

    spec: GpuSpec
    file: str


class ModelFile(Value, frozen=True, kw_only=True):
    """The keys of a model's file; the layers are read entry by entry."""

    name: str
    title: _Text
    aliases: tuple[_Text, ...] = ()
    variants: tuple[Variant, ...] = ()
    architecture: _Text
    dtype: str
    kv_cache_dtype: str | None = None
    kv_cache_method: str | None = None
    num_hidden_layers: Positive
    num_attention_heads: Positive | None = None
    encoder_divisor: Positive | None = None
    mamba_chunk_size: Positive | None = None
    max_position_embeddings: Positive | None = None
    stretched_position_embeddings: Positive | None = None
    traits: tuple[Trait, ...] = ()
    layers: Annotated[tuple[object, ...], msgspec.Meta(min_length=1)]
    draft_layers: tuple[object, ...] = ()
    size: ModelSize | None = None
    notes: tuple[_Text, ...] = ()
    source: Source
    expect: Expect


def check_document(
    document: Document,
) -> tuple[ModelPreset | GpuPreset | None, list[Fault]]:
    """Return the preset of either kind, or every fault of the file with its line."""
    value = document.value
    if isinstance(value, dict):
        kind = value.get("kind", "gpu" if _TELLING["gpu"] in value else "model")
        if kind == "gpu":
            return check_gpu(document)
    return check_model(document)


def check_model(document: Document) -> tuple[ModelPreset | None, list[Fault]]:
    """Return the model, or None and every fault of the file with its line."""
    faults = Faults(document)
    value = _of_kind(document, "model", faults)
    if value is None:
        return None, faults.in_order()
    read = _read(value, ModelFile, faults)
    # Where the top is at fault, what else the file says is checked all the same.
    layers = _layers(value, "layers", faults)
    draft_layers = _layers(value, "draft_layers", faults)
    _check_name(value.get("name"), faults)
    _check_dtype(value.get("dtype"), faults)
    _check_cache_dtype(value.get("kv_cache_dtype"), faults)
    _check_size(value.get("size"), faults)
    if read is None or faults:
        _check_pieces(value, layers, faults)
        return None, faults.in_order()
    total = sum(run.count for run in layers)
    if total != read.num_hidden_layers:
        _say_total(read.num_hidden_layers, total, faults)
        return None, faults.in_order()
    spec = ModelSpec(
        name=read.name,
        num_hidden_layers=total,
        dtype=read.dtype,
        layers=layers,
        max_position_embeddings=read.max_position_embeddings,
        stretched_position_embeddings=read.stretched_position_embeddings,
        kv_cache_dtype=read.kv_cache_dtype,
        kv_cache_method=read.kv_cache_method,
        draft_layers=draft_layers,
        architecture=read.architecture,
        num_attention_heads=read.num_attention_heads,
        encoder_divisor=read.encoder_divisor,
        mamba_chunk_size=read.mamba_chunk_size,
        traits=read.traits,
        size=read.size,
        origin=read.source.repository,
        notes=read.notes,
    )
    _check_expect(spec, read.expect, faults)
    _check_variants(spec, read, faults)
    if faults:
        return None, faults.in_order()
    preset = ModelPreset(
        spec=spec,
        title=read.title,
        aliases=read.aliases,
        variants=read.variants,
        source=read.source,
        expect=read.expect,
        file=_file_name(document),
    )
    return preset, []


def check_gpu(document: Document) -> tuple[GpuPreset | None, list[Fault]]:
    """Return the GPU, or None and every fault of the file with its line."""
    faults = Faults(document)
    value = _of_kind(document, "gpu", faults)
    if value is None:
        return None, faults.in_order()
    spec = _read(value, GpuSpec, faults)
    _check_name(value.get("name"), faults)
    _check_sources(value, faults)
    if spec is None or faults:
        return None, faults.in_order()
    return GpuPreset(spec=spec, file=_file_name(document)), []


_File = TypeVar("_File", ModelFile, GpuSpec)


def _of_kind(document: Document, kind: str, faults: Faults) -> dict[str, Plain] | None:
    """Return the file's keys; None where it is some other file, whose keys are no faults."""
    value = document.value
    if not isinstance(value, dict):
        faults.add((), f"a preset is a mapping with `kind: {kind}` first, not {shown(value)}")
        return None
    if "kind" not in value:
        faults.add((), "kind is missing; a preset begins with `kind: model` or `kind: gpu`")
        return value if _TELLING[kind] in value else None
    found = value["kind"]
    if found == kind:
        return value
    if found in ("model", "gpu"):
        faults.add(("kind",), f"this is a {found} preset; a {kind} preset is wanted here")
    else:
        faults.add(("kind",), unknown("kind of preset", found, ("model", "gpu")))
    return None


def _read(value: dict[str, Plain], wanted: type[_File], faults: Faults) -> _File | None:
    fields = {key: item for key, item in value.items() if key != "kind"}
    read = faults.convert(fields, wanted, (), ("kind",))
    return None if faults else read


def _layers(value: dict[str, Plain], key: str, faults: Faults) -> tuple[LayerRun, ...]:
    entries = value.get(key)
    return read_layers(entries, (key,), faults) if isinstance(entries, list) else ()


def _check_pieces(value: dict[str, Plain], layers: tuple[LayerRun, ...], faults: Faults) -> None:
    """Check the sum and the expected figures of a file that has other faults.

    Only where what they need is itself sound: a fault should not be told twice over.
    """
    troubled = {fault.path[:1] for fault in faults.in_order()}
    needed = {("layers",), ("num_hidden_layers",), ("dtype",)}
    total = sum(run.count for run in layers)
    if troubled & needed or not total or "dtype" not in value:
        return
    if value.get("num_hidden_layers", total) != total:
        _say_total(value["num_hidden_layers"], total, faults)
        return
    if ("expect",) not in troubled and "expect" in value:
        dtype = str(value["dtype"])
        spec = ModelSpec(name="", num_hidden_layers=total, dtype=dtype, layers=layers)
        _check_expect(spec, msgspec.convert(value["expect"], Expect), faults)


def _say_total(declared: Plain, total: int, faults: Faults) -> None:
    message = f"num_hidden_layers is {shown(declared)}, the layers add up to {total}"
    faults.add(("num_hidden_layers",), message)


def _check_name(name: Plain, faults: Faults) -> None:
    if isinstance(name, str) and not _NAME.fullmatch(name):
        message = f"name is {shown(name)}: lower-case letters and digits joined by - or . are read"
        faults.add(("name",), message)


def _check_dtype(dtype: Plain, faults: Faults) -> None:
    if not isinstance(dtype, str):
        return  # missing or of another type, which is told already
    try:
        element_bytes(dtype)
    except KvcalcError as error:
        faults.add(("dtype",), in_one_line(error))


def _check_cache_dtype(dtype: Plain, faults: Faults) -> None:
    if not isinstance(dtype, str):
        return  # left out, or of another type, which is told already
    try:
        kv_dtype("auto", dtype)
    except KvcalcError as error:
        faults.add(("kv_cache_dtype",), in_one_line(error))


def _check_size(size: Plain, faults: Faults) -> None:
    """Check what the types of a size leave open."""
    if not isinstance(size, dict):
        return  # left out, or of another type, which is told already
    if "parts" in size:
        faults.add(("size", "parts"), "parts come from a checkpoint's headers, not from a preset")
    if "weights_bytes" in size and "weights_source" not in size:
        faults.add(("size", "weights_bytes"), "weights_bytes has no weights_source")
    for key in ("weights_dtype", "expert_dtype"):
        name = size.get(key)
        if isinstance(name, str):
            try:
                _check_format(name)
            except KvcalcError as error:
                faults.add(("size", key), in_one_line(error))


def _check_format(name: str) -> None:
    from kvcalc.weights.formats import UNKNOWN_FORMAT, weight_width  # few presets name one

    if name != UNKNOWN_FORMAT:
        weight_width(name)


def _check_expect(spec: ModelSpec, expect: Expect, faults: Faults) -> None:
    for dtype, expected in expect.bytes_per_token.items():
        path: KeyPath = ("expect", "bytes_per_token", dtype)
        try:
            given = spec.bytes_per_token(dtype)
        except KvcalcError as error:
            faults.add(path, in_one_line(error))
            continue
        if given != expected:
            said = "no whole number" if given is None else str(given)
            faults.add(path, f"{expected} bytes a token are expected, the layers give {said}")
    state = spec.state_bytes()
    if state != expect.state_bytes:
        message = f"{expect.state_bytes} bytes of state are expected, the layers give {state}"
        faults.add(("expect", "state_bytes"), message)


def _check_variants(spec: ModelSpec, read: ModelFile, faults: Faults) -> None:
    """Check that each variant differs, makes sense, and has names of its own."""
    taken = {name.lower() for name in (read.name, *read.aliases)}
    for index, variant in enumerate(read.variants):
        path: KeyPath = ("variants", index)
        if not variant.differences():
            faults.add(path, "nothing differs: make its names aliases")
        for name in variant.names:
            if name.lower() in taken:
                faults.add((*path, "names"), f"{shown(name)} is a name of this file already")
            taken.add(name.lower())
        try:
            changed = variant.of(spec, variant.names[0])
            for key in ("weights_dtype", "expert_dtype"):
                word = getattr(changed.size, key, None)
                if word is not None:
                    _check_format(word)
        except KvcalcError as error:
            faults.add(path, in_one_line(error))


def _check_sources(value: dict[str, Plain], faults: Faults) -> None:
    """A figure without a source is left out; a source without a figure is a slip."""
    given = [name for name in _FIGURES if value.get(name)]
    sources = value.get("sources", {})
    if not isinstance(sources, dict):
        return  # told already
    for name in given:
        if name not in sources:
            faults.add((name,), f"{name} has no entry under sources")
    for name in sources:
        if name not in given:
            message = f"a source for {shown(name)}, which is no figure of this file"
            faults.add(("sources", name), message)


def _file_name(document: Document) -> str:
    return re.split(r"[/\\]", document.file)[-1]


# The entries under `layers` in a preset, and the runs of layers that they stand for.
#
# {count: N, kind: KIND, ...fields of that kind, note: why}    N layers that keep one cache
# {count: N, caches: [{kind: KIND, ...}, ...], note: why}      several caches, or none
# {repeat: N, layers: [...entries without repeat]}             a pattern, N times


class _Run(Value, frozen=True, kw_only=True):
    """What every entry may say beside its caches."""

    count: Positive = 1
    note: str = ""


class _Repeat(Value, frozen=True, kw_only=True):
    """A pattern of entries."""

    repeat: Positive
    layers: list[object]


def read_layers(entries: Sequence[Plain], path: KeyPath, faults: Faults) -> tuple[LayerRun, ...]:
    """Return the runs that entries stand for, in order, equal neighbours merged.

    What cannot be read is noted in `faults`, and the result is then not to be used.
    """
    runs: list[LayerRun] = []
    total = 0
    for index, entry in enumerate(entries):
        at = (*path, index)
        read, times = _read_entry(entry, at, faults)
        total += times * sum(run.count for run in read)
        if total > MAX_LAYERS:
            faults.add(at, f"the layers up to here are {total}; at most {MAX_LAYERS} are read")
            return ()
        for _ in range(times):
            runs.extend(read)
    return merge_runs(runs)


def _read_entry(entry: Plain, path: KeyPath, faults: Faults) -> tuple[list[LayerRun], int]:
    """Return the runs of one entry and how often they follow one another."""
    if not isinstance(entry, dict) or not ("repeat" in entry or "layers" in entry):
        run = _read_run(entry, path, faults)
        return ([run] if run else []), 1
    repeat = faults.convert(entry, _Repeat, path)
    if repeat is None:
        return [], 1
    if not repeat.layers:
        faults.add((*path, "layers"), "a repeat of no layers")
    runs = []
    for index, inner in enumerate(repeat.layers):
        at = (*path, "layers", index)
        if isinstance(inner, dict) and "repeat" in inner:
            faults.add(at, "a repeat inside a repeat; write the inner entries out")
        elif run := _read_run(cast(Plain, inner), at, faults):
            runs.append(run)
    return runs, repeat.repeat


def _read_run(entry: Plain, path: KeyPath, faults: Faults) -> LayerRun | None:
    if not isinstance(entry, dict):
        faults.add(path, f"{named(path)} must be a mapping, not {shown(entry)}")
        return None
    before = len(faults)
    beside = {name: entry[name] for name in _Run.__struct_fields__ if name in entry}
    run = faults.convert(beside, _Run, path)
    rest = {name: item for name, item in entry.items() if name not in beside}
    caches: list[Cache | None] = []
    if "caches" in rest:
        caches = _read_caches(rest, path, faults)
        if not caches and len(faults) == before and run and not run.note:
            faults.add(path, "a layer that keeps nothing needs a note that says why")
    else:
        caches = [_read_cache(rest, path, faults, beside=_Run.__struct_fields__)]
    if run is None or len(faults) > before:
        return None
    kept = tuple(cache for cache in caches if cache is not None)
    return LayerRun(count=run.count, caches=kept, note=run.note)


def _read_caches(rest: dict[str, Plain], path: KeyPath, faults: Faults) -> list[Cache | None]:
    for name in rest:
        if name != "caches":
            message = "beside caches: the fields of a cache belong into an entry of them"
            faults.add((*path, name), f"{shown(name)} {message}")
    entries = rest["caches"]
    at = (*path, "caches")
    if not isinstance(entries, list):
        faults.add(at, f"caches must be a list, not {shown(entries)}")
        return []
    return [_read_cache(entry, (*at, index), faults) for index, entry in enumerate(entries)]


def _read_cache(
    entry: Plain, path: KeyPath, faults: Faults, beside: tuple[str, ...] = ()
) -> Cache | None:
    if not isinstance(entry, dict):
        faults.add(path, f"{named(path)} must be a mapping, not {shown(entry)}")
        return None
    if "kind" not in entry:
        known = ", ".join(sorted(CACHE_KINDS))
        faults.add(path, f"kind is missing; it is one of {known}, or give caches")
        return None
    kind = entry["kind"]
    if not isinstance(kind, str) or kind not in CACHE_KINDS:
        faults.add((*path, "kind"), unknown("kind", kind, CACHE_KINDS))
        return None
    fields = {name: item for name, item in entry.items() if name != "kind"}
    return faults.convert(fields, CACHE_KINDS[kind], path, ("kind", *beside))
