"""Devices that lines of llama.cpp are about: which are GPUs, and what the lines say of one of them.

A line is of one buffer, in hundredths of a MiB; the table of the memory's breakdown is of all
buffers of a device, in whole MiB: it counts where there is no such line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcalc.core.logs import Fact

__all__ = ["Devices", "Told", "gpus_of", "is_host", "more_than_devices", "on_device"]

Devices = Mapping[str, Mapping[str, list[int]]]
"""Device -> figure -> [least, most] bytes of its lines together."""

_FIGURES = {
    "weights": (("model_buffer",), "device_model"),
    "compute buffers": (("compute_buffer",), "device_compute"),
    "cache": (("kv_buffer", "state_buffer"), "device_context"),
    "other": ((), "device_other"),
}
"""Term -> the figures of its lines, and of the table."""

_HELD = [name for lines, table in _FIGURES.values() for name in (*lines, table)]
_WRAPPED = 2**60
"""A size below 0 is printed as one of 64 bits without a sign."""


class Told(NamedTuple):
    """A term, and where it is told."""

    span: tuple[int, int]
    source: str


def is_host(name: str) -> bool:
    """Whether a buffer of that name lies in the host's memory."""
    return name.startswith("CPU") or name.endswith("_Host") or name in ("BLAS", "AMX", "Host")


def gpus_of(devices: Devices) -> list[str]:
    """Return the GPUs that hold weights or caches."""
    kept = [name for name in _HELD if name not in ("compute_buffer", "device_compute")]
    return [
        name
        for name, figures in devices.items()
        if not is_host(name) and any(figures.get(figure, [0, 0])[1] for figure in kept)
    ]


def on_device(name: str, devices: Devices, facts: Mapping[str, Fact]) -> Told | None:
    """Return a term of the GPU with the most, or of all devices together; None: nothing tells it.

    A cache is all of its caches and states: each has a line of its own. What lies in the host's
    memory is on no GPU.
    """
    if name not in _FIGURES:
        return None
    lines, table = _FIGURES[name]
    device = _fullest(devices)
    if name == "cache" and (every := more_than_devices(facts)):
        return Told(every, "all devices together")
    told = {} if device is None else devices[device]
    parts, places = [], []
    for figure, whole in zip(lines, ("cache_size", "state_size"), strict=False):
        if figure in told:
            parts.append((told[figure][0], told[figure][1]))
            places.append(f"{device}" if name == "cache" else f"{device}: all of its lines")
        elif name == "cache" and not any(figure in found for found in devices.values()):
            sizes = _spans(facts, whole) if table not in told else []
            parts += sizes
            places += ["all devices together"] * bool(sizes)
    if not parts and table in told and told[table][1] < _WRAPPED:
        parts, places = [(told[table][0], told[table][1])], [f"{device}: the table"]
    if not parts:
        return None
    span = sum(low for low, _ in parts), sum(high for _, high in parts)
    return Told(span, "; ".join(dict.fromkeys(places)))


def more_than_devices(facts: Mapping[str, Fact]) -> tuple[int, int] | None:
    """Return what caches and states come to where lines of some devices are missing; None: none."""
    missing = False
    spans = []
    for figure, whole in zip(_FIGURES["cache"][0], ("cache_size", "state_size"), strict=True):
        held, every = facts.get(figure), _spans(facts, whole)
        spans += every
        if held is not None and isinstance(held.high, int):
            missing = missing or held.high < sum(low for low, _ in every)
    if not missing:
        return None
    return sum(low for low, _ in spans), sum(high for _, high in spans)


def _spans(facts: Mapping[str, Fact], name: str) -> list[tuple[int, int]]:
    """Return the sizes of all lines of a kind."""
    return [
        (fact.low, fact.high)
        for key, fact in facts.items()
        if (key == name or key.startswith(f"{name}_"))
        and isinstance(fact.low, int)
        and isinstance(fact.high, int)
    ]


def _fullest(devices: Devices) -> str | None:
    """Return the GPU of which the most is logged; the host where there is no GPU."""

    def held(name: str) -> int:
        return sum(devices[name].get(figure, [0, 0])[0] for figure in _HELD[:-1])

    return max(
        [name for name in devices if not is_host(name)] or [*devices], key=held, default=None
    )
