"""Which server a command starts, whatever stands in front of it, and what its image says."""

from __future__ import annotations

import pytest

from kvcalc.manifests.commands.images import image_of
from tests.manifests.commands.harness import codes, read_command

_SERVE = "vllm serve a/b"


@pytest.mark.parametrize(
    "front",
    [
        "",
        "exec",
        "nohup",
        "sudo",
        "sudo -E -u vllm",
        "time",
        "env -u HOME HF_TOKEN=x",
        "VLLM_USE_V1=1",
        "CUDA_VISIBLE_DEVICES=0 exec",
        "numactl --interleave=all",
        "numactl -N 0 -m 0",
        "nice -n 10",
        "timeout -k 5 3600",
        "uv run --with vllm",
        "uv run",
        "poetry run",
        "conda run -n vllm",
        "opentelemetry-instrument",
        "tini --",
        "mpirun -n 2 --allow-run-as-root",
        "torchrun --nproc_per_node 1",
        "/usr/bin/env",
    ],
)
def test_wrappers_are_looked_through(front: str) -> None:
    server = read_command(f"{front} {_SERVE} --max-model-len 5")

    assert server.engine == "vllm"
    assert server.model is not None and server.model.value == "a/b"
    assert [(s.name, s.value) for s in server.settings] == [("max_model_len", 5)]


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/opt/venv/bin/vllm serve a/b", "vllm"),
        ("python3 -O -m vllm.entrypoints.openai.api_server --model a/b", "vllm"),
        ("python3.12 -m vllm serve a/b", "vllm"),
        ("/app/llama-server -m x.gguf", "llama.cpp"),
        ("./llama.cpp/build/bin/server -m x.gguf", "llama.cpp"),
        ("mpirun -n 8 trtllm-llmapi-launch trtllm-serve a/b", "tensorrt-llm"),
        ("lmdeploy serve api_server a/b", "lmdeploy"),
        ("text-generation-launcher --model-id a/b", "tgi"),
        ("ollama serve", "llama.cpp"),
        ("vllm bench serve --model a/b", None),
        ("vllm chat", None),
        ("lmdeploy chat a/b", None),
        ("python3 -m sglang.bench_serving", None),
        ("nginx -g x", None),
        ("bash -c 'vllm serve a/b'", None),
        ("docker run ollama/ollama", None),
        ("sudo docker run vllm/vllm-openai", None),
        ("", None),
    ],
)
def test_programs(command: str, engine: str | None) -> None:
    server = read_command(command)

    assert server.engine == engine
    assert engine is not None or (server.model is None and server.settings == ())


@pytest.mark.parametrize(
    ("image", "engine", "version"),
    [
        ("vllm/vllm-openai:v0.6.3", "vllm", "0.6.3"),
        ("vllm/vllm-openai:v0.11.0-x86_64", "vllm", "0.11.0"),
        ("vllm/vllm-openai:v0.10.2rc1", "vllm", "0.10.2rc1"),
        ("docker.io/vllm/vllm-openai:nightly", "vllm", "nightly"),
        ("vllm/vllm-openai:v0.34.0rc1.dev12", "vllm", "0.34.0rc1.dev12"),
        ("lmsysorg/sglang:dev-cu13", "sglang", "dev"),
        ("vllm/vllm-openai:latest", "vllm", None),
        ("vllm/vllm-openai@sha256:0123", "vllm", None),
        ("registry.local:5000/vllm/vllm-openai", "vllm", None),
        ("nvcr.io/nvidia/vllm:25.09-py3", "vllm", None),
        ("lmsysorg/sglang:v0.5.4.post1", "sglang", "0.5.4.post1"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b6341", "llama.cpp", "b6341"),
        ("ghcr.io/ggml-org/llama.cpp:server", "llama.cpp", None),
        ("ghcr.io/ggerganov/llama.cpp:server-rocm", "llama.cpp", None),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc1", "tensorrt-llm", "1.2.0rc1"),
        ("ghcr.io/huggingface/text-generation-inference:3.3.4", "tgi", "3.3.4"),
        ("example.dev/optimum-tpu/tgi-tpu:latest", "tgi", None),
        ("openmmlab/lmdeploy:v0.9.1-cu12", "lmdeploy", "0.9.1"),
        ("ollama/ollama:0.12.3", "llama.cpp", None),
        ("nginx:1.27.0", None, None),
    ],
)
def test_images(image: str, engine: str | None, version: str | None) -> None:
    server = read_command("--model a/b" if engine == "vllm" else "", image=image)

    assert (server.engine, server.engine_version) == (engine, version)


def test_a_program_wins_over_the_image() -> None:
    server = read_command("vllm serve a/b", image="lmsysorg/sglang:v0.5.4")

    assert (server.engine, server.engine_version) == ("vllm", None)


def test_the_carrier_may_name_the_engine() -> None:
    assert read_command("--model a/b", engine="vllm").engine == "vllm"
    assert read_command("-m x.gguf", engine="llama.cpp").engine == "llama.cpp"
    assert read_command("", engine="tensorrt-llm").engine == "tensorrt-llm"


def test_another_program_in_a_known_image_is_no_server() -> None:
    assert read_command("sleep infinity", image="vllm/vllm-openai:latest").engine is None


def test_the_script_of_llama_cpp_s_full_image() -> None:
    server = read_command("--server -m x.gguf -c 1", image="ghcr.io/ggml-org/llama.cpp:full-cuda")

    assert codes(server) == []
    assert server.model is not None and server.model.value == "x.gguf"


def test_what_images_start_by_themselves() -> None:
    assert image_of("vllm/vllm-openai:v0.12.0").starts == ("vllm", "serve")
    assert image_of("vllm/vllm-openai:v0.9.2").starts[:2] == ("python3", "-m")
    assert image_of("lmsysorg/sglang:latest").starts == ()
    assert image_of("ghcr.io/ggml-org/llama.cpp:full").starts == ()
    assert image_of(None).program is None


@pytest.mark.parametrize(
    ("text", "visible"),
    [("0,1", ("0", "1")), ("-1", ()), ("", ()), ("0,-1,2", ("0",)), ("GPU-1a2b", ("GPU-1a2b",))],
)
def test_cards_that_are_shown(text: str, visible: tuple[str, ...]) -> None:
    assert read_command(f"CUDA_VISIBLE_DEVICES={text} {_SERVE}").invocation.gpu.visible == visible
    env = {"HIP_VISIBLE_DEVICES": text}
    assert read_command(_SERVE, env=env).invocation.gpu.visible == visible


def test_devices_by_their_numbers() -> None:
    server = read_command(f"{_SERVE} --device-ids 1,3")

    assert server.invocation.gpu.visible == ("1", "3")
