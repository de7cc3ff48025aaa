"""Tensors that lie elsewhere than their layer: -ot, -cmoe, -ncmoe and -ncffn.

llama.cpp b11434 common/common.h (LLM_FFN_EXPS_REGEX, LLM_FFN_DENSE_REGEX), common/arg.cpp
(parse_tensor_buffer_overrides) and src/llama-model-loader.cpp (create_tensor): the first pattern
that is found in a tensor's name decides on its buffer. They move weights, and no cache.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import InvalidValueError
from kvcalc.engines.llamacpp.args import Args

__all__ = ["EXPERTS", "HOST", "Override", "overrides_of"]

HOST = -1
"""The device that stands for the host's memory."""

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."
_DEVICE = re.compile(r"\D+(\d+)(?:_Split)?", re.ASCII)
_MOST_PATTERNS = 4096  # llama_max_tensor_buft_overrides


class Override(NamedTuple):
    """Where tensors of a name go: the pattern, and a device."""

    pattern: str
    device: int

    def found_in(self, name: str) -> bool:
        """Whether a tensor is meant."""
        return re.search(self.pattern, name) is not None


def overrides_of(asked: Args, devices: int) -> tuple[Override, ...]:
    """Return the overrides in the order in which they were given.

    Raises:
        InvalidValueError: a pattern or a device that there is not.
    """
    found: list[Override] = []
    for name in asked:
        if name == "override_tensor":
            found.extend(_listed(str(asked[name]), devices))
        elif name == "cpu_moe" and asked.flag(name, default=False):
            found.append(Override(EXPERTS, HOST))
        elif name in ("n_cpu_moe", "n_cpu_ffn"):
            pattern = EXPERTS if name == "n_cpu_moe" else _DENSE
            layers = min(asked.number(name, 0, low=0), _MOST_PATTERNS)
            found.extend(Override(rf"blk\.{layer}{pattern}", HOST) for layer in range(layers))
    return tuple(found)


def _listed(text: str, devices: int) -> list[Override]:
    found = []
    for part in text.split(","):
        pattern, equals, buffer = part.rpartition("=")
        match = _DEVICE.fullmatch(buffer)
        device = int(match[1]) if match else HOST
        host = buffer == "CPU" or buffer.endswith("_Host")
        try:
            re.compile(pattern)
        except re.error:
            pattern = ""
        if not equals or not pattern or not (host or match) or device >= devices:
            raise InvalidValueError(
                f"override_tensor has {part!r:.60}",
                hint="write PATTERN=BUFFER, such as exps=CPU or blk.1.=CUDA0",
            )
        found.append(Override(pattern, HOST if host else device))
    return found
