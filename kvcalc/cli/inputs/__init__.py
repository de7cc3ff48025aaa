"""From what was typed to models, deployments and requests; each fault names its option."""

from __future__ import annotations

from kvcalc.cli.inputs.deployments import (
    Combination,
    cache_dtypes,
    combinations,
    deployments,
)
from kvcalc.cli.inputs.models import DEFAULT_MODEL, models, preset_folders
from kvcalc.cli.inputs.numbers import (
    choice,
    number,
    one_of,
    over_policy,
    seconds,
    size,
    some_size,
    switched,
    token_count,
    tokens,
    unit_system,
)
from kvcalc.cli.inputs.plans import DEFAULT_TOKENS, Refused, Workload, echo, plans, workload

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_TOKENS",
    "Combination",
    "Refused",
    "Workload",
    "cache_dtypes",
    "choice",
    "combinations",
    "deployments",
    "echo",
    "models",
    "number",
    "one_of",
    "over_policy",
    "plans",
    "preset_folders",
    "seconds",
    "size",
    "some_size",
    "switched",
    "token_count",
    "tokens",
    "unit_system",
    "workload",
]
