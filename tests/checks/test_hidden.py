"""No text of a variable, and nothing that opens an address, in any format."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc.answers.assertions import Check
from kvcalc.checks.hidden import hide
from kvcalc.core.credentials import without_credentials
from kvcalc.manifests.found import Invocation, Server, Setting
from tests.cli.harness import call, clean

SECRETS = ("Hunter2Pass", "  hunter-2_PASS  ", "Ünïcode\u200bGeheim", "x" * 30 + "LongSecretTail")
"""Texts that kvcalc may fold, strip, escape or cut before it tells them."""

LLAMA = "meta-llama/Llama-3.1-8B"
FORMATS = ("table", "json", "csv", "markdown", "github", "junit", "gitlab")

COMPOSE = """\
services:
  v:
    image: vllm/vllm-openai:v0.20.2
    command: --model {model} --max-model-len 8192 {flag}
"""
FLAGS = (
    *("--kv-cache-dtype", "--dtype", "--attention-backend", "--quantization", "--load-format"),
    *("--tensor-parallel-size", "--max-num-seqs", "--gpu-memory-utilization", "--no-such-flag"),
    *("--mamba-cache-dtype", "--speculative-config", "--hf-overrides", "--block-size", "--seed"),
    *("--kv-cache-memory-bytes", "--distributed-executor-backend", "--served-model-name"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own."""
    clean(monkeypatch, tmp_path)


def shown_forms(secret: str) -> set[str]:
    bare = secret.strip()
    return {bare.lower(), bare.lower().replace("_", "-"), bare.lower()[:24]}


def assert_hidden(secret: str, *texts: str) -> None:
    for text in texts:
        for form in shown_forms(secret):
            assert form not in text.lower(), text


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("flag", FLAGS)
def test_compose(flag: str, secret: str) -> None:
    """Whatever flag takes a variable of the .env, its value is in no output."""
    Path("docker-compose.yml").write_text(
        COMPOSE.format(model="meta-llama/Llama-3.1-8B", flag=f"{flag} ${{KEPT}}"), encoding="utf-8"
    )
    Path(".env").write_text(f"KEPT='{secret}'\n", encoding="utf-8")
    for form in FORMATS:
        outcome = call("check", "docker-compose.yml", "--gpu", "l40s", "-f", form, "--show")
        assert outcome.code in (0, 1, 2)
        assert_hidden(secret, outcome.out, outcome.err)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "start",
    [
        "vllm serve $KEPT --max-model-len 8192",
        "vllm serve meta-llama/Llama-3.1-8B --dtype $KEPT --kv-cache-dtype $KEPT",
        f"python -m sglang.launch_server --model-path {LLAMA} --kv-cache-dtype $KEPT --dtype $KEPT",
        "llama-server -m llama-3.1-8b -ctk $KEPT -ctv $KEPT -c 4096",
        "lmdeploy serve api_server meta-llama/Llama-3.1-8B --dtype $KEPT --backend $KEPT",
        "trtllm-serve meta-llama/Llama-3.1-8B --kv_cache_dtype $KEPT",
        "CUDA_VISIBLE_DEVICES=$KEPT vllm serve meta-llama/Llama-3.1-8B -tp 2",
        "docker run --gpus all vllm/vllm-openai:$KEPT --model meta-llama/Llama-3.1-8B",
    ],
)
def test_scripts(start: str, form: str) -> None:
    """Nor is that of a script's variable, whichever engine it starts."""
    Path("run.sh").write_text(f"KEPT=Hunter2Pass\n{start}\n", encoding="utf-8")
    outcome = call("check", "run.sh", "--gpu", "l40s", "-f", form, "--show")

    assert_hidden("Hunter2Pass", outcome.out, outcome.err)


def test_pod() -> None:
    """Nor that of a container's."""
    Path("pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: v\n"
        "    image: vllm/vllm-openai:v0.20.2\n    env: [{name: DT, value: Hunter2Pass}]\n"
        '    args: [--model, meta-llama/Llama-3.1-8B, "--dtype=$(DT)"]\n',
        encoding="utf-8",
    )
    outcome = call("check", "pod.yaml", "--gpu", "l40s")

    assert_hidden("Hunter2Pass", outcome.out, outcome.err)
    assert "$DT" in outcome.out
    assert "(pod.yaml:9)" in outcome.out


@pytest.mark.parametrize("form", FORMATS)
def test_addresses(form: str) -> None:
    """A user, a password and a signed query of an address are in no output, typed or written."""
    address = "https://me:Hunter2Pass@host/model?sig=Hunter2Pass"
    Path("run.sh").write_text(f"vllm serve '{address}' --tp 2\n", encoding="utf-8")
    for words in (
        ["run.sh", "--model", f"x={address}"],
        [address],
        ["--", "vllm", "serve", address],
        ["run.sh", "--baseline", address],
    ):
        outcome = call("check", "-f", form, "--show", "--gpu", "l40s", *words)
        assert outcome.code == 2
        assert_hidden("Hunter2Pass", outcome.out, outcome.err)


def test_known_words_stay() -> None:
    """A word that kvcalc knows is no secret: what is told with it stays readable."""
    Path("run.sh").write_text(
        "KEPT=fp8\nvllm serve meta-llama/Llama-3.1-8B --kv-cache-dtype $KEPT --max-model-len 8192"
        "\n",
        encoding="utf-8",
    )
    out = call("check", "run.sh", "--gpu", "a100-80gb").out

    assert "does not compute in fp8" in out


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", ["{}", "'{}' is none", "unknown dtype {!r}", "at {:.60} it is"])
def test_forms(secret: str, form: str) -> None:
    """A message is told without a text in whatever form it holds it."""
    setting = Setting("dtype", secret, "field", "--dtype", 3, variables=("KEPT",))
    made = Server(Invocation("a", "shell", "", 1), "vllm", None, None, (setting,), ())
    for text in (secret, secret.lower(), secret.upper(), secret.strip().replace("-", "_")):
        message = form.format(text)
        told = hide(made)(
            Check(name="a", assertion="x", level="error", status="fail", message=message)
        )
        assert "$KEPT" in told.message
        assert_hidden(secret, told.message)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://a:b@h/x", "https://***@h/x"),
        ("see s3://k:v@bucket/p?X-Sig=1&y=2, please", "see s3://***@bucket/p?*** please"),
        ("https://h/x", "https://h/x"),
        ("a@b c://", "a@b c://"),
        ("git+ssh://t0ken@h/x", "git+ssh://***@h/x"),
    ],
)
def test_without_credentials(text: str, shown: str) -> None:
    """What is left is the place."""
    assert without_credentials(text) == shown
