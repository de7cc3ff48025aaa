"""What a release does otherwise than the newest, told beside the plan, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.rules import COMPARED
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.version import NEWEST, release

__all__ = ["not_modelled", "notes_of_release", "release_convention"]

_BLACKWELL = 10


def notes_of_release(model: ModelSpec, grouping: Grouping, settings: Settings) -> Iterator[str]:
    """Yield what the release makes of the figures that it logs, and of its start-up check."""
    rules, groups = settings.rules, grouping.groups
    if rules.report == "even_groups" and len(groups) > 1:
        block = min(members[0].spec.block for members in groups)
        yield (
            f"the logged tokens are those of one of {len(groups)} groups in blocks of"
            f" {format_count(block)}, as until 0.20.0: concurrency x maximum is what fits"
        )
    if rules.check == "first_group" and len(groups) > 1:
        yield (
            "the start-up check of 0.14 to 0.18 asks for the first group's blocks alone: a server"
            " can start that cannot hold one sequence of the maximum"
        )
    if rules.checks_whole_model and settings.pp > 1:
        yield (
            "the start-up check of 0.14 to 0.16 compares what all"
            f" {settings.pp} pipeline stages keep with the memory of one: it refuses lengths that"
            " would fit"
        )
    if rules.check == "layers" and grouping.padding_layers:
        yield (
            "the start-up check until 0.13 leaves the empty places for layers out: a server can"
            " start that cannot hold one sequence of the maximum"
        )
    if model.architecture == "NemotronHForCausalLM" and rules.nemotron_dtype == "float16":
        yield (
            "0.13 to 0.19 keep states in float16 where the config names no mamba_ssm_cache_dtype"
            " (--mamba-ssm-cache-dtype float16)"
        )
    if settings.num_gpu_blocks_override is not None and not rules.override_in_check:
        yield (
            "the start-up check compares with the memory, not with num_gpu_blocks_override, as"
            " until 0.20.0"
        )


def not_modelled(layers: Layers, grouping: Grouping, settings: Settings) -> tuple[str, ...]:
    """Return what of the release is not modelled, with what it changes."""
    rules, at = settings.rules, settings.release.number
    found = []
    several = len(grouping.groups) > 1
    if settings.pp > 1 and several and at < (0, 11, 0):
        found.append(
            "until 0.10 every stage made groups of its own layers: a block can be narrower than"
            " here"
        )
    kept = any(p.spec.keeps_all for members in grouping.groups for p in members)
    if rules.check == "layers" and kept:
        found.append(
            "the start-up check until 0.13 counts windows as if they were freed, even where they"
            " are not: it can let a start pass that this plan refuses"
        )
    sparse = any(p.spec.kind == "mla" and p.spec.ratio == 1 for p in layers.placed) and (
        "DEEPSEEK_V32_INDEXER" in layers.backends
    )
    if sparse and settings.card.family == _BLACKWELL and (0, 18, 0) <= at < (0, 31, 0):
        found.append(
            "the block size of sparse MLA on Blackwell was not determined for 0.18 to 0.30: it is"
            " 32 or 64"
        )
    return tuple(found)


def release_convention(settings: Settings) -> Iterator[str]:
    """Yield what is taken for granted of the release."""
    at = settings.release
    compared = [release(name) for name in COMPARED.split()]
    if at.number not in {other.number for other in compared}:
        near = [
            *[other for other in compared if other.number < at.number][-1:],
            *[other for other in compared if other.number > at.number][:1],
        ]
        told = " and ".join(str(other) for other in near)
        yield f"The sources of {at} were not compared: its rules were told from those of {told}."
    if at.line < NEWEST.line:
        yield f"Kernels are chosen as {NEWEST} chooses them, but for the rules known of {at}."
    yield _memory(settings)


def _memory(settings: Settings) -> str:
    """Say what of the card the cache gets: config/cache.py; v1/worker/gpu_worker.py."""
    share = settings.memory_share
    at = settings.release.number
    if at < (0, 18, 0):
        graphs = "CUDA graphs come on top of it"
    elif at < (0, 20, 0):
        graphs = "CUDA graphs come on top of it unless their estimate is switched on"
    elif at < (0, 29, 0):
        graphs = "CUDA graphs are estimated and taken off (as nothing by the newer runner)"
    else:
        graphs = "CUDA graphs are estimated and taken off"
    return (
        f"Unless its bytes are given, the cache gets what is left of {share} of the card; {graphs}."
    )
