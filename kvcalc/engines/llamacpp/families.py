"""Which graph the models of an architecture have: llama.cpp b11434 src/models/*.cpp.

An architecture is here where the real llama.cpp gave the same bytes (tests/engines/llamacpp).
Where a file decides what its architecture leaves open (how experts are gated), all it can be is
listed.
"""

from __future__ import annotations

from itertools import product

from kvcalc.engines.llamacpp.graph import Family

__all__ = ["families"]

_PLAIN = Family()
_HEADS = Family(qk_norm="heads")
_FAMILIES: dict[str, Family] = {
    "cohere2": Family(norm="NORM", rope="windowed", parallel=True),
    "deci": _PLAIN,
    "deepseek2": Family(gate_norm=False),
    "exaone4": Family(before=False, after=True, qk_norm="heads", rope="windowed"),
    "gemma2": Family(embedding="scaled", after=True, q_scaled=True, capped=True),
    "gemma3": Family(embedding="by_token", after=True, q_scaled=True, qk_norm="heads"),
    "glm4moe": Family(qk_norm="heads", gating="sigmoid", gate_bias=True),
    "gpt-oss": Family(gating="chosen", gate_norm=False, crop="end"),
    "llama": _PLAIN,
    "llama4": Family(
        gating="sigmoid", gate_norm=False, gate_first=True, tempered=True, rope="windowed"
    ),
    "mimo2": Family(gating="sigmoid", gate_bias=True),
    "olmo2": Family(before=False, after=True, qk_norm="rows"),
    "openelm": Family(qk_norm="heads", fused=True, residual_first=True),
    "phi3": Family(q_scaled=True, mlp="joined", fused=True),
    "qwen2": _PLAIN,
    "qwen3": _HEADS,
    "qwen3moe": _HEADS,
}
_OPEN_GATES = frozenset(("deepseek2", "glm4moe"))
"""Architectures whose files say whether weights of experts are normed, scaled and biased."""


def families(arch: str | None) -> tuple[Family, ...]:
    """Return what the graph of an architecture can be; nothing where kvcalc does not know it."""
    found = _FAMILIES.get(arch or "")
    if found is None:
        return ()
    if arch not in _OPEN_GATES:
        return (found,)
    gates = [("softmax", False), ("sigmoid", True), ("sigmoid", False)]
    return tuple(
        found._replace(gating=gating, gate_bias=bias, gate_norm=norm, gate_scale=scale)
        for (gating, bias), norm, scale in product(gates, (False, True), (False, True))
    )
