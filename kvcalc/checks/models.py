"""From what a server calls its model to the model: a map of one's own, presets, local files.

Nothing is asked for over the network, and a name that is only like a known one is not taken for it:
quantised copies and fine-tunes are told from the map, as their weights may differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kvcalc.core.errors import InputError, KvcalcError, UnknownNameError, nearest
from kvcalc.core.model import ModelSpec
from kvcalc.models import load_model
from kvcalc.models.presets import alias_index, load_model_preset
from kvcalc.models.text import printable
from kvcalc.models.weight_names import ByName, format_of_name, plain_name
from kvcalc.weights.formats import WIDTHS

__all__ = ["Found", "Models", "Named", "known_presets"]

_SCHEMES = re.compile(r"^(?:hf|huggingface|modelscope|ms|s3|gs|pvc|oci)://")
_NUMBER = re.compile(r"\d+(?:\.\d+)?b?(?![a-z])")


class Named(NamedTuple):
    """What one's map says of a model: where it is described, and what its weights are kept in."""

    source: str
    quantization: str | None = None


class Found(NamedTuple):
    """A model that was looked up.

    Attributes:
        model: as a preset or a file describes it.
        quantization: what its weights are kept in, where one's map says so.
        by_name: what the served name says of that, where nothing else does.
    """

    model: ModelSpec
    quantization: str | None = None
    by_name: ByName | None = None


class Models:
    """Looks models up, each once.

    Args:
        named: served names and paths to what they are.
        fallback: what to take for a name that is not known; None for nothing.
        folders: folders of presets that come before kvcalc's own.
        base: the folder that paths of the map are relative to.
        used: gains every name of the map that was looked up, and the fallback.
    """

    def __init__(
        self,
        named: Mapping[str, Named] | None = None,
        *,
        fallback: str | None = None,
        folders: tuple[Path, ...] = (),
        base: str = "",
        used: set[str] | None = None,
    ) -> None:
        self.named = dict(named or {})
        self.fallback = fallback
        self.folders = folders
        self.base = base
        self.used = set() if used is None else used
        self._loaded: dict[str, ModelSpec] = {}
        self._found: dict[str, Found | KvcalcError] = {}

    def find(self, name: str, variables: tuple[str, ...] = ()) -> Found:
        """Return the model that a server calls `name`.

        Args:
            name: as the server is given it.
            variables: that the name came out of; the map may call the model `$NAME` by them.

        Raises:
            UnknownNameError: none of that name; the hint says how to name it.
            KvcalcError: the file that the map names cannot be read.
        """
        for variable in variables:
            for key in (f"${variable}", f"${{{variable}}}", f"$({variable})"):
                if key in self.named:
                    return self._named(key, name)
        if name == self.fallback:
            self.used.add(name)
        if name not in self._found:
            try:
                self._found[name] = self._look_up(name)
            except KvcalcError as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, KvcalcError):
            raise found
        return found

    def _look_up(self, name: str) -> Found:
        for key in dict.fromkeys((name, bare(name), _basename(name))):
            if key in self.named:
                return self._named(key, name)
        index = aliases(self.folders)
        known = index.get(bare(name).lower())
        if known is not None and not _is_path(name):
            return _assumed(load_model_preset(bare(name), self.folders).spec, name)
        if _is_path(name) and os.path.exists(name):
            return Found(load_model(name, folders=self.folders, weights=True))
        if self.fallback is not None:
            self.used.add(self.fallback)
            return _assumed(self.load(self.fallback), name)
        raise UnknownNameError("model", printable(name)[:120], (), hint=_hint(name, index))

    def _named(self, key: str, name: str) -> Found:
        self.used.add(key)
        given = self.named[key]
        model = self.load(given.source)
        if given.quantization is not None:
            return Found(model, given.quantization)
        return _assumed(model, name)

    def load(self, source: str) -> ModelSpec:
        """Return the model that a source of the map describes, each read once.

        Raises:
            KvcalcError: it names none, or cannot be read.
        """
        if source not in self._loaded:
            path, named = os.path.join(self.base, source), source
            if self.base and not os.path.isabs(source) and os.path.exists(path):
                named = path if os.path.sep in path else os.path.join(".", path)
            local = not named.startswith("hf:")  # headers of the Hub are a request a shard
            try:
                self._loaded[source] = load_model(named, folders=self.folders, weights=local)
            except InputError as error:
                error.hint = error.hint or "models: maps a served name to a preset or a config.json"
                raise
        return self._loaded[source]


@cache
def known_presets() -> frozenset[str]:
    """Return the names of kvcalc's own models, whose lengths were looked at."""
    return frozenset(aliases(()).values())


@cache
def aliases(folders: tuple[Path, ...]) -> dict[str, str]:
    """Return every name and alias of a model preset in lower case -> the preset's name."""
    return alias_index(folders)


def bare(name: str) -> str:
    """Return a model's name without a scheme, a revision or llama.cpp's `:QUANT`."""
    short = _SCHEMES.sub("", name)
    head, colon, tail = short.rpartition(":")
    return head if colon and "/" in head and "/" not in tail else short


def _basename(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or name.lower().endswith((".gguf", ".json"))


def _assumed(model: ModelSpec, name: str) -> Found:
    """Return a model with what its served name says of its weights, where it is plain itself."""
    stored = None if model.size is None else model.size.weights_dtype
    if model.weights or stored not in (None, *WIDTHS):
        return Found(model)
    said = format_of_name(name)
    return Found(model, by_name=said if said is not None and said.format is not None else None)


def _hint(name: str, index: Mapping[str, str]) -> str:
    """Return how to say what a model is, with the nearest that is known."""
    plain = plain_name(bare(name)).lower()
    close = next((index[key] for key in _like(plain, index)), None)
    served = printable(name)[:120]
    if close is None:
        return (
            f"describe it by its config.json: models: {{{served}: path/to/config.json}} in"
            " kvcalc.yaml, or --model path/to/config.json"
        )
    said = format_of_name(name)
    weights = None if said is None else said.format
    told = f"{{model: {close}, quantization: {weights}}}" if weights else close
    return (
        f"if it is {close}, write models: {{{served}: {told}}} in kvcalc.yaml, or --model {close}"
    )


def _like(plain: str, index: Mapping[str, str]) -> Iterator[str]:
    """Yield known names of the same name in another organisation, then those that resemble it.

    A name of another size or version (8b for 32b, phi-2 for phi-4) is no likeness.
    """
    if plain in index:
        yield plain
    yield from (key for key in index if key.rpartition("/")[2] == plain)
    numbers = sorted(_NUMBER.findall(plain))
    if numbers:
        alike = [key for key in index if sorted(_NUMBER.findall(key.rpartition("/")[2])) == numbers]
        yield from nearest(plain, alike)
