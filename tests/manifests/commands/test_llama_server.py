"""llama-server's command line and variables, rule by rule; its forks, and ollama over it."""

from __future__ import annotations

import pytest

from tests.manifests.commands.harness import codes, fields, level, read_command, value


def test_every_sizing_flag() -> None:
    server = read_command(
        "llama-server -m /models/x.gguf -c 32768 -np 4 --kv-unified --kv-unified-per-slot 8192"
        " -ctk q8_0 -ctv q4_0 -fa on -ngl 99 -b 4096 -ub 1024 --swa-full -nkvo -cmoe -ncmoe 4"
        " -ts 3,1 -sm layer -mg 1 -dev CUDA0,CUDA1 --fit off -fitt 512 -fitc 2048 --cache-ram -1"
        " --ctx-checkpoints 8 -ot exps=CPU -ot attn=CUDA0"
    )

    assert server.engine == "llama.cpp"
    assert server.model is not None and server.model.value == "/models/x.gguf"
    assert server.findings == ()
    assert {setting.kind for setting in server.settings} == {"arg"}
    assert fields(server) == {
        "ctx_size": 32768,
        "parallel": 4,
        "kv_unified": True,
        "kv_unified_per_slot": 8192,
        "cache_type_k": "q8_0",
        "cache_type_v": "q4_0",
        "flash_attn": "on",
        "n_gpu_layers": 99,
        "batch_size": 4096,
        "ubatch_size": 1024,
        "swa_full": True,
        "no_kv_offload": True,
        "cpu_moe": True,
        "n_cpu_moe": 4,
        "tensor_split": "3,1",
        "split_mode": "layer",
        "main_gpu": 1,
        "device": "CUDA0,CUDA1",
        "fit": "off",
        "fit_target": "512",
        "fit_ctx": 2048,
        "cache_ram": -1,
        "ctx_checkpoints": 8,
        "override_tensor": "exps=CPU,attn=CUDA0",
    }


@pytest.mark.parametrize(
    ("flag", "name", "read"),
    [
        ("--ctx-size 1", "ctx_size", 1),
        ("--ctx_size 1", "ctx_size", 1),
        ("-c 0", "ctx_size", 0),
        ("-np -1", "parallel", -1),
        ("-ngl auto", "n_gpu_layers", "auto"),
        ("--gpu-layers all", "n_gpu_layers", "all"),
        ("--n-gpu-layers -1", "n_gpu_layers", -1),
        ("--no-kv-unified", "no_kv_unified", True),
        ("-md d.gguf", "draft_model", "d.gguf"),
        ("--spec-type draft-mtp", "speculative_method", "mtp"),
        ("--spec-type ngram-simple", "speculative_method", "ngram"),
        ("--spec-draft-type-k q8_0", "cache_type_k_draft", "q8_0"),
        ("--flash-attn auto", "flash_attn", "auto"),
        ("-fa 1", "flash_attn", "on"),
    ],
)
def test_spellings(flag: str, name: str, read: object) -> None:
    server = read_command(f"llama-server -m x.gguf {flag}")

    assert value(server, name) == read
    assert codes(server) == []


@pytest.mark.parametrize(
    ("flag", "code", "cure"),
    [
        ("-c 32k", "bad-value", "write 32000"),
        ("-c 32K", "bad-value", "write 32768"),
        ("--ctx-size=4096", "equals-form", "two words"),
        ("-fa", "bad-value", "-fa on"),
        ("-fa --ctx-size 4096", "bad-value", "-fa on"),
        ("--ctx 4096", "unknown-flag", "--ctx-size"),
        ("word", "stray-word", "flag"),
    ],
)
def test_errors(flag: str, code: str, cure: str) -> None:
    found = next(
        f for f in read_command(f"llama-server -m x.gguf {flag}").findings if f.code == code
    )

    assert found.level == ("warning" if code == "unknown-flag" else "error")
    assert cure in found.cure


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("server-cuda-b6303", None),
        ("server-cuda-b6341", "error"),
        ("server-cuda-b6325", "warning"),
        ("server-cuda", "error"),
    ],
)
def test_bare_flash_attention_by_build(tag: str, expected: str | None) -> None:
    server = read_command(
        "-m x.gguf --flash-attn --ctx-size 16000", image=f"ghcr.io/ggml-org/llama.cpp:{tag}"
    )

    assert value(server, "flash_attn") == "on"
    assert value(server, "ctx_size") == 16000
    assert [finding.level for finding in server.findings] == (
        [] if expected is None else [expected]
    )


def test_the_next_word_is_a_value_whatever_it_looks_like() -> None:
    server = read_command("llama-server --chat-template -np -c 4096")

    assert "parallel" not in fields(server)
    assert value(server, "ctx_size") == 4096


def test_models_of_a_hub() -> None:
    server = read_command("llama-server -hf bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M")

    assert server.model is not None
    assert server.model.value == "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"


def test_variables_below_the_command() -> None:
    env = {
        "LLAMA_ARG_MODEL": "/m/x.gguf",
        "LLAMA_ARG_CTX_SIZE": "3072",
        "LLAMA_ARG_N_PARALLEL": "1",
        "LLAMA_ARG_BATCH": "256",
        "LLAMA_ARG_UBATCH": "128",
        "LLAMA_ARG_N_GPU_LAYERS": "all",
        "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
        "LLAMA_ARG_FLASH_ATTN": "on",
        "LLAMA_ARG_KV_UNIFIED": "true",
        "LLAMA_ARG_PORT": "8080",
        "OTHER": "1",
    }
    server = read_command("-c 4096", image="ghcr.io/ggml-org/llama.cpp:server-cuda", env=env)

    assert server.model is not None and server.model.value == "/m/x.gguf"
    assert codes(server) == []
    assert fields(server) == {
        "parallel": 1,
        "batch_size": 256,
        "ubatch_size": 128,
        "n_gpu_layers": "all",
        "cache_type_k": "q8_0",
        "flash_attn": "on",
        "kv_unified": True,
        "ctx_size": 4096,
    }


@pytest.mark.parametrize("name", ["UBATCH_SIZE", "BATCH_SIZE", "CTX", "PARALLEL"])
def test_variables_that_people_believe_in(name: str) -> None:
    server = read_command("llama-server -m x.gguf", env={f"LLAMA_ARG_{name}": "1"})

    assert level(server, "ignored-variable") == "warning"
    assert fields(server) == {}


def test_a_no_form_of_a_variable() -> None:
    server = read_command("llama-server", env={"LLAMA_ARG_NO_KV_OFFLOAD": "1"})

    assert value(server, "kv_offload") is False


@pytest.mark.parametrize(
    ("flag", "now"),
    [
        ("--draft-max 16", "--spec-draft-n-max"),
        ("--mlock", "--load-mode mlock"),
        ("--no-mmap", "--load-mode none"),
    ],
)
def test_renamed_flags(flag: str, now: str) -> None:
    (found,) = read_command(f"llama-server -m x.gguf {flag}").findings

    assert (found.code, found.level, now in found.cure) == ("renamed-flag", "warning", True)


@pytest.mark.parametrize(
    "command",
    [
        "ik_llama.cpp/build/bin/llama-server -m x.gguf -amb 512 -c 4096",
        "/opt/ik_llama/llama-server -c 4096",
    ],
)
def test_a_fork_is_told_apart(command: str) -> None:
    server = read_command(command)

    assert "fork" in codes(server)
    assert value(server, "ctx_size") == 4096
    assert not [finding for finding in server.findings if finding.level != "note"]


def test_koboldcpp_is_refused_by_name() -> None:
    server = read_command("python koboldcpp.py --model x.gguf --contextsize 8192")

    assert server.engine is None
    assert "koboldcpp" in server.findings[0].message


def test_llama_cpp_python() -> None:
    server = read_command(
        "python3 -m llama_cpp.server --model x.gguf --n_gpu_layers -1 --type_k 8 --flash_attn true",
        env={"N_CTX": "8192"},
    )

    assert server.model is not None and server.model.value == "x.gguf"
    assert fields(server) == {
        "parallel": 1,
        "ctx_size": 8192,
        "n_gpu_layers": -1,
        "cache_type_k": "q8_0",
        "flash_attn": "on",
    }


def test_ollama_s_variables() -> None:
    env = {
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_NUM_PARALLEL": "4",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_FLASH_ATTENTION": "1",
        "OLLAMA_KEEP_ALIVE": "24h",
        "LLAMA_ARG_CACHE_RAM": "512",
        "LLAMA_ARG_CTX_SIZE": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    server = read_command("", image="ollama/ollama:latest", env=env)

    assert server.engine == "llama.cpp"
    assert server.model is None
    assert codes(server) == []
    assert server.invocation.gpu.visible == ()
    assert fields(server) == {
        "ollama_context_length": 8192,
        "ollama_num_parallel": 4,
        "ollama_kv_cache_type": "q8_0",
        "ollama_flash_attention": True,
        "cache_ram": 512,
    }


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("OLLAMA_NUM_CTX", "OLLAMA_CONTEXT_LENGTH"),
        ("OLLAMA_GPU_LAYERS", "num_gpu"),
        ("OLLAMA_NUM_THREADS", "num_thread"),
    ],
)
def test_variables_that_ollama_does_not_read(name: str, instead: str) -> None:
    server = read_command("ollama serve", env={name: "8"})

    assert level(server, "ignored-variable") == "warning"
    assert instead in server.findings[0].cure


def test_ollama_is_told_from_a_llama_server_without_settings() -> None:
    assert fields(read_command("ollama serve")) == {"ollama_num_parallel": 1}


def test_ollama_s_models() -> None:
    for command in ("ollama run llama3.1:8b", "ollama pull llama3.1:8b"):
        server = read_command(command)
        assert server.model is not None and server.model.value == "llama3.1:8b"


def test_a_modelfile() -> None:
    text = "FROM ./x.gguf\nPARAMETER num_ctx 16384\nPARAMETER num_gpu 20\nparameter num_batch 256\n"
    server = read_command("ollama create mine -f Modelfile", files={"Modelfile": text})

    assert server.model is not None
    assert (server.model.value, server.model.line, server.model.file) == (
        "./x.gguf",
        10,
        "Modelfile",
    )
    assert value(server, "num_ctx") == 16384
    assert value(server, "n_gpu_layers") == 20
    assert value(server, "batch_size") == 256
