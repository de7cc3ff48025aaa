"""From a deployment to what fit makes of it: a size, and layers by device, told in notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count, format_number_of
from kvcalc.core.visible import left_free
from kvcalc.engines.llamacpp.compute import compute_buffer
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.fit import End, Fitted, fit
from kvcalc.engines.llamacpp.loaded import largest_in_layers
from kvcalc.engines.llamacpp.settings import Settings, resolve
from kvcalc.engines.llamacpp.shrink import fitted
from kvcalc.engines.llamacpp.slots import trained
from kvcalc.engines.llamacpp.terms import compute_term, driver_term, spilled

__all__ = [
    "Contexts",
    "fit_context",
    "fit_convention",
    "fit_devices",
    "fit_unsupported",
    "placed",
    "sized",
    "told",
    "why_not",
]

Contexts = Callable[[Deployment], list[Context]]
"""From a deployment to its contexts."""


def fit_context(
    deployment: Deployment, settings: Settings, contexts: Callable[[Deployment], int]
) -> int | None:
    """Return the context that fit chooses for a given budget; None where it has none to choose.

    Args:
        deployment: as asked for.
        settings: with the context in full.
        contexts: bytes of all contexts of a deployment.

    Raises:
        UnsupportedError: several devices.
    """
    budget = deployment.kv_cache_memory_bytes
    if budget is None or not settings.fits or settings.ctx_given:
        return None
    if len(settings.placing.shares) > 1:
        raise UnsupportedError(
            "kvcalc fits a context into a budget on one device",
            hint="give ctx_size, or device_memory instead of the budget",
        )
    return fitted(
        settings.cells, settings.fit_ctx, budget, lambda size: contexts(sized(deployment, size))
    )


def why_not(model: ModelSpec, deployment: Deployment, settings: Settings) -> str | None:
    """Return why kvcalc cannot run fit here; None where it can."""
    placing, draft = settings.placing, deployment.draft_model
    if not placing.free:
        return "the devices' free memory is not known (gpu, or device_memory in engine_args)"
    if not model.weights:
        return "it goes by each tensor of the weights, which nothing tells"
    if isinstance(draft, ModelSpec) and not draft.weights:
        return "it goes by each tensor of the draft's weights, which nothing tells"
    if placing.n_gpu_layers == 0 and not placing.layers_given:
        return "without a device it goes by the host's memory"
    return None


def fit_devices(
    model: ModelSpec, deployment: Deployment, settings: Settings, contexts: Contexts
) -> Fitted | None:
    """Return what fit chooses by the devices' free memory; None where it cannot be run."""
    if not settings.fits or deployment.kv_cache_memory_bytes is not None:
        return None
    if why_not(model, deployment, settings) is not None:
        return None

    @cache
    def at(size: int) -> list[Context]:
        return contexts(_with_context(deployment, settings, size))

    cells = settings.cells
    longest = trained(model) * (1 if cells.unified else cells.sequences)
    sure, best = (fit(settings, at, longest, end) for end in _ends(model, deployment, settings))
    full = longest if best.size is None else best.size
    return sure if sure.size in (None, full) else sure._replace(longest=full)


def _ends(model: ModelSpec, deployment: Deployment, settings: Settings) -> Iterator[End]:
    """Yield what fit goes by where the least room is left, and where the most is.

    A device is asked for its free memory once the driver's context is there
    (ggml_backend_dev_memory).
    """
    gpu, placing = deployment.gpu, settings.placing
    for most in (True, False):

        def compute(size: int, most: bool = most) -> tuple[int, ...]:
            if settings.compute:
                return settings.compute
            asked = _with_context(deployment, settings, size)
            buffer = _buffer(model, asked, padded=isinstance(gpu, GpuSpec))
            return () if buffer is None else (buffer[most],)

        free = placing.free
        if isinstance(gpu, GpuSpec):
            context = driver_term(gpu)
            seen = [left_free(gpu, told if placing.free_told else None) for told in free]
            free = tuple(
                one.low_bytes - context.high_bytes if most else one.high_bytes - context.low_bytes
                for one in seen
            )
        known = most and not settings.compute and isinstance(gpu, GpuSpec)
        copied = largest_in_layers(model.weights, model.num_hidden_layers) if known else 0
        yield End(tuple(max(0, size) for size in free), copied, cache(compute), most)


def _buffer(model: ModelSpec, deployment: Deployment, *, padded: bool) -> tuple[int, int] | None:
    """Return what the compute buffer of a context takes, least and most; None if not known.

    On a card that is named it is known by bounds at least; else where its graph is known alone.
    """
    settings = resolve(model, deployment, [])
    try:
        if padded:
            term = compute_term(model, settings, spills=spilled(model, settings))
            return term.low_bytes, term.high_bytes
        found = compute_buffer(model, settings, gpu=True)
    except UnsupportedError:
        return None
    return None if found is None else (found.high, found.high)


def placed(settings: Settings, found: Fitted) -> Settings:
    """Return the settings with layers where fit puts them."""
    filling = found.filling
    if filling is None:
        return settings
    counts = tuple(load.layers for load in filling.loads)
    shares = tuple(map(float, counts)) if len(counts) > 1 and any(counts) else None
    placing = settings.placing
    return settings._replace(
        placing=placing._replace(shares=shares or placing.shares, n_gpu_layers=sum(counts))
    )


def told(found: Fitted, settings: Settings) -> Iterator[str]:
    """Yield what fit chose, and what it could not."""
    if found.size is not None:
        most = (
            ""
            if found.longest is None
            else (f" (up to {format_count(found.longest)} where all else takes its least)")
        )
        yield f"fit cuts the context to {format_count(found.size)} tokens{most}"
    if found.failure is not None:
        yield (
            f"fit moves no layers: {found.failure}; llama-server starts all the same, and may fail"
        )
    elif found.filling is None:
        yield "fit leaves the layers where they are: they fit, and the margin stays free"
    else:
        loads = [
            f"{settings.placing.name(device)} keeps {format_number_of(load.layers, 'layer')}"
            + (f" ({load.part} in part)" if load.part else "")
            for device, load in enumerate(found.filling.loads)
        ]
        yield f"fit moves layers to the host: {', '.join(loads)}, the output counted as one"


def fit_unsupported(
    model: ModelSpec, deployment: Deployment, settings: Settings, found: Fitted | None
) -> Iterator[str]:
    """Yield what of fit is not modelled."""
    if found is not None:
        if not settings.compute and not isinstance(deployment.gpu, GpuSpec):
            buffer = _buffer(model, deployment, padded=False)
            if buffer is None:
                yield (
                    "compute buffers in fit: they count as 0 B, so llama.cpp may choose a shorter"
                    " context or fewer layers (compute_mib tells them)"
                )
            else:
                yield (
                    f"compute buffers in fit: each device's counts as {format_count(buffer[1])} B,"
                    " its upper bound, so llama.cpp may keep a longer context or more layers"
                    " (compute_mib tells them)"
                )
        return
    if settings.fits:
        budget = deployment.kv_cache_memory_bytes is not None
        given = budget or settings.ctx_given
        context = "" if given else "a context that was not given is the model's own maximum, and "
        reason = "a budget tells no weights" if budget else why_not(model, deployment, settings)
        yield (
            f"fitting into memory (fit): {context}layers stay where n_gpu_layers puts them,"
            " whatever the free memory, where llama-server would move some to the host:"
            f" {reason}"
        )


def fit_convention(found: Fitted | None, deployment: Deployment) -> tuple[str, ...]:
    """Return what fit takes for granted."""
    if found is None or "device_memory" in deployment.engine_args:
        return ()
    return ("A GPU's memory counts as free but for what its driver keeps; nothing else is on it.",)


def _with_context(deployment: Deployment, settings: Settings, size: int) -> Deployment:
    """Return a deployment with a context of so many tokens.

    As it is where it has them: ollama gives them in words of its own.
    """
    given = settings.ctx_given and size == settings.cells.total
    return deployment if given else sized(deployment, size)


def sized(deployment: Deployment, size: int) -> Deployment:
    """Return a deployment with a context of so many tokens in all."""
    args = {**deployment.engine_args, "ctx_size": size}
    return msgspec.structs.replace(deployment, engine_args=args)
