"""Engine `transformers`: what the caches of Hugging Face transformers hold, to the byte.

The model is first put as transformers holds it (`held`); then every layer says what it keeps by
which rule (`layers`, `compressed`, `quantized`), or blocks are made of all layers (`paged`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import msgspec

from kvcalc.core.attention import CompressedAttention, CrossAttention, FullAttention, Mla
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnknownNameError, UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.kind import Chunks, Windowed
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.memory import HostPart, processes
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank, Rows
from kvcalc.core.recurrent import LightningAttention
from kvcalc.core.rules import Chunk, Grow, Rule, Slots, Stepped, Whole, Window
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.served import check_served
from kvcalc.engines.transformers.arguments import Arguments
from kvcalc.engines.transformers.layers import COUNTER_BYTES, Part, as_held, counters, parts_of
from kvcalc.engines.transformers.paged import plan_paged
from kvcalc.engines.transformers.settings import Settings, resolve
from kvcalc.engines.transformers.version import RELEASES

__all__ = ["RELEASES", "plan", "tensor_bytes"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return what transformers holds for a sequence.

    Raises:
        UnsupportedError: what transformers refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    if deployment.dtype != "auto":
        model = msgspec.structs.replace(model, dtype=deployment.dtype)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    settings = resolve(model, deployment, notes)
    number = settings.release.major, settings.release.minor, settings.release.patch
    newer = RELEASES.read(deployment.engine_version).newer
    check_served(model, __package__, "transformers", number, notes, newer=newer)
    settings = _own_cache(model, settings, notes)
    held = as_held(model, settings, notes)
    if settings.cache == "paged":
        return plan_paged(held, settings, notes)
    quantization = None
    if settings.cache == "quantized":
        quantization = quantization_of(settings.arguments, settings)
        check_quantized(held, quantization, settings)
    layers = _layers(held, settings, quantization)
    counted = sum(run.count * counters(run, settings, held.architecture) for run in held.layers)
    host: tuple[HostPart, ...] = ()
    if settings.offloaded:
        layers, host = resident(layers, held, settings, notes)
    pools = _pools(layers)
    if not pools:
        raise UnsupportedError(
            f"transformers keeps no cache for {model.name}: its layers keep nothing",
            hint="use --engine none to see what its layers are",
        )
    notes.extend(explain(held, settings, quantization, counted * COUNTER_BYTES))
    dtype = quantization.dtype if quantization else None
    return CachePlan(
        engine="transformers",
        engine_version=str(settings.release),
        model=model.name,
        kv_cache_dtype=dtype or held.dtype,
        model_dtype=held.dtype,
        block_size=None,
        ranks=(
            Rank(
                name="rank",
                share=held,
                pools=pools,
                multiplicity=settings.tp,
                fixed_bytes=counted * COUNTER_BYTES,
            ),
        ),
        split="fungible",
        start="never_checks",
        max_model_len=settings.max_model_len,
        host=(processes(settings.tp), *host),
        notes=tuple(notes),
        unsupported=not_modelled(held, settings, quantization),
        convention=convention(held, settings, quantization),
        source=f"transformers {settings.release}: cache_utils.py, generation/utils.py",
    )


def _own_cache(model: ModelSpec, settings: Settings, notes: list[str]) -> Settings:
    """MiniMax-01 takes no other cache than its own, which grows (MiniMaxCache)."""
    if not any(isinstance(cache, LightningAttention) for _, cache in model.caches()):
        return settings
    if settings.cache in ("quantized", "paged") or settings.offloaded:
        raise UnsupportedError(
            f"{model.name} takes only the cache class of its own, which grows",
            hint="leave cache_implementation out",
        )
    if settings.cache == "static":
        notes.append(
            "the model takes only the cache class of its own: cache_implementation is"
            " ignored, and the cache grows"
        )
    return settings._replace(cache="dynamic")


def _layers(
    model: ModelSpec, settings: Settings, quantization: Quantization | None
) -> list[tuple[LayerRun, list[Part]]]:
    """Return every layer in order with what it keeps."""
    found: list[tuple[LayerRun, list[Part]]] = []
    for run in model.layers:
        if quantization is None:
            parts = parts_of(run, model.dtype, settings)
        else:
            parts = quantized_parts(run.caches[0], model.dtype, quantization, settings)
        found.extend([(run, parts)] * run.count)
    return found


def _pools(layers: list[tuple[LayerRun, list[Part]]]) -> tuple[Pool, ...]:
    """Put what all layers keep by one rule into one pool; bytes of one pool may serve another."""
    payloads: dict[tuple[str, Rule], dict[str, int]] = {}
    counts: dict[tuple[str, Rule], int] = defaultdict(int)
    for _, parts in layers:
        keys = set()
        for part in parts:
            key = (part.name, part.rule)
            keys.add(key)
            payload = payloads.setdefault(key, {})
            for role, size in part.payload:
                payload[role] = payload.get(role, 0) + size
        for key in keys:
            counts[key] += 1
    pools = []
    for (name, rule), payload in payloads.items():
        unit = rule.slots_per_unit * sum(payload.values())
        group = Group(
            name=name, layers=counts[name, rule], rule=rule, payload=payload, unit_bytes=unit
        )
        pools.append(Pool(name=name, groups=(group,), unit_bytes=unit))
    return tuple(pools)


def tensor_bytes(plan: CachePlan, n: int) -> int:
    """Return the sum of `numel() x element_size()` over a cache that n tokens are in, in bytes.

    It is what a program sees that walks `cache.layers`. The memory held is `plan.bytes_held(n)`
    after a step of one token, and `plan.bytes_needed(n)` right after a prefill of n: tensors that
    are views keep larger storages alive.
    """
    return sum(_visible(rows, n) * rows.slot_bytes for rows in plan.rank.rows())


def _visible(rows: Rows, n: int) -> int:
    match rows.rule:
        case Window(window=window):
            return min(n, window - 1)
        case Chunk():
            return rows.rule.readable(n)
        case Whole():
            return rows.rule.held(n)
    return rows.rule.used(n)


_AT_ONCE = 2
"""Offloaded layers on the GPU at once: the one that computes and the one being fetched."""
_Layer = tuple[LayerRun, list[Part]]


def resident(
    layers: list[_Layer], model: ModelSpec, settings: Settings, notes: list[str]
) -> tuple[list[_Layer], tuple[HostPart, ...]]:
    """Return the layers that the GPU holds at its fullest, one entry a layer, and the host's part.

    Layers with states never leave it; with a static cache, layers with windows stay too. Of the
    others, two neighbours are there at once: the two that need the most at the maximum.

    Args:
        layers: every layer in order, with what it keeps.
        model: whose layers they are.
        settings: which cache, and the maximum.
        notes: a line is added on what the host holds.
    """
    stay = [entry for entry in layers if not _leaves(entry, settings)]
    leave = [entry for entry in layers if _leaves(entry, settings)]
    if len(leave) <= _AT_ONCE:
        notes.append(f"at most two layers of {model.name} are offloaded: none leaves the GPU")
        return layers, ()
    sizes = [_bytes(entry, settings) for entry in leave]
    pairs = [(sizes[i] + sizes[(i + 1) % len(sizes)], i) for i in range(len(sizes))]
    _, first = max(pairs, key=lambda pair: (pair[0], -pair[1]))
    notes.append(
        f"{len(leave)} layers are offloaded: the host holds {format_count(sum(sizes))} B for a"
        f" sequence of {format_count(settings.max_model_len)} tokens, the GPU two of them at a time"
    )
    host = HostPart(
        name="offloaded cache",
        low_bytes=0,
        high_bytes=sum(sizes),
        source=f"cache_implementation: {len(leave)} layers of one sequence of"
        f" {format_count(settings.max_model_len)} tokens",
    )
    return [*stay, leave[first], leave[(first + 1) % len(leave)]], (host,)


def _leaves(entry: _Layer, settings: Settings) -> bool:
    run, parts = entry
    if not parts or all(isinstance(part.rule, Slots) for part in parts):
        return False
    if settings.cache != "static":
        return True
    return not any(isinstance(c.span, (Windowed, Chunks)) for c in run.caches)


def _bytes(entry: _Layer, settings: Settings) -> int:
    n = settings.max_model_len
    return sum(
        part.rule.peak(n) * part.rule.slots_per_unit * sum(size for _, size in part.payload)
        for part in entry[1]
    )


_BATCHES = (
    "sequences of one batch are padded to the longest of them: each then holds as many tokens as"
    " that one"
)


def explain(
    model: ModelSpec, settings: Settings, quantization: Quantization | None, counter_bytes: int
) -> list[str]:
    """Return a line for every rule that moved a number."""
    notes = []
    spans = {type(cache.span) for _, cache in model.caches() if cache.rows()}
    if settings.cache == "dynamic" and spans & {Windowed, Chunks}:
        notes.append(
            "a window of W tokens shows W - 1 and holds W: the older tensor stays alive behind the"
            " view; right after a prefill the whole of its last step stays"
        )
    if Chunks in spans:
        notes.append("chunks are kept as windows of their size; only the mask differs")
    if settings.cache == "static":
        notes.append(
            f"every layer is allocated for {format_count(settings.static_slots)} tokens (a window"
            " for no more than itself) at its first use"
        )
    if any(state.role == "conv" for _, cache in model.caches() for state in cache.states()):
        notes.append(
            "a convolution keeps all K columns, one more than a next token needs; recurrent states"
            " are kept in float32"
        )
    if quantization and quantization.backend != "fp8":
        notes.append(
            f"the prompt is quantised at once, later tokens {quantization.residual} at a time"
            " together with all before them"
        )
    if counter_bytes:
        notes.append(f"{format_count(counter_bytes)} B of counters lie beside the rows")
    return notes


def convention(
    model: ModelSpec, settings: Settings, quantization: Quantization | None
) -> tuple[str, ...]:
    """Return what the rules take for granted, a sentence each."""
    found = ["A sequence is a batch of its own, without padding."]
    if settings.cache == "dynamic":
        found.append(
            "What a sequence holds is what it holds after a step of one token; what it needs is"
            " what is there right after a prefill"
            + (
                f" of {format_count(settings.prompt_tokens)} tokens."
                if settings.prompt_given
                else " of all its tokens."
            )
        )
    if quantization and quantization.backend != "fp8" and not settings.prompt_given:
        found.append("All tokens are those of the prompt, so that all are quantised.")
    if any(isinstance(cache, CrossAttention) for _, cache in model.caches()):
        found.append("The encoder's output has as many tokens as the model takes at most.")
    return tuple(found)


def not_modelled(
    model: ModelSpec, settings: Settings, quantization: Quantization | None
) -> tuple[str, ...]:
    """Return what is not modelled, with the size of the difference."""
    found = [_BATCHES]
    per_token = model.growing_bytes(1)
    if settings.cache == "dynamic":
        widest = max((_row_bytes(model, i) for i in range(len(model.layers))), default=0)
        found.append(
            "a step copies each layer's rows to append to them: for a moment one layer is there"
            f" twice, {format_count(widest * settings.max_model_len)} B at"
            f" {format_count(settings.max_model_len)} tokens"
        )
    if quantization is not None:
        layers = sum(run.count for run in model.layers)
        found.append(
            "a step makes one layer's rows anew in the model dtype:"
            f" {format_count(per_token // layers * settings.max_model_len)} B at"
            f" {format_count(settings.max_model_len)} tokens"
        )
        if quantization.backend != "fp8" and not settings.prompt_given:
            most = (quantization.residual - 1) * per_token
            found.append(
                f"up to {quantization.residual - 1} tokens behind the prompt wait in the model"
                f" dtype: at most {format_count(most)} B (prompt_tokens tells how many)"
            )
    compressed = [c for _, c in model.caches() if isinstance(c, CompressedAttention)]
    if any(cache.overlap for cache in compressed):
        ratio = min(cache.compress_ratio for cache in compressed if cache.overlap)
        found.append(
            f"a sequence of fewer than {ratio} tokens has no folded window yet, which is counted"
            " all the same"
        )
    return tuple(found)


def _row_bytes(model: ModelSpec, index: int) -> int:
    run = model.layers[index]
    one = model.with_layers(1, run.caches)
    return one.growing_bytes(1)


# The quantised cache: K and V in groups of few bits, the newest tokens in the model dtype.
#
# transformers 5.24 cache_utils.py, QuantizedCache with QuantoQuantizedLayer, HQQQuantizedLayer and
# Fp8QuantizedLayer.

_NBITS = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8)}
_THREE_BITS, _TENS = 3, 10
"""hqq packs ten values of 3 bits into an int32 along the group (bitpack.py, pack_3bit_32)."""
_SCALE_BYTES = 4
"""Backend fp8: one float32 scale a tensor, of keys and of values."""


class Quantization(NamedTuple):
    """How K and V are packed.

    Attributes:
        backend: quanto, hqq or fp8.
        nbits: bits an element.
        group: elements that share a scale and a zero point.
        residual: tokens that are quantised together.
    """

    backend: str
    nbits: int
    group: int
    residual: int

    def tensor_bytes(self, elements: int, model_dtype: str) -> int:
        """Return the bytes of so many elements of keys or of values, a whole number of groups."""
        if self.backend == "fp8":
            return elements
        groups = elements // self.group
        data = self.group * self.nbits // 8
        if self.nbits == _THREE_BITS:
            data = 4 * cdiv(self.group, _TENS)
        return groups * (data + 2 * element_bytes(model_dtype))

    @property
    def dtype(self) -> str | None:
        """The name of the cache dtype; None for one that kvcalc has no name for."""
        if self.backend == "fp8":
            return "fp8_e4m3"
        return f"int{self.nbits}_asym_g{self.group}" if self.nbits in (2, 4, 8) else None


def quantization_of(arguments: Arguments, settings: Settings) -> Quantization:
    """Return the backend and its settings; unset ones are those of the layer's class.

    Raises:
        UnknownNameError: no such backend.
        UnsupportedError: what the backend or the release has not, or kvcalc does not model.
    """
    backend = arguments.text("backend") or "quanto"  # generation/utils.py, cache_config
    given = {
        "nbits": arguments.number("nbits"),
        "axis_key": arguments.number("axis_key", 0),
        "axis_value": arguments.number("axis_value", 0),
        "q_group_size": arguments.number("q_group_size"),
        "residual_length": arguments.number("residual_length"),
    }
    if backend == "fp8":
        if not settings.release.quantizes_fp8:
            raise UnsupportedError(
                f"transformers {settings.release} has no backend fp8", hint="5.21 and later have it"
            )
        for name, value in given.items():
            if value is not None:
                raise UnsupportedError(
                    f"the fp8 backend has no {name}", hint="leave it out, or use quanto or hqq"
                )
        return Quantization("fp8", 8, 1, 1)
    if backend not in _NBITS:
        raise UnknownNameError("backend", backend, [*_NBITS, "fp8"])
    nbits, group = given["nbits"] or 4, given["q_group_size"] or 64
    if nbits not in _NBITS[backend]:
        raise UnsupportedError(
            f"{backend} has no {nbits} bits", hint=f"it has {', '.join(map(str, _NBITS[backend]))}"
        )
    for name in ("axis_key", "axis_value"):
        if given[name]:
            raise NotModelledError(
                f"{name} {given[name]}: only groups along axis 0 are modelled", hint="leave it out"
            )
    if group * nbits % 8 and nbits != _THREE_BITS:
        raise UnsupportedError(
            f"groups of {group} elements of {nbits} bits are no whole bytes",
            hint="use a group size of 64",
        )
    return Quantization(backend, nbits, group, given["residual_length"] or 128)


def check_quantized(model: ModelSpec, quantization: Quantization, settings: Settings) -> None:
    """Check that the model has only layers that the quantised cache has.

    Raises:
        UnsupportedError: another kind of layer, or rows that are no whole groups.
    """
    for run in model.layers:
        kinds = [cache.kind for cache in run.caches]
        if len(kinds) != 1 or not isinstance(run.caches[0], (FullAttention, Mla)):
            raise UnsupportedError(
                "QuantizedCache is only for models with nothing but full attention, and"
                f" {model.name} has layers that keep {'+'.join(kinds) or 'nothing'}",
                hint="use the dynamic or the static cache",
            )
        for row in run.caches[0].rows():
            if row.count * row.width % quantization.group:
                raise UnsupportedError(
                    f"{row.count} x {row.width} elements a token are no whole groups of"
                    f" {quantization.group}",
                    hint="choose a q_group_size that divides them",
                )
    if settings.chunk_tokens < min(quantization.residual, settings.prompt_tokens):
        raise NotModelledError(
            f"a prefill in steps of {settings.chunk_tokens} tokens, fewer than are quantised"
            " together, is not modelled",
            hint=f"use a prefill_chunk_size of at least {quantization.residual}",
        )


def quantized_parts(
    cache: Cache, dtype: str, quantization: Quantization, settings: Settings
) -> list[Part]:
    """Return what one layer keeps: quantised tokens, newer ones, and scales of whole tensors."""
    rows = [(row.role, row.count * row.width) for row in cache.rows()]
    packed = tuple((role, quantization.tensor_bytes(n, dtype)) for role, n in rows)
    if quantization.backend == "fp8":
        scales = (("scale", _SCALE_BYTES * len(rows)),)
        return [
            Part("every token", Grow(block_tokens=1), packed),
            Part("scales", Slots(), scales),
        ]
    if not settings.prompt_given or quantization.residual == 1:
        return [Part("every token", Grow(block_tokens=1), packed)]
    plain = tuple((role, n * element_bytes(dtype)) for role, n in rows)
    first, step = settings.prompt_tokens, quantization.residual
    settled: Rule = Stepped(first=first, step=step)
    newest: Rule = Stepped(first=first, step=step, rest=True)
    return [
        Part("quantised tokens", settled, packed),
        Part("newest tokens", newest, plain),
    ]
