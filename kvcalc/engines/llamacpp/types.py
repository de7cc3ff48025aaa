"""Cache types of K and V, and what a row of so many elements takes in one.

llama.cpp b11434 common/arg.cpp (kv_cache_types) and ggml/src/ggml-common.h (the blocks).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from kvcalc.core.dtypes import CacheDtype, KvDtype, cache_dtype, kv_dtype
from kvcalc.core.errors import UnknownNameError, UnsupportedError, UsageError

__all__ = ["CacheTypes", "cache_types", "elements_bytes", "quantized"]

_T = TypeVar("_T")
_DEFAULT = "float16"
_TYPES = ("float32", "float16", "bfloat16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_WORDS = "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"


class CacheTypes(NamedTuple):
    """The type of K (and of every row that is not V), and that of V."""

    k: CacheDtype
    v: CacheDtype

    @property
    def name(self) -> str:
        """The name, `K:V` where the two differ."""
        return KvDtype(k=self.k, v=self.v).name


def cache_types(both: str, k: str | None, v: str | None) -> CacheTypes:
    """Return the cache types that were asked for.

    Args:
        both: `kv_cache_dtype`: one type, `K:V`, or `auto` for llama.cpp's f16.
        k: `cache_type_k`.
        v: `cache_type_v`.

    Raises:
        UnknownNameError: no such type.
        UnsupportedError: a type that llama.cpp has no cache of.
        UsageError: both ways of telling, and they differ.

    >>> cache_types("q8_0:q4_0", None, None).name, cache_types("auto", None, "q8_0").name
    ('q8_0:q4_0', 'float16:q8_0')
    """
    first = _known(both, lambda: kv_dtype(both, _DEFAULT))
    found = []
    for name, word, other in (("cache_type_k", k, first.k), ("cache_type_v", v, first.v)):
        kept = other if word is None else _known(word, partial(cache_dtype, word))
        if word is not None and both != "auto" and kept != other:
            raise UsageError(
                f"{name} {word} and kv_cache_dtype {both} do not agree", hint="give one of the two"
            )
        if kept.name not in _TYPES:
            raise UnsupportedError(
                f"llama.cpp has no {kept.name} cache", hint=f"its cache types: {_WORDS}"
            )
        found.append(kept)
    return CacheTypes(*found)


def _known(asked: str, read: Callable[[], _T]) -> _T:
    """Return a type; one that nobody knows is told beside those of llama.cpp."""
    try:
        return read()
    except UnknownNameError as error:
        raise UnknownNameError("cache dtype", error.name or asked, _WORDS.split(", ")) from None


def quantized(type_: CacheDtype) -> bool:
    """Whether a type packs blocks of elements."""
    return type_.packing is not None and type_.packing.elements > 1


def elements_bytes(type_: CacheDtype, elements: int) -> int:
    """Return the bytes of a row of so many elements (ggml_row_size).

    Raises:
        UnsupportedError: the row is no whole number of the type's blocks.
    """
    packing = type_.packing
    if packing is None or elements % packing.elements:
        raise UnsupportedError(
            f"{type_.name} packs {packing.elements if packing else 0} elements at a time, and a row"
            f" has {elements}",
            hint="choose another cache type",
        )
    return elements // packing.elements * packing.bytes
