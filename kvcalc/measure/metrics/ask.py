"""A page from wherever it is, read, compared where a model is named, and judged."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.core.server_metrics import ServerMetrics
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.metrics.predicted import compared
from kvcalc.measure.source import named_source, read_page

__all__ = ["Asked", "servers"]


class Asked(NamedTuple):
    """What a caller says of the server behind a page.

    Attributes:
        model: what it serves; None to read the page alone.
        deployment: how, as far as the caller says; an engine `none` is the page's.
        running_tokens: of the requests that run.
        kv_cache_bytes: of each rank.
    """

    model: ModelSpec | None = None
    deployment: Deployment | None = None
    running_tokens: int | None = None
    kv_cache_bytes: int | None = None


def servers(
    page: str, asked: Asked, *, timeout: float, strict: bool = False
) -> tuple[ServerMetrics, ...]:
    """Read a page and return each engine behind it.

    Args:
        page: an address, a file, - for stdin, or the page itself: a text of several lines.
        asked: what the caller says.
        timeout: seconds for a server's whole answer.
        strict: refuse a page with a line that is not in the format.

    Raises:
        InputError: no page, or none of an engine that is known.
        UnavailableError: the server does not answer.
        UsageError: a deployment without a model, or of another engine than the page's.
    """
    if asked.deployment is not None and asked.model is None:
        raise UsageError("a deployment of which model?", hint="give the model as well")
    itself = "\n" in page
    text = page if itself else read_page(page, timeout=timeout)
    reading = read_metrics(text, strict=strict, where="" if itself else named_source(page))
    found = []
    for server, settings in zip(reading.servers, reading.settings, strict=True):
        held = server
        if asked.model is not None:
            deployment = _of_engine(asked.deployment or Deployment(), server.engine)
            held = compared(server, asked.model, deployment, settings, asked.kv_cache_bytes)
        told = judged(held, asked.running_tokens)
        found.append(replace(told, notes=(*told.notes, *reading.warnings)))
    return tuple(found)


def _of_engine(deployment: Deployment, engine: str) -> Deployment:
    if deployment.engine == "none":
        return replace(deployment, engine=engine)
    if deployment.engine != engine:
        raise UsageError(
            f"the page is {engine}'s, not {deployment.engine}'s", hint="leave out engine"
        )
    return deployment
