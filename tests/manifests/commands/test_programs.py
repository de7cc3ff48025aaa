"""Which server a command starts, whatever stands in front of it, and what its image says."""

from __future__ import annotations

import re

import pytest

from kvcalc.manifests.commands import images
from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.gpus import other_device
from tests.manifests.commands.harness import codes, read_command, value

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
        ("vllm/vllm-openai:v0.10.1.1", "vllm", "0.10.1.1"),
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


OWN = [
    # vendors that count releases of their own, with the engine's where their documents say it
    ("opea/vllm-gaudi:1.22.0", "vllm", None),
    ("vault.habana.ai/gaudi-docker/vllm-fork:v0.9.0.1-Gaudi-1.22.0", "vllm", "0.9.0.1"),
    ("nvcr.io/nvidia/vllm:25.10-py3", "vllm", "0.10.2"),
    ("nvcr.io/nvidia/vllm:26.05-py3-igpu", "vllm", "0.20.1"),
    ("nvcr.io/nvidia/vllm:25.09-py3", "vllm", None),
    ("nvcr.io/nvidia/sglang:25.10-py3", "sglang", None),
    ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.1", "vllm", "0.12.0"),
    ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.2.0", "sglang", "0.5.11"),
    ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.7.0", "tensorrt-llm", "1.2.0rc3"),
    ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.5.0", "vllm", None),
    ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.2", "vllm", "0.10.1.1"),
    ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.5-1766067105", "vllm", "0.11.2"),
    ("registry.redhat.io/rhaiis/vllm-rocm-rhel9:3.0.0", "vllm", "0.8.4"),
    ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.9.0", "vllm", None),
    ("quay.io/modh/vllm:rhoai-2.25-cuda", "vllm", "0.10.1.1"),
    ("763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.33.0-lmi15.0.0-cu128",
     "vllm", "0.8.4"),
    ("763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.11.2-gpu-py312-cu129-ubuntu22.04",
     "vllm", "0.11.2"),
    ("public.ecr.aws/deep-learning-containers/vllm:0.11-gpu-py312", "vllm", "0.11"),
    ("public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.21.0.1.0.0-neuronx-py313-sdk2.31.0",
     "vllm", "0.21.0"),
    ("rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "vllm", "0.9.1"),
    ("rocm/vllm:rocm6.3.1_instinct_vllm0.8.3_20250415", "vllm", "0.8.3"),
    ("rocm/vllm:rocm7.0.0_20251001", "vllm", None),
    ("vllm/vllm-openai-rocm:v0.14.0", "vllm", "0.14.0"),
    ("intelanalytics/ipex-llm-serving-xpu:2.2.0-b15", "vllm", None),
    ("intel/llm-scaler-vllm:1.1", "vllm", None),
    ("ghcr.io/llm-d/llm-d-cuda:v0.3.0", "vllm", None),
    ("ghcr.io/llm-d/llm-d-inference-scheduler:v0.3.0", None, None),
    ("registry.example/team/vllm:2.3.1", "vllm", None),
    ("registry.example/team/vllm:0.9.2", "vllm", "0.9.2"),
    ("quay.io/ascend/vllm-ascend:v0.9.1rc1", "vllm-ascend", None),
    ("kserve/huggingfaceserver:v0.15.2-gpu", "vllm", None),
    ("runpod/worker-v1-vllm:v2.7.0", "vllm", None),
]  # fmt: skip


@pytest.mark.parametrize(("image", "engine", "version"), OWN)
def test_images_of_vendors(image: str, engine: str | None, version: str | None) -> None:
    """A vendor's release is none of the engine's: it is looked up, or said to be assumed."""
    server = read_command("--model a/b" if engine in ("vllm", "vllm-ascend") else "", image=image)

    assert (server.engine, server.engine_version) == (engine, version)
    assumed = engine in ("vllm", "sglang", "tensorrt-llm") and version is None
    assert ("vendor-release" in [f.code for f in server.findings]) == assumed


def test_every_release_of_a_vendor_is_one_that_kvcalc_counts() -> None:
    """A slip in the table would be told as a slip of the user's."""
    for row in images.table("releases.tsv"):
        assert re.fullmatch(r"\d+\.\d+\.\d+(\.\d+|\.?(post|rc)\d+)?", row[2]), row
        assert row[3], row


@pytest.mark.parametrize(
    "image",
    ["opea/vllm-gaudi:1.22.0", "rocm/vllm:rocm6.4.1_vllm_0.9.1", "intel/llm-scaler-vllm:1.1",
     "nvcr.io/nvidia/vllm:25.09-py3", "registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.9.0"],
)  # fmt: skip
def test_a_fork_is_not_judged_by_upstream_s_flags(image: str) -> None:
    """Nor is a release that nobody knows; what no release takes for a value is still an error."""
    words = "--model a/b --max-seq-len-to-capture 2048 --num-lookahead-slots 1 --use-padding x"
    server = read_command(words, image=image)

    assert {f.level for f in server.findings} == {"note"}, server.findings
    upstream = read_command(words, image="vllm/vllm-openai:v0.33.0")
    assert {"unknown-flag", "removed-flag"} & {*codes(upstream)} <= {*codes(server)}
    assert "note" not in {f.level for f in upstream.findings}
    bad = read_command("--model a/b --max-model-len many", image=image)
    assert [f.code for f in bad.findings if f.level == "error"] == ["bad-value"]


def test_variables_that_images_make_flags_of() -> None:
    """RunPod's worker takes all, LMI those with OPTION_, AWS's vLLM those with SM_VLLM_."""
    given = {"MODEL": "a/b", "MAX_MODEL_LEN": "8192", "TENSOR_PARALLEL_SIZE": "2"}
    for image, prefix in (
        ("runpod/worker-v1-vllm:v2.7.0stable", ""),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.11.2-gpu", "SM_VLLM_"),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.34.0-lmi16.0.0-cu128",
         "OPTION_"),
    ):  # fmt: skip
        server = read_command("", image=image, env={prefix + k: v for k, v in given.items()})
        assert server.model is not None and server.model.value == "a/b"
        assert value(server, "max_model_len") == 8192
        assert value(server, "tensor_parallel_size") == 2
        other = read_command("", image=image, env={f"NO_{k}": v for k, v in given.items()})
        assert value(other, "max_model_len") == "absent"
    lmi = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.33.0-lmi15.0.0-cu128"
    server = read_command("", image=lmi, env={"OPTION_TENSOR_PARALLEL_DEGREE": "4"})
    assert value(server, "tensor_parallel_size") == 4


def test_an_image_for_other_devices() -> None:
    """What counts devices that are no GPUs is no request for GPUs."""
    gaudi = read_command("--model a/b", image="opea/vllm-gaudi:1.22.0").invocation.gpu
    assert other_device(gaudi) == "habana.ai/gaudi"


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
