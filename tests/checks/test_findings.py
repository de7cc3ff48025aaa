"""What contradicts itself: each finding with its cure, and the cured server without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvcalc.answers.assertions import Check
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.gather import Options, gather
from kvcalc.checks.run import run
from kvcalc.core.deployment import Deployment
from kvcalc.manifests.found import Server
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question
from kvcalc.sizing.solve import solved
from tests.checks.builders import by_code, codes, gpus, report_on, server


class Case(NamedTuple):
    """A server with a mistake, and the same without it.

    Attributes:
        code, status: of the finding.
        wrong, cured: what `server` is given.
        message, cure: parts of what is told.
        line: where it is told.
    """

    code: str
    status: str
    wrong: dict[str, Any]
    cured: dict[str, Any]
    message: str
    cure: str
    line: int


L40S_4, L40S_2 = gpus(4), gpus(2)
CASES = [
    Case("too-few-gpus", "fail",
         {"tensor_parallel_size": 4}, {"tensor_parallel_size": 4, "gpu": L40S_4},
         "tensor parallel 4 needs 4 GPUs, nvidia.com/gpu gives 1",
         "ask for 4, or set --tensor-parallel-size 1", 30),
    Case("too-few-gpus", "fail",
         {"tensor_parallel_size": 2, "data_parallel_size": 2, "gpu": L40S_2},
         {"tensor_parallel_size": 2, "data_parallel_size": 2, "gpu": L40S_4},
         "tensor parallel 2 x 2 replicas needs 4 GPUs", "ask for 4", 30),
    Case("too-few-gpus", "fail",
         {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "gpu": L40S_2, "nodes": 2},
         {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "gpu": L40S_4, "nodes": 2},
         "needs 4 GPUs on each of 2 nodes", "ask for 4", 30),
    Case("too-few-gpus", "fail",
         {"tensor_parallel_size": 2, "gpu": gpus(2, visible=("0",))},
         {"tensor_parallel_size": 2, "gpu": gpus(2, visible=("0", "1"))},
         "the list of visible devices (0) gives 1", "ask for 2", 30),
    Case("idle-gpus", "warn",
         {"gpu": L40S_2}, {"gpu": L40S_2, "tensor_parallel_size": 2},
         "1 GPU of 2 stay idle", "--tensor-parallel-size 2 for longer sequences", 30),
    Case("idle-gpus", "warn",
         {"gpu": L40S_4, "tensor_parallel_size": 2},
         {"gpu": L40S_4, "tensor_parallel_size": 2, "data_parallel_size": 2},
         "2 GPUs of 4 stay idle", "--data-parallel-size 2 for more of them, or ask for 2", 30),
    Case("idle-gpus", "warn",
         {"engine": "sglang", "gpu": L40S_2},
         {"engine": "sglang", "gpu": L40S_2, "tensor_parallel_size": 2},
         "1 GPU of 2 stay idle", "--tp-size 2", 30),
    Case("shares-over-card", "fail",
         {"gpu": gpus(None, fraction="0.5"), "max_model_len": 8192},
         {"gpu": gpus(None, fraction="0.5"), "gpu_memory_utilization": 0.5},
         "2 servers with 0.5 of a device each may share a card, and each takes 0.92",
         "at most --gpu-memory-utilization 0.", 30),
    Case("shares-over-card", "warn",
         {"gpu": gpus(1, shared=True), "max_model_len": 8192}, {"gpu": gpus(1)},
         "others share the card", "at most --gpu-memory-utilization 0.", 30),
    Case("length-over-model", "fail",
         {"max_model_len": 262144, "gpu": gpus(1, "nvidia-h200")},
         {"max_model_len": 131072, "gpu": gpus(1, "nvidia-h200")},
         "262,144 tokens is beyond the model's own 131,072: vllm refuses it",
         "--max-model-len 131072 is the longest; VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", 11),
    Case("length-over-model", "warn",
         {"max_model_len": 262144, "gpu": gpus(1, "nvidia-h200"),
          "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
         {"max_model_len": 131072, "gpu": gpus(1, "nvidia-h200")},
         "beyond the model's own 131,072", "131072 is the longest", 11),
    Case("fp8-on-old-card", "warn",
         {"kv_cache_dtype": "fp8", "gpu": gpus(1, "NVIDIA-A100-SXM4-80GB")},
         {"kv_cache_dtype": "fp8"},
         "a100-80gb (compute capability 8.0) does not compute in fp8",
         "--kv-cache-dtype auto, or a card", 11),
    Case("prompt-over-step", "fail",
         {"max_model_len": 8192, "max_num_batched_tokens": 2048,
          "args": {"enable_chunked_prefill": False}},
         {"max_model_len": 8192, "max_num_batched_tokens": 8192,
          "args": {"enable_chunked_prefill": False}},
         "a step of 2,048 tokens (max_num_batched_tokens) cannot take a prompt of 8,192",
         "8192, a maximum of 2,048 tokens, or chunked prefill", 12),
    Case("share-without-effect", "warn",
         {"max_model_len": 8192, "kv_cache_memory_bytes": 10 * 2**30,
          "gpu_memory_utilization": 0.9},
         {"max_model_len": 8192, "kv_cache_memory_bytes": 10 * 2**30},
         "gpu_memory_utilization 0.9 sizes nothing beside a cache of 10 GiB", "leave out one", 13),
    Case("cache-duplicated", "note",
         {"model": "few-heads", "tensor_parallel_size": 4, "gpu": L40S_4, "max_model_len": 8192},
         {"model": "few-heads", "tensor_parallel_size": 2, "data_parallel_size": 2,
          "gpu": L40S_4, "max_model_len": 8192},
         "tensor parallel 4 keeps each byte of the cache 2 times",
         "--tensor-parallel-size 2 with 2 replicas", 11),
    Case("sequences-out-of-reach", "note",
         {"max_model_len": 8192, "max_num_seqs": 256}, {"max_model_len": 8192, "max_num_seqs": 8},
         "not the 256 of max_num_seqs", "with a workload", 12),
    Case("windows-at-full-length", "warn",
         {"model": "google/gemma-3-27b-it", "disable_hybrid_kv_cache_manager": True,
          "max_model_len": 32768, "gpu": gpus(1, "nvidia-h100-80gb")},
         {"model": "google/gemma-3-27b-it", "max_model_len": 32768,
          "gpu": gpus(1, "nvidia-h100-80gb")},
         "layers with a window keep every token", "leave out --disable-hybrid-kv-cache-manager",
         11),
    Case("windows-at-full-length", "warn",
         {"model": "google/gemma-3-27b-it", "engine": "llama.cpp",
          "args": {"ctx_size": 32768, "swa_full": True}, "gpu": gpus(1, "nvidia-h100-80gb")},
         {"model": "google/gemma-3-27b-it", "engine": "llama.cpp", "args": {"ctx_size": 32768},
          "gpu": gpus(1, "nvidia-h100-80gb")},
         "layers with a window keep every token", "leave out --swa-full", 12),
    Case("speculation-costs-cache", "note",
         {"model": "qwen3.5-27b", "gpu": gpus(1, "nvidia-h100-80gb"), "max_model_len": 8192,
          "speculative_method": "mtp", "num_speculative_tokens": 2},
         {"model": "qwen3.5-27b", "gpu": gpus(1, "nvidia-h100-80gb"), "max_model_len": 8192},
         "speculation leaves", "fewer proposed tokens", 12),
    Case("fraction-out-of-interval", "fail",
         {"engine": "sglang", "max_model_len": 32768, "args": {"mem_fraction_static": 0.3}},
         {"engine": "sglang", "max_model_len": 32768, "args": {"mem_fraction_static": 0.8}},
         "mem_fraction_static 0.3 leaves too little for the cache",
         "is the least", 12),
    Case("two-limits", "warn",
         {"engine": "tensorrt-llm", "max_model_len": 8192,
          "args": {"free_gpu_memory_fraction": 0.9, "max_tokens": 20000}},
         {"engine": "tensorrt-llm", "max_model_len": 8192,
          "args": {"free_gpu_memory_fraction": 0.9}},
         "the smaller pool wins, which is that of max_tokens", "leave out the one", 13),
    Case("heads-over-ranks", "fail",
         {"tensor_parallel_size": 3, "max_model_len": 8192, "gpu": gpus(3)},
         {"tensor_parallel_size": 2, "max_model_len": 8192, "gpu": L40S_2},
         "3", "", 11),
    Case("engine-refuses", "fail",
         {"kv_cache_dtype": "int8", "max_model_len": 8192}, {"max_model_len": 8192},
         "'int8'", "fp8", 11),
]  # fmt: skip
each = pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c.code}" for i, c in enumerate(CASES)])


@each
def test_found(case: Case) -> None:
    """The mistake is found, at its line, with what to write instead."""
    found = by_code(report_of(case.wrong), case.code)

    assert found.status == case.status
    assert case.message in found.message
    assert case.cure in found.hint
    assert (found.file, found.line) == ("deploy.yaml", case.line)
    assert found.where == f"deploy.yaml:{case.line}"


@each
def test_cured(case: Case) -> None:
    """With the cure there is no such finding."""
    assert case.code not in codes(report_of(case.cured))


def report_of(given: dict[str, Any]) -> CheckReport:
    return report_on(server(**given))


def test_nothing_to_say() -> None:
    """A server that is right has no finding."""
    made = report_on(server(max_model_len=8192, tensor_parallel_size=1))

    assert codes(made) == []
    assert [r.status for r in made.results] == ["pass"]


def two(
    share: float, other: float, *, carrier: str = "compose", after: tuple[int, ...] = (5,)
) -> CheckReport:
    """Return what a check of two servers says, of which the second waits for the first."""

    def one(name: str, utilization: float, *after: int) -> Server:
        return server(
            name=name,
            carrier=carrier,
            max_model_len=1024,
            gpu_memory_utilization=utilization,
            gpu=gpus(1, "nvidia-h200", resource="gpus", visible=("0",)),
            background=carrier == "shell",
            after=after,
        )

    return report_on(one("a", share), one("b", other, *after))


def test_two_on_one_device() -> None:
    """Shares of servers on one device are added up; what they may have is told."""
    found = by_code(two(0.6, 0.5), "shares-over-card")

    assert found.name == "b"
    assert found.status == "fail"
    assert "0.6 + 0.5 are 1.1 of the card" in found.message
    most = float(found.hint.partition("at most --gpu-memory-utilization ")[2].split()[0])
    assert f"{most:g} each" in found.hint
    assert most < 0.5  # each has a context of its own beside its share
    assert codes(two(most, most)) == []
    assert codes(two(most + 0.001, most + 0.001)) == ["shares-over-card"]


def test_the_share_that_is_told_is_that_of_servers_alike() -> None:
    """`capacity --instances 2` and a file with two of them say the same."""
    found = by_code(two(0.6, 0.6), "shares-over-card")
    settings = Deployment(engine="vllm", gpu=load_gpu("h200"), max_model_len=8192)
    asked = Question(load_model("llama-3.1-8b"), settings, instances=2)
    most = solved(asked, "gpu-memory-utilization").solution.up_to
    assert f"at most --gpu-memory-utilization {most:g} each" in found.hint


def test_shares_of_the_whole_card_leave_no_context() -> None:
    """From the share on that surely starts to 1 in all it is told what is taken beside them."""
    found = by_code(two(0.5, 0.5), "shares-over-card")
    assert found.status == "fail"
    assert "are 1 of the card, and at least" in found.message
    perhaps = by_code(two(0.495, 0.495), "shares-over-card")
    assert perhaps.status == "warn"
    assert "are 0.99 of the card, and up to" in perhaps.message


def test_a_small_share_is_left_as_it_is() -> None:
    found = by_code(two(0.92, 0.3), "shares-over-card")
    most = float(found.hint.partition("at most --gpu-memory-utilization ")[2].split()[0])
    assert f"{most:g} for a," in found.hint
    assert codes(two(most, 0.3)) == []
    assert codes(two(most + 0.001, 0.3)) == ["shares-over-card"]


def test_nothing_is_left_for_a_third(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    start = (
        "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --gpu-memory-utilization {} &\n"
    )

    def found(*shares: float) -> list[Check]:
        lines = [start.format(share) for share in shares]
        path.write_text(
            "".join(lines) + "llama-server -m llama-3.1-8b -c 8192 &\n", encoding="utf-8"
        )
        report = run(gather([str(path)], (), Options(gpu="h200")))
        return [r for r in report.results if r.assertion.startswith("share")]

    (none,) = found(0.49, 0.51)
    assert none.assertion == "shares-over-card"
    assert "are 1 of the card, and nothing is left for" in none.message
    assert [r.assertion for r in found(0.3, 0.3)] == ["shared-card"]


def test_no_share_is_told_with_which_one_of_them_does_not_fit(tmp_path: Path) -> None:
    """A third of this card does not hold the weights."""
    path = tmp_path / "run.sh"
    start = (
        "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --gpu-memory-utilization 0.5 &\n"
    )
    path.write_text(start * 3, encoding="utf-8")
    report = run(gather([str(path)], (), Options(gpu="l40s")))
    assert "at most" not in by_code(report, "shares-over-card").hint


def test_a_script_may_start_one_of_them() -> None:
    """A script does not say that both run at once: it is a warning there."""
    assert by_code(two(0.6, 0.5, carrier="shell"), "shares-over-card").status == "warn"


def test_shares_of_what_is_free() -> None:
    """Sums of shares of what is free say nothing: the order of starts decides, which is told."""
    made = report_on(
        *(
            server(
                name=name,
                engine="lmdeploy",
                carrier="compose",
                max_model_len=2048,
                gpu=gpus(1, "nvidia-h200", resource="gpus", visible=("0",)),
            )
            for name in "ab"
        )
    )

    assert by_code(made, "shared-card").status == "warn"


def test_starts_that_nothing_orders() -> None:
    """Each server measures while the other loads: told where nothing lets one wait."""
    together = two(0.4, 0.4, after=())
    assert by_code(together, "shared-card").status == "warn"
    assert "service_healthy" in by_code(together, "shared-card").hint
    assert codes(two(0.4, 0.4)) == []
    assert codes(two(0.6, 0.6, after=())) == ["shares-over-card"]


COMPOSE = """\
services:
  a:
    image: vllm/vllm-openai:v0.33.0
    command: --model meta-llama/Llama-3.1-8B --max-model-len 4096 --gpu-memory-utilization {share}
    healthcheck: {{test: curl -sf localhost:8000/health}}
    gpus: all
    {a}
  b:
    image: vllm/vllm-openai:v0.33.0
    command: --model meta-llama/Llama-3.1-8B --max-model-len 4096 --gpu-memory-utilization {share}
    gpus: all
    {b}
"""


@pytest.mark.parametrize(
    ("share", "a", "b", "expected"),
    [
        (0.4, "", "", ["shared-card"]),
        (0.4, "", "depends_on: [a]", ["shared-card"]),
        (0.4, "", "depends_on: {a: {condition: service_started}}", ["shared-card"]),
        (0.4, "", "depends_on: {a: {condition: service_healthy}}", []),
        (0.4, "depends_on: {b: {condition: service_healthy}}", "", ["shared-card"]),
        (0.4, "", "profiles: [other]", ["shared-card"]),
        (0.4, "profiles: [one]", "profiles: [one]", ["shared-card"]),
        (0.9, "profiles: [one]", "profiles: [other]", []),
        (0.9, "", "profiles: [other]", ["shares-over-card"]),
        (0.9, "", "environment: {CUDA_VISIBLE_DEVICES: 1}", []),
        (0.9, "deploy: {replicas: 2}", "environment: {CUDA_VISIBLE_DEVICES: 1}",
         ["shares-over-card"]),
        (0.4, "scale: 2", "environment: {CUDA_VISIBLE_DEVICES: 1}", ["shared-card"]),
    ],
)  # fmt: skip
def test_services_on_one_device(
    share: float, a: str, b: str, expected: list[str], tmp_path: Path
) -> None:
    """Profiles part services, a health check orders them, and copies are on the same device."""
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE.format(share=share, a=a, b=b), encoding="utf-8")
    report = run(gather([str(path)], (), Options(gpu="h100-80gb")))
    assert [code for code in codes(report) if code.startswith("share")] == expected


ONE = "CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192"
RUN, IMAGE = "docker run --gpus all", "vllm/vllm-openai"
TWO_SCRIPTS = "bash -c 'if [ $P ]; then {} & fi'\nbash -c 'if [ $P ]; then :; else {} & fi'\n"
SHELLS = {
    "case": ('case "$P" in\n a) {} & ;;\n b) {} & ;;\nesac\n', False),
    "if": ('if [ "$P" = a ]; then\n {} &\nelse\n {} &\nfi\n', False),
    "elif": ("if [ $P = a ]; then\n {} &\nelif [ $P = b ]; then\n {} &\nfi\n", False),
    "nested": ("if [ $P = a ]; then\n if [ $Q ]; then {} & fi\nelse\n {} &\nfi\n", False),
    "or": ("{} || {}\n", False),
    "functions": ("a() {{ {} & }}\nb() {{ {} & }}\ncase $1 in a) a;; *) b;; esac\n", False),
    "chosen by a word": ('a() {{ {} & }}\nb() {{ {} & }}\n"$1"\n', False),
    "exit": ("if [ $P = a ]; then\n {} & wait; exit\nfi\n{} &\n", False),
    "exit in a case": ("case $P in a) {} & wait; exit ;; esac\n{} &\n", False),
    "in front": ("{}\n{}\n", False),
    "a subshell's exit": ("( if [ $P ]; then exit; fi )\n{} &\n{} &\n", True),
    "both functions": ("a() {{ {} & }}\nb() {{ {} & }}\na\nb\n", True),
    "one branch": ("if [ $P = a ]; then\n {} &\n {} &\nfi\n", True),
    "two conditions": ("if [ $P ]; then\n {} &\nfi\nif [ $Q ]; then\n {} &\nfi\n", True),
    "the last in front": ("{} &\n{}\n", True),
    "detached": (f"{RUN} -d {IMAGE} {{0}}\n{RUN} --detach {IMAGE} {{0}}\n", True),
    "in front of all": (f"{RUN} --rm {IMAGE} {{0}}\n{RUN} {IMAGE} {{0}}\n", False),
    "two scripts": (TWO_SCRIPTS, True),
    "a program decides": ("if nvidia-smi; then {} & else {} & fi\n", False),
    "a pipe decides": ("if ps | grep -q a; then {} & else {} & fi\n", False),
    "terminals": ('tmux new -d -s a "{}"\ntmux new -d -s b "{}"\n', True),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHELLS)
def test_branches_that_exclude_each_other(kind: str, tmp_path: Path) -> None:
    """Of a script's servers those share a device that can run at the same time."""
    text, shared = SHELLS[kind]
    one = ONE.partition("serve ")[2] if "{0}" in text else ONE
    path = tmp_path / "run.sh"
    path.write_text(text.format(one, one), encoding="utf-8")
    report = run(gather([str(path)], (), Options(gpu="h200")))

    assert len({r.name for r in report.results}) == 2, report.results
    assert ("shares-over-card" in codes(report)) == shared


@pytest.mark.parametrize(
    ("between", "ordered"),
    [
        ("until curl -sf localhost:8000/health; do sleep 5; done", True),
        ("sleep 120", True),
        ("sleep 5", False),
        ("wait-for-it.sh localhost:8000 -t 0", True),
        ("echo started", False),
    ],
)
def test_a_script_that_waits(between: str, ordered: bool, tmp_path: Path) -> None:
    """A health check between two starts orders them; a blink does not."""
    path = tmp_path / "run.sh"
    start = f"{ONE} --gpu-memory-utilization 0.4 &\n"
    path.write_text(f"{start}{between}\n{start}", encoding="utf-8")
    report = run(gather([str(path)], (), Options(gpu="h200")))

    assert ("shared-card" in codes(report)) != ordered


def test_two_servers_of_one_container(tmp_path: Path) -> None:
    """What a container's script leaves running shares the container's devices."""
    script = f"{ONE} & {ONE.replace('8192', '4096')} & wait"
    pod = (
        "kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n    - name: s\n"
        "      image: vllm/vllm-openai:v0.33.0\n      command: [bash, -c]\n"
        "      args:\n        - {}\n      resources: {{limits: {{nvidia.com/gpu: 1}}}}\n"
    )
    path = tmp_path / "pod.yaml"
    for text, expected in ((script, ["shares-over-card"]), (ONE, [])):
        path.write_text(pod.format(text), encoding="utf-8")
        report = run(gather([str(path)], (), Options(gpu="h200")))
        assert [c for c in codes(report) if c.startswith("share")] == expected


SHM = "meta-llama/Llama-3.1-8B --max-model-len 8192 --tensor-parallel-size {tp}"
DOCKER = f"docker run --gpus all {{}} vllm/vllm-openai:v0.33.0 {SHM}\n"
SERVICE = (
    "services:\n  a:\n    image: vllm/vllm-openai:v0.33.0\n    gpus: all\n    {}\n"
    f"    command: {SHM}\n"
)
POD = (
    "kind: Pod\nmetadata: {{name: p}}\nspec:\n  {}\n  containers:\n    - name: s\n"
    f"      image: vllm/vllm-openai:v0.33.0\n      args: [{SHM.replace(' ', ', ')}]\n"
    "      resources: {{limits: {{nvidia.com/gpu: {tp}}}}}\n      {mounts}\n"
)
QUADLET = (
    f"[Container]\nImage=vllm/vllm-openai:v0.33.0\nAddDevice=nvidia.com/gpu=all\n{{}}\nExec={SHM}\n"
)
MOUNTED = "volumeMounts: [{name: m, mountPath: /dev/shm}]"
LIMITED = "volumes: [{{name: m, emptyDir: {{medium: Memory, sizeLimit: {}}}}}]"
IN_POD = POD.replace("{mounts}", MOUNTED.replace("{", "{{").replace("}", "}}"))
MEMORIES = [
    ("x.sh", DOCKER, "", 2, "--shm-size"),
    ("x.sh", DOCKER, "", 1, ""),
    ("x.sh", DOCKER, "--shm-size 64m", 2, "--ipc=host"),
    ("x.sh", DOCKER, "--shm-size=16g", 2, ""),
    ("x.sh", DOCKER, "--ipc=host", 2, ""),
    ("x.sh", DOCKER, "--ipc private", 2, "--ipc=host"),
    ("x.sh", DOCKER, "-v /dev/shm:/dev/shm", 2, ""),
    ("x.sh", DOCKER, "--tmpfs /dev/shm:size=8g", 2, ""),
    ("x.sh", DOCKER.replace("docker", "podman"), "", 2, "--shm-size"),
    ("x.yaml", SERVICE, "", 2, "shm_size"),
    ("x.yaml", SERVICE, "", 1, ""),
    ("x.yaml", SERVICE, "shm_size: 8gb", 2, ""),
    ("x.yaml", SERVICE, "shm_size: 64mb", 2, "ipc: host"),
    ("x.yaml", SERVICE, "ipc: host", 2, ""),
    ("x.yaml", SERVICE, "ipc: shareable", 2, "ipc: host"),
    ("x.yaml", SERVICE, "volumes: [/dev/shm:/dev/shm]", 2, ""),
    ("x.yaml", SERVICE, "volumes: [{type: tmpfs, target: /dev/shm}]", 2, ""),
    ("x.yaml", SERVICE, "tmpfs: /dev/shm:size=8g", 2, ""),
    ("x.yaml", POD, "", 2, "medium: Memory"),
    ("x.yaml", POD, "", 1, ""),
    ("x.yaml", POD, "hostIPC: true", 2, ""),
    ("x.yaml", IN_POD, "", 2, ""),
    ("x.yaml", IN_POD, "volumes: [{name: m, emptyDir: {medium: Memory}}]", 2, ""),
    ("x.yaml", IN_POD, LIMITED.format("64Mi"), 2, "of no sizeLimit"),
    ("x.yaml", IN_POD, LIMITED.format("64M"), 2, "of no sizeLimit"),
    ("x.yaml", IN_POD, LIMITED.format("16Gi"), 2, ""),
    ("x.container", QUADLET, "", 2, "ShmSize"),
    ("x.container", QUADLET, "ShmSize=8g", 2, ""),
    ("x.container", QUADLET, "PodmanArgs=--ipc=host", 2, ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "more", "tp", "cure"), MEMORIES)
def test_ranks_in_a_container_share_memory(
    name: str, text: str, more: str, tp: int, cure: str, tmp_path: Path
) -> None:
    """Of the 64 MiB that a container has by itself it is told, with the cure of its carrier."""
    path = tmp_path / name
    path.write_text(text.format(more, tp=tp, mounts=""), encoding="utf-8")
    report = run(gather([str(path)], (), Options(gpu="h200")))

    assert ("small-shared-memory" in codes(report)) == bool(cure)
    if cure:
        found = by_code(report, "small-shared-memory")
        assert found.status == "warn"
        assert cure in found.hint


def test_no_container_no_shared_memory_of_its_own(tmp_path: Path) -> None:
    """A process of the host has all of the host's; an engine of one process shares with nobody."""
    path = tmp_path / "run.sh"
    for text in (
        "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --tensor-parallel-size 2\n",
        "docker run --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda -m llama-3.1-8b -c 8192\n",
    ):
        path.write_text(text, encoding="utf-8")
        report = run(gather([str(path)], (), Options(gpu="h200")), allow_skips=True)
        assert "small-shared-memory" not in codes(report)


def test_devices_of_their_own() -> None:
    """A scheduler gives each pod its own device."""
    made = report_on(server(name="a", max_model_len=8192), server(name="b", max_model_len=8192))

    assert codes(made) == []


def test_instance_types_count() -> None:
    """An instance type says how many cards there are where nothing else does."""
    wrong = gpus(None, "g5.12xlarge", resource=None)
    found = by_code(report_on(server(max_model_len=4096, gpu=wrong)), "idle-gpus")

    assert "g5.12xlarge" not in codes(report_on(server(max_model_len=4096, gpu=wrong)))
    assert found.message.startswith("3 GPUs of 4 stay idle")


def test_engine_refusal_stops_its_assertions() -> None:
    """What the engine refuses is said once, and what hangs on it is skipped with that reason."""
    made = report_on(
        server(tensor_parallel_size=3, gpu=gpus(3), max_model_len=8192),
        asserts={"min_max_concurrency": 1},
    )

    assert [r.status for r in made.results] == ["fail", "skip", "skip"]
    assert made.results[1].message == "the engine refuses these settings"


def test_not_modelled_is_no_failure() -> None:
    """What kvcalc does not model fails nobody's build: it is skipped, and says so."""
    made = report_on(server(engine="tgi", max_model_len=8192))

    assert {r.status for r in made.results} == {"skip"}
    assert "not modelled" in made.results[0].message


@pytest.mark.parametrize("engine", ["vllm serve", "lmdeploy serve api_server"])
def test_servers_behind_one_another_in_a_script(engine: str, tmp_path: Path) -> None:
    """Two that `&` leaves running share the first card; in front the second waits for the first."""
    path = tmp_path / "run.sh"
    start = f"{engine} meta-llama/Llama-3.1-8B\n"

    def found(text: str) -> list[str]:
        path.write_text(text, encoding="utf-8")
        report = run(gather([str(path)], (), Options(gpu="h200")))
        return [code for code in codes(report) if code.startswith("share")]

    both = start.replace("\n", " &\n") * 2 + "wait\n"
    code = "shares-over-card" if "vllm" in engine else "shared-card"
    assert found(both) == [code]
    assert found(start * 2) == []
    apart = "CUDA_VISIBLE_DEVICES=0 " + start.replace("\n", " &\n")
    assert found(apart + apart.replace("=0", "=1")) == []


def test_caches_in_bytes_are_added_up(tmp_path: Path) -> None:
    """Caches that are set in bytes, and the weights beside them, must be on the card together."""
    path = tmp_path / "run.sh"
    one = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --kv-cache-memory-bytes {}G &\n"

    def found(*sizes: int) -> list[Check]:
        path.write_text("".join(map(one.format, sizes)), encoding="utf-8")
        report = run(gather([str(path)], (), Options(gpu="h100-80gb")))
        return [r for r in report.results if r.assertion.startswith("share")]

    (told,) = found(30, 40)
    assert "of h100-80gb" in told.message
    assert told.status == "fail"
    assert found(10, 12) == []


def test_shares_of_models_that_are_not_known(tmp_path: Path) -> None:
    """A share of the card is taken whatever is served."""
    path = tmp_path / "run.sh"
    path.write_text(
        "vllm serve org/no-such-one --gpu-memory-utilization 0.9 &\n"
        "vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.5 &\n",
        encoding="utf-8",
    )
    report = run(gather([str(path)], (), Options(gpu="h200")))

    assert "0.9 + 0.5 are 1.4 of the card" in by_code(report, "shares-over-card").message
