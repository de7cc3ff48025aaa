"""Why an engine refuses a deployment: the setting that it refuses, and the next one after it.

The setting is found by asking again without each: the one whose absence lifts the refusal is told,
at its line. What a variable holds is not told to the engine at all when its refusal is repeated:
the variable's name stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.manifests.found import Setting
from kvcalc.sizing.question import Question

__all__ = ["Refused", "refusals"]

_MOST = 6
_BESIDE = ("engine", "engine_version", "gpu", "engine_args")
_TOGETHER = {
    "speculative_method": ("speculative_method", "num_speculative_tokens", "draft_model"),
    "num_speculative_tokens": ("num_speculative_tokens", "speculative_method", "draft_model"),
}
"""Settings that are left out with others, which mean nothing without them."""


class Refused(NamedTuple):
    """A refusal, and the setting that it is about; None where no one setting is."""

    error: KvcalcError
    setting: str | None

    @property
    def code(self) -> str:
        """The finding that it is reported as."""
        return self.error.code if isinstance(self.error, UnsupportedError) else "engine-refuses"


def refusals(target: Target, sized: Sized, error: KvcalcError) -> Iterator[Refused]:
    """Yield what the engine refuses, each without what was refused before.

    Args:
        target: whose settings they are.
        sized: what was refused.
        error: with what.
    """
    question = sized.asked
    server = target.server
    read = {s.name: s for s in server.settings} if server is not None else {}
    for _ in range(_MOST):
        name, less, then = _offender(question, error, read)
        yield Refused(_unsaid(question, name, read, error), name)
        if name is None or then is None:
            return
        question, error = less, then


def _offender(
    question: Question, error: KvcalcError, read: Mapping[str, Setting]
) -> tuple[str | None, Question, KvcalcError | None]:
    """Return the setting, the question without it, and what of that is refused still."""
    lifted, moved = [], []
    for name, less in _without(question):
        then = _refusal(less)
        if then is None:
            lifted.append((name, less, then))
        elif then.message != error.message:
            moved.append((name, less, then))
    said = f"{error.message} {error.hint}".lower()
    found = lifted or moved
    own = error.setting if isinstance(error, UnsupportedError) else ""
    for each in found:
        if each[0] == own:
            return each
    if own:
        return own, question, None
    if not found:
        named = [name for name in _names(question) if name in error.message]
        return (named[0] if named else None), question, None

    def likely(each: tuple[str, Question, KvcalcError | None]) -> tuple[bool, bool, bool]:
        setting = read.get(each[0])
        words = (each[0], each[0].replace("_", " "), setting.written if setting else each[0])
        value = _value(question.deployment, each[0])
        return (
            any(word.lower() in error.message.lower() for word in words),
            isinstance(value, str) and value.lower() in error.message.lower(),
            any(word.lower() in said for word in words),
        )

    return max(found, key=likely)


def _names(question: Question) -> Iterator[str]:
    deployment = question.deployment
    yield from (name for name in deployment.changed() if name not in _BESIDE)
    yield from deployment.engine_args


def _value(deployment: Deployment, name: str) -> Any:
    if name in deployment.engine_args:
        return deployment.engine_args[name]
    return getattr(deployment, name, None)


def _without(question: Question) -> Iterator[tuple[str, Question]]:
    """Yield the question without each of its settings."""
    deployment, default = question.deployment, Deployment()
    for name in _names(question):
        if name in deployment.engine_args:
            args = {key: value for key, value in deployment.engine_args.items() if key != name}
            changes: dict[str, Any] = {"engine_args": args}
        else:
            changes = {each: getattr(default, each) for each in _TOGETHER.get(name, (name,))}
        if name == "kv_cache_memory_bytes" and deployment.gpu is None:
            continue  # without it and a card there is nothing to ask
        try:
            less = msgspec.structs.replace(deployment, **changes)
        except KvcalcError:
            continue
        yield name, question._replace(deployment=less)


def _refusal(question: Question) -> KvcalcError | None:
    try:
        Sized(question).worked  # noqa: B018 - it is worked out here
    except KvcalcError as error:
        return error
    return None


def _unsaid(
    question: Question, name: str | None, read: Mapping[str, Setting], error: KvcalcError
) -> KvcalcError:
    """Return the refusal without the text of a variable: as of a setting of the variable's name."""
    setting = read.get(name or "")
    if setting is None or not setting.variables or not isinstance(setting.value, str):
        return error
    deployment = question.deployment
    given: dict[str, Any] = {setting.name: str(setting.shown)}
    if setting.name in deployment.engine_args:
        given = {"engine_args": {**deployment.engine_args, **given}}
    try:
        stand_in = msgspec.structs.replace(deployment, **given)
    except KvcalcError as refused:
        return refused
    return _refusal(question._replace(deployment=stand_in)) or error
