"""Samples of one engine, asked by metric and label; `:` and `_` are one in a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Self

from kvcalc.core.errors import InputError
from kvcalc.core.units import format_count
from kvcalc.core.values import MAX_RANKS
from kvcalc.measure.prometheus import Sample
from kvcalc.models.text import printable

__all__ = ["ABSENT", "Series", "grouped", "whole"]

ABSENT = ("", "None", "none", "null")
"""How a label tells that a setting is not set."""

_LARGEST = 2**53
"""Above it a float is no exact count any more, and no server has as many of anything."""

_DIGITS = 16  # of a count in a label; longer ones are no counts


class Series:
    """Samples, looked up by name.

    Names are matched with `:` written as `_`, as relays and collectors rename them, and without the
    `_total` that newer clients append to counters.
    """

    def __init__(self, samples: Iterable[Sample], refused: dict[str, str] | None = None) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        # Shared by the series of all replicas: metric -> what is wrong with its value.
        self.refused: dict[str, str] = {} if refused is None else refused
        for sample in samples:
            self._by_name.setdefault(_key(sample.name), []).append(sample)

    def all(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of a metric that have these label values."""
        return [
            sample
            for sample in self._by_name.get(_key(name), ())
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]

    def value(self, *names: str, **labels: str) -> float | None:
        """Return the value of the first of these metrics that is there.

        Ranks of one engine report the same figure each: the largest counts, as one that fills up
        first binds. Infinite and undefined values are none; the infinite ones are told.
        """
        for name in names:
            samples = self.all(name, **labels)
            endless = [s for s in samples if math.isinf(s.value)]
            if endless:
                self._refuse(endless[0], "no figure")
            found = [s.value for s in samples if math.isfinite(s.value)]
            if found:
                return max(found)
        return None

    def _refuse(self, sample: Sample, what: str) -> None:
        self.refused.setdefault(sample.name, f"{sample.value:g}, which is {what}")

    def _checked(self, found: float | None, names: Iterable[str], good: bool, what: str) -> None:
        """Remember the sample of a value that is not what it should be."""
        if found is None or good:
            return
        for name in names:
            for sample in self.all(name):
                if sample.value == found:
                    self._refuse(sample, what)
                    return

    def count(self, *names: str, **labels: str) -> int | None:
        """Return a metric that counts something; None where it is no whole number from 0."""
        found = self.value(*names, **labels)
        counted = whole(found)
        self._checked(found, names, counted is not None, "no whole number from 0")
        return counted

    def ratio(self, *names: str, **labels: str) -> float | None:
        """Return a share; None where it is not between 0 and 1."""
        found = self.value(*names, **labels)
        good = found is not None and 0 <= found <= 1
        self._checked(found, names, good, "no share from 0 to 1")
        return found if good else None

    def label_count(self, labels: Mapping[str, str], name: str) -> int | None:
        """Return a label that counts something; None where it is absent, or no whole number."""
        told = labels.get(name, "")
        counted = whole(told)
        if counted is None and told not in ABSENT:
            self.refused.setdefault(name, f"{printable(told)[:40]!r}, which is no whole number")
        return counted

    def only(self, keep: Callable[[Sample], bool]) -> Self:
        """Return the samples that satisfy a condition."""
        samples = (s for found in self._by_name.values() for s in found if keep(s))
        return type(self)(samples, self.refused)

    def samples(self) -> Iterator[Sample]:
        """Yield all samples."""
        for found in self._by_name.values():
            yield from found

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each sample of a metric."""
        return [sample.labels for sample in self.all(name)]

    def values_of(self, label: str) -> list[str]:
        """Return the values of a label over all samples, each once, in the order of the page."""
        found = (s.labels.get(label) for group in self._by_name.values() for s in group)
        return list(dict.fromkeys(value for value in found if value))


_MOST_SHARED = 2_000
"""Samples of no engine, which belong to each of several."""


def grouped(series: Series, label: str) -> list[tuple[str | None, Series]]:
    """Return one series a value of a label; samples without the label belong to each of them.

    Raises:
        InputError: more values than any server has, or samples without one.
    """
    values = series.values_of(label)
    if len(values) <= 1:
        return [(None, series)]
    own: dict[str, list[Sample]] = {value: [] for value in values}
    shared = []
    for sample in series.samples():
        value = sample.labels.get(label)
        if value:
            own[value].append(sample)
        elif value is None:
            shared.append(sample)
    if len(own) > MAX_RANKS or len(shared) > _MOST_SHARED:
        raise InputError(
            f"{format_count(len(own))} engines, and {format_count(len(shared))} samples of none",
            hint=f"give the page of one server, of {format_count(MAX_RANKS)} engines at most",
        )
    return [(value, Series([*mine, *shared], series.refused)) for value, mine in own.items()]


def whole(value: float | str | None) -> int | None:
    """Return a count that was told as a float or as text; None where it is none."""
    if isinstance(value, str):
        plain = value.strip()
        digits = plain.isascii() and plain.isdigit() and len(plain) <= _DIGITS
        return int(plain) if digits else None
    if value is None or not math.isfinite(value):
        return None
    return int(value) if 0 <= value <= _LARGEST and value == int(value) else None


def _key(name: str) -> str:
    return name.replace(":", "_").removesuffix("_total")
