"""A question turned round: the value of one setting with which the goal is met, and no further.

Each search ends between a value that was tried and holds and its neighbour that was tried and does
not, so that the answer is exact whatever lies in between.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.engines import engine_of
from kvcalc.sizing.question import work

if TYPE_CHECKING:
    from kvcalc.answers.capacity import Solution
    from kvcalc.sizing.question import Question
    from kvcalc.sizing.solve.searches import Solved

__all__ = ["SETTINGS", "solve", "solved"]

_OF_GPUS = ("gpus", "tp")

SETTINGS = {
    "max-model-len": ("lengths", "max_model_len"),
    "max-num-seqs": ("lengths", "max_num_seqs"),
    "gpus": ("cards", "num_gpus"),
    "tp": ("cards", "tensor_ranks"),
    "gpu-memory-utilization": ("memory", "share_of_card"),
    "kv-memory": ("memory", "kv_memory"),
    "ngl": ("cards", "layers_on_card"),
}
"""What can be solved for -> the module here that does it, and its function: few runs need any."""


def solve(question: Question, setting: str) -> Solution:
    """Return the value of a setting with which the goal is met.

    The goal is `question.sequences` sequences of the maximum at once. A value is sure where it
    holds with the least that may be left for the cache, possible with the most.

    Raises:
        UnsupportedError: the engine has no such setting.
    """
    return solved(question, setting).solution


def solved(question: Question, setting: str) -> Solved:
    """Return the same with the change that makes its value a setting.

    Raises:
        UsageError: neither a GPU nor a cache is given to hold the goal.
        UnsupportedError: the engine has no such setting.
    """
    deployment = question.deployment
    nothing = deployment.gpu is None and deployment.kv_cache_memory_bytes is None
    if nothing and setting != "kv-memory":
        raise UsageError(
            f"{setting} that fits into what memory?",
            hint="name the GPU (--gpu), its memory (--gpu-memory) or the cache's (--kv-memory)",
        )
    module, function = SETTINGS[setting]
    if engine_of(question.deployment.engine).plans_by_weights and question.may_move is None:
        # What the engine would make room for on the host is no room on the GPUs.
        may_move = 0 if setting in _OF_GPUS else _moved(question)
        question = question._replace(may_move=may_move)
    found: Solved = getattr(import_module(f"{__name__}.{module}"), function)(question)
    return found


def _moved(question: Question) -> int | None:
    """Return the weights that the engine moves to the host for the question as it stands."""
    try:
        return work(question).plan.moved_bytes
    except KvcalcError:
        return None
