"""What each result says to people, as blocks; figures are formatted here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvcalc.core.answers import CapacityAnswer
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.logs import LogAnswer, LogComparison
from kvcalc.core.oom_values import OutOfMemory
from kvcalc.core.probed import ProbeResult
from kvcalc.core.results import (
    Comparison,
    EngineSummary,
    FileFault,
    Fragmentation,
    LayerDiff,
    LayerMap,
    PerToken,
    PlanSummary,
    PresetDetail,
    PresetSummary,
)
from kvcalc.core.server_metrics import ServerMetrics
from kvcalc.core.units import (
    UnitSystem,
    format_bytes,
)
from kvcalc.report.blocks import Block
from kvcalc.report.capacity import capacity_blocks
from kvcalc.report.cells import Size
from kvcalc.report.compare import paging_blocks
from kvcalc.report.fragmentation import fragmentation_blocks
from kvcalc.report.layers import layer_diff_blocks, layer_map_blocks
from kvcalc.report.lists import (
    engine_blocks,
    fault_blocks,
    gpu_blocks,
    preset_blocks,
    preset_list_blocks,
)
from kvcalc.report.log import comparison_blocks, log_blocks
from kvcalc.report.metrics import metrics_blocks
from kvcalc.report.oom import oom_blocks
from kvcalc.report.per_token import per_token_blocks
from kvcalc.report.plan import plan_blocks
from kvcalc.report.probe import probe_blocks

__all__ = ["view"]


def view(results: Sequence[object], units: UnitSystem) -> list[Block]:
    """Return the blocks that show the results of one command.

    Args:
        results: values of one kind, in input order.
        units: binary or decimal sizes.
    """

    def size(value: int) -> str:
        return format_bytes(value, units=units)

    kind = type(results[0]) if results else FileFault
    return _VIEWS[kind](results, size)


_View = Callable[[Sequence[Any], Size], list[Block]]


def _unsized(show: Callable[[Any], list[Block]]) -> Callable[[Any, Size], list[Block]]:
    """Return the view of what has no sizes to format."""

    def shown(result: Any, size: Size) -> list[Block]:
        del size
        return show(result)

    return shown


def _each(show: Callable[[Any, Size], list[Block]]) -> _View:
    """Return the view of results that are shown one after the other."""

    def shown(results: Sequence[Any], size: Size) -> list[Block]:
        return [block for result in results for block in show(result, size)]

    return shown


_VIEWS: dict[type, _View] = {
    PerToken: per_token_blocks,
    Comparison: paging_blocks,
    PlanSummary: plan_blocks,
    CapacityAnswer: capacity_blocks,
    LogAnswer: log_blocks,
    LogComparison: comparison_blocks,
    ServerMetrics: metrics_blocks,
    ProbeResult: probe_blocks,
    Fragmentation: _each(fragmentation_blocks),
    OutOfMemory: _each(oom_blocks),
    LayerMap: _each(_unsized(layer_map_blocks)),
    LayerDiff: _each(_unsized(layer_diff_blocks)),
    GpuSpec: gpu_blocks,
    EngineSummary: _unsized(engine_blocks),
    PresetSummary: preset_list_blocks,
    PresetDetail: _each(_unsized(preset_blocks)),
    FileFault: _unsized(fault_blocks),
}
"""Kind of result -> what shows the results of one command."""
