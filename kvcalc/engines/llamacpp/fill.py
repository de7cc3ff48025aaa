"""How fit shares layers out to devices when a model does not fit as it is.

llama.cpp b11434 common/fit.cpp (common_params_fit_impl, steps 3 and 4): dense layers from the last
device to the first; then, where all dense weights fit, routed experts from the first device on, and
a part of one more layer. Trial placements are measured; between two of them the method of false
position chooses the next. Numbers wrap as its unsigned 32-bit ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from kvcalc.core.errors import NotModelledError
from kvcalc.engines.llamacpp.loaded import Part
from kvcalc.engines.llamacpp.overrides import HOST

__all__ = ["Filling", "Fraction", "Load", "Measure", "fill", "moves_of"]

_WORD = 0xFFFFFFFF


class Fraction(Enum):
    """What of a partial layer stays: attention, with up, with gate, or all but routed experts."""

    ATTN = 1
    UP = 2
    GATE = 3
    MOE = 4

    def moves(self, part: Part) -> bool:
        """Whether a part of the layer goes elsewhere."""
        kind, expert = part
        match self:
            case Fraction.MOE:
                return expert
            case Fraction.ATTN:
                return kind != "rest"
            case Fraction.UP:
                return kind in ("gate", "down")
            case Fraction.GATE:
                return kind == "down"


class Load(NamedTuple):
    """Layers of a device: how many, how many of these in part, and what the first of them keeps."""

    layers: int = 0
    part: int = 0
    overflow: Fraction = Fraction.MOE

    @property
    def full(self) -> int:
        """Layers that are there whole."""
        return (self.layers - self.part) & _WORD

    def more(self, layers: int, part: int) -> Load:
        """Return a load with more layers (or fewer)."""
        return self._replace(layers=(self.layers + layers) & _WORD, part=(self.part + part) & _WORD)


class Filling(NamedTuple):
    """Layers by device, and the device that the rest of each one's first partial layer goes to."""

    loads: tuple[Load, ...]
    overflow_to: tuple[int, ...]


Measure = Callable[[Filling], Sequence[int]]
"""From layers by device to the bytes that each device would hold."""


def moves_of(filling: Filling, layers: int) -> dict[int, list[tuple[Fraction, int]]]:
    """Return for each partial layer what of it stays, and the device of the rest.

    A layer can be told twice where counts have wrapped; a part then goes where it is named first.

    Args:
        filling: layers by device.
        layers: that fit counts; the output comes on top.
    """
    found: dict[int, list[tuple[Fraction, int]]] = {}
    start = (layers + 1 - sum(load.layers for load in filling.loads)) & _WORD
    for load, other in zip(filling.loads, filling.overflow_to, strict=True):
        start = (start + load.full) & _WORD
        end = (start + load.part) & _WORD
        for layer in range(start, end):
            first = layer == start
            moved = (load.overflow, other) if first else (Fraction.MOE, HOST)
            found.setdefault(layer, []).append(moved)
        start = end
    return found


def fill(
    layers: int, targets: Sequence[int], measure: Measure, *, experts: bool, dense_surplus: int
) -> Filling:
    """Return where the layers go.

    Args:
        layers: of the model; the output counts as one more.
        targets: bytes that each device may hold.
        measure: bytes by device of a trial.
        experts: the model has routed experts, which can stay in host memory.
        dense_surplus: bytes left in all with every expert in host memory.

    Raises:
        UnsupportedError: llama.cpp's counts wrap around so far that no layer is meant any more.
    """
    count = len(targets)
    search = _Search(layers, tuple(targets), measure, experts)
    for device in reversed(range(count)):
        search.fill_dense(device)
    if experts and dense_surplus > 0:
        search.fill_experts()
    if any(load.layers > layers + 1 for load in search.now.loads):
        raise NotModelledError(
            "fit's counts of layers wrap around for these devices; kvcalc does not follow it there",
            hint="give n_gpu_layers, or fit=off",
        )
    return search.now


class _Search:
    """The placement so far, and what it takes."""

    def __init__(
        self, layers: int, targets: tuple[int, ...], measure: Measure, experts: bool
    ) -> None:
        self.layers, self.targets, self.measure, self.experts = layers, targets, measure, experts
        self.count = len(targets)
        self.now = Filling((Load(),) * self.count, (HOST,) * self.count)
        self.mem = measure(self.now)

    def _step(self, device: int, delta: int, high: Sequence[int]) -> int:
        """Layers to try next: where a straight line meets the target."""
        numerator = delta * (self.targets[device] - self.mem[device])
        step = _quotient(numerator, high[device] - self.mem[device]) & _WORD
        return min(max(step, 1), delta - 1)

    def fill_dense(self, device: int) -> None:
        """Give a device as many of the layers left as it can hold, experts apart."""
        loads = self.now.loads
        unassigned = self.layers + 1 - sum(load.layers for load in loads[device + 1 :])
        last = device == self.count - 1
        part = (unassigned - last) & _WORD if self.experts else loads[device].part
        high = _with(self.now, {device: loads[device]._replace(layers=unassigned, part=part)})
        if not unassigned:
            return
        high_mem = self.measure(high)
        if high_mem[device] <= self.targets[device]:
            self.now, self.mem = high, high_mem
            return
        delta = high.loads[device].layers - self.now.loads[device].layers
        while delta > 1:
            step = self._step(device, delta, high_mem)
            load = self.now.loads[device]
            # The first layer of the last device is the output, which is always there whole.
            part = step - (last and not load.part) if self.experts else 0
            test = _with(self.now, {device: load.more(step, part)})
            test_mem = self.measure(test)
            if test_mem[device] <= self.targets[device]:
                self.now, self.mem = test, test_mem
            else:
                high, high_mem = test, test_mem
            delta = high.loads[device].layers - self.now.loads[device].layers

    def fill_experts(self) -> None:
        """Make partial layers whole, from the first device on."""
        start = self.count
        while start and self.now.loads[start - 1].layers:
            start -= 1
        device = 0
        while device <= start < self.count:
            start = self._convert(device, start)
            start = self._one_more(device, start)
            device += 1

    def _convert(self, device: int, start: int) -> int:
        """Move layers to a device whole; return the first device that has partial ones left."""
        high = self.now
        for other in range(start, self.count):
            moved = high.loads[other].layers - (other == self.count - 1)
            high = _with(high, {device: high.loads[device].more(moved, 0)})
            rest = high.loads[other].more(-moved, 0)
            high = _with(high, {other: rest._replace(part=0)})
        start_high = self.count - 1
        high_mem = self.measure(high)
        if high_mem[device] <= self.targets[device]:
            self.now, self.mem = high, high_mem
            return start_high
        delta = (high.loads[device].full - self.now.loads[device].full) & _WORD
        while delta > 1:
            step = self._step(device, delta, high_mem)
            test, start_test, converted = self.now, start, 0
            while start_test < self.count:
                count = min(step - converted, test.loads[start_test].part)
                test = _with(test, {start_test: test.loads[start_test].more(-count, -count)})
                test = _with(test, {device: test.loads[device].more(count, 0)})
                converted += count
                if test.loads[start_test].part:
                    break
                start_test += 1
            test_mem = self.measure(test)
            if test_mem[device] <= self.targets[device]:
                self.now, self.mem, start = test, test_mem, start_test
            else:
                high, high_mem = test, test_mem
            delta = (high.loads[device].full - self.now.loads[device].full) & _WORD
        return start

    def _one_more(self, device: int, start: int) -> int:
        """Try to get a part of one more layer onto a device."""
        last = device == self.count - 1
        if start >= self.count or self.now.loads[start].layers <= last:
            return start
        test = _with(self.now, {start: self.now.loads[start].more(-1, -1)})
        test = _with(test, {device: test.loads[device].more(1, 1)})
        start_test = start if test.loads[start].part else start + 1
        overflow_to = list(self.now.overflow_to)
        if not last:
            overflow_to[device] = device + 1
        test = test._replace(overflow_to=tuple(overflow_to))
        if self._try(test, device, Fraction.UP):
            self._try(test, device, Fraction.GATE)
            return start_test
        return start_test if self._try(test, device, Fraction.ATTN) else start

    def _try(self, test: Filling, device: int, fraction: Fraction) -> bool:
        test = _with(test, {device: test.loads[device]._replace(overflow=fraction)})
        mem = self.measure(test)
        fits = mem[device] < self.targets[device]
        following = device + 1
        if following < self.count:
            fits = fits and mem[following] < self.targets[following]
        if fits:
            self.now, self.mem = test, mem
        return fits


def _with(filling: Filling, changed: dict[int, Load]) -> Filling:
    loads = tuple(changed.get(i, load) for i, load in enumerate(filling.loads))
    return filling._replace(loads=loads)


def _quotient(numerator: int, denominator: int) -> int:
    """Divide as C does, towards zero; two equal measurements leave nothing to divide by."""
    if not denominator:
        return 0
    found = abs(numerator) // abs(denominator)
    return found if (numerator < 0) == (denominator < 0) else -found
