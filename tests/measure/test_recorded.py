"""What real engines said here (tests/measure/real_engines.py), read back and compared again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.harness import call
from tests.measure.real_engines import LLAMA_CPP, RECORDED, VLLM, Case, Said, checked
from tests.measure.tiny_models import write_config, write_gguf

CASES = [*(("vllm", case) for case in VLLM), *(("llama.cpp", case) for case in LLAMA_CPP)]
each = pytest.mark.parametrize(("engine", "case"), CASES, ids=[case.name for _, case in CASES])


_NAMES = re.compile(r"/(home|root|tmp|work|usr|opt)/|site-packages")


def said(case: Case) -> Said:
    """Return what a server said when it was recorded."""
    log, page = (RECORDED / f"{case.name}.{kind}" for kind in ("log", "metrics"))
    return Said(log.read_text(encoding="utf-8"), page.read_text(encoding="utf-8"))


@each
def test_as_predicted(engine: str, case: Case, tmp_path: Path) -> None:
    """Blocks, tokens, concurrency and lines of the log are those that kvcalc computes."""
    assert list(checked(engine, case, said(case), tmp_path)) == []


@each
def test_a_wrong_figure_is_noticed(engine: str, case: Case, tmp_path: Path) -> None:
    """The comparison is no formality: a digit of the page or of the log that is another shows."""
    log, page = said(case)
    if engine == "vllm":
        wrong = Said(log, page.replace('num_gpu_blocks="', 'num_gpu_blocks="1'))
    else:
        wrong = Said(log.replace(" cells", "0 cells"), page)
    assert list(checked(engine, case, wrong, tmp_path))


@each
def test_the_log_is_read(engine: str, case: Case, tmp_path: Path) -> None:
    """`kvcalc log` of the same start finds nothing that is not as computed."""
    if engine == "vllm":
        model = str(write_config(tmp_path / case.model, case.model) / "config.json")
        known = ["--max-num-batched-tokens", "2048", "--block", "128", "--no-async-scheduling"]
    else:
        model, known = str(write_gguf(tmp_path / f"{case.model}.gguf", case.model)), []
    path = str(RECORDED / f"{case.name}.log")
    found = call("log", path, "--model", model, *known, "--format", "json")
    assert found.code == 0, found.err
    (result,) = found.results
    assert result["engine"] == engine
    assert result["differences"] == []
    assert "kvcalc say" in result["verdict"]


def test_nothing_of_the_machine() -> None:
    """No folder, address or name of the machine that recorded is in a fixture."""
    for path in RECORDED.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not _NAMES.search(text), path.name
