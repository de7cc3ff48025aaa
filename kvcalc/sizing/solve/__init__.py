"""A question turned round: the value of one setting with which the goal is met, and no further.

Each search ends between a value that was tried and holds and its neighbour that was tried and does
not, so that the answer is exact whatever lies in between.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.core.answers import Solution
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve.cards import layers_on_card, num_gpus, tensor_ranks
from kvcalc.sizing.solve.lengths import max_model_len, max_num_seqs, of_length
from kvcalc.sizing.solve.memory import kv_memory, share_of_card
from kvcalc.sizing.solve.searches import Solved

__all__ = ["SETTINGS", "Solved", "of_length", "solve", "solved"]

SETTINGS: dict[str, Callable[[Question], Solved]] = {
    "max-model-len": max_model_len,
    "max-num-seqs": max_num_seqs,
    "gpus": num_gpus,
    "tp": tensor_ranks,
    "gpu-memory-utilization": share_of_card,
    "kv-memory": kv_memory,
    "ngl": layers_on_card,
}
"""What can be solved for."""


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
        UnsupportedError: the engine has no such setting.
    """
    return SETTINGS[setting](question)
