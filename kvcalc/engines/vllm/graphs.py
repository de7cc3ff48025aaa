"""CUDA graphs of decodes over states: every sequence of one has a block for its state.

vLLM 0.20 to 0.33 config/compilation.py, resolve_cudagraph_mode_and_sizes, which refuses more
sequences than blocks; 0.18 and 0.19 (adjust_cudagraph_sizes_for_mamba_cache) capture smaller graphs
instead; before, the kernel of a gated delta net fails while they are captured
(layers/mamba/ops/causal_conv1d.py, causal_conv1d_update with validate_data).
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Floor
from kvcalc.core.recurrent import GatedDeltaNet, KimiDeltaAttention, LightningAttention
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.arguments import graph_mode
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.kernels import BLACKWELL
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.refusals import stands
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.version import NEWEST

__all__ = ["state_floors"]

_NO_GRAPH_UNTIL = {"TRITON_MLA": (0, 22), "FLEX_ATTENTION": (0, 20)}
"""Attention backend -> the line of releases from which it is captured in decodes."""
_ONE_TOKEN = {"CUTLASS_MLA": ((0, 0), NEWEST.line), "TRITON_MLA": ((0, 26), (0, 30))}
"""Attention backend -> lines of releases in which its graphs take one token of a sequence."""
_MOST = 512  # sequences of the largest graph
_EVEN_STEPS = (0, 11, 1)
"""Before, sizes of graphs rise by 8; since then by 16 from 256 on."""

_NEEDED = "each sequence of a decode's CUDA graph has a block for its state"


def state_floors(
    model: ModelSpec, deployment: Deployment, layers: Layers, settings: Settings
) -> tuple[Floor, ...]:
    """Return the blocks without which a model with states does not start.

    Args:
        model: with draft layers behind its own.
        deployment: as asked for.
        layers: as described to the planner.
        settings: as resolved.
    """
    if all(p.spec.kind != "state" for p in layers.placed):
        return ()
    whole = graph_mode(deployment) not in ("none", "piecewise")
    if not whole or not _decodes_in_graphs(model, layers, settings):
        return ()
    at, seqs = settings.release, settings.max_num_seqs
    if stands("sequences-over-state-blocks", at):
        return (
            Floor(
                code="sequences-over-state-blocks",
                pool="blocks",
                units=seqs,
                setting="max_num_seqs",
                message=f"max_num_seqs {format_count(seqs)} is more than the {{units}} blocks of"
                f" the cache, and {_NEEDED}",
                line=f"ValueError: max_num_seqs ({seqs}) exceeds available Mamba cache blocks"
                " ({units}). Each decode sequence requires one Mamba cache block, so CUDA graph"
                " capture cannot proceed. Please lower max_num_seqs to at most {units} or increase"
                " gpu_memory_utilization.",
            ),
        )
    checked = any(isinstance(c, (GatedDeltaNet, KimiDeltaAttention)) for _, c in model.caches())
    if checked and settings.speculation is None and stands("graphs-over-state-blocks", at):
        largest = _largest(seqs, settings)
        return (
            Floor(
                code="graphs-over-state-blocks",
                pool="blocks",
                units=largest,
                setting="max_num_seqs",
                message=f"the largest CUDA graph decodes {format_count(largest)} sequences"
                f" (max_num_seqs {format_count(seqs)}), more than the {{units}} blocks of the"
                f" cache, and {_NEEDED}",
                line="AssertionError: assert num_cache_lines >= batch",
            ),
        )
    return ()


def _decodes_in_graphs(model: ModelSpec, layers: Layers, settings: Settings) -> bool:
    """Whether whole decodes are captured: every backend must take what one sequence decodes.

    v1/attention/backends (AttentionCGSupport): those of states and most of attention take any even
    batch; FlashInfer does where trtllm-gen serves it; lightning attention takes one token each.
    """
    at = settings.release.line
    never = any(at < _NO_GRAPH_UNTIL.get(name, at) for name in layers.backends)
    if never or is_pooling(model):
        return False
    if settings.speculation is None:
        return True
    flashinfer = "FLASHINFER" in layers.backends and settings.card.family != BLACKWELL
    single = (_ONE_TOKEN[name] for name in layers.backends if name in _ONE_TOKEN)
    alone = any(first <= at <= last for first, last in single)
    lightning = any(isinstance(cache, LightningAttention) for _, cache in model.caches())
    return not (flashinfer or alone or lightning)


def _largest(seqs: int, settings: Settings) -> int:
    """Return the sequences of the largest decode graph: config/vllm.py, _set_cudagraph_sizes."""
    most = min(seqs, _MOST, settings.max_num_batched_tokens)
    step = 16 if settings.release.number >= _EVEN_STEPS else 8
    sizes: list[int] = [1, 2, 4, *range(8, 256, 8), *range(256, _MOST + 1, step)]
    return max(size for size in sizes if size <= most)
