"""What to write instead fits the setting and the engine, and tells nothing that is secret."""

from __future__ import annotations

import pytest

from kvcalc.manifests import read_source
from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Finding
from tests.manifests.commands.harness import read_command, value

VLLM, SGLANG = "vllm serve a/b", "python3 -m sglang.launch_server --model-path a/b"
HIDDEN = "S3CR3T"


def only(command: str) -> Finding:
    (found,) = read_command(command).findings
    return found


@pytest.mark.parametrize(
    ("command", "code", "cure"),
    [
        (f"{VLLM} --tp 2", "unknown-flag", "write --tensor-parallel-size"),
        (f"{VLLM} --pp 2", "unknown-flag", "write --pipeline-parallel-size"),
        (f"{VLLM} -tp2", "unknown-flag", "write -tp 2"),
        (f"{VLLM} --tensor-parallel-size two", "bad-value", "such as 2"),
        (f"{VLLM} --max-model-len long", "bad-value", "such as 8192"),
        (f"{VLLM} --block-size big", "bad-value", "such as 16"),
        (f"{VLLM} --max-num-seqs many", "bad-value", "such as 64"),
        (f"{VLLM} --kv-cache-memory-bytes all", "bad-value", "such as 8589934592"),
        (f"{VLLM} --gpu-memory-utilization most", "bad-value", "such as 0.9"),
        (f"{VLLM} --gpu-memory-utilization 90", "bad-value", "write 0.9"),
        (f"{VLLM} --gpu-memory-utilization 95.5", "bad-value", "write 0.955"),
        (f"{VLLM} --gpu-memory-utilization 900", "bad-value", "above 0 and up to 1"),
        (f"{VLLM} --tensor-parallel-size '$TP'", "bad-value", "double quotes"),
        (f"{SGLANG} --mem-fraction-static 85", "bad-value", "write 0.85"),
        (f"{SGLANG} --mem-fraction-static 1.2", "bad-value", "write a number"),
        ("llama-server -m a.gguf -np few", "bad-value", "such as 4"),
    ],
)
def test_cures_fit_the_setting(command: str, code: str, cure: str) -> None:
    """Each is one that may be written there."""
    found = only(command)
    assert found.code == code
    assert cure in found.cure


@pytest.mark.parametrize(
    ("command", "word", "cure"),
    [
        (f"{VLLM} --kv-cache-dtype %s", "int8", "fp8"),
        (f"{VLLM} --kv-cache-dtype %s", "bf16", "write bfloat16"),
        (f"{VLLM} --kv-cache-dtype %s", "fp8_e4m4", "write fp8_e4m3"),
        (f"{VLLM} --dtype %s", "bf16", "write bfloat16"),
        (f"{SGLANG} --kv-cache-dtype %s", "fp8", "write fp8_e4m3 or fp8_e5m2"),
        (f"{SGLANG} --kv-cache-dtype %s", "int8", "fp8_e4m3"),
        ("llama-server -m a.gguf -ctk %s", "q4_k", "write q4_0"),
        ("llama-server -m a.gguf -ctk %s", "fp8", "write q8_0"),
        ("llama-server -m a.gguf -ctv %s", "nvfp4", "write q4_0"),
    ],
)
def test_cache_types_are_those_of_the_engine(command: str, word: str, cure: str) -> None:
    """What it does not take is refused by name, with what it takes."""
    found = only(command % word)
    assert (found.code, found.level) == ("bad-value", "error")
    assert repr(word) in found.message
    assert cure in found.cure


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (f"{VLLM} --kv-cache-dtype %s", "turboquant_4bit_nc"),
        (f"{VLLM} --kv-cache-dtype %s", "octave_k8v4"),
        (f"{VLLM} --dtype %s", "half"),
        (f"{SGLANG} --kv-cache-dtype %s", "bf16"),
        (f"{SGLANG} --kv-cache-dtype %s", "fp4_e2m1"),
        ("llama-server -m a.gguf -ctk %s", "iq4_nl"),
    ],
)
def test_cache_types_of_the_engine_are_right(command: str, word: str) -> None:
    """The newest, those of other cards, those of older releases."""
    assert read_command(command % word).findings == ()


def test_forks_have_cache_types_of_their_own() -> None:
    """ik_llama.cpp's are not refused."""
    server = read_command("/ik_llama.cpp/build/bin/llama-server -m a.gguf -ctk q8_KV")
    assert value(server, "cache_type_k") == "q8_KV"
    assert "bad-value" not in {found.code for found in server.findings}


def test_a_flag_and_a_variable_in_one_word() -> None:
    """The flag is known, and tells nothing of what the variable holds."""
    text = f'TOKEN={HIDDEN}\nvllm serve a/b "--max-model-len $TOKEN"\n'
    (server,) = [read(each) for each in read_source("x.sh", text)]
    (found,) = server.findings
    assert found.code == "blank-in-flag"
    assert found.cure.endswith("write --max-model-len=VALUE")
    assert HIDDEN not in f"{found}"


def test_a_word_of_a_template_that_stands_alone() -> None:
    """It is told as the template has it."""
    text = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - name: v\n"
        "      image: vllm/vllm-openai:v0.20.2\n      args:\n        - --model=a/b\n"
        '        {{- range .Values.extra }}\n        - "{{ . }}"\n        {{- end }}\n'
    )
    (server,) = [read(each) for each in read_source("x.yaml", text)]
    (found,) = server.findings
    assert found.message.startswith("a word that stands alone hangs on {{ . }}")


SECRETS = {
    "a user of an address": f"{VLLM[:10]} https://u:{HIDDEN}@host/model --max-model-len x",
    "a signed address": f"llama-server -mu https://host/m.gguf?sig={HIDDEN} -c x",
    "a draft's address": f"llama-server -m a.gguf -md https://u:{HIDDEN}@host/m.gguf -c x",
    "broken JSON": f'{VLLM} --speculative-config \'{{"method": "{HIDDEN}"\'',
    "JSON that is no mapping": f"{VLLM} --speculative-config '[\"{HIDDEN}\"]'",
    "a number in JSON": f'{VLLM} --speculative-config \'{{"num_speculative_tokens": "{HIDDEN}"}}\'',
    "a cache type of ollama's": f"OLLAMA_KV_CACHE_TYPE={HIDDEN} ollama serve",
    "a length of ollama's": f"OLLAMA_CONTEXT_LENGTH={HIDDEN} ollama serve",
    "a number of llama.cpp's": f"LLAMA_ARG_CTX_SIZE={HIDDEN} llama-server -m a.gguf",
    "a cache type of llama.cpp's": f"LLAMA_ARG_CACHE_TYPE_K={HIDDEN} llama-server -m a.gguf",
    "a number of TGI's": f"MAX_TOTAL_TOKENS={HIDDEN} text-generation-launcher --model-id a",
    "a variable's cache type": f"T={HIDDEN}\n{VLLM} --kv-cache-dtype $T --dtype $T",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_what_may_be_secret_is_in_no_message_and_no_setting(kind: str) -> None:
    """The fault is told nevertheless."""
    (server,) = [read(each) for each in read_source("x.sh", SECRETS[kind] + "\n")]
    assert {found.code for found in server.findings} & {"bad-value"}
    for found in server.findings:
        assert HIDDEN not in f"{found.message} {found.cure}", found
    for setting in (server.model, *server.settings):
        assert setting is None or HIDDEN not in str(setting.shown), setting


@pytest.mark.parametrize("engine", ["llama.cpp", "sglang"])
def test_stretched_positions_are_noted(engine: str) -> None:
    """A model that is told to go beyond its training is not told that it does."""
    commands = {
        "llama.cpp": "llama-server -m a.gguf -c 131072 --rope-scaling yarn --rope-scale 4",
        "sglang": f"{SGLANG} --json-model-override-args "
        '\'{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}\'',
    }
    server = read_command(commands[engine])
    noted = {"llama.cpp": "rope_scaling", "sglang": "hf_overrides"}[engine]
    assert value(server, noted) != "absent"
    plain = {"llama.cpp": "llama-server -m a.gguf -c 4096 --rope-scale 1", "sglang": SGLANG}
    assert value(read_command(plain[engine]), noted) == "absent"


def test_lmcaches_images_count_their_own_releases() -> None:
    """The tag is LMCache's; where it names vLLM's, that is taken."""
    images = {
        "lmcache/vllm-openai:v0.3.9": None,
        "lmcache/vllm-openai:2025-05-01-vllm0.8.5": "0.8.5",
        "vllm/vllm-openai:v0.11.0": "0.11.0",
    }
    for image, version in images.items():
        assert read_command("--model a/b", image=image).engine_version == version


@pytest.mark.parametrize(
    ("version", "flag", "level"),
    [
        ("0.5.2", "--enable-ep-moe", None),
        ("0.5.4", "--enable-ep-moe", "warning"),  # between the releases that were looked at
        ("0.5.9", "--enable-ep-moe", "error"),
        ("0.5.10", "--disaggregation-decode-tp 2", "warning"),
        ("0.5.12", "--disaggregation-decode-tp 2", "error"),
        ("0.5.13", "--hybrid-kvcache-ratio 0.5", "warning"),
        ("0.5.18", "--hybrid-kvcache-ratio 0.5", "error"),
    ],
)
def test_sglangs_releases(version: str, flag: str, level: str | None) -> None:
    """What a release has no more is an error from the first that was seen without it."""
    server = read_command(f"{SGLANG} {flag}", image=f"lmsysorg/sglang:v{version}")
    levels = [f.level for f in server.findings if f.code in ("removed-flag", "renamed-flag")]
    assert levels == ([] if level is None else [level])
