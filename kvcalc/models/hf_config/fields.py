"""Typed access to a config.json: every spelling of a key, and every fault with the key's name.

`null` and an absent key are the same thing, but for the few keys where a config class takes an
explicit null at its word (`sliding_window`: no window). What a class supplies for an absent key
comes from the table of `class_defaults`, or from the `default` that a family gives; either leaves
a note that says whose default it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.core.layers import MAX_LAYERS
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.hf_config.class_defaults import NO_DEFAULTS, ClassDefaults
from kvcalc.models.text import shown

__all__ = ["MAX_LAYERS", "Fields"]


class Fields:
    """One object of a config, with where it stands in the file.

    Attributes:
        where: the file, for errors.
        notes: what a reader of the numbers should know; shared by all parts of one config.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        *,
        path: str = "",
        notes: list[str] | None = None,
        defaults: ClassDefaults = NO_DEFAULTS,
    ) -> None:
        self._values = values
        self._path = path
        self._defaults = defaults
        self.where = where
        self.notes: list[str] = [] if notes is None else notes

    # ------------------------------------------------------------------ raw access

    def get(self, *names: str) -> Any:
        """Return the first of these keys that is there and not null, else its class's default."""
        for name in names:
            value = self._values.get(name)
            if value is not None:
                return value
        return self._default(*names)

    def quietly(self, *names: str) -> Any:
        """Return what `get` returns, without a note where a class's default is taken."""
        for name in names:
            value = self._values.get(name)
            if value is not None:
                return value
        return next((self._defaults.values[n] for n in names if n in self._defaults.values), None)

    def has(self, *names: str) -> bool:
        """Whether any of these keys is there and not null; a class's default does not count."""
        return any(self._values.get(name) is not None for name in names)

    def is_null(self, name: str) -> bool:
        """Whether a key is there and null, for the classes that take that at its word."""
        return name in self._values and self._values[name] is None

    def _default(self, *names: str) -> int | None:
        nullable = self._defaults.nullable
        if any(name in self._values and name in nullable for name in names):
            return None
        name = next((name for name in names if name in self._defaults.values), None)
        if name is None:
            return None
        default = self._defaults.values[name]
        self._note_default(name, default, self._defaults.of)
        return default

    def _note_default(self, name: str, default: int, of: str) -> None:
        self.notes.append(f"{self._path}{name} is left out: {default} by default of {of}")

    def name(self, *names: str) -> str:
        """Return the path of the first key that is there (of the first one, if none is)."""
        found = next((n for n in names if self._values.get(n) is not None), names[0])
        return f"{self._path}{found}"

    def fault(self, name: str, value: Any, expected: str) -> InputError:
        """Return the error of a value that cannot be what its key means."""
        return InputError(
            f"{self._path}{name} is {shown(value)}, not {expected}",
            hint="this is not a config.json as published; correct the value",
            where=self.where,
        )

    def missing(self, *names: str) -> InputError:
        """Return the error of a key that sizing needs and no class has a default for."""
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        return InputError(
            f"{self._path}{names[0]}{also} is missing",
            hint="give a complete config.json, or --layers, --kv-heads and --head-dim",
            where=self.where,
        )

    # ------------------------------------------------------------------ numbers

    def whole(self, *names: str, low: int = 1, high: int = MAX_DIMENSION) -> int | None:
        """Return a whole number between low and high; None when absent or null.

        Raises:
            InputError: anything else under the key.
        """
        value = self.get(*names)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise self.fault(
                self.name(*names).removeprefix(self._path),
                value,
                f"a whole number from {low} to {high}",
            )
        return value

    def need(self, *names: str, low: int = 1, high: int = MAX_DIMENSION) -> int:
        """Return a whole number that must be there.

        Raises:
            InputError: absent, null or not such a number.
        """
        value = self.whole(*names, low=low, high=high)
        if value is None:
            raise self.missing(*names)
        return value

    def default_whole(
        self, *names: str, default: int, of: str, low: int = 1, high: int = MAX_DIMENSION
    ) -> int:
        """Return a whole number, or the class's default with a note.

        Args:
            names: spellings of the key.
            default: what the config class supplies.
            of: the class, such as "Gemma3TextConfig".
            low: the smallest sensible value.
            high: the largest.
        """
        value = self.whole(*names, low=low, high=high)
        if value is None:
            self._note_default(names[0], default, of)
            return default
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """Return true or false; the default when absent or null.

        Raises:
            InputError: anything else under the key.
        """
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(names[0], value, "true or false")
        return value

    # ------------------------------------------------------------------ texts and lists

    def text(self, *names: str) -> str | None:
        """Return a text; None when absent or null.

        Raises:
            InputError: anything else under the key.
        """
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            raise self.fault(names[0], value, "a text")
        return value

    def items(self, *names: str) -> Sequence[Any] | None:
        """Return a list of at most MAX_LAYERS entries; None when absent or null.

        Raises:
            InputError: anything else under the key.
        """
        value = self.get(*names)
        if value is not None and not (isinstance(value, list) and len(value) <= MAX_LAYERS):
            raise self.fault(names[0], value, f"a list of at most {MAX_LAYERS} entries")
        return value

    def wholes(
        self, *names: str, low: int = 0, high: int = MAX_DIMENSION, length: int | None = None
    ) -> list[int] | None:
        """Return a list of whole numbers; None when absent or null.

        Raises:
            InputError: another length than `length`, or an entry that is no such number.
        """
        values = self.items(*names)
        if values is None:
            return None
        for value in values:
            if type(value) is not int or not low <= value <= high:
                raise self.fault(names[0], value, f"whole numbers from {low} to {high}")
        self._check_length(names[0], values, length)
        return list(values)

    def texts(
        self, *names: str, known: Sequence[str], length: int | None = None
    ) -> list[str] | None:
        """Return a list of known words; None when absent or null.

        Raises:
            UnknownNameError: a word that is not known, with the nearest.
            InputError: another length than `length`, or an entry that is no text.
        """
        values = self.items(*names)
        if values is None:
            return None
        for value in values:
            if not isinstance(value, str):
                raise self.fault(names[0], value, "texts")
            if value not in known:
                raise UnknownNameError(
                    f"entry of {self._path}{names[0]}", value[:60], known, where=self.where
                )
        self._check_length(names[0], values, length)
        return list(values)

    def _check_length(self, name: str, values: Sequence[Any], length: int | None) -> None:
        if length is not None and len(values) != length:
            raise InputError(
                f"{self._path}{name} has {len(values)} entries, not one for each of"
                f" {length} layers",
                hint="this is not a config.json as published; correct the value",
                where=self.where,
            )

    # ------------------------------------------------------------------ nesting

    def section(self, *names: str) -> Fields | None:
        """Return an object inside this one; None when absent or null.

        Raises:
            InputError: something else under the key.
        """
        value = self.get(*names)
        if value is None:
            return None
        name = self.name(*names)
        if not isinstance(value, dict):
            raise self.fault(name.removeprefix(self._path), value, "an object")
        return Fields(value, self.where, path=f"{name}.", notes=self.notes)

    def sections(self, name: str, *, length: int | None = None) -> list[Fields] | None:
        """Return a list of objects; None when absent or null.

        Raises:
            InputError: another length than `length`, or an entry that is no object.
        """
        values = self.items(name)
        if values is None:
            return None
        self._check_length(name, values, length)
        for value in values:
            if not isinstance(value, dict):
                raise self.fault(name, value, "a list of objects")
        return [
            Fields(value, self.where, path=f"{self._path}{name}[{i}].", notes=self.notes)
            for i, value in enumerate(values)
        ]

    def over(self, outer: Fields) -> Fields:
        """Return these fields with those of `outer` where neither they nor their class has one."""
        mine = self._defaults.values
        merged = {k: v for k, v in outer._values.items() if k not in mine}
        for key, value in self._values.items():
            if value is not None or key not in merged:
                merged[key] = value
        return Fields(
            merged, self.where, path=self._path, notes=self.notes, defaults=self._defaults
        )

    def of_class(self, defaults: ClassDefaults) -> Fields:
        """Return these fields with what their config class supplies."""
        return Fields(
            self._values, self.where, path=self._path, notes=self.notes, defaults=defaults
        )
