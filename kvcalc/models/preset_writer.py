"""A model as the text of a preset file, its repeating patterns folded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.models.preset_files import Variant

__all__ = ["preset_name", "preset_text", "size_lines"]

_MAX_PERIOD = 64  # layers in a pattern; the longest published one has 24
_MAX_START = 8  # layers of their own before a pattern starts
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./ -]*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # of YAML 1.1 readers


def preset_name(model: str) -> str:
    """Return a preset's name for a model's: lower case, `-` for spaces, no organisation."""
    base = model.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].rsplit("--", 1)[-1]
    name = re.sub(r"[^a-z0-9.]+", "-", base.lower()).strip("-.")
    return re.sub(r"[-.]{2,}", "-", name) or "model"


def preset_text(
    spec: ModelSpec,
    *,
    name: str,
    title: str,
    aliases: Sequence[str] = (),
    variants: Sequence[Variant] = (),
    source: Mapping[str, str],
    bytes_per_token: Mapping[str, int],
    state_bytes: int,
    confirmed_by: Sequence[str],
) -> str:
    """Return the file's text.

    Args:
        spec: the model.
        name: the preset's name, which is also the file's.
        title: the model's own name.
        aliases: other spellings.
        variants: names whose own files differ in something.
        source: repository, file and note.
        bytes_per_token: what the model must come to, by dtype.
        state_bytes: the state it must come to.
        confirmed_by: who says so.
    """
    lines = ["kind: model", f"name: {name}", f"title: {_scalar(title)}"]
    lines += _listed("aliases", aliases)
    lines += _variants(variants)
    lines += [f"architecture: {_scalar(spec.architecture or 'unknown')}", f"dtype: {spec.dtype}"]
    lines += _said(spec, "kv_cache_dtype", "kv_cache_method", "num_hidden_layers")
    lines += _said(spec, "num_attention_heads", "encoder_divisor", "mamba_chunk_size")
    lines += _said(spec, "max_position_embeddings", "stretched_position_embeddings")
    if spec.traits:
        lines.append(f"traits: [{', '.join(spec.traits)}]")
    lines += ["layers:", *_entries(spec.layers)]
    if spec.draft_layers:
        lines += ["draft_layers:", *_entries(spec.draft_layers)]
    lines += size_lines(spec.size)
    lines += _listed("notes", spec.notes)
    lines += ["source:", *(f"  {key}: {_scalar(text)}" for key, text in source.items() if text)]
    pairs = ", ".join(f"{dtype}: {size}" for dtype, size in bytes_per_token.items())
    lines += ["expect:", f"  bytes_per_token: {{{pairs}}}"]
    if state_bytes:
        lines.append(f"  state_bytes: {state_bytes}")
    lines += ["  confirmed_by:", *(f"    - {_scalar(text)}" for text in confirmed_by)]
    return "\n".join(lines) + "\n"


def _said(spec: ModelSpec, *keys: str) -> list[str]:
    return [f"{key}: {value}" for key in keys if (value := getattr(spec, key)) is not None]


def _variants(variants: Sequence[Variant]) -> Iterator[str]:
    if variants:
        yield "variants:"
    for one in variants:
        yield f"  - names: [{', '.join(map(_scalar, one.names))}]"
        yield from (f"    {key}: {_flow(value)}" for key, value in one.differences().items())
        yield f"    source: {_scalar(one.source)}"


def size_lines(size: ModelSize | None) -> list[str]:
    """Return the lines of a model's sizes; none where nothing is known.

    The parts of a checkpoint are left out: they are many, and a folder has them anew.
    """
    if size is None:
        return []
    found = msgspec.to_builtins(size)
    empty = {"towers": (), "layer_heads": (), "layer_inner": (), "parts": found["parts"]}
    told = {
        key: value for key, value in found.items() if value is not None and value != empty.get(key)
    }
    lines = [
        f"  {key}: {_scalar(value) if key == 'weights_source' else _flow(value)}"
        for key, value in told.items()
    ]
    return ["size:", *lines] if lines else []


def _listed(key: str, texts: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"  - {_scalar(text)}" for text in texts)] if texts else []


def _scalar(text: str) -> str:
    """Return a text as a YAML scalar that every reader takes for text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not text.endswith(" "):
        return text
    return json.dumps(text, ensure_ascii=False)


def _entries(runs: Sequence[LayerRun]) -> Iterator[str]:
    """Yield the lines under `layers`: a repeated pattern where that is shorter, and the rest."""
    each = [(run.caches, run.note) for run in runs for _ in range(run.count)]
    start, period, times = _fold(each)
    yield from (f"  - {_entry(*run)}" for run in _runs(each[:start]))
    if times:
        yield f"  - repeat: {times}"
        yield "    layers:"
        yield from (f"      - {_entry(*run)}" for run in _runs(each[start : start + period]))
    yield from (f"  - {_entry(*run)}" for run in _runs(each[start + period * times :]))


_Kept = tuple[tuple[Any, ...], str]


def _fold(each: Sequence[_Kept]) -> tuple[int, int, int]:
    """Return (start, period, times) of the repeated pattern that leaves the fewest entries.

    times is 0 where writing the layers out is as short.
    """
    best = (len(list(_runs(each))), (0, 0, 0))
    for start in range(min(_MAX_START, len(each))):
        for period in range(2, min(_MAX_PERIOD, (len(each) - start) // 2) + 1):
            end = start + period
            while end < len(each) and each[end] == each[end - period]:
                end += 1
            times = (end - start) // period
            if times > 1:
                parts = each[:start], each[start : start + period], each[start + period * times :]
                entries = 1 + sum(len(list(_runs(part))) for part in parts)
                best = min(best, (entries, (start, period, times)))
    return best[1]


def _runs(each: Sequence[_Kept]) -> Iterator[tuple[int, tuple[Any, ...], str]]:
    start = 0
    for i in range(1, len(each) + 1):
        if i == len(each) or each[i] != each[start]:
            yield i - start, *each[start]
            start = i


def _entry(count: int, caches: tuple[Any, ...], note: str) -> str:
    """Return one entry in flow style."""
    fields: dict[str, Any] = {"count": count}
    kept = [msgspec.to_builtins(cache) for cache in caches]
    if len(kept) == 1:
        fields |= _told(kept[0])
    else:
        fields["caches"] = [_told(cache) for cache in kept]
    if note:
        fields["note"] = note
    return _flow(fields)


def _told(cache: dict[str, Any]) -> dict[str, Any]:
    """Return a cache's fields without those that are left at nothing."""
    return {key: value for key, value in cache.items() if value is not None and value is not False}


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # Inside braces a comma or a colon would end a plain scalar.
        return value if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) else json.dumps(value)
    return str(value)
