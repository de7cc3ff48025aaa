"""kvcalc help: topics, first of all the questions that people ask most, each with its command."""

from __future__ import annotations

import shlex

import typer

from kvcalc.cli.needs import NEEDS, Need
from kvcalc.cli.options import argument, register
from kvcalc.cli.output import write_out
from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UsageError

__all__ = ["add"]

_TOPICS = ("needs",)
_THEM = ("it", "them")


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "help",
        run,
        (
            argument("topic", "TOPIC", "needs: the questions that people ask most.", str | None),
            argument("number", "NUMBER", "Run the command of that question.", str | None),
        ),
        help="Topics: `kvcalc help needs` lists the questions that people ask most, each with its"
        " command; with a number it runs that command.",
        epilog="Example: kvcalc help needs 9",
    )


def run(values: Values) -> None:
    """Show a topic, or run one of its commands.

    Raises:
        UsageError: no topic.
        UnknownNameError: no such topic.
        InvalidValueError: no such question.
    """
    topic, number = values["topic"], values["number"]
    if topic is None:
        raise UsageError("which topic?", hint=f"write kvcalc help {_TOPICS[0]}")
    if topic not in _TOPICS:
        raise UnknownNameError("topic", topic, _TOPICS)
    if number is None:
        write_out("".join(_told(need) for need in NEEDS))
        return
    need = _find(number)
    write_out(_told(need) + "\n")
    if need.yours:
        yours = " and ".join(need.yours)
        write_out(f"{yours}: your own; write the command with {_THEM[len(need.yours) > 1]}.\n")
        return
    from kvcalc.cli.app import main  # which imports this module

    code = main(shlex.split(need.command))
    if code:
        raise typer.Exit(code)


def _told(need: Need) -> str:
    return (
        f"{need.number:>2}  {need.question}\n"
        f"    kvcalc {need.command}\n"
        f"    look at: {need.look_at}\n"
    )


def _find(number: str) -> Need:
    for need in NEEDS:
        if str(need.number) == number.strip():
            return need
    raise InvalidValueError(
        f"{number!r:.40} is none of the questions", hint="kvcalc help needs lists them"
    )
