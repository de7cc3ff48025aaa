"""What SGLang takes beside its share while it starts: bounded by what is computed and captured.

SGLang 0.5.23 mem_cache/memory_pool.py (the request table) and model_executor/model_runner.py:
once the cache is there, workspaces of attention are made and CUDA graphs captured; the first
prompt then runs a chunk. What handle_gpu_memory_settings keeps for them (`memory.reserved_mib`,
1.5 MiB for a token whatever the model) is generous, and starts with less have run.
"""

from __future__ import annotations

from fractions import Fraction

from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.widths import Widths, widths_of
from kvcalc.engines.sglang.families import is_latent
from kvcalc.engines.sglang.memory import default_graph_batch, graphs_mib
from kvcalc.engines.sglang.requests import requests_at_once, table_bytes
from kvcalc.engines.sglang.reserve import reserve_of
from kvcalc.engines.sglang.settings import Settings

__all__ = ["at_start"]

_MIB = 2**20
_ITEMSIZE = 2
_WORKSPACES = 512 * _MIB
"""Workspaces of attention kernels and of cuBLAS: what SGLang itself reckons with for such."""
_HIDDEN_COPIES, _INNER_BYTES = 7, 7
"""Copies of the residual stream that are alive in a layer, and bytes for each of an MLP's inner
width: gate and up and their product in 16 bits, and a copy of it in 8 where kernels quantise."""
_LOGIT_BYTES = 14
"""Of a logit at the sampler's peak: in 16 bits, in 32, and probabilities and noise in 32."""
_LATENT_WORKSPACE = Fraction("0.025")
"""Part of the card that MLA's prefill and sparse indexers may take, as vLLM's do."""


def at_start(model: ModelSpec, settings: Settings, plan: CachePlan, cache_bytes: int) -> int:
    """Return the bytes that a rank takes at most after its cache: table, step, graphs, workspaces.

    Args:
        model: as SGLang runs it.
        settings: as resolved.
        plan: of both.
        cache_bytes: the cache at its most; tokens decide how many requests run at once.
    """
    widths = widths_of(model)
    graphs = int(graphs_mib(settings.card, reserve_of(model, settings)) * _MIB)
    computed = max(_chunk(widths, settings), _sampling(widths, settings))
    if is_latent(model):
        computed += int(_LATENT_WORKSPACE * settings.card.memory_bytes)
    return _WORKSPACES + graphs + computed + _table(settings, plan, cache_bytes)


def _chunk(widths: Widths, settings: Settings) -> int:
    """Return the tensors of a layer for a chunk of a prompt."""
    dense = -(-widths.inner.high * _INNER_BYTES // settings.tp)
    inner = -(-widths.expert_inner.high // settings.tp)
    # Workspaces of routed experts: gate and up or the outputs in one, the products in the other.
    routed = widths.experts.high * (max(2 * inner, widths.hidden.high) + inner)
    streams = widths.hidden.high * _HIDDEN_COPIES
    return settings.chunk * (dense + _ITEMSIZE * (streams + routed))


def _sampling(widths: Widths, settings: Settings) -> int:
    """Return the logits of the largest batch that a graph is captured for, and their copies."""
    batch = settings.graph_batch or default_graph_batch(settings.card, settings.tp)
    rows = batch * max(1, settings.proposed)
    stream = widths.hidden.high * _ITEMSIZE * _HIDDEN_COPIES
    return rows * (widths.vocab.high * _LOGIT_BYTES + stream)


def _table(settings: Settings, plan: CachePlan, cache_bytes: int) -> int:
    """Return the request table for as many requests as the largest cache makes room for."""
    tokens = plan.capacity(max(1, cache_bytes), at=1).kv_cache_tokens
    requests = requests_at_once(tokens, settings.context, settings.max_requests)
    return table_bytes(requests, settings.context + settings.row_extra)
