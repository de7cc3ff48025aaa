"""The probe on a CPU without torch: exact bytes, and what is laid into a pool is read back."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import kvcalc
from kvcalc.core.errors import InvalidValueError, UnavailableError
from kvcalc.core.lengths import Lengths
from kvcalc.measure.probe import numpy_device, open_device
from kvcalc.measure.probe.device import Attention, Contiguous, Paged, available, resident
from kvcalc.measure.probe.findings import found
from kvcalc.measure.probe.numpy_device import NumpyDevice
from kvcalc.measure.probe.procedure import ask, measure
from tests.cli.harness import call, is_fault, validate

SHAPE = ("--layers", "2", "--kv-heads", "2", "--head-dim", "16", "--max", "64")


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch be absent, whatever is installed."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize("engine", ["none", "vllm", "sglang", "transformers", "llama.cpp"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "qwen3.5-27b", "deepseek-v3.2"])
def test_exact_bytes(model: str, engine: str) -> None:
    """Storages are what is computed, whatever the layout; a plain one is also read back."""
    card = None if engine == "none" else kvcalc.load_gpu("h100-80gb")
    deployment = kvcalc.Deployment(engine=engine, max_model_len=256, gpu=card)
    plan = kvcalc.plan(kvcalc.load_model(model), deployment)
    # A cache of a fixed size holds one sequence.
    question = ask(plan, Lengths.of([200] if plan.sized else [200, 17, 100, 17]))
    device = open_device("cpu", "auto", dry_run=False)
    log = measure(device, question, backend="torch", version="0", repetitions=1)
    result = found(log)
    assert result.measured.storage_bytes == result.computed_bytes == question.asked.computed_bytes
    assert result.leak_bytes == 0
    assert "to the byte" in result.verdict
    assert result.kind == "cpu"
    if model == "llama-3.1-8b" and engine in ("none", "vllm", "sglang"):
        assert result.kernel == "numpy: attention over gathered blocks"
        read = (200 + 17 + 100 + 17) * 131_072
        assert f"read back, {read:,} B" in " ".join(result.notes)
        assert result.workspace_bytes
        assert result.workspace_bytes < read


def test_the_command() -> None:
    """`probe --device cpu` runs on any machine, in every format."""
    arguments = ("probe", *SHAPE, "--device", "cpu", "--lengths", "40,3", "--repeat", "1")
    for form in ("table", "csv", "markdown"):
        assert call(*arguments, "--format", form).code == 0
    made = call(*arguments, "--format", "json")
    assert made.code == 0, made.err
    assert validate("probe", made.document) == []
    (result,) = made.results
    assert result["measured"]["storage_bytes"] == result["computed_bytes"] == 4 * 16 * 256
    assert result["versions"].keys() == {"numpy"}


def test_one_request() -> None:
    """One takes, several take; it is as many times as much as there is room for."""
    made = call("probe", *SHAPE, "--device", "cpu", "--lengths", "16", "--repeat", "1")
    assert "In one piece each, the 1 request takes 4.00 times as much." in made.out


def test_hints_lead_on() -> None:
    """No hint recommends what was just tried."""
    without = call("probe")
    assert is_fault(without, 3).startswith("no GPU")
    assert "--device cpu measures here without it" in without.hints[0]
    other = call("probe", *SHAPE, "--device", "cpu", "--kernel", "flex")
    assert is_fault(other, 3).startswith("kernel flex does not run here: torch is not installed")
    assert "--device cpu" not in other.hints[0]
    assert call("probe", *SHAPE, "--device", "cpu", "--kernel", "sdpa", "--lengths", "5").code == 0


# --------------------------------------------------------------------- reading back

PLAIN = Attention(2, 4, 2, 8, "bfloat16", 4, None)


def step(
    tables: tuple[tuple[int, ...], ...], lengths: tuple[int, ...], **changes: Any
) -> tuple[NumpyDevice, Paged]:
    """Return a device with a pool of 20 blocks, and a step over it."""
    attention = PLAIN._replace(**changes)
    device = NumpyDevice()
    pool = 20 * attention.block_size * attention.token_bytes
    tensors = tuple(device.allocate(pool) for _ in range(attention.layers))
    return device, Paged(attention, tensors, False, tables, lengths)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("apart", [False, True])
def test_read_back(dtype: str, apart: bool) -> None:
    """Blocks in any order, last ones in part; K and V in one tensor or in two."""
    device, paged = step(((7, 3, 9), (1,), (0, 19)), (12, 1, 5), dtype=dtype)
    if apart:
        half = paged.tensors[0].nbytes // 2
        paged = paged._replace(tensors=tuple(device.allocate(half) for _ in "1234"), apart=True)
    decoded = device.decode_paged(paged)
    size = 4 if dtype == "float32" else 2
    assert f"{18 * 2 * 2 * 16 * size:,} B of a step" in decoded.notes[0]
    words = sum(np.count_nonzero(tensor.view(np.uint8)) for tensor in paged.tensors)
    assert words > 18 * 2 * 2 * 16 * 0.9  # one number in 251 is 0


@pytest.mark.parametrize(
    "tables", [((7, 3, 9), (3,)), ((7, 7, 9), (1,)), ((7, 3, 9), (9,))], ids=["", "own", "last"]
)
def test_blocks_that_are_shared_show(tables: tuple[tuple[int, ...], ...]) -> None:
    """Two requests in one block overwrite each other, which is told and not passed over."""
    device, paged = step(tables, (12, 4))
    with pytest.raises(InvalidValueError, match="were read back otherwise"):
        device.decode_paged(paged)


def test_a_table_that_is_too_short_shows() -> None:
    """A request with more tokens than its blocks hold is told as well."""
    device, paged = step(((7, 3), (1,)), (12, 4))
    with pytest.raises(InvalidValueError, match="were read back otherwise"):
        device.decode_paged(paged)


def test_windows() -> None:
    """Of a window the last tokens of the blocks are laid and read."""
    device, paged = step(((7, 3, 9), (1,)), (6, 2), window=6)
    assert "read back" in device.decode_paged(paged).notes[0]
    rows = paged.tensors[0].view(np.uint16).reshape(2, 20, 4, 16)
    assert not rows[0, 7].any()  # before the window
    assert not rows[0, 3, :2].any()
    assert rows[0, 3, 2:].any()
    assert rows[0, 9].any()


def test_one_piece_each() -> None:
    device = NumpyDevice()
    size = 2 * 16 * 16 * 2
    keys, values = (tuple(device.allocate(size) for _ in range(2)) for _ in "kv")
    decoded = device.decode_contiguous(Contiguous(PLAIN, keys, values, 16, (16, 3)))
    assert f"{19 * 2 * 2 * 16 * 2:,} B of a step" in decoded.notes[0]
    assert not keys[0].view(np.uint16).reshape(2, 16, 16)[1, 3:].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_numbers_are_exact(dtype: str) -> None:
    """Whole numbers below 251 are themselves in each dtype, there and back."""
    numbers = np.arange(251, dtype=np.float32)
    words = numpy_device._as_words(numbers, dtype)
    assert words.itemsize == (4 if dtype == "float32" else 2)
    assert np.array_equal(numpy_device._as_floats(words, dtype), numbers)


def test_attention_is_attention() -> None:
    """The step computes what it says: softmax(q k / sqrt(d)) v, each KV head for its group."""
    rng = np.random.default_rng(7)
    query = rng.normal(size=(2, 2, 8)).astype(np.float32)
    keys, values = (rng.normal(size=(11, 16)).astype(np.float32) for _ in "kv")
    attention = PLAIN._replace(dtype="float32")
    got = numpy_device._attend(query, keys.view(np.uint32), values.view(np.uint32), attention)
    for head in range(2):
        k, v = (side.reshape(11, 2, 8)[:, head].astype(float) for side in (keys, values))
        scores = query[head].astype(float) @ k.T / np.sqrt(8)
        weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[head], weights @ v, rtol=1e-4, atol=1e-5)


def test_no_room() -> None:
    with pytest.raises(UnavailableError, match="no room"):
        NumpyDevice().allocate(2**62)


def test_what_the_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no system tells what is available, its size bounds a probe."""
    free = available()
    assert free is None or free > 2**20

    def nowhere(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr("builtins.open", nowhere)
    assert resident() is None
    whole = available()
    if sys.platform != "win32":
        assert whole is not None
        assert free is None or whole >= free
