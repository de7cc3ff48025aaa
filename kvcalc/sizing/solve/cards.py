"""The fewest GPUs, the fewest tensor ranks, and the most layers on the card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.memory import End
from kvcalc.core.search import last_that
from kvcalc.sizing.changes import Change
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve.searches import Solved, solved, tried, why_not, worked

__all__ = ["layers_change", "layers_on_card", "num_gpus", "tensor_ranks"]

_MOST_GPUS = 64


def num_gpus(question: Question) -> Solved:
    """Return the fewest GPUs of a replica, in whatever split over ranks and stages holds it."""

    def splits(count: int) -> Iterator[Change]:
        for tp in range(count, 0, -1):
            if count % tp == 0:
                settings = {"tensor_parallel_size": tp, "pipeline_parallel_size": count // tp}
                yield Change(f"{count} GPUs", settings)

    def search(end: End) -> tuple[int, Change] | None:
        fits = (
            (count, split)
            for count in range(1, _MOST_GPUS + 1)
            for split in splits(count)
            if tried(question, split, end)
        )
        return next(fits, None)

    sure, possible = search("low"), search("high")
    replicas = question.deployment.data_parallel_size
    reason = "no split over fewer GPUs holds it"
    if not sure:
        every = (split for count in range(_MOST_GPUS, 0, -1) for split in splits(count))
        most = possible[1] if possible else _accepted(question, every)
        reason = (most and why_not(question, most)) or f"no {_MOST_GPUS} GPUs hold it"
    if replicas > 1:
        reason += f", of each of {replicas} replicas"
    return solved(
        question,
        "gpus",
        sure and sure[0] * replicas,
        possible and possible[0] * replicas,
        reason,
        lambda _: sure[1] if sure else Change(""),
    )


def tensor_ranks(question: Question) -> Solved:
    """Return the smallest tensor parallel size that holds the goal."""

    def of(tp: int) -> Change:
        return Change(f"tensor parallel {tp}", {"tensor_parallel_size": tp})

    def search(end: End) -> int | None:
        sizes = range(1, _MOST_GPUS + 1)
        return next((tp for tp in sizes if tried(question, of(tp), end)), None)

    value, possible = search("low"), search("high")
    reason = "no smaller size holds it"
    if value is None:
        most = of(possible) if possible else _accepted(question, map(of, range(_MOST_GPUS, 0, -1)))
        reason = (most and why_not(question, most)) or f"no size up to {_MOST_GPUS} holds it"
    return solved(question, "tp", value, possible, reason, of)


def _accepted(question: Question, changes: Iterable[Change]) -> Change | None:
    """Return the first change that the engine does not refuse; None where it refuses them all."""
    return next((change for change in changes if worked(question, change) is not None), None)


def layers_on_card(question: Question) -> Solved:
    """Return the most layers that llama.cpp can keep off the host, the output counted as one."""
    if question.deployment.engine != "llama.cpp":
        raise UnsupportedError(
            "layers on the card (ngl) are llama.cpp's", hint="name --engine llama.cpp"
        )
    most = question.model.num_hidden_layers + len(question.model.draft_layers) + 1

    def of(n: int) -> Change:
        return layers_change(question, n)

    def search(end: End) -> int | None:
        def fits(n: int) -> bool:
            return tried(question, of(n), end)

        if fits(most):
            return most
        return last_that(fits, 0, most) if fits(0) else None

    value, possible = search("low"), search("high")
    reason = "one layer more does not fit"
    if value is None:
        reason = why_not(question, of(0)) or "not even with every layer on the host"
    elif value == most:
        reason = "the whole model fits"
    return solved(question, "ngl", value, possible, reason, of)


def layers_change(question: Question, n: int) -> Change:
    """Return llama.cpp's setting for so many layers on the card."""
    given: dict[str, Any] = dict.fromkeys(_spellings(question))
    return Change(f"{n} layers on the card", {}, {**given, "n_gpu_layers": n})


def _spellings(question: Question) -> Iterator[str]:
    """Yield how the layers on the card are spelled in the question, if they are."""
    from kvcalc.engines.llamacpp.args import full_name  # only its questions need it

    for key in question.deployment.engine_args:
        if full_name(key) == "n_gpu_layers":
            yield key
