"""A deployment as exllamav3 resolves it: tokens of the cache, bits, batch slots, history."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.exllama.pages import PAGE, pages_in
from kvcalc.engines.exllama.settings import KNOWN, Arguments, longest, version
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "Settings", "resolve"]

RELEASES = Releases(
    "exllamav3", (1, 0, 0), (1, 4, 1), hint="1.0 to 1.4 are; exllamav2 is an engine of its own"
)
_KNOWN = KNOWN | {"max_num_seqs", "num_speculative_tokens"}
_ARGUMENTS = {
    "cache_size": int,
    "cache_quant": str,
    "max_batch_size": int,
    "max_history": int,
    "swa_full": bool,
}
_DEFAULT_BATCH = 16
"""cache/cache.py, Cache: max_batch_size."""
_BITS = range(2, 9)


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        line: major and minor number of the version.
        cache_size: tokens of all pages.
        bits: of K and of V in pages; None for float16.
        batch: slots of rings and states.
        history: states that a slot keeps beside the live one: tokens that are proposed at once.
        swa_full: windows lie in pages like everything else.
    """

    version: str
    line: tuple[int, int]
    tp: int
    max_model_len: int
    cache_size: int
    size_given: bool
    bits: tuple[int, int] | None
    batch: int
    history: int
    swa_full: bool

    @property
    def pages(self) -> int:
        """Pages of the cache."""
        return self.cache_size // PAGE

    @property
    def dtype(self) -> str:
        """The name of what pages keep: `Q4`, `Q8:Q4`, float16."""
        if self.bits is None:
            return "float16"
        k, v = self.bits
        return f"Q{k}" if k == v else f"Q{k}:Q{v}"


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Raises:
        UnsupportedError: a setting that exllamav3 has not, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "exllamav3", "leave it out; its own go into engine_args")
    arguments = Arguments(deployment, "exllamav3", _ARGUMENTS)
    release, line = version(deployment.engine_version, RELEASES)
    length = longest(model, deployment, notes)
    size = arguments.number("cache_size")
    if size is None:
        size = -(-length // PAGE) * PAGE
    pages_in(size, "cache_size")
    return Settings(
        version=release,
        line=line,
        tp=deployment.tensor_parallel_size,
        max_model_len=length,
        cache_size=size,
        size_given=arguments.number("cache_size") is not None,
        bits=_bits(model, deployment, arguments),
        batch=_same(arguments, "max_batch_size", deployment.max_num_seqs, 1) or _DEFAULT_BATCH,
        history=_same(arguments, "max_history", deployment.num_speculative_tokens, 0) or 0,
        swa_full=arguments.switch("swa_full"),
    )


def _same(arguments: Arguments, name: str, neutral: int | None, low: int) -> int | None:
    own = arguments.number(name, low)
    if own is not None and neutral not in (None, own):
        raise InvalidValueError(f"{name} is given as {own} and as {neutral}", hint="give it once")
    return neutral if own is None else own


def _bits(model: ModelSpec, deployment: Deployment, arguments: Arguments) -> tuple[int, int] | None:
    """Return the bits of K and V: cache_quant `4` or `8,4`, or a dtype of the same layout."""
    given = arguments.text("cache_quant")
    found = None
    if given is not None:
        parts = given.split(",", 1)
        if not all(part.strip().isdecimal() for part in parts):
            raise InvalidValueError(
                f"cache_quant {given!r:.40} is not one or two numbers of bits",
                hint="give it as 4, or as 8,4 for K and V",
            )
        found = (int(parts[0]), int(parts[-1]))
        if any(bits not in _BITS for bits in found):
            raise UnsupportedError(
                f"exllamav3 quantises to 2 to 8 bits, not to {given}", hint="use 2 to 8"
            )
    if deployment.kv_cache_dtype == "auto":
        return found
    asked = model.resolve(deployment.kv_cache_dtype)
    names = {"q8_0": 8, "q4_0": 4}
    if asked.name in ("float16", model.dtype) and found is None:
        return None
    wanted = names.get(asked.k.name), names.get(asked.v.name)
    if wanted[0] is None or wanted[1] is None or found not in (None, wanted):
        raise UnsupportedError(
            f"exllamav3 keeps no {asked.name} cache here",
            hint="float16, or cache_quant in engine_args: 2 to 8 bits, K and V apart",
        )
    return wanted[0], wanted[1]
