"""The commands, in the order that help shows, and the module that adds each."""

from __future__ import annotations

__all__ = ["COMMANDS", "TAKES_COMMAND"]

COMMANDS = {
    "per-token": "kvcalc.cli.per_token",
    "compare": "kvcalc.cli.compare",
    "plan": "kvcalc.cli.plan",
    "capacity": "kvcalc.cli.capacity",
    "check": "kvcalc.cli.check",
    "diff": "kvcalc.cli.diff",
    "frag": "kvcalc.cli.frag",
    "log": "kvcalc.cli.log",
    "metrics": "kvcalc.cli.metrics",
    "probe": "kvcalc.cli.probe",
    "layers": "kvcalc.cli.layers",
    "presets": "kvcalc.cli.presets",
    "gpus": "kvcalc.cli.gpus",
    "engines": "kvcalc.cli.engines",
    "schema": "kvcalc.cli.schema",
    "help": "kvcalc.cli.help_topics",
}

TAKES_COMMAND = ("check",)
"""Commands that read everything behind `--` as the command of another program."""
