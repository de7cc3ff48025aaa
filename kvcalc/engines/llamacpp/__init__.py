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
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.buffers import with_buffers
from kvcalc.engines.llamacpp.compute import Interval, compute_buffer
from kvcalc.engines.llamacpp.contexts import Context, contexts_of, draft_context
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
from kvcalc.engines.llamacpp.notes import convention, explain, not_modelled
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.ranks import ranks_of
from kvcalc.engines.llamacpp.settings import Settings, resolve
from kvcalc.engines.llamacpp.standins import with_tensors
from kvcalc.engines.llamacpp.start_up import start_up_log
from kvcalc.engines.llamacpp.version import RELEASES, open_changes
from kvcalc.engines.llamacpp.weights import layers_told, moved, weights_by_device

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
