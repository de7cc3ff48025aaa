"""The answer in a sentence, with what stands in the way where it is no."""

from __future__ import annotations

from kvcalc.core.answers import Figures
from kvcalc.core.units import format_bytes, format_concurrency, format_count, format_number_of
from kvcalc.sizing.question import Question
from kvcalc.sizing.shares import PLACES
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.worked import Worked

__all__ = ["verdict"]


def verdict(
    question: Question, worked: Worked, found: tuple[Figures, Figures, Figures], missing: int
) -> str:
    """Return the verdict.

    Args:
        question: what is asked.
        worked: the same, worked out.
        found: figures with the least, the expected and the most that is left for the cache.
        missing: bytes that a GPU lacks with the least.
    """
    told = _verdict(question, worked, found, missing)
    doubt = worked.plan.doubt
    if not doubt or not found[-1].fits:
        return told
    return f"{told} But {doubt}."


def _verdict(
    question: Question, worked: Worked, found: tuple[Figures, Figures, Figures], missing: int
) -> str:
    low, _, high = found
    if low.fits:
        return _yes(question, worked, low, high)
    wanted = _wanted(question, worked)
    refusal = worked.refusal()
    if refusal is not None:
        return f"No: {refusal.why}."
    if worked.crowded is not None:
        return f"No: {wanted} at once are asked for, and {worked.crowded}."
    if high.fits:
        verb = "fits" if question.sequences == 1 else "fit"
        return (
            f"Perhaps: {wanted} {verb} if everything beside the cache takes its least; if it takes"
            f" its most {format_bytes(missing)} are missing."
        )
    return _no(worked, wanted, found, missing)


def _yes(question: Question, worked: Worked, low: Figures, high: Figures) -> str:
    longest = f"sequences of {format_number_of(worked.plan.max_model_len, 'token')}"
    every = _every(question)
    room = _room(low, high)
    places = worked.plan.max_running
    host = ""
    if moved := worked.plan.moved_bytes:
        host = f", with {format_bytes(moved)} of the weights moved to the host"
    if places is None or low.max_concurrency <= places:
        return f"Yes: {room} {longest} at once{every}{host}."
    setting = PLACES.get(worked.plan.engine, "max_num_seqs")
    return (
        f"Yes: {format_count(places)} {longest} run at once{every} ({setting}), and the cache has"
        f" room for {room}."
    )


def _every(question: Question) -> str:
    replicas = sizes_of(question.deployment).holders
    each = [f"each of {format_count(replicas)} replicas"] if replicas > 1 else []
    each += (
        [f"each of {format_count(question.instances)} servers"] if question.instances > 1 else []
    )
    return f" on {' of '.join(reversed(each))}" if each else ""


def _room(low: Figures, high: Figures) -> str:
    """Return how many have room; no more whole ones than really fit.

    vLLM counts its null block in the ratio that it logs.
    """

    def text(found: Figures) -> str:
        told = format_concurrency(found.max_concurrency)
        whole = int(told.partition(".")[0].replace(",", ""))
        return told if whole <= found.max_sequences else format_count(found.max_sequences)

    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"


def _wanted(question: Question, worked: Worked) -> str:
    wanted = format_number_of(question.sequences, "sequence")
    what = f"{wanted} of {format_number_of(worked.plan.max_model_len, 'token')}"
    every = _every(question)
    if not every or question.sequences == 1:
        return what
    return f"{what} ({format_count(worked.each)}{every})"


def _no(worked: Worked, wanted: str, found: tuple[Figures, Figures, Figures], missing: int) -> str:
    low, middle, high = found
    plan = worked.plan
    cure = "no length fits"
    if high.max_model_len_that_fits:
        least = low.max_model_len_that_fits
        cure = f"the longest that fits is {_range(least, high.max_model_len_that_fits)} tokens"
    start = ""
    if plan.start != "refuses" and middle.starts and middle.max_model_len_that_fits:
        start = f" {plan.engine} starts all the same, and serves no longer ones."
    elif low.starts and worked.each == 1:
        return (
            f"No: it starts, for its check counts what no sequence can have, and {wanted} never has"
            f" room; {cure}."
        )
    if missing:
        return f"No: for {wanted} {format_bytes(missing)} are missing; {cure}.{start}"
    return f"No: what the settings fix has no room for {wanted}; {cure}.{start}"


def _range(low: float, high: float) -> str:
    def text(value: float) -> str:
        return format_count(value) if isinstance(value, int) else f"{value:,.2f}"

    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"
