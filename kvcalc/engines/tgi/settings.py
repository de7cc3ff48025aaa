"""A deployment as text-generation-inference resolves it, every default put in."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "Settings", "resolve"]


# Which models text-generation-inference serves from blocks, and in which dtype it runs them.
#
# models/__init__.py, get_model, at db931fc: a flash model keeps its cache in blocks; others are
# padded (CausalLM) or left to the installed transformers, whose rules are not TGI's own.


class Served(NamedTuple):
    """How TGI serves an architecture.

    Attributes:
        dtype: what it runs where no dtype is given, whatever the config says.
        replicates: a single KV head is kept by every rank (elsewhere TGI's own code divides it).
        sees: a model with a vision part, for which prefix caching is off.
        fp8: kv_cache_dtype is passed on to it.
        head: where the launcher finds the size of a head, which decides the attention: in the
            config, nowhere (the config's keys are others), or in a nested config that may not say.
    """

    dtype: str = "float16"
    replicates: bool = False
    sees: bool = False
    fp8: bool = True
    head: Literal["config", "nowhere", "nested"] = "config"


_HALF = Served()
_BRAIN = Served(dtype="bfloat16")
_GPT = Served(head="nowhere")
_SERVED = {
    "LlamaForCausalLM": _HALF,
    "Phi3ForCausalLM": _HALF,
    "GraniteForCausalLM": _HALF,
    "PhiMoEForCausalLM": _HALF,
    "BaichuanForCausalLM": _HALF,
    "BaiChuanForCausalLM": _HALF,
    "MistralForCausalLM": _HALF,
    "MixtralForCausalLM": _HALF,
    "Qwen2ForCausalLM": _HALF,
    "Starcoder2ForCausalLM": _HALF,
    "CohereForCausalLM": _HALF,
    "PhiForCausalLM": _HALF,
    "GPT2LMHeadModel": _GPT,
    "GPTJForCausalLM": _GPT,
    "GPTNeoXForCausalLM": _HALF,
    "GPTBigCodeForCausalLM": Served(replicates=True, head="nowhere"),
    "FalconForCausalLM": Served(replicates=True),
    "RWForCausalLM": Served(replicates=True),
    "GemmaForCausalLM": _BRAIN,
    "Gemma2ForCausalLM": _BRAIN,
    "Gemma3ForCausalLM": _BRAIN,
    "DbrxForCausalLM": Served(dtype="bfloat16", head="nowhere"),
    "DeepseekV2ForCausalLM": _BRAIN,
    "DeepseekV3ForCausalLM": _BRAIN,
    "Gemma3ForConditionalGeneration": Served(dtype="bfloat16", sees=True),
    "Qwen2VLForConditionalGeneration": Served(dtype="bfloat16", sees=True),
    "Qwen2_5_VLForConditionalGeneration": Served(dtype="bfloat16", sees=True),
    "PaliGemmaForConditionalGeneration": Served(dtype="bfloat16", sees=True, head="nested"),
    "LlavaNextForConditionalGeneration": Served(sees=True, head="nested"),
    "Idefics2ForConditionalGeneration": Served(sees=True, head="nested"),
    "Idefics3ForConditionalGeneration": Served(
        dtype="bfloat16", sees=True, fp8=False, head="nested"
    ),
}


def served(model: ModelSpec) -> Served:
    """Return how TGI serves a model.

    Raises:
        UnsupportedError: an architecture that it keeps no blocks for, or not by rules of its own.
    """
    name = model.architecture
    if name is None:
        raise NotModelledError(
            f"how TGI keeps {model.name} hangs on its architecture, which nothing names",
            hint="give a model with an architecture",
        )
    found = _SERVED.get(name)
    if found is None:
        raise UnsupportedError(
            f"TGI has no block cache of its own for {name} models",
            hint="those it has one for: " + ", ".join(sorted(_SERVED)),
        )
    if "alibi" in model.traits and name in ("FalconForCausalLM", "RWForCausalLM"):
        raise UnsupportedError(
            "TGI pads Falcon models with ALiBi instead of keeping blocks",
            hint="use --engine transformers for what a padded batch holds",
        )
    return found


_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "tensor_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "attention_backend",
    "engine_args",
}
_COUNTS = ("free_memory", "total_memory", "max_input_tokens", "max_batch_prefill_tokens")
_SHARES = {"wiggle_room": 0.9, "cuda_memory_fraction": 1.0}
"""TGI_WIGGLE_ROOM and CUDA_MEMORY_FRACTION, with their defaults (globals.py, utils/dist.py)."""
_FP8 = {"fp8_e4m3": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}
_FP8_ATTENTION = ("flashinfer", "paged")
_HALVES = ("float16", "bfloat16")
_LENGTH_ELSE = 8192
RELEASES = Releases("TGI", (3, 3, 0), (3, 3, 6), lines=True)


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        version: of text-generation-inference.
        served: how it serves the model.
        attention: its kernels; `block`: tokens a block of theirs.
        kv_dtype: of K and V.
        max_model_len: max_total_tokens; `length_given`: it was asked for.
        max_batch_size: requests at once; None for no limit.
        max_input_tokens, max_prefill_tokens: the warm-up batch.
        free_memory, total_memory: bytes after the warm-up and of the whole card, where told.
        wiggle_room, memory_fraction: shares of the card that may be used.
    """

    version: str
    served: Served
    tp: int
    attention: str
    block: int
    kv_dtype: str
    prefix_caching: bool
    max_model_len: int
    length_given: bool
    max_batch_size: int | None
    max_input_tokens: int | None
    max_prefill_tokens: int | None
    free_memory: int | None
    total_memory: int | None
    wiggle_room: float
    memory_fraction: float

    @property
    def element_bytes(self) -> int:
        """Bytes of one element: fp8 has no scales beside it but one number a layer."""
        return 1 if self.kv_dtype in _FP8 else 2


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings; a line is added to `notes` for what was assumed.

    Raises:
        UnsupportedError: a setting that TGI has not, or that kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "TGI", "leave it out; its own go into engine_args")
    given = {k: v for k, v in deployment.engine_args.items() if v is not None}
    for name in given:
        if name == "speculate":
            raise NotModelledError("TGI's speculation is not modelled", hint="leave it out")
        if name not in _COUNTS and name not in _SHARES:
            raise UnknownNameError("setting of TGI", name, (*_COUNTS, *_SHARES))
    counts = {name: _count(given.get(name), name) for name in _COUNTS}
    shares = {name: _share(given.get(name, low), name) for name, low in _SHARES.items()}
    found = served(model)
    attention = attention_of(model, deployment, found, notes)
    if deployment.block_size not in (None, attention.block):
        tokens = format_number_of(attention.block, "token")
        raise UnsupportedError(
            f"TGI's blocks have {tokens} with {attention.name}",
            hint="attention_backend decides; block_size cannot be chosen",
        )
    tokens = format_number_of(attention.block, "token")
    notes.append(f"blocks of {tokens}: attention is {attention.name}")
    prefill = deployment.max_num_batched_tokens or counts["max_batch_prefill_tokens"]
    return Settings(
        version=RELEASES.spelled(RELEASES.read(deployment.engine_version).number),
        served=found,
        tp=deployment.tensor_parallel_size,
        attention=attention.name,
        block=attention.block,
        kv_dtype=_kv_dtype(model, deployment, found, attention.name, notes),
        prefix_caching=attention.prefix_caching,
        max_model_len=_length(model, deployment, notes),
        length_given=deployment.max_model_len is not None,
        max_batch_size=deployment.max_num_seqs,
        max_input_tokens=counts["max_input_tokens"],
        max_prefill_tokens=prefill,
        free_memory=counts["free_memory"],
        total_memory=counts["total_memory"],
        wiggle_room=shares["wiggle_room"],
        memory_fraction=shares["cuda_memory_fraction"],
    )


def _count(value: object, name: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidValueError(f"{name} is {value!r:.60}, not a whole number from 1")
    return value


def _share(value: object, name: str) -> float:
    most = 1.0 if name == "cuda_memory_fraction" else 0.999_999
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise InvalidValueError(f"{name} is {value!r:.60}, not a share of the card")
    return float(value)


def _length(model: ModelSpec, deployment: Deployment, notes: list[str]) -> int:
    notes.extend(beyond(model, deployment.max_model_len))
    length = deployment.max_model_len or model.max_position_embeddings
    if length is None:
        length = _LENGTH_ELSE
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    return length


def _kv_dtype(
    model: ModelSpec, deployment: Deployment, found: Served, attention: str, notes: list[str]
) -> str:
    """Return the cache's dtype (models/__init__.py, get_model; layers/attention/kv_cache.py).

    TGI runs float16, or bfloat16 for some families, whatever the config says.
    """
    run = found.dtype if deployment.dtype == "auto" else deployment.dtype
    if run not in _HALVES:
        raise UnsupportedError(f"TGI runs no {run} model", hint=f"dtype: {' or '.join(_HALVES)}")
    if run != model.dtype:
        notes.append(f"the model is run in {run}, whatever its config says ({model.dtype})")
    asked = deployment.kv_cache_dtype
    if asked == "auto":
        if model.kv_cache_dtype is not None:
            raise NotModelledError(
                "whether TGI follows the checkpoint's own KV cache dtype depends on its format",
                hint=f"say it: kv_cache_dtype {model.kv_cache_dtype} or {run}",
            )
        return run
    name = model.resolve(asked).name
    if name == run:
        return run
    if name not in _FP8 or not found.fp8:
        raise UnsupportedError(
            f"TGI keeps no {name} cache for this model",
            hint=f"most models can have {', '.join(_FP8.values())} or {run}",
        )
    if attention not in _FP8_ATTENTION:
        raise UnsupportedError(
            f"TGI has no fp8 cache with {attention}", hint="attention_backend: paged or flashinfer"
        )
    return name


BLOCKS = {"flashinfer": 1, "flashdecoding": 256, "paged": 16}
"""Attention -> tokens a block (globals.py, BLOCK_SIZE). `flashdecoding-ipex` (64) is Intel's."""
_FLASHINFER_HEADS = (64, 128, 256)
_AMPERE = 8
_V2_LITE_HEADS, _V3_HEADS = 16, 128


class Attention(NamedTuple):
    """The kernels, and whether a shared prefix is kept once."""

    name: str
    prefix_caching: bool

    @property
    def block(self) -> int:
        """Tokens a block."""
        return BLOCKS[self.name]


def attention_of(
    model: ModelSpec, deployment: Deployment, found: Served, notes: list[str]
) -> Attention:
    """Return the attention that the launcher resolves to.

    Raises:
        UnknownNameError, UnsupportedError: an attention that TGI has not, or has for others.
        InvalidValueError: prefix caching is asked of paged attention.
    """
    asked = deployment.attention_backend
    if asked == "flashdecoding-ipex":
        raise NotModelledError(
            "flashdecoding-ipex is for Intel's devices, which are not modelled",
            hint=f"choose one of {', '.join(BLOCKS)}",
        )
    if asked is not None and asked not in BLOCKS:
        raise UnknownNameError("attention of TGI", asked, BLOCKS)
    if asked is None and found.head == "nested":
        raise NotModelledError(
            "TGI chooses this model's attention by a head size that its config may not tell",
            hint="name it: attention_backend, as TGI logs it",
        )
    fits = found.head != "nowhere" and _head_dim(model) in _FLASHINFER_HEADS
    forced = not fits or _old_family(model)
    name = asked or (_fallback(deployment.gpu, notes) if forced else "flashinfer")
    if asked is None and forced:
        why = "this family" if fits else "heads of this size"
        if found.head == "nowhere":
            why = "models whose config names no head size"
        notes.append(f"attention is {name}: FlashInfer is not taken for {why}")
    wanted = deployment.enable_prefix_caching
    if wanted and name == "paged":
        raise InvalidValueError(
            "TGI has no prefix caching with paged attention", hint="leave enable_prefix_caching out"
        )
    if wanted is None:
        wanted = fits and not found.sees and name != "paged"
        if not wanted:
            notes.append("prefix caching is off for this model or attention")
    return Attention(name, wanted)


def _old_family(model: ModelSpec) -> bool:
    return model.architecture in ("FalconForCausalLM", "RWForCausalLM", "DeepseekV2ForCausalLM")


def _head_dim(model: ModelSpec) -> int | None:
    """Return the head size as the launcher knows it: head_dim, or hidden size over heads."""
    for _, cache in model.caches():
        match cache:
            case FullAttention() | SlidingWindow():
                return cache.head_dim
            case Mla():
                return _latent_head_dim(model)
    return None


def _latent_head_dim(model: ModelSpec) -> int:
    """Return hidden size over heads: 5,120 / 128 and 7,168 / 128, but 2,048 / 16 in V2-Lite."""
    if model.num_attention_heads == _V3_HEADS:
        return 56 if model.architecture == "DeepseekV3ForCausalLM" else 40
    if model.num_attention_heads == _V2_LITE_HEADS:
        return 128
    raise NotModelledError(
        f"TGI chooses kernels by hidden size over heads, which is not known of {model.name}",
        hint="only the head counts of DeepSeek-V2, V2-Lite and V3 are known",
    )


def _fallback(gpu: str | GpuSpec | None, notes: list[str]) -> str:
    """Return the attention for what FlashInfer does not do, by compute capability."""
    if not isinstance(gpu, GpuSpec):
        notes.append("no card was named: one of compute capability 8.0 or above is taken")
        return "flashdecoding"
    if gpu.compute_capability is None:
        raise NotModelledError(
            f"{gpu.name} is no CUDA card, and TGI's images for others set their attention",
            hint="name it: attention_backend",
        )
    major = int(gpu.compute_capability.partition(".")[0])
    return "flashdecoding" if major >= _AMPERE else "paged"
