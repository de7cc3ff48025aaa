"""A deployment as vLLM resolves it: every default put in, every setting it has checked.

vLLM 0.33 engine/arg_utils.py (EngineArgs.create_engine_config) and config/vllm.py
(VllmConfig.__post_init__); dtypes, speculation and scheduling have modules of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.model import PARTITION, ModelSpec, stage_partition
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.arguments import check_arguments
from kvcalc.engines.vllm.card import ASSUMED, Card, card_of
from kvcalc.engines.vllm.dtypes import in_dtype, kv_word, state_word
from kvcalc.engines.vllm.rules import Rules, rules_of, told_apart
from kvcalc.engines.vllm.scheduling import (
    batch_of,
    caches_prefixes,
    keeps_state_by_block,
    overlaps,
    runs_ahead,
)
from kvcalc.engines.vllm.served import as_overridden, check_model
from kvcalc.engines.vllm.speculation import Speculation, speculation_of
from kvcalc.engines.vllm.version import Release, release

__all__ = ["DEFAULT_BLOCK_SIZE", "Settings", "resolve"]

DEFAULT_BLOCK_SIZE = 16
_DEFAULT_MAX_MODEL_LEN = 8192

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
    "engine_args",
}


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        kv_dtype: KV cache dtype in vLLM's words, `auto` for the model dtype.
        in_flight_tokens: tokens scheduled and not yet settled, which windows keep room for.
        prefix_caching: blocks are shared by requests with a common beginning.
        speculation: None where nothing is proposed.
        memory_share: gpu_memory_utilization, the release's own unless asked for.
        doubt: what is not sure of whether the release serves the model.
    """

    release: Release
    rules: Rules
    card: Card
    tp: int
    pp: int
    partition: tuple[int, ...] | None
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
    memory_share: float = 0.9
    doubt: str = ""

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
    def max_running(self) -> int:
        """Sequences that run at once: what draws blocks of tokens has a query for each of them.

        config/vllm.py, _set_max_num_scheduled_tokens (max_num_active_seqs, 0.33).
        """
        spec = self.speculation
        if spec is None or not spec.draws_blocks or self.release.number < (0, 33, 0):
            return self.max_num_seqs
        return max(1, min(self.max_num_seqs, self.max_num_batched_tokens // spec.lookahead))

    @property
    def proposed(self) -> int:
        """Tokens proposed ahead; 0 without speculation."""
        return self.speculation.tokens if self.speculation else 0


def resolve(
    model: ModelSpec, deployment: Deployment, notes: list[str], card: Card | None = None
) -> tuple[ModelSpec, Settings]:
    """Return the model in the dtype that vLLM runs it in, and the settings.

    Args:
        model: as published.
        deployment: as asked for.
        notes: a line is added for what was assumed or changed.
        card: what stands in for the card of the deployment, on other platforms than CUDA.

    Raises:
        UnsupportedError: a setting that vLLM has not, or refuses for this model or card.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "vLLM")
    wanted = release(deployment.engine_version)
    check_arguments(deployment, wanted)
    rules = rules_of(wanted)
    model = as_overridden(model, deployment)
    doubt = check_model(model, wanted, deployment, notes)
    apart = told_apart(wanted)
    if apart is not None:
        notes.append(apart)
    card = card or _card(deployment, notes)
    model = in_dtype(model, deployment.dtype, card, wanted, notes)
    kv_dtype = kv_word(model, deployment.kv_cache_dtype, card, wanted)
    speculation = speculation_of(model, deployment, wanted)
    length = deployment.max_model_len or model.longest
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    tokens, seqs = batch_of(model, deployment, card, length, rules)
    overlap = overlaps(model, deployment, rules, speculation)
    steps = rules.batches(deployment.pipeline_parallel_size, overlap, dense=runs_ahead(model))
    settings = Settings(
        release=wanted,
        rules=rules,
        card=card,
        tp=deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        partition=stage_partition(
            deployment.engine_args.get(PARTITION),
            model.num_hidden_layers,
            deployment.pipeline_parallel_size,
        ),
        dcp=deployment.decode_context_parallel_size,
        dtype=model.dtype,
        kv_dtype=kv_dtype,
        block_size=deployment.block_size,
        max_model_len=length,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        in_flight_tokens=tokens * steps,
        async_scheduling=overlap,
        prefix_caching=caches_prefixes(model, deployment, rules, notes),
        hybrid_manager=rules.hybrid_manager
        and not deployment.disable_hybrid_kv_cache_manager
        and not _chunks_beside(model, speculation),
        attention_backend=deployment.attention_backend,
        mamba_cache_dtype=state_word(deployment.mamba_cache_dtype),
        mamba_ssm_cache_dtype=state_word(deployment.mamba_ssm_cache_dtype),
        num_gpu_blocks_override=deployment.num_gpu_blocks_override,
        speculation=speculation,
        keeps_state_by_block=keeps_state_by_block(model),
        memory_share=deployment.gpu_memory_utilization or rules.gpu_memory_utilization,
        doubt=doubt,
    )
    return model, settings


def _chunks_beside(model: ModelSpec, speculation: Speculation | None) -> bool:
    """Whether chunks turn the manager off because hidden states are read (VllmConfig, 0.10 on)."""
    chunked = any(isinstance(cache, ChunkedAttention) for _, cache in model.caches())
    return chunked and speculation is not None and speculation.reads_target


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
