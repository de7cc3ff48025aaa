"""The README tells the truth: every command runs, every output and table is what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.readme import README, commands, rendered, run
from tests.models.hf_config.oracles import ABSENT, SHARED
from tests.tools import support

TEXT = README.read_text(encoding="utf-8")
CI = (Path(README).parent / ".ci" / "run").read_text(encoding="utf-8")


def test_outputs_and_generated_parts_are_current() -> None:
    """`python -m tests.docs --write` would change nothing."""
    assert rendered(TEXT) == TEXT


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_what_each_architecture_is_checked_against() -> None:
    """`python -m tests.tools.support --write` would change nothing, and the text has its counts."""
    *_, gguf = rows = support.rows()
    table = "".join("\t".join(row) + "\n" for row in (support.COLUMNS, *rows))

    assert support.TABLE.read_text(encoding="utf-8") == table
    assert f"{gguf[1]} architectures are read by llama.cpp's rules" in TEXT
    assert f"{gguf[-1]} answers of llama.cpp" in TEXT


def test_the_commands_left_out_are_run_by_ci() -> None:
    """Commands that set up, test or develop a checkout are not run here but by .ci/run."""
    lifted = [c for c in commands(TEXT) if not c.startswith(("kvcalc", "printf", "sed"))]

    assert len(lifted) >= 6
    for command in lifted:
        for part in command.split(" && "):
            # Writing files anew is CI's to check, not to do; the bench wants an idle machine.
            wanted = part.replace(" --write", "").replace("pip install -q uv", "pip install")
            assert wanted in CI or "tests.bench" in part, part


def test_python_examples_run() -> None:
    """Every Python block of the README runs, its asserts included."""
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)

    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_settings_example_is_read(tmp_path: Path) -> None:
    """The settings file in the README sets what it says."""
    (block,) = re.findall(r"^```yaml\n# kvcalc.yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "kvcalc.yaml").write_text(block, encoding="utf-8")
    printed = run("kvcalc compare", str(tmp_path))

    assert "llama-3.1-8b, fp8_e4m3" in printed
    assert "maximum 4,096 tokens" in printed
    assert "paged, block 16   paged, block 32" in printed
