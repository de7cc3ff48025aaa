"""Lists for people: cards, engines, presets, and the faults of preset files."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.results import (
    EngineSummary,
    FileFault,
    PresetDetail,
    PresetSummary,
    PresetVariant,
)
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.size import ModelSize
from kvcalc.core.units import format_count
from kvcalc.report.blocks import Block, Grid, Heading, Text
from kvcalc.report.cells import NONE, Size, layer_grid, maybe

__all__ = ["engine_blocks", "fault_blocks", "gpu_blocks", "preset_blocks", "preset_list_blocks"]


def gpu_blocks(results: Sequence[GpuSpec], size: Size) -> list[Block]:
    """Return the list of cards."""
    rows = tuple(
        (
            gpu.name,
            gpu.title,
            size(gpu.memory_bytes),
            gpu.compute_capability or gpu.architecture or NONE,
            NONE
            if gpu.memory_bandwidth_bytes_per_s is None
            else f"{gpu.memory_bandwidth_bytes_per_s / 10**9:,.0f}",
            NONE
            if "bfloat16" not in gpu.dense_flops
            else f"{gpu.dense_flops['bfloat16'] / 10**12:,.0f}",
        )
        for gpu in results
    )
    columns = ("name", "card", "memory", "cc", "GB/s", "bf16 TFLOP/s")
    return [Grid(columns, rows, text_columns=frozenset({1, 3}))]


def engine_blocks(results: Sequence[EngineSummary]) -> list[Block]:
    """Return the list of engines."""
    rows = tuple((engine.name, engine.follows, engine.checked) for engine in results)
    return [Grid(("engine", "follows", "checked against"), rows, text_columns=frozenset({1, 2}))]


def preset_list_blocks(results: Sequence[PresetSummary], size: Size) -> list[Block]:
    """Return the list of presets."""
    rows = tuple(
        (
            r.name,
            maybe(r.bytes_per_token),
            r.kinds + (f"; state {size(r.state_bytes)}" if r.state_bytes else ""),
        )
        for r in results
    )
    columns = ("preset", "B a token", "what its layers keep")
    return [Grid(columns, rows, text_columns=frozenset({2}))]


def preset_blocks(result: PresetDetail) -> list[Block]:
    """Return the blocks of one preset."""
    longest = result.max_position_embeddings
    facts = [
        f"{result.num_hidden_layers} layers, {result.dtype}"
        + (f", at most {format_count(longest)} tokens" if longest else "")
        + (f", {result.architecture}" if result.architecture else ""),
        *([f"also called: {', '.join(result.aliases)}"] if result.aliases else []),
        *(f"{', '.join(one.names)}: {_differs(one)} ({one.source})" for one in result.variants),
        *([f"draft layers, apart: {result.draft_layers}"] if result.draft_layers else []),
        *_sizes(result.size),
        f"read from: {', '.join(v for k, v in result.source.items() if v and k != 'maximum')}",
        *([f"maximum as well from: {maximum}"] if (maximum := result.source["maximum"]) else []),
        *(
            f"must give: {format_count(v)} B a token in {k}"
            for k, v in result.expect_bytes_per_token.items()
        ),
        *(
            [f"must give: {format_count(result.expect_state_bytes)} B of state a sequence"]
            if result.expect_state_bytes
            else []
        ),
        *(f"confirmed by: {line}" for line in result.confirmed_by),
        *(f"note: {line}" for line in result.notes),
    ]
    title = f"{result.name}: {result.title}"
    return [Heading(title), layer_grid(result, named=False), Text(tuple(facts))]


def _differs(variant: PresetVariant) -> str:
    return ", ".join(
        f"{key} {format_count(value) if isinstance(value, int) else value}"
        for key, value in variant.differs.items()
    )


def _sizes(size: ModelSize | None) -> list[str]:
    """Return the lines on a model's widths and weights."""
    if size is None:
        return []
    widths = (
        ("hidden size", size.hidden_size),
        ("MLP", size.intermediate_size),
        ("vocabulary", size.vocab_size),
        ("experts", size.num_experts),
        ("of these a token", size.num_experts_per_tok),
        ("expert", size.moe_intermediate_size),
        ("parameters", size.parameters),
    )
    told = [f"{name} {format_count(value)}" for name, value in widths if value is not None]
    lines = [f"size: {', '.join(told)}"] if told else []
    if size.weights_bytes is not None:
        stored = f" in {size.weights_dtype}" if size.weights_dtype else ""
        error = size.weights_error_bytes
        off = f", give or take {format_count(error)} B" if error else ""
        lines.append(
            f"weights: {format_count(size.weights_bytes)} B{stored}{off}: {size.weights_source}"
        )
    return lines


def fault_blocks(results: Sequence[FileFault]) -> list[Block]:
    """Return a line for every file that was checked."""
    lines = [
        f"{r.file}: sound" if r.message is None else f"{r.file}:{r.line}: {r.message}"
        for r in results
    ]
    return [Text(tuple(lines))]
