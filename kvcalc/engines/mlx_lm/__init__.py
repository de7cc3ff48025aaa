"""Engine `mlx-lm`: what the caches of Apple's mlx-lm hold, to the byte.

Every layer says what it keeps by which rule (`layers`, `states`); which class of mlx-lm runs the
model decides how windows and latents are kept (`architectures`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import msgspec

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.core.rules import Form, Grow, Ring, Rule, Slots
from kvcalc.core.units import format_count
from kvcalc.engines.mlx_lm.settings import RELEASES, STEP, Settings, resolve

__all__ = ["RELEASES", "plan"]


# mlx-lm's model classes: which make caches of their own, and what is special about those.
#
# mlx-lm 0.32.2 models/*.py (make_cache), utils.py (MODEL_REMAPPING).


class Class(NamedTuple):
    """What a model class does that decides its caches.

    Attributes:
        own: it has make_cache, so that max_kv_size changes nothing.
        rings: its sliding windows are rotating caches.
        lists: several caches a layer lie in a CacheList, which is never quantised.
        expands: an MLA layer keeps K and V of every head.
        dense_only: its attention cannot read a quantised cache.
        index_copies: how often an indexer's key is kept.
    """

    own: bool = False
    rings: bool = False
    lists: bool = False
    expands: bool = False
    dense_only: bool = False
    index_copies: int = 1


_PLAIN = Class()
_OWN = Class(own=True)
_RINGS = Class(own=True, rings=True)
_SINKS = Class(own=True, rings=True, dense_only=True)
_DENSE = Class(dense_only=True)
_EXPANDS = Class(expands=True)
_LISTS = Class(own=True, lists=True)
_SPARSE = Class(own=True, lists=True, index_copies=2)
"""The indexer's keys are put in as values too, which are then zeroed and kept (deepseek_v32.py)."""
_CLASSES = {
    _PLAIN: (
        "ApertusForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM CohereForCausalLM"
        " DbrxForCausalLM DeepseekForCausalLM DeepseekV3ForCausalLM Ernie4_5ForCausalLM"
        " Ernie4_5_MoeForCausalLM ExaoneForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM"
        " GPTJForCausalLM GPTNeoXForCausalLM GemmaForCausalLM GlmForCausalLM Glm4ForCausalLM"
        " Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GraniteForCausalLM GraniteMoeForCausalLM"
        " HeliumForCausalLM HunYuanDenseV1ForCausalLM HunYuanForCausalLM HunYuanMoEV1ForCausalLM"
        " InternLM2ForCausalLM InternLM2ForRewardModel InternLM3ForCausalLM"
        " KimiK25ForConditionalGeneration KimiVLForConditionalGeneration MiMoForCausalLM"
        " MiniCPMForCausalLM MiniMaxM2ForCausalLM MixtralForCausalLM NemotronForCausalLM"
        " Olmo2ForCausalLM OlmoForCausalLM OlmoeForCausalLM OpenELMForCausalLM Phi3ForCausalLM"
        " PhiForCausalLM PhiMoEForCausalLM PhimoeForCausalLM QWenLMHeadModel Qwen2ForCausalLM"
        " Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration"
        " Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3VLForConditionalGeneration"
        " Qwen3VLMoeForConditionalGeneration SeedOssForCausalLM SmolLM3ForCausalLM"
        " Starcoder2ForCausalLM"
        " LlavaForConditionalGeneration Mistral3ForConditionalGeneration"
    ),
    _DENSE: "Gemma2ForCausalLM Phi3SmallForCausalLM StableLmForCausalLM StableLMEpochForCausalLM",
    _EXPANDS: "DeepseekV2ForCausalLM",
    _OWN: (
        "DeciLMForCausalLM FalconMambaForCausalLM GraniteMoeHybridForCausalLM JambaForCausalLM"
        " KimiK3ForConditionalGeneration KimiLinearForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM"
        " Lfm2VlForConditionalGeneration Llama4ForCausalLM Llama4ForConditionalGeneration"
        " LLaMAForCausalLM LlamaForCausalLM Mamba2ForCausalLM MambaForCausalLM MistralForCausalLM"
        " MistralModel NemotronHForCausalLM Qwen3NextForCausalLM Qwen3_5ForCausalLM"
        " Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration"
        " RWKV7ForCausalLM XverseForCausalLM BailingMoeLinearV2ForCausalLM"
    ),
    _RINGS: (
        "Cohere2ForCausalLM Exaone4ForCausalLM Gemma3ForCausalLM"
        " Gemma3ForConditionalGeneration Gemma3TextModel Gemma3nForCausalLM"
        " Gemma3nForConditionalGeneration Gemma4ForCausalLM"
        " Gemma4ForConditionalGeneration LagunaForCausalLM MiMoV2FlashForCausalLM"
        " Ministral3ForCausalLM Olmo3ForCausalLM RecurrentGemmaForCausalLM Step3p5ForCausalLM"
    ),
    _SINKS: "GptOssForCausalLM",
    _LISTS: ("FalconH1ForCausalLM LongcatFlashForCausalLM MiniMaxM3SparseForConditionalGeneration"),
    _SPARSE: "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM",
}
_BY_NAME = {name: kind for kind, names in _CLASSES.items() for name in names.split()}


def class_of(model: ModelSpec) -> Class:
    """Return what mlx-lm's class for a model does; plain caches where only layers are known.

    Raises:
        UnsupportedError: an architecture that mlx-lm has no class for, or that was not read; layers
            alone that keep windows.
    """
    name = model.architecture
    if name is not None and name in _BY_NAME:
        return _BY_NAME[name]
    if name is not None:
        raise NotModelledError(
            f"mlx-lm has no class for {name}, or none that was read",
            hint="use --engine none to see what its layers are",
        )
    if any(isinstance(cache, SlidingWindow) for _, cache in model.caches()):
        raise NotModelledError(
            "which mlx-lm class runs these layers is not known, and classes keep windows in"
            " different ways",
            hint="give a model with an architecture",
        )
    return _PLAIN


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return what mlx-lm holds for a sequence.

    Raises:
        UnsupportedError: what mlx-lm refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    if deployment.dtype != "auto":
        model = msgspec.structs.replace(model, dtype=deployment.dtype)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    settings = resolve(model, deployment, notes)
    kind = class_of(model)
    if kind.dense_only and settings.quantizes:
        raise UnsupportedError(
            f"mlx-lm's attention of {model.architecture} cannot read a quantised cache (it fails at"
            " the next token)",
            hint="leave kv_bits out",
        )
    pools = _pools(model, settings)
    if not pools:
        raise UnsupportedError(
            f"mlx-lm keeps no cache for {model.name}: its layers keep nothing",
            hint="use --engine none to see what its layers are",
        )
    rules = {group.rule for pool in pools for group in pool.groups}
    notes.extend(explain(model, settings, rules))
    packed = settings.quantizes and not kind.lists
    return CachePlan(
        engine="mlx-lm",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=f"int{settings.bits}_asym_g{settings.group}" if packed else model.dtype,
        model_dtype=model.dtype,
        block_size=None,
        ranks=(Rank(name="rank", pools=pools),),
        split="fungible",
        max_model_len=settings.max_model_len,
        notes=tuple(notes),
        unsupported=not_modelled(model, settings),
        convention=convention(model, settings),
        source=f"mlx-lm {settings.version}: models/cache.py, generate.py",
    )


def _pools(model: ModelSpec, settings: Settings) -> tuple[Pool, ...]:
    """Return a pool for every rule, all layers that follow it together."""
    sizes: dict[tuple[str, Rule], dict[str, int]] = defaultdict(dict)
    layers: dict[tuple[str, Rule], int] = defaultdict(int)
    for run in model.layers:
        rules_of_run = set()
        for part in parts_of(run, model, settings):
            key = (part.name, part.rule)
            rules_of_run.add(key)
            for role, size in part.payload:
                sizes[key][role] = sizes[key].get(role, 0) + run.count * size
        for key in rules_of_run:
            layers[key] += run.count
    pools = []
    for (name, rule), payload in sizes.items():
        unit = rule.slots_per_unit * sum(payload.values())
        group = Group(
            name=name, layers=layers[name, rule], rule=rule, payload=payload, unit_bytes=unit
        )
        pools.append(Pool(name=name, groups=(group,), unit_bytes=unit))
    return tuple(pools)


def explain(model: ModelSpec, settings: Settings, rules: set[Rule]) -> list[str]:
    """Return a line for every rule that moved a number."""
    kind = class_of(model)
    caches = [cache for _, cache in model.caches()]
    windows = any(isinstance(cache, SlidingWindow) for cache in caches)
    told = {
        f"caches grow by {STEP} rows, so that a sequence has up to {STEP - 1} spare": any(
            isinstance(rule, (Grow, Form)) for rule in rules
        ),
        f"a rotating cache has {STEP} rows behind the prompt until its window is full; a step of"
        f" {format_count(settings.prefill_step)} tokens of a prompt lies beside the rows before"
        " it": any(isinstance(rule, Ring) and not rule.spare for rule in rules),
        f"mlx-lm's class for {model.architecture} keeps every token of its windowed layers": (
            windows and not kind.rings
        ),
        "chunks are kept as windows of their size; once they are full, each token copies the chunk"
        f" into a buffer of {STEP} rows more": any(
            isinstance(cache, ChunkedAttention) for cache in caches
        ),
        "MLA layers keep K and V of every head, not the latent": kind.expands,
        "an indexer's key is kept in the model dtype, and once more as values that are zeros;"
        " every layer has an indexer": kind.index_copies > 1,
        "recurrent states are kept in float32": any(
            isinstance(cache, IN_FLOAT32) for cache in caches
        ),
    }
    return [*(line for line, holds in told.items() if holds), *_of_settings(model, settings)]


def _of_settings(model: ModelSpec, settings: Settings) -> list[str]:
    kind = class_of(model)
    notes = []
    if settings.max_kv_size is not None and kind.own:
        notes.append(
            f"max_kv_size changes nothing: mlx-lm's class for {model.architecture} makes caches of"
            " its own"
        )
    elif settings.max_kv_size is not None:
        notes.append(
            f"every layer keeps the last {format_count(settings.max_kv_size)} tokens at most"
            " (max_kv_size); its first 4 are never given up"
        )
    if settings.bits is not None and not settings.quantizes:
        notes.append(
            f"no sequence is quantised: the maximum, {format_count(settings.max_model_len)} tokens,"
            f" is under quantized_kv_start, {format_count(settings.start)}"
        )
    elif settings.quantizes and kind.lists:
        notes.append("kv_bits changes nothing for layers with several caches (CacheList)")
    return notes


def convention(model: ModelSpec, settings: Settings) -> tuple[str, ...]:
    """Return what the rules take for granted, a sentence each."""
    told = settings.prompt_tokens
    found = [
        "A sequence is generated by itself; it holds the `nbytes` of its caches after each token.",
        "All but the last token of a prompt come in steps; "
        + (
            f"the prompt has {format_count(told)} tokens."
            if told is not None
            else "a sequence is taken as all prompt."
        ),
        f"Weights are in {model.dtype}, as a conversion makes them: caches take their dtype.",
    ]
    if settings.quantizes and not class_of(model).lists:
        found.append(
            "What a longer sequence needs has its plain rows in it beside the quantised ones, as"
            " both are there while they are converted."
        )
    return tuple(found)


def not_modelled(model: ModelSpec, settings: Settings) -> tuple[str, ...]:
    """Return what is not modelled, with the size of the difference."""
    widest = max(
        model.with_layers(1, run.caches).growing_bytes(settings.max_model_len)
        for run in model.layers
    )
    batch = (
        "sequences of one batch (server, batch_generate) are padded on the left to the longest of"
        f" them: each holds as many rows as that one, and up to one more step of {STEP}"
    )
    copy = (
        "growing copies each layer's rows: for a moment one layer is there twice,"
        f" {format_count(widest)} B at {format_count(settings.max_model_len)} tokens"
    )
    buffers = "buffers that MLX keeps for reuse and the rounding of its allocator come on top"
    earlier = "the server's prompt cache keeps up to 10 earlier sequences (--prompt-cache-size)"
    return batch, copy, buffers, earlier


_Rows = tuple[tuple[str, int], ...]


class Part(NamedTuple):
    """What one layer keeps by one rule: bytes of a slot by role."""

    name: str
    rule: Rule
    payload: _Rows


def parts_of(run: LayerRun, model: ModelSpec, settings: Settings) -> list[Part]:
    """Return what one layer of a run keeps.

    Raises:
        UnsupportedError: a kind of layer that mlx-lm has not or kvcalc does not model, or what
            mlx-lm refuses to quantise.
    """
    kind = class_of(model)
    found: list[Part] = []
    caches = run.caches
    if kind.index_copies > 1 and not any(isinstance(cache, Indexer) for cache in caches):
        # Layers that borrow another's selection have an indexer of their own here.
        caches += tuple(c for _, c in model.caches() if isinstance(c, Indexer))[:1]
    for cache in caches:
        if cache.states():
            sizes = state_bytes(cache, model)
            found.append(Part("state", Slots(), sizes))
        if cache.rows():
            found += _rows(cache, model, kind, settings)
    return found


def _rows(cache: Cache, model: ModelSpec, kind: Class, settings: Settings) -> list[Part]:
    heads = _elements(cache, model, kind, settings)
    size = element_bytes(model.dtype)
    plain: _Rows = tuple((role, count * width * size) for role, count, width in heads)
    match cache:
        case SlidingWindow(sliding_window=window) if kind.rings:
            return [_ring(f"window {window}", window, plain, settings)]
        case ChunkedAttention(attention_chunk_size=chunk):
            if chunk % STEP:
                raise NotModelledError(
                    f"chunks of {chunk} tokens: only multiples of {STEP} are modelled",
                    hint="use --engine none to see what the layers are",
                )
            rule = Ring(
                window=chunk,
                step=STEP,
                first=settings.first,
                in_flight=settings.prefill_step,
                spare=STEP,
                restarts=True,
            )
            return [Part(f"chunk {chunk}", rule, plain)]
    if settings.max_kv_size is not None and not kind.own:
        return [_ring(f"window {settings.max_kv_size}", settings.max_kv_size, plain, settings)]
    limit = cache.sliding_window if isinstance(cache, SlidingWindow) else None
    name = "every token" if limit is None else f"every token, {limit} read"
    if not settings.quantizes or kind.lists:
        return [Part(name, Grow(block_tokens=STEP, limit=limit), plain)]
    return _two_forms(heads, plain, model, settings)


def _ring(name: str, window: int, rows: _Rows, settings: Settings) -> Part:
    if settings.quantizes:
        raise UnsupportedError(
            "mlx-lm quantises no rotating cache (RotatingKVCache Quantization NYI): it stops at"
            f" {settings.start} tokens",
            hint="leave kv_bits out, or raise quantized_kv_start above the maximum",
        )
    rule = Ring(window=window, step=STEP, first=settings.first, in_flight=settings.prefill_step)
    return Part(name, rule, rows)


def _two_forms(
    heads: list[tuple[str, int, int]], plain: _Rows, model: ModelSpec, settings: Settings
) -> list[Part]:
    """Return a cache that is plain below `start` tokens and quantised from there on."""
    bits, group, start = settings.bits or 0, settings.group, settings.start
    packed: list[tuple[str, int]] = []
    for role, count, width in heads:
        if width % group:
            raise UnsupportedError(
                f"MLX quantises whole groups of {group} elements, and a {role} row has {width}",
                hint="choose a kv_group_size that divides it: 32, 64 or 128",
            )
        packed.append((role, count * width * bits // 8))
        scales = 2 * count * (width // group) * element_bytes(model.dtype)
        packed.append((f"{role}_scale", scales))
    # The cache is looked at after each step, and the first step always finds it plain.
    reach = max(1, -(-start // settings.prefill_step)) * settings.prefill_step
    return [
        Part("quantised", Form(block_tokens=STEP, since=start), tuple(packed)),
        Part("not yet quantised", Form(block_tokens=STEP, until=start, reach=reach), plain),
    ]


def _elements(
    cache: Cache, model: ModelSpec, kind: Class, settings: Settings
) -> list[tuple[str, int, int]]:
    """Return (role, heads, width) of the two arrays that a module hands to its cache."""
    match cache:
        case Mla() if kind.expands:
            return _per_head(cache, model, settings)
        case Mla():
            if settings.quantizes and not kind.lists:
                raise UnsupportedError(
                    "mlx-lm's latent attention cannot read a quantised cache (it fails at the next"
                    " token)",
                    hint="leave kv_bits out",
                )
            return [("latent", 1, cache.kv_lora_rank), ("rope", 1, cache.qk_rope_head_dim)]
        case Indexer(compress_ratio=1) if kind.lists:
            return [("index", 1, kind.index_copies * cache.index_head_dim)]
        case FullAttention() | SlidingWindow() | ChunkedAttention():
            return [(row.role, row.count, row.width) for row in cache.rows()]
    raise NotModelledError(
        f"how mlx-lm keeps {cache.kind} caches is not modelled",
        hint="use --engine none to see what the layers are",
    )


def _per_head(cache: Mla, model: ModelSpec, settings: Settings) -> list[tuple[str, int, int]]:
    nope, v, heads = settings.qk_nope_head_dim, settings.v_head_dim, model.num_attention_heads
    if nope is None or v is None or heads is None:
        raise NotModelledError(
            f"mlx-lm's class for {model.architecture} keeps K and V of every head, and the latent"
            " does not tell their widths",
            hint="give qk_nope_head_dim and v_head_dim of config.json in engine_args",
        )
    return [("k", heads, nope + cache.qk_rope_head_dim), ("v", heads, v)]


# What mlx-lm's ArraysCache holds of a recurrent or convolution layer: bytes by role.
#
# Asked of mlx-lm 0.32.2 for every kind but RWKV and lightning attention, which were read (rwkv7.py,
# bailing_moe_linear.py).

IN_FLOAT32 = (GatedDeltaNet, KimiDeltaAttention, Mamba2)
"""Kinds whose recurrent state is in float32 (gated_delta.py, ssm.py)."""
_IN_MODEL_DTYPE = (Mamba1, RgLru, Rwkv, ShortConv, LightningAttention)


def state_bytes(cache: Cache, model: ModelSpec) -> tuple[tuple[str, int], ...]:
    """Return the bytes of each state of one layer and sequence.

    A convolution keeps the kernel - 1 newest columns in the model dtype.

    Raises:
        UnsupportedError: a kind of state that is not modelled.
    """
    if not isinstance(cache, (*IN_FLOAT32, *_IN_MODEL_DTYPE)):
        raise NotModelledError(
            f"how mlx-lm keeps {cache.kind} states is not modelled",
            hint="use --engine none to see what the layers are",
        )
    found = []
    for state in cache.states():
        wide = state.role == "recurrent" and isinstance(cache, IN_FLOAT32)
        size = element_bytes("float32" if wide else model.dtype)
        found.append((state.role, state.elements * size))
    return tuple(found)
