"""Engine `mlc-llm`: what MLC-LLM's serving engine allocates, to the last page.

Read from source: mlc-llm at 79d603f (2026-07-23) and TVM's paged_kv_cache.cc, attn_utils.h and
rnn_state.cc as it builds them. Nothing was run.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from kvcalc.core.attention import ChunkedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.capacity import pool_units
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.core.rules import Slots, Window
from kvcalc.core.units import cdiv, format_count, format_number_of
from kvcalc.engines.every_token import Span, kept_group, spans_of
from kvcalc.engines.mlc_llm.models import Compiled, compiled
from kvcalc.engines.mlc_llm.settings import PAGE, RELEASES, Settings, resolve

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that MLC-LLM makes.

    Raises:
        UnsupportedError: what it refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes: list[str] = []
    found = compiled(model)
    shape = shape_of(model, found, deployment.tensor_parallel_size)
    settings = resolve(model, deployment, found, shape.window, notes)
    model = msgspec.structs.replace(model, dtype=settings.dtype, kv_cache_dtype=None)
    if shape.window is not None and settings.sinks:
        raise NotModelledError(
            f"pages of a window that keeps the first {settings.sinks} tokens are not modelled",
            hint="attention_sink_size=0 in engine_args",
        )
    total = total_tokens(settings, shape, notes)
    length = settings.max_model_len
    if total is not None and deployment.max_model_len is None and total < length:
        length = total
        notes.append("a sequence is no longer than the cache that all share")
    pages = _pages(settings, shape, total)
    states = _states(model, settings)
    if states is not None and total is None:
        raise NotModelledError(
            "pages beside states are known only where their number is",
            hint="give max_total_sequence_length in engine_args",
        )
    notes.append(mode_note(settings, total))
    notes.extend(_moved(settings, shape, pages))
    return CachePlan(
        engine="mlc-llm",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.dtype,
        model_dtype=settings.dtype,
        block_size=PAGE,
        ranks=(
            Rank(
                name="rank",
                pools=(pages,) if states is None else (pages, states),
                multiplicity=settings.tp,
            ),
        ),
        split="bytes" if total is None else "fixed",
        max_model_len=length,
        max_sequences=min(settings.sequences, settings.chunk),
        reuse_tokens=1 if settings.prefix_caching and not (states or shape.window) else None,
        report="tokens",
        notes=tuple(notes),
        unsupported=_not_modelled(total),
        convention=(_BUDGET, _ADMISSION),
        source="MLC-LLM 79d603f: cpp/serve/config.cc, EstimateMemoryUsageOnMode; TVM"
        " src/runtime/vm/paged_kv_cache.cc, paged_attention_kv_cache_create",
    )


def _pages(settings: Settings, shape: Shape, total: int | None) -> Pool:
    """Return the pool of pages: the tokens' own, one more, and two a sequence where it slides."""
    size = element_bytes(settings.dtype)
    payload = shape.payload(size)
    page = PAGE * sum(payload.values())
    if shape.window is None:
        group = kept_group(shape.spans, payload, PAGE, page)
    else:
        group = Group(
            name="window",
            layers=shape.layers,
            rule=Window(block_tokens=PAGE, window=shape.window, extra_blocks=1),
            payload={role: shape.layers * b for role, b in payload.items()},
            unit_bytes=shape.layers * page,
            block_size=PAGE,
        )
    spare = 1 + (2 * settings.sequences if shape.window is not None else 0)
    return Pool(
        name="pages",
        groups=(group,),
        unit_bytes=group.unit_bytes,
        units=None if total is None else cdiv(total, PAGE),
        reserved_units=spare,
        reserved_is_extra=True,
        check_unit_bytes=int(PAGE * token_price(shape)),  # 16 x 1.25 B is a whole number
    )


def _states(model: ModelSpec, settings: Settings) -> Pool | None:
    """Return the slots of states: one a sequence and one for each that the prefix cache keeps."""
    found = states_of(model)
    if found is None:
        return None
    unit = sum(found.payload.values())
    group = Group(
        name="state", layers=found.layers, rule=Slots(), payload=found.payload, unit_bytes=unit
    )
    return Pool(
        name="states",
        groups=(group,),
        unit_bytes=unit,
        units=settings.sequences + settings.recycled,
        reserved_units=settings.recycled,
    )


def _moved(settings: Settings, shape: Shape, pages: Pool) -> list[str]:
    spare = format_number_of(pages.reserved_units, "page")
    lines = [f"{spare} more than the tokens need"]
    if shape.window is None and any(span.limit is not None for span in shape.spans):
        lines.append("every layer keeps every token: windows and chunks save nothing")
    if shape.latent:
        lines.append("the estimate prices an MLA row twice, as K and V; the pages hold it once")
    if settings.dtype == "float32":
        lines.append("the estimate prices K and V as float16; the pages hold float32")
    return lines


_BUDGET = (
    "The bytes given are what gpu_memory_utilization (0.85) of the card leaves after the weights,"
    " twice the temporary buffer and the workspaces; a token is priced at 1.25 B above its rows."
)
_ADMISSION = (
    "Sequences hold no more tokens together than max_total_sequence_length; a prefill starts when"
    " a page and eight tokens are left for each sequence."
)
_ROUNDING = (
    "bytes are counted in whole pages: MLC-LLM rounds the tokens that fit up to a page, and makes"
    " no more than its most sequences can hold at their longest"
)


def _not_modelled(total: int | None) -> tuple[str, ...]:
    read = "MLC-LLM's rules were read in its source (79d603f), not compared with a running engine"
    return (read,) if total is not None else (read, _ROUNDING)


_NOTE = "engine mode {}: prefill chunks of {} tokens, {} in the cache"
_OPEN = "as many tokens as memory holds"
_READ = re.compile(
    rf"engine mode (\w+): prefill chunks of (\d+) tokens, (\d+ tokens|{_OPEN}) in the cache"
)


def mode_note(settings: Settings, total: int | None) -> str:
    """Return the note that says what of the log the plan has no field for.

    Local and interactive mode prefill no more at once than the cache, or a sequence, can hold.
    """
    chunk = settings.chunk
    if settings.mode != "server":
        limits = (chunk, total, settings.max_model_len)
        chunk = min(limit for limit in limits if limit is not None)
    return _NOTE.format(settings.mode, chunk, _OPEN if total is None else f"{total} tokens")


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the line that says what the engine decided.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: what is left for pages; None where the settings fix them.
    """
    told = next(found for note in plan.notes if (found := _READ.fullmatch(note)))
    mode, chunk, said = told.groups()
    total = said.removesuffix(" tokens")
    if said == _OPEN:
        units, *_ = pool_units(plan, plan.rank, kv_cache_bytes)
        total = str(units * (plan.block_size or 1))
    decided = (
        f'The actual engine mode is "{mode}". So max batch size is {plan.max_sequences}, max KV'
        f" cache token capacity is {total}, prefill chunk size is {chunk}."
    )
    return (decided,)


_LOCAL_TOKENS = 8192
_MIB = 2**20


class Parts(NamedTuple):
    """Bytes beside the weights as MLC-LLM estimates them, in floating point as there."""

    token: float
    aux: float
    model: float
    logits: float


def token_price(shape: Shape) -> float:
    """Return what a token is priced at: K and V of 2 bytes an element, and 1.25 B of page table.

    An MLA row is priced as if K and V were apart, and a float32 cache as if it were float16.
    """
    return shape.head_dim * shape.heads * shape.layers * 4 + 1.25


def parts_of(settings: Settings, shape: Shape) -> Parts | None:
    """Return the estimate; None where the size of the vocabulary was not told."""
    if settings.vocab_size is None:
        return None
    seqs, chunk, dim = settings.sequences, settings.chunk, shape.head_dim
    hidden = dim * shape.query_heads
    aux = (seqs + 1) * 88 + chunk * (shape.query_heads + 1) * 8
    aux += chunk * dim * (shape.query_heads + shape.heads) * 4 + 48 * _MIB
    return Parts(
        token=token_price(shape),
        aux=aux,
        model=chunk * 4 + seqs * 4 + (chunk * 2 + seqs) * hidden * 2,
        logits=seqs * 20 + seqs * settings.vocab_size * 16.125,
    )


def total_tokens(settings: Settings, shape: Shape, notes: list[str]) -> int | None:
    """Return max_total_sequence_length; None where it depends on bytes that were not told.

    Raises:
        UnsupportedError: the card does not hold the weights and workspaces.
    """
    if settings.total is not None:
        return settings.total
    found = _fitting(settings, shape)
    limits: tuple[int | None, ...]
    longest = settings.max_model_len if settings.context is not None else None
    match settings.mode:
        case "local":
            limits = (found, longest, _LOCAL_TOKENS)
        case "interactive":
            limits = (found, longest, None)
        case _ if found is None:
            return None
        case _:
            many = settings.sequences * longest if longest is not None else None
            limits = (found, many, None)
    total = min((limit for limit in limits if limit is not None), default=None)
    if total is None:
        return None
    notes.append(f"mode {settings.mode} gives the cache {format_count(total)} tokens in all")
    if found is None:
        notes.append("the card is taken to hold them: what it has for them was not told")
    elif total < found:
        notes.append(f"memory would do for {format_count(found)}")
    return total


def _fitting(settings: Settings, shape: Shape) -> int | None:
    """Return the tokens that the card holds; None where something of the estimate was not told."""
    parts = parts_of(settings, shape)
    if parts is None or settings.memory is None or settings.params_bytes is None:
        return None
    temporary = 2 * settings.temp_buffer_bytes
    usable = settings.memory * settings.utilization
    left = usable - settings.params_bytes - temporary - parts.aux - parts.model - parts.logits
    tokens = int(left / parts.token)
    if tokens <= 0:
        buffers = temporary + parts.aux + parts.model + parts.logits
        raise UnsupportedError(
            "Insufficient GPU memory error: The available single GPU memory is"
            f" {usable / _MIB:.3f} MB, which is less than the sum of model weight size"
            f" ({settings.params_bytes / _MIB:.3f} MB) and temporary buffer size"
            f" ({buffers / _MIB:.3f} MB)",
            hint="raise gpu_memory_utilization, use more ranks or a smaller prefill_chunk_size",
        )
    return tokens


# The layers of a model as MLC-LLM's paged cache and its RNN state keep them.
#
# TVM src/runtime/vm/attn_utils.h, GetKVCacheShape, and rnn_state.cc, as MLC-LLM 79d603f builds
# them.


class Shape(NamedTuple):
    """One rank's layers.

    Attributes:
        heads, query_heads: KV heads and query heads on a rank.
        head_dim: elements of a head of K; of the whole latent row in MLA.
        latent: K and V are one row.
        spans: layers by how many tokens they read.
        window: the one window of the whole cache; None where it has none.
    """

    heads: int
    query_heads: int
    head_dim: int
    latent: bool
    spans: tuple[Span, ...]
    window: int | None

    @property
    def layers(self) -> int:
        """Layers that keep pages."""
        return sum(span.layers for span in self.spans)

    def payload(self, size: int) -> dict[str, int]:
        """Return the bytes of one token of one layer, by role, at `size` bytes an element."""
        row = self.heads * self.head_dim * size
        return {"latent": row} if self.latent else {"k": row, "v": row}


class States(NamedTuple):
    """What the layers with states keep of one sequence, by role, in bytes."""

    layers: int
    payload: dict[str, int]


def shape_of(model: ModelSpec, found: Compiled, tp: int) -> Shape:
    """Return the one shape of all layers that keep pages.

    Raises:
        UnsupportedError: kinds of layers, or layers of different shapes, that the cache has not;
            heads that cannot be split.
    """
    (total, width, latent), spans = _one_shape(model)
    if model.num_attention_heads is None:
        raise _refused(model, "a known number of query heads")
    if tp > 1 and not found.splits:
        raise UnsupportedError(
            f"MLC-LLM does not split {model.architecture} models over ranks",
            hint="use tensor_parallel_size 1",
        )
    limits = {span.limit for span in spans}
    window = None
    if found.windows == "whole" and limits != {None}:
        if len(limits) > 1:
            raise _refused(model, "one window for all layers")
        (window,) = limits
    return Shape(
        heads=total if latent else divide(total, tp, "KV heads"),
        query_heads=divide(model.num_attention_heads, tp, "attention heads"),
        head_dim=width,
        latent=latent,
        spans=spans,
        window=window,
    )


def _one_shape(model: ModelSpec) -> tuple[tuple[int, int, bool], tuple[Span, ...]]:
    """Return (KV heads, elements of a row, it is a latent) and the spans of the layers."""
    shapes: set[tuple[int, int, bool]] = set()
    caches: list[tuple[int, Cache]] = []
    for count, cache in model.caches():
        match cache:
            case Mla():
                shapes.add((1, cache.kv_lora_rank + cache.qk_rope_head_dim, True))
            case FullAttention() | SlidingWindow() | ChunkedAttention():
                if cache.v_head_dim not in (None, cache.head_dim):
                    raise _refused(model, "V as wide as K")
                shapes.add((cache.num_kv_heads, cache.head_dim, False))
            case GatedDeltaNet():
                continue
            case _:
                raise UnsupportedError(
                    f"MLC-LLM's paged cache has no {cache.kind} layers",
                    hint="use --engine none to see what the layers are",
                )
        caches.append((count, cache))
    if len(shapes) != 1:
        raise _refused(model, "one shape for all layers")
    return next(iter(shapes)), spans_of(caches)


def states_of(model: ModelSpec) -> States | None:
    """Return what a sequence keeps in states; None where no layer has any.

    qwen35_model.py, create_rnn_state: the recurrent state in float32, the convolution's window in
    the dtype that the model is compiled to.
    """
    layers, payload = 0, dict[str, int]()
    for count, cache in model.caches():
        if isinstance(cache, GatedDeltaNet):
            layers += count
            for state in cache.states():
                size = element_bytes("float32" if state.role == "recurrent" else model.dtype)
                bytes_ = count * state.elements * size
                payload[state.role] = payload.get(state.role, 0) + bytes_
    return States(layers, payload) if layers else None


def _refused(model: ModelSpec, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"MLC-LLM's paged cache has {wanted}, and {model.name} has not",
        hint="use --engine none to see what its layers are",
    )
