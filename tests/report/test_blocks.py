"""Pieces of a report as a terminal gets them: what is to be copied can be copied."""

from __future__ import annotations

import shlex

import pytest

from kvcalc.report import markdown, table
from kvcalc.report.blocks import Block, Code, Formula, Shell

_LOG = "INFO GPU KV cache size: 118,400 tokens, Maximum concurrency for 8,192 tokens: 14.45x"
_COMMAND = (
    "VLLM_PP_LAYER_PARTITION=18,14 vllm serve meta-llama/Llama-3.1-8B-Instruct"
    ' --max-model-len 8192 --speculative-config \'{"method": "eagle3", "n": 3}\' --enforce-eager'
)


def lines(block: Block, width: int) -> list[str]:
    return table.plain(table.render([block], width=width, ascii_only=False)).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, table.UNLIMITED])
def test_a_log_line_is_never_wrapped(width: int) -> None:
    assert lines(Code((_LOG,)), width) == [_LOG]


@pytest.mark.parametrize("width", [40, 50, 80, 120, table.UNLIMITED])
def test_a_command_can_be_pasted(width: int) -> None:
    shown = lines(Shell(comments=("what to know of it " * 6,), commands=(_COMMAND,)), width)
    assert all(line.startswith("#") for line in shown if "know" in line)
    script = [line for line in shown if not line.startswith("#")]
    assert all(line.endswith(" \\") for line in script[:-1])
    assert not script[-1].endswith("\\")
    pasted = "\n".join(script).replace("\\\n", "")  # as a shell joins them
    assert shlex.split(pasted) == shlex.split(_COMMAND)
    assert pasted.startswith("VLLM_PP_LAYER_PARTITION=")
    longest = max(len(part) for part in shlex.split(_COMMAND))
    assert all(len(line) <= max(width, longest + 30) for line in shown)


@pytest.mark.parametrize("width", [80, 100])
def test_a_short_command_is_one_line(width: int) -> None:
    assert lines(Shell(comments=(), commands=("vllm serve a/b",)), width) == ["vllm serve a/b"]


def test_a_formula_wraps_between_words() -> None:
    text = "2 x 16 layers x 4 KV heads x 256 elements x 2 B = 65,536 B of every token"
    shown = lines(Formula((text,)), 40)
    assert len(shown) > 1
    assert " ".join(" ".join(shown).split()) == text


def test_markdown_keeps_commands_whole() -> None:
    drawn = markdown.render([Shell(comments=("of vllm 0.9.0",), commands=(_COMMAND,))])
    assert drawn == f"```sh\n# of vllm 0.9.0\n{_COMMAND}\n```\n"
