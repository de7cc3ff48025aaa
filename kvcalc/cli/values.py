"""What a command was given: texts by parameter, and where each of them came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import product
from typing import Any, TypeVar

from kvcalc.core.errors import KvcalcError

__all__ = ["Origin", "Values"]

_T = TypeVar("_T")


class Origin(Enum):
    """Where a value came from, the stronger first: flag, variable, settings file, default."""

    TYPED = "typed"
    VARIABLE = "variable"
    SETTINGS = "settings"
    DEFAULT = "default"


class Values(dict[str, Any]):
    """Texts, lists of texts and flags by parameter name.

    Attributes:
        origins: where each value came from.
        places: how errors name each value's place: `--max`, `KVCALC_MAX` or `kvcalc.yaml:2`.
        behind: words behind `--`, of the command that takes another one there.
        repeated: every value of an option that takes one and was given several, by parameter; the
            value of that parameter is the last of them.
        apart: in flags, what sets these values apart from those of the other combinations.
        warnings: what may make the answer wrong, as it was found while the values were read.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        origins: Mapping[str, Origin] | None = None,
        places: Mapping[str, str] | None = None,
        behind: tuple[str, ...] = (),
    ) -> None:
        super().__init__(values)
        self.origins = dict(origins or {})
        self.places = dict(places or {})
        self.behind = behind
        self.repeated: dict[str, list[Any]] = {}
        self.apart: tuple[str, ...] = ()
        self.warnings: list[str] = []

    def each(self) -> Iterator[Values]:
        """Yield the values of every combination of repeated options, in the order given."""
        for chosen in product(*self.repeated.values()):
            by_name = dict(zip(self.repeated, chosen, strict=True))
            one = Values({**self, **by_name}, self.origins, self.places, self.behind)
            one.warnings = self.warnings  # what is found for one is told once
            one.apart = tuple(word for name in by_name for word in self._flag(name, by_name[name]))
            yield one

    def _flag(self, name: str, value: Any) -> tuple[str, str]:
        place = self.places.get(name, "")
        flag = place if place.startswith("--") else f"--{name.replace('_', '-')}"
        return flag, str(value)

    def typed(self, *names: str) -> bool:
        """Whether any of these parameters was given on the command line."""
        return any(self.origins.get(name) is Origin.TYPED for name in names)

    def at(self, name: str, read: Callable[[], _T]) -> _T:
        """Return read(), putting the value's place before the error it may raise."""
        try:
            return read()
        except KvcalcError as error:
            error.where = error.where or self.places.get(name, "")
            raise
