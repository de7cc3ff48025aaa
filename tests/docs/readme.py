"""The README's commands, outputs and generated tables: one place that makes and checks them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
# A block with a name, as ```yaml deploy.yaml, is a file that the commands read.
_FILE = re.compile(r"^```\w+ ([\w.-]+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(r"^<!-- (\w+) -->\n.*?^<!-- /\1 -->\n", re.MULTILINE | re.DOTALL)
# These set up, test or develop a checkout; .ci/run and the test beside this file run them.
_LIFTED = ("python3 -m pip", "uv run pytest", "uv run ruff", "uv run python")


def commands(text: str) -> Iterator[str]:
    """Yield every command line of the console blocks."""
    for block in _BLOCK.finditer(text):
        for line in block[1].splitlines():
            if line.startswith("$ "):
                yield line[2:]


def run(command: str, folder: str) -> str:
    """Return what a command prints on stdout; it must succeed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVCALC_")}
    environment |= {"PATH": path, "PYTHONUTF8": "1"}
    environment.pop("COLUMNS", None)
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode("utf-8").replace("\r\n", "\n")


def rendered(text: str) -> str:
    """Return the README with every output and generated part made anew.

    Commands run in a folder with the files that the README shows by name.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, held in _FILE.findall(text):
            Path(folder, name).write_text(held, encoding="utf-8", newline="\n")

        def fill(match: re.Match[str]) -> str:
            lines = []
            for line in match[1].splitlines():
                if line.startswith("$ "):
                    lines.append(line + "\n")
                    if not line[2:].startswith(_LIFTED):
                        lines.append(run(line[2:], folder))
            return "```console\n" + "".join(lines) + "```\n"

        text = _BLOCK.sub(fill, text)
    return _MARKED.sub(lambda m: f"<!-- {m[1]} -->\n{part(m[1])}<!-- /{m[1]} -->\n", text)


def part(name: str) -> str:
    """Return one generated part."""
    from tests.docs import parts

    made: str = getattr(parts, name)()
    return made
