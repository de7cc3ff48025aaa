"""Out-of-memory texts: the figures of every wording, and verdicts that rest on them alone."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcalc
from kvcalc.allocator import oom_words
from kvcalc.allocator.oom import judge
from kvcalc.allocator.oom_values import Amount, OomText
from kvcalc.core.errors import InputError
from kvcalc.measure.oom import MAX_TEXTS, amount, exact, read_oom, read_oom_file, read_oom_texts
from tests.conftest import ABSENT, SHARED
from tests.measure.allocator.model import SyntheticAllocator, SyntheticOutOfMemoryError
from tests.measure.allocator.oom_text import oom_text, pytorch_size
from tests.measure.oom_samples import SAMPLES

KIB, MIB, GIB = 2**10, 2**20, 2**30
CASES = SHARED / "logs" / "cases.jsonl"


def figures(text: OomText) -> dict[str, int]:
    """Return the figures that a text has, by name."""
    names = (
        *("asked", "capacity", "free", "allocated", "reserved", "unallocated", "largest"),
        *("private_pools", "allowed", "process", "other_allocations"),
    )
    return {name: value.bytes for name in names if (value := getattr(text, name)) is not None}


G, M = GIB, MIB
EXPECTED: dict[str, tuple[str, str, str, dict[str, int]]] = {
    # sample: (wording, back end, verdict, figures)
    "1.0": ("pytorch-1.0", "cuda", "mixed", {
        "asked": 50 * M, "capacity": 8 * G, "free": 30 * M, "allocated": 7 * G,
        "reserved": 7 * G + 40 * M, "unallocated": 40 * M}),
    "1.4": ("pytorch-1.4", "cuda", "fragmentation_possible", {
        "asked": 2 * G, "capacity": 16 * G, "free": G, "allocated": 10 * G,
        "reserved": 13 * G + G // 2, "unallocated": 3 * G + G // 2}),
    "1.10": ("pytorch-1.10", "cuda", "shortage", {
        "asked": 6 * G, "capacity": 16 * G, "free": G, "allocated": 10 * G,
        "reserved": 13 * G + G // 2, "unallocated": 3 * G + G // 2}),
    "2.1": ("pytorch-2.1", "cuda", "other_process", {
        "asked": 3 * G, "capacity": 24 * G, "free": G, "allocated": 13 * G,
        "reserved": 13 * G + 500 * M, "unallocated": 500 * M, "process": 14 * G}),
    "2.2": ("pytorch-2.2", "cuda", "mixed", {
        "asked": G, "capacity": 80 * G, "free": 800 * M, "allocated": 77 * G,
        "reserved": 77 * G + 900 * M, "unallocated": 900 * M, "private_pools": 64 * M,
        "process": 79 * G}),
    "2.9": ("pytorch-2.9", "cuda", "impossible", {
        "asked": 90 * G, "capacity": 80 * G, "free": 70 * G, "allocated": 8 * G,
        "reserved": 8 * G + 200 * M, "unallocated": 200 * M, "process": 9 * G}),
    "fraction": ("pytorch-2.2", "cuda", "fraction_limit", {
        "asked": 4 * G, "capacity": 80 * G, "free": 50 * G, "allocated": 27 * G,
        "reserved": 27 * G + 512 * M, "unallocated": 512 * M, "process": 29 * G,
        "allowed": 30 * G}),
    "windows": ("pytorch-2.1", "cuda", "shared_memory_spill", {
        "asked": 64 * M, "capacity": 8 * G, "free": 0, "allocated": 12 * G,
        "reserved": 12 * G + 20 * M, "unallocated": 20 * M}),
    "no number": ("pytorch-2.2", "cuda", "shortage", {
        "asked": 2 * G, "capacity": 40 * G, "free": G + G // 2, "allocated": 37 * G,
        "reserved": 37 * G + 100 * M, "unallocated": 100 * M}),
    "hip": ("pytorch-2.2", "hip", "fragmentation_possible", {
        "asked": G, "capacity": 64 * G, "free": 512 * M, "allocated": 60 * G,
        "reserved": 62 * G, "unallocated": 2 * G}),
    "npu": ("pytorch-1.10", "npu", "fragmentation_possible", {
        "asked": G, "capacity": 64 * G, "free": 300 * M, "allocated": 60 * G,
        "reserved": 62 * G, "unallocated": 2 * G}),
    "xpu": ("pytorch-2.2", "xpu", "impossible", {
        "asked": 20 * G, "capacity": 16 * G, "allocated": G, "reserved": G + 100 * M,
        "unallocated": 100 * M}),
    "mps": ("mps", "mps", "fraction_limit", {
        "asked": G, "free": G // 2, "allocated": 10 * G, "allowed": 11 * G,
        "other_allocations": 512 * M}),
    "vllm": ("vllm-kv", "vllm", "shortage", {"asked": 8 * G, "free": 5 * G + G // 2}),
    "vllm start": ("vllm-start", "vllm", "other_process", {
        "asked": 21 * G + 3 * G // 5, "capacity": 24 * G, "free": 4 * G, "process": 0}),
    "ggml compute": ("ggml", "cuda", "unknown", {"asked": 4 * G}),
    "ggml weights": ("ggml", "cuda", "shortage", {"asked": 9000 * M, "free": 7000 * M}),
    "ggml cache": ("ggml", "cuda", "unknown", {"asked": 3000 * M}),
    "vulkan": ("ggml", "vulkan", "unknown", {"asked": 2 * G}),
    "xla": ("xla", "xla", "unknown", {"asked": 6 * G}),
    "xla holes": ("xla", "tpu", "fragmentation_possible", {
        "asked": 40 * M, "unallocated": 60 * M, "largest": 30 * M}),
    "xla short": ("xla", "tpu", "shortage", {"asked": 4 * G, "unallocated": 2 * G}),
    "xla program": ("xla-hbm", "tpu", "impossible", {
        "asked": 20 * G, "capacity": 16 * G, "free": 16 * G}),
    "bfc": ("bfc", "bfc", "fragmentation_possible", {
        "asked": 3 * G // 2, "capacity": 8 * G, "allocated": 6 * G, "unallocated": 2 * G}),
    "bfc shape": ("bfc", "bfc", "unknown", {"asked": 128 * M}),
    "headroom": ("pytorch-headroom", "cuda", "fragmentation_possible", {
        "asked": 400 * M, "free": 300 * M, "unallocated": 800 * M}),
    "driver": ("driver", "cuda", "unknown", {}),
}  # fmt: skip


def test_every_sample_is_expected() -> None:
    """Each sample has its row."""
    assert EXPECTED.keys() == SAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    """Wording, back end, verdict and every figure; wrapped lines and colours change nothing."""
    wording, backend, verdict, expected = EXPECTED[name]
    found = read_oom(SAMPLES[name])
    assert found is not None
    assert (found.text.wording, found.text.backend, found.verdict) == (wording, backend, verdict)
    assert figures(found.text) == expected
    assert found.summary.endswith(".")
    assert found.advice
    assert read_oom("a log before it\n" + SAMPLES[name] + "\nand after it") == found
    if "ggml" not in name and name != "driver":
        assert read_oom(SAMPLES[name].replace(" ", "\n  ")) == found


def test_lines_of_another_stamp() -> None:
    """What stands at the edges of the text does not reach into it."""
    both = SAMPLES["1.4"] + "\n" + SAMPLES["2.2"]
    assert [found.text for found in read_oom_texts(both)] == [
        found.text for name in ("1.4", "2.2") if (found := read_oom(SAMPLES[name]))
    ]


def test_devices() -> None:
    """The device is told where the text numbers it."""
    told = {name: found.text.device for name in SAMPLES if (found := read_oom(SAMPLES[name]))}
    assert told["1.4"] == "1"
    assert told["2.1"] == "2"
    assert told["npu"] == "3"
    assert told["no number"] is None
    assert told["ggml compute"] == "CUDA1"
    assert told["bfc"] == "GPU_0_bfc"


def test_which_buffer() -> None:
    """llama.cpp's failures are told apart: compute buffer, weights, KV cache."""
    for name, said in (("compute", "compute"), ("weights", "weights"), ("cache", "KV cache")):
        found = read_oom_texts(SAMPLES[f"ggml {name}"])
        assert len(found) == 1  # its two lines tell one failure
        assert said in str(found[0].text.what)
        assert found[0].text.asked == exact(EXPECTED[f"ggml {name}"][3]["asked"])


def test_whose_process() -> None:
    """In a container the listed process is this one; beside a line for this one it is another."""
    text = read_oom(SAMPLES["no number"])
    assert text is not None
    assert [process.own for process in text.text.processes] == [True]
    assert text.other_processes_bytes == 0  # half a GiB is left, which may be the driver's

    text = read_oom(SAMPLES["2.1"])
    assert text is not None
    assert [process.own for process in text.text.processes] == [False]
    assert text.other_processes_bytes == 9 * GIB


def test_not_a_failure() -> None:
    """A warning of TensorFlow that it will do with less is none."""
    assert (
        read_oom(
            "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count"
            "=0. The caller indicates that this is not a failure, but may mean"
        )
        is None
    )


@pytest.mark.parametrize(
    "text", ["", "hello", "Tried to allocate nothing", "out of memory, I fear"]
)
def test_no_text(text: str) -> None:
    """What is none is None."""
    assert read_oom(text) is None
    assert read_oom_texts(text) == []


def test_bare_words_beside_figures() -> None:
    """Words without figures count only where nothing else does."""
    both = SAMPLES["driver"] + "\n" + SAMPLES["2.2"]
    assert [found.text.wording for found in read_oom_texts(both)] == ["pytorch-2.2"]


def test_the_same_text_many_times() -> None:
    """Ranks that fail alike are one; of too many different ones the first are told."""
    assert len(read_oom_texts(SAMPLES["2.2"] * 50)) == 1
    many = "".join(SAMPLES["2.2"].replace("1.00 GiB", f"{n}.00 GiB", 1) for n in range(1, 300))
    assert len(read_oom_texts(many)) == MAX_TEXTS


# --------------------------------------------------------------------- rounding


@given(size=st.integers(0, 2**44))
def test_rounding(size: int) -> None:
    """The range of a printed figure holds what was printed."""
    printed = amount(pytorch_size(size))
    assert printed.low <= size <= printed.high
    assert printed.low <= printed.bytes <= printed.high


def test_to_the_byte() -> None:
    """Bytes are exact; two decimals are half a hundredth of their unit to either side."""
    assert amount("512 bytes") == Amount(text="512 bytes", bytes=512, low=512, high=512)
    found = amount("1.25 GiB")
    assert found.bytes == 5 * GIB // 4
    assert found.high - found.bytes == found.bytes - found.low == GIB // 200


@pytest.mark.parametrize(
    ("unallocated", "certain"), [("0.99 GiB", True), ("1.00 GiB", False), ("1.02 GiB", True)]
)
def test_certain(unallocated: str, certain: bool) -> None:
    """Where rounding could turn the comparison, that is said."""
    found = judge(
        OomText(
            wording="pytorch-2.2",
            backend="cuda",
            asked=amount("1.00 GiB"),
            free=exact(0),
            unallocated=amount(unallocated),
        )
    )
    assert found.certain is certain
    assert any(("turn it" in line) != certain for line in found.arithmetic if "rounding" in line)


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 3, 9, 11, 33, 70, 150]), min_size=2, max_size=20),
    asked=st.sampled_from([1, 5, 30, 64, 200]),
    other=st.integers(0, 100),
    allowed=st.none() | st.integers(100, 400),
)
def test_of_the_synthetic_allocator(
    sizes: list[int], asked: int, other: int, allowed: int | None
) -> None:
    """A text that was written from figures is read back as those figures, within its rounding."""
    allocator = SyntheticAllocator(
        300 * MIB,
        other_bytes=other * MIB,
        allowed_bytes=None if allowed is None else allowed * MIB,
    )
    live = []
    try:
        for n, size in enumerate([*sizes, *[asked] * 300]):
            live.append(allocator.alloc(size * MIB))
            if n % 3 == 0 and n < len(sizes):
                allocator.free(live.pop())
    except SyntheticOutOfMemoryError as error:
        found = read_oom(f"torch.OutOfMemoryError: {error}")
    else:
        raise AssertionError("300 MiB cannot hold that")
    assert found is not None
    true = {
        "capacity": allocator.total_bytes,
        "free": allocator.mem_get_info()[0],
        "allocated": allocator.allocated_bytes,
        "unallocated": allocator.reserved_bytes - allocator.allocated_bytes,
        "process": allocator.reserved_bytes + other * MIB,
    }
    for name, value in true.items():
        printed = getattr(found.text, name)
        assert printed.low <= value <= printed.high, name
    if allowed is None:
        assert found.verdict != "free_is_enough"
        assert found.verdict != "fraction_limit"


# --------------------------------------------------------------------- verdicts


def words(asked: str, free: str, cached: str, *, capacity: str = "80.00 GiB") -> str:
    """Return a text of 2.2 with those figures."""
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {capacity}"
        f" of which {free} is free. Including non-PyTorch memory, this process has 70.00 GiB"
        " memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and"
        f" {cached} is reserved by PyTorch but unallocated."
    )


ENOUGH = "free alone is enough on paper"


@pytest.mark.parametrize(
    ("asked", "free", "cached", "verdict", "classification", "helps"),
    [
        ("2.00 GiB", "1.00 GiB", "3.00 GiB", "fragmentation_possible", "fragmentation-possible", 1),
        ("2.00 GiB", "1.50 GiB", "1.00 GiB", "mixed", "fragmentation-possible", 1),
        ("20.00 GiB", "1.00 GiB", "1.00 GiB", "shortage", "true exhaustion", 0),
        ("5.00 GiB", "1.00 GiB", "1.00 GiB", "other_process", "true exhaustion", 0),
        ("81.00 GiB", "9.00 GiB", "1.00 GiB", "impossible", "true exhaustion", 0),
        ("1.00 GiB", "9.00 GiB", "1.00 GiB", "free_is_enough", ENOUGH, None),
    ],
)  # fmt: skip
def test_verdicts(
    asked: str, free: str, cached: str, verdict: str, classification: str, helps: int | None
) -> None:
    """Each comparison has its verdict, and says whether expandable segments can help."""
    found = read_oom(words(asked, free, cached))
    assert found is not None
    assert (found.verdict, found.classification) == (verdict, classification)
    assert found.expandable_segments == helps
    said = [line for line in found.advice if line.startswith("expandable_segments")]
    assert [line.split()[1] for line in said] == ([] if helps is None else [["no,", "yes,"][helps]])


def test_shortfall() -> None:
    """What is missing is a range, and none where nothing is."""
    found = read_oom(words("20.00 GiB", "1.00 GiB", "1.00 GiB"))
    assert found is not None
    rounding = 3 * GIB // 200
    assert found.shortfall_bytes is not None
    least, most = found.shortfall_bytes
    assert most - least == pytest.approx(2 * rounding, abs=4)
    assert (least + most) // 2 == pytest.approx(18 * GIB, abs=2)

    assert (read_oom(words("1.00 GiB", "9.00 GiB", "1.00 GiB")) or found).shortfall_bytes is None


def test_a_full_card() -> None:
    """Holes on a card that is full are not the whole cause, and that is said."""
    found = read_oom(words("22.00 MiB", "11.00 MiB", "194.00 MiB"))
    assert found is not None
    assert found.verdict == "fragmentation_possible"
    assert any("full to 98 %" in line for line in found.advice)


def test_what_twenty_stands_for() -> None:
    """20 MiB is what PyTorch asks the device for, whatever of 1 to 10 MiB was wanted."""
    found = read_oom(words("20.00 MiB", "0 bytes", "1.00 MiB"))
    assert found is not None
    assert any("any allocation of 1 MiB to 10 MiB" in line for line in found.arithmetic)


def test_units() -> None:
    """Sizes are printed in the units asked for."""
    found = read_oom(SAMPLES["2.2"], units="decimal")
    assert found is not None
    assert any("MB" in line for line in found.arithmetic)
    assert not any("MiB" in line or "GiB" in line for line in found.arithmetic)


def test_own_words() -> None:
    """The allocator's own text reads as the wording of 2.2."""
    text = oom_text(
        asked_bytes=2 * GIB,
        device=1,
        capacity_bytes=80 * GIB,
        free_bytes=MIB,
        process_bytes=79 * GIB,
        allocated_bytes=70 * GIB,
        unallocated_bytes=8 * GIB,
    )
    found = kvcalc.read_oom(text)
    assert found is not None
    assert (found.text.wording, found.text.device) == ("pytorch-2.2", "1")
    assert found.verdict == "fragmentation_possible"


def test_files(tmp_path: Any) -> None:
    """A log is searched; one without such a text is refused, and so is another kind of file."""
    path = tmp_path / "log.txt"
    path.write_text("start\n" * 1000 + SAMPLES["2.1"] + "\nend\n", encoding="utf-8")
    assert [found.verdict for found in read_oom_file(str(path))] == ["other_process"]
    path.write_bytes(("é" + SAMPLES["2.1"]).encode("utf-16"))
    assert [found.verdict for found in read_oom_file(str(path))] == ["other_process"]
    for data, said in ((b"nothing here", "no out-of-memory text"), (b"\x1f\x8b...", "gzip")):
        path.write_bytes(data)
        with pytest.raises(InputError, match=said):
            read_oom_file(str(path))


# --------------------------------------------------------------------- recorded ones


def recorded() -> list[Any]:
    """Return the recorded cases that hold a verdict, or none where they are absent."""
    if not CASES.is_file():
        return []
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "classification" in (row.get("other") or {})]


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_recorded_verdicts() -> None:
    """Every recorded text gives the recorded figures and the recorded verdict."""
    rows = recorded()
    assert len(rows) >= 15
    for row in rows:
        found = read_oom(row["log_excerpt"])
        assert found is not None, row["id"]
        assert found.classification == row["other"]["classification"], row["id"]
        text = found.text
        for key, value in (
            ("request_mib", text.asked),
            ("total_mib", text.capacity),
            ("free_mib", text.free),
            ("allocated_mib", text.allocated),
            ("reserved_unallocated_mib", text.unallocated),
        ):
            expected = row["other"][key]
            if expected is None:
                assert value is None, (row["id"], key)
            else:
                assert value is not None, (row["id"], key)
                assert value.bytes / MIB == pytest.approx(expected, abs=0.001), (row["id"], key)


# --------------------------------------------------------------------- what is not told

XPU = (
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate {asked}. GPU 0 has a total"
    " capacity of {capacity}. Of the allocated memory 45.00 GiB is allocated by PyTorch, and"
    " {cached} is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("asked", "capacity", "cached", "verdict"),
    [
        ("4.00 GiB", "47.99 GiB", "500.00 MiB", "shortage"),  # even 2.5 GiB free are too little
        ("2.00 GiB", "47.99 GiB", "500.00 MiB", "unknown"),  # 0 to 2.5 GiB may be free
        ("2.00 GiB", "63.98 GiB", "2.50 GiB", "fragmentation_possible"),  # whatever is free
        ("90.00 GiB", "63.98 GiB", "2.50 GiB", "impossible"),
    ],
)
def test_free_that_is_not_told(asked: str, capacity: str, cached: str, verdict: str) -> None:
    """What a text does not tell is not 0: only what holds of 0 and of all the rest is said."""
    found = read_oom(XPU.format(asked=asked, capacity=capacity, cached=cached))
    assert found is not None
    assert (found.text.backend, found.text.free) == ("xpu", None)
    assert found.verdict == verdict
    assert "is not told" in found.arithmetic[0]
    if verdict == "shortage":
        least, most = found.shortfall_bytes or (0, 0)
        middle = 4 * GIB - (4799 * GIB // 100 - 45 * GIB)  # cached or free: all but the 45 GiB
        assert least < middle < most
        assert "at least 1.01 GiB" in found.summary
    if verdict == "unknown":
        assert found.shortfall_bytes is None
        assert not found.certain


def test_free_that_is_not_told_of_an_unknown_card() -> None:
    """Without the card's size nothing bounds what was free."""
    text = XPU.format(asked="4.00 GiB", capacity="x", cached="500.00 MiB")
    found = read_oom(text)
    assert found is not None
    assert found.verdict == "unknown"
    assert "short by at most 3.51 GiB" in found.arithmetic[1]


def test_a_sum_that_is_taken_away() -> None:
    """What is left of a limit is told as a sum that comes out."""
    found = read_oom(
        "MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 613.56 MB, max"
        " allowed: 18.13 GB). Tried to allocate 192.00 MB on private pool."
    )
    assert found is not None
    assert found.text.free is not None
    assert found.text.free.text == "18.13 GB - 17.36 GB - 613.56 MB"
    assert abs(found.text.free.bytes - (18.13 - 17.36) * GIB + 613.56 * 2**20) < 2


def test_decimal_commas() -> None:
    """Some locales print them; before three digits a comma could part thousands: not read."""
    text = SAMPLES["2.2"]
    comma = re.sub(r"(\d)\.(\d\d) ", r"\1,\2 ", text)
    plain, other = read_oom(text), read_oom(comma)
    assert plain is not None
    assert other is not None
    assert other.verdict == plain.verdict
    assert other.text.asked is not None
    assert other.text.asked.text == "1,00 GiB"
    for name in ("asked", "capacity", "free", "allocated", "unallocated", "private_pools"):
        one, same = getattr(plain.text, name), getattr(other.text, name)
        assert (one.bytes, one.low, one.high) == (same.bytes, same.low, same.high)
    thousands = read_oom(text.replace("Tried to allocate 1.00 GiB", "Tried to allocate 1,024 MiB"))
    assert thousands is None or thousands.text.asked is None


def test_missing_bytes_as_printed() -> None:
    """A figure of two decimals is not told as a range of two roundings."""
    found = read_oom("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4224.00 MiB on device"
                     " 0: cudaMalloc failed: out of memory")  # fmt: skip
    assert found is not None
    assert "4.12 GiB to 4.13" not in found.summary
    near = oom_words._range(4224 * 2**20 - 5_120, 4224 * 2**20 + 5_120, "binary")
    assert near == "4,224 MiB (+-5 KiB)"
    assert oom_words._range(0, 2**20, "binary") == "0 B to 1 MiB"
    assert oom_words._range(7, 7, "binary") == "7 B"


def test_nothing_moves_the_cursor() -> None:
    """Colours between figures are read over; other control characters are shown by number."""
    text = SAMPLES["2.1"].replace("Process 77", "Process \x1b[31m7\x07\x9b7\x1b[0m")
    coloured = text.replace("3.00 GiB", "\x1b[1;31m3.00\x1b[0m GiB")
    found = read_oom(coloured)
    assert found is not None
    assert found.text.asked is not None
    assert found.text.asked.bytes == 3 * GIB
    (process,) = found.text.processes
    assert process.name == "7\\x07\\x9b7"
    shown = msgspec.json.encode(found).decode()
    assert "\\u001b" not in shown
    assert all(c.isprintable() for c in shown)
