"""The fewest GPUs, the fewest tensor ranks, and the most layers on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.memory import End
from kvcalc.core.search import first_that, last_that
from kvcalc.engines import engine_of
from kvcalc.engines.changes import Change
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve.searches import Solved, Tries, solved, why_not

__all__ = [
    "layers_on_card",
    "left_to_host",
    "num_gpus",
    "tensor_ranks",
    "usual_sizes",
]

_MOST_GPUS = 64
_NODE = 8
"""GPUs of a node, as a rule."""
_ANY = "--all-layouts tries every other"


def _sizes(tries: Tries) -> Iterator[tuple[int, int]]:
    """Yield tensor ranks and stages, the fewest GPUs first, all of them or the usual ones."""
    if not tries.question.all_layouts:
        yield from usual_sizes(tries)
        return
    for count in range(1, _MOST_GPUS + 1):
        for tp in range(count, 0, -1):
            if count % tp == 0:
                yield tp, count // tp


def usual_sizes(tries: Tries) -> Iterator[tuple[int, int]]:
    """Yield tensor ranks and stages as engines' own documents lay models out.

    Powers of two within a node, tensor ranks before stages; then whole nodes, each a stage of as
    many tensor ranks as there are GPUs (vLLM, docs/serving/parallelism_scaling.md); or two nodes of
    tensor ranks, which SGLang's documents prefer (docs/references/multi_node_deployment, --tp 16
    --nnodes 2). Where heads do not divide by a node, it holds stages too. llama.cpp shares layers
    out over as many devices as a machine has (tools/server/README.md, --split-mode).
    """
    engine = engine_of(tries.question.deployment.engine)
    if not engine.tensor_parallel:
        yield from ((1, devices) for devices in range(1, _NODE + 1))
        return
    count = 1
    while count <= _NODE:
        tp = count
        while tp:
            yield tp, count // tp
            tp //= 2
        count *= 2
    tp = _NODE
    while tp > 1 and tries.worked(_split(tp, _NODE // tp)) is None:
        tp //= 2
    of_two = [(tp, 2 * _NODE // tp), *([(2 * _NODE, 1)] if tp == _NODE else [])]
    yield from reversed(of_two) if engine.two_nodes_of_ranks else of_two
    for nodes in range(3, _MOST_GPUS // _NODE + 1):
        yield tp, nodes * _NODE // tp


def _split(tp: int, pp: int) -> Change:
    settings = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    return Change(f"{tp * pp} GPUs", settings)


def num_gpus(question: Question) -> Solved:
    """Return the fewest GPUs of a replica, in whatever split over ranks and stages holds it.

    Splits that nobody deploys (13 stages) are tried where the question says so (all_layouts).
    """
    tries = Tries(question)
    splits = [_split(tp, pp) for tp, pp in _sizes(tries)]

    def search(end: End) -> Change | None:
        return next((split for split in splits if tries.meet(split, end)), None)

    # What surely holds it may hold it, so that the most that can be is found on the way.
    possible = search("high")
    sure = None if possible is None else search("low")
    replicas = question.deployment.data_parallel_size
    reason = "no split over fewer GPUs holds it"
    if not question.all_layouts:
        reason = f"no usual layout of fewer GPUs holds it; {_ANY}"
    if sure is None:
        most = possible or _accepted(tries, reversed(splits))
        none = f"no {_MOST_GPUS} GPUs hold it"
        if not question.all_layouts:
            none = f"no usual layout of up to {_MOST_GPUS} GPUs holds it; {_ANY}"
        reason = (most and why_not(question, most)) or none
    if replicas > 1:
        reason += f", of each of {replicas} replicas"
    return solved(
        question,
        "gpus",
        sure and _gpus(sure) * replicas,
        possible and _gpus(possible) * replicas,
        reason,
        lambda _: sure or Change(""),
    )


def _gpus(split: Change) -> int:
    sizes = split.settings
    return int(sizes["tensor_parallel_size"] * sizes["pipeline_parallel_size"])


def tensor_ranks(question: Question) -> Solved:
    """Return the smallest tensor parallel size that holds the goal: of those that are usual."""
    sizes = range(1, _MOST_GPUS + 1) if question.all_layouts else (1, 2, 4, _NODE, 2 * _NODE)
    tries = Tries(question)

    def of(tp: int) -> Change:
        return Change(f"tensor parallel {tp}", {"tensor_parallel_size": tp})

    def search(end: End) -> int | None:
        return next((tp for tp in sizes if tries.meet(of(tp), end)), None)

    value, possible = search("low"), search("high")
    reason = "no smaller size holds it" if question.all_layouts else f"no smaller one; {_ANY}"
    if value is None:
        most = of(possible) if possible else _accepted(tries, map(of, reversed(sizes)))
        reason = (most and why_not(question, most)) or f"no size up to {sizes[-1]} holds it"
    return solved(question, "tp", value, possible, reason, of)


def _accepted(tries: Tries, changes: Iterable[Change]) -> Change | None:
    """Return the first change that the engine does not refuse; None where it refuses them all."""
    return next((change for change in changes if tries.worked(change) is not None), None)


def layers_on_card(question: Question) -> Solved:
    """Return the most layers that llama.cpp can keep off the host, the output counted as one."""
    setting = engine_of(question.deployment.engine).gpu_layers(question.model, question.deployment)
    if setting is None:
        raise UnsupportedError(
            "layers on the GPU (ngl) are llama.cpp's", hint="name --engine llama.cpp"
        )
    of, most = setting
    tries = Tries(question)

    def search(end: End) -> int | None:
        def fits(n: int) -> bool:
            return tries.meet(of(n), end)

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


def left_to_host(question: Question, passes: Callable[[Change], bool]) -> Iterator[Change]:
    """Yield what the engine may leave to the host so that it passes, the cheapest kind first.

    Args:
        question: as it is.
        passes: whether a change does; each is yielded with as little on the host as does.
    """
    engine = engine_of(question.deployment.engine)
    for of, most in engine.to_host(question.model, question.deployment):
        yield from _least(of, most, passes)


def _least(
    of: Callable[[int], Change], most: int, passes: Callable[[Change], bool]
) -> Iterator[Change]:
    if passes(of(most)):
        change = of(first_that(lambda n: passes(of(n)), 0, most))
        yield change._replace(caution="computed by the host, much slower")
