"""The words of an engine's command, as they are put together, and what no flag has said yet."""

from __future__ import annotations

import json

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.engines.engine import Engine

__all__ = ["Said", "Words"]

Said = str | int | float | bool
"""A setting's value."""

_APART = ("engine", "engine_version", "gpu", "engine_args")


class Words:
    """The words of one command.

    Every setting is taken from `fields` or `args` by what says it: those that stay are told, so
    that nothing that was asked for is missing without a word.

    Attributes:
        engine: whose command it is.
        deployment: what the command is to start.
        words: of the command, the model's among them.
        variables: in front of it.
        fields: fields of the deployment that are not said yet.
        args: its engine_args that are not said yet.
        told: what to know of the command, a line each.
    """

    def __init__(self, engine: Engine, deployment: Deployment) -> None:
        changed = deployment.changed()
        self.engine = engine
        self.deployment = deployment
        self.words: list[str] = []
        self.variables: dict[str, str] = {}
        self.fields = {name: value for name, value in changed.items() if name not in _APART}
        self.args: dict[str, Said] = {
            name: value
            for name, value in deployment.engine_args.items()
            if value is not None and name not in engine.machine
        }
        self.told: list[str] = []

    def start(self, *words: str) -> None:
        """Add words as they are."""
        self.words += words

    def say_fields(self, without: tuple[str, ...] = ()) -> None:
        """Say every field that has a flag, in the order of Deployment."""
        flags = self.engine.flags
        for name in [n for n in self.fields if n in flags and n not in without]:
            self.flag(flags[name], self.fields.pop(name))

    def say_args(self, *, sign: str = "-", known: tuple[str, ...] | None = None) -> None:
        """Say engine_args as flags of their names; a list of those that have one may be given."""
        for name in [n for n in self.args if known is None or n in known]:
            self.flag(f"--{name.replace('_', sign)}", self.args.pop(name))

    def flag(self, flag: str, value: object) -> None:
        """Say a value; a switch is said by its flag, or by that with `no-`."""
        if isinstance(value, bool):
            self.words.append(flag if value else f"--no-{flag[2:]}")
            return
        word = self.engine.values.get(str(value), str(value))
        self.words += [flag, word]

    def say_variables(self) -> None:
        """Say by variables what they alone say."""
        for name, variable in self.engine.variables.items():
            value = self.fields.pop(name, None)
            value = self.args.pop(name, None) if value is None else value
            if value is not None:
                told = str(value)
                self.variables[variable] = told.lower() if isinstance(value, bool) else told

    def draft(self) -> str | None:
        """Return what the engine loads the draft model from; None where nothing tells.

        The draft is then taken as told.
        """
        draft = self.fields.pop("draft_model", None)
        if isinstance(draft, ModelSpec):
            if draft.origin is None:
                self.told.append(f"nothing tells what the draft {draft.name} is loaded from")
            return draft.origin
        return None if draft is None else str(draft)

    def leftovers(self) -> None:
        """Tell what no flag has said."""
        engine = self.engine.name
        for name, value in {**self.fields, **self.args}.items():
            shown = json.dumps(value) if isinstance(value, bool) else value
            self.told.append(f"{name} {shown} is not in it: {engine} has no flag that says it")
