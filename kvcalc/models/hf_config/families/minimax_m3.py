"""MiniMax-M3: grouped-query attention, and an indexer's key on the sparse layers."""

from __future__ import annotations

from kvcalc.core.attention import Indexer
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    draft_runs,
    num_layers,
    runs,
)
from kvcalc.models.hf_config.states import draft_count, need_attention

__all__ = ["read"]

_CLASS = "MiniMaxM3VLTextConfig"
# transformers 5.24 models/minimax_m3_vl/configuration_minimax_m3_vl.py


def read(f: Fields) -> Layers:
    """Return K and V everywhere, and the key of one index vector on the sparse layers."""
    count = num_layers(f)
    full = need_attention(f)
    sparse = f.section("sparse_attention_config")
    index = Indexer(
        index_head_dim=(
            sparse.default_whole("sparse_index_dim", default=128, of=_CLASS)
            if sparse
            else f.default_whole("index_head_dim", default=128, of=_CLASS)
        ),
        index_dtype="bfloat16",  # vLLM 0.33 models/minimax_m3/common/indexer.py (measured)
    )
    kinds: dict[str, Caches] = {"full_attention": (full,), "minimax_m3_sparse": (full, index)}
    layers = by_type(f, count, kinds)
    if layers is None:
        flags = sparse.wholes("sparse_attention_freq") if sparse else None
        if sparse is None or flags is None:
            raise f.missing("sparse_attention_config.sparse_attention_freq", "layer_types")
        if len(flags) < count:
            raise sparse.fault(
                "sparse_attention_freq", f"{len(flags)} entries", f"one for each of {count} layers"
            )
        layers = [
            kinds["minimax_m3_sparse" if flag else "full_attention"] for flag in flags[:count]
        ]
    # vLLM 0.33 models/minimax_m3/nvidia/mtp.py: draft layers are sparse.
    drafts = draft_count(f, "num_mtp_modules", "num_nextn_predict_layers")
    return Layers(runs(layers), draft_runs(drafts, full, index))
