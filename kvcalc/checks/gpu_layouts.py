"""How the ranks of an engine lie on so many GPUs: layouts that use them, each tried by a plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import said
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.engines import plan
from kvcalc.engines.changes import Change
from kvcalc.manifests.found import Server
from kvcalc.sizing.sizes import sizes_asked

__all__ = ["fewer", "more", "wanted_gpus"]

_FIELDS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_MOST_TRIED = 12


class _Layout(NamedTuple):
    """Sizes that differ from those of a deployment."""

    changes: dict[str, int]
    gpus: int


def wanted_gpus(server: Server, deployment: Deployment) -> tuple[int, int]:
    """Return the GPUs that the ranks of all nodes need, and the number of nodes."""
    other = {s.name: s.value for s in server.settings}
    sizes = sizes_asked(deployment)
    local = other.get("data_parallel_size_local")
    if isinstance(local, int) and local > 0:  # this server's part of the replicas
        return sizes.tp * sizes.pp * local, 1
    nodes = server.invocation.nodes
    given = other.get("nnodes")
    if isinstance(given, int) and given > nodes:
        nodes = given
    return sizes.num_gpus, nodes


def fewer(target: Target, gpus: int) -> str:
    """Return how to set a server for fewer GPUs than it uses; "" where nothing that was tried runs.

    As few sizes as can be are changed, and as many of the GPUs are used.
    """
    found = sorted(_smaller(target, gpus), key=_cost)
    for layout in found[:_MOST_TRIED]:
        words = _words(target, layout)
        if words and _runs(target, layout):
            return f"set {words}"
    return ""


def _cost(layout: _Layout) -> tuple[int, bool, int]:
    """Order layouts: few changes, replicas before what splits a model, many GPUs."""
    return len(layout.changes), "data_parallel_size" not in layout.changes, -layout.gpus


def more(target: Target, gpus: int) -> list[str]:
    """Return how to set a server for all of more GPUs than it uses: longer sequences, or more."""
    question = target.question
    if question is None or target.server is None:
        return []
    used, _ = wanted_gpus(target.server, question.deployment)
    if not used or gpus % used:
        return []
    found = []
    for field, what in (
        ("tensor_parallel_size", "for longer sequences"),
        ("data_parallel_size", "for more of them"),
    ):
        now = getattr(question.deployment, field)
        layout = _Layout({field: now * (gpus // used)}, gpus)
        words = _words(target, layout)
        if words and _runs(target, layout):
            found.append(f"{words} {what}")
    if len(found) == 1:
        found = [found[0].replace("for more of them", "for more sequences")]
    return found


def _smaller(target: Target, gpus: int) -> Iterator[_Layout]:
    question = target.question
    if question is None or target.server is None:
        return
    now = [getattr(question.deployment, field) for field in _FIELDS]
    ranges = [[n for n in range(1, most + 1) if n == most or most % n == 0] for most in now]
    for sizes in product(*ranges):
        changes = {
            field: size for field, size, was in zip(_FIELDS, sizes, now, strict=True) if size != was
        }
        if not changes:
            continue
        deployment = _changed(target, changes)
        if deployment is None:
            continue
        wanted, _ = wanted_gpus(target.server, deployment)
        if wanted <= gpus:
            yield _Layout(changes, wanted)


def _changed(target: Target, changes: dict[str, int]) -> Deployment | None:
    assert target.question is not None  # noqa: S101 - its callers have looked
    try:
        return Change("", dict(changes)).applied(target.question).deployment
    except KvcalcError:
        return None


def _words(target: Target, layout: _Layout) -> str:
    words = [said(target, field, size) for field, size in layout.changes.items()]
    return "" if None in words else " ".join(str(word) for word in words)


def _runs(target: Target, layout: _Layout) -> bool:
    """Whether the engine takes a layout on so many GPUs, and what is asked fits as far as known."""
    question = target.question
    assert question is not None  # noqa: S101 - its callers have looked
    deployment = _changed(target, layout.changes)
    if deployment is None or target.server is None:
        return False
    if wanted_gpus(target.server, deployment)[0] != layout.gpus:
        return False
    try:
        if target.no_card is not None or deployment.engine == "tgi":
            return plan(question.model, deployment) is not None
        return Sized(question._replace(deployment=deployment)).fits
    except KvcalcError:
        return False
