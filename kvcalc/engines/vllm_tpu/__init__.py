"""Engine `vllm-tpu`: vLLM on TPUs, by the plugin tpu-inference.

Read from source: tpu-inference at b8692ff (2026-08-22); vLLM's planner is the one of engine `vllm`
at its newest release. Nothing was run. Figures are one chip's: the plugin plans for all chips of a
replica at once, whose pages and memory are both tensor_parallel_size times as large.
"""

from __future__ import annotations

from functools import partial

import msgspec

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Mla,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv, format_count, round_up
from kvcalc.engines.releases import Releases
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers, layers_of
from kvcalc.engines.vllm.planning import plan_on
from kvcalc.engines.vllm.platform import Platform
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm.start_up import start_up_log as vllm_log
from kvcalc.engines.vllm.version import NEWEST

__all__ = ["RELEASES", "plan", "start_up_log", "unasked_block"]


_COMMIT = "b8692ff"
RELEASES = Releases("tpu-inference", NEWEST.number, NEWEST.number, commits=(_COMMIT,))
"""They are numbered as those of vLLM that they are for."""
_KNOWN = {
    "engine",
    "engine_version",
    "dtype",
    "tensor_parallel_size",
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
    "disable_hybrid_kv_cache_manager",
    "engine_args",
}
_CHIP = Card("tpu", 0, (8, 0))
"""vLLM cannot ask a TPU for its memory, and takes the defaults of small cards."""


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes on TPUs.

    Raises:
        UnsupportedError: what the plugin refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "vLLM on TPUs", "leave it out, or use --engine none")
    RELEASES.read(deployment.engine_version)
    given = {k: v for k, v in deployment.engine_args.items() if v is not None}
    for name in given:
        if name != "model_impl_type":
            raise UnknownNameError("setting of vLLM on TPUs", name, ("model_impl_type",))
    asked = str(given.get("model_impl_type", "auto"))
    if asked not in IMPLEMENTATIONS:
        raise UnknownNameError("model_impl_type", asked, IMPLEMENTATIONS)
    impl = implementation(model, asked)
    plain = msgspec.structs.replace(deployment, engine_version=None, engine_args={})
    return plan_on(_platform(impl), model, plain)


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return vLLM's lines about the cache; its line of available memory is not printed on TPUs.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: of one chip; None where num_gpu_blocks_override fixes the blocks.
    """
    vllms = msgspec.structs.replace(plan, engine_version=str(NEWEST))
    return tuple(line for line in vllm_log(vllms, kv_cache_bytes) if "Available KV" not in line)


def _platform(impl: str) -> Platform:
    return Platform(
        engine="vllm-tpu",
        version=_COMMIT,
        card=_CHIP,
        describe=partial(describe_for, impl=impl),
        check=_check_split,
        convention=_convention,
        unsupported=_not_modelled,
        source=_source,
    )


def _check_split(model: ModelSpec, settings: Settings) -> None:
    """Refuse ways to split a model over chips: platforms/tpu_platform.py, check_and_update_config.

    Raises:
        UnsupportedError: MLA over several chips, which share sequences instead of rows.
    """
    if settings.tp > 1 and any(cache.kind == "mla" for _, cache in model.caches()):
        raise NotModelledError(
            "tpu-inference serves MLA with attention data parallelism: chips share sequences, and"
            " how many of them do is not modelled",
            hint="plan one chip (tensor_parallel_size 1) and the sequences that it gets",
        )
    if model.num_attention_heads is not None:
        divide(model.num_attention_heads, settings.tp, "attention heads")


def _convention(settings: Settings) -> tuple[str, ...]:
    step = (
        f"A step has {settings.max_num_batched_tokens:,} tokens and {settings.max_num_seqs:,}"
        " sequences, what vLLM takes where it cannot ask for the memory, unless given."
    )
    memory = (
        f"Unless its bytes are given, the cache gets {settings.memory_share} of the"
        " chips' memory, less what is in use after the weights are loaded."
    )
    null = "Block 0 is the null block: it is logged and allocated, and never handed out."
    return (step, memory, null)


def _not_modelled(layers: Layers, _grouping: Grouping, settings: Settings) -> tuple[str, ...]:
    read = f"tpu-inference's rules were read in its source ({_COMMIT})"
    found = [f"{read}, not compared with a running server"]
    if any(p.spec.kind == "window" and not p.spec.keeps_all for p in layers.placed):
        steps = settings.in_flight_tokens // settings.max_num_batched_tokens
        found.append(
            f"windows keep room for {steps} steps of tokens in flight; whether vLLM schedules ahead"
            " on TPUs was not found out (async_scheduling says it)"
        )
    if any(p.spec.kind == "mla" for p in layers.placed):
        found.append("MLA_TRANSPOSE_KV_CACHE keeps the rotary part unpadded: it is taken to be off")
    return tuple(found)


def _source(settings: Settings) -> str:
    return (
        f"tpu-inference {_COMMIT}: runner/kv_cache.py, get_kv_cache_shape_with_mesh;"
        f" runner/kv_cache_manager.py, get_kv_cache_spec; vLLM {settings.release}"
    )


# A rank's layers as tpu-inference describes them to vLLM: runner/kv_cache_manager.py at b8692ff.
#
# get_kv_cache_spec has two ways: for its own JAX models every layer keeps every token; for models
# that vLLM's PyTorch code runs, windows are told where all heads are of one size.

IMPLEMENTATIONS = ("auto", "flax_nnx", "vllm")
"""MODEL_IMPL_TYPE."""
_JAX = (
    "Llama4ForCausalLM",
    "DeepseekV3ForCausalLM",
    "LlamaForCausalLM",
    "Llama4ForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "GptOssForCausalLM",
    "Qwen2ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4ForCausalLM",
)
"""Architectures of tpu-inference's own (models/common/model_loader.py)."""
_PYTORCH_FIRST = (
    "GptOssForCausalLM",
    "Qwen3MoeForCausalLM",
    "KimiK25ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
"""Those that run vLLM's PyTorch code all the same, unless MODEL_IMPL_TYPE says otherwise."""
_WORDS = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""KV cache dtype -> bytes of an element."""


def implementation(model: ModelSpec, asked: str) -> str:
    """Return whose code runs a model: resolve_model_impl_type and the fall back of get_model."""
    name = model.architecture or ""
    if asked == "vllm" or (asked == "auto" and name in _PYTORCH_FIRST):
        return "vllm"
    return "flax_nnx" if name in _JAX else "vllm"


def word_bytes(settings: Settings) -> int:
    """Return the bytes of an element of the cache.

    Raises:
        UnsupportedError: a dtype whose packing on TPUs was not read.
    """
    if settings.kv_dtype not in _WORDS or settings.dtype == "float32":
        name = settings.dtype if settings.kv_dtype == "auto" else settings.kv_dtype
        raise NotModelledError(
            f"how a TPU packs a {name} cache is not modelled",
            hint="kv_cache_dtype: auto or fp8",
        )
    return _WORDS[settings.kv_dtype]


def describe_for(
    model: ModelSpec, settings: Settings, share: ModelSpec, notes: list[str], impl: str
) -> Layers:
    """Return the specs of what one rank keeps.

    Args:
        model: the whole model.
        settings: as resolved.
        share: the same layers as one tensor-parallel rank keeps them: heads that are fewer than
            the ranks are repeated (utils.py, get_padded_num_heads).
        notes: a line is added for every rule that moved a number.
        impl: whose code runs the model.

    Raises:
        UnsupportedError: layers or a dtype that are not modelled.
    """
    caches = layers_of(share)
    size = word_bytes(settings)
    for cache in caches:
        _check(cache, model)
    block = settings.block_size or _block(caches, settings, notes)
    windows = impl == "vllm" and _windows_told(caches)
    limited = any(isinstance(c, (SlidingWindow, ChunkedAttention)) for c in caches)
    if limited and not (windows and all(not isinstance(c, ChunkedAttention) for c in caches)):
        notes.append(f"every layer keeps every token ({impl}): windows or chunks save nothing")
    placed = [
        Placed(_spec(cache, block, size, windows=windows), layers)
        for cache, layers in caches.items()
    ]
    notes.extend(_padding(placed))
    return Layers(
        placed=sorted(placed, key=lambda p: p.layers[0]),
        block_size=block,
        kv_dtype=settings.kv_dtype,
        backends=(),
    )


def _block(caches: dict[Cache, list[int]], settings: Settings, notes: list[str]) -> int:
    if any(isinstance(cache, Mla) for cache in caches):
        notes.append(f"blocks of {MLA_BLOCK:,} tokens: MLA's on TPUs")
        return MLA_BLOCK
    return unasked_block(settings.max_model_len, settings.max_num_seqs, notes)


def _check(cache: Cache, model: ModelSpec) -> None:
    """Refuse what was not read, or not found out, of tpu-inference."""
    if isinstance(cache, Mla):
        return
    if not isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention)):
        raise NotModelledError(
            f"how tpu-inference keeps the {cache.kind} caches of {model.name} is not modelled",
            hint="use --engine vllm for NVIDIA cards, or --engine none",
        )
    if cache.v_head_dim not in (None, cache.head_dim):
        raise UnsupportedError(
            "a TPU's pages have K and V of one size", hint="use --engine none for this model"
        )


def _windows_told(caches: dict[Cache, list[int]]) -> bool:
    """Whether all heads are of one size after filling up; otherwise windows are not told."""
    sizes = {_padded(getattr(cache, "head_dim", 0)) for cache in caches}
    return len(sizes) == 1


def _padded(head_dim: int) -> int:
    return head_dim if head_dim == LANES // 2 else round_up(head_dim, LANES)


def _spec(cache: Cache, block: int, size: int, *, windows: bool) -> Spec:
    payload = tuple((row.role, row.count * row.width * size) for row in cache.rows())
    if isinstance(cache, Mla):
        width = latent_width(cache.kv_lora_rank, cache.qk_rope_head_dim)
        entry = width * size
        return Spec(
            kind="mla",
            block=block,
            entry=entry,
            payload=payload,
            shape=("mla", payload),
            page=round_up(block, MLA_ROWS) * entry,
        )
    heads, head_dim = getattr(cache, "num_kv_heads", 1), getattr(cache, "head_dim", 1)
    entry = head_token_bytes(heads, head_dim, size)
    spec = Spec(
        kind="full",
        block=block,
        entry=entry,
        payload=payload,
        shape=("heads", payload),
        page=block * entry,
    )
    match cache:
        case SlidingWindow(sliding_window=window):
            return spec._replace(kind="window", limit=window, keeps_all=not windows)
        case ChunkedAttention(attention_chunk_size=chunk):
            return spec._replace(kind="chunk", limit=chunk, keeps_all=True)
    return spec


def _padding(placed: list[Placed]) -> list[str]:
    lines = []
    for spec in dict.fromkeys(p.spec for p in placed):
        rows = spec.block * sum(size for _, size in spec.payload)
        if spec.page > rows:
            lines.append(
                f"{rows:,} B of rows take a page of {spec.page:,} B: elements are filled up to"
                f" {LANES} lanes, and heads to words of 4 B"
            )
    return lines


LANES = 128
"""Elements of the last dimension come in multiples of so many."""
MLA_ROWS = 32
"""Tokens that an MLA page packs together (envs.py, MLA_KV_PACKING_SIZE)."""
_WORD = 4
"""Bytes of a word: 2 elements of 16 bits, or 4 of 8, are packed into one."""
_PAIRED = 64
"""Heads of so many elements have a kernel of their own, with K and V side by side in 128 lanes."""


def head_token_bytes(heads: int, head_dim: int, size: int) -> int:
    """Return the bytes of a token of one layer whose K and V are kept by head.

    Args:
        heads: KV heads on the rank.
        head_dim: elements of a head.
        size: bytes of an element.

    >>> head_token_bytes(8, 128, 2), head_token_bytes(1, 128, 1), head_token_bytes(8, 80, 2)
    (4096, 512, 4096)
    """
    packing = _WORD // size
    if head_dim == _PAIRED:
        return round_up(heads, packing) * LANES * size
    return round_up(2 * heads, packing) * round_up(head_dim, LANES) * size


def latent_width(kv_lora_rank: int, qk_rope_head_dim: int) -> int:
    """Return the elements of an MLA row: the latent and its rotary part filled up apart.

    runner/kv_cache_manager.py, get_kv_cache_spec.

    >>> latent_width(512, 64)
    640
    """
    return round_up(kv_lora_rank, LANES) + round_up(qk_rope_head_dim, LANES)


MLA_BLOCK = 1024
_LONG = 8192
_LEAST, _MOST, _PARTS = 16, 256, 16
_SCALAR_MEMORY = 1024 * 1024
_NUMBER = 4
"""Bytes of a page number; half of the scalar memory is theirs."""


def unasked_block(length: int, sequences: int, notes: list[str]) -> int:
    """Return tokens a block where the user does not say, for caches that are kept by head.

    Args:
        length: max_model_len.
        sequences: max_num_seqs.
        notes: a line is added where the block was raised.

    >>> unasked_block(2048, 256, []), unasked_block(131_072, 256, [])
    (128, 256)
    """
    block = _LEAST
    if length <= _LONG:
        block = min(max(_power_of_two(length) // _PARTS, _LEAST), _MOST)
    pages = _SCALAR_MEMORY // 2 // sequences // _NUMBER
    least = _power_of_two(cdiv(length, pages)) if pages else length
    if least > block:
        notes.append(
            f"blocks of {block} tokens become {format_count(least)}: page numbers of"
            f" {format_count(sequences)} sequences of {format_count(length)} tokens must fit into"
            " half of the scalar memory"
        )
        return least
    notes.append(f"blocks of {block} tokens: a sixteenth of the longest sequence, 16 to 256")
    return block


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
