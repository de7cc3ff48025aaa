"""What is read of each engine's page, and how it compares with what is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.answers.server_metrics import ServerMetrics
from kvcalc.core.errors import InputError
from kvcalc.core.units import format_bytes
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.metrics.predicted import compared
from kvcalc.report.metrics import metrics_blocks
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


def test_a_block_size_against_the_page_makes_no_capacity() -> None:
    """The page counts its cache in its own blocks; a block size that is given is named."""
    server = against(vllm(blocks=1001), "llama-3.1-8b", max_model_len=8192, block_size=32)
    assert server.block_tokens_are_capacity is True
    assert server.predicted is not None
    assert server.predicted.kv_cache_tokens == 16016
    assert server.predicted.kv_cache_bytes == 1001 * 16 * 131072
    (difference,) = server.differences
    assert (difference.name, difference.reported, difference.predicted) == ("block_size", 16, 32)
    assert "blocks of 32 were given" in difference.explained_by
    assert "block_size" not in server.agreed
    other = against(PAGES["trtllm"], "llama-3.1-8b", max_model_len=8192, block_size=64)
    assert other.predicted is not None
    assert other.predicted.kv_cache_bytes == 1000 * 32 * 131072
    assert [(d.name, d.predicted) for d in other.differences] == [("block_size", 64)]


def test_a_block_size_that_the_page_bears_out_is_no_difference() -> None:
    """The page's own; what the start raises it to as well, where the page is stale."""
    server = against(vllm(blocks=1001), "llama-3.1-8b", max_model_len=8192, block_size=16)
    assert server.agreed == ("block_size",)
    gpu = kvcalc.load_gpu("h100-80gb")
    stale = against(vllm(blocks=1000), "qwen3.5-27b", gpu=gpu, max_model_len=8192, block_size=832)
    (difference,) = (d for d in stale.differences if d.name == "block_size")
    assert difference.predicted == 832
    assert "42966" in difference.explained_by


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
    names = [d.name for d in other.differences]
    assert names == ["max_model_len", "kv_cache_tokens", "max_concurrency"]
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


def test_more_running_tokens_than_blocks_hold(tmp_path: Path) -> None:
    """They are told beside what the blocks hold, and why that may be, not passed over."""
    file = tmp_path / "page.txt"
    file.write_text(PAGES["vllm"])
    found = call("metrics", str(file), "--running-tokens", "70000", "--format", "json")
    (result,) = found.results
    assert result["waste"]["unused_tokens"] is None
    assert "70,000 tokens, and the blocks in use hold 65,536" in " ".join(result["notes"])


NAMED = vllm(blocks=1001).replace("org/some-model", "meta-llama/Llama-3.1-8B-Instruct")


@pytest.mark.parametrize(
    ("page", "model", "same"),
    [
        (NAMED, "llama-3.1-8b", True),
        (NAMED, "llama-3.1-70b", False),
        (NAMED.replace("meta-llama/", "/models/somewhere/"), "llama-3.1-70b", False),
        (NAMED.replace("Llama-3.1-8B-Instruct", "chat"), "llama-3.1-70b", None),
    ],
)
def test_another_model_than_the_page_names(page: str, model: str, same: bool | None) -> None:
    """A name that kvcalc knows is held against the model; another says nothing."""
    server = judged(against(page, model, max_model_len=8192))
    assert ("model" in server.agreed) is (same is True)
    wrong = [d for d in server.differences if d.name == "model"]
    assert bool(wrong) is (same is False)
    if wrong:
        assert wrong[0].predicted == model
        assert "the page names llama-3.1-8b" in wrong[0].explained_by
        assert "1 figure differs from what is predicted: model." in server.verdict
        drawn = repr(metrics_blocks([server], format_bytes))
        assert "is llama-3.1-70b what this server serves?" in drawn


@pytest.mark.parametrize(
    ("told", "given", "name"),
    [
        ({"cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"cache_dtype": "fp8"}, {"kv_cache_dtype": "bf16"}, "kv_cache_dtype"),
        ({"enable_prefix_caching": "False"}, {"enable_prefix_caching": True},
         "enable_prefix_caching"),
        ({"kv_cache_size_tokens": 131_072, "kv_cache_max_concurrency": 8.0},
         {"max_model_len": 8192}, "max_model_len"),
    ],
)  # fmt: skip
def test_another_setting_than_the_page_tells(
    told: dict[str, Any], given: dict[str, Any], name: str
) -> None:
    """What is given counts, and that the server has it otherwise is a difference."""
    server = against(vllm(blocks=8193, **told), "llama-3.1-8b", **given)
    assert name in {d.name for d in server.differences}
    assert name not in server.agreed


@pytest.mark.parametrize(
    ("told", "given", "name"),
    [
        ({"cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"cache_dtype": "auto"}, {"kv_cache_dtype": "bf16"}, "kv_cache_dtype"),
        ({}, {"enable_prefix_caching": True}, "enable_prefix_caching"),
    ],
)
def test_the_same_setting_in_other_words(
    told: dict[str, Any], given: dict[str, Any], name: str
) -> None:
    server = against(vllm(blocks=8193, **told), "llama-3.1-8b", max_model_len=8192, **given)
    assert name in server.agreed
    assert not server.differences


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm:kv_cache_usage_perc 1.7", "kv_cache_usage_perc is 1.7, which is no share from 0"),
        ("vllm:kv_cache_usage_perc -0.1", "kv_cache_usage_perc is -0.1, which is no share from 0"),
        ("vllm:kv_cache_usage_perc +Inf", "kv_cache_usage_perc is inf, which is no figure"),
        ("vllm:num_requests_running -3", "num_requests_running is -3, which is no whole number"),
        ("sglang:max_total_num_tokens 1.5", "is 1.5, which is no whole number"),
        ('vllm:cache_config_info{num_gpu_blocks="abc"} 1', "num_gpu_blocks is 'abc', which is no"),
        ("trtllm_kv_cache_utilization 3", "is 3, which is no share"),
    ],
)
def test_figures_that_cannot_be(line: str, said: str) -> None:
    """What is left out because it cannot be is told, not passed over."""
    reading = read_metrics(line + "\n")
    (warning,) = reading.warnings
    assert said in warning
    assert warning.endswith("it is left out")
    assert warning in " ".join(call("metrics", "-", stdin=line.encode()).err.splitlines())


def test_figures_that_are_not_there_yet() -> None:
    """NaN is a share before its first request, and -1 a hit rate that V0 has switched off."""
    page = "vllm:kv_cache_usage_perc NaN\nvllm:gpu_prefix_cache_hit_rate -1\n"
    assert read_metrics(page).warnings == ()


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
