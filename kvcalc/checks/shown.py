"""What of a deployment is shown beside its results: its figures, and what was read of it."""

from __future__ import annotations

from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.core.check_report import Deployed, ReadSetting
from kvcalc.core.credentials import without_credentials
from kvcalc.core.errors import KvcalcError
from kvcalc.manifests.found import Server

__all__ = ["deployed"]

_TEXTS = (
    *("quantization", "load_format", "device", "task", "runner", "revision"),
    "max_model_len",  # auto: what fits
)
"""Settings that decide nothing and are texts: these are shown, others may be anything."""


def deployed(target: Target, sized: Sized | None, *, figures: bool, show: bool) -> Deployed:
    """Return what is told of a target.

    Args:
        target: what was checked.
        sized: its figures.
        figures: tell them.
        show: tell what was read.
    """
    return Deployed(
        name=target.name,
        file=target.file,
        line=target.line,
        engine=target.engine,
        engine_version=target.engine_version,
        model=_model(target),
        gpu=None if target.gpu is None else target.gpu.name,
        figures=_figures(sized) if figures and sized is not None else {},
        read=_read(target.server) if show and target.server is not None else (),
    )


def _model(target: Target) -> str | None:
    """Return what is served; a name out of a variable as what kvcalc knows it by."""
    named = target.server.model if target.server is not None else None
    if target.model is None:
        return None
    if named is None or named.value != target.model or not named.variables:
        return without_credentials(target.model)
    return str(named.shown) if target.question is None else target.question.model.name


def _figures(sized: Sized) -> dict[str, bool | int | float]:
    try:
        return sized.known()
    except KvcalcError:  # the engine refuses it, which is told
        return {}


def _read(server: Server) -> tuple[ReadSetting, ...]:
    invocation = server.invocation
    found = []

    def add(name: str, value: str | float | bool | None, kind: str, written: str,
            line: int, file: str = "") -> None:  # fmt: skip
        place = file or invocation.file
        value = without_credentials(value) if isinstance(value, str) else value
        found.append(
            ReadSetting(
                name=name,
                value=value,
                kind=kind,  # type: ignore[arg-type]  # as Setting has it
                written=written,
                where=f"{place}:{line}" if place and line else place,
            )
        )

    if server.model is not None:
        model = server.model
        add("model", model.shown, "other", model.written, model.line, model.file)
    for s in server.settings:
        text = isinstance(s.value, str) and s.kind == "other" and s.name not in _TEXTS
        if not text:
            add(s.name, s.shown, s.kind, s.written, s.line, s.file)
    gpu = invocation.gpu
    if gpu.product is not None:
        word = gpu.product
        add("gpu", word.shown, "other", gpu.product_key or "gpu", word.line, word.file)
    if gpu.devices is not None:
        add("num_gpus", gpu.devices, "other", gpu.resource or "gpus", gpu.line, gpu.file)
    if invocation.replicas is not None:
        line = invocation.replicas_line or invocation.line
        add("replicas", invocation.replicas, "other", "replicas", line)
    return tuple(found)
