"""The answer in a sentence, with what stands in the way where it is no."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvcalc.answers.capacity import Figures, Solution
from kvcalc.core.capacity import allocated
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import summed
from kvcalc.core.units import format_bytes, format_concurrency, format_count, format_number_of
from kvcalc.engines import engine_of
from kvcalc.sizing.host import host_warning
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.stops import within_floor
from kvcalc.sizing.worked import Worked

__all__ = ["solved_verdict", "verdict"]


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
    warning = host_warning(worked.host)
    if warning and found[-1].fits:
        told = f"{told} But {warning}."
    doubt = worked.plan.doubt
    if not doubt or not found[-1].fits:
        return told
    return f"{told} But {doubt}."


def _verdict(
    question: Question, worked: Worked, found: tuple[Figures, Figures, Figures], missing: int
) -> str:
    low, _, high = found
    if low.fits is None:
        return _needs(question, worked)
    if low.fits:
        return _yes(question, worked, low, high)
    wanted = _wanted(question, worked)
    refusal = worked.refusal()
    if refusal is not None:
        return f"No: {refusal.why}."
    if worked.crowded is not None:
        return f"No: {wanted} at once are asked for, and {worked.crowded}."
    stopped = worked.stopped("high")
    if stopped is not None:
        floor, units = stopped
        why = f"{floor.told(units)}{_lifted(question, worked)}"
        return f"No: {worked.plan.engine} does not start: {why}."
    if high.fits:
        verb = "fits" if question.sequences == 1 else "fit"
        return (
            f"Perhaps: {wanted} {verb} if everything beside the cache takes its least; if it takes"
            f" its most {format_bytes(missing)} are missing.{_stopped_low(question, worked)}"
        )
    return _no(worked, wanted, found, missing)


def _lifted(question: Question, worked: Worked) -> str:
    """Return what lifts the floor that is in the way, as a plan has confirmed it."""
    change = within_floor(question, worked)
    return "" if change is None else f"; with {' '.join(change.flags)} it does"


def _stopped_low(question: Question, worked: Worked) -> str:
    """Return that a floor is what is in the way at the low end; "" where none is."""
    stopped = worked.stopped("low")
    if stopped is None:
        return ""
    floor, units = stopped
    return f" Then {floor.told(units)}{_lifted(question, worked)}."


def solved_verdict(question: Question, worked: Worked, solutions: Sequence[Solution]) -> str:
    """Return the answer to what was solved for: a sentence for each setting."""
    return " ".join(_of_solution(question, worked, one) for one in solutions)


_NONE = {
    "gpus": "No number of GPUs is enough",
    "tp": "No tensor parallel size is enough",
    "kv-memory": "No cache is enough",
    "max-model-len": "No length fits",
    "max-num-seqs": "No number of sequences fits",
    "gpu-memory-utilization": "No share of the GPU is right",
    "ngl": "No number of layers on the GPU fits",
}
"""Setting -> what is said where it has no value."""

_PERHAPS = "if everything outside the cache takes its least"


def _of_solution(question: Question, worked: Worked, one: Solution) -> str:
    value = one.possible if one.value is None else one.value
    if value is None:
        return f"{_NONE[one.setting]}: {one.reason}."
    answer = _answer(question, worked, one.setting, value)
    flags = f" ({_shown(one.flags)})" if one.flags else ""
    if one.setting == "gpu-memory-utilization":
        most = one.possible_up_to if one.value is None else one.up_to
        answer += "" if most in (None, value) else f" to {most:g}"
        flags = ""
    goal = "" if one.setting == "max-num-seqs" else f": {_goal(question, worked, one.setting)}"
    if one.value is None:
        answer = answer.removeprefix("Needs ").replace("Up to", "up to")
        return f"Perhaps {answer}{goal} {_PERHAPS}."
    return f"{answer}{flags}{goal}."


def _answer(question: Question, worked: Worked, setting: str, value: float) -> str:
    """Return the value of a setting as the answer to how much of it is needed, or possible."""
    count = int(value)
    if setting == "gpus":
        gpu = worked.gpu.name if worked.gpu is not None else ""
        return f"Needs {format_count(count)} x {gpu or 'GPU'}"
    if setting == "tp":
        return f"Needs tensor parallel {format_count(count)}"
    if setting == "kv-memory":
        return f"Needs {format_bytes(count)} of KV cache on each GPU"
    if setting == "max-model-len":
        return f"Up to {format_number_of(count, 'token')}"
    if setting == "max-num-seqs":
        each = format_number_of(worked.plan.max_model_len, "token")
        return f"Up to {format_number_of(count, 'sequence')} of {each} at once"
    if setting == "ngl":
        return f"Up to {format_number_of(count, 'layer')} on the GPU"
    return f"{engine_of(question.deployment.engine).share} {value:g}"


def _goal(question: Question, worked: Worked, setting: str) -> str:
    wanted = _wanted(question, worked)
    if setting == "max-model-len":
        wanted = f"{format_number_of(question.sequences, 'sequence')} of that length"
    return f"{wanted} {'fits' if question.sequences == 1 else 'fit'}"


def _shown(flags: Sequence[str]) -> str:
    """Return flags without those that say one."""
    pairs = [flags[i : i + 2] for i in range(0, len(flags), 2)]
    told = [pair for pair in pairs if pair[0] not in ("--tp", "--pp") or pair[1] != "1"]
    return " ".join(word for pair in told or pairs for word in pair)


_ROOMY = GpuSpec(name="any", title="any GPU", memory_bytes=2**50, compute_capability="9.0")


def _needs(question: Question, worked: Worked) -> str:
    """Return what is needed, where the settings fix the cache and no GPU is named to hold it."""
    ask = "name the GPU (--gpu) to know whether it fits"
    taken = max(_taken(question, worked), default=None)
    if taken is None:
        held = format_bytes(max(allocated(rank) for rank in worked.plan.ranks))
        return f"Needs {held} for the cache, and more for the weights: {ask}."
    most, cache = taken
    count = worked.plan.num_gpus
    each = "" if count == 1 else f" on each of {format_count(count)} GPUs"
    return (
        f"Needs up to {format_bytes(most)} of free GPU memory{each}, {format_bytes(cache)} of it"
        f" for the cache: {ask}."
    )


def _taken(question: Question, worked: Worked) -> list[tuple[int, int]]:
    """Return what each GPU must hold at the most, and what of it is the cache; of none: nothing.

    Nothing either where it is not known, or is a share of the GPU: more, the larger that is.
    """
    if worked.plan.split != "fixed":
        return []
    deployment = msgspec.structs.replace(question.deployment, gpu=_ROOMY)
    try:
        done = work(question._replace(deployment=deployment))
    except KvcalcError:
        return []
    found = []
    for one, rank in zip(done.cards, done.plan.ranks, strict=False):
        cache = allocated(rank)
        terms = (*one.terms, *one.before, *one.outside)
        found.append((cache + summed(terms, "low"), cache))
    return found


def _yes(question: Question, worked: Worked, low: Figures, high: Figures) -> str:
    longest = f"sequences of {format_number_of(worked.plan.max_model_len, 'token')}"
    every = _every(question)
    room = _room(low, high)
    places = worked.plan.max_running
    host = ""
    if moved := worked.plan.moved_bytes:
        cache = sum(allocated(rank) for rank in worked.plan.ranks if rank.on_host)
        more = f" and {format_bytes(cache)} of the cache" if cache else ""
        host = f", with {format_bytes(moved)} of the weights{more} moved to the host"
        if worked.host.limit_bytes is None:
            host += ", if it has room"
    if places is None or low.max_concurrency <= places:
        return f"Yes: {room} {longest} at once{every}{host}."
    setting = engine_of(worked.plan.engine).running
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
