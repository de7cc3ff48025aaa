"""From what was typed to capacity questions: the card, its memory, and the engine's default."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.cli import inputs
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, KvcalcError, UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_bytes
from kvcalc.sizing import Question
from kvcalc.sizing.changes import changed

__all__ = ["card_settings", "questions"]

_ASSUMED = "h100-80gb"
"""Whose kernels are taken where memory is given and no card is named."""


def questions(values: Values, notes: list[str]) -> Iterator[Question]:
    """Yield a question for every model under every deployment; an error names the model.

    Raises:
        UsageError: no memory to answer for.
    """
    models = inputs.models(values, notes)
    _engine(values, notes)
    deployed = inputs.deployments(values, notes, several=True)
    card = _card(values, notes)
    memory = inputs.some_size(values, "kv_memory", "a cache", "15GiB")
    at = tuple(
        values.at("at", lambda text=text: inputs.token_count(text))  # type: ignore[misc]  # its default
        for text in values["at"] or ()
    )
    for model in models:
        for deployment in deployed:
            try:
                yield _question(
                    model, _completed(deployment, values, card, memory), values, at, notes
                )
            except KvcalcError as error:
                error.where = error.where or model.name
                raise


def _question(
    model: ModelSpec,
    deployment: Deployment,
    values: Values,
    at: tuple[int, ...],
    notes: list[str],
) -> Question:
    load = None
    if values["lengths"] is not None or values["trace"] is not None:
        found = inputs.workload(values, notes)
        longest = deployment.max_model_len or model.max_position_embeddings
        lengths = found.lengths
        if longest is not None:
            lengths = lengths.limited(longest, inputs.over_policy(values))
        load = (found.name, lengths)
    return Question(
        model=model,
        deployment=deployment,
        weights_bytes=inputs.size(values, "weights", up=True),
        quantization=values["quantization"],
        sequences=inputs.number(values, "sequences") or 1,
        lengths=at,
        workload=load,
        instances=inputs.number(values, "instances") or 1,
        free_bytes=inputs.size(values, "gpu_free"),
    )


def _engine(values: Values, notes: list[str]) -> None:
    """Take vLLM where no engine is named, and llama.cpp for GGUF files."""
    if values["engine"]:
        return
    names = [*(values["models"] or ()), *(values["preset"] or ())]
    files = bool(values["gguf"]) or any(name.lower().endswith(".gguf") for name in names)
    values["engine"] = ["llama.cpp" if files else "vllm"]
    notes.append(f"no engine was named: {values['engine'][0]}")


def _card(values: Values, notes: list[str]) -> int | None:
    """Return the memory of the card where it is given by itself."""
    memory = inputs.some_size(values, "gpu_memory", "a card", "24GiB")
    if memory is not None and values["gpu"] is None:
        notes.append(f"no card was named: kernels are chosen as on {_ASSUMED}")
    return memory


def _completed(
    deployment: Deployment, values: Values, memory: int | None, cache: int | None
) -> Deployment:
    """Return a deployment with its card, its share and its cache."""
    gpu = deployment.gpu
    if memory is None and gpu is None and cache is None and deployment.engine != "llama.cpp":
        raise UsageError(
            "capacity of what memory?",
            hint="name the card (--gpu h100-80gb), its memory (--gpu-memory) or the cache's"
            " (--kv-memory)",
        )
    changes = card_settings(deployment, values, memory)
    if cache is not None:
        changes["kv_cache_memory_bytes"] = cache
    return changed(deployment, changes, {})


def card_settings(deployment: Deployment, values: Values, memory: int | None) -> dict[str, object]:
    """Return what was given of the card and its share, by field of Deployment.

    Args:
        deployment: as far as it is known; its gpu may be the card.
        values: what was given.
        memory: of the card, where that is given by itself.
    """
    changes: dict[str, object] = {}
    gpu = deployment.gpu
    if memory is not None:
        if isinstance(gpu, GpuSpec):
            changes["gpu"] = gpu.with_memory(memory)
        else:
            text = f"a card of {format_bytes(memory)}"
            changes["gpu"] = GpuSpec(
                name=text, title=text, memory_bytes=memory, compute_capability="9.0"
            )
    share = values["gpu_memory_utilization"]
    if share is not None:
        changes["gpu_memory_utilization"] = values.at(
            "gpu_memory_utilization", lambda: _share(share)
        )
    for name in ("enforce_eager", "enable_expert_parallel"):
        found = inputs.switched(values, name)
        if found is not None:
            changes[name] = found
    return changes


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise InvalidValueError(
            f"{text!r:.40} is no share above 0 and up to 1", hint="write a share such as 0.9"
        )
    return found
