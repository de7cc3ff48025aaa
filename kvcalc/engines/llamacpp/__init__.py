"""Engine `llama.cpp`: what a context of llama.cpp allocates, to the last byte, by build.

A plan is made in the order in which llama.cpp makes a context: the settings and the cells
(`settings`, `cells`), the layers as llama.cpp keeps them (`served`), the tensors of each
(`tensors`), and on every device the pools of cells (`pools`, `placement`). The settings fix all
sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.buffers import with_buffers
from kvcalc.engines.llamacpp.compute import Interval, compute_buffer
from kvcalc.engines.llamacpp.contexts import Context, contexts_of, draft_context
from kvcalc.engines.llamacpp.fit import Moves, weights_of
from kvcalc.engines.llamacpp.fitting import (
    fit_context,
    fit_convention,
    fit_devices,
    fit_unsupported,
    placed,
    sized,
    told,
)
from kvcalc.engines.llamacpp.host import host_parts, on_host
from kvcalc.engines.llamacpp.loaded import Spans
from kvcalc.engines.llamacpp.notes import convention, explain, not_modelled
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.placement import places
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.ranks import ranks_of
from kvcalc.engines.llamacpp.settings import Settings, resolve
from kvcalc.engines.llamacpp.standins import with_tensors
from kvcalc.engines.llamacpp.version import RELEASES, open_changes

__all__ = ["RELEASES", "Interval", "compute_buffer", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that llama.cpp makes.

    Raises:
        UnsupportedError: what llama.cpp refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError, UsageError: a setting that makes no sense.
    """
    notes: list[str] = []
    model = with_tensors(model)
    settings = resolve(model, deployment, notes)
    size = fit_context(deployment, settings, lambda other: _bytes(plan(model, other)))
    fitted = None
    if size is not None:
        notes = [f"fit chooses a context of {format_count(size)} tokens for the memory given"]
    else:
        fitted = fit_devices(model, deployment, settings, lambda other: _contexts(model, other))
        size = None if fitted is None else fitted.size
    if size is not None:
        deployment = sized(deployment, size)
        settings = resolve(model, deployment, notes := notes[:1] if fitted is None else [])
    asked = settings
    if fitted is not None:
        settings = placed(settings, fitted)
        notes.extend(told(fitted, settings))
    notes[:0] = beyond(model, settings.cells.longest if settings.ctx_given else None)
    contexts = _all_contexts(model, deployment, settings, notes)
    weights = weights_by_device(contexts, settings, None if fitted is None else fitted.moves())
    before = weights
    if fitted is not None:
        before = weights_by_device(_all_contexts(model, deployment, asked, []), asked, None)
    ranks = with_buffers(ranks_of(contexts, settings, weights), contexts, settings)
    if not any(rank.pools for rank in ranks):
        raise UnsupportedError(
            f"llama.cpp keeps no KV cache for {model.name}",
            hint="use --engine none to see what its layers are",
        )
    notes.extend(_otherwise(model, deployment, settings, contexts))
    notes.extend(layers_told(contexts, settings, weights))
    notes.extend(explain(contexts, ranks, settings, deployment))
    return CachePlan(
        engine="llama.cpp",
        engine_version=settings.build.text,
        model=model.name,
        kv_cache_dtype=settings.types.name,
        # A conversion's default: convert_hf_to_gguf.py --outtype auto makes 16 bits of float32.
        model_dtype="float16" if model.dtype == "float32" and not model.weights else None,
        block_size=None,
        ranks=ranks,
        split="fixed",
        max_model_len=settings.cells.longest,
        max_sequences=settings.cells.sequences,
        moved_bytes=moved(before, weights),
        host=(*on_host(ranks, weights, settings), *host_parts(contexts, settings)),
        notes=tuple(notes),
        unsupported=(
            *not_modelled(contexts, settings, deployment),
            *fit_unsupported(model, deployment, settings, fitted),
        ),
        convention=(*convention(contexts, settings), *fit_convention(fitted, deployment)),
        source=f"llama.cpp {settings.build.text}: src/llama-context.cpp, {_files(contexts[0])}",
    )


def _contexts(model: ModelSpec, deployment: Deployment) -> list[Context]:
    """Return the contexts of a deployment, its notes apart."""
    return _all_contexts(model, deployment, resolve(model, deployment, []), [])


def _all_contexts(
    model: ModelSpec, deployment: Deployment, settings: Settings, notes: list[str]
) -> list[Context]:
    found = contexts_of(model, settings, notes)
    if deployment.draft_model is not None:
        found.append(draft_context(_spec(deployment.draft_model), model, settings, notes))
    return found


def _otherwise(
    model: ModelSpec, deployment: Deployment, settings: Settings, contexts: list[Context]
) -> Iterator[str]:
    """Yield what the other rule gives where nobody knows which of two a build has.

    Nothing is said where both give the same.
    """
    ours = _caches(contexts)
    for name, change in open_changes(settings.build).items():
        try:
            other = resolve(model, deployment, [], name)
            told = f"{format_count(_caches(_all_contexts(model, deployment, other, [])))} B"
            same = told == f"{format_count(ours)} B"
        except UnsupportedError as error:
            told, same = f"a refusal ({error.message})", False
        if not same:
            yield (
                f"between b{change.before} and b{change.after} {change.what}: caches of"
                f" {format_count(ours)} B {'after' if change.later else 'before'} that, which are"
                f" taken, or {told}"
            )


def _caches(contexts: list[Context]) -> int:
    """Return the bytes of the caches of all contexts."""
    return sum(
        pool.total_bytes(pool.units or 0)
        for context in contexts
        for pool in pools_of(context.kept, context.sizes)
    )


def _bytes(found: CachePlan) -> int:
    pools = [pool for rank in found.ranks for pool in rank.pools]
    fixed = sum(rank.fixed_bytes for rank in found.ranks)
    return fixed + sum(pool.total_bytes(pool.units or 0) for pool in pools)


def _spec(draft: str | ModelSpec) -> ModelSpec:
    if isinstance(draft, ModelSpec):
        return with_tensors(draft)
    raise InvalidValueError(
        f"draft_model {draft!r:.40} is a name where the model itself is wanted",
        hint="call kvcalc.plan, which looks the name up",
    )


def _files(context: Context) -> str:
    """Return the files that say what this model's caches are."""
    caches = {kept.cache for kept in context.kept}
    files = ["src/llama-model.cpp (create_memory)"]
    if caches - {"state"}:
        files.append("src/llama-kv-cache.cpp")
    if caches & {"csa", "hca", "lid"}:
        files.append("src/llama-kv-cache-dsv4.cpp")
    elif "swa" in caches:
        files.append("src/llama-kv-cache-iswa.cpp")
    if "state" in caches and not caches & {"csa", "hca", "lid"}:
        files.append("src/llama-memory-recurrent.cpp")
    return ", ".join(files)


# Which weights lie on which device of a server, and what a reader is told of them.


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


# What llama.cpp prints about its caches and buffers when a context is made (format of b11434).

_MIB = 2**20
_NAMES = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}
_STATES = ("conv", "shift")


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines about the sizes of caches and buffers; the budget changes none of them.

    Args:
        plan: a plan of llama.cpp.
        kv_cache_bytes: not used, as the settings fix every size.
    """
    del kv_cache_bytes
    names = dict.fromkeys(pool.name for rank in plan.ranks for pool in rank.pools)
    lines = []
    for name in names:
        pools = [pool for rank in plan.ranks for pool in rank.pools if pool.name == name]
        if name.endswith("state"):
            lines.append(_state(pools, plan))
        else:
            lines.append(_cells(pools, _types(pools[0].dtype or plan.kv_cache_dtype), plan))
    return (*lines, *_buffers(plan))


def _types(dtype: str) -> list[str]:
    """Return the types of K and of V as llama.cpp names them."""
    k_type, _, v_type = dtype.partition(":")
    return [_NAMES.get(name, name) for name in (k_type, v_type or k_type)]


def _buffers(plan: CachePlan) -> Iterator[str]:
    """Yield the lines of what lies beside the caches on a CPU, where that is exact."""
    for rank in plan.ranks:
        size = None if rank.share is None else rank.share.size
        if not rank.outside_bytes or size is None or size.vocab_size is None:
            continue
        output = 4 * size.vocab_size * (plan.max_sequences or 1)
        computed = rank.outside_bytes - output
        yield f"llama_context:        CPU  output buffer size = {_wide(output)}"
        yield f"sched_reserve:        CPU compute buffer size = {_wide(computed)}"


def _wide(size: int) -> str:
    return f"{size / _MIB:8.2f} MiB"


def _sum(pools: list[Pool], roles: tuple[str, ...]) -> int:
    return sum(
        (pool.units or 0) * size
        for pool in pools
        for group in pool.groups
        for role, size in group.payload.items()
        if role in roles
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:7.2f} MiB"


def _layers(pools: list[Pool]) -> int:
    return sum(group.layers for pool in pools for group in pool.groups)


def _cells(pools: list[Pool], types: list[str], plan: CachePlan) -> str:
    units = pools[0].units or 0
    total = sum(pool.total_bytes(pool.units or 0) for pool in pools)
    keys = _sum(pools, ("k", "latent", "rope", "nope", "index"))
    streams = max(1, units // _stream(pools[0], plan))
    seqs = plan.max_sequences or 1
    return (
        f"llama_kv_cache: size = {_mib(total)} ({units // streams:6d} cells,"
        f" {_layers(pools):3d} layers, {seqs:2d}/{streams} seqs),"
        f" K ({types[0]}): {_mib(keys)}, V ({types[1]}): {_mib(total - keys)}"
    )


def _stream(pool: Pool, plan: CachePlan) -> int:
    """Cells of one stream: what a sequence has to itself, or the pool that all share."""
    rule = pool.groups[0].rule
    slots = getattr(rule, "slots", None)
    return int(slots or pool.units or plan.max_model_len)


def _state(pools: list[Pool], plan: CachePlan) -> str:
    total = sum(pool.total_bytes(pool.units or 0) for pool in pools)
    shifts = _sum(pools, _STATES)
    seqs = plan.max_sequences or 1
    snapshots = (pools[0].units or 0) // seqs - 1
    # The line counts all layers, not the recurrent ones alone.
    layers = sum(rank.share.num_hidden_layers for rank in plan.ranks if rank.share is not None)
    return (
        f"llama_memory_recurrent: size = {_mib(total)} ({seqs:6d} cells, {layers:3d}"
        f" layers, {seqs:2d} seqs {snapshots:2d} rs_seq), R (f32): {_mib(shifts)},"
        f" S (f32): {_mib(total - shifts)}"
    )
