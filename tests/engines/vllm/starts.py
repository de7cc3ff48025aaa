"""Public starts of vLLM against what is predicted for them: facts of logs, and the table of both.

`starts.tsv` holds facts alone: card, release, flags, weights and what was left, as logs and reports
state them, and where. Every other row is of the fitted half; only those may decide a number in
kvcalc/engines/vllm/profile.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvcalc.core.attention import FullAttention, Mla
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize, Tower
from kvcalc.engines import plan
from kvcalc.engines.vllm.profile import Step, steps_of
from kvcalc.engines.vllm.settings import resolve
from kvcalc.engines.vllm.version import release
from kvcalc.models.presets import load_gpu
from tests.engines import starts as starts_of
from tests.engines.starts import first_budget, rows_of, tsv

__all__ = ["Start", "model_of", "rows", "starts"]

_HERE = Path(__file__).parent
_GIB = 2**30


@dataclass(frozen=True)
class Start(starts_of.Start):
    """One start.

    Attributes:
        step: what the profile is taken to run.
        v0: the engine before V1 is profiled.
    """

    step: Step
    v0: bool

    LOGGED = "kv_gib"
    ROUNDING = 0.005

    def term(self, *names: str) -> tuple[float, float]:
        """Return what terms take together, GiB."""
        found = [term for term in self.budget.terms if term.name in names]
        return sum(t.low_bytes for t in found) / _GIB, sum(t.high_bytes for t in found) / _GIB


@cache
def _models() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in tsv(_HERE / "start_models.tsv")}


def _whole(text: str) -> int | None:
    return int(text) if text else None


def _towers(text: str) -> tuple[Tower, ...]:
    """Return the tower of `hidden:inner:layers`; `yes` is one of unknown widths."""
    if ":" not in text:
        return ()
    hidden, inner, layers = map(int, text.split(":"))
    return (Tower(hidden_size=hidden, intermediate_size=inner, num_layers=layers),)


def model_of(name: str) -> ModelSpec:
    """Return a model of the widths alone: what is left does not depend on how layers cache."""
    row = _models()[name]
    if row["kv_heads"]:
        rows = FullAttention(num_kv_heads=int(row["kv_heads"]), head_dim=int(row["head_dim"]))
        layer: FullAttention | Mla = rows
    else:
        layer = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
    layers = int(row["layers"])
    return ModelSpec(
        name=name,
        num_hidden_layers=layers,
        dtype="bfloat16",
        layers=(LayerRun(count=layers, caches=(layer,)),),
        max_position_embeddings=int(row["max_len"]),
        architecture=row["architecture"],
        num_attention_heads=int(row["heads"]),
        size=ModelSize(
            hidden_size=int(row["hidden"]),
            intermediate_size=_whole(row["inner"]),
            vocab_size=int(row["vocab"]),
            num_experts=_whole(row["experts"]),
            num_experts_per_tok=_whole(row["per_token"]),
            moe_intermediate_size=_whole(row["expert_inner"]),
            towers=_towers(row["tower"]),
        ),
    )


def _gpu(text: str) -> GpuSpec:
    name, *own = text.split(":")
    if not own:
        return load_gpu(name)
    mib, capability = own
    return GpuSpec(
        name=name, title=name, memory_bytes=int(mib) * 2**20, compute_capability=capability
    )


def _start(facts: dict[str, str]) -> Start:
    model = model_of(facts["model"])
    deployment = Deployment(
        engine="vllm",
        engine_version=facts["release"],
        gpu=_gpu(facts["gpu"]),
        dtype=facts["dtype"] or "auto",
        tensor_parallel_size=int(facts["tp"]),
        pipeline_parallel_size=int(facts["pp"]),
        gpu_memory_utilization=float(facts["utilization"]),
        max_model_len=_whole(facts["max_model_len"]),
        max_num_batched_tokens=_whole(facts["max_num_batched_tokens"]),
        max_num_seqs=_whole(facts["max_num_seqs"]),
        enforce_eager=True if facts["enforce_eager"] else None,
        enable_expert_parallel=True if facts["experts_dealt"] else None,
    )
    planned = plan(model, deployment)
    resolved, settings = resolve(model, deployment, [])
    v0 = release(planned.engine_version).engine == "v0"
    step = steps_of(resolved, settings, deployment, v0=v0, last=len(planned.ranks) == 1)[-1]
    return Start(facts, first_budget(facts, model, deployment, planned), step, v0)


@cache
def starts() -> tuple[Start, ...]:
    """Return all starts with what is predicted for them."""
    return tuple(_start(facts) for facts in tsv(_HERE / "starts.tsv"))


def rows() -> list[tuple[str, ...]]:
    """Return the table: a row a start, in GiB, under COLUMNS."""
    return rows_of(starts())
