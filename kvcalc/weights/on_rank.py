"""What a model's weights take on one GPU: exact where a checkpoint says, else an interval, said.

How they are split over ranks stands in `weight_split`, what a parameter takes in `weight_dtypes`,
what an engine makes of them as it loads them in `weight_loading`.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from kvcalc.core.attention import Mla, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.memory import Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import Mamba1
from kvcalc.core.size import ModelSize
from kvcalc.core.units import cdiv
from kvcalc.weights.formats import UNKNOWN_FORMAT, WIDTHS, Mixture, Width, weight_width
from kvcalc.weights.loading import AS_PUBLISHED, Loading, as_loaded, cast
from kvcalc.weights.mixers import PartName
from kvcalc.weights.parameters import Parts, count_parts, parameters
from kvcalc.weights.shapes import shape_of
from kvcalc.weights.split import (
    Ranks,
    evenly,
    on_rank,
    padding_bytes,
    shares,
    stage_parts,
    stored_by_stage,
    towers_on_rank,
)

__all__ = [
    "beside_bytes",
    "bytes_of_parts",
    "parameters",
    "weights_on_rank",
]

_ATTENTION: tuple[PartName, ...] = ("attention", "kv", "latent")
_COPIED: tuple[PartName, ...] = ("kv", "latent")
_TABLES: tuple[PartName, ...] = ("embedding", "head")
_BITS = 8
_HALF = 2  # bytes that float32 takes beyond the 16 bits of a model
_SINGLE = Fraction(32)
_EIGHT_EXPERTS = 8
_EIGHT_BITS = Fraction(17, 2)  # q8_0
_BLOCK = 256  # elements of a row that the K and I types pack together
_FALLBACK = Fraction(5, 4)  # q5_0 for q4_k, q8_0 for q6_k, iq4_nl for what is below


def weights_on_rank(
    model: ModelSpec,
    *,
    tp: int = 1,
    pp: int = 1,
    stage: int = 0,
    ep: int | None = None,
    quantization: str | None = None,
    total_bytes: int | None = None,
    drafts: bool = False,
    sizes: tuple[int, ...] | None = None,
    groups: int = 1,
    loading: Loading = AS_PUBLISHED,
) -> Term:
    """Return what the weights of a model take on one GPU.

    Args:
        model: with its sizes.
        tp: ranks that a stage is divided over.
        pp: pipeline stages.
        stage: which of them, counted from 0.
        ep: ranks that the experts are spread over, where those are not the tp ranks.
        quantization: a format that the weights are brought into or stored in; None: as published.
        total_bytes: what all weights take together, from the user; it replaces what is known.
        drafts: multi-token-prediction layers are loaded as well.
        sizes: layers of each stage, where they are told.
        groups: of the tp ranks, each of which keeps the attention of its own requests.
        loading: what the engine makes of them as it loads them.

    Raises:
        InvalidValueError: a number of ranks below 1, or a stage that is not there.
        UnknownNameError: a format that is not known.
        UnsupportedError: neither bytes nor the widths to count them from are known.
    """
    ranks = _checked(tp, pp, stage, ep)._replace(sizes=sizes, groups=groups)
    return _counted(_Same(model), ranks, quantization, total_bytes, drafts, loading)


class _Same:
    """A model that is equal to itself alone: looking at all of it takes as long as counting it."""

    def __init__(self, model: ModelSpec) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.model is other.model


@lru_cache(maxsize=512)  # a search asks for the same weights at every step
def _counted(
    same: _Same,
    ranks: Ranks,
    quantization: str | None,
    total_bytes: int | None,
    drafts: bool,
    loading: Loading,
) -> Term:
    if total_bytes is not None:
        stated = (total_bytes, total_bytes)
        return _from_total(same.model, stated, "as given", ranks, drafts=True)
    model = as_loaded(same.model, loading)
    terms = [
        _published(model, ranks._replace(towers=towers), quantization, drafts, loading)
        for towers in loading.towers
    ]
    return Term(
        name="weights",
        low_bytes=min(term.low_bytes for term in terms),
        high_bytes=max(term.high_bytes for term in terms),
        source=terms[0].source,
    )


def _published(
    model: ModelSpec, ranks: Ranks, quantization: str | None, drafts: bool, loading: Loading
) -> Term:
    """Return a published checkpoint's weights, with the encoders on the stages that have them."""
    size = model.size or ModelSize()
    asked = None if quantization is None else weight_width(quantization)
    stored_as = size.weights_dtype
    kept = asked is None or (
        stored_as not in (None, UNKNOWN_FORMAT) and weight_width(stored_as) == asked
    )
    if size.parts and kept:
        term = _from_tensors(model, size, ranks, drafts=drafts, dtype=loading.dtype)
    elif size.weights_bytes is not None and kept:
        error = size.weights_error_bytes or 0
        stored = max(0, size.weights_bytes - error), size.weights_bytes + error
        source = size.weights_source or "the published checkpoint"
        term = _from_total(model, stored, source, ranks, drafts=drafts)
        term = _narrowed(term, model, size, ranks, drafts=drafts)
    else:
        term = _from_widths(model, size, ranks, quantization, drafts=drafts)
    return _loaded(term, model, ranks, quantization, loading)


def _loaded(
    term: Term, model: ModelSpec, ranks: Ranks, quantization: str | None, loading: Loading
) -> Term:
    """Return weights with what an engine makes of them beside their dtype."""
    low, high = term.low_bytes, term.high_bytes
    runs_in_16_bits = loading.dtype in ("bfloat16", "float16")
    if runs_in_16_bits or loading.experts[1] > 1:
        try:
            held = on_rank(model, stage_parts(model, ranks), ranks)
        except UnsupportedError:
            held = {}  # no width says how much they are
        shape = shape_of(model.architecture)
        if runs_in_16_bits and shape is not None and shape.router_single:
            high += _HALF * held.get("router", (0, 0))[1]
        experts = bytes_of_parts(
            model, model.size or ModelSize(), _only(held, "experts"), quantization
        )
        least, most = experts.get("experts", (0, 0))
        low += floor(least * (loading.experts[0] - 1))
        high += ceil(most * (loading.experts[1] - 1))
    if runs_in_16_bits:
        high += _HALF * _rates_of_mamba1(model) // ranks.tp
    high += loading.copied_bytes
    source = f"{term.source}; {loading.note}" if loading.note else term.source
    return Term(name=term.name, low_bytes=low, high_bytes=high, source=source)


def _only(parts: Parts, part: PartName) -> Parts:
    return {part: parts[part]} if part in parts else {}


def _rates_of_mamba1(model: ModelSpec) -> int:
    """Return the decay rates of Mamba layers: vLLM keeps them in float32 (mamba_mixer.py, A)."""
    caches = ((n, cache) for n, cache in model.caches() if isinstance(cache, Mamba1))
    return sum(n * cache.intermediate_size * cache.state_size for n, cache in caches)


def beside_bytes(model: ModelSpec, tp: int = 1, loading: Loading = AS_PUBLISHED) -> int:
    """Return the most that loading leaves on each GPU beside the checkpoint's tensors.

    - Tables of rotary positions: a row of head_dim in the dtype of the run for every position of
      the config, a table for layers with a window and one for those without (vLLM 0.33
      layers/rotary_embedding/base.py). A logged start of Llama-3.1-8B has these 32 MiB
      beyond its checkpoint, in all four digits that are logged.
    - The matrices from latents to heads in the order that decoding multiplies them: copies where
      the checkpoint has them quantised, in SGLang always (vLLM W_UK_T and W_UV,
      process_weights_after_loading; SGLang w_kc and w_vc, post_load_weights).

    Args:
        model: with its sizes.
        tp: ranks that heads are divided over.
        loading: what the engine makes of the weights.
    """
    table = loading.table_bytes or (element_bytes(loading.dtype) if loading.dtype else _HALF)
    return _rope_tables(model, table) + _copied_latents(model, tp)


def _rope_tables(model: ModelSpec, itemsize: int) -> int:
    if "alibi" in model.traits or model.max_position_embeddings is None:
        return 0
    widths: dict[bool, int] = {}
    for _, cache in model.caches():
        rope = getattr(cache, "qk_rope_head_dim", None)
        width = getattr(cache, "head_dim", 0) if rope is None else rope
        if cache.rows() and width:
            windowed = isinstance(cache, SlidingWindow)
            widths[windowed] = max(widths.get(windowed, 0), width)
    return itemsize * model.max_position_embeddings * sum(widths.values())


def _copied_latents(model: ModelSpec, tp: int) -> int:
    size, heads = model.size or ModelSize(), model.num_attention_heads
    if size.qk_nope_head_dim is None or size.v_head_dim is None or heads is None:
        return 0
    width = cdiv(heads, tp) * (size.qk_nope_head_dim + size.v_head_dim)
    ranks = (n * cache.kv_lora_rank for n, cache in model.caches() if isinstance(cache, Mla))
    return sum(2 * width * rank for rank in ranks)


def _checked(tp: int, pp: int, stage: int, ep: int | None) -> Ranks:
    spread = tp if ep is None else ep
    for name, value in (("tp", tp), ("pp", pp), ("ep", spread)):
        if type(value) is not int or value < 1:
            raise InvalidValueError(f"{name} is {value!r:.60}, not a whole number from 1 up")
    if type(stage) is not int or not 0 <= stage < pp:
        raise InvalidValueError(f"stage is {stage!r:.60}, not one of the {pp} counted from 0")
    return Ranks(tp, pp, stage, spread)


# ---------------------------------------------------------------- from tensors


def _from_tensors(
    model: ModelSpec, size: ModelSize, ranks: Ranks, *, drafts: bool, dtype: str | None
) -> Term:
    """Return the split of a checkpoint's own tensors, and what engines keep more of."""
    parts = size.parts
    all_cast = parts if dtype is None else cast(parts, dtype)
    low, high = (
        stored_by_stage(
            each, ranks.tp, ranks.pp, drafts=drafts, sizes=ranks.sizes, groups=ranks.groups
        )[ranks.stage]
        + towers_on_rank(each, ranks)
        for each in (all_cast, parts)
    )
    low, high = min(low, high), max(low, high) + padding_bytes(parts, ranks)
    if ranks.tp > 1:
        high += _copies(model, size, ranks)
    if ranks.ep != ranks.tp:
        experts = sum(part.divided_bytes for part in parts if part.kind == "experts")
        change = cdiv(experts, ranks.ep) - cdiv(experts, ranks.tp)
        low, high = low + min(change, 0), high + max(change, 0)
    return Term(
        name="weights",
        low_bytes=max(0, low),
        high_bytes=high,
        source=size.weights_source or "the checkpoint's tensors",
    )


def _copies(model: ModelSpec, size: ModelSize, ranks: Ranks) -> int:
    """Return what a rank keeps beyond its share: KV heads in copies, latents whole."""
    try:
        parts = bytes_of_parts(model, size, stage_parts(model, ranks), None)
    except UnsupportedError:
        return 0
    own, even = on_rank(model, parts, ranks), evenly(parts, ranks)
    return sum(max(0, own[part][1] - even[part]) for part in _COPIED if part in own)


# ---------------------------------------------------------------- from a total


def _from_total(
    model: ModelSpec, stored: tuple[int, int], source: str, ranks: Ranks, *, drafts: bool
) -> Term:
    """Return a rank's share of all weights, by the share that it has of the counted parts."""
    low, high = stored
    drafted = drafts or not model.draft_layers
    if ranks[:2] == (1, 1) and ranks.ep == 1 and drafted and ranks.towers != "none":
        return Term(name="weights", low_bytes=low, high_bytes=high, source=source)
    size = model.size or ModelSize()
    try:
        whole = bytes_of_parts(model, size, count_parts(model), None)
        own = bytes_of_parts(model, size, stage_parts(model, ranks), None)
    except UnsupportedError:
        return _evenly_shared(low, high, source, ranks)
    if not drafts:
        left = whole.pop("draft", (0, 0))
        low, high = max(0, low - left[1]), max(0, high - left[0])
        own.pop("draft", None)
    if ranks.towers == "none":
        left = whole.pop("encoder", (0, 0))
        known = size.encoder_bytes
        low = max(0, low - (left[1] if known is None else known))
        high -= left[0] if known is None else known
    least, most = shares(model, whole, own, ranks)
    return Term(
        name="weights",
        low_bytes=floor(low * least),
        high_bytes=ceil(high * most),
        source=f"{source}; split over ranks by the model's widths",
    )


def _narrowed(term: Term, model: ModelSpec, size: ModelSize, ranks: Ranks, *, drafts: bool) -> Term:
    """Return what a total and the widths both allow; the total alone where they disagree.

    Only where the widths' formats are known part by part: the config lists what is left as it is,
    or nothing is quantised.
    """
    known = size.kept is not None or (size.weights_dtype or model.dtype) in WIDTHS
    if term.exact or not known:
        return term
    try:
        other = _from_widths(model, size, ranks, None, drafts=drafts)
    except UnsupportedError:
        return term
    low = max(term.low_bytes, other.low_bytes)
    high = min(term.high_bytes, other.high_bytes)
    if low > high:
        return term
    return Term(name="weights", low_bytes=low, high_bytes=high, source=term.source)


def _evenly_shared(low: int, high: int, source: str, ranks: Ranks) -> Term:
    """Return a share that nothing more is known of: even, or with what is whole on every rank."""
    count = ranks.tp * ranks.pp
    return Term(
        name="weights",
        low_bytes=low // (count * 2) if ranks.pp > 1 else low // count,
        high_bytes=min(high, cdiv(high, ranks.tp) if ranks.pp > 1 else cdiv(high * 5, count * 4)),
        source=f"{source}; split over ranks evenly, widths not known",
    )


# ---------------------------------------------------------------- from widths


def _from_widths(
    model: ModelSpec, size: ModelSize, ranks: Ranks, quantization: str | None, *, drafts: bool
) -> Term:
    parts = stage_parts(model, ranks)
    if not drafts:
        parts.pop("draft", None)
    held = on_rank(model, bytes_of_parts(model, size, parts, quantization), ranks)
    exact = all(low == high for low, high in parts.values())
    words = quantization or size.weights_dtype or model.dtype
    return Term(
        name="weights",
        low_bytes=floor(sum(low for low, _ in held.values())),
        high_bytes=ceil(sum(high for _, high in held.values())),
        source=f"{'parameters' if exact else 'bounds of parameters'} counted from the config's"
        f" widths, in {words}",
    )


def bytes_of_parts(
    model: ModelSpec, size: ModelSize, parts: Parts, quantization: str | None
) -> Parts:
    """Return the bytes of parts, in whole bytes, from their parameters.

    Raises:
        UnsupportedError: the format that they are stored in is not known.
    """
    found: Parts = {}
    for part, (low, high) in parts.items():
        width = _width_of_part(model, size, part, quantization)
        found[part] = floor(low * width.low / _BITS), ceil(high * width.high / _BITS)
    return found


def _width_of_part(
    model: ModelSpec, size: ModelSize, part: PartName, quantization: str | None
) -> Width:
    """Return the bits of a parameter of one part.

    A quantisation leaves tables, routers and norms as they are; what else it leaves its config
    lists. Where there is no list, recipes differ: of a model with experts all but those may be
    left, of others the recurrent layers and, in formats of 4-bit floats, attention.
    """
    plain = Width(*(Fraction(weight_width(model.dtype).low),) * 2)
    name = quantization or size.weights_dtype or model.dtype
    width = weight_width(name)
    if width in WIDTHS.values():
        return width
    if part in ("router", "norm"):
        return Width(plain.low, _SINGLE)
    if part == "experts" and quantization is None and size.expert_dtype is not None:
        return weight_width(size.expert_dtype)
    if part in ("encoder", "draft"):
        return Width(width.low, max(plain.high, width.high))
    if width.mixture is not None:
        return Width(width.low, _of_mixture(model, size, part, width, width.mixture))
    if part in _TABLES:
        return plain
    kept = size.kept if quantization is None else None
    group = "attention" if part in _ATTENTION else part
    if kept is not None:
        return plain if group in kept else width
    may_stay = part != "experts" if size.num_experts else group == "recurrent"
    if may_stay or (width.native and group == "attention"):
        return Width(width.low, max(plain.high, width.high))
    return width


def _of_mixture(
    model: ModelSpec, size: ModelSize, part: PartName, width: Width, most: Mixture
) -> Fraction:
    """Return the most bits that a mixture gives the matrices of a part, a mean over them.

    Rows that are no multiple of a block fall back to a wider type (llama-quant.cpp,
    tensor_type_fallback).
    """
    base = width.high
    shape = shape_of(model.architecture)
    matrices = 3 if shape is None else shape.matrices
    tied = size.tie_word_embeddings
    if tied is None and shape is not None:
        tied = shape.tied
    means: dict[PartName, Fraction] = {
        "attention": (base + most.output_proj) / 2,
        "kv": (base + most.v) / 2,
        "mlp": ((matrices - 1) * base + most.down) / matrices,
        "experts": ((matrices - 1) * base + most.down) / matrices,
        "embedding": most.embedding if tied is False else max(most.embedding, most.head),
        "head": most.head,
    }
    bits = means.get(part, max(base, most.output_proj, most.v, most.down))
    if size.num_experts == _EIGHT_EXPERTS and part in ("kv", "attention"):
        bits = max(bits, _EIGHT_BITS)  # K and V in q8_0, the output in q5_k, of mixtures of eight
    uneven = [n for n in (size.hidden_size, size.intermediate_size) if n and n % _BLOCK]
    if uneven and base < _EIGHT_BITS:
        bits = max(bits, _EIGHT_BITS) if part in _TABLES else bits * _FALLBACK
    return bits
