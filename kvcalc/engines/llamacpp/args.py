"""llama.cpp's own settings, as they come in `engine_args`: names, types and spellings."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import overload

from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
)
from kvcalc.engines.llamacpp.flags import HARMLESS, REFUSED

__all__ = ["KNOWN", "OLLAMA", "OWN", "Args", "full_name", "read"]

OLLAMA = (
    "num_ctx",
    "num_parallel",
    "ollama_kv_cache_type",
    "ollama_flash_attention",
    "ollama_context_length",
    "ollama_num_parallel",
    "ollama_max_loaded_models",
)
"""Settings of ollama, which starts a llama-server with them."""

OWN = ("device_memory", "compute_mib")
"""kvcalc's own: free bytes of each device (`22.5GiB,10GiB`), and MiB of compute buffers of each
that fit counts."""

KNOWN = (
    "ctx_size",
    "parallel",
    "kv_unified",
    "kv_unified_per_slot",
    "cache_type_k",
    "cache_type_v",
    "cache_type_k_draft",
    "cache_type_v_draft",
    "flash_attn",
    "swa_full",
    "batch_size",
    "ubatch_size",
    "n_gpu_layers",
    "n_gpu_layers_draft",
    "tensor_split",
    "split_mode",
    "no_kv_offload",
    "kv_offload",
    "fit",
    "fit_ctx",
    "fit_target",
    "device",
    "main_gpu",
    "override_tensor",
    "cpu_moe",
    "n_cpu_moe",
    "n_cpu_ffn",
    *OWN,
    "rs_seq",
    "ctx_checkpoints",
    "no_kv_unified",
    "cache_ram",
    "load_mode",
    *OLLAMA,
)
"""What kvcalc knows, in llama.cpp's own spelling with underscores."""

_ALIASES = {
    "c": "ctx_size",
    "n_ctx": "ctx_size",
    "np": "parallel",
    "n_parallel": "parallel",
    "n_seq_max": "parallel",
    "kvu": "kv_unified",
    "ctk": "cache_type_k",
    "type_k": "cache_type_k",
    "ctv": "cache_type_v",
    "type_v": "cache_type_v",
    "ctkd": "cache_type_k_draft",
    "ctvd": "cache_type_v_draft",
    "fa": "flash_attn",
    "b": "batch_size",
    "n_batch": "batch_size",
    "ub": "ubatch_size",
    "n_ubatch": "ubatch_size",
    "ngl": "n_gpu_layers",
    "gpu_layers": "n_gpu_layers",
    "ngld": "n_gpu_layers_draft",
    "ts": "tensor_split",
    "fitt": "fit_target",
    "fitc": "fit_ctx",
    "dev": "device",
    "mg": "main_gpu",
    "ot": "override_tensor",
    "cmoe": "cpu_moe",
    "ncmoe": "n_cpu_moe",
    "ncffn": "n_cpu_ffn",
    "sm": "split_mode",
    "nkvo": "no_kv_offload",
    "n_rs_seq": "rs_seq",
    "cram": "cache_ram",
    "no_kvu": "no_kv_unified",
    "ctxcp": "ctx_checkpoints",
    "swa_checkpoints": "ctx_checkpoints",
    "kvo": "kv_offload",
    "spec_draft_type_k": "cache_type_k_draft",
    "spec_draft_type_v": "cache_type_v_draft",
    "spec_draft_ngl": "n_gpu_layers_draft",
    "gpu_layers_draft": "n_gpu_layers_draft",
    "lm": "load_mode",
}
_TRUE, _FALSE = ("on", "true", "1", "enabled"), ("off", "false", "0", "disabled")


class Args(dict[str, str | int | float | bool]):
    """Settings by name, each read as what it must be."""

    def given(self, name: str) -> bool:
        """Whether a setting was given."""
        return name in self

    def text(self, name: str) -> str | None:
        """Return a setting as text; None where it was not given."""
        return None if name not in self else str(self[name]).strip().lower()

    def choice(self, name: str, words: tuple[str, ...]) -> str | None:
        """Return one of some words; None where it was not given.

        Raises:
            InvalidValueError: another word.
        """
        word = self.text(name)
        if word in _TRUE:
            word = "on"
        elif word in _FALSE:
            word = "off"
        if word is not None and word not in words:
            raise InvalidValueError(
                f"{name} is {self[name]!r:.40}", hint=f"give {', '.join(words)}"
            )
        return word

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a yes or no.

        Raises:
            InvalidValueError: neither.
        """
        word = self.choice(name, ("on", "off"))
        return default if word is None else word == "on"

    @overload
    def number(self, name: str, default: int, *, low: int) -> int: ...

    @overload
    def number(self, name: str, default: None, *, low: int) -> int | None: ...

    def number(self, name: str, default: int | None, *, low: int) -> int | None:
        """Return a whole number of at least `low`.

        Raises:
            InvalidValueError: no such number.
        """
        if name not in self:
            return default
        value = self[name]
        wrong = InvalidValueError(
            f"{name} is {value!r:.40}", hint=f"give a whole number of at least {low}"
        )
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise wrong
        try:
            found = int(value)
        except ValueError:
            raise wrong from None
        if found < low or found > 2**40:
            raise wrong
        return found

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """Return numbers of at least 0, parted by commas or slashes; None where not given.

        Raises:
            InvalidValueError: no such numbers.
        """
        if name not in self:
            return None
        parts = str(self[name]).replace("/", ",").split(",")
        try:
            found = tuple(float(part) for part in parts)
        except ValueError:
            found = (-1.0,)
        if not all(isfinite(share) and share >= 0 for share in found):
            raise InvalidValueError(f"{name} is {self[name]!r:.60}", hint="give such as 3,1")
        return found


def full_name(key: str) -> str:
    """Return a setting's name in full, without dashes.

    >>> full_name("-np"), full_name("--swa-full"), full_name("-C")
    ('parallel', 'swa_full', 'C')
    """
    name = key.strip().lstrip("-").replace("-", "_")
    name = name if name in HARMLESS else name.lower()  # -C and -c are two flags
    return _ALIASES.get(name, name)


def read(given: Mapping[str, str | int | float | bool | None]) -> Args:
    """Return the settings by their full names; None counts as not given.

    Raises:
        UnknownNameError: a setting that kvcalc does not know.
        UnsupportedError: one that it knows and does not model.
        InvalidValueError: the same setting twice.
    """
    found = Args()
    for key, value in given.items():
        name = full_name(key)
        if value is None or name in HARMLESS:
            continue
        if name in REFUSED:
            raise NotModelledError(f"kvcalc does not read llama.cpp's {name}", hint=REFUSED[name])
        if name not in KNOWN:
            raise UnknownNameError("llama.cpp setting", key, KNOWN)
        if name in found:
            raise InvalidValueError(f"{name} is given twice", hint="give it once")
        found[name] = value
    return _positive(found)


def _positive(found: Args) -> Args:
    """Return settings with kv_unified for no_kv_unified."""
    if "no_kv_unified" in found:
        if "kv_unified" in found:
            raise InvalidValueError("kv_unified is given twice", hint="give it once")
        off = found.flag("no_kv_unified", default=True)
        del found["no_kv_unified"]
        found["kv_unified"] = not off
    return found
