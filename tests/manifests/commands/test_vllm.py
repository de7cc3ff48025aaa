"""vLLM's command line, rule by rule.

The rules are those of the facts of engine-flags.md, most of which were tried on vLLM's own parser.
"""

from __future__ import annotations

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.engines.vllm.arguments import check_arguments
from kvcalc.engines.vllm.version import release
from tests.manifests.commands.harness import codes, fields, level, read_command, value


def test_every_sizing_flag() -> None:
    server = read_command(
        "vllm serve Qwen/Qwen3-8B --dtype half --tensor-parallel-size 2 --pipeline-parallel-size 3"
        " --data-parallel-size 4 --decode-context-parallel-size 2 --kv-cache-dtype fp8_e5m2"
        " --block-size 32 --max-model-len 8192 --max-num-seqs 64 --max-num-batched-tokens 4096"
        " --gpu-memory-utilization .85 --kv-cache-memory-bytes 10G --num-gpu-blocks-override 500"
        " --no-enable-prefix-caching --async-scheduling --enforce-eager"
        " --disable-hybrid-kv-cache-manager --enable-expert-parallel"
        " --attention-backend FLASHINFER --mamba-cache-dtype float32"
        " --mamba-ssm-cache-dtype float32 -q awq --revision abc"
    )

    assert server.engine == "vllm"
    assert server.model is not None and server.model.value == "Qwen/Qwen3-8B"
    assert server.findings == ()
    assert fields(server) == {
        "dtype": "float16",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "data_parallel_size": 4,
        "decode_context_parallel_size": 2,
        "kv_cache_dtype": "fp8_e5m2",
        "block_size": 32,
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.85,
        "kv_cache_memory_bytes": 10 * 2**30,
        "num_gpu_blocks_override": 500,
        "enable_prefix_caching": False,
        "async_scheduling": True,
        "enforce_eager": True,
        "disable_hybrid_kv_cache_manager": True,
        "enable_expert_parallel": True,
        "attention_backend": "FLASHINFER",
        "mamba_cache_dtype": "float32",
        "mamba_ssm_cache_dtype": "float32",
        "quantization": "awq",
        "revision": "abc",
    }
    kinds = {setting.name: setting.kind for setting in server.settings}
    assert kinds.pop("quantization") == kinds.pop("revision") == "other"
    assert set(kinds.values()) == {"field"}


@pytest.mark.parametrize(
    ("flag", "name", "read"),
    [
        ("--gpu_memory_utilization 0.5", "gpu_memory_utilization", 0.5),
        ("--gpu-memory-utilization=0.5", "gpu_memory_utilization", 0.5),
        ("--device-memory-utilization 0.5", "gpu_memory_utilization", 0.5),
        ("--gpu-memory-util 0.5", "gpu_memory_utilization", 0.5),
        ("--max-num-seq 7", "max_num_seqs", 7),
        ("--max-num-batched-token 7", "max_num_batched_tokens", 7),
        ("--kv-cache-memory 7", "kv_cache_memory_bytes", 7),
        ("-tp 2", "tensor_parallel_size", 2),
        ("-tp=2", "tensor_parallel_size", 2),
        ("-pp 2", "pipeline_parallel_size", 2),
        ("-dp 2", "data_parallel_size", 2),
        ("-dcp 2", "decode_context_parallel_size", 2),
        ("-ep", "enable_expert_parallel", True),
        ("--no-enforce-eager", "enforce_eager", False),
        ("--disable-prefix-caching", "enable_prefix_caching", False),
        ("--no-disable-hybrid-kv-cache-manager", "disable_hybrid_kv_cache_manager", False),
        ("--max-model-len 4k", "max_model_len", 4000),
        ("--max-model-len 4K", "max_model_len", 4096),
        ("--max-model-len 25.6k", "max_model_len", 25600),
        ("--max-model-len 1m", "max_model_len", 1_000_000),
        ("--max-model-len 1M", "max_model_len", 2**20),
        ("--max-model-len auto", "max_model_len", "auto"),
        ("--max-model-len -1", "max_model_len", "auto"),
        ("--max-model-len=-1", "max_model_len", "auto"),
        ("--max-num-batched-tokens 8k", "max_num_batched_tokens", 8000),
        ("-O3", "optimization_level", "3"),
        ("-O=3", "optimization_level", "3"),
        ("-O 3", "optimization_level", "3"),
        ("--load-format dummy", "load_format", "dummy"),
    ],
)
def test_spellings(flag: str, name: str, read: object) -> None:
    server = read_command(f"vllm serve a/b {flag}")

    assert value(server, name) == read
    assert not [finding for finding in server.findings if finding.level == "error"]


@pytest.mark.parametrize(
    ("flag", "code", "cure"),
    [
        ("--max-num-seqs 1k", "bad-value", "write 1000"),
        ("--max-num-seqs 1e5", "bad-value", "whole number"),
        ("--max-num-seqs 0x10", "bad-value", "whole number"),
        ("--max-num-seqs '4 096'", "bad-value", "whole number"),
        ("--max-num-seqs 0", "bad-value", "from 1"),
        ("--max-model-len 2.5K", "bad-value", "2.5k"),
        ("--gpu-memory-utilization 90", "bad-value", "write 0.9"),
        ("--gpu-memory-utilization 0", "bad-value", "above 0 and up to 1"),
        ("--max-model-len", "bad-value", "--max-model-len VALUE"),
        ("--max-model-len --enforce-eager", "bad-value", "--max-model-len VALUE"),
        ("'--dtype auto'", "blank-in-flag", "two words"),
        ("--enable-prefix-caching false", "boolean-value", "--no-enable-prefix-caching"),
        ("--enable-prefix-caching=false", "boolean-value", "--no-enable-prefix-caching"),
        ("--enforce-eager=true", "boolean-value", "write --enforce-eager"),
        ("--max-num 4", "ambiguous-flag", "whole flag"),
        ("--quant awq", "ambiguous-flag", "--quantization"),
        ("--speculative-config '{method: mtp}'", "bad-value", "JSON"),
        ("more words", "stray-word", "join"),
    ],
)
def test_errors(flag: str, code: str, cure: str) -> None:
    server = read_command(f"vllm serve a/b {flag}")

    found = next(finding for finding in server.findings if finding.code == code)
    assert found.level == "error"
    assert cure in found.cure
    assert found.line == 1


@pytest.mark.parametrize("flag", ["--tp 2", "--cc 3", "-tp2", "-host 0.0.0.0", "--max-modell 3"])
def test_unknown_flags(flag: str) -> None:
    server = read_command(f"vllm serve a/b {flag}")

    assert codes(server) == ["unknown-flag"]
    assert level(server, "unknown-flag") == "warning"
    assert fields(server) == {}


def test_unknown_flags_name_the_nearest() -> None:
    server = read_command("vllm serve a/b --max-modell-len 4096")

    assert "--max-model-len" in server.findings[0].cure


def test_full_words_are_wanted_where_a_beginning_has_two_ends() -> None:
    assert codes(read_command("vllm serve a/b --max-lora 2")) == ["ambiguous-flag"]
    assert codes(read_command("vllm serve a/b --max-loras 2")) == []


def test_the_last_one_counts() -> None:
    server = read_command("vllm serve a/b --max-model-len 1 --max-model-len 2")

    assert value(server, "max_model_len") == 2
    assert codes(server) == ["repeated-flag"]


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve org/name --enforce-eager",
        "vllm serve --enforce-eager org/name",
        "vllm serve --model org/name --enforce-eager",
        "vllm serve --model=org/name",
        "vllm serve hf://org/name",
        "python3 -m vllm.entrypoints.openai.api_server --model org/name",
        "python -u -m vllm.entrypoints.api_server --model org/name",
        "python -m dynamo.vllm --model org/name --is-prefill-worker --connector nixl",
        "vllm serve /hub/models--org--name/snapshots/0123abcd",
        "vllm serve --unknown org/name",
    ],
)
def test_the_model(command: str) -> None:
    server = read_command(command)

    assert server.model is not None
    assert server.model.value == "org/name"


def test_demo_server_is_told() -> None:
    assert "demo-server" in codes(read_command("python -m vllm.entrypoints.api_server --model a"))


@pytest.mark.parametrize(
    ("flags", "method", "tokens", "draft"),
    [
        (
            """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""",
            *("mtp", 3, "absent"),
        ),
        (
            """-sc '{"model": "d/e", "num_speculative_tokens": 5}'""",
            *("absent", 5, "d/e"),
        ),
        (
            """--speculative-config='{"model": "x/EAGLE3-y", "num_speculative_tokens": 2}'""",
            *("eagle3", 2, "x/EAGLE3-y"),
        ),
        (
            "--speculative-config.method ngram --speculative-config.num_speculative_tokens=4",
            *("ngram", 4, "absent"),
        ),
        (
            """-sc '{"method": "mtp"}' --speculative-config.num_speculative_tokens 2""",
            *("mtp", 2, "absent"),
        ),
        ("--spec-method mtp --spec-tokens 2", "mtp", 2, "absent"),
        ("--spec-model d/e --spec-tokens 2", "absent", 2, "d/e"),
        ("--speculative-model '[ngram]' --num-speculative-tokens 5", "ngram", 5, "absent"),
        (
            """-sc '{"method": "mtp", "model": "a/b", "num_speculative_tokens": 1}'""",
            *("mtp", 1, "absent"),
        ),
    ],
)
def test_speculation(flags: str, method: str, tokens: int, draft: str) -> None:
    server = read_command(f"vllm serve a/b {flags}")

    assert value(server, "speculative_method") == method
    assert value(server, "num_speculative_tokens") == tokens
    assert value(server, "draft_model") == draft


@pytest.mark.parametrize(
    ("version", "flag", "code", "expected"),
    [
        ("v0.17.1", "--swap-space 4", "removed-flag", None),
        ("v0.18.1", "--swap-space 4", "removed-flag", "error"),
        ("latest", "--swap-space 4", "removed-flag", "warning"),
        ("v0.18.0", "--swap-space 4", "removed-flag", "warning"),
        ("v0.10.2", "--max-seq-len-to-capture 8192", "renamed-flag", None),
        ("v0.11.0", "--max-seq-len-to-capture 8192", "renamed-flag", "error"),
        ("v0.7.3", "--speculative-model x", "renamed-flag", None),
        ("v0.8.5", "--speculative-model x", "renamed-flag", "error"),
        ("v0.10.0", "--num-scheduler-steps 8", "removed-flag", None),
        ("v0.10.2", "--num-scheduler-steps 8", "removed-flag", "error"),
        ("v0.12.0", "--max-paddings 256", "removed-flag", "error"),
        ("v0.12.0", "--task embed", "renamed-flag", None),
        ("v0.13.0", "--task embed", "renamed-flag", "error"),
        ("v0.10.0", "--kv-cache-memory-bytes 1", "newer-flag", "error"),
        ("v0.10.1", "--kv-cache-memory-bytes 1", "newer-flag", "warning"),  # not looked at
        ("v0.10.2", "--kv-cache-memory-bytes 1", "newer-flag", None),
        ("v0.6.3", "--enable-chunked-prefill false", "boolean-value", None),
        ("v0.8.5", "--enable-chunked-prefill false", "boolean-value", "error"),
        ("latest", "--disable-log-requests", "removed-flag", None),
    ],
)
def test_releases(version: str, flag: str, code: str, expected: str | None) -> None:
    server = read_command(
        f"python3 -m vllm.entrypoints.openai.api_server --model a/b {flag}",
        image=f"vllm/vllm-openai:{version}",
    )

    levels = [finding.level for finding in server.findings if finding.code == code]
    assert levels == ([] if expected is None else [expected])


def test_a_config_file_and_the_command_over_it() -> None:
    text = (
        "model: other/name\nmax-model-len: 4096\ntensor_parallel_size: 2\nenforce-eager: true\n"
        "enable-prefix-caching: false\nno-such-thing: 1\nspeculative-config:\n  method: ngram\n"
        "  num_speculative_tokens: 3\nserved-model-name: [one, two]\n"
    )
    server = read_command(
        "vllm serve a/b --config /etc/vllm.yaml --max-model-len 8192",
        files={"/etc/vllm.yaml": text},
    )

    assert server.model is not None and server.model.value == "a/b"
    assert fields(server) == {
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": "one,two",
        "max_model_len": 8192,
        "speculative_method": "ngram",
        "num_speculative_tokens": 3,
    }
    (unknown,) = server.findings
    assert (unknown.code, unknown.line, unknown.file) == ("unknown-flag", 15, "/etc/vllm.yaml")
    lines = {setting.name: setting.line for setting in server.settings}
    assert lines["tensor_parallel_size"] == 12


@pytest.mark.parametrize(
    ("flag", "code", "expected"),
    [
        ("--config missing.yaml", "config-not-read", "warning"),
        ("--config=there.yaml", "config-not-read", "error"),
        ("--config there.json", "bad-value", "error"),
        ("--config bomb.yaml", "config-not-read", "warning"),
        ("--config list.yaml", "config-not-read", "warning"),
    ],
)
def test_config_files_that_are_not_read(flag: str, code: str, expected: str) -> None:
    files = {
        "there.yaml": "max-model-len: 1",
        "there.json": "{}",
        "bomb.yaml": "a: &a [x, x]\nb: [*a, *a]",
        "list.yaml": "- 1",
    }
    server = read_command(f"vllm serve a/b {flag}", files=files)

    assert level(server, code) == expected
    assert fields(server) == {}


@pytest.mark.parametrize(
    ("command", "image", "repeated"),
    [
        ("serve a/b", "vllm/vllm-openai:latest", True),
        ("--model a/b", "vllm/vllm-openai:latest", False),
        ("vllm serve a/b", "vllm/vllm-openai:latest", True),
        ("vllm serve a/b", "rocm/vllm:latest", False),
    ],
)
def test_a_program_under_an_entry_point(command: str, image: str, repeated: bool) -> None:
    server = read_command(command, image=image, under_entry_point=True)

    assert server.engine == "vllm"
    assert server.model is not None and server.model.value == "a/b"
    assert ("entrypoint-repeated" in codes(server)) is repeated


def test_variables_that_count() -> None:
    env = {
        "VLLM_PP_LAYER_PARTITION": "20,12",
        "VLLM_CPU_KVCACHE_SPACE": "40",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
    }
    server = read_command("vllm serve a/b", env=env)

    assert fields(server) == {
        "VLLM_PP_LAYER_PARTITION": "20,12",
        "cpu_kvcache_space_gib": 40,
        "allow_long_max_model_len": "1",
    }
    assert server.settings[0].kind == "arg"
    assert server.invocation.gpu.visible == ("2", "3")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VLLM_MAX_MODEL_LEN", "warning"),
        ("MAX_MODEL_LEN", "note"),
        ("VLLM_GPU_MEMORY_UTILIZATION", "warning"),
        ("VLLM_MODEL", "warning"),
        ("VLLM_LOGGING_LEVEL", None),
        ("MODEL", None),
    ],
)
def test_variables_that_people_believe_in(name: str, expected: str | None) -> None:
    server = read_command("vllm serve a/b", env={name: "1"})

    levels = [f.level for f in server.findings if f.code == "ignored-variable"]
    assert levels == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("tag", "switch", "version"),
    [
        ("v0.8.5", "0", "0.8.5+v0"),
        ("v0.9.2", "1", "0.9.2+v1"),
        ("v0.12.0", "0", "0.12.0"),
        ("v0.6.6", "0", "0.6.6"),
        ("latest", "1", None),
    ],
)
def test_which_of_the_two_engines(tag: str, switch: str, version: str | None) -> None:
    server = read_command(
        "--model a/b", image=f"vllm/vllm-openai:{tag}", env={"VLLM_USE_V1": switch}
    )

    assert server.engine_version == version


def test_slots_of_adapters_stand_only_where_they_are_enabled() -> None:
    without = read_command("vllm serve a/b --max-loras 4")
    with_them = read_command("vllm serve a/b --enable-lora --max-loras 4")

    assert [(s.name, s.kind) for s in without.settings] == [("max_loras", "other")]
    kinds = {s.name: (s.value, s.kind) for s in with_them.settings}
    assert kinds["max_loras"] == (4, "arg")
    assert kinds["max_lora_rank"] == (16, "arg")


def test_only_runpod_s_worker_makes_flags_of_variables() -> None:
    env = {"MODEL_NAME": "a/b", "MAX_MODEL_LEN": "4096", "ENFORCE_EAGER": "true", "TOKENIZER": ""}
    server = read_command("", image="runpod/worker-v1-vllm:v2.7.0", env=env)

    assert server.model is not None and server.model.value == "a/b"
    assert fields(server) == {"max_model_len": 4096, "enforce_eager": True}
    assert codes(server) == ["vendor-release"]  # 2.7.0 is the worker's


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--cpu-offload-gb 10", False),
        ("--offload-group-size 8", True),
        ("--kv-offloading-size 64", False),
        ("--kv-offloading-size 64 --kv-offloading-backend lmcache", True),
        ("--limit-mm-per-prompt '{\"image\": 0}'", False),
        ("--hf-overrides '{}'", True),
        ("-pcp 2", True),
        ("-pcp 1", False),
        ("--disable-sliding-window", True),
        ("--port 8000", False),
        ("--tool-call-parser hermes", False),
    ],
)
def test_what_is_not_counted_is_told(flag: str, told: bool) -> None:
    assert ("not-modelled" in codes(read_command(f"vllm serve a/b {flag}"))) is told


@pytest.mark.parametrize(
    ("flags", "image", "args"),
    [
        ("--cpu-offload-gb 10", "latest", {"cpu_offload_gb": 10}),
        ("--kv-offloading-size 64", "latest", {"kv_offloading_size": 64}),
        ("--kv-offloading-size 64", "v0.10.2", {}),
        ("--kv-offloading-size 64 --kv-offloading-backend lmcache", "latest", {}),
        ("--swap-space 8", "v0.6.3", {"swap_space": 8}),
        ("--swap-space 8", "v0.18.1", {}),
        ("--swap-space 8", "latest", {}),
        ("--enable-lora", "latest", {"enable_lora": True, "max_loras": 1, "max_lora_rank": 16}),
        ("--no-enable-lora --max-loras 4", "latest", {"enable_lora": False}),
        ("--max-loras 4", "latest", {}),
        ("--enable-lora --fully-sharded-loras", "latest",
         {"enable_lora": True, "max_loras": 1, "max_lora_rank": 16, "fully_sharded_loras": True}),
        ("--language-model-only", "latest", {"language_model_only": True}),
        ("--limit-mm-per-prompt image=2,video=0", "v0.8.5",
         {"limit_mm_per_prompt": "image=2,video=0"}),
        ("--limit-mm-per-prompt '{\"image\": 2}'", "latest",
         {"limit_mm_per_prompt": '{"image": 2}'}),
        ("--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video 0", "latest",
         {"limit_mm_per_prompt": "image=0,video=0"}),
    ],
)  # fmt: skip
def test_what_bears_on_host_and_tower_is_an_argument(
    flags: str, image: str, args: dict[str, str | int | float | bool | None]
) -> None:
    """What the planner counts reaches it; what a release has not, or nothing makes, does not."""
    server = read_command(f"vllm serve a/b {flags}", image=f"vllm/vllm-openai:{image}")
    assert {s.name: s.value for s in server.settings if s.kind == "arg"} == args
    version = None if server.engine_version is None else server.engine_version
    check_arguments(Deployment(engine="vllm", engine_args=args), release(version))


def test_limits_that_are_none() -> None:
    server = read_command("vllm serve a/b --limit-mm-per-prompt many")
    assert codes(server) == ["bad-value"]
    assert value(server, "limit_mm_per_prompt") == "absent"


def test_weights_that_are_made_up() -> None:
    assert "dummy-weights" in codes(read_command("vllm serve a/b --load-format dummy"))


def test_the_platforms_beside() -> None:
    for image, engine in (
        ("quay.io/ascend/vllm-ascend:v0.11.0rc1", "vllm-ascend"),
        ("vllm/vllm-tpu:nightly", "vllm-tpu"),
        ("lmcache/vllm-openai:latest", "vllm"),
        ("rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "vllm"),
    ):
        assert read_command("vllm serve a/b", image=image).engine == engine


def test_kserve_s_server() -> None:
    server = read_command(
        "python -m huggingfaceserver --model_name=x --model_id=a/b --max-model-len=1024"
    )

    assert server.model is not None and server.model.value == "a/b"
    assert value(server, "max_model_len") == 1024
    assert codes(server) == []
