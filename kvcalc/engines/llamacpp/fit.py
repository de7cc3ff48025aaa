"""fit: a context that was not given shrinks, then layers leave the GPUs, until the rest fits.

llama.cpp b11434 common/fit.cpp (common_params_fit_impl) and common/common.cpp
(common_init_result): on unless switched off; free memory less a margin is what a device may hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.devices import Taken, cache_by_layer, compute_of, taken
from kvcalc.engines.llamacpp.fill import Filling, fill, moves_of
from kvcalc.engines.llamacpp.loaded import Bounds, Loaded, Part, loaded
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.placement import places
from kvcalc.engines.llamacpp.placing import Placing
from kvcalc.engines.llamacpp.settings import MARGIN, Settings
from kvcalc.engines.llamacpp.shrink import between
from kvcalc.engines.llamacpp.standins import total_of

__all__ = ["End", "Fitted", "Moves", "fit", "weights_of"]

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
