"""What is read of each engine's page, and how it compares with what is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.core.errors import InputError
from kvcalc.core.server_metrics import ServerMetrics
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.metrics.predicted import compared
from tests.cli.harness import call, is_fault, validate
from tests.measure.pages import PAGES, vllm


def one(page: str) -> ServerMetrics:
    """Return the one engine of a page."""
    (server,) = read_metrics(page).servers
    return server


def against(page: str, model: str, **deployment: Any) -> ServerMetrics:
    """Return the one engine of a page beside what is predicted."""
    reading = read_metrics(page)
    asked = kvcalc.Deployment(engine=reading.servers[0].engine, **deployment)
    found = kvcalc.load_model(model)
    return judged(compared(reading.servers[0], found, asked, reading.settings[0]))


def test_vllm() -> None:
    server = judged(one(PAGES["vllm"]))
    assert server.model == "org/some-model"
    assert (server.block_size, server.num_blocks, server.block_tokens) == (16, 8193, 131088)
    assert server.block_tokens_are_capacity is True
    assert server.max_model_len == 8192  # tokens over concurrency
    assert server.blocks_used == 4096  # of the 8,192 that requests can have
    assert (server.running, server.waiting, server.preemptions) == (7, 2, 3)
    assert server.prefix_cache is not None
    assert server.prefix_cache.hit_ratio == 0.25
    assert server.waste is not None
    assert server.waste.held_tokens == 65536
    assert server.waste.tail_tokens == (0, 7 * 15)


def test_v0_counts_every_block() -> None:
    server = one(PAGES["vllm-v0"])
    assert server.blocks_used == 500
    assert server.block_tokens_are_capacity is None  # the page does not decide it


def test_a_usage_that_is_no_share_of_blocks_tells_no_blocks() -> None:
    assert one(vllm(usage=0.123456789)).blocks_used is None


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"kv_cache_size_tokens": 424739}, False),
        ({"sliding_window": 4096}, None),
        ({"mamba_block_size": 528}, None),
        ({"num_gpu_blocks": "None"}, None),
    ],
)
def test_whether_the_product_is_the_capacity(labels: dict[str, Any], expected: bool | None) -> None:
    server = one(vllm(**labels))
    assert server.block_tokens_are_capacity is expected
    assert server.why


def test_replicas_of_data_parallelism() -> None:
    """Several engines behind one page are told apart by their label."""
    servers = read_metrics(vllm(engine="0") + vllm(engine="1", blocks=100, usage=0.0)).servers
    assert [server.replica for server in servers] == ["0", "1"]
    assert [server.num_blocks for server in servers] == [8193, 100]


def test_sglang() -> None:
    server = judged(one(PAGES["sglang"]))
    assert server.running == 12  # ranks repeat it, priorities divide it
    assert (server.tokens_used, server.kv_cache_tokens) == (25000, 100000)
    assert server.block_tokens_are_capacity is True
    assert server.blocks_used == 1563
    assert server.usage_ratio == 0.25


def test_sglang_pools() -> None:
    server = one(PAGES["sglang-pools"])
    full, windows = server.pools
    assert (full.tokens, full.used_tokens, full.evictable_tokens) == (1000, 300, 100)
    assert (windows.tokens, windows.usage_ratio) == (100, 0.9)
    assert server.block_tokens_are_capacity is False


def test_llama_server() -> None:
    server = one(PAGES["llama.cpp"])
    assert server.prefix_cache is not None
    assert server.prefix_cache.hit_ratio == 0.25
    assert server.kv_cache_tokens is None
    assert any("980" in note for note in server.notes)
    older = judged(one(PAGES["llama.cpp-2024"]), running_tokens=1000)
    assert (older.usage_ratio, older.tokens_used) == (0.25, 1024)
    assert older.waste is not None
    assert older.waste.unused_tokens == 24


def test_tgi() -> None:
    server = one(PAGES["tgi"])
    assert (server.running, server.waiting, server.tokens_used) == (8, 4, 2048)


@pytest.mark.parametrize(
    ("name", "block", "blocks", "used"), [("trtllm", 32, 1000, 250), ("triton", 64, 400, 100)]
)
def test_tensorrt_llm(name: str, block: int, blocks: int, used: int) -> None:
    server = one(PAGES[name])
    assert (server.block_size, server.num_blocks, server.blocks_used) == (block, blocks, used)
    assert server.usage_ratio == 0.25
    assert server.block_tokens == block * blocks


def test_colons_become_underscores_behind_some_collectors() -> None:
    assert one(PAGES["vllm"].replace("vllm:", "vllm_")) == one(PAGES["vllm"])


def test_blocks_of_one_group_are_its_capacity() -> None:
    """Llama-3.1-8B: all layers keep every token, so that the page of an old release is decided."""
    server = against(vllm(blocks=1001), "llama-3.1-8b", max_model_len=8192)
    assert server.block_tokens_are_capacity is True
    assert server.predicted is not None
    assert server.predicted.kv_cache_bytes == 1001 * 16 * 131072
    assert server.predicted.kv_cache_tokens == 16016
    assert server.agreed == ("block_size",)  # the page has no other figure to compare
    assert not server.differences


def test_the_figures_of_a_page_are_predicted() -> None:
    """Tokens and concurrency as kvcalc's own plan of so many blocks has them."""
    model = kvcalc.load_model("gemma-3-27b")
    deployment = kvcalc.Deployment(
        engine="vllm",
        max_model_len=32768,
        num_gpu_blocks_override=50_000,
        gpu=kvcalc.load_gpu("h200"),
    )
    plan = kvcalc.plan(model, deployment)
    found = plan.capacity()
    page = vllm(
        blocks=50_000,
        kv_cache_size_tokens=found.kv_cache_tokens,
        kv_cache_max_concurrency=found.max_concurrency,
    )
    server = against(page, "gemma-3-27b", gpu=kvcalc.load_gpu("h200"))
    assert server.max_model_len == 32768
    assert set(server.agreed) == {"block_size", "kv_cache_tokens", "max_concurrency"}
    assert server.block_tokens_are_capacity is False
    assert "51163" in server.why
    other = against(page, "gemma-3-27b", gpu=kvcalc.load_gpu("h200"), max_model_len=8192)
    assert {d.name for d in other.differences} == {"kv_cache_tokens", "max_concurrency"}
    assert all(d.explained_by for d in other.differences)


def test_a_stale_block_size_is_explained() -> None:
    """Hybrids: the page keeps 16 where the start raised the block (issue 42966)."""
    server = against(
        vllm(blocks=1000), "qwen3.5-27b", gpu=kvcalc.load_gpu("h100-80gb"), max_model_len=8192
    )
    (difference,) = (d for d in server.differences if d.name == "block_size")
    assert difference.predicted == 832
    assert "42966" in difference.explained_by
    assert server.block_tokens_are_capacity is False


def test_the_bytes_of_a_page_buy_its_blocks() -> None:
    size = 1001 * 16 * 131072
    page = vllm(blocks=1001, kv_cache_memory_bytes=size + 100)
    server = against(page, "llama-3.1-8b", max_model_len=8192)
    assert "num_blocks" in server.agreed
    fewer = against(page, "llama-3.1-8b", max_model_len=8192, kv_cache_dtype="fp8")
    assert "num_blocks" in {d.name for d in fewer.differences}


def test_sglang_with_a_model() -> None:
    server = against(
        PAGES["sglang"], "llama-3.1-8b", gpu=kvcalc.load_gpu("h100-80gb"), max_model_len=8192
    )
    assert server.predicted is not None
    assert server.predicted.kv_cache_tokens == 100000
    assert "kv_cache_tokens" in server.agreed


def test_tensorrt_llm_with_a_model() -> None:
    server = against(
        PAGES["trtllm"], "llama-3.1-8b", gpu=kvcalc.load_gpu("h100-80gb"), max_model_len=8192
    )
    assert server.predicted is not None
    assert server.predicted.kv_cache_bytes == 1000 * 32 * 131072
    assert server.predicted.used_bytes == 250 * 32 * 131072


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("", "nothing in it"),
        ("<!doctype html><html></html>", "a web page"),
        ('{"num_gpu_blocks": 5}', "JSON"),
        ("# HELP a b\n", "comments"),
        ("python_info 1\nprocess_open_fds 7\n", "no metrics of an engine"),
        ("INFO 08-01 engine.py:1] hello\n", "no metrics"),
    ],
)
def test_other_pages(page: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_metrics(page)


# --------------------------------------------------------------------- the command


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_command(name: str, form: str, tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text(PAGES[name])
    found = call("metrics", str(file), "--format", form)
    assert found.code == 0, found.err
    if form == "json":
        assert validate("metrics", found.document) == []
    assert call("metrics", "-", "--format", form, stdin=PAGES[name].encode()).code == 0


def test_command_with_a_model(tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text(PAGES["vllm"])
    found = call("metrics", str(file), "llama-3.1-8b", "--format", "json")
    assert found.code == 0, found.err
    (result,) = found.results
    assert result["agreed"] == ["block_size", "kv_cache_tokens", "max_concurrency"]
    assert result["differences"] == []
    assert "as predicted" in result["verdict"]


def test_running_tokens(tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text(PAGES["vllm"])
    found = call("metrics", str(file), "--running-tokens", "65000", "--format", "json")
    assert found.results[0]["waste"]["unused_tokens"] == 536


def test_a_broken_line_is_a_warning_or_with_strict_an_error(tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text(PAGES["tgi"] + "what is this\n")
    assert "could not be read" in call("metrics", str(file)).err
    assert is_fault(call("metrics", str(file), "--strict"))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("/nowhere/at/all",),
        (".",),
        ("ftp://host/metrics",),
        ("file:///etc/hostname",),
        ("http://user:secret@localhost:1/metrics",),
        ("http://",),
        ("http://[::1",),
        ("-", "--timeout", "0"),
        ("-", "--timeout", "inf"),
        ("-", "llama-3.1-8b", "opt-13b"),
        ("-", "llama-3.1-8b", "--engine", "sglang"),
        ("-", "no-such-model"),
    ],
)
def test_bad_input(arguments: tuple[str, ...]) -> None:
    found = call("metrics", *arguments, stdin=PAGES["vllm"].encode())
    assert is_fault(found), (found.code, found.err)
    assert "secret" not in found.err


def test_a_settings_file_names_no_model_of_a_page(tmp_path: Path, monkeypatch: Any) -> None:
    """A ./kvcalc.yaml with a model is of other commands: a page is not compared unasked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvcalc.yaml").write_text("model: llama-3.1-8b\n")
    (tmp_path / "page").write_text(PAGES["vllm"])
    found = call("metrics", "page", "--format", "json")
    assert found.code == 0, found.err
    assert found.results[0]["predicted"] is None


def test_a_report_does_not_replace_the_page(tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text(PAGES["tgi"])
    assert is_fault(call("metrics", str(file), "--report", f"json:{file}"))
    assert file.read_text() == PAGES["tgi"]
