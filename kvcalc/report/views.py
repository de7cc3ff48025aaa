"""What each result says to people, as blocks; figures are formatted here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from kvcalc.core.units import UnitSystem, format_bytes
from kvcalc.report.blocks import Block

__all__ = ["view"]


def view(results: Sequence[object], units: UnitSystem) -> list[Block]:
    """Return the blocks that show the results of one command.

    Args:
        results: values of one kind, in input order.
        units: binary or decimal sizes.
    """

    def size(value: int) -> str:
        return format_bytes(value, units=units)

    found = _VIEWS[type(results[0]).__name__ if results else "FileFault"]
    show = getattr(import_module(f"kvcalc.report.{found.module}"), found.function)
    sizes = (size,) if found.sized else ()
    if not found.each:
        blocks: list[Block] = show(results, *sizes)
        return blocks
    return [block for result in results for block in show(result, *sizes)]


class _View(NamedTuple):
    """What shows one kind of result; imported when there is one.

    Attributes:
        module, function: of this room.
        each: it takes one result at a time, not all of a command.
        sized: it formats sizes.
    """

    module: str
    function: str
    each: bool = False
    sized: bool = True


_VIEWS = {
    "PerToken": _View("per_token", "per_token_blocks"),
    "Comparison": _View("compare", "paging_blocks"),
    "PlanSummary": _View("plan", "plan_blocks"),
    "CapacityAnswer": _View("capacity", "capacity_blocks"),
    "LogAnswer": _View("log", "log_blocks"),
    "LogComparison": _View("log", "comparison_blocks"),
    "ServerMetrics": _View("metrics", "metrics_blocks"),
    "ProbeResult": _View("probe", "probe_blocks"),
    "Fragmentation": _View("fragmentation", "fragmentation_blocks", each=True),
    "OutOfMemory": _View("oom", "oom_blocks", each=True),
    "LayerMap": _View("layers", "layer_map_blocks", each=True, sized=False),
    "LayerDiff": _View("layers", "layer_diff_blocks", each=True, sized=False),
    "GpuSpec": _View("lists", "gpu_blocks"),
    "EngineSummary": _View("lists", "engine_blocks", sized=False),
    "PresetSummary": _View("lists", "preset_list_blocks"),
    "PresetDetail": _View("lists", "preset_blocks", each=True, sized=False),
    "FileFault": _View("lists", "fault_blocks", sized=False),
}
"""Name of a kind of result -> what shows it."""
