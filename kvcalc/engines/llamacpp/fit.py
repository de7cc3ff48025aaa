"""fit: a context that was not given shrinks, then layers leave the GPUs, until the rest fits.

llama.cpp b11434 common/fit.cpp (common_params_fit_impl) and common/common.cpp
(common_init_result): on unless switched off; free memory less a margin is what a device may hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from kvcalc.core.errors import NotModelledError
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.loaded import Bounds, Loaded, Part, loaded
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.placement import places
from kvcalc.engines.llamacpp.placing import Placing
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.ranks import padding
from kvcalc.engines.llamacpp.settings import MARGIN, Settings
from kvcalc.engines.llamacpp.shrink import between
from kvcalc.engines.llamacpp.standins import total_of
from kvcalc.engines.llamacpp.tensors import Kept

__all__ = ["End", "Fitted", "Moves", "fit", "moves_of", "weights_of"]


# How fit shares layers out to devices when a model does not fit as it is.
#
# llama.cpp b11434 common/fit.cpp (common_params_fit_impl, steps 3 and 4): dense layers from the
# last device to the first; then, where all dense weights fit, routed experts from the first device
# on, and a part of one more layer. Trial placements are measured; between two of them the method of
# false position chooses the next. Numbers wrap as its unsigned 32-bit ones do.

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


Moves = Callable[[int, Part], int | None]
"""From a part of a layer to the device that it is moved to; None where it stays."""
At = Callable[[int], list[Context]]
"""From tokens of the whole context to its contexts: the model's own, and a draft's."""


class End(NamedTuple):
    """What fit goes by, at one end of what is known of it.

    Attributes:
        free: bytes that each device has free.
        copied: bytes that a device copies weights of the host into, where some stay there.
        compute: from tokens of the whole context to the bytes of each device's compute buffer.
        most: weights that are known by bounds take their most.
    """

    free: tuple[int, ...]
    copied: int
    compute: Callable[[int], tuple[int, ...]]
    most: bool


class Fitted(NamedTuple):
    """What fit came to.

    Attributes:
        size: tokens of the whole context; None where it stays as asked.
        filling: layers by device; None where they stay where they were.
        layers: that fit counts, for `moves_of`.
        failure: why fit gave up; the server then starts with what there is, and may fail.
        longest: tokens of the whole context, cut or not, where all that is known by bounds alone
            leaves the most room; None where that is no more.
    """

    size: int | None
    filling: Filling | None
    layers: int
    failure: str | None
    longest: int | None = None

    def moves(self) -> Moves | None:
        """Return which parts of which layers lie elsewhere; None where none do."""
        return None if self.filling is None else _moves(self.filling, self.layers)


def weights_of(context: Context, placing: Placing, *, drafting: bool) -> Bounds:
    """Return the weights of a context's model; draft layers only where they propose tokens."""
    served = context.served

    def at(*, most: bool) -> Loaded:
        return loaded(
            served.model.weights,
            len(served.layers),
            kept=len(served.layers) if drafting else served.main,
            padded=placing.padded,
            overrides=placing.overrides,
            most=most,
        )

    least = at(most=False)
    told = not any(tensor.more_bytes for tensor in served.model.weights)
    return Bounds(least, least if told else at(most=True), total_of(served.model))


def fit(settings: Settings, at: At, longest: int, end: End) -> Fitted:
    """Return what fit chooses for a server whose devices' free memory and weights are known.

    Args:
        settings: with the context in full where none was given.
        at: the contexts at a size.
        longest: tokens of a context that was not given, before they are rounded up.
        end: what it goes by.
    """
    return _Run(settings, at, longest, end).result()


class _Run:
    """One run of fit: what it measures, and what it decides."""

    def __init__(self, settings: Settings, at: At, longest: int, end: End) -> None:
        self.settings, self.placing, self.at, self.end = settings, settings.placing, at, end
        self.devices = len(end.free)
        margins = settings.margins if len(settings.margins) > 1 else settings.margins * self.devices
        margins = (*margins, *(MARGIN,) * self.devices)[: self.devices]
        self.targets = tuple(free - margin for free, margin in zip(end.free, margins, strict=True))
        self.mtp = settings.method == "mtp"
        self.longest = longest
        self.size = settings.cells.total if settings.ctx_given else longest
        main = at(self.size)[0]
        self.weights = weights_of(main, self.placing, drafting=self.mtp)
        self.all_layers = len(main.served.layers)
        # hp_ngl: draft layers count where they are loaded.
        self.layers = self.all_layers if self.mtp else main.served.main

    def result(self) -> Fitted:
        """Run the steps of fit."""
        now = self._measure(self.placing.shares, self.placing.n_gpu_layers)
        if all(total <= most for total, most in zip(now.total, self.targets, strict=True)):
            return Fitted(None, None, self.layers, None)
        size = None
        if sum(now.total) > sum(self.targets) and not self.settings.ctx_given:
            size, all_fits = self._shrink(now)
            if all_fits and self.devices == 1:
                return Fitted(size, None, self.layers, None)
        failure = self._failure()
        filling = None if failure is not None else self._fill()
        return Fitted(size, filling, self.layers, failure)

    def _measure(
        self, shares: tuple[float, ...], n_gpu_layers: int | None, moves: Moves | None = None
    ) -> Taken:
        """Return what each device holds with layers placed so."""
        main, *extra = self.at(self.size)
        padded, host = self.placing.padded, self.placing.host
        where = places(self.all_layers, shares, n_gpu_layers)
        caches, most = cache_by_layer(main, padded=padded), self.end.most
        compute = compute_of(self.end.compute(self.size), self.devices)
        if moves is not None or (n_gpu_layers is not None and n_gpu_layers <= self.layers):
            compute = tuple(size + self.end.copied for size in compute)
        found = taken(caches, where, self.weights, compute, host=host, most=most, moves=moves)
        for context in extra:
            # A draft is laid out as if it were alone, whatever fit does to the model.
            layers = len(context.served.layers)
            where = places(layers, self.placing.shares, context.n_gpu_layers)
            weights = None if self.mtp else weights_of(context, self.placing, drafting=False)
            caches = cache_by_layer(context, padded=padded)
            draft = taken(caches, where, weights, (0,) * self.devices, host=host, most=most)
            found = found.plus(draft)
        return found

    def _shrink(self, now: Taken) -> tuple[int | None, bool]:
        """Return the tokens that the context is cut to, and whether all fits with them."""
        cells = self.settings.cells
        streams = 1 if cells.unified else cells.sequences
        least = self.settings.fit_ctx * streams
        if self.longest <= least:
            return None, False
        budget = sum(self.targets)
        if self.devices > 1:
            # Half a layer is lost on each device, a sixth where single tensors can be moved.
            wanted = self.placing.n_gpu_layers
            layers = self.layers if wanted is None else min(wanted, self.layers)
            lost = (self.devices + 1) * (sum(now.weights) // max(layers, 1))
            budget -= lost // (6 if self.weights.least.experts else 2)
        self.size = least
        least_bytes = sum(self._measure(self.placing.shares, self.placing.n_gpu_layers).total)
        sizes = (least_bytes, sum(now.total))
        self.size = between(least, self.longest, streams, budget, sizes)
        return self.size, budget > least_bytes

    def _failure(self) -> str | None:
        """Return why layers cannot be moved; None where they can."""
        placing = self.placing
        if placing.layers_given:
            return "n_gpu_layers was given"
        if self.devices > 1 and placing.split_given:
            return "tensor_split was given"
        if self.devices > 1 and placing.mode == "row":
            return "split_mode row is not implemented there"
        return "tensors were moved by override_tensor or the like" if placing.overrides else None

    def _fill(self) -> Filling:
        """Return the layers by device."""
        experts = self.weights.least.experts
        surplus = 0
        if experts:
            dense = self._measure(
                self.placing.shares,
                self.placing.n_gpu_layers,
                lambda _, part: HOST if part[1] else None,
            )
            surplus = sum(self.targets) - sum(dense.total)
        return fill(self.layers, self.targets, self._trial, experts=experts, dense_surplus=surplus)

    def _trial(self, filling: Filling) -> tuple[int, ...]:
        counts = tuple(load.layers for load in filling.loads)
        shares = tuple(map(float, counts)) if self.devices > 1 else self.placing.shares
        return self._measure(shares, sum(counts), _moves(filling, self.layers)).total


def _moves(filling: Filling, layers: int) -> Moves:
    partial = moves_of(filling, layers)

    def moves(layer: int, part: Part) -> int | None:
        told = partial.get(layer, ())
        return next((device for fraction, device in told if fraction.moves(part)), None)

    return moves


# What a server takes of each device under one placement: weights, caches, compute buffers.
#
# llama.cpp b11434 common/fit.cpp (common_get_device_memory_data_impl) sums the same three.


class Taken(NamedTuple):
    """Bytes of each device."""

    weights: tuple[int, ...]
    total: tuple[int, ...]

    def plus(self, other: Taken) -> Taken:
        """Return the sum of two."""
        return Taken(
            tuple(map(sum, zip(self.weights, other.weights, strict=True))),
            tuple(map(sum, zip(self.total, other.total, strict=True))),
        )


def cache_by_layer(context: Context, *, padded: bool) -> dict[int, int]:
    """Return the bytes of a context's caches by layer."""
    by_layer: dict[int, list[Kept]] = defaultdict(list)
    for kept in context.kept:
        by_layer[kept.layer].append(kept)
    return {
        layer: sum(pool.total_bytes(pool.units or 0) for pool in pools_of(kept, context.sizes))
        + (sum(map(padding, kept)) if padded else 0)
        for layer, kept in by_layer.items()
    }


def compute_of(given: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Return the bytes of compute buffers by device: as given, one value for all, or none."""
    if len(given) == 1:
        return given * devices
    return (*given, *(0,) * devices)[:devices]


def taken(
    caches: dict[int, int],
    where: tuple[int, ...],
    weights: Bounds | None,
    compute: tuple[int, ...],
    *,
    host: bool,
    most: bool,
    moves: Callable[[int, Part], int | None] | None = None,
) -> Taken:
    """Return what each device holds.

    Args:
        caches: bytes by layer.
        where: the device of each layer, and at the end that of the output.
        weights: None where they are another context's.
        compute: bytes of compute buffers by device.
        host: the caches stay in host memory.
        most: weights that are known by bounds take their most.
        moves: a part of a layer -> the device that it is moved to.
    """
    by_device = {} if weights is None else weights.on(where, moves)
    devices = range(len(compute))
    model = tuple(by_device.get(device, (0, 0))[most] for device in devices)
    context = [0] * len(compute)
    for layer, size in caches.items():
        if not host and where[layer] in devices:
            context[where[layer]] += size
    return Taken(model, tuple(map(sum, zip(model, context, compute, strict=True))))
