"""The kvcalc command: its commands, and what an error looks like to a user."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer
from typer.exceptions import TyperException

from kvcalc.cli.commands import COMMANDS, TAKES_COMMAND
from kvcalc.cli.options import Group
from kvcalc.cli.output import say, unwritable, write_out
from kvcalc.core.errors import InputFaults, KvcalcError, UnavailableError

__all__ = ["COMMANDS", "build", "main"]

_HELP = "What a model's KV cache costs and wastes, to the byte."
_BUG = 70
_NO_COMMAND = "--version"
_INTERRUPTED = 130


def build(only: str | None = None) -> typer.Typer:
    """Return the application with all commands, or with the one that is about to run.

    A start that runs one command, or none, need not import and describe the others.
    """
    app = typer.Typer(
        cls=Group,
        help=_HELP,
        invoke_without_command=True,
        add_completion=only is None,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(value: bool) -> None:
        if value:
            from kvcalc import __version__

            write_out(f"kvcalc {__version__}\n")
            raise typer.Exit

    @app.callback()
    def options(
        ctx: typer.Context,
        version: bool = typer.Option(
            False, "--version", help="Show the version.", is_eager=True, callback=show_version
        ),
    ) -> None:
        del version  # shown by its callback
        if ctx.invoked_subcommand is None:
            write_out(ctx.get_help() + "\n")

    for name, module in COMMANDS.items():
        if only in (None, name):
            import_module(module).add(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: see the README, "Exit codes"."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    only = words[0] if words and words[0] in COMMANDS else None
    if words[:1] == ["--version"]:
        only = _NO_COMMAND
    try:
        command = typer.main.get_command(build(only))
        behind: tuple[str, ...] = ()
        if only in TAKES_COMMAND and "--" in words:  # of another program: not options of ours
            at = words.index("--")
            words, behind = words[:at], tuple(words[at + 1 :])
        code = command.main(words, prog_name="kvcalc", standalone_mode=False, obj=behind)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        return _usage(error, only)
    except KvcalcError as error:
        return _told(error)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except OSError as error:  # typer writes help by itself
        return _told(unwritable(error))
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:  # a traceback must not reach a user
        say("error", f"{type(error).__name__}: {error}")
        say("hint", "this is a bug in kvcalc; please report it with the command that you ran")
        return _BUG


def _told(error: KvcalcError) -> int:
    """Tell an error, or every fault of a file, and return its exit code."""
    for each in error.errors if isinstance(error, InputFaults) else (error,):
        say("error", str(each))
        if each.hint:
            say("hint", each.hint)
    return 3 if isinstance(error, UnavailableError) else 2


def _usage(error: TyperException, command: str | None) -> int:
    """Tell a fault that the parser found."""
    message = getattr(error, "format_message", lambda: str(error))()
    say("error", message[0].lower() + message[1:].rstrip("."))
    say("hint", f"see kvcalc {command + ' ' if command else ''}--help")
    return 2
