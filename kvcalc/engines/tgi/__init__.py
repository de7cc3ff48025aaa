"""Engine `tgi`: what Hugging Face's text-generation-inference allocates, to the last block.

Read from source: text-generation-inference at db931fc (2026-01-08, 3.3), its Python server and its
v3 router. Nothing was run.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.capacity import pool_units
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool, Rank
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.every_token import Span, kept_group, spans_of
from kvcalc.engines.tgi.settings import RELEASES, Settings, resolve

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that text-generation-inference makes.

    Raises:
        UnsupportedError: what it refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes: list[str] = []
    settings = resolve(model, deployment, notes)
    shape = shape_of(model, settings, notes)
    page = settings.block * shape.page_token_bytes
    group = kept_group(shape.spans, shape.payload, settings.block, page)
    pool = Pool(
        name="blocks",
        groups=(group,),
        unit_bytes=group.unit_bytes,
        units=num_blocks(settings, group.unit_bytes, notes),
        reserved_units=1,  # block 0: backends/v3/src/block_allocator.rs and radix.rs
    )
    if any(span.limit is not None for span in shape.spans):
        notes.append("every layer keeps every token: windows save nothing")
    if not settings.length_given:
        notes.append(SHRINKS)
    return CachePlan(
        engine="tgi",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.kv_dtype,
        block_size=settings.block,
        ranks=(Rank(name="rank", pools=(pool,), multiplicity=settings.tp),),
        split="one_pool",
        max_model_len=settings.max_model_len,
        max_sequences=settings.max_batch_size,
        reuse_tokens=settings.block if settings.prefix_caching else None,
        report="tokens",
        check_spares_reserved=False,  # max_total_tokens is compared with all blocks, block 0 too
        notes=tuple(notes),
        unsupported=_NOT_MODELLED,
        convention=_convention(settings, shape),
        source=f"text-generation-inference {settings.version}: {_SOURCE}",
    )


_NOT_MODELLED = (
    "TGI's rules were read in its source (db931fc), not compared with a running server",
    "CUDA graphs and adapters (LoRA) take memory of their own beside the blocks",
)
_SOURCE = (
    "server/text_generation_server/models/flash_causal_lm.py, warmup and init_kv_cache;"
    " layers/attention/kv_cache.py, KVCache"
)


def _convention(settings: Settings, shape: Shape) -> tuple[str, ...]:
    memory = (
        "The bytes given are those of all blocks: what is free after the warm-up, less 1 -"
        f" {settings.wiggle_room:g} of the whole card, and the warm-up batch's own blocks."
    )
    admission = (
        "A request gets the blocks of its prompt and of all tokens that it may generate but the"
        " last when it is admitted, not as it grows."
    )
    heads = f"{format_count(shape.heads)} KV heads of {format_count(shape.width)} elements"
    return (
        memory,
        admission,
        "Block 0 is kept for health checks; the start-up check counts it all the same.",
        f"A rank keeps {heads}, K and V alike.",
    )


# What TGI logs when it has counted its blocks, and how it refuses a maximum that is too long.
#
# server models/flash_causal_lm.py, warmup; backends/v3/src/lib.rs, connect_backend and V3Error.

SHRINKS = "max_total_tokens is not given: TGI takes the blocks' tokens where those are fewer"


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines that a start with blocks of so many bytes logs.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: bytes of all blocks; None where the settings fix them.
    """
    block = plan.block_size or 1
    (blocks,) = pool_units(plan, plan.rank, kv_cache_bytes)
    told = [f"KV-cache blocks: {blocks}, size: {block}"]
    if plan.max_model_len > blocks * block and SHRINKS not in plan.notes:
        told.append(f"Not enough memory to handle `max_total_tokens={plan.max_model_len}`")
    else:
        told.append(f"Setting max batch total tokens to {blocks * block}")
    return tuple(told)


# Blocks from the memory that a warm-up leaves, as TGI counts them.
#
# server models/flash_causal_lm.py, warmup; utils/import_utils.py, get_cuda_free_memory; the batch
# itself: backends/v3/src/client/grpc_client.rs, warmup. At db931fc.


def warm_up_blocks(settings: Settings) -> int:
    """Return the blocks of the largest batch that can be prefilled, which is run at the start.

    Raises:
        UnsupportedError: its size was not given; the launcher derives it from the card's compute.
    """
    left = settings.max_prefill_tokens
    if left is None:
        raise NotModelledError(
            "free_memory is what a warm-up batch leaves, and its size is not known",
            hint="give max_batch_prefill_tokens as TGI logs it",
        )
    blocks = requests = 0
    while left > 0:
        prompt = min(left, settings.max_input_tokens or left)
        # A request may grow to the maximum where one was given, and by one token otherwise; the
        # last token is never cached.
        tokens = settings.max_model_len - 1 if settings.length_given else prompt
        blocks += cdiv(tokens, settings.block)
        left -= prompt
        requests += 1
        if requests == settings.max_batch_size:
            break
    return blocks


def num_blocks(settings: Settings, block_bytes: int, notes: list[str]) -> int | None:
    """Return the blocks; None where the free memory was not told.

    Raises:
        UnsupportedError: what else the count needs was not given.
    """
    free, total = settings.free_memory, settings.total_memory
    if free is None:
        return None
    if total is None:
        raise NotModelledError(
            "a share of the whole card is kept free, and its size is not known",
            hint="give total_memory, in bytes",
        )
    warm = warm_up_blocks(settings)
    share = settings.memory_fraction * settings.wiggle_room
    usable = max(0, free - (1 - share) * total)  # floating point, as TGI computes it
    blocks = int(usable // block_bytes) + warm
    kept = format_count(int((1 - share) * total))
    notes.append(f"{kept} B of the card are kept free: 1 - {share:g} of all of it")
    notes.append(f"{format_count(warm)} blocks are those of the warm-up batch")
    return blocks


# The one shape that all layers of a model have in TGI's cache.
#
# K and V of as many heads, each as wide as a K head: FlashCausalLM.__init__ and warmup in
# models/flash_causal_lm.py, KVCache in layers/attention/kv_cache.py, at db931fc.

_NOPE, _LATENT_V = 128, 128
"""Elements of a DeepSeek-V2 or V3 head without rotary position, and of its V, as published."""
_PADDED = 192
"""max(128 + 64, 128): get_model asks for `qk_nope_dim` and `qk_rope_dim`, which no config has, so
that the defaults hold."""


class Shape(NamedTuple):
    """One rank's layers.

    Attributes:
        heads: KV heads on a rank.
        width: elements of a head of K, and of V.
        payload: bytes of one token of one layer by role, padding left out.
        page_token_bytes: bytes of one token of one layer, padding included.
        spans: layers by how many tokens they read.
    """

    heads: int
    width: int
    payload: dict[str, int]
    page_token_bytes: int
    spans: tuple[Span, ...]


def shape_of(model: ModelSpec, settings: Settings, notes: list[str]) -> Shape:
    """Return the shape of a rank's layers.

    Raises:
        UnsupportedError: kinds of layers, or layers of different shapes, that TGI has no cache for;
            heads that it cannot split.
    """
    found: set[tuple[int, int, int]] = set()
    caches: list[tuple[int, Cache]] = []
    latent = False
    for count, cache in model.caches():
        match cache:
            case Mla():
                found.add(_latent_heads(model, cache))
                latent = True
            case FullAttention() | SlidingWindow():
                if cache.v_head_dim not in (None, cache.head_dim):
                    raise _refused(model, "V as wide as K")
                found.add((cache.num_kv_heads, cache.head_dim, cache.head_dim))
            case _:
                raise UnsupportedError(
                    f"TGI has no block cache for {cache.kind} layers",
                    hint="use --engine none to see what the layers are",
                )
        caches.append((count, cache))
    if len(found) != 1:
        raise _refused(model, "one shape for all layers")
    ((total, k, v),) = found
    width = max(_PADDED, v) if latent else k
    heads = _heads(model, total, settings)
    size = settings.element_bytes
    part = settings.block // size
    if settings.attention == "paged" and width % part:
        raise UnsupportedError(
            f"paged attention keeps K in parts of {part} elements and a head has {width}",
            hint="attention_backend: flashdecoding",
        )
    if latent:
        notes.append(
            f"MLA is kept decompressed: K of {k} and V of {v} elements a head, both in {width}"
        )
    return Shape(
        heads=heads,
        width=width,
        payload={"k": heads * k * size, "v": heads * v * size},
        page_token_bytes=2 * heads * width * size,
        spans=spans_of(caches),
    )


def _latent_heads(model: ModelSpec, cache: Mla) -> tuple[int, int, int]:
    if model.num_attention_heads is None or cache.qk_rope_head_dim != _PADDED - _NOPE:
        raise NotModelledError(
            f"TGI keeps MLA decompressed, and {model.name}'s heads are not known",
            hint="use --engine none to see what the layers are",
        )
    return model.num_attention_heads, _NOPE + cache.qk_rope_head_dim, _LATENT_V


def _heads(model: ModelSpec, total: int, settings: Settings) -> int:
    """Return a rank's KV heads: the total divided and rounded down, a single one replicated.

    FlashCausalLM rounds down. What does not divide fails all the same: in the model's own code
    (flash_llama_modeling.py and others) or when the weights are split (weights.py, get_sharded).
    """
    tp = settings.tp
    if model.num_attention_heads is not None:
        divide(model.num_attention_heads, tp, "attention heads")
    if tp == 1 or (total == 1 and settings.served.replicates):
        return total
    if total // tp == 0:
        raise UnsupportedError(
            f"TGI rounds {total} KV heads over {tp} ranks down to none and refuses that",
            hint=f"choose at most {total} ranks; TGI does not repeat heads",
        )
    return divide(total, tp, "KV heads")


def _refused(model: ModelSpec, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"TGI's blocks have {wanted}, and {model.name} has not",
        hint="use --engine none to see what its layers are",
    )
