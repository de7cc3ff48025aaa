"""Engine `exllamav3`: pages for global attention, rings and states by batch slot; read from source.

exllamav3 1.4.1 (4f8ad012, 2026-08-08): cache/*.py, modules/sliding_attn.py, gated_delta_net.py,
short_conv.py, mla_attn.py, dsv4.py. What a layer keeps is in v3_layers, settings in v3_settings.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, Self

import msgspec

from kvcalc.core.attention import (
    CompressedAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, NotModelledError, UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2, ShortConv
from kvcalc.core.rules import Compressed, Grow, Rule, Slots, Whole
from kvcalc.core.units import format_count
from kvcalc.engines.exllama.pages import PAGE, pages_in, shared_pool
from kvcalc.engines.exllama.settings import KNOWN, Arguments, longest, version
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "plan"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the cache that exllamav3 allocates.

    Raises:
        UnsupportedError: what exllamav3 refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    settings = resolve(model, deployment, notes)
    share = on_rank(model, settings.tp)
    layers = [(run.count, kept_of(run, share, settings)) for run in share.layers]
    pools = _pools(layers, settings)
    if not pools:
        raise UnsupportedError(
            f"exllamav3 keeps no cache for {model.name}: its layers keep nothing",
            hint="use --engine none to see what its layers are",
        )
    slots = any(pool.name != "pages" for pool in pools)
    paged = any(pool.name == "pages" for pool in pools)
    length = min(settings.max_model_len, settings.cache_size) if paged else settings.max_model_len
    return CachePlan(
        engine="exllamav3",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.dtype,
        model_dtype="float16",
        block_size=PAGE if paged else None,
        ranks=(Rank(name="rank", pools=pools, multiplicity=settings.tp),),
        split="fixed",
        max_model_len=length,
        max_sequences=settings.batch if slots else None,
        reuse_tokens=PAGE if paged and not slots else None,
        report="tokens",
        notes=(*notes, *explain(share, settings, pools)),
        unsupported=not_modelled(share, settings, slots=slots),
        convention=convention(settings, slots=slots),
        source=f"exllamav3 {settings.version}: cache/, modules/ (read)",
    )


def _pools(layers: list[tuple[int, Kept]], settings: Settings) -> tuple[Pool, ...]:
    """Return the pages of all layers, a ring for every window, and states, a unit a slot."""
    pages: dict[Rule, dict[str, int]] = defaultdict(dict)
    rings: dict[Rule, dict[str, int]] = defaultdict(dict)
    ring_layers: dict[Rule, int] = defaultdict(int)
    states: dict[str, int] = {}
    history = paged_layers = state_layers = 0
    for count, kept in layers:
        for table, parts in ((pages, kept.pages), (rings, kept.rings)):
            for rule, payload in parts:
                for role, size in payload:
                    table[rule][role] = table[rule].get(role, 0) + count * size
        for rule, _ in kept.rings:
            ring_layers[rule] += count
        for role, size in kept.states:
            states[role] = states.get(role, 0) + count * size
        history += count * kept.history
        paged_layers += count * bool(kept.pages)
        state_layers += count * bool(kept.states)
    found = []
    if pages:
        found.append(shared_pool("pages", pages, paged_layers, settings.pages))
    for rule, sizes in rings.items():
        rows = rule.held(0)
        name, units = f"rings of {rows} rows", settings.batch * rows
        found.append(shared_pool(name, {rule: sizes}, ring_layers[rule], units, None))
    if states:
        found.append(_states(states, history, state_layers, settings.batch))
    return tuple(found)


def _states(states: dict[str, int], history: int, layers: int, batch: int) -> Pool:
    unit = sum(states.values()) + history
    group = Group(
        name="state",
        layers=layers,
        rule=Slots(),
        payload=states,
        unit_bytes=unit,
        lookahead_bytes=history,
    )
    return Pool(name="states", groups=(group,), unit_bytes=unit, units=batch)


_GROUP = 32
"""Elements that share an f16 scale."""
_CHANNELS = 128
"""Heads are split over cards in multiples of so many channels (make_tp_allocation)."""
_MLA_SINCE, _DSA_SINCE = (1, 3), (1, 4)
_RINGS = {
    "AfmoeForCausalLM": 0,
    "Gemma4ForConditionalGeneration": 0,
    "Gemma4UnifiedForConditionalGeneration": 0,
    "GptOssForCausalLM": -1,
    "LagunaForCausalLM": 0,
    "Step3p5ForCausalLM": 0,
    "Step3p7ForConditionalGeneration": 0,
}
"""Architectures whose windows are rings (SlidingAttention) -> what is added to the window."""
_OTHERS_NAMES = (
    "ApertusForCausalLM ArceeForCausalLM Cohere2ForCausalLM CohereForCausalLM DeciLMForCausalLM"
    " DeepseekV3ForCausalLM DeepseekV4ForCausalLM Dots1ForCausalLM Ernie4_5_ForCausalLM"
    " Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM Gemma2ForCausalLM"
    " Gemma3ForCausalLM Gemma3ForConditionalGeneration Glm4ForCausalLM Glm4MoeForCausalLM"
    " Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration HCXVisionV2ForCausalLM"
    " HYV3ForCausalLM HyperCLOVAXForCausalLM IQuestCoderForCausalLM Lfm2MoeForCausalLM"
    " LlamaForCausalLM MiMoForCausalLM MiniMaxM2ForCausalLM Ministral3ForCausalLM"
    " Mistral3ForConditionalGeneration MistralForCausalLM MixtralForCausalLM NanoChatForCausalLM"
    " NemotronHForCausalLM Olmo3ForCausalLM OlmoHybridForCausalLM Phi3ForCausalLM"
    " Qwen2ForCausalLM Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM"
    " Qwen3NextForCausalLM Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration"
    " Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM"
    " Qwen3_5MoeForConditionalGeneration SeedOssForCausalLM SmolLM3ForCausalLM"
    " SolarOpenForCausalLM"
)
_OTHERS = frozenset(_OTHERS_NAMES.split())
"""Every other architecture (architecture/*.py, arch_string)."""


class _Heads(NamedTuple):
    heads: int
    width: int


def on_rank(model: ModelSpec, tp: int) -> ModelSpec:
    """Return what one of tp equal cards keeps; latents are on every card.

    Raises:
        UnsupportedError: an architecture that exllamav3 has not, or heads that do not divide.
    """
    name = model.architecture
    if name is not None and name not in _RINGS and name not in _OTHERS:
        raise UnsupportedError(
            f"exllamav3 has no architecture {name}",
            hint="use --engine none to see what its layers are",
        )
    if tp == 1:
        return model
    for _, cache in model.caches():
        if isinstance(cache, (FullAttention, SlidingWindow)) and cache.head_dim < _CHANNELS:
            divide(cache.num_kv_heads * cache.head_dim // _CHANNELS, tp, "sets of 128 channels")
    return model.on_rank(tp, lambda heads, ranks: divide(heads, ranks, "heads"))


def kept_of(run: LayerRun, model: ModelSpec, settings: Settings) -> Kept:
    """Return what one layer of a run keeps.

    Raises:
        UnsupportedError: a kind of cache that exllamav3 has not, or that kvcalc does not model.
    """
    if any(isinstance(cache, (SlidingMla, CompressedAttention)) for cache in run.caches):
        _since(settings, _DSA_SINCE, "DeepSeek-V4's layers")
        return compressed(run.caches)
    found = Kept((), (), (), 0)
    for cache in run.caches:
        found = found.plus(_of(cache, model, settings))
    return found


def _of(cache: Cache, model: ModelSpec, settings: Settings) -> Kept:
    match cache:
        case Mla():
            _since(settings, _MLA_SINCE, "latent attention")
            bits = settings.bits[0] if settings.bits else None
            latent = _row(cache.kv_lora_rank, bits, "a latent")
            rope = cache.qk_rope_head_dim * HALF
            return Kept.paged(Grow(block_tokens=PAGE), (("latent", latent), ("rope", rope)))
        case FullAttention() | SlidingWindow():
            return _heads(cache, model, settings)
        case GatedDeltaNet() | Mamba2():
            conv, recurrent = _conv_and_recurrent(cache)
            columns, channels = conv
            return Kept.state(
                (("conv", (columns + 1) * channels * HALF), ("recurrent", recurrent * 4)),
                settings.history * (channels * HALF + recurrent * 4),
            )
        case ShortConv():
            size = cache.hidden_size * HALF
            return Kept.state((("conv", cache.conv_kernel * size),), settings.history * size)
        case SharedKv():
            return Kept((), (), (), 0)
        case Indexer():
            pass
    raise NotModelledError(
        f"how exllamav3 keeps {cache.kind} caches is not modelled",
        hint="use --engine none to see what the layers are",
    )


def _heads(cache: FullAttention | SlidingWindow, model: ModelSpec, settings: Settings) -> Kept:
    """Return K and V of every head, both as wide as K: in pages, or a window's in a ring."""
    if cache.v_head_dim not in (None, cache.head_dim):
        raise UnsupportedError(
            f"exllamav3's caches have V as wide as K, and {model.name} has not",
            hint="use --engine none to see what its layers are",
        )
    elements = cache.num_kv_heads * cache.head_dim
    if isinstance(cache, SlidingWindow):
        more = _RINGS.get(model.architecture or "")
        if more is not None and not settings.swa_full:
            rule: Rule = Whole(
                slots=ring_rows(cache.sliding_window + more), limit=cache.sliding_window
            )
            size = elements * HALF
            return Kept((), ((rule, (("k", size), ("v", size))),), (), 0)
    limit = cache.sliding_window if isinstance(cache, SlidingWindow) else None
    k_bits, v_bits = settings.bits or (None, None)
    rows: Part = (
        ("k", _row(elements, k_bits, "a token's K")),
        ("v", _row(elements, v_bits, "a token's V")),
    )
    return Kept.paged(Grow(block_tokens=PAGE, limit=limit), rows)


def _row(elements: int, bits: int | None, what: str) -> int:
    """Return the bytes of a row: f16, or 32 elements in `bits` int32 words and one f16 scale."""
    if bits is None:
        return elements * HALF
    if elements % _GROUP:
        raise UnsupportedError(
            f"exllamav3 quantises {_GROUP} elements at a time, and {what} has {elements}",
            hint="leave cache_quant out",
        )
    return elements // _GROUP * (4 * bits + HALF)


def _conv_and_recurrent(cache: GatedDeltaNet | Mamba2) -> tuple[tuple[int, int], int]:
    """Return (kernel - 1, channels) of the convolution, and elements of the recurrent state."""
    conv = (0, 0)
    recurrent = 0
    for state in cache.states():
        if state.role == "conv":
            conv = (state.shape[0], state.shape[1])
        else:
            recurrent = state.elements
    return conv, recurrent


def _since(settings: Settings, line: tuple[int, int], what: str) -> None:
    if settings.line < line:
        first = ".".join(map(str, line))
        raise UnsupportedError(
            f"exllamav3 {settings.version} has no {what}", hint=f"{first} and later have"
        )


_FLOAT = 4


def compressed(caches: tuple[Cache, ...]) -> Kept:
    """Return what one layer keeps: always in float16, whatever cache_quant says.

    Raises:
        UnsupportedError: a ratio that does not divide a page, or another kind of cache beside.
    """
    found = Kept((), (), (), 0)
    for cache in caches:
        match cache:
            case SlidingMla(head_dim=width, sliding_window=window):
                rule = Whole(slots=ring_rows(window), limit=window)
                found = found.plus(Kept((), ((rule, (("nope", width * HALF),)),), (), 0))
            case CompressedAttention(head_dim=width):
                found = found.plus(_entries(cache, "nope", width))
            case Indexer(index_head_dim=width):
                found = found.plus(_entries(cache, "index", width))
            case _:
                raise NotModelledError(
                    f"how exllamav3 keeps {cache.kind} beside compressed entries is not modelled",
                    hint="use --engine none to see what the layers are",
                )
    return found


def _entries(cache: CompressedAttention | Indexer, role: str, width: int) -> Kept:
    """Return one entry for every ratio tokens, and the buffers of its compressor.

    A slot keeps the projected entry and gate of PAGE + ratio tokens, and of overlapping windows
    snapshots of all in a page and two more, in float32; what is live of these are the ratio newest
    tokens and one snapshot.
    """
    ratio = cache.compress_ratio
    if PAGE % ratio:
        raise UnsupportedError(
            f"exllamav3 compresses by ratios that divide {PAGE}, not by {ratio}",
            hint="use --engine none to see what the layers are",
        )
    token = 2 * width * (2 if cache.overlap else 1) * HALF
    live, spare = ratio * token, PAGE * token
    if cache.overlap:
        snapshot = 2 * ratio * width * _FLOAT
        live += snapshot
        spare += (PAGE // ratio + 1) * snapshot
    rule = Compressed(block_entries=PAGE // ratio, ratio=ratio)
    return Kept(((rule, ((role, width * HALF),)),), (), (("compressor", live),), spare)


def explain(model: ModelSpec, settings: Settings, pools: tuple[Pool, ...]) -> tuple[str, ...]:
    """Return a line for every rule that moved a number."""
    caches = [cache for _, cache in model.caches()]
    rings = any(pool.name.startswith("rings") for pool in pools)
    states = next((pool for pool in pools if pool.name == "states"), None)
    slots = rings or states is not None
    conv = states is not None and "conv" in states.groups[0].payload
    recurrent = states is not None and "recurrent" in states.groups[0].payload
    entries = any(isinstance(cache, CompressedAttention) for cache in caches)
    history = states.groups[0].lookahead_bytes if states else 0
    windows = any(isinstance(cache, SlidingWindow) for cache in caches)
    told = {
        f"K and V are kept in float16, whatever the model dtype ({model.dtype})": (
            model.dtype != "float16" and settings.bits is None
        ),
        f"{settings.batch} batch slots are allocated, whether sequences use them or not"
        " (max_batch_size)": slots,
        "a window has a ring of its own in every slot, in float16, two pages longer than itself": (
            rings
        ),
        "windows lie in pages as every token does, and save nothing": windows and not rings,
        "convolutions keep all K columns": conv,
        "recurrent states are in float32": recurrent,
        "compressed entries stay in float16, whatever cache_quant says": (
            entries and settings.bits is not None
        ),
        f"a slot has {format_count(history)} B to take proposed tokens back": history > 0,
        "an MLA model's latent takes the bits of K; its rotary key stays in float16": (
            settings.bits is not None and any(isinstance(cache, Mla) for cache in caches)
        ),
    }
    return tuple(line for line, holds in told.items() if holds)


def convention(settings: Settings, *, slots: bool) -> tuple[str, ...]:
    """Return what the rules take for granted, a sentence each."""
    whole = "The whole cache is allocated when the model is loaded"
    found = [f"{whole}; pages of 256 tokens are shared by all sequences."]
    if not settings.size_given:
        found = [*found, "Without cache_size it has room for one sequence of the maximum."]
    if slots:
        found = [*found, "A sequence takes a batch slot, which bounds how many run at once."]
    return tuple(found)


def not_modelled(model: ModelSpec, settings: Settings, *, slots: bool) -> tuple[str, ...]:
    """Return what is not modelled, with the size of the difference."""
    found = ["exllamav3's rules were read in its source, not compared with a running engine"]
    widest = max(
        (
            c.num_kv_heads * c.head_dim
            for _, c in model.caches()
            if isinstance(c, (FullAttention, SlidingWindow))
        ),
        default=0,
    )
    if settings.bits is not None and widest:
        copy = 4 * widest * settings.cache_size
        found.append(
            "attention kernels that cannot read quantised pages make one layer's in float16 for a"
            f" moment: {format_count(copy)} B"
        )
    if slots:
        found.append(
            "checkpoints of states and rings are kept in the host's memory: up to 4 GiB"
            " (recurrent_cache_size)"
        )
    if settings.tp > 1:
        found.append("heads are split evenly here; exllamav3 splits them by the cards' memory")
    found.append("a draft model's cache comes on top: plan it as a model of its own")
    return tuple(found)


# What one layer keeps: the value, and what its makers share.

HALF = 2
"""Bytes of float16 and bfloat16."""
_BEYOND = 2 * PAGE
"""Rows of a ring beyond its window: what drafts can be taken back over."""
Part = tuple[tuple[str, int], ...]
"""(role, bytes of a slot)."""


class Kept(NamedTuple):
    """What one layer keeps.

    Attributes:
        pages: rows in pages of PAGE tokens, by the rule that fills them.
        rings: rows of a ring in every batch slot.
        states: bytes by role in every batch slot.
        history: bytes of a slot that are there to take proposed tokens back.
    """

    pages: tuple[tuple[Rule, Part], ...]
    rings: tuple[tuple[Rule, Part], ...]
    states: Part
    history: int

    @classmethod
    def paged(cls, rule: Rule, rows: Part) -> Self:
        """Return rows in pages."""
        return cls(((rule, rows),), (), (), 0)

    @classmethod
    def state(cls, sizes: Part, history: int) -> Self:
        """Return a state in every slot."""
        return cls((), (), sizes, history)

    def plus(self, other: Kept) -> Kept:
        """Return both."""
        return Kept(
            self.pages + other.pages,
            self.rings + other.rings,
            self.states + other.states,
            self.history + other.history,
        )


def ring_rows(window: int) -> int:
    """Return the rows of a ring: the window and two pages more, in whole pages.

    modules/sliding_attn.py, SlidingAttention.kv_state_size.

    >>> ring_rows(1024), ring_rows(127), ring_rows(128)
    (1536, 768, 768)
    """
    return -(-(window + _BEYOND) // PAGE) * PAGE


# A deployment as exllamav3 resolves it: tokens of the cache, bits, batch slots, history.

RELEASES = Releases(
    "exllamav3", (1, 0, 0), (1, 4, 1), hint="1.0 to 1.4 are; exllamav2 is an engine of its own"
)
_KNOWN = KNOWN | {"max_num_seqs", "num_speculative_tokens"}
_ARGUMENTS = {
    "cache_size": int,
    "cache_quant": str,
    "max_batch_size": int,
    "max_history": int,
    "swa_full": bool,
}
_DEFAULT_BATCH = 16
"""cache/cache.py, Cache: max_batch_size."""
_BITS = range(2, 9)


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        line: major and minor number of the version.
        cache_size: tokens of all pages.
        bits: of K and of V in pages; None for float16.
        batch: slots of rings and states.
        history: states that a slot keeps beside the live one: tokens that are proposed at once.
        swa_full: windows lie in pages like everything else.
    """

    version: str
    line: tuple[int, int]
    tp: int
    max_model_len: int
    cache_size: int
    size_given: bool
    bits: tuple[int, int] | None
    batch: int
    history: int
    swa_full: bool

    @property
    def pages(self) -> int:
        """Pages of the cache."""
        return self.cache_size // PAGE

    @property
    def dtype(self) -> str:
        """The name of what pages keep: `Q4`, `Q8:Q4`, float16."""
        if self.bits is None:
            return "float16"
        k, v = self.bits
        return f"Q{k}" if k == v else f"Q{k}:Q{v}"


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Raises:
        UnsupportedError: a setting that exllamav3 has not, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "exllamav3", "leave it out; its own go into engine_args")
    arguments = Arguments(deployment, "exllamav3", _ARGUMENTS)
    release, line = version(deployment.engine_version, RELEASES)
    length = longest(model, deployment, notes)
    size = arguments.number("cache_size")
    if size is None:
        size = -(-length // PAGE) * PAGE
    pages_in(size, "cache_size")
    return Settings(
        version=release,
        line=line,
        tp=deployment.tensor_parallel_size,
        max_model_len=length,
        cache_size=size,
        size_given=arguments.number("cache_size") is not None,
        bits=_bits(model, deployment, arguments),
        batch=_same(arguments, "max_batch_size", deployment.max_num_seqs, 1) or _DEFAULT_BATCH,
        history=_same(arguments, "max_history", deployment.num_speculative_tokens, 0) or 0,
        swa_full=arguments.switch("swa_full"),
    )


def _same(arguments: Arguments, name: str, neutral: int | None, low: int) -> int | None:
    own = arguments.number(name, low)
    if own is not None and neutral not in (None, own):
        raise InvalidValueError(f"{name} is given as {own} and as {neutral}", hint="give it once")
    return neutral if own is None else own


def _bits(model: ModelSpec, deployment: Deployment, arguments: Arguments) -> tuple[int, int] | None:
    """Return the bits of K and V: cache_quant `4` or `8,4`, or a dtype of the same layout."""
    given = arguments.text("cache_quant")
    found = None
    if given is not None:
        parts = given.split(",", 1)
        if not all(part.strip().isdecimal() for part in parts):
            raise InvalidValueError(
                f"cache_quant {given!r:.40} is not one or two numbers of bits",
                hint="give it as 4, or as 8,4 for K and V",
            )
        found = (int(parts[0]), int(parts[-1]))
        if any(bits not in _BITS for bits in found):
            raise UnsupportedError(
                f"exllamav3 quantises to 2 to 8 bits, not to {given}", hint="use 2 to 8"
            )
    if deployment.kv_cache_dtype == "auto":
        return found
    asked = model.resolve(deployment.kv_cache_dtype)
    names = {"q8_0": 8, "q4_0": 4}
    if asked.name in ("float16", model.dtype) and found is None:
        return None
    wanted = names.get(asked.k.name), names.get(asked.v.name)
    if wanted[0] is None or wanted[1] is None or found not in (None, wanted):
        raise UnsupportedError(
            f"exllamav3 keeps no {asked.name} cache here",
            hint="float16, or cache_quant in engine_args: 2 to 8 bits, K and V apart",
        )
    return wanted[0], wanted[1]
