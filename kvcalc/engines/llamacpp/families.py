"""Which graph the models of an architecture have: llama.cpp b11434 src/models/*.cpp.

An architecture is here where the real llama.cpp gave the same bytes (tests/engines/llamacpp).
Where a file decides what its architecture leaves open (how experts are gated), all it can be is
listed.
"""

from __future__ import annotations

from itertools import product
from typing import Literal

from kvcalc.engines.llamacpp.graph_shapes import Family, Gating

__all__ = ["SCALED_EXPERTS", "SINGLE_PARTS", "families"]

_PLAIN = Family()
_HEADS = Family(qk_norm="heads")
_NORM = Family(norm="NORM")
_ROPES: tuple[Literal["all", "none"], ...] = ("all", "none")
_FAMILIES: dict[str, Family] = {
    "arcee": Family(mlp="squared"),
    "bailingmoe": _PLAIN,
    "bailingmoe2": _HEADS,
    "cohere2": _NORM._replace(rope="windowed", parallel=("mlp", "stream", "attention")),
    "command-r": _NORM._replace(parallel=("mlp", "stream", "attention")),
    "dbrx": _NORM._replace(fused=True),
    "deci": _PLAIN,
    "deepseek": _PLAIN,
    "deepseek2": _PLAIN,
    "dots1": _HEADS,
    "ernie4_5": _PLAIN,
    "ernie4_5-moe": Family(gate_bias=True),
    "exaone": _PLAIN,
    "exaone4": Family(before=False, after=True, qk_norm="heads", rope="windowed"),
    "gemma": Family(embedding="scaled", q_scaled=True),
    "gemma2": Family(embedding="scaled", after=True, q_scaled=True, capped=True),
    "gemma3": Family(embedding="by_token", after=True, q_scaled=True, qk_norm="heads"),
    "gemma4": Family(embedding="by_token", after=True, qk_norm="heads", v_norm=True),
    "glm4": Family(after=True, mlp="joined"),
    "glm4moe": _HEADS,
    "gpt-oss": Family(gating="chosen", gate_norm=False),
    "gptneox": _NORM._replace(mlp="plain", fused=True),
    "granite": Family(embedding="scaled"),
    "granitehybrid": Family(embedding="scaled"),
    "granitemoe": Family(embedding="scaled"),
    "hunyuan-dense": _HEADS,
    "hunyuan-moe": _HEADS,
    "internlm2": _PLAIN,
    "lfm2": _HEADS._replace(residual_first=("attention", "mlp")),
    "llama": _PLAIN,
    "llama4": Family(
        gating="sigmoid", gate_norm=False, gate_first=True, tempered=True, rope="windowed"
    ),
    "mamba2": _PLAIN,
    "mimo2": Family(gating="sigmoid", gate_bias=True),
    "minicpm": Family(embedding="scaled"),
    "minimax-m2": Family(qk_norm="rows"),
    "mistral3": _PLAIN,
    "nemotron": _NORM._replace(mlp="squared"),
    "nemotron_h": Family(mlp="squared", rope="none"),
    "olmo": _NORM,
    "olmo2": Family(before=False, after=True, qk_norm="rows"),
    "olmoe": Family(qk_norm="rows", gate_norm=False),
    "openelm": Family(qk_norm="heads", fused=True, residual_first=("attention",)),
    "orion": _NORM,
    "phi2": _NORM._replace(mlp="plain", q_scaled=True, parallel=("attention", "mlp", "stream")),
    "phi3": Family(q_scaled=True, mlp="joined", fused=True, residual_first=("mlp",)),
    "phimoe": Family(q_scaled=True, residual_first=("mlp",)),
    "qwen2": _PLAIN,
    "qwen2moe": Family(gate_norm=False, shared_gate="silu"),
    "qwen2vl": Family(axes=4),
    "qwen3": _HEADS,
    "qwen35": _HEADS._replace(axes=4),
    "qwen35moe": _HEADS._replace(axes=4, shared_gate="sigmoid"),
    "qwen3moe": _HEADS,
    "qwen3next": _HEADS._replace(shared_gate="sigmoid"),
    "qwen3vl": _HEADS._replace(axes=4),
    "qwen3vlmoe": _HEADS._replace(axes=4),
    "seed_oss": _PLAIN,
    "smollm3": _PLAIN,
    "stablelm": _NORM,
    "starcoder2": _NORM._replace(mlp="plain"),
    "xverse": _PLAIN,
}
_OPEN_GATES = frozenset(
    ("bailingmoe2", "deepseek2", "dots1", "glm4moe", "minimax-m2", "deepseek", "bailingmoe")
)
"""Architectures whose files say whether weights of experts are normed, scaled and biased."""

_GATES: tuple[tuple[Gating, bool, bool, bool], ...] = (
    ("softmax", False, False, False),
    ("softmax", False, False, True),
    ("softmax", False, True, False),
    ("sigmoid", True, False, False),
    ("sigmoid", True, True, False),
    ("sigmoid", True, True, True),
)
"""How they gate: the scores, a bias, whether chosen weights are made to add up to 1, and scaled."""

SCALED_EXPERTS = frozenset(
    (
        "cohere2moe",
        "deepseek32",
        "gemma4",
        "glm-dsa",
        "hy_v3",
        "llama",
        "mellum",
        "mistral3",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
    )
)
"""Architectures whose experts' weights can have scales of their own (NVFP4)."""

_OPEN_FUSED = frozenset(("bailingmoe2", "dbrx", "gptneox", "phi3"))
"""Architectures whose files have one matrix for queries, keys and values, or three."""

SINGLE_PARTS = frozenset(("mamba2", "nemotron_h"))
"""Architectures whose layers are a mixer, attention or an MLP, and not two of them."""

_OPEN_ROPE = frozenset(("granitehybrid",))
"""Architectures whose models turn queries and keys or do not."""

_OPEN_AXES = frozenset(("glm4", "glm4moe"))
"""Architectures whose models that see images have four positions a token."""


def families(arch: str | None) -> tuple[Family, ...]:
    """Return what the graph of an architecture can be; nothing where kvcalc does not know it."""
    found = _FAMILIES.get(arch or "")
    if found is None:
        return ()
    known = [found]
    if arch in _OPEN_GATES:
        known = [
            found._replace(gating=gating, gate_bias=bias, gate_norm=norm, gate_scale=scale)
            for gating, bias, norm, scale in _GATES
        ]
    if arch in _OPEN_FUSED:
        known = [f._replace(fused=fused) for f, fused in product(known, (False, True))]
    if arch in _OPEN_AXES:
        known = [f._replace(axes=axes) for f, axes in product(known, (1, 4))]
    if arch == "gemma4":
        known = [found, found._replace(v_is_k=True)]
    if arch in _OPEN_ROPE:
        known = [f._replace(rope=rope) for f in known for rope in _ROPES]
    return tuple(known)
