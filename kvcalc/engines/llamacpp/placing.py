"""The devices of a server, as its settings name them: how many, their memory, their parts.

llama.cpp b11434 common/arg.cpp (-dev, -mg, -sm, -ts, -ngl, -nkvo), src/llama.cpp
(llama_prepare_model_devices) and src/llama-model.cpp (load_tensors): without tensor_split the
layers go by free memory.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnsupportedError, UsageError
from kvcalc.core.units import parse_bytes
from kvcalc.engines.llamacpp.args import Args
from kvcalc.engines.llamacpp.overrides import Override, overrides_of

__all__ = ["Mode", "Placing", "gpu_layers", "placing_of"]

Mode = str
"""layer, none, row or tensor."""

_MOST_DEVICES = 16  # GGML_MAX_DEVICES, which -ts and -fitt count by
_NO_ROWS_SINCE = 9284
"""The first build whose CUDA backend may have no split buffers: b9283 has them, b10103 has not."""


class Placing(NamedTuple):
    """What decides on which device a layer's cache and weights lie.

    Attributes:
        shares: parts of the layers by device; one device has everything.
        n_gpu_layers: layers that leave the host, the output counted as one; None for all.
        host: the cache stays in host memory (-nkvo).
        padded: the devices' tensors are padded as CUDA pads them.
        named: a card was named, so that there is a device at all.
        free: free bytes by device; empty where nobody told.
        names: what the devices are called; empty for `GPU 0` and so on.
        mode: how the model is split.
        split_given: tensor_split was given.
        layers_given: a number of layers was given, or all.
        overrides: tensors that lie elsewhere than their layer.
        free_told: `free` was told (device_memory), and is not all of the card.
    """

    shares: tuple[float, ...]
    n_gpu_layers: int | None
    host: bool
    padded: bool
    named: bool
    free: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    mode: Mode = "layer"
    split_given: bool = False
    layers_given: bool = False
    overrides: tuple[Override, ...] = ()
    free_told: bool = False

    def name(self, device: int) -> str:
        """Return what a device is called."""
        return self.names[device] if self.names else f"GPU {device}"

    def memory(self, device: int) -> int | None:
        """Return the free bytes of a device; None for the host, and where nobody told."""
        return self.free[device] if 0 <= device < len(self.free) else None


def placing_of(deployment: Deployment, asked: Args, build: int) -> Placing:
    """Return where the layers go.

    Args:
        deployment: as asked for.
        asked: llama.cpp's own settings.
        build: of llama.cpp.

    Raises:
        InvalidValueError, UsageError: settings that make no sense, or do not agree.
        UnsupportedError: a split that llama.cpp refuses.
    """
    mode = asked.choice("split_mode", ("layer", "none", "row", "tensor")) or "layer"
    gpu = deployment.gpu
    if gpu is not None and not isinstance(gpu, GpuSpec):
        raise InvalidValueError(
            f"gpu {gpu!r:.40} is a name where the card itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    cuda = gpu is not None and gpu.compute_capability is not None
    if mode == "row" and cuda and build >= _NO_ROWS_SINCE:
        raise UnsupportedError(
            "llama.cpp's CUDA backend does not support split_mode row (no split buffers)",
            hint="use split_mode tensor, or layer, which is the default",
            code="split-rows-not-served",
            setting="split_mode",
        )
    names = _names(asked)
    shares, free = _shares(deployment, asked, mode, names, gpu)
    keeps = asked.flag("no_kv_offload", default=False)
    if asked.given("kv_offload"):
        keeps = not asked.flag("kv_offload", default=True)
    layers = gpu_layers(asked, "n_gpu_layers")
    overrides = overrides_of(asked, len(shares))
    if mode == "none":
        main = asked.number("main_gpu", 0, low=-1)
        if main >= len(shares):
            raise UnsupportedError(
                f"main_gpu {main} of {len(shares)} devices",
                hint="devices are counted from 0",
                code="main-gpu-out-of-range",
                setting="main_gpu",
            )
        names = (_called(names, max(main, 0)),) if names or main else ()
        shares, free = (1.0,), free[main : main + 1] if main >= 0 else ()
        if main < 0:
            layers = 0
    if names == ("none",):
        layers, names = 0, ()
    return Placing(
        shares=shares,
        n_gpu_layers=layers,
        host=keeps,
        padded=cuda,
        named=gpu is not None,
        free=free,
        names=names,
        mode=mode,
        split_given=asked.given("tensor_split"),
        layers_given=asked.text("n_gpu_layers") not in (None, "auto", "-1"),
        overrides=overrides,
        free_told=asked.given("device_memory"),
    )


def gpu_layers(asked: Args, name: str) -> int | None:
    """Return the layers that leave the host; None for all (`all`, `auto`, -1).

    Raises:
        InvalidValueError: no such number.
    """
    if asked.text(name) in ("all", "auto"):
        return None
    found = asked.number(name, None, low=-2)
    return None if found is None or found < 0 else found


def _called(names: tuple[str, ...], device: int) -> str:
    return names[device] if names else f"GPU {device}"


def _names(asked: Args) -> tuple[str, ...]:
    """Return the devices by name, as -dev lists them; empty where it was not given."""
    if not asked.given("device"):
        return ()
    names = tuple(name.strip() for name in str(asked["device"]).replace("/", ",").split(","))
    if not all(names) or len(set(names)) < len(names) or ("none" in names and len(names) > 1):
        raise InvalidValueError(
            f"device is {asked['device']!r:.60}", hint="give names such as CUDA0,CUDA1, or none"
        )
    return names


def _shares(
    deployment: Deployment, asked: Args, mode: Mode, names: tuple[str, ...], gpu: GpuSpec | None
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the parts of the layers by device, and the free memory of each."""
    split = asked.numbers("tensor_split")
    if split is not None and mode == "none":
        raise UsageError("split_mode none uses one device", hint="leave tensor_split out")
    memory = _memory(asked)
    counts = {"pipeline_parallel_size": deployment.pipeline_parallel_size}
    counts = {name: count for name, count in counts.items() if count > 1}
    if names:
        counts["device"] = len(names)
    if split is not None:
        counts["tensor_split"] = len(split)
    if len(memory) > 1:
        counts["device_memory"] = len(memory)
    if len(set(counts.values())) > 1:
        (one, first), *_, (other, second) = counts.items()
        raise UsageError(
            f"{other} has {second} parts for {first} devices ({one})",
            hint="give as many parts as devices",
        )
    devices = next(iter(counts.values()), 1)
    if devices >= _MOST_DEVICES and split is not None:
        raise UnsupportedError(
            f"{devices} devices: llama.cpp has at most {_MOST_DEVICES}",
            hint="give fewer",
            code="devices-over-limit",
            setting="tensor_split",
        )
    free = memory * devices if len(memory) == 1 else memory
    if not free and gpu is not None:
        free = (gpu.memory_bytes,) * devices
    if split is not None and any(split):
        return split, free
    if split is not None and not free:
        raise InvalidValueError("tensor_split has no part above 0", hint="such as 3,1")
    return tuple(map(float, free)) or (1.0,) * devices, free


def _memory(asked: Args) -> tuple[int, ...]:
    """Return the free memory of the devices, as kvcalc's own device_memory tells it."""
    if not asked.given("device_memory"):
        return ()
    try:
        return tuple(parse_bytes(part) for part in str(asked["device_memory"]).split(","))
    except KvcalcError as error:
        raise InvalidValueError(
            f"device_memory is {asked['device_memory']!r:.60}: {error.message}",
            hint="give free bytes by device, such as 22.5GiB,10GiB",
        ) from None
