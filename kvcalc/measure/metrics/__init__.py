"""Metrics pages of running servers: which engine's it is, its cache, its use, and the waste now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from kvcalc.answers.server_metrics import ServerMetrics, WasteNow, said_name
from kvcalc.core.errors import InputError
from kvcalc.core.units import format_count, format_number_of, format_ratio
from kvcalc.engines import engine_of
from kvcalc.measure.metrics.pages import (
    LLAMACPP_PREFIX,
    SGLANG_PREFIX,
    TENSORRT_LLM_PREFIX,
    TGI_PREFIX,
    TRITON_PREFIX,
    VLLM_PREFIX,
    Series,
    read_llamacpp,
    read_sglang,
    read_tensorrt_llm,
    read_tgi,
    read_vllm,
    vllm_settings,
)
from kvcalc.measure.prometheus import Page, parse
from kvcalc.models.text import printable

__all__ = ["Reading", "judged", "read_metrics"]

_READERS: dict[str, Callable[[Series], list[ServerMetrics]]] = {
    VLLM_PREFIX: read_vllm,
    SGLANG_PREFIX: read_sglang,
    LLAMACPP_PREFIX: read_llamacpp,
    TGI_PREFIX: read_tgi,
    TENSORRT_LLM_PREFIX: read_tensorrt_llm,
    TRITON_PREFIX: read_tensorrt_llm,
}
"""Beginning of the names of an engine's metrics (`:` written as `_`) -> its reader."""

_SETTINGS: dict[str, Callable[[Series, Sequence[str | None]], list[dict[str, str]]]] = {
    VLLM_PREFIX: vllm_settings
}
"""The same beginning -> what reads settings of the server from the page, where it has them."""

_MOST_NAMES = 3
_MOST_REFUSED = 10


class Reading(NamedTuple):
    """What a page says.

    Attributes:
        servers: one entry an engine process that the page tells of.
        settings: of each, settings of the server that the page tells, in the engine's words.
        warnings: lines that could not be read, and figures that cannot be what they are told as.
    """

    servers: tuple[ServerMetrics, ...]
    settings: tuple[dict[str, str], ...]
    warnings: tuple[str, ...]


def read_metrics(text: str, *, strict: bool = False, where: str = "") -> Reading:
    """Read a page."""
    page = parse(text, strict=strict, where=where)
    if not page.samples:
        raise _no_page(text, page, where)
    servers: list[ServerMetrics] = []
    settings: list[dict[str, str]] = []
    refused: dict[str, str] = {}
    names = {sample.name: sample.name.replace(":", "_") for sample in page.samples}
    for prefix, reader in _READERS.items():
        mine = {name for name, plain in names.items() if plain.startswith(prefix)}
        if not mine:
            continue
        series = Series((s for s in page.samples if s.name in mine), refused)
        found = reader(series)
        servers += found
        told = _SETTINGS.get(prefix)
        replicas = [one.replica for one in found]
        settings += [{} for _ in found] if told is None else told(series, replicas)
    if not servers:
        some = list(names)[:_MOST_NAMES]
        raise InputError(
            f"no metrics of an engine that is known, but {', '.join(map(printable, some))}, ...",
            where=where,
            hint="known: vLLM, SGLang, llama-server, TGI, TensorRT-LLM (trtllm-serve has it at"
            " /prometheus/metrics)",
        )
    warnings = []
    if page.fault_count:
        first = page.faults[0]
        warnings.append(
            f"{format_number_of(page.fault_count, 'line')} could not be read; the first is line"
            f" {first.line}: {first.message}"
        )
    warnings += [
        f"{printable(name)[:80]} is {what}: it is left out"
        for name, what in list(refused.items())[:_MOST_REFUSED]
    ]
    return Reading(tuple(servers), tuple(settings), tuple(warnings))


def _no_page(text: str, page: Page, where: str) -> InputError:
    start = text.lstrip()[:1]
    if start == "<":
        message, hint = "a web page, not metrics", "the page of metrics is at /metrics"
    elif start in ("{", "["):
        message, hint = "JSON, not metrics", "trtllm-serve has them at /prometheus/metrics"
    elif not text.strip():
        message, hint = "nothing in it", "is the server started with its metrics?"
    elif page.faults:
        message = f"no metrics; line {page.faults[0].line}: {page.faults[0].message}"
        hint = "give a page in Prometheus' text format"
    else:
        message, hint = "comments, and no metrics", "is the server started with its metrics?"
    return InputError(message, where=where, hint=hint)


def judged(server: ServerMetrics, running_tokens: int | None = None) -> ServerMetrics:
    """Return a server with its waste now and the answer in a sentence.

    Args:
        server: as it was read, and compared where a model is named.
        running_tokens: tokens of the requests that run, where the caller knows them.
    """
    waste = _waste(server, running_tokens)
    server = msgspec.structs.replace(server, waste=waste)
    held = None if waste is None else waste.held_tokens
    if running_tokens is not None and (held is None or running_tokens > held):
        note = (
            "what the blocks in use hold is not told, so what of it is empty is not either"
            if held is None
            else f"the running requests are given {format_number_of(running_tokens, 'token')}, and"
            f" the blocks in use hold {format_count(held)}: a prefix that requests share is held"
            " once, or the page was read at another moment"
        )
        server = msgspec.structs.replace(server, notes=(*server.notes, note))
    return msgspec.structs.replace(server, verdict=" ".join(_said(server)))


def _waste(server: ServerMetrics, given: int | None) -> WasteNow | None:
    block, used, running = server.block_size, server.blocks_used, server.running
    whole_blocks = server.block_tokens_are_capacity is not False
    held = used * block if used is not None and block and whole_blocks else None
    if held is None and engine_of(server.engine).counts_tokens:
        held = server.tokens_used
    tail = None
    if running is not None and block and whole_blocks:
        most = running * (block - 1)
        tail = (0, most if held is None else min(most, held))
    idle = None if server.usage_ratio is None else 1 - server.usage_ratio
    unused = held - given if held is not None and given is not None and given <= held else None
    if held is None and tail is None and idle is None:
        return None
    return WasteNow(
        held_tokens=held,
        running_tokens=given,
        unused_tokens=unused,
        tail_tokens=tail,
        idle_ratio=idle,
    )


def _said(server: ServerMetrics) -> Sequence[str]:
    said = []
    by = "" if server.running is None else f" by {format_number_of(server.running, 'request')}"
    if server.usage_ratio is not None:
        blocks = ""
        if server.blocks_used is not None and server.num_blocks:
            used = format_count(server.blocks_used)
            blocks = f" ({used} of {format_number_of(server.num_blocks, 'block')})"
        said.append(f"{format_ratio(server.usage_ratio)} of the cache is in use{blocks}{by}.")
    elif server.tokens_used is not None:
        said.append(f"{format_number_of(server.tokens_used, 'token')} in use{by}.")
    elif server.running is not None:
        verb = "runs" if server.running == 1 else "run"
        said.append(f"{format_number_of(server.running, 'request')} {verb}.")
    if server.waiting:
        verb = "waits" if server.waiting == 1 else "wait"
        said.append(f"{format_number_of(server.waiting, 'request')} {verb}.")
    if server.kv_cache_tokens is not None:
        said.append(f"It holds {format_number_of(server.kv_cache_tokens, 'token')}.")
    if server.block_tokens is not None and server.block_tokens_are_capacity is False:
        product = format_count(server.block_tokens)
        said.append(f"Block size x blocks, {product}, is not the capacity.")
    if server.preemptions:
        said.append(
            f"{format_number_of(server.preemptions, 'request')} lost their cache since the start."
        )
    if server.predicted is not None:
        many = len(server.differences)
        said.append(
            f"{format_number_of(many, 'figure')} {'differs' if many == 1 else 'differ'} from what"
            f" is predicted: {', '.join(said_name(d.name) for d in server.differences)}."
            if many
            else "All figures that can be compared are as predicted."
            if server.agreed
            else "No figure of the page can be compared."
        )
    return said
