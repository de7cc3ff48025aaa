"""kvcalc check and kvcalc diff as they are typed: what is read, what comes out, the exit code."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.harness import call, is_fault, validate

COMMAND = ["--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", "8192"]
TIGHT = ["--", "vllm", "serve", "meta-llama/Llama-3.1-70B", "--max-model-len", "32768"]
TIGHT += ["--tensor-parallel-size", "2"]
DEPLOY = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: llama
spec:
  replicas: 2
  template:
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.10.2
          args:
            - --model=meta-llama/Llama-3.1-70B-Instruct
            - --tensor-parallel-size=2
            - --max-model-len=32768
            - --api-key=$(API_KEY)
            - --served-model-name=sk-served-0123
          env:
            - name: API_KEY
              value: sk-secret-4711
            - name: HF_TOKEN
              value: hf_secret_0815
          resources:
            limits:
              nvidia.com/gpu: 2
          volumeMounts: [{name: shm, mountPath: /dev/shm}]
      volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""
CURED = DEPLOY.replace("tensor-parallel-size=2", "tensor-parallel-size=4").replace(
    "nvidia.com/gpu: 2", "nvidia.com/gpu: 4"
)
WARNED = CURED.replace("nvidia.com/gpu: 4", "nvidia.com/gpu: 8")
UNKNOWN = CURED.replace("meta-llama/Llama-3.1-70B-Instruct", "org/nothing-like-it")
ALL_FORMATS = ("table", "json", "csv", "markdown", "github", "junit", "gitlab")


def write(**files: str) -> None:
    for name, text in files.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")


def test_command() -> None:
    """Everything behind `--` is read as a serve command."""
    outcome = call("check", "--gpu", "h100-80gb", *COMMAND)

    assert outcome.code == 0
    assert (
        outcome.out == "PASS     command: fits is true\n\n0 failed, 0 warned, 1 passed, 0 skipped\n"
    )


def test_manifest() -> None:
    """A manifest is read as it is; a failure says what would pass, at the line of the setting."""
    write(deploy=DEPLOY)
    outcome = call("check", "deploy.yaml")

    assert outcome.code == 1
    assert "FAIL     llama: fits is false:" in outcome.out
    assert "(deploy.yaml:17)" in outcome.out
    assert "--tensor-parallel-size 4 passes" in outcome.out
    write(deploy=CURED)
    assert call("check", "deploy.yaml").code == 0


def test_stdin() -> None:
    """`-` is stdin."""
    outcome = call("check", "-", stdin=DEPLOY.encode())

    assert outcome.code == 1
    assert "(-:17)" in outcome.out


def test_folder_is_searched() -> None:
    """A folder's manifests are checked; what names no engine is passed over."""
    Path("k8s/base").mkdir(parents=True)
    Path("k8s/base/deploy.yaml").write_text(DEPLOY, encoding="utf-8")
    Path("k8s/cured.yaml").write_text(CURED.replace("name: llama", "name: other"), encoding="utf-8")
    Path("k8s/service.yaml").write_text("kind: Service\nmetadata: {name: x}\n", encoding="utf-8")
    outcome = call("check", "k8s", "-f", "json")

    assert outcome.code == 1
    assert sorted(d["file"] for d in outcome.document["deployments"]) == [
        "k8s/base/deploy.yaml",
        "k8s/cured.yaml",
    ]


def test_default_file() -> None:
    """Without a file it is kvcalc.yaml here, and without that it says what to write."""
    assert "which files?" in is_fault(call("check"))
    write(kvcalc="deployments: [{name: a, model: llama-3.1-8b, gpu: l40s, max: 8192}]\n")
    assert call("check").code == 0


def test_kvcalc_yaml_holds_for_manifests() -> None:
    """Assertions, models, levels and the card of kvcalc.yaml hold for files that are named."""
    write(
        deploy=UNKNOWN,
        kvcalc="models: {org/nothing-like-it: llama-3.1-70b}\nassert: {min_max_concurrency: 900}\n",
    )
    outcome = call("check", "deploy.yaml")

    assert outcome.code == 1
    assert re.search(r"FAIL +llama: max_concurrency [\d.]+ < 900 .*\(kvcalc.yaml:2\)", outcome.out)
    assert call("check", "deploy.yaml", "--settings", "").code == 2


def test_deployment_of_a_file() -> None:
    """A deployment of kvcalc.yaml may be a manifest, with settings and assertions of its own."""
    Path("k8s").mkdir()
    Path("k8s/deploy.yaml").write_text(CURED, encoding="utf-8")
    write(
        kvcalc="deployments:\n  - name: prod\n    file: k8s/deploy.yaml\n"
        "    assert: {min_max_concurrency: 1, max_num_gpus: 4}\n"
    )
    outcome = call("check", "-f", "json")

    found = {r["assertion"]: r for r in outcome.results}
    assert found["min_max_concurrency"]["status"] == "pass"
    assert found["max_num_gpus"]["actual"] == 8  # two replicas of four
    assert found["max_num_gpus"]["where"] == "kvcalc.yaml:4"
    assert {r["name"] for r in outcome.results} == {"prod"}


def test_assert_option() -> None:
    """--assert asks the same of everything, above what files say; slips name the option."""
    write(kvcalc="deployments: [{name: a, model: llama-3.1-8b, gpu: l40s, max: 8192,"
          " assert: {min_max_concurrency: 1}}]\n")  # fmt: skip

    assert call("check").code == 0
    assert call("check", "--assert", "min_max_concurrency=900").code == 1
    assert call("check", "--assert", "min_max_concurrency=2", "--assert", "fits=true").code == 0
    assert is_fault(call("check", "--assert", "min_max_concurency=2")).startswith("--assert: ")
    assert is_fault(call("check", "--assert", "fits")).startswith("--assert: ")
    assert "two readings" in is_fault(call("check", "--assert", "min_kv_cache_tokens=32k"))


def test_gpu_option() -> None:
    """--gpu is above what the file says; --gpu-memory is a card of one's own."""
    write(deploy=DEPLOY)

    assert call("check", "deploy.yaml", "--gpu", "h200").code == 0
    assert call("check", "deploy.yaml", "--gpu-memory", "140GiB").code == 0
    assert call("check", "--gpu-memory", "24GiB", "--gpu-free", "10GiB", *COMMAND).code == 1
    assert "unknown GPU" in is_fault(call("check", "deploy.yaml", "--gpu", "h1000"))


def test_model_option() -> None:
    """--model says what a served name is, or what every unknown one is."""
    write(deploy=UNKNOWN)

    assert call("check", "deploy.yaml").code == 2
    assert call("check", "deploy.yaml", "--model", "llama-3.1-70b").code == 0
    assert call("check", "deploy.yaml", "--model", "org/nothing-like-it=llama-3.1-70b").code == 0


def test_sequences() -> None:
    """--sequences is the goal of `fits`."""
    assert call("check", "--gpu", "l40s", *COMMAND).code == 0
    assert call("check", "--gpu", "l40s", "--sequences", "500", *COMMAND).code == 1


@pytest.mark.parametrize(
    ("file", "flags", "code"),
    [
        (CURED, [], 0),
        (CURED, ["--fail-on-warn"], 0),
        (CURED, ["--no-fail"], 0),
        (WARNED, [], 0),
        (WARNED, ["--fail-on-warn"], 1),
        (WARNED, ["--fail-on-warn", "--no-fail"], 0),
        (DEPLOY, [], 1),
        (DEPLOY, ["--fail-on-warn"], 1),
        (DEPLOY, ["--no-fail"], 0),
        (UNKNOWN, [], 2),
        (UNKNOWN, ["--fail-on-warn"], 2),
        (UNKNOWN, ["--no-fail"], 2),
        (DEPLOY + "---\n" + UNKNOWN, [], 2),
        (DEPLOY + "---\n" + UNKNOWN, ["--no-fail"], 2),
    ],
)
@pytest.mark.parametrize("form", ALL_FORMATS)
def test_exit_codes(file: str, flags: list[str], code: int, form: str) -> None:
    """The exit code means the same under every flag and in every format."""
    write(deploy=file)

    assert call("check", "deploy.yaml", "-f", form, *flags).code == code


@pytest.mark.parametrize("file", [CURED, WARNED, DEPLOY, UNKNOWN], ids="CWDU")
def test_document(file: str) -> None:
    """The JSON document is as its schema says, and its count is that of its results."""
    write(deploy=file)
    outcome = call("check", "deploy.yaml", "-f", "json", "--show")

    assert validate("check", outcome.document) == []
    counted = outcome.document["summary"]
    statuses = [r["status"] for r in outcome.results]
    for name, status in (("passed", "pass"), ("failed", "fail"), ("warned", "warn")):
        assert counted[name] == statuses.count(status)
    assert outcome.err == ""


@pytest.mark.parametrize("form", ALL_FORMATS)
@pytest.mark.parametrize("file", [CURED, DEPLOY, UNKNOWN], ids="CDU")
def test_no_secret_is_shown(file: str, form: str) -> None:
    """Values of variables and keys are in no output."""
    write(deploy=file)
    outcome = call("check", "deploy.yaml", "-f", form, "--show")
    behind = call(
        *("check", "--gpu", "l40s", "-f", form, "--show"),
        *("--", "HF_TOKEN=hf_secret_0815", "vllm", "serve", "meta-llama/Llama-3.1-8B"),
        *("--api-key", "sk-secret-4711", "--no-such-flag", "--max-model-len", "8192"),
    )

    for shown in (outcome.out, outcome.err, behind.out, behind.err):
        for secret in ("sk-secret-4711", "hf_secret_0815", "sk-served-0123"):
            assert secret not in shown


@pytest.mark.parametrize("form", ALL_FORMATS)
@pytest.mark.parametrize("model", ["secret-org/secret-8b", "meta-llama/Llama-3.1-70B-Instruct"])
def test_texts_of_variables_are_told_by_their_names(model: str, form: str) -> None:
    """A model, a dtype and a card out of variables are $NAME, whatever is wrong with them."""
    file = (
        CURED.replace("meta-llama/Llama-3.1-70B-Instruct", "$(MODEL_ID)")
        .replace("- --api-key", "- --kv-cache-dtype=$(KEPT_IN)\n            - --api-key")
        .replace(
            "- name: HF_TOKEN",
            f"- {{name: MODEL_ID, value: {model}}}\n            - {{name:"
            " KEPT_IN, value: secret_dtype}\n            - name: HF_TOKEN",
        )
    )
    write(deploy=file)
    outcome = call("check", "deploy.yaml", "-f", form, "--show")

    for shown in (outcome.out, outcome.err):
        assert model not in shown
        assert "secret" not in shown
    known = model.startswith("meta")
    if form != "json":
        assert ("KEPT_IN" if known else "MODEL_ID") in outcome.out.replace("\\_", "_")


def test_show() -> None:
    """--show prints each setting with the line that it was read from."""
    write(deploy=DEPLOY)
    shown = call("check", "deploy.yaml", "--show").out

    assert re.search(r"tensor_parallel_size +2 +--tensor-parallel-size +deploy.yaml:16", shown)
    assert re.search(r"max_model_len +32768 +--max-model-len +deploy.yaml:17", shown)
    assert re.search(r"gpu +NVIDIA-H100-80GB-HBM3 +nvidia.com/gpu.product +deploy.yaml:10", shown)
    read = call("check", "deploy.yaml", "--show", "-f", "json").document["deployments"][0]["read"]
    assert {"name": "max_model_len", "value": 32768, "kind": "field",
            "written": "--max-model-len", "where": "deploy.yaml:17"} in read  # fmt: skip


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_show_of_an_automatic_length(length: str) -> None:
    """A maximum that the engine works out is shown, too."""
    words = ["--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", length]

    assert re.search(
        r"max_model_len +\S+ +--max-model-len", call("check", "--gpu", "l40s", "--show", *words).out
    )


def test_reports() -> None:
    """One run writes every format; stdout holds one of them."""
    write(deploy=DEPLOY)
    outcome = call(
        *("check", "deploy.yaml"),
        *(word for form in ALL_FORMATS for word in ("--report", f"{form}:out.{form}")),
    )

    assert outcome.code == 1
    assert Path("out.table").read_text(encoding="utf-8") == outcome.out
    document = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert validate("check", document) == []
    rows = list(csv.DictReader(io.StringIO(Path("out.csv").read_text(encoding="utf-8"))))
    assert len(rows) == len(document["results"])
    for form in ("markdown", "github", "junit", "gitlab"):
        again = call("check", "deploy.yaml", "-f", form)
        assert Path(f"out.{form}").read_text(encoding="utf-8") == again.out


def test_no_report_over_what_is_read() -> None:
    """A report replaces no file that the run reads."""
    write(deploy=DEPLOY)
    Path("base.json").write_text(call("check", "deploy.yaml", "-f", "json").out, encoding="utf-8")

    for path in ("deploy.yaml", "base.json"):
        error = is_fault(
            call("check", "deploy.yaml", "--baseline", "base.json", "--report", f"json:{path}")
        )
        assert "would replace" in error


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("broken.yaml", b"a: [\n", "broken.yaml:"),
        ("binary.yaml", b"\x00\x01\x02", "not text"),
        ("nothing.yaml", b"kind: Service\n", "starts no server"),
        ("bomb.yaml", b"a: &a [x,x]\n" + b"".join(
            b"%c: &%c [*%c,*%c]\n" % (c, c, c - 1, c - 1) for c in range(98, 122)
        ), "bomb.yaml"),
    ],
)  # fmt: skip
def test_broken_files(name: str, content: bytes, said: str) -> None:
    """What cannot be read is one line on stderr, and exit code 2."""
    Path(name).write_bytes(content)

    assert said in is_fault(call("check", name))


def test_broken_file_among_others() -> None:
    """A broken file is refused, and the rest is checked all the same."""
    write(deploy=CURED, broken="a: [\n")
    outcome = call("check", "broken.yaml", "deploy.yaml", "missing.yaml", "-f", "json")

    assert outcome.code == 2
    refused = [r for r in outcome.results if r["status"] == "refused"]
    assert [r["file"] for r in refused] == ["broken.yaml", "missing.yaml"]
    assert "pass" in {r["status"] for r in outcome.results}


def test_no_command() -> None:
    """A command that starts no server is refused with how to write it."""
    outcome = call("check", "--", "ls", "-l")

    assert "no server that kvcalc knows" in is_fault(outcome)
    assert "vllm serve" in outcome.hints[0]


def test_faults_of_kvcalc_yaml() -> None:
    """Every fault of the file is told, each with its line and a hint."""
    write(kvcalc="deployments:\n  - {name: a, modl: x}\n  - {name: b, model: y, max: 32k}\n")
    outcome = call("check")

    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.errors[0].startswith("error: kvcalc.yaml:2: unknown setting")
    assert len(outcome.errors) == len(outcome.hints) == 2


def test_settings_stay_settings() -> None:
    """The same file is still the settings of other commands; checks are passed over there."""
    write(
        kvcalc="gpu: l40s\nmax_model_len: 4096\ndeployments: [{name: a, model: llama-3.1-8b}]\n"
        "assert: {fits: true}\nworkloads: {x: [200]}\n"
    )
    outcome = call("capacity", "llama-3.1-8b", "-f", "json")

    assert outcome.code == 0
    assert outcome.results[0]["max_model_len"] == 4096
    assert call("check", "-f", "json").document["deployments"][0]["gpu"] == "l40s"
    write(kvcalc="deploymentss: []\n")
    assert "deployments" in call("capacity", "llama-3.1-8b").hints[0]


# ------------------------------------------------------------------ baseline and diff


def save(name: str, *arguments: str) -> None:
    Path(name).write_text(call("check", "-f", "json", *arguments).out, encoding="utf-8")


def test_baseline() -> None:
    """What failed before by no less is a warning; what is new, or worse, fails."""
    write(deploy=DEPLOY)
    floor = ["deploy.yaml", "--gpu", "h200", "--assert", "min_max_concurrency=100"]
    save("base.json", *floor)
    same = call("check", *floor, "--baseline", "base.json")
    assert same.code == 0
    assert same.out.count("as in the baseline") == 1
    assert call("check", *floor, "--baseline", "base.json", "--fail-on-warn").code == 0

    write(deploy=DEPLOY.replace("32768", "65536"))
    worse = call("check", *floor, "--baseline", "base.json", "-f", "json")
    assert worse.code == 1
    found = {r["assertion"]: r["status"] for r in worse.results}
    assert found["min_max_concurrency"] == "fail"
    assert found["fits"] == "pass"

    write(deploy=DEPLOY.replace("32768", "16384"))
    assert call("check", *floor, "--baseline", "base.json").code == 0
    new = ["--assert", "min_max_sequences=100"]
    assert call("check", *floor, *new, "--baseline", "base.json").code == 1


def test_baseline_of_a_baseline() -> None:
    """A run that was held against a baseline can be one itself."""
    write(deploy=DEPLOY)
    save("first.json", "deploy.yaml")
    save("second.json", "deploy.yaml", "--baseline", "first.json")

    assert call("check", "deploy.yaml", "--baseline", "second.json").code == 0


def test_baseline_does_not_excuse_the_unreadable() -> None:
    """What cannot be read was no better before."""
    write(deploy=UNKNOWN)
    save("base.json", "deploy.yaml")

    assert call("check", "deploy.yaml", "--baseline", "base.json").code == 2


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"schema": "kvcalc.plan/1", "results": []}', '{"schema": "kvcalc.check/1"}',
     '{"schema": "kvcalc.check/1", "results": [1]}'],
)  # fmt: skip
def test_bad_baseline(content: str) -> None:
    """A baseline that is no document of kvcalc check is refused."""
    write(deploy=CURED)
    Path("base.json").write_text(content, encoding="utf-8")

    assert is_fault(call("check", "deploy.yaml", "--baseline", "base.json")).startswith("base.json")


def test_diff() -> None:
    """A change that costs capacity is marked; it fails only where that is asked for."""
    write(deploy=CURED)
    save("before.json", "deploy.yaml")
    write(deploy=CURED.replace("32768", "65536"))
    save("after.json", "deploy.yaml")
    outcome = call("diff", "before.json", "after.json", "-f", "json")

    assert outcome.code == 0
    assert validate("diff", outcome.document) == []
    found = {r["metric"]: r for r in outcome.results}
    assert found["max_concurrency"]["costs"]
    assert found["max_concurrency"]["after"] < found["max_concurrency"]["before"]
    assert not found["max_model_len"]["costs"]
    assert "kv_cache_bytes" not in found or not found["kv_cache_bytes"]["gains"]
    assert call("diff", "before.json", "after.json", "--fail-on-regression").code == 1
    assert call("diff", "after.json", "before.json", "--fail-on-regression").code == 0
    assert call("diff", "before.json", "before.json", "--fail-on-regression").out == (
        "nothing changed\n"
    )


def test_diff_as_a_comment() -> None:
    """As Markdown it is a comment for a pull request: the verdict, then a table a deployment."""
    write(deploy=CURED)
    save("before.json", "deploy.yaml")
    write(deploy=DEPLOY)
    save("after.json", "deploy.yaml")
    text = call("diff", "before.json", "after.json", "-f", "markdown").out
    rows = [line for line in text.splitlines() if line.startswith("|")]

    assert re.match(r"### \d+ of \d+ figures changed cost capacity\n", text)
    assert rows[0] == "| figure | before | after | change |  |"
    assert rows[2] == "| fits | pass | fail | - | COSTS |"
    assert all(len(row.strip("|").split("|")) == 5 for row in rows)


def test_diff_of_deployments() -> None:
    """A deployment that came or went is told."""
    write(deploy=CURED)
    save("one.json", "deploy.yaml")
    write(deploy=CURED + "---\n" + CURED.replace("name: llama", "name: second"))
    save("two.json", "deploy.yaml")
    found = call("diff", "one.json", "two.json", "-f", "json").results

    assert [(r["name"], r["metric"], r["before"]) for r in found] == [
        ("second", "deployment", None)
    ]


def test_diff_of_capacity() -> None:
    """Documents of kvcalc capacity can be compared, too."""
    for name, length in (("a", "8192"), ("b", "16384")):
        outcome = call(
            *("capacity", "llama-3.1-8b", "--gpu", "l40s", "--max", length, "-f", "json")
        )
        Path(f"{name}.json").write_text(outcome.out, encoding="utf-8")
    found = call("diff", "a.json", "b.json", "-f", "json").results

    assert {"max_concurrency", "needed_bytes"} <= {r["metric"] for r in found}


def test_diff_of_nothing() -> None:
    """Two files are needed."""
    assert "which two files?" in is_fault(call("diff"))
    assert "which two files?" in is_fault(call("diff", "a.json"))
    assert "twice" in is_fault(call("diff", "-", "-"))
    assert is_fault(call("diff", "a.json", "b.json")).startswith("a.json: ")


def test_diff_as_csv() -> None:
    """As CSV a change is a row under the same header, which stands where nothing changed, too."""
    write(deploy=CURED)
    save("before.json", "deploy.yaml")
    write(deploy=CURED.replace("32768", "65536"))
    save("after.json", "deploy.yaml")
    text = call("diff", "before.json", "after.json", "-f", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    found = call("diff", "before.json", "after.json", "-f", "json").results

    assert [(r["name"], r["metric"], r["costs"]) for r in rows] == [
        (f["name"], f["metric"], str(f["costs"]).lower()) for f in found
    ]
    same = call("diff", "before.json", "before.json", "-f", "csv").out
    assert same.splitlines() == text.splitlines()[:1]


@pytest.mark.parametrize(
    "one",
    ['{"name": null, "figures": {}}', '{"name": "a", "figures": {"fits": "yes"}}',
     '{"name": "a", "figures": {"max_concurrency": 1e999}}', '{"name": "a", "figures": []}'],
)  # fmt: skip
def test_bad_documents_of_diff(one: str) -> None:
    """A document whose names or figures are none is refused."""
    Path("a.json").write_text(
        f'{{"schema": "kvcalc.check/1", "results": [], "deployments": [{one}]}}', encoding="utf-8"
    )

    assert "a.json" in is_fault(call("diff", "a.json", "a.json"))


# ------------------------------------------------------------------ formats and the exit code

SKIPPED = CURED.replace("nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3", "disk: fast")


def failures(form: str, text: str) -> int:
    """Return how many failures a format tells."""
    if form == "junit":
        root = ET.fromstring(text)  # noqa: S314 - our own
        return int(root.attrib["failures"]) + int(root.attrib["errors"])
    if form == "github":
        return text.count("::error ")
    if form == "gitlab":
        return sum(e["severity"] in ("major", "critical") for e in json.loads(text))
    if form == "json":
        counted = json.loads(text)["summary"]
        return int(counted["failed"]) + int(counted["refused"])
    if form == "csv":
        return sum(r["status"] in ("fail", "refused") for r in csv.DictReader(io.StringIO(text)))
    return len(re.findall(r"(?:^|\| )(?:FAIL|REFUSED) ", text, re.MULTILINE))


@pytest.mark.parametrize("form", ALL_FORMATS)
@pytest.mark.parametrize("flags", [(), ("--fail-on-warn",), ("--fail-on-skip",),
                                   ("--fail-on-warn", "--fail-on-skip")], ids="/".join)  # fmt: skip
@pytest.mark.parametrize("file", [CURED, WARNED, DEPLOY, UNKNOWN, SKIPPED], ids="CWDUS")
@pytest.mark.parametrize("baseline", [False, True])
def test_formats_agree_with_the_exit_code(
    file: str, flags: tuple[str, ...], form: str, baseline: bool
) -> None:
    """Where the exit code is 0 no format tells a failure, and else every one does."""
    write(deploy=file)
    if baseline:
        save("base.json", "deploy.yaml")
        flags = (*flags, "--baseline", "base.json")
    outcome = call("check", "deploy.yaml", "-f", form, *flags)

    assert (outcome.code == 0) == (failures(form, outcome.out) == 0)
    if baseline and file != UNKNOWN:
        assert outcome.code == 0


def test_fail_on_skip() -> None:
    """What could not be asked is a failure where that is wanted."""
    write(deploy=SKIPPED + "---\n" + CURED.replace("name: llama", "name: other"))

    assert call("check", "deploy.yaml").code == 0
    for flag in ("--fail-on-skip", "--strict"):
        strict = call("check", "deploy.yaml", flag)
        assert strict.code == 1
        assert "FAIL     llama: fits: nothing says which card it runs on" in strict.out
        assert call("check", "deploy.yaml", flag, "--gpu", "h100-80gb").code == 0
    assert call("check", "deploy.yaml", "--fail-on-warn").code == 0
    write(deploy=WARNED)
    assert call("check", "deploy.yaml", "--strict").code == 1


@pytest.mark.parametrize("form", ALL_FORMATS)
def test_a_check_that_checked_nothing_fails(form: str) -> None:
    """Where no assertion could be asked, every format says so, with how to ask: exit code 1."""
    write(deploy=SKIPPED)
    nothing = call("check", "deploy.yaml", "-f", form)
    allowed = call("check", "deploy.yaml", "-f", form, "--allow-skips")

    assert (nothing.code, allowed.code) == (1, 0)
    assert "nothing was checked" in nothing.out
    assert "nothing was checked" not in allowed.out
    for outcome in (nothing, allowed):
        assert "nothing says which card it runs on" in outcome.out
        assert "--gpu h100-80gb" in outcome.out
    assert call("check", "deploy.yaml", "-f", form, "--no-fail").code == 0


def test_one_assertion_that_is_asked_is_a_check() -> None:
    """What needs no card is asked without one; a check of the same file with one is whole."""
    write(deploy=SKIPPED)

    assert call("check", "deploy.yaml", "--assert", "min_num_gpus=1").code == 0
    assert call("check", "deploy.yaml", "--assert", "min_num_gpus=99").code == 1
    assert (
        call("check", "--allow-skips", "deploy.yaml", "--assert", "min_kv_cache_tokens=1").code == 0
    )
    assert call("check", "deploy.yaml", "--assert", "min_kv_cache_tokens=1").code == 1


def test_levels_of_a_check_that_checked_nothing() -> None:
    """kvcalc.yaml sets how much it counts, as of any finding."""
    write(deploy=SKIPPED)
    for level, code in (("off", 0), ("warn", 0), ("error", 1)):
        write(kvcalc=f"findings: {{nothing-checked: {level}}}\n")
        assert call("check", "deploy.yaml").code == code
        assert ("nothing was checked" in call("check", "deploy.yaml").out) == (level != "off")


BROKEN = {
    "yaml": b"kind: Pod\nspec: {containers: [{command: [vllm, serve, a]}\n",
    "latin-1": b"# caf\xe9\nkind: Pod\nspec: {containers: [{command: [vllm, serve, a]}]}\n",
    "zero": b"kind: Pod\nspec: {containers: [{command: [vllm, serve, a]}]}\n\0",
    "utf-16 without its mark": "kind: Pod # vllm\n".encode("utf-16-le"),
    "large": b"kind: Pod # vllm\n" * 600_000,
    "tab": b"kind: Pod # vllm\n\tspec: 1\n",
    "settings": b"deployments:\n  - name: a\n    modle: llama-3.1-8b\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_folder_with_a_file_that_cannot_be_read_does_not_pass(kind: str) -> None:
    """What may be a deployment and cannot be read is told in every format: exit code 2."""
    folder = Path("deploy")
    folder.mkdir()
    (folder / "good.yaml").write_text(CURED, encoding="utf-8")
    name = "kvcalc.yaml" if kind == "settings" else "bad.yaml"
    (folder / name).write_bytes(BROKEN[kind])

    alone = call("check", f"deploy/{name}")
    assert alone.code == 2
    for form in ALL_FORMATS:
        outcome = call("check", "deploy", "-f", form)
        assert outcome.code == 2
        assert f"deploy/{name}" in outcome.out
    assert "PASS     llama" in call("check", "deploy").out


def test_a_folder_with_a_template_that_cannot_be_read() -> None:
    """It is skipped, with what renders it: kvcalc reads templates only as far as they are YAML."""
    folder = Path("deploy")
    folder.mkdir()
    (folder / "good.yaml").write_text(CURED, encoding="utf-8")
    (folder / "chart.yaml").write_text('a: [vllm\n{{ include "x" . }} b: ]: c\n', encoding="utf-8")
    outcome = call("check", "deploy")

    assert outcome.code == 0
    assert "SKIP     deploy/chart.yaml: fits: not read: a template" in outcome.out
    assert "helm template . | kvcalc check -" in outcome.out
    assert call("check", "deploy", "--strict").code == 1


def test_junit_names_differ() -> None:
    """No two cases of a suite have one name, however often a thing is found."""
    words = ["--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--no-a", "--no-b", "--no-c"]
    text = call("check", "--gpu", "l40s", "-f", "junit", *words).out
    root = ET.fromstring(text)  # noqa: S314 - our own
    names = [(case.attrib["classname"], case.attrib["name"]) for case in root.iter("testcase")]

    assert len(names) > 3
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--gpu", "l40s", "--gpu-free", "60GiB"], 2),
        (["--gpu-memory", "24GiB", "--gpu-free", "30GiB"], 2),
        (["--gpu", "l40s", "--gpu-free", "43GiB"], 0),
        (["--gpu", "l40s", "--engine-version", "0.1.7"], 2),
        (["--gpu", "l40s", "--engine-version", "0.19.1"], 0),
    ],
)
def test_what_cannot_be_is_a_slip(words: list[str], code: int) -> None:
    """A release that there is not, and more free than there is, are slips: exit code 2."""
    assert call("check", *words, *COMMAND).code == code


@pytest.mark.parametrize("key", ["engine: vlm", "gpu: l4os"])
def test_unknown_names_of_the_file(key: str) -> None:
    """A name of kvcalc.yaml that is not known is exit code 2, as one that is typed is."""
    write(kvcalc=f"deployments:\n  - name: a\n    model: llama-3.1-8b\n    {key}\n")
    outcome = call("check")

    assert outcome.code == 2
    assert "(kvcalc.yaml:4)" in outcome.out
    write(deploy=CURED)
    write(kvcalc=f"deployments:\n  - name: a\n    file: deploy.yaml\n    {key}\n")
    assert call("check").code == 2
    assert "(kvcalc.yaml:4)" in call("check").out


def test_names_that_are_numbers() -> None:
    """A deployment called 5 has a name: it is to be quoted."""
    write(kvcalc="deployments: [{name: 5, model: llama-3.1-8b}]\n")

    assert 'name: "5"' in call("check").hints[0]


CHART = """\
{{- if .Values.enabled }}
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: "vllm/vllm-openai:v0.20.2"
          args:
            - --model
            - {{ .Values.model | quote }}
            - --tensor-parallel-size={{ .Values.tp }}
            - --max-model-len=32768
          resources: {limits: {nvidia.com/gpu: {{ .Values.tp }}}}
{{- end }}
"""
VALUES = """\
enabled: true
image: {repository: vllm/vllm-openai, tag: v0.20.2}
model: meta-llama/Llama-3.1-70B-Instruct
tp: 4
"""


def test_a_chart_is_counted_once() -> None:
    """The values of a chart are in the servers of its templates, and no servers beside them."""
    Path("chart/templates").mkdir(parents=True)
    for name, text in (("Chart.yaml", "name: chat\n"), ("values.yaml", VALUES),
                       ("values-prod.yaml", VALUES), ("templates/deploy.yaml", CHART)):  # fmt: skip
        Path("chart", name).write_text(text, encoding="utf-8")

    for words in (["chart"], ["."]):
        outcome = call("check", *words, "--gpu", "h100-80gb", "-f", "json")
        assert [d["name"] for d in outcome.document["deployments"]] == ["chat"]
        assert outcome.code == 0
    write(kvcalc="gpu: h100-80gb\ndeployments: [{file: chart}]\n")
    assert [d["name"] for d in call("check", "-f", "json").document["deployments"]] == ["chart"]
    Path("chart/templates/deploy.yaml").unlink()
    alone = call("check", "chart", "--gpu", "h100-80gb", "-f", "json").document["deployments"]
    assert {d["file"] for d in alone} == {"chart/values.yaml", "chart/values-prod.yaml"}
