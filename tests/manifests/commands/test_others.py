"""trtllm-serve, TGI and LMDeploy, rule by rule."""

from __future__ import annotations

import pytest

from tests.manifests.commands.harness import codes, fields, level, read_command, value


def test_trtllm_serve() -> None:
    server = read_command(
        "trtllm-serve serve nvidia/x --tp_size 2 --pipeline_parallel_size 2 --ep_size 2"
        " --max_seq_len 8192 --max_batch_size 96 --max_num_tokens 12288"
        " --kv_cache_free_gpu_memory_fraction 0.9 --kv_cache_dtype fp8 --enable_chunked_prefill"
    )

    assert server.engine == "tensorrt-llm"
    assert server.model is not None and server.model.value == "nvidia/x"
    assert codes(server) == []
    kinds = {setting.name: (setting.value, setting.kind) for setting in server.settings}
    assert kinds == {
        "tensor_parallel_size": (2, "field"),
        "pipeline_parallel_size": (2, "field"),
        "moe_expert_parallel_size": (2, "other"),
        "max_model_len": (8192, "field"),
        "max_num_seqs": (96, "field"),
        "max_num_batched_tokens": (12288, "other"),
        "free_gpu_memory_fraction": (0.9, "arg"),
        "kv_cache_dtype": ("fp8", "field"),
        "enable_chunked_prefill": (True, "other"),
    }


@pytest.mark.parametrize("flag", ["--tp-size 2", "--max-seq-len 1", "--max_seq 1", "--tp 2"])
def test_trtllm_serve_knows_whole_names_with_underscores_alone(flag: str) -> None:
    assert codes(read_command(f"trtllm-serve a/b {flag}")) == ["unknown-flag"]


_EXTRA = """
tensor_parallel_size: 8
enable_attention_dp: true
max_batch_size: 16
kv_cache_config:
  free_gpu_memory_fraction: 0.85
  dtype: fp8
  enable_block_reuse: false
  tokens_per_block: 64
  max_attention_window: [4096, 8192]
  event_buffer_max_size: 100
cuda_graph_config:
  enable_padding: true
speculative_config:
  decoding_type: MTP
sparse_things: 1
"""


@pytest.mark.parametrize("flag", ["--config", "--extra_llm_api_options"])
def test_the_file_wins_over_trtllm_serve_s_words(flag: str) -> None:
    server = read_command(
        f"trtllm-serve a/b {flag} /etc/x.yaml --max_batch_size 4 --tp_size 2"
        " --free_gpu_memory_fraction 0.5",
        files={"/etc/x.yaml": _EXTRA},
    )

    assert fields(server) == {
        "max_num_seqs": 16,
        "tensor_parallel_size": 8,
        "free_gpu_memory_fraction": 0.85,
        "enable_attention_dp": True,
        "kv_cache_dtype": "fp8",
        "enable_block_reuse": False,
        "tokens_per_block": 64,
        "max_attention_window": "4096,8192",
        "speculative_config": "given",
    }
    assert codes(server) == ["unknown-flag"]
    assert {finding.file for finding in server.findings} == {"/etc/x.yaml"}
    share = next(s for s in server.settings if s.name == "free_gpu_memory_fraction")
    assert (share.line, share.written) == (15, "kv_cache_config.free_gpu_memory_fraction")


def test_dynamo_s_trtllm() -> None:
    server = read_command(
        "python3 -m dynamo.trtllm --model-path a/b --served-model-name deepseek-ai/DeepSeek-R1"
        " --extra-engine-args /c/config.yaml --disaggregation-mode decode",
        files={"/c/config.yaml": _EXTRA},
    )

    assert server.model is not None and server.model.value == "a/b"
    assert value(server, "served_model_name") == "deepseek-ai/DeepSeek-R1"
    assert value(server, "tensor_parallel_size") == 8


def test_tgi() -> None:
    server = read_command(
        "text-generation-launcher --model-id google/gemma-7b --num-shard=2 --max-input-tokens 512"
        " --max-total-tokens 3072 --max-batch-prefill-tokens 2048 --max-batch-size 16"
        " --cuda-memory-fraction 0.8 --kv-cache-dtype fp8_e4m3fn --quantize awq --dtype float16"
        " --trust-remote-code -p 80",
        env={"ATTENTION": "paged", "PREFIX_CACHING": "false"},
    )

    assert server.engine == "tgi"
    assert server.model is not None and server.model.value == "google/gemma-7b"
    assert codes(server) == []
    assert fields(server) == {
        "attention_backend": "paged",
        "enable_prefix_caching": False,
        "tensor_parallel_size": 2,
        "max_input_tokens": 512,
        "max_model_len": 3072,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,
        "cuda_memory_fraction": 0.8,
        "kv_cache_dtype": "fp8_e4m3",
        "quantization": "awq",
        "dtype": "float16",
    }


def test_tgi_s_variables_are_its_flags() -> None:
    env = {"MODEL_ID": "a/b", "NUM_SHARD": "2", "MAX_TOTAL_TOKENS": "4096", "max_batch_size": "3"}
    server = read_command(
        "--max-total-tokens 8192",
        image="ghcr.io/huggingface/text-generation-inference:2.4.0",
        env=env,
    )

    assert server.engine_version == "2.4.0"
    assert server.model is not None and server.model.value == "a/b"
    assert fields(server) == {"tensor_parallel_size": 2, "max_model_len": 8192}


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        ("--max-input-tokens 4096 --max-total-tokens 4096", "contradiction", "error"),
        ("--max-input-tokens 5 --max-input-length 5", "contradiction", "error"),
        ("--max-batch-size 16 --max-concurrent-requests 4", "unreachable", "warning"),
        ("--max_total_tokens 5", "unknown-flag", "warning"),
        ("--max-total 5", "unknown-flag", "warning"),
        ("--max-total-tokens 4k", "bad-value", "error"),
        ("--kv-cache-dtype fp8", "bad-value", "error"),
        ("--speculate 2", "not-modelled", "note"),
        ("word", "stray-word", "error"),
    ],
)
def test_tgi_s_findings(flags: str, code: str, expected: str) -> None:
    server = read_command(f"text-generation-launcher --model-id a/b {flags}")

    assert level(server, code) == expected


def test_lmdeploy() -> None:
    server = read_command(
        "lmdeploy serve api_server a/b --tp 2 --dp 2 --session-len 8192 --max-batch-size 64"
        " --cache-max-entry-count 0.4 --cache-block-seq-len 64 --quant-policy 8 --dtype float16"
        " --enable-prefix-caching --max-prefill-token-num 4096 --backend turbomind"
        " --model-format awq",
        image="openmmlab/lmdeploy:v0.16.0-cu12",
    )

    assert server.engine == "lmdeploy"
    assert server.engine_version == "0.16.0"
    assert server.model is not None and server.model.value == "a/b"
    assert codes(server) == []
    kinds = {setting.name: (setting.value, setting.kind) for setting in server.settings}
    assert kinds == {
        "tensor_parallel_size": (2, "field"),
        "data_parallel_size": (2, "field"),
        "max_model_len": (8192, "field"),
        "max_num_seqs": (64, "field"),
        "cache_max_entry_count": (0.4, "arg"),
        "block_size": (64, "field"),
        "kv_cache_dtype": ("int8", "field"),
        "dtype": ("float16", "field"),
        "enable_prefix_caching": (True, "field"),
        "max_prefill_token_num": (4096, "arg"),
        "backend": ("turbomind", "arg"),
        "model_format": ("awq", "other"),
    }


@pytest.mark.parametrize(
    ("policy", "name", "read"),
    [
        ("0", "kv_cache_dtype", "absent"),
        ("none", "quant_policy", "absent"),
        ("4", "kv_cache_dtype", "int4"),
        ("16", "kv_cache_dtype", "fp8"),
        ("fp8_e4m3", "kv_cache_dtype", "fp8"),
        ("17", "kv_cache_dtype", "fp8_e5m2"),
        ("42", "quant_policy", "turbo_quant"),
    ],
)
def test_lmdeploy_s_policies(policy: str, name: str, read: object) -> None:
    server = read_command(f"lmdeploy serve api_server a/b --quant-policy {policy}")

    assert value(server, name) == read
    assert codes(server) == []


def test_lmdeploy_s_number_of_blocks() -> None:
    server = read_command("lmdeploy serve api_server a/b --cache-max-entry-count 500")

    assert fields(server) == {"num_gpu_blocks_override": 500}
    assert codes(server) == ["blocks-not-share"]


@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("--session 4096", "abbreviated-flag"),
        ("--session_len 4096", "unknown-flag"),
        ("--quant-policy 5", "bad-value"),
        ("--backend vllm", "bad-value"),
        ("--session-len 8k", "bad-value"),
    ],
)
def test_lmdeploy_s_findings(flag: str, code: str) -> None:
    assert codes(read_command(f"lmdeploy serve api_server a/b {flag}")) == [code]
