"""A deployment as vLLM resolves it: every default put in, every setting it has checked."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.attention import CrossAttention, FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.card import ASSUMED, Card, batch_defaults, card_of
from kvcalc.engines.vllm.rules import Rules, rules_of, told_apart
from kvcalc.engines.vllm.served import check_served
from kvcalc.engines.vllm.version import Release, release

__all__ = ["DEFAULT_BLOCK_SIZE", "PREFIX_BY_BLOCK", "Settings", "Speculation", "resolve"]

DEFAULT_BLOCK_SIZE = 16
_DEFAULT_MAX_MODEL_LEN = 8192
_GEMMA4_VIDEO_TOKENS = 2496
"""vLLM 0.33 models/gemma4_mm.py: a video of 32 frames, 78 tokens each, must fit in one step."""

_POOLING = ("RewardModel", "ForSequenceClassification")
"""Ends of architectures that vLLM serves as pooling models, without asynchronous scheduling."""

_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "async_scheduling",
    "enforce_eager",
    "disable_hybrid_kv_cache_manager",
    "enable_expert_parallel",
    "attention_backend",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "num_speculative_tokens",
    "speculative_method",
    "draft_model",
}


class Speculation(NamedTuple):
    """Tokens proposed ahead: by which method, how many, and the layers that propose them."""

    method: str
    tokens: int
    layers: tuple[LayerRun, ...] = ()

    @property
    def lookahead(self) -> int:
        """Slots held beyond the tokens of the target model (vLLM num_lookahead_tokens)."""
        return 0 if self.method == "ngram" else self.tokens


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        kv_dtype: KV cache dtype in vLLM's words, `auto` for the model dtype.
        in_flight_tokens: tokens scheduled and not yet settled, which windows keep room for.
        prefix_caching: blocks are shared by requests with a common beginning.
        speculation: None where nothing is proposed.
    """

    release: Release
    rules: Rules
    card: Card
    tp: int
    pp: int
    dcp: int
    dtype: str
    kv_dtype: str
    block_size: int | None
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    in_flight_tokens: int
    async_scheduling: bool
    prefix_caching: bool
    hybrid_manager: bool
    attention_backend: str | None
    mamba_cache_dtype: str
    mamba_ssm_cache_dtype: str
    num_gpu_blocks_override: int | None
    speculation: Speculation | None
    keeps_state_by_block: bool = False

    @property
    def extra_retained(self) -> int:
        """Tokens behind a window that several draft modules read again (extra_retained_tokens)."""
        spec = self.speculation
        if spec is None or spec.method != "mtp" or not self.rules.retains_for_drafts:
            return 0
        modules = min(sum(run.count for run in spec.layers), spec.tokens)
        return spec.tokens - 1 if modules > 1 else 0

    @property
    def state_mode(self) -> str:
        """How states are kept: one (none), two (align), or one every block (all)."""
        if not self.prefix_caching:
            return "none"
        if self.rules.state_blocks == "length":
            return "all"
        supports = self.keeps_state_by_block
        if self.rules.prefix_mode == "all" and supports and not self._drafts_align:
            return "all"
        return "align"

    @property
    def _drafts_align(self) -> bool:
        """0.20 and 0.21 keep two states where tokens are proposed (MambaModelConfig)."""
        return self.speculation is not None and self.release.line in ((0, 20), (0, 21))

    @property
    def proposed(self) -> int:
        """Tokens proposed ahead; 0 without speculation."""
        return self.speculation.tokens if self.speculation else 0


_SPELLINGS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
_KV_DTYPES = (
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4",
    "nvfp4_4over6",
    "nvfp4_ds_mla",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
"""vLLM 0.33 config/cache.py, CacheDType, ROCm's own formats apart."""

_DTYPE_SINCE = {
    "bfloat16": (0, 11, 0), "float16": (0, 18, 0), "fp8_inc": (0, 10, 0), "fp8_ds_mla": (0, 11, 0),
    "nvfp4": (0, 20, 0), "nvfp4_4over6": (0, 28, 0), "nvfp4_ds_mla": (0, 30, 0),
    "fp8_per_token_head": (0, 20, 0), "int8_per_token_head": (0, 20, 0),
    "int4_per_token_head": (0, 25, 0), "turboquant_k8v4": (0, 20, 0),
    "turboquant_4bit_nc": (0, 20, 0), "turboquant_k3v4_nc": (0, 20, 0),
    "turboquant_3bit_nc": (0, 20, 0),
}  # fmt: skip
"""Dtype -> the first release that has it; the others were always there."""


def resolve(
    model: ModelSpec, deployment: Deployment, notes: list[str]
) -> tuple[ModelSpec, Settings]:
    """Return the model in the dtype that vLLM runs it in, and the settings.

    Args:
        model: as published.
        deployment: as asked for.
        notes: a line is added for what was assumed or changed.

    Raises:
        UnsupportedError: a setting that vLLM has not, or refuses for this model or card.
    """
    for name in deployment.changed():
        if name not in _KNOWN:
            raise UnsupportedError(f"vLLM has no {name}", hint="leave it out")
    wanted = release(deployment.engine_version)
    rules = rules_of(wanted)
    check_served(model, wanted, deployment.pipeline_parallel_size)
    apart = told_apart(wanted)
    if apart is not None:
        notes.append(apart)
    card = _card(deployment, notes)
    model = _in_dtype(model, deployment.dtype, card, notes)
    kv_dtype = _kv_dtype(model, deployment.kv_cache_dtype, card, wanted)
    speculation = _speculation(model, deployment)
    length = deployment.max_model_len or model.max_position_embeddings
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    tokens, seqs = _batch(model, deployment, card, length, rules)
    overlap = _overlap(model, deployment, rules, speculation)
    steps = rules.batches(deployment.pipeline_parallel_size, overlap, dense=_runs_ahead(model))
    settings = Settings(
        release=wanted,
        rules=rules,
        card=card,
        tp=deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        dcp=deployment.decode_context_parallel_size,
        dtype=model.dtype,
        kv_dtype=kv_dtype,
        block_size=deployment.block_size,
        max_model_len=length,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        in_flight_tokens=tokens * steps,
        async_scheduling=overlap,
        prefix_caching=_prefix_caching(model, deployment, rules, notes),
        hybrid_manager=rules.hybrid_manager and not deployment.disable_hybrid_kv_cache_manager,
        attention_backend=deployment.attention_backend,
        mamba_cache_dtype=_state_dtype(deployment.mamba_cache_dtype),
        mamba_ssm_cache_dtype=_state_dtype(deployment.mamba_ssm_cache_dtype),
        num_gpu_blocks_override=deployment.num_gpu_blocks_override,
        speculation=speculation,
        keeps_state_by_block=(model.architecture or "").startswith(PREFIX_BY_BLOCK),
    )
    return model, settings


def _card(deployment: Deployment, notes: list[str]) -> Card:
    gpu = deployment.gpu
    if isinstance(gpu, GpuSpec):
        return card_of(gpu)
    if gpu is not None:
        raise InvalidValueError(
            f"gpu {gpu!r:.40} is a name where the card itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    notes.append(
        f"no card was named: {ASSUMED.name} (kernels, block size, batched tokens depend on it;"
        " --gpu)"
    )
    return ASSUMED


def _in_dtype(model: ModelSpec, asked: str, card: Card, notes: list[str]) -> ModelSpec:
    """Resolve the model dtype: config/model.py, _get_and_verify_dtype."""
    no_half = _refuses_half(model)
    if asked != "auto":
        dtype = _SPELLINGS.get(asked.lower(), asked.lower())
        if dtype == "float16" and no_half:
            raise UnsupportedError(
                f"vLLM does not run {model.architecture} in float16",
                hint="choose bfloat16 or float32",
            )
        if dtype == "bfloat16" and not card.has_bfloat16:
            raise UnsupportedError(
                f"{card.name} has no bfloat16 (compute capability"
                f" {card.capability[0]}.{card.capability[1]})",
                hint="choose --dtype float16",
            )
        return msgspec.structs.replace(model, dtype=dtype)
    supported = ["bfloat16"] if card.has_bfloat16 else []
    supported += [] if no_half else ["float16"]
    supported.append("float32")
    pooling = (model.architecture or "").endswith(_POOLING)
    preferred = "float16" if pooling and not no_half else supported[0]
    dtype = model.dtype
    if dtype == "float32":
        dtype = preferred
        notes.append(f"published in float32: vLLM runs it in {dtype}")
    elif dtype not in supported:
        dtype = preferred
        notes.append(f"{card.name} has no {model.dtype}: vLLM runs the model in {dtype}")
    return msgspec.structs.replace(model, dtype=dtype)


def _refuses_half(model: ModelSpec) -> bool:
    """config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS."""
    name = model.architecture or ""
    return name.startswith(("Gemma2For", "Gemma3For", "Gemma3Text")) or name == "Glm4ForCausalLM"


def _overlap(
    model: ModelSpec, deployment: Deployment, rules: Rules, speculation: Speculation | None
) -> bool:
    """Whether steps are scheduled ahead of results: config/vllm.py, VllmConfig.__post_init__."""
    if deployment.async_scheduling is not None:
        return deployment.async_scheduling
    if (model.architecture or "").endswith(_POOLING):
        return False
    if speculation is not None and speculation.method == "ngram" and not rules.ngram_overlaps:
        return False
    return rules.async_scheduling


def _runs_ahead(model: ModelSpec) -> bool:
    """Whether 0.25 to 0.28 give a model the newer runner (VllmConfig.use_v2_model_runner).

    They give it to dense models without states; that a model is of experts is told by its name,
    and by those that are and do not say so.
    """
    name = (model.architecture or "").lower()
    experts = "moe" in name or "mixtral" in name or name.startswith(_OF_EXPERTS)
    states = any(cache.states() and not cache.rows() for _, cache in model.caches())
    return not (experts or states)


_OF_EXPERTS = (
    "gptoss", "llama4", "deepseek", "mimov2", "minimax", "dbrx", "grok", "kimi", "laguna", "step3",
    "longcat", "jamba", "dots1",
)  # fmt: skip
"""Architectures of experts whose names do not say so, in lower case."""


def _kv_dtype(model: ModelSpec, asked: str, card: Card, wanted: Release) -> str:
    """Return vLLM's word for the KV cache dtype: what the checkpoint or the model makes of it."""
    name = _SPELLINGS.get(asked.lower(), asked.lower())
    if ":" in name:
        raise UnsupportedError(
            f"vLLM keeps K and V in one dtype, not in {asked!r:.40}", hint="give one dtype"
        )
    if name not in _KV_DTYPES:
        cache_dtype(name)  # a name that no engine knows is told as such
        if name == "float32" and model.dtype == "float32":
            return "auto"
        raise UnsupportedError(
            f"vLLM has no KV cache dtype {asked!r:.40}", hint=f"known: {', '.join(_KV_DTYPES)}"
        )
    first = _DTYPE_SINCE.get(name)
    if first is not None and wanted.number < first:
        if name == model.dtype:
            return "auto"
        raise UnsupportedError(
            f"vLLM {wanted} has no KV cache dtype {name}: it came with {'.'.join(map(str, first))}",
            hint="choose --kv-cache-dtype auto or fp8, or a later version",
        )
    if name == "auto" and model.kv_cache_dtype is not None:
        name = model.kv_cache_dtype
    if name == "auto" and model.architecture == "GlmMoeDsaForCausalLM" and card.family == 10:  # noqa: PLR2004 - Blackwell
        name = "fp8_e4m3"
    if model.architecture == "DeepseekV32ForCausalLM":
        if name == "bfloat16":
            name = "auto"
        elif name == "auto" and wanted.line == (0, 11) and wanted.patch < _V32_PLAIN:
            name = "fp8_ds_mla"
    if name in ("bfloat16", "float16") and name != model.dtype:
        raise UnsupportedError(
            f"a {name} cache of a {model.dtype} model: vLLM wants both the same",
            hint=f"give --kv-cache-dtype auto, or --dtype {name}",
        )
    return name


def _state_dtype(asked: str | None) -> str:
    name = (asked or "auto").lower()
    name = _SPELLINGS.get(name, name)
    if name not in ("auto", "float32", "float16", "bfloat16"):
        raise UnknownNameError(
            "state dtype", asked or "", ["auto", "float32", "float16", "bfloat16"]
        )
    return name


_V32_PLAIN = 2  # 0.11.2: until then `auto` was fp8_ds_mla for DeepSeek-V3.2

_METHODS = ("ngram", "mtp", "eagle", "eagle3", "draft_model")
_MTP_METHODS = ("deepseek_mtp", "qwen3_next_mtp", "mimo_mtp", "glm4_moe_mtp", "longcat_flash_mtp")


def _speculation(model: ModelSpec, deployment: Deployment) -> Speculation | None:
    method, tokens = deployment.speculative_method, deployment.num_speculative_tokens
    draft = deployment.draft_model
    if method is None and tokens is None and draft is None:
        return None
    if tokens is None:
        raise InvalidValueError(
            "speculation without a number of tokens", hint="give num_speculative_tokens"
        )
    method = method or ("mtp" if draft is None else "draft_model")
    method = "mtp" if method in _MTP_METHODS else method
    if method not in _METHODS:
        raise UnknownNameError("speculative method", method, [*_METHODS, *_MTP_METHODS])
    return Speculation(method, tokens, _drafting(model, method, draft))


def _drafting(model: ModelSpec, method: str, draft: str | ModelSpec | None) -> tuple[LayerRun, ...]:
    """Return the layers that propose tokens."""
    if method == "ngram":
        return ()
    if method == "mtp":
        if not model.draft_layers:
            raise UnsupportedError(
                f"{model.name} has no multi-token-prediction layers",
                hint="choose ngram, eagle or a draft model",
            )
        return model.draft_layers
    if isinstance(draft, ModelSpec):
        return draft.layers
    if draft is not None:
        raise InvalidValueError(
            f"draft_model {draft!r:.40} is a name where the model itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    if method in ("eagle", "eagle3"):
        return (_eagle_head(model),)
    raise UnsupportedError(
        "the draft model is not named",
        hint="name it: --draft-model NAME, or Deployment.draft_model",
    )


def _eagle_head(model: ModelSpec) -> LayerRun:
    """Return the one full-attention layer of an EAGLE head that is shaped as its target."""
    for _, cache in model.caches():
        if isinstance(cache, (FullAttention, SlidingWindow)):
            full = FullAttention(num_kv_heads=cache.num_kv_heads, head_dim=cache.head_dim)
            return LayerRun(count=1, caches=(full,))
    raise UnsupportedError(
        "an EAGLE head's shape cannot be told from this model",
        hint="give the head itself: --draft-model NAME",
    )


def _batch(
    model: ModelSpec, deployment: Deployment, card: Card, length: int, rules: Rules
) -> tuple[int, int]:
    """Return tokens and sequences of a step.

    engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args.
    """
    defaults = batch_defaults(card, rules)
    seqs = deployment.max_num_seqs or defaults.max_num_seqs
    tokens = deployment.max_num_batched_tokens
    if tokens is None:
        tokens = defaults.max_num_batched_tokens
        if any(isinstance(cache, CrossAttention) for _, cache in model.caches()):
            tokens = max(length, tokens)  # an encoder's output is not computed in chunks
        if "image_prefix" in model.traits and (model.architecture or "").startswith("Gemma4"):
            tokens = max(_GEMMA4_VIDEO_TOKENS, tokens)
        if rules.batch_within_length:
            tokens = min(seqs * length, tokens)
    if deployment.max_num_seqs is None:
        seqs = min(seqs, tokens)
    return tokens, seqs


def _prefix_caching(
    model: ModelSpec, deployment: Deployment, rules: Rules, notes: list[str]
) -> bool:
    """Whether prefixes are cached: config/model.py, is_prefix_caching_supported.

    Raises:
        UnsupportedError: hybrids that the release runs without it alone.
    """
    rows = states = False
    for _, cache in model.caches():
        if isinstance(cache, CrossAttention):
            return bool(deployment.enable_prefix_caching)
        rows = rows or bool(cache.rows())
        states = states or (bool(cache.states()) and not cache.rows())
    asked = deployment.enable_prefix_caching
    if not states:
        return True if asked is None else asked
    if rules.prefix_caching in ("refused", "off") and asked:
        raise UnsupportedError(
            "this release of vLLM does not cache prefixes of models with states",
            hint="leave prefix caching off",
        )
    if (
        rules.state_blocks == "length"
        and asked
        and not (model.architecture or "").startswith(PREFIX_BY_BLOCK)
    ):
        notes.append(
            "this release caches no prefixes of this architecture: asked for and turned off"
        )
        return False
    return (rules.prefix_caching == "on" and rows) if asked is None else asked


PREFIX_BY_BLOCK = (
    "FalconH1", "GraniteMoeHybrid", "Jamba", "Mamba", "NemotronH", "Zamba2", "Bamba",
)  # fmt: skip
"""Architectures that can keep a state at every block (SupportsMambaPrefixCaching)."""
