"""Engine `exllamav2`: one cache of fixed length for all layers, read from source.

exllamav2 0.3.2 (da07facd, 2025-12-09): cache.py (ExLlamaV2CacheBase and its children),
generator/dynamic.py.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.kind import divide
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool, Rank
from kvcalc.core.rules import Grow, Rule, Whole
from kvcalc.core.units import format_count
from kvcalc.engines.exllama.pages import PAGE, pages_in, shared_pool
from kvcalc.engines.exllama.settings import KNOWN, Arguments, longest, version
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "plan"]

RELEASES = Releases(
    "exllamav2", (0, 2, 0), (0, 3, 2), hint="0.2 and 0.3 are; exllamav3 is an engine of its own"
)
_ARGUMENTS = {"cache_mode": str, "cache_size": int, "batch_size": int, "generator": str}
_ARCHITECTURES_NAMES = (
    "LlamaForCausalLM MistralForCausalLM MixtralForCausalLM LlavaForConditionalGeneration"
    " Mistral3ForConditionalGeneration YiForCausalLM OrionForCausalLM Qwen2ForCausalLM"
    " Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen2VLForConditionalGeneration"
    " Qwen2_5_VLForConditionalGeneration GemmaForCausalLM Gemma2ForCausalLM"
    " Gemma3ForConditionalGeneration Starcoder2ForCausalLM GemmoeForCausalLM"
    " CohereForCausalLM Cohere2ForCausalLM DbrxForCausalLM Phi3ForCausalLM GPTBigCodeForCausalLM"
    " GPT2LMHeadModel MiniCPMForCausalLM InternLM2ForCausalLM IndexForCausalLM"
    " GraniteForCausalLM Glm4ForCausalLM"
)
_ARCHITECTURES = frozenset(_ARCHITECTURES_NAMES.split())
"""architecture.py, ExLlamaV2ArchParams; others are run as Llama with a warning."""


class _Mode(NamedTuple):
    """How a cache class stores K and V: elements a byte, f16 scales, a shared f16 copy.

    Attributes:
        k, v: bytes of 16 elements.
        scales: one f16 for every 32 elements of a head, for K and for V.
        shared: one layer's K and V in f16 lie beside, for all layers of a device.
        dtype: kvcalc's name.
    """

    k: int
    v: int
    scales: bool
    shared: bool
    dtype: str

    def row(self, width: int, *, v: bool) -> int:
        """Return the bytes of one head's K or V."""
        data = width * (self.v if v else self.k) // 16
        return data + (2 * (width // 32) if self.scales else 0)


_MODES = {
    "FP16": _Mode(32, 32, scales=False, shared=False, dtype="float16"),
    "FP8": _Mode(16, 16, scales=False, shared=True, dtype="fp8_e5m2"),
    "Q8": _Mode(16, 16, scales=True, shared=True, dtype="q8_0"),
    "Q6": _Mode(16, 8, scales=True, shared=True, dtype="q8_0:q4_0"),
    "Q4": _Mode(8, 8, scales=True, shared=True, dtype="q4_0"),
}
"""Name -> class; Q6 is 8 bits of K and 4 of V."""


class _Shape(NamedTuple):
    heads: int
    width: int
    spans: tuple[tuple[int | None, int], ...]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the cache that exllamav2 allocates.

    Raises:
        UnsupportedError: what exllamav2 refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    deployment.refuse_others(KNOWN, "exllamav2", "leave it out; its own go into engine_args")
    arguments = Arguments(deployment, "exllamav2", _ARGUMENTS)
    release, _ = version(deployment.engine_version, RELEASES)
    tp = deployment.tensor_parallel_size
    shape = _shape(model, tp)
    mode_name = _mode(model, deployment, arguments)
    mode = _MODES[mode_name]
    length = longest(model, deployment, notes)
    size = arguments.number("cache_size") or length
    batch = arguments.number("batch_size") or 1
    paged = _paged(arguments, batch)
    pool = _pool(shape, mode, size, batch, paged=paged)
    copy = 4 * batch * size * shape.heads * shape.width if mode.shared else 0
    notes += _notes(shape, mode_name, copy, size, model)
    return CachePlan(
        engine="exllamav2",
        engine_version=release,
        model=model.name,
        kv_cache_dtype=mode.dtype,
        model_dtype="float16",
        block_size=PAGE if paged else None,
        ranks=(Rank(name="rank", pools=(pool,), multiplicity=tp, fixed_bytes=copy),),
        split="fixed",
        max_model_len=min(length, size),
        max_sequences=None if paged else batch,
        reuse_tokens=PAGE if paged else None,
        report="tokens",
        notes=tuple(notes),
        unsupported=_not_modelled(tp, copy),
        convention=_convention(arguments, paged=paged),
        source=f"exllamav2 {release}: cache.py, generator/dynamic.py (read)",
    )


def _mode(model: ModelSpec, deployment: Deployment, arguments: Arguments) -> str:
    """Return the cache class, from cache_mode or from the KV cache dtype."""
    given = arguments.text("cache_mode")
    name = given.upper() if given else None
    if name is not None and name not in _MODES:
        raise UnknownNameError("cache_mode", given or "", _MODES)
    if deployment.kv_cache_dtype == "auto":
        return name or "FP16"
    asked = model.resolve(deployment.kv_cache_dtype).name
    found = next((mode for mode, kind in _MODES.items() if kind.dtype == asked), None)
    if found is None or name not in (None, found):
        raise UnsupportedError(
            f"exllamav2 keeps no {asked} cache here",
            hint=f"choose a cache_mode: {', '.join(_MODES)}",
        )
    return found


def _paged(arguments: Arguments, batch: int) -> bool:
    generator = arguments.text("generator") or ("dynamic" if batch == 1 else "basic")
    if generator not in ("dynamic", "basic"):
        raise UnknownNameError("generator", generator, ("dynamic", "basic"))
    if generator == "dynamic" and batch > 1:
        raise UnsupportedError(
            f"the dynamic generator takes a cache of batch size 1, not {batch}",
            hint="its pages serve any number of sequences: leave batch_size out",
        )
    return generator == "dynamic"


def _shape(model: ModelSpec, tp: int) -> _Shape:
    """Return the one shape that all layers have (config.num_key_value_heads, head_dim).

    Raises:
        UnsupportedError: layers of several shapes or of kinds that exllamav2 has not.
    """
    if model.architecture is not None and model.architecture not in _ARCHITECTURES:
        raise UnsupportedError(
            f"exllamav2 has no architecture {model.architecture}",
            hint="use exllamav3 for newer models",
        )
    shapes, spans = set(), dict[int | None, int]()
    for run in model.layers:
        for cache in run.caches or (None,):
            if not isinstance(cache, (FullAttention, SlidingWindow)):
                kind = cache.kind if cache else "no"
                raise UnsupportedError(
                    f"exllamav2's layers keep K and V, and {model.name} has layers with {kind}"
                    " cache",
                    hint="use exllamav3 for newer models",
                )
            shapes.add((cache.num_kv_heads, cache.head_dim, cache.v_head_dim or cache.head_dim))
            limit = cache.sliding_window if isinstance(cache, SlidingWindow) else None
            spans[limit] = spans.get(limit, 0) + run.count
    heads, width, v = next(iter(shapes))
    if len(shapes) > 1 or width != v:
        raise UnsupportedError(
            f"exllamav2 has one shape for all layers, and {model.name} has not",
            hint="use --engine none to see what its layers are",
        )
    return _Shape(divide(heads, tp, "KV heads"), width, tuple(spans.items()))


def _pool(shape: _Shape, mode: _Mode, size: int, batch: int, *, paged: bool) -> Pool:
    rows: dict[Rule, dict[str, int]] = {}
    for limit, count in shape.spans:
        rule: Rule = Whole(slots=size, limit=limit)
        if paged:
            rule = Grow(block_tokens=PAGE, limit=limit)
        rows[rule] = {
            role: count * shape.heads * mode.row(shape.width, v=role == "v") for role in ("k", "v")
        }
    layers = sum(count for _, count in shape.spans)
    if paged:
        return shared_pool("pages", rows, layers, pages_in(size, "cache_size"))
    return shared_pool("rows", rows, layers, batch * size, block=None)


def _notes(shape: _Shape, mode: str, copy: int, size: int, model: ModelSpec) -> list[str]:
    notes = []
    if mode == "FP16" and model.dtype != "float16":
        notes.append(f"K and V are kept in float16, whatever the model dtype ({model.dtype})")
    if mode == "Q6":
        notes.append("Q6 keeps K in 8 bits and V in 4")
    if copy:
        notes.append(
            f"one layer's K and V in float16 lie beside the cache for all layers of a card:"
            f" {format_count(copy)} B"
        )
    if any(limit is not None for limit, _ in shape.spans):
        notes.append("every layer keeps every token: windows save nothing")
    kv = shape.heads * shape.width
    block = next(n for n in range(1, 513) if kv * n % 512 == 0)
    if mode.startswith("Q") and size % block:
        notes.append(
            f"exllamav2 says {format_count(-(-size // block) * block)} tokens for its cache, which"
            f" has {format_count(size)}: K and V are quantised {block} tokens at a time"
        )
    return notes


def _convention(arguments: Arguments, *, paged: bool) -> tuple[str, ...]:
    found = ["The whole cache is allocated when the model is loaded."]
    if arguments.number("cache_size") is None:
        found.append("Without cache_size it has room for one sequence of the maximum.")
    found.append(
        "Its tokens are shared by all sequences in pages of 256 (dynamic generator)."
        if paged
        else "Each of batch_size sequences has a row of cache_size tokens (no pages)."
    )
    return tuple(found)


def _not_modelled(tp: int, copy: int) -> tuple[str, ...]:
    found = [
        "exllamav2's rules were read in its source, not compared with a running engine",
        "a draft model's cache comes on top: plan it as a model of its own",
    ]
    if tp > 1:
        found.append("heads are split evenly here; exllamav2 splits them by the cards' memory")
    elif copy:
        found.append(
            "layers split over several cards (gpu_split) keep the same bytes, and the float16"
            f" copy of one layer on each card: {format_count(copy)} B more a card"
        )
    return tuple(found)
