"""Whole outputs, compared to the letter with files that somebody has looked at.

After a change that is meant to be seen, write the files anew and read the difference before it is
committed:

    KVCALC_UPDATE_GOLDEN=1 python -m pytest tests/report && git diff tests/report/golden
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvcalc import __version__
from tests.cli.harness import call
from tests.measure.oom_samples import SAMPLES
from tests.measure.test_snapshot import made

GOLDEN = Path(__file__).parent / "golden"
UPDATE = os.environ.get("KVCALC_UPDATE_GOLDEN", "") not in ("", "0")

PLAN = "--engine vllm --gpu h100-80gb --max 8192 --kv-memory 15GiB"
FRAG = "frag --free 15GiB --largest 1.9GiB --request 2GiB"
CASES = {
    # file: command line; "80" in the name: 80 columns, else a pipe
    "compare.txt": "compare",
    "compare-80.txt": "compare",
    "compare.md": "compare -f markdown",
    "compare.csv": "compare -f csv",
    "compare.json": "compare -f json",
    "compare-llama.txt": "compare llama-3.1-8b --max 4096",
    "compare-blocks.txt": "compare --block 16 --block 32 --kv-memory 15GiB",
    "compare-blocks-80.txt": "compare --block 16 --block 32 --block 64 --kv-memory 15GiB",
    "compare-blocks.md": "compare --block 16 --block 32 --kv-memory 15GiB -f markdown",
    "compare-hybrid-80.txt": "compare qwen3.5-27b --kv-memory 15GiB --explain",
    "compare-window-80.txt": "compare gemma-3-27b --lengths 200,1200,700,2600,50000 --tp 2",
    "compare-decimal-80.txt": "compare --units decimal --block 16 --block 32",
    "per-token.txt": "per-token llama-3.1-8b",
    "per-token.md": "per-token llama-3.1-8b -f markdown",
    "per-token.csv": "per-token llama-3.1-8b -f csv",
    "per-token.json": "per-token llama-3.1-8b -f json",
    "per-token-explain.txt": "per-token llama-3.1-8b --explain",
    "per-token-explain-80.txt": "per-token qwen3.5-27b --explain --tokens 32768",
    "per-token-three-80.txt": "per-token llama-3.1-8b deepseek-v3 gemma-3-27b",
    "per-token-three.md": "per-token llama-3.1-8b deepseek-v3 gemma-3-27b -f markdown",
    "per-token-six-80.txt": "per-token llama-2-7b llama-3.1-8b llama-3.1-70b llama-3.1-405b"
    " qwen2.5-72b opt-13b --tokens 8192",
    "plan-80.txt": f"plan qwen3.5-27b {PLAN}",
    "plan-starts-80.txt": f"plan qwen3.5-27b {PLAN} --max-num-seqs 295",
    "plan.txt": f"plan qwen3.5-27b {PLAN}",
    "plan.md": f"plan qwen3.5-27b {PLAN} -f markdown",
    "plan.csv": f"plan qwen3.5-27b {PLAN} -f csv",
    "plan.json": f"plan qwen3.5-27b {PLAN} -f json",
    "plan-v4-80.txt": "plan deepseek-v4-flash --engine vllm --gpu h100-80gb --max 131072",
    "plan-stages-80.txt": "plan gemma-3-27b --engine vllm --pp 2 --gpu l40s --max 32768",
    "plan-v0-80.txt": "plan llama-3.1-8b --engine vllm --engine-version 0.6.4 --max 20000"
    " --kv-memory 3.81GiB",
    "plan-refused-80.txt": "plan llama-3.1-8b --engine vllm --max 131072 --kv-memory 10GiB",
    "plan-engines-80.txt": "plan gemma-3-27b --engine vllm --engine sglang --engine llama.cpp"
    " --max 8192 --gpu h100-80gb --kv-memory 20GiB --engine-arg llama.cpp:parallel=4",
    "compare-vllm-80.txt": f"compare qwen3.5-27b {PLAN}",
    "compare-vllm-groups-80.txt": f"compare kimi-k3 {PLAN} --tp 8",
    "per-token-vllm-80.txt": "per-token qwen3.5-27b --engine vllm --gpu h100-80gb --max 8192",
    "engines-80.txt": "engines",
    "frag.txt": FRAG,
    "frag-80.txt": FRAG,
    "frag.md": f"{FRAG} -f markdown",
    "frag.csv": f"{FRAG} -f csv",
    "frag.json": f"{FRAG} -f json",
    "frag-holes-80.txt": "frag --holes 1.9GB,29x512MB --request 2GB --units decimal",
    "frag-fits-80.txt": "frag llama-3.1-8b --free 15GiB --largest 3GiB --explain",
    "frag-short-80.txt": "frag --free 1GiB --largest 1GiB --request 2GiB",
    "frag-snapshot.txt": "frag --snapshot s.json --request 105MiB --device-free 1MiB",
    "frag-snapshot-80.txt": "frag --snapshot s.json --request 48MiB",
    "frag-oom.txt": "frag --oom oom.txt",
    "frag-oom-80.txt": "frag --oom oom.txt",
    "layers-80.txt": "layers gemma-3-27b nemotron-3-nano-30b-a3b qwen3.5-27b",
    "layers.md": "layers gemma-3-27b -f markdown",
    "layers-diff-80.txt": "layers llama-3.1-8b llama-3.1-70b",
    "presets-show.txt": "presets show qwen3.5-27b",
    "presets-show-80.txt": "presets show qwen3.5-27b deepseek-v3",
    "presets-show.md": "presets show qwen3.5-27b -f markdown",
    "presets-show.csv": "presets show qwen3.5-27b -f csv",
    "presets-show.json": "presets show qwen3.5-27b -f json",
    "presets-list-80.txt": "presets list",
    "presets-validate.txt": "presets validate bad.yaml",
    "gpus-80.txt": "gpus a100-80gb h100-80gb mi300x rtx-pro-6000",
    "gpus.md": "gpus a100-80gb h100-80gb mi300x rtx-pro-6000 -f markdown",
}
BAD = """kind: model
name: good
tittle: Bad
architecture: BadForCausalLM
dtype: bfloat61
num_hidden_layers: 3
layers:
  - {count: 2, kind: full_atention, num_kv_heads: 0}
source: {repository: here, file: here}
expect: {bytes_per_token: {bfloat16: 1}, confirmed_by: []}
"""


@pytest.mark.parametrize(("file", "command"), CASES.items(), ids=list(CASES))
def test_golden(file: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of the command is the file, to the letter."""
    Path("bad.yaml").write_text(BAD, encoding="utf-8")
    Path("oom.txt").write_text(SAMPLES["2.1"] + "\n" + SAMPLES["2.2"], encoding="utf-8")
    Path("s.json").write_text(json.dumps(made().snapshot()), encoding="utf-8")
    if "-80." in file:
        monkeypatch.setenv("COLUMNS", "80")
    outcome = call(*command.split())
    shown = outcome.out.replace(f'"kvcalc_version": "{__version__}"', '"kvcalc_version": "X"')
    if not file.endswith((".json", ".csv")) and outcome.err:
        shown += "\n" + "".join(f"2> {line}\n" for line in outcome.err.splitlines())
    path = GOLDEN / file
    if UPDATE:
        path.write_text(shown, encoding="utf-8", newline="\n")

    assert outcome.code == (2 if "validate" in command else 0)
    assert path.read_bytes().decode("utf-8") == shown


def test_no_file_is_left_over() -> None:
    """Every golden file belongs to a command."""
    assert sorted(CASES) == sorted(path.name for path in GOLDEN.iterdir())
