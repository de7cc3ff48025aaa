"""SGLang's command line, rule by rule."""

from __future__ import annotations

import pytest

from tests.manifests.commands.harness import codes, fields, level, read_command, value

_START = "python3 -m sglang.launch_server --model-path a/b"


def test_every_sizing_flag() -> None:
    server = read_command(
        f"{_START} --tp-size 8 --pp-size 2 --dp-size 2 --dcp-size 2 --page-size 64"
        " --context-length 32k --max-running-requests 96 --chunked-prefill-size 4096"
        " --mem-fraction-static 0.85 --max-total-tokens 100Ki --kv-cache-dtype fp8_e4m3"
        " --dtype half --attention-backend fa3 --disable-radix-cache --swa-full-tokens-ratio 0.5"
        " --max-mamba-cache-size 10 --mamba-full-memory-ratio 0.2 --enable-hicache"
        " --hicache-ratio 2 --speculative-algorithm EAGLE --speculative-num-steps 3"
        " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --disable-overlap-schedule"
        " --mamba-radix-cache-strategy extra_buffer --disaggregation-mode prefill"
        " --cuda-graph-max-bs-decode 64 --disable-hybrid-swa-memory"
    )

    assert server.engine == "sglang"
    assert server.model is not None and server.model.value == "a/b"
    assert server.findings == ()
    kinds = {setting.name: (setting.value, setting.kind) for setting in server.settings}
    assert kinds == {
        "tensor_parallel_size": (8, "field"),
        "pipeline_parallel_size": (2, "field"),
        "data_parallel_size": (2, "field"),
        "decode_context_parallel_size": (2, "field"),
        "block_size": (64, "field"),
        "max_model_len": (32_000, "field"),
        "max_num_seqs": (96, "field"),
        "max_num_batched_tokens": (4096, "field"),
        "mem_fraction_static": (0.85, "arg"),
        "max_total_tokens": (102_400, "arg"),
        "kv_cache_dtype": ("fp8_e4m3", "field"),
        "dtype": ("float16", "field"),
        "attention_backend": ("fa3", "field"),
        "enable_prefix_caching": (False, "field"),
        "swa_full_tokens_ratio": (0.5, "arg"),
        "max_mamba_cache_size": (10, "arg"),
        "mamba_full_memory_ratio": (0.2, "arg"),
        "enable_hierarchical_cache": (True, "arg"),
        "hicache_ratio": (2.0, "arg"),
        "speculative_algorithm": ("EAGLE", "arg"),
        "speculative_num_steps": (3, "arg"),
        "speculative_eagle_topk": (1, "arg"),
        "speculative_num_draft_tokens": (4, "arg"),
        "disable_overlap_schedule": (True, "arg"),
        "mamba_radix_cache_strategy": ("extra_buffer", "arg"),
        "disaggregation_mode": ("prefill", "arg"),
        "cuda_graph_max_bs": (64, "arg"),
        "disable_hybrid_swa_memory": (True, "arg"),
    }


@pytest.mark.parametrize(
    ("flag", "name", "read"),
    [
        ("--tp 2", "tensor_parallel_size", 2),
        ("--tp=2", "tensor_parallel_size", 2),
        ("--tensor-parallel-size 2", "tensor_parallel_size", 2),
        ("--dp 2", "data_parallel_size", 2),
        ("--ep 2", "enable_expert_parallel", True),
        ("--ep 1", "enable_expert_parallel", "absent"),
        ("--context-len 32k", "max_model_len", 32_000),
        ("--context-length 32Ki", "max_model_len", 32_768),
        ("--context-length 1.5M", "max_model_len", 1_500_000),
        ("--chunked-prefill-size -1", "chunked_prefill_size", -1),
        ("--speculative-draft-model d/e", "draft_model", "d/e"),
        ("--attn-dp-size 4", "attn_dp_size", 4),
        ("--disable-cuda-graph", "enforce_eager", True),
    ],
)
def test_spellings(flag: str, name: str, read: object) -> None:
    server = read_command(f"{_START} {flag}")

    assert value(server, name) == read
    assert set(codes(server)) <= {"abbreviated-flag"}


def test_what_everybody_writes_is_not_told() -> None:
    assert codes(read_command(f"{_START} --tp 2 --dp 2")) == []
    assert codes(read_command(f"{_START} --context-len 4096")) == ["abbreviated-flag"]


@pytest.mark.parametrize(
    ("flag", "code", "cure"),
    [
        ("--context-length 32K", "bad-value", "32Ki"),
        ("--context-length 1m", "bad-value", "1M"),
        ("--context-length 1.5Ki", "bad-value", "whole number"),
        ("--max-running-requests 1k", "bad-value", "1000"),
        ("--mem-fraction-static 85", "bad-value", "write 0.85"),
        ("--pp 2", "ambiguous-flag", "--pp-size"),
        ("--quant fp8", "ambiguous-flag", "--quantization"),
        ("a/b", "stray-word", "join"),
    ],
)
def test_errors(flag: str, code: str, cure: str) -> None:
    found = next(f for f in read_command(f"{_START} {flag}").findings if f.code == code)

    assert found.level == "error"
    assert cure in found.cure


def test_what_is_meant_by_a_beginning_that_became_ambiguous_is_read() -> None:
    server = read_command(f"{_START} --pp 2", image="lmsysorg/sglang:v0.5.12")

    assert value(server, "pipeline_parallel_size") == 2
    assert level(server, "ambiguous-flag") == "warning"


@pytest.mark.parametrize(
    ("flag", "cure"),
    [
        ("--mem_fraction_static 0.8", "--mem-fraction-static"),
        ("--enable-radix-cache", "--disable-radix-cache alone"),
        ("--no-disable-radix-cache", "--disable-radix-cache"),
    ],
)
def test_unknown_flags(flag: str, cure: str) -> None:
    server = read_command(f"{_START} {flag}")

    assert codes(server) == ["unknown-flag"]
    assert cure in server.findings[0].cure


@pytest.mark.parametrize(
    ("tag", "flag", "expected"),
    [
        ("v0.5.18", "--mamba-scheduler-strategy no_buffer", None),
        ("v0.5.23", "--mamba-scheduler-strategy no_buffer", "error"),
        ("latest", "--mamba-scheduler-strategy no_buffer", "warning"),
        ("v0.5.18-cu126", "--cuda-graph-bs 1 2 4", None),
        ("v0.5.20", "--cuda-graph-max-bs 64", "error"),
        ("v0.5.2", "--enable-ep-moe", None),
        ("v0.5.9", "--enable-ep-moe", "error"),
        ("v0.4.6.post1-cu124", "--stream-output", None),
    ],
)
def test_releases(tag: str, flag: str, expected: str | None) -> None:
    server = read_command(f"{_START} {flag}", image=f"lmsysorg/sglang:{tag}")

    levels = [f.level for f in server.findings if f.code in ("renamed-flag", "removed-flag")]
    assert levels == ([] if expected is None else [expected])


def test_a_renamed_setting_is_read() -> None:
    server = read_command(f"{_START} --mamba-scheduler-strategy extra_buffer")

    assert value(server, "mamba_radix_cache_strategy") == "extra_buffer"


@pytest.mark.parametrize(
    "command",
    [
        "sglang serve --model-path org/name",
        "sglang serve org/name",
        "python -m dynamo.sglang --model-path org/name --dyn-tool-call-parser x",
        "python3 -m sglang_v100_plus --model org/name",
        "python3 /sgl-workspace/sglang/python/sglang/launch_server.py --model-path=org/name",
    ],
)
def test_the_model(command: str) -> None:
    server = read_command(command)

    assert server.engine == "sglang"
    assert server.model is not None and server.model.value == "org/name"
    assert codes(server) == []


def test_the_image_starts_no_server() -> None:
    server = read_command(
        "--model-path=Qwen/Qwen3-32B-AWQ --mem-fraction-static=0.95", image="lmsysorg/sglang:latest"
    )

    assert level(server, "no-program") == "error"
    assert value(server, "mem_fraction_static") == 0.95


def test_config_files() -> None:
    server = read_command(
        f"{_START} --config c.yaml --tp 4",
        files={"c.yaml": "tp-size: 2\ncontext_length: 4096\ndisable-radix-cache: true\n"},
    )

    assert fields(server) == {
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        "tensor_parallel_size": 4,
    }


def test_variables() -> None:
    env = {"SGLANG_MAMBA_CONV_DTYPE": "bfloat16", "SGLANG_SWA_EVICTION_INTERVAL": "64"}
    kinds = {(s.name, s.value, s.kind) for s in read_command(_START, env=env).settings}

    assert kinds == {
        ("SGLANG_MAMBA_CONV_DTYPE", "bfloat16", "arg"),
        ("SGLANG_SWA_EVICTION_INTERVAL", 64, "arg"),
    }


@pytest.mark.parametrize("flag", ["--cpu-offload-gb 2", "--lora-paths x=y", "--enable-lora"])
def test_what_is_not_counted_is_told(flag: str) -> None:
    assert "not-modelled" in codes(read_command(f"{_START} {flag}"))
