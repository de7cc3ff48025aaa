"""The keys of one architecture, asked for by name: `attention.head_count` for `llama`.

llama.cpp b11434 reads them in `src/llama-model.cpp` (llama_model_base::load_hparams) and
`src/models/*.cpp` (load_arch_hparams); names are in `src/llama-arch.cpp` (LLM_KV_NAMES).
"""

from __future__ import annotations

from kvcalc.core.errors import InputError
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.gguf.header import Entry, Skipped, Tensors, broken
from kvcalc.models.text import shown

__all__ = ["MAX_BLOCKS", "Fields"]

MAX_BLOCKS = 512
"""LLAMA_MAX_LAYERS: llama.cpp refuses files with more."""

_CONVERT = "convert the model anew with a current llama.cpp"


class Fields:
    """The key-values of a file, read under its architecture's prefix.

    Attributes:
        arch: `general.architecture`.
        file: how errors name the file.
        blocks: layers in all, draft layers included.
        drafts: NextN (multi-token-prediction) layers; they are the last of them.
    """

    def __init__(self, arch: str, entries: dict[str, Entry], file: str) -> None:
        self.arch = arch
        self.file = file
        self._entries = entries
        self.blocks = self.number("block_count", high=MAX_BLOCKS)
        self.drafts = self.number("nextn_predict_layers", low=0, high=self.blocks, default=0)

    @property
    def main(self) -> int:
        """Layers without the draft layers."""
        return self.blocks - self.drafts

    def drop_drafts_without_weights(self, tensors: Tensors) -> None:
        """Count the draft layers as ordinary ones where the first has no NextN projection.

        So does llama.cpp for DeepSeek-V4 (`src/models/deepseek4.cpp`, load_arch_hparams).
        """
        if self.main not in tensors.drafting:
            self.drafts = 0

    def has(self, name: str) -> bool:
        """Whether the file has the key."""
        return self._key(name) in self._entries

    def is_list(self, name: str) -> bool:
        """Whether the key holds a list."""
        entry = self._entries.get(self._key(name))
        return entry.what == "a list" if isinstance(entry, Skipped) else isinstance(entry, tuple)

    def number(
        self, name: str, *, low: int = 1, high: int = MAX_DIMENSION, default: int | None = None
    ) -> int:
        """Return one whole number; `default` where the key is absent.

        Raises:
            InputError: it is absent and has no default, is no whole number, or out of range.
        """
        key = self._key(name)
        if key not in self._entries:
            if default is None:
                raise self.missing(name)
            return default
        return self._checked(key, self._entries[key], low, high)

    def numbers(
        self, name: str, length: int, *, low: int = 0, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return one number a layer: a list of exactly `length`, or one number for all.

        Raises:
            InputError: it is absent and has no default, has another length, or holds something
                that is no number in range.
        """
        key = self._key(name)
        if default is not None and key not in self._entries:
            return default
        if not self.is_list(name):
            return (self.number(name, low=low),) * length
        values = self._list(key)
        if len(values) != length:
            raise broken(self.file, f"{key} has {len(values)} entries for {length} layers")
        return tuple(self._checked(key, value, low, MAX_DIMENSION) for value in values)

    def flags(self, name: str, length: int) -> tuple[bool, ...]:
        """Return the first entries of a list of yes and no, one a layer.

        Entries beyond `length` are dropped, as llama.cpp does.

        Raises:
            InputError: it is absent, no list, or shorter than the layers that are no drafts.
        """
        key = self._key(name)
        if key not in self._entries:
            raise self.missing(name)
        values = self._list(key)
        if len(values) < self.main:
            raise broken(self.file, f"{key} has {len(values)} entries for {self.main} layers")
        padded = (*values, *(0,) * length)[:length]
        return tuple(value != 0 for value in padded)

    def leading(self, name: str, length: int) -> tuple[int, ...]:
        """Return the first `length` entries of a list that may be longer.

        Raises:
            InputError: it is absent, no list, shorter, or holds something that is no number.
        """
        key = self._key(name)
        if key not in self._entries:
            raise self.missing(name)
        values = self._list(key)
        if len(values) < length:
            raise broken(self.file, f"{key} has {len(values)} entries for {length} layers")
        return tuple(self._checked(key, value, 0, MAX_DIMENSION) for value in values[:length])

    def heads(self) -> int | None:
        """Return the most query heads of any layer; None where the file does not say."""
        entry = self._entries.get(self._key("attention.head_count"))
        if isinstance(entry, Skipped):
            return None
        counts = entry if isinstance(entry, tuple) else (entry,)
        known = [n for n in counts if type(n) is int and 1 <= n <= MAX_DIMENSION]
        return max(known, default=None)

    def quietly(self, name: str) -> int | None:
        """Return a number from 1 on; None where the file has none that makes sense."""
        entry = self._entries.get(self._key(name))
        return entry if type(entry) is int and 1 <= entry <= MAX_DIMENSION else None

    def by_layer(self, name: str) -> tuple[int, ...]:
        """Return one number a layer, drafts left out; none where the file has none that fit."""
        entry = self._entries.get(self._key(name))
        if isinstance(entry, Skipped):
            return ()
        listed = entry if isinstance(entry, tuple) else (entry,) * self.main
        found = [n for n in listed[: self.main] if type(n) is int and 0 <= n <= MAX_DIMENSION]
        return tuple(found) if len(found) == self.main else ()

    def file_type(self) -> int | None:
        """Return the file's own number for what most of its tensors are in; None: none is told."""
        entry = self._entries.get("general.file_type")
        return entry if type(entry) is int else None

    def vocabulary(self) -> int | None:
        """Return the entries of the vocabulary: the tokenizer's list, else the key for it."""
        tokens = self._entries.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Skipped) and 1 <= tokens.length <= MAX_DIMENSION:
            return tokens.length
        return self.quietly("vocab_size")

    def missing(self, name: str) -> InputError:
        """Return the error of a key that the rule of this architecture needs."""
        return broken(self.file, f"{self._key(name)} is missing", _CONVERT)

    def senseless(self, message: str) -> InputError:
        """Return the error of values that contradict one another."""
        return broken(self.file, message, _CONVERT)

    def _key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def _list(self, key: str) -> tuple[int, ...]:
        entry = self._entries[key]
        if isinstance(entry, Skipped) and entry.what == "a list":
            raise broken(self.file, f"{key} is a list of {entry.length} entries, not one a layer")
        if isinstance(entry, tuple) and not isinstance(entry, Skipped):
            return entry
        raise broken(self.file, f"{key} must be a list", _CONVERT)

    def _checked(self, key: str, value: Entry, low: int, high: int) -> int:
        if type(value) is int and low <= value <= high:
            return value
        if isinstance(value, Skipped):
            what = value.what
        else:
            what = f"a list of {len(value)}" if isinstance(value, tuple) else shown(value)
        raise broken(self.file, f"{key} is {what}, not a whole number from {low} to {high}")
