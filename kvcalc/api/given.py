"""What a program gave, checked: kvcalc's own values, and names that are looked up."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu

__all__ = ["DEPLOYMENT", "MODEL", "PLAN", "given", "resolved"]

MODEL = 'a model: kvcalc.load_model("llama-3.1-8b") or kvcalc.shape_model(32, 8, 128)'
DEPLOYMENT = "a deployment: kvcalc.Deployment(max_model_len=8192)"
PLAN = "a plan: kvcalc.plan(model, deployment)"

_T = TypeVar("_T")


def given(value: object, kind: type[_T], name: str, hint: str) -> _T:
    """Return an argument that must be one of kvcalc's own values.

    Raises:
        InvalidValueError: it is something else; a name, most often.
    """
    if isinstance(value, kind):
        return value
    named = isinstance(value, str) or value is None
    told = f"{value!r:.60}" if named else f"a {type(value).__name__}"
    raise InvalidValueError(f"{name} is {told}, not a {kind.__name__}", hint=f"give {hint}")


def resolved(deployment: Deployment) -> Deployment:
    """Return a deployment with the names in it looked up."""
    deployment = given(deployment, Deployment, "deployment", DEPLOYMENT)
    if isinstance(deployment.gpu, str):
        deployment = msgspec.structs.replace(deployment, gpu=load_gpu(deployment.gpu))
    if isinstance(deployment.draft_model, str):
        draft = load_model(deployment.draft_model)
        deployment = msgspec.structs.replace(deployment, draft_model=draft)
    return deployment
