"""Every command that is registered, by what it shows of itself."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from kvcalc.cli.app import build
from kvcalc.cli.commands import COMMANDS
from tests.cli.harness import call


def commands(group: Any, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every command and group under a group by the words that call it."""
    found = {}
    for name, command in group.commands.items():
        path = (*before, name)
        found[path] = command
        if hasattr(command, "commands"):
            found |= commands(command, path)
    return found


ALL = commands(typer.main.get_command(build()))
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}
each_leaf = pytest.mark.parametrize("path", LEAVES, ids=" ".join)


def test_registered() -> None:
    """The table of commands and what is registered are one."""
    assert {path[0] for path in ALL} == set(COMMANDS)
    assert set(LEAVES) >= {
        ("per-token",),
        ("compare",),
        ("frag",),
        ("gpus",),
        ("schema",),
        ("presets", "list"),
        ("presets", "show"),
        ("presets", "validate"),
    }


def test_alone_or_together() -> None:
    """A command that is built alone, for speed, is the same as among all."""
    for name in COMMANDS:
        alone = commands(typer.main.get_command(build(name)))
        assert set(alone) == {path for path in ALL if path[0] == name}
        for path, command in alone.items():
            assert [p.name for p in command.params] == [p.name for p in ALL[path].params]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help(path: tuple[str, ...]) -> None:
    """Every command and group says what it is for."""
    help_ = ALL[path].help or ""

    assert len(help_) > 20
    assert help_.endswith((".", "?"))


@each_leaf
def test_options(path: tuple[str, ...]) -> None:
    """Every option and argument says what it is for."""
    for param in LEAVES[path].params:
        if param.name != "help":
            assert (getattr(param, "help", "") or "").strip(), param.name


@each_leaf
def test_example(path: tuple[str, ...]) -> None:
    """Every command has an example that is a line for it."""
    epilog = LEAVES[path].epilog or ""

    assert epilog.startswith(f"Example: kvcalc {' '.join(path)}")


@each_leaf
def test_example_runs(path: tuple[str, ...]) -> None:
    """The example works, but for the files of one's own that it names."""
    words = shlex.split((LEAVES[path].epilog or "").removeprefix("Example: kvcalc "))
    if ">" in words:
        words = words[: words.index(">")]
    outcome = call(*words)
    own = [word for word in words if word.endswith((".csv", ".yaml", ".json", ".gguf", ".log"))]

    if any(word.startswith("http://") for word in words):
        assert outcome.code in (0, 3), outcome.err  # no server runs here, as a rule
    elif own:
        assert outcome.code == 2
        assert outcome.err.splitlines()[-2].startswith(f"error: {own[0]}: ")
    else:
        assert outcome.code == 0, outcome.err
        assert outcome.out


@each_leaf
def test_help_fits(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Help fits 80 columns and holds no markup."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = call(*path, "--help").out

    assert max(len(line) for line in shown.splitlines()) <= 80
    for mark in ("[[", "]]", "[/", "\x1b", "<str>", "<list"):
        assert mark not in shown, mark


@each_leaf
def test_common_options(path: tuple[str, ...]) -> None:
    """Commands that show a result take the same options for its form."""
    names = {name for param in LEAVES[path].params for name in param.opts}
    if path not in (("schema",), ("presets", "add"), ("help",)):  # which print no result
        assert {"--format", "-f", "--report", "--units", "--settings"} <= names
    if path[0] in ("compare", "frag", "per-token"):
        assert {
            "--preset", "--model", "--layers", "--kv-heads", "--head-dim", "--v-head-dim",
            "--dtype", "--engine", "--engine-version", "--kv-cache-dtype", "--block",
            "--block-size", "--max", "--max-model-len", "--tp", "--pp", "--dp", "--dcp", "--gpu",
            "--explain",
        } <= names  # fmt: skip


def test_order_of_help() -> None:
    """Help lists the commands in the order of the table, the main ones first."""
    shown = call("--help").out.split("Commands:")[1]
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]

    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
