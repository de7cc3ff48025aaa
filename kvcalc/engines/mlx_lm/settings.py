"""A deployment as mlx-lm resolves it: every default of `generate` put in.

mlx-lm 0.32.2 generate.py, setup_arg_parser and generate_step.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
    WithoutEffectError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "STEP", "Settings", "resolve"]

STEP = 256
"""Rows that a cache grows by (models/cache.py, `step` of every class)."""
RELEASES = Releases("mlx-lm", (0, 32, 0), (0, 32, 2))

_DEFAULT_MAX_MODEL_LEN = 8192
_PREFILL_STEP, _QUANTIZED_START, _GROUP = 2048, 5000, 64
_BITS, _GROUPS = (1, 2, 3, 4, 5, 6, 8), (32, 64, 128)
"""What mx.quantize of MLX 0.32.4 takes (asked)."""
_ASYM = re.compile(r"int([248])_asym_g(\d+)", re.ASCII)

_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "data_parallel_size",
    "kv_cache_dtype",
    "max_model_len",
    "kv_cache_memory_bytes",
    "engine_args",
}
_ARGUMENTS = {
    "prompt_tokens": 1,
    "prefill_step_size": 1,
    "max_kv_size": 1,
    "kv_bits": 1,
    "kv_group_size": 1,
    "quantized_kv_start": 0,
    "qk_nope_head_dim": 1,
    "v_head_dim": 1,
}
"""Setting -> its least value; prompt_tokens and the two widths are kvcalc's own."""


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        max_model_len: the longest sequence.
        prompt_tokens: tokens of the prompt; None where a sequence is taken as all prompt.
        prefill_step: tokens of one step of the prompt.
        max_kv_size: rows of a rotating cache for every layer of a model without caches of its own.
        bits: bits an element of a quantised cache; None where none is.
        group: elements that share a scale and a bias.
        start: tokens from which on a sequence is kept quantised.
        qk_nope_head_dim, v_head_dim: widths of an MLA model's heads, for classes that expand it.
    """

    version: str
    max_model_len: int
    prompt_tokens: int | None
    prefill_step: int
    max_kv_size: int | None
    bits: int | None
    group: int
    start: int
    qk_nope_head_dim: int | None
    v_head_dim: int | None

    @property
    def quantizes(self) -> bool:
        """Whether some sequence is long enough to be quantised."""
        return self.bits is not None and self.start <= self.max_model_len

    @property
    def first(self) -> int | None:
        """Tokens of the prompt that come in steps: all but its last."""
        return None if self.prompt_tokens is None else self.prompt_tokens - 1


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Args:
        model: as it is run.
        deployment: as asked for.
        notes: a line is added for what was assumed.

    Raises:
        UnsupportedError: a setting that mlx-lm has not, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "mlx-lm", "leave it out; its own go into engine_args")
    given = {name: _number(deployment, name, low) for name, low in _ARGUMENTS.items()}
    for name in deployment.engine_args:
        if name not in _ARGUMENTS:
            raise UnknownNameError("setting of mlx-lm", name, _ARGUMENTS)
    length = deployment.max_model_len or model.max_position_embeddings
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    prompt = given["prompt_tokens"]
    if prompt is not None and prompt > length:
        raise InvalidValueError(f"prompt_tokens {prompt} is more than the maximum, {length}")
    step = given["prefill_step_size"] or _PREFILL_STEP
    if step % STEP:
        raise NotModelledError(
            f"steps of {step} tokens of the prompt: only multiples of {STEP} are modelled",
            hint=f"use a prefill_step_size such as {_PREFILL_STEP}",
        )
    bits, group = _quantization(model, deployment.kv_cache_dtype, given)
    start = given["quantized_kv_start"]
    idle = [n for n in ("quantized_kv_start", "kv_group_size") if given[n] is not None]
    if bits is None and idle:
        raise WithoutEffectError(
            f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect without kv_bits",
            settings=tuple(idle),
            hint="give kv_bits as well",
        )
    if bits is not None and start is None:
        start = _QUANTIZED_START
        notes.append(
            f"sequences are quantised from {format_count(start)} tokens on: the default of"
            " quantized_kv_start"
        )
    return Settings(
        version=RELEASES.spelled(RELEASES.read(deployment.engine_version).number),
        max_model_len=length,
        prompt_tokens=prompt,
        prefill_step=step,
        max_kv_size=given["max_kv_size"],
        bits=bits,
        group=group,
        start=start or 0,
        qk_nope_head_dim=given["qk_nope_head_dim"],
        v_head_dim=given["v_head_dim"],
    )


def _number(deployment: Deployment, name: str, low: int) -> int | None:
    value = deployment.engine_args.get(name)
    if value is not None and (type(value) is not int or value < low):
        raise InvalidValueError(f"{name} is {value!r:.60}, not a whole number from {low}")
    return value


def _quantization(
    model: ModelSpec, kv_cache_dtype: str, given: dict[str, int | None]
) -> tuple[int | None, int]:
    """Return bits and group size, from kv_bits and kv_group_size or from the KV cache dtype."""
    bits, group = given["kv_bits"], given["kv_group_size"]
    if kv_cache_dtype != "auto":
        asked = model.resolve(kv_cache_dtype).name
        match = _ASYM.fullmatch(asked)
        wanted = (int(match[1]), int(match[2])) if match else (None, None)
        plain = asked == model.dtype
        if not (match or plain) or (bits is not None and (bits, group or _GROUP) != wanted):
            raise UnsupportedError(
                f"mlx-lm keeps K and V in the model dtype, {model.dtype}, or quantised, and not in"
                f" {asked}",
                hint="for fewer bits: kv_bits and kv_group_size in engine_args",
            )
        bits, group = wanted
    if bits is not None and bits not in _BITS:
        raise UnsupportedError(
            f"MLX does not quantise to {bits} bits", hint=f"it has {', '.join(map(str, _BITS))}"
        )
    if group is not None and group not in _GROUPS:
        raise UnsupportedError(
            f"MLX has no groups of {group} elements", hint=f"it has {', '.join(map(str, _GROUPS))}"
        )
    return bits, group or _GROUP
