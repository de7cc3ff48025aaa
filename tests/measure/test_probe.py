"""The probe without a device: layouts, the procedure on a fake, the dry run, logs played again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvcalc
from kvcalc.core.errors import InputError, InvalidValueError, UnavailableError
from kvcalc.core.lengths import Lengths
from kvcalc.measure.probe import engine_query as asked_module
from kvcalc.measure.probe import open_device
from kvcalc.measure.probe.device import (
    Contiguous,
    Decoded,
    DeviceFacts,
    Paged,
    Reading,
    attention_layers,
    laid_out,
    twin_tensors,
)
from kvcalc.measure.probe.findings import LEAK_LIMIT, ProbeLog, as_json, found, from_json
from kvcalc.measure.probe.procedure import MAX_REQUESTS, Question, ask, measure
from tests.cli.harness import call, is_fault, validate

EXAMPLE = Lengths.of([200, 1200, 700, 2600])
MODELS = ["llama-3.1-8b", "qwen3.5-27b", "gemma-3-27b", "deepseek-v3.2", "jamba-v0.1", "opt-13b"]
ENGINES = ["none", "vllm", "sglang", "transformers", "llama.cpp", "tensorrt-llm", "lmdeploy", "tgi"]


def planned(model: str = "llama-3.1-8b", engine: str = "none", **settings: Any) -> kvcalc.CachePlan:
    """Return a plan for one card."""
    card = None if engine == "none" else kvcalc.load_gpu("h100-80gb")
    deployment = kvcalc.Deployment(engine=engine, max_model_len=8192, gpu=card, **settings)
    return kvcalc.plan(kvcalc.load_model(model), deployment)


class FakeDevice:
    """A device whose every figure is known: nothing is rounded, and a step takes 777 B.

    Args:
        free: bytes that it has.
        leaks: bytes that each release forgets to give back.
        wide: bytes that each tensor takes beyond what was asked.
    """

    def __init__(self, free: int = 2**40, *, leaks: int = 0, wide: int = 0) -> None:
        self.facts = DeviceFacts(kind="cuda", name="a fake card", caching=False)
        self.free, self.leaks, self.wide = free, leaks, wide
        self.held: dict[int, int] = {}
        self.leaked = self.peak = self.count = 0
        self.most = 0
        self.steps: list[Paged | Contiguous] = []

    def settle(self) -> None:
        return

    def reset_peak(self) -> None:
        self.peak = sum(self.held.values())

    def read(self) -> Reading:
        held = sum(self.held.values())
        return Reading(
            storage=held + self.leaked,
            allocated=held + self.leaked,
            peak=max(self.peak, held) + self.leaked,
            used=held + self.leaked,
            free=self.free - held,
        )

    def allocate(self, size: int) -> int:
        if sum(self.held.values()) + size > self.free:
            raise UnavailableError("CUDA out of memory. Tried to allocate much", hint="--limit")
        self.count += 1
        self.held[self.count] = size + self.wide
        self.most = max(self.most, sum(self.held.values()))
        return self.count

    def release(self, handles: tuple[int, ...]) -> None:
        for handle in handles:
            del self.held[handle]
        self.leaked += self.leaks if handles else 0

    def _step(self, step: Paged | Contiguous) -> Decoded:
        self.steps.append(step)
        self.peak = sum(self.held.values()) + 777
        return Decoded("fake")

    def decode_paged(self, step: Paged) -> Decoded:
        return self._step(step)

    def decode_contiguous(self, step: Contiguous) -> Decoded:
        return self._step(step)


def run(device: Any, question: Question, **more: Any) -> ProbeLog:
    """Measure with the version that tests have."""
    return measure(device, question, backend="torch", version="0", **more)


# --------------------------------------------------------------------- layouts


REFUSED = {
    *(("qwen3.5-27b", engine) for engine in ("tensorrt-llm", "tgi")),
    *(("jamba-v0.1", engine) for engine in ("sglang", "tensorrt-llm", "lmdeploy", "tgi")),
    *(("opt-13b", engine) for engine in ("llama.cpp", "tgi", "lmdeploy")),
    ("deepseek-v3.2", "tgi"),
}
"""Models that an engine has no cache for; its own tests say so too."""

PAIRS = [(m, e) for m in MODELS for e in ENGINES if (m, e) not in REFUSED]
each_pair = pytest.mark.parametrize(("model", "engine"), PAIRS)


@each_pair
def test_tensors_add_up(model: str, engine: str) -> None:
    """Whatever the engine and the layers: the tensors are the pool, to the byte."""
    plan = planned(model, engine)
    for pool in plan.rank.pools:
        units = pool.units or 1000
        assert sum(laid_out(plan, pool, units).sizes) == pool.total_bytes(units)
    whole = sum(twin_tensors(plan, 8192, 3))
    assert whole == 3 * plan.contiguous(8192).rank.bytes_needed(8192)


def test_how_engines_cut_their_pools() -> None:
    """One tensor a layer (of vLLM's hybrids: a layer of the widest group), or K and V apart."""
    vllm, sglang = planned(engine="vllm"), planned(engine="sglang")
    (pool,) = vllm.rank.pools
    assert laid_out(vllm, pool, 100).sizes == (100 * 65536,) * 32
    (pool,) = sglang.rank.pools
    assert laid_out(sglang, pool, 100).sizes == (101 * 2048,) * 64  # one slot is nobody's
    hybrid = planned("qwen3.5-27b", "vllm")
    (pool,) = hybrid.rank.pools
    assert laid_out(hybrid, pool, 10).sizes == (10 * 3407872,) * 16
    home = planned(engine="llama.cpp")
    (pool,) = home.rank.pools
    assert len(laid_out(home, pool, pool.units or 0).sizes) == 1


@pytest.mark.parametrize(
    ("model", "engine", "readable"),
    [
        ("llama-3.1-8b", "vllm", [True]),
        ("gemma-3-27b", "none", [True, True]),
        ("qwen3.5-27b", "vllm", [False, False, False, True]),
        ("deepseek-v3.2", "vllm", [False]),
    ],
)
def test_what_a_plain_kernel_can_read(model: str, engine: str, readable: list[bool]) -> None:
    plan = planned(model, engine)
    assert [attention_layers(plan, group) is not None for group in plan.rank.groups()] == readable


def test_shapes_of_attention() -> None:
    plan = planned()
    attention = attention_layers(plan, plan.rank.groups()[0])
    assert attention is not None
    assert (attention.layers, attention.num_heads, attention.num_kv_heads) == (32, 32, 8)
    assert attention.token_bytes * attention.layers == 131072
    quantised = planned(engine="vllm", kv_cache_dtype="fp8")
    assert attention_layers(quantised, quantised.rank.groups()[0]) is None


# --------------------------------------------------------------------- the procedure


def test_the_procedure() -> None:
    """Three repetitions after a warm-up; every stage; blocks of no two requests are the same."""
    device = FakeDevice()
    log = run(device, ask(planned(engine="vllm"), EXAMPLE))
    names = ["baseline", "pool", "decode", "freed", "contiguous", "contiguous_decode", "end"]
    assert [[stage.name for stage in stages] for stages in log.runs] == [names] * 3
    paged = [step for step in device.steps if isinstance(step, Paged)]
    assert len(paged) == 4
    ids = [block for table in paged[0].tables for block in table]
    assert 0 not in ids  # vLLM's null block
    assert len(ids) == len(set(ids)) == 13 + 75 + 44 + 163
    assert sorted(paged[0].lengths) == [200, 700, 1200, 2600]
    assert not device.held
    result = found(log)
    assert result.computed_bytes == (295 + 1) * 2097152 == result.measured.storage_bytes
    assert result.workspace_bytes == 777
    assert result.contiguous_computed_bytes == 4 * 8192 * 131072
    assert result.leak_bytes == 0
    assert result.spread_bytes == 0
    assert "to the byte" in result.verdict


def test_a_device_that_takes_more_is_told() -> None:
    """Figures are read from the device: 4,096 B more a tensor make a difference of 32 of them."""
    result = found(run(FakeDevice(wide=4096), ask(planned(), EXAMPLE)))
    gap = next(d for d in result.differences if d.name == "pool: storage")
    assert (gap.bytes, gap.expected_bytes) == (32 * 4096, 0)
    assert "to the byte" not in result.verdict


def test_a_leak_is_told() -> None:
    result = found(run(FakeDevice(leaks=LEAK_LIMIT), ask(planned(), EXAMPLE)))
    assert result.leak_bytes == 2 * LEAK_LIMIT
    assert "not given back" in result.verdict


def test_the_limit() -> None:
    """The probe holds no more than it may; one piece a request is then computed, not measured."""
    question = ask(planned(), EXAMPLE)
    size = question.asked.computed_bytes
    device = FakeDevice()
    log = run(device, question, limit=size)
    assert device.most == size
    assert all(stage.name != "contiguous" for stage in log.runs[0])
    result = found(log)
    assert result.contiguous is None
    assert any("not measured" in note for note in result.notes)
    with pytest.raises(InvalidValueError, match="more than the limit"):
        run(device, question, limit=size - 1)
    with pytest.raises(InvalidValueError, match="more than the limit"):
        run(FakeDevice(2 * size - 1), question)  # half of what is free


def test_out_of_memory_gives_everything_back() -> None:
    question = ask(planned(), EXAMPLE)
    device = FakeDevice(question.asked.computed_bytes // 2)
    with pytest.raises(UnavailableError, match="out of memory"):
        run(device, question, limit=2**50)
    assert not device.held


@pytest.mark.parametrize(
    ("lengths", "memory"),
    [(Lengths.of([9000]), None), (Lengths({1: MAX_REQUESTS + 1}), None), (EXAMPLE, 10 * 2097152)],
)
def test_questions_that_make_no_sense(lengths: Lengths, memory: int | None) -> None:
    with pytest.raises(InvalidValueError):
        ask(planned(engine="vllm"), lengths, memory)


def test_a_given_cache() -> None:
    question = ask(planned(engine="vllm"), EXAMPLE, 2**30)
    assert question.asked.units == 512
    assert question.asked.computed_bytes == 2**30


@each_pair
def test_every_engine_goes_through_the_motions(model: str, engine: str) -> None:
    """A dry run measures what is computed, and PyTorch's rounding as expected, whatever the cut."""
    plan = planned(model, engine)
    # A cache of a fixed size holds what it holds.
    question = ask(plan, Lengths.of([200]) if plan.sized else EXAMPLE)
    device = open_device("auto", "auto", dry_run=True, memory_bytes=2**43)
    result = found(run(device, question, repetitions=1))
    assert result.measured.storage_bytes == result.computed_bytes
    assert all(
        d.expected_bytes == d.bytes for d in result.differences if d.expected_bytes is not None
    )


# --------------------------------------------------------------------- logs


def test_a_log_is_played_again() -> None:
    log = run(FakeDevice(wide=512, leaks=5), ask(planned(), EXAMPLE))
    again = from_json(as_json(log).encode(), "x")
    assert again == log
    assert found(again) == found(log)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"schema": "kvcalc.probe-log/9"}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"schema": 1e999}',
    ],
)
def test_no_log(content: bytes) -> None:
    with pytest.raises(InputError):
        from_json(content, "x")


def test_a_log_of_another_version() -> None:
    log = json.loads(as_json(run(FakeDevice(), ask(planned(), EXAMPLE))))
    changes: list[dict[str, Any]] = [{"schema": "kvcalc.probe-log/2"}, {"runs": []}, {"extra": 1}]
    for change in changes:
        with pytest.raises(InputError):
            from_json(json.dumps({**log, **change}).encode(), "x")


def altered(where: tuple[str | int, ...], value: object) -> bytes:
    """Return a log of a caching device with one value that is another."""
    device = open_device("auto", "auto", dry_run=True)
    document = json.loads(as_json(run(device, ask(planned(), EXAMPLE), repetitions=1)))
    at: Any = document
    for key in where[:-1]:
        at = at[key]
    assert at[where[-1]] != value
    at[where[-1]] = value
    return json.dumps(document).encode()


POOL = ("runs", 0, 1, "reading")


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ((*POOL, "storage"), -5, ">= 0"),
        ((*POOL, "used"), 10**30, "out of range|<="),
        ((*POOL, "free"), 2**61, "<="),
        ((*POOL, "requested"), 2**50, "requested 1,125,899,906,842,624 B of allocated"),
        ((*POOL, "reserved"), 1, "of reserved 1 B"),
        ((*POOL, "peak"), 1, "a peak of 1 B"),
        (("runs", 0, 1, "workspace"), -1, ">= 0"),
        (("runs", 0, 1, "name"), "somewhere", "in that order"),
        (("runs", 0, 2, "name"), "pool", "in that order"),
        (("asked", "computed_bytes"), 1, "add up to 618,659,840 B, not 1"),
        (("asked", "contiguous_sizes"), [[5, 5]], "add up to 25 B"),
        (("asked", "sizes", 0), [1, 1], "add up to 1 B"),
        (("asked", "requests"), -1, ">= 0"),
        (("asked", "tokens"), -1, ">= 0"),
        (("asked", "block_size"), 0, ">= 1"),
    ],
)
def test_impossible_readings(where: tuple[str | int, ...], value: object, said: str) -> None:
    """What no device can tell is refused, and not evaluated."""
    with pytest.raises(InputError, match=said):
        from_json(altered(where, value), "x")


def test_a_log_moves_no_cursor(tmp_path: Path) -> None:
    """Whatever texts stand in a log, none of them steers the terminal that they are shown on."""
    log = tmp_path / "log.json"
    for where in (("asked", "model"), ("asked", "layout"), ("device", "name"), ("notes", 0)):
        evil = "\x1b[31mevil\x9b\u202e"
        content = altered(("notes",), [evil]) if where[0] == "notes" else altered(where, evil)
        log.write_bytes(content)
        for form in ("table", "csv", "markdown", "json"):
            made = call("probe", "--replay", str(log), "--format", form)
            assert made.code == 0, made.err
            assert all(c.isprintable() or c == "\n" for c in made.out)
            assert "evil" in made.out


# --------------------------------------------------------------------- the command


def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    no_torch(monkeypatch)
    found = call("probe")
    assert is_fault(found, 3).startswith("no GPU")
    assert "--device cpu" in found.hints[0]


def test_with_torch_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no GPU the probe says so, exits 3 and offers the CPU mode."""
    fake: Any = ModuleType("torch")
    fake.__version__ = "2.13.0"
    nothing: Any = ModuleType("nothing")
    nothing.is_available = lambda: False
    nothing.mps = nothing
    nothing.hip = None
    fake.version = fake.cuda = fake.xpu = fake.backends = nothing
    monkeypatch.setitem(sys.modules, "torch", fake)
    found = call("probe")
    assert is_fault(found, 3).startswith("no GPU")
    assert "--device cpu" in found.hints[0]
    assert is_fault(call("probe", "--device", "mps"), 3).startswith("no mps device")


def test_without_a_driver() -> None:
    found = call("probe", "--backend", "nvml")
    if found.code:  # a machine with an NVIDIA card reads it
        assert is_fault(found, 3).startswith("no NVIDIA driver")


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_dry_run(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_torch(monkeypatch)
    log = tmp_path / "log.json"
    arguments = ["llama-3.1-8b", "--engine", "vllm", "--gpu", "h100-80gb", "--format", form]
    made = call("probe", "--dry-run", *arguments, "--log", str(log))
    assert made.code == 0, made.err
    again = call("probe", "--replay", str(log), "--format", form)
    assert again.code == 0, again.err
    if form == "json":
        assert validate("probe", made.document) == []
        assert made.results == again.results
        assert made.results[0]["computed_bytes"] == 620756992
    else:
        assert made.out == again.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dry-run", "--device", "cpu"),
        ("--dry-run", "--limit", "1MiB"),
        ("--dry-run", "--limit", "0"),
        ("--dry-run", "--repeat", "0"),
        ("--dry-run", "--lengths", "1x100000"),
        ("--dry-run", "llama-3.1-8b", "opt-13b"),
        ("--replay", "/nowhere"),
        ("--replay", "x", "--dry-run"),
        ("--replay", "x", "--log", "y"),
        ("--backend", "tensorflow"),
        ("--backend", "vllm", "--kv-memory", "1GiB", "--dry-run"),
        ("--device", "abacus"),
        ("--dry-run", "--log", "/nowhere/at/all.json"),
    ],
)
def test_bad_input(arguments: tuple[str, ...]) -> None:
    if "1x100000" in arguments:
        arguments = (*arguments[:-1], "20000x10")
    is_fault(call("probe", *arguments))


@pytest.mark.parametrize("backend", ["vllm", "llama.cpp", "transformers"])
def test_an_engine_before_its_model(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not installed is told first, and only then what it should read."""
    monkeypatch.setattr(asked_module, "find_spec", lambda _: None)
    found = call("probe", "--backend", backend)
    assert is_fault(found, 3) == f"{backend} is not installed beside kvcalc"
    assert "pip install" in found.hints[0]
    monkeypatch.setattr(asked_module, "find_spec", lambda name: name)
    is_fault(call("probe", "--backend", backend, "llama-3.1-8b"), 2)


def test_the_hint_of_a_replay() -> None:
    """A log that is not there is no page of metrics."""
    found = call("probe", "--replay", "/nowhere/at/all.json")
    is_fault(found)
    assert "--log FILE" in found.hints[0]


# --------------------------------------------------------------------- engines asked


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Let an engine answer so, and return the questions that it is asked."""
    questions = []

    def child(backend: str, question: dict[str, Any]) -> dict[str, Any]:
        questions.append({**question, "backend": backend})
        return answer

    monkeypatch.setattr(asked_module, "run_child", child)
    monkeypatch.setattr(asked_module, "require", lambda _: None)
    return questions


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(("blocks", "equal"), [(8192, True), (8191, False)])
def test_vllm_asked(
    blocks: int, equal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the real CPU build answered; with a block less, the difference is told."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    answer = {
        "version": "0.32.0",
        "num_blocks": blocks,
        "bytes": blocks * 131072,
        "groups": 1,
        "block_size": 128,
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
        "async_scheduling": False,
        "prefix_caching": True,
        "kv_cache_tokens": blocks * 128,
        "max_concurrency": blocks / 16,
    }
    questions = answering(monkeypatch, answer)
    arguments = ["--backend", "vllm", str(tmp_path), "--kv-memory", "1GiB", "--format", "json"]
    made = call("probe", *arguments)
    assert made.code == 0, made.err
    (result,) = made.results
    assert ("to the byte" in result["verdict"]) is equal
    assert any(d["bytes"] for d in result["differences"]) is not equal
    assert questions[0]["available"] == 2**30
    assert questions[0]["folder"] == str(tmp_path)


def test_a_child_that_is_not_installed() -> None:
    """The real children, without their engines: exit code 3 and what to install."""
    with pytest.raises(UnavailableError) as error:
        asked_module.run_child("llama.cpp", {"file": "x", "settings": {}})
    assert "xllamacpp" in error.value.hint or "refuses" in str(error.value)
