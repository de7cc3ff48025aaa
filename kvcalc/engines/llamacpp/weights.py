"""Which weights lie on which device of a server, and what a reader is told of them."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.fit import Moves, weights_of
from kvcalc.engines.llamacpp.loaded import Spans
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.placement import places
from kvcalc.engines.llamacpp.settings import Settings

__all__ = ["layers_told", "moved", "weights_by_device"]


def weights_by_device(
    contexts: list[Context], settings: Settings, moves: Moves | None
) -> Spans | None:
    """Return the bytes of the weights by device, the host's under HOST; None where not known.

    Args:
        contexts: the model's own, and that of what proposes tokens.
        settings: as resolved, and as fit has changed them.
        moves: parts of layers that fit has moved.
    """
    mtp = settings.method == "mtp"
    models = contexts[:1] if mtp else contexts  # an MTP context runs on the model's own weights
    if settings.placing.mode in ("row", "tensor"):
        return None  # rows of every matrix, or heads, lie on all devices
    if not all(context.served.model.weights for context in models):
        return None
    found: Spans = {HOST: (0, 0)}
    for context in models:
        weights = weights_of(context, settings.placing, drafting=mtp)
        where = places(len(context.served.layers), settings.placing.shares, context.n_gpu_layers)
        by_device = weights.on(where, moves if context is contexts[0] else None)
        for device, (low, high) in by_device.items():
            before = found.get(device, (0, 0))
            found[device] = before[0] + low, before[1] + high
    return found


def moved(asked: Spans | None, placed: Spans | None) -> int:
    """Return the bytes of weights that fit has moved to the host, at most."""
    if asked is None or placed is None:
        return 0
    return max(0, placed[HOST][1] - asked[HOST][1])


def layers_told(
    contexts: list[Context], settings: Settings, weights: Spans | None
) -> Iterator[str]:
    """Yield which layers of the model lie on which device, where there are several places."""
    if settings.placing.overrides:
        yield "override_tensor, cpu_moe and the like move weights; each layer's cache stays with it"
        names = [tensor.name for tensor in contexts[0].served.model.weights]
        if names and not any(
            o.found_in(name) for o in settings.placing.overrides for name in names
        ):
            yield "override_tensor, cpu_moe or the like without effect: no tensor has such a name"
    if settings.placing.mode == "tensor":
        yield from _by_head(contexts[0])
        return
    if settings.placing.mode == "row":
        yield "split_mode row: rows of the weights lie on all devices, a layer's cache on its own"
    parts = list(_parts(contexts[0], settings, weights))
    if len(parts) > 1:
        yield "layers and weights by device: " + "; ".join(parts)


def _by_head(main: Context) -> Iterator[str]:
    yield (
        "split_mode tensor: every layer lies on all devices, its K, V and states cut at whole"
        " heads; which devices get those left over changes from layer to layer"
    )
    if not _told(main):
        yield (
            "split_mode tensor goes by the type of the weights as well; types that pack more"
            " than 128 elements may cut at more heads"
        )


def _told(main: Context) -> bool:
    """Whether a file tells the types of the weights."""
    return any(tensor.block > 1 or tensor.row for tensor in main.served.model.weights)


def _parts(main: Context, settings: Settings, weights: Spans | None) -> Iterator[str]:
    """Yield what lies on each place, the host last."""
    where = places(len(main.served.layers), settings.placing.shares, main.n_gpu_layers)
    devices = sorted({*where, *(weights or {})} - {HOST})
    if weights is None and len(set(where)) == 1:
        return
    for device in (*devices, HOST):
        layers = [layer for layer, other in enumerate(where[:-1]) if other == device]
        low, high = (weights or {}).get(device, (0, 0))
        held = []
        if layers:
            first, last = layers[0], layers[-1]
            held.append(f"layer {first}" if first == last else f"layers {first} to {last}")
        if where[-1] == device:
            held.append("the output")
        if high:
            size = format_count(low) + (f" to {format_count(high)}" if high > low else "")
            held.append(f"{size} B of weights")
        if held:
            name = "host" if device == HOST else settings.placing.name(device)
            yield f"{name} {', '.join(held)}"
