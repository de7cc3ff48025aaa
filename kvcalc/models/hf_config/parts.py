"""What many families share: counts, head sizes, dtypes, layer patterns, and runs of layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.core.attention import FullAttention, SharedKv, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.layers import Cache, LayerRun, merge_runs
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.text import shown

__all__ = [
    "Caches",
    "Layers",
    "by_type",
    "draft_runs",
    "drafts",
    "every_nth_full",
    "full_attention",
    "head_dim",
    "heads",
    "hidden_per_head",
    "kv_heads",
    "num_layers",
    "query_heads",
    "repeat",
    "runs",
    "same",
    "shared_tail",
    "sliding",
    "unmasked",
    "window",
    "window_list",
    "windowed",
]

Caches = tuple[Cache, ...]
"""What one layer keeps."""


class Layers(NamedTuple):
    """What a family reads: the layers in order, and the draft (multi-token prediction) layers."""

    layers: tuple[LayerRun, ...]
    draft: tuple[LayerRun, ...] = ()


def runs(
    per_layer: Sequence[Caches], notes: Mapping[int, str] | None = None
) -> tuple[LayerRun, ...]:
    """Return runs of equal layers.

    Args:
        per_layer: what each layer keeps, in order.
        notes: why a layer keeps nothing, or something unusual, by its index.
    """
    said = notes or {}
    return merge_runs(
        LayerRun(count=1, caches=caches, note=said.get(i, "")) for i, caches in enumerate(per_layer)
    )


def same(count: int, *caches: Cache) -> Layers:
    """Return `count` equal layers."""
    return Layers((LayerRun(count=count, caches=caches),))


def repeat(pattern: Sequence[Caches], count: int) -> list[Caches]:
    """Return `count` layers that repeat a pattern from its start."""
    return [pattern[i % len(pattern)] for i in range(count)]


def num_layers(f: Fields, *others: str) -> int:
    """Return the number of decoder layers under any of its usual names."""
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", *others)
    return f.need(*names, high=MAX_LAYERS)


_QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def heads(f: Fields) -> int:
    """Return the number of query heads under any of its usual names."""
    return f.need(*_QUERY_HEADS)


def query_heads(f: Fields, layers: Iterable[LayerRun]) -> int | None:
    """Return the query heads of a model whose layers keep rows; None for states alone."""
    if not any(cache.rows() for run in layers for cache in run.caches):
        return None
    return f.whole(*_QUERY_HEADS, "decoder_attention_heads")


def kv_heads(f: Fields, *others: str) -> int:
    """Return the KV heads: as given, one for multi-query attention, else as many as query heads."""
    # vLLM 0.33 transformers_utils/config.py, CONFIG_FIELD_ALIASES: ChatGLM and Step have the last.
    given = f.whole(
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
        *others,
    )
    if given is not None:
        queries = f.whole(*_QUERY_HEADS)
        if queries is not None and given > queries:
            raise InputError(
                f"{given} KV heads for {queries} query heads",
                hint="correct the config, or give --layers, --kv-heads and --head-dim",
                where=f.where,
            )
        return given
    if f.flag("multi_query", default=False):
        return 1
    count = heads(f)
    f.notes.append(f"the config names no number of KV heads: as many as query heads ({count})")
    return count


def head_dim(f: Fields, *others: str) -> int:
    """Return the size of a head: as given, else hidden size over query heads, which must divide."""
    given = f.whole("head_dim", "attention_head_dim", "kv_channels", "head_size", *others)
    if given is not None:
        return given
    return hidden_per_head(f)


def hidden_per_head(f: Fields) -> int:
    """Return the hidden size over the query heads, which must divide it.

    `n_embed` comes first: BloomConfig and FalconConfig let it replace `hidden_size`.
    """
    names = ("n_embed", "hidden_size", "n_embd", "d_model")
    hidden = f.need(*names)
    count = heads(f)
    if hidden % count:
        raise InputError(
            f"{f.name(*names)} {hidden} is no multiple of {count} heads, and there is no head_dim",
            hint="correct the config, or give --layers, --kv-heads and --head-dim",
            where=f.where,
        )
    return hidden // count


def full_attention(f: Fields) -> FullAttention:
    """Return plain multi-head, grouped-query or multi-query attention over every token."""
    return FullAttention(num_kv_heads=kv_heads(f), head_dim=head_dim(f))


def sliding(cache: FullAttention, window: int) -> SlidingWindow:
    """Return the same K and V, kept for a window only."""
    return SlidingWindow(
        num_kv_heads=cache.num_kv_heads,
        head_dim=cache.head_dim,
        v_head_dim=cache.v_head_dim,
        sliding_window=window,
    )


def window(f: Fields, *others: str) -> int | None:
    """Return the window in force; None for none: null, 0, -1, or a flag that turns it off."""
    if not f.flag("use_sliding_window", default=True):
        return None
    # vLLM 0.33 config/model.py turns 0 into None; Grok-2 writes -1.
    tokens = f.whole("sliding_window", *others, low=-1)
    return tokens if tokens and tokens > 0 else None


def every_nth_full(count: int, period: int) -> list[bool]:
    """Return which layers have a window, where the last of every `period` layers has none."""
    return [(i + 1) % period != 0 for i in range(count)]


def windowed(
    f: Fields,
    count: int,
    full: FullAttention,
    tokens: int | None,
    otherwise: Iterable[bool],
) -> list[Caches]:
    """Return full and window layers of the same heads.

    Args:
        f: the config, whose `layer_types` decides if there is one.
        count: number of layers.
        full: what a layer without a window keeps.
        tokens: the window; None for a model without one.
        otherwise: which layers have it where the config has no `layer_types`.

    Raises:
        InputError: window layers without a window.
    """
    listed = window_list(f, count)
    if listed is not None and tokens is None and any(listed):
        raise f.missing("sliding_window")
    local: Caches = (full,) if tokens is None else (sliding(full, tokens),)
    has_window = otherwise if listed is None else listed
    return [local if has else (full,) for has in has_window]


def window_list(f: Fields, count: int, name: str = "layer_types") -> list[bool] | None:
    """Return which of `count` layers have a window by the config's own list; None without one."""
    words = f.texts(name, known=("full_attention", "sliding_attention"), length=count)
    return None if words is None else [word == "sliding_attention" for word in words]


def shared_tail(f: Fields, layers: Sequence[Caches]) -> list[Caches]:
    """Return the layers with the last `num_kv_shared_layers` reading what earlier ones keep.

    A layer reads the last one of its own kind (vLLM 0.33 models/gemma4.py, transformers 5.24
    models/gemma3n).

    Raises:
        InputError: no earlier layer of its kind.
    """
    shared = f.whole("num_kv_shared_layers", low=0, high=MAX_LAYERS) or 0
    own = list(layers[: len(layers) - shared]) if shared < len(layers) else []
    last = {caches: i for i, caches in enumerate(own)}
    found = list(own)
    for caches in layers[len(own) :]:
        if caches not in last:
            raise f.fault("num_kv_shared_layers", shared, "few enough to leave layers to read from")
        found.append((SharedKv(source_layer=last[caches]),))
    return found


def drafts(f: Fields, *caches: Cache) -> tuple[LayerRun, ...]:
    """Return the multi-token-prediction layers that the config counts, each keeping `caches`."""
    count = f.whole("num_nextn_predict_layers", "num_mtp_layers", low=0, high=MAX_LAYERS)
    return draft_runs(count or 0, *caches)


def draft_runs(count: int, *caches: Cache) -> tuple[LayerRun, ...]:
    """Return `count` draft layers that keep these caches."""
    return (LayerRun(count=count, caches=caches),) if count else ()


def unmasked(f: Fields) -> Layers | None:
    """Return layers that keep nothing, where attention is not causal; None where it is.

    vLLM 0.33 models/{llama,qwen2,qwen3,gemma3,apertus}.py: `is_causal` false makes an encoder.
    """
    causal, both = f.flag("is_causal", default=True), _both_ways(f)
    if causal and not both:
        return None
    said = "use_bidirectional_attention is set" if both else "is_causal is false"
    f.notes.append(f"{said}: an encoder, which keeps no K and V in vLLM")
    return Layers((LayerRun(count=num_layers(f), caches=(), note="encoder layer"),))


def _both_ways(f: Fields) -> bool:
    """Whether a class or vLLM sets `is_causal` to false for `use_bidirectional_attention`.

    transformers 5.24 Gemma4TextConfig for "all"; vLLM 0.33 models/config.py for true in
    Gemma3TextModel (EmbeddingGemma), which is no decoder's class.
    """
    both = f.get("use_bidirectional_attention")
    if both == "all":
        return (f.text("model_type") or "").startswith("gemma4")
    return both is True and "Gemma3TextModel" in (f.items("architectures") or ())


def by_type(f: Fields, count: int, kinds: Mapping[str, Caches]) -> list[Caches] | None:
    """Return what each layer keeps by the config's own `layer_types`; None where it has none.

    Args:
        f: the config.
        count: number of layers.
        kinds: word of the list -> what such a layer keeps.

    Raises:
        UnknownNameError: a word that is not among `kinds`.
        InputError: a list of another length than the layers, which the class refuses too.
    """
    types = f.texts("layer_types", known=list(kinds), length=count)
    return None if types is None else [kinds[t] for t in types]


def model_dtype(f: Fields, outer: Fields, *, default: str = "bfloat16") -> str:
    """Return the model dtype in either spelling, of the text part or of the whole config."""
    text = f.text("dtype", "torch_dtype") or outer.text("dtype", "torch_dtype")
    if text is None:
        f.notes.append(f"the config gives no dtype: {default} is taken")
        return default
    name = text.removeprefix("torch.")
    try:
        element_bytes(name)
    except KvcalcError as error:
        error.where = error.where or f.where
        raise
    return name


class CacheAsked(NamedTuple):
    """What a checkpoint's quantisation asks its KV cache to be, and the method that asks it."""

    dtype: str | None = None
    method: str | None = None


_KV_ALGORITHMS = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
_FP8_BITS, _NVFP4_BITS = 8, 4


def kv_scheme(outer: Fields, text: Fields) -> CacheAsked:
    """Return what the checkpoint's quantisation asks the KV cache to be; nothing for none.

    modelopt, in any spelling, by a scheme (of 8 bits only where it is not dynamic) or by the name
    of an algorithm, both also within `quantization` (vLLM 0.33 utils/torch_utils.py,
    get_kv_cache_quant_algo_string); compressed-tensors by a scheme of floats of 8 bits, dynamic or
    not (layers/attention/attention.py). Others ask nothing.
    """
    section = outer.section("quantization_config", "compression_config")
    section = section or text.section("quantization_config")
    if section is None:
        return CacheAsked()
    method = section.get("quant_method")
    if not isinstance(method, str):
        return CacheAsked()
    if method.startswith("modelopt"):
        inner = section.get("quantization")
        places = (inner if isinstance(inner, dict) else {}, section)
        asked = next(
            (
                value
                for name in ("kv_cache_scheme", "kv_cache_quant_algo")
                for place in places
                if (value := place.get(name))
            ),
            None,
        )
        dtype = _of_modelopt(asked)
    elif method == "compressed-tensors":
        asked = section.get("kv_cache_scheme")
        is_fp8 = isinstance(asked, dict) and _kind(asked) == (_FP8_BITS, "float")
        dtype = "fp8_e4m3" if is_fp8 else None
    else:
        return CacheAsked()
    if dtype is not None:
        by = "modelopt" if method.startswith("modelopt") else method
        name = dtype.removesuffix("_e4m3")
        outer.notes.append(f"the checkpoint asks for an {name} KV cache ({by})")
        return CacheAsked(dtype, by)
    if asked:
        outer.notes.append(f"the checkpoint's KV cache scheme is not followed: {shown(str(asked))}")
    return CacheAsked()


def _of_modelopt(asked: object) -> str | None:
    if isinstance(asked, str):
        return _KV_ALGORITHMS.get(asked.lower())
    if not isinstance(asked, dict):
        return None
    if _kind(asked) == (_FP8_BITS, "float") and asked.get("dynamic") is False:
        return "fp8_e4m3"
    return "nvfp4" if _kind(asked) == (_NVFP4_BITS, "float") else None


def _kind(scheme: Mapping[str, object]) -> tuple[object, object]:
    return scheme.get("num_bits"), scheme.get("type")
