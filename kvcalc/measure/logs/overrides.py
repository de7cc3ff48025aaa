"""What was given against what the log itself says: each is told, and can be undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec

__all__ = ["Override", "foreign", "overrides", "undone"]


class Override(NamedTuple):
    """Something given that stands for another thing that the log says.

    Attributes:
        kind: of what.
        name: of the setting; `model`.
        given: as given.
        logged: what the log says instead.
        value: the same, as kvcalc takes it.
    """

    kind: Literal["setting", "argument", "model"]
    name: str
    given: str
    logged: str
    value: Any

    @property
    def told(self) -> str:
        """The contradiction in a sentence."""
        return f"{self.name} {self.given} is given, where the log says {self.logged}"


def overrides(
    fields: Mapping[str, tuple[Any, str]],
    args: Mapping[str, Any],
    settings: Mapping[str, Any],
    given_args: Mapping[str, Any],
) -> Iterator[Override]:
    """Yield the settings and arguments that are given as something else than the log says."""
    for name, (logged, _) in fields.items():
        if logged is not None and name in settings and not _same(logged, settings[name]):
            yield Override("setting", name, _shown(settings[name]), _shown(logged), logged)
    for name, logged in args.items():
        if name in given_args and not _same(logged, given_args[name]):
            yield Override("argument", name, _shown(given_args[name]), _shown(logged), logged)


def undone(
    model: ModelSpec, deployment: Deployment, some: Sequence[Override]
) -> tuple[ModelSpec, Deployment]:
    """Return a model and deployment with what the log says for what was given."""
    args = dict(deployment.engine_args)
    settings = {}
    for one in some:
        if one.kind == "model":
            model = one.value
        elif one.kind == "argument":
            args[one.name] = one.value
        else:
            settings[one.name] = one.value
    try:
        return model, msgspec.structs.replace(deployment, **settings, engine_args=args)
    except KvcalcError:
        return model, deployment


def foreign(architecture: str, model: ModelSpec) -> str:
    """Return what speaks against a model where the log names another architecture; "" if nothing.

    >>> from kvcalc.models.presets import load_model_preset
    >>> foreign("GptOssForCausalLM", load_model_preset("opt-13b").spec)
    "the log's architecture is GptOssForCausalLM, and opt-13b is a OPTForCausalLM"
    """
    mine = model.architecture
    if mine is None or _family(mine) == _family(architecture):
        return ""
    return f"the log's architecture is {architecture:.80}, and {model.name} is a {mine}"


def _family(architecture: str) -> str:
    """Return an architecture without what it is for, and without a text or picture part's name."""
    return architecture.partition("For")[0].replace("_", "").lower().removesuffix("text")


def _same(logged: Any, given: Any) -> bool:
    if logged == given or _shown(logged) == _shown(given):
        return True
    try:
        return cache_dtype(str(logged)).name == cache_dtype(str(given)).name
    except KvcalcError:
        return False


def _shown(value: Any) -> str:
    return value.name if isinstance(value, (ModelSpec, GpuSpec)) else f"{value!s:.60}"
