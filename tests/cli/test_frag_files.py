"""kvcalc frag on what an allocator or a failure left: snapshots, texts, statistics, logs."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.harness import call, validate
from tests.measure.allocator.model import SyntheticAllocator
from tests.measure.oom_samples import SAMPLES
from tests.measure.test_pools import LOG, STATS
from tests.measure.test_snapshot import made

MIB, GIB = 2**20, 2**30


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """Return a snapshot of a known state (see `made`)."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(made().snapshot()))
    return str(path)


def results(*arguments: str, stdin: bytes = b"") -> Any:
    outcome = call("frag", *arguments, "--format", "json", stdin=stdin)
    assert outcome.code == 0, outcome.err
    name = "frag-oom" if "--oom" in arguments else "frag"
    assert outcome.document["schema"] == f"kvcalc.{name}/1"
    assert validate(name, outcome.document) == []
    return outcome.results


class TestSnapshot:
    """--snapshot."""

    def test_keys(self, snapshot: str) -> None:
        """The keys of frag keep their meaning; what the allocator tells stands beside them."""
        (one,) = results("--snapshot", snapshot, "--request", "48MiB")
        free = (64 + 4 + 8 + 40 + 30 + 2) * MIB - 512
        assert (one["free_bytes"], one["largest_free_bytes"]) == (free, 64 * MIB)
        assert one["request_bytes"] == 48 * MIB
        assert one["fits_contiguous"] is True
        assert one["allocator"]["releasable_bytes"] == 104 * MIB
        assert one["allocator"]["request"]["streams"] == [0]
        assert sum(entry["bytes"] for entry in one["allocator"]["histogram"]) == free

    def test_one_sequence_by_default(self, snapshot: str) -> None:
        """Without a request it is one sequence of the model's maximum."""
        (one,) = results("--snapshot", snapshot, "llama-3.1-8b", "--max", "512")
        assert one["request_bytes"] == 512 * 131_072 == 64 * MIB
        assert one["fits_contiguous"] is True

    def test_device_free(self, snapshot: str) -> None:
        """Where whole segments are not enough, the device decides, if it is known."""
        for beside, fits in (([], None), (["--device-free", "2MiB"], True),
                             (["--device-free", "1MiB"], False)):  # fmt: skip
            (one,) = results("--snapshot", snapshot, "--request", "105MiB", *beside)
            assert one["fits_contiguous"] is False
            assert one["allocator"]["request"]["fits_after_empty_cache"] is fits

    def test_stdin(self, snapshot: str) -> None:
        """From a pipe as from a file; JSON as a pickle."""
        expected = results("--snapshot", snapshot)
        for data in (Path(snapshot).read_bytes(), json.dumps(made().snapshot()).encode()):
            assert results("--snapshot", "-", stdin=data) == expected

    def test_of_each_device_and_model(self, tmp_path: Path) -> None:
        """One entry a device and model."""
        segments = made().snapshot()["segments"]
        other = SyntheticAllocator(device=2)
        other.alloc(5)
        path = tmp_path / "s.json"
        path.write_text(json.dumps(segments + other.snapshot()["segments"]), encoding="utf-8")
        found = results("--snapshot", str(path), "llama-3.1-8b", "llama-2-7b")
        assert [(one["model"], one["allocator"]["device"]) for one in found] == [
            (model, device) for model in ("llama-3.1-8b", "llama-2-7b") for device in (0, 2)
        ]

    def test_device_free_of_the_trace(self, tmp_path: Path) -> None:
        """At a failed allocation the trace tells what the device had free, which is said."""
        value = made().snapshot()
        value["device_traces"] = [[{"action": "oom", "size": 5, "device_free": 2 * MIB}]]
        path = tmp_path / "s.pickle"
        path.write_bytes(pickle.dumps(value))
        outcome = call("frag", "--snapshot", str(path), "--request", "105MiB", "-f", "json")
        assert outcome.results[0]["allocator"]["request"]["fits_after_empty_cache"] is True
        assert "2,097,152 B free, as at the last failed allocation" in outcome.err

    def test_formats(self, snapshot: str) -> None:
        """Table, Markdown and CSV draw it as well."""
        shown = call("frag", "--snapshot", snapshot, "--request", "48MiB").out
        assert "Fits now: a request of 48 MiB goes into a hole" in shown
        assert "from 64 MiB" in shown
        assert re.search(r"^3 +0\.0 +large", shown, re.MULTILINE)
        assert "| stream " in call("frag", "--snapshot", snapshot, "-f", "markdown").out
        assert (
            "allocator.groups.0.free_bytes" in call("frag", "--snapshot", snapshot, "-f", "csv").out
        )

    @pytest.mark.parametrize(
        "verdict", ["Fits once", "Depends on", "Shortage", "Fragmented", "Fits with"]
    )
    def test_verdicts(self, snapshot: str, verdict: str) -> None:
        """Each of the answers, in words."""
        asked = {
            "Fits once": ["--request", "70MiB"],
            "Depends on": ["--request", "200MiB"],
            "Shortage": ["--request", "500MiB", "--device-free", "10MiB"],
            "Fragmented": ["--request", "112MiB", "--device-free", "0"],
            "Fits with": ["--request", "200MiB", "--device-free", "1GiB"],
        }
        (one,) = results("--snapshot", snapshot, *asked[verdict])
        assert one["verdict"].startswith(verdict)

    def test_nothing_taken(self, tmp_path: Path) -> None:
        """A snapshot without a segment has an answer too."""
        path = tmp_path / "s.json"
        path.write_text('{"segments": []}', encoding="utf-8")
        (one,) = results("--snapshot", str(path), "--request", "1MiB")
        assert one["verdict"].startswith("Depends on what the device has free: the allocator has")
        shown = call("frag", "--snapshot", str(path)).out
        assert re.search(r"^unusable for the request +-$", shown, re.MULTILINE)

    def test_rounding_has_a_row_of_its_own(self, tmp_path: Path) -> None:
        """It is of all that is in use, whatever stands above it."""
        allocator = SyntheticAllocator()
        address = allocator.alloc(32 * MIB - 5)
        allocator.record_stream(address, 2)
        allocator.free(address)
        path = tmp_path / "s.json"
        path.write_text(json.dumps(allocator.snapshot()), encoding="utf-8")
        shown = call("frag", "--snapshot", str(path)).out
        assert re.search(r"^rounding of what is in use +5 B$", shown, re.MULTILINE)

    def test_streams_are_named_alike(self, tmp_path: Path) -> None:
        """Numbers as numbers and addresses as addresses, in the verdict and in the table."""
        for stream, name in ((7, "7"), (0x7F0000001000, "0x7f0000001000")):
            allocator = SyntheticAllocator()
            allocator.free(allocator.alloc(32 * MIB, stream=stream))
            path = tmp_path / "s.json"
            path.write_text(json.dumps(allocator.snapshot()), encoding="utf-8")
            shown = call("frag", "--snapshot", str(path), "--request", "2MiB").out
            assert f"for stream {name}." in shown
            assert re.search(rf"^{name} +0\.0 +large", shown, re.MULTILINE)


class TestOom:
    """--oom."""

    def test_text(self, tmp_path: Path) -> None:
        """Figures, verdict, arithmetic and advice."""
        path = tmp_path / "oom.txt"
        path.write_text(SAMPLES["1.10"], encoding="utf-8")
        (one,) = results("--oom", str(path))
        assert one["verdict"] == "shortage"
        assert one["classification"] == "true exhaustion"
        assert one["text"]["asked"]["bytes"] == 6 * GIB
        shown = call("frag", "--oom", str(path)).out
        assert "short by 1.5 GiB" in shown
        assert "expandable_segments: no" in shown

    @pytest.mark.parametrize("name", SAMPLES)
    def test_samples(self, name: str) -> None:
        """Every wording is drawn in every format."""
        for form in ("table", "json", "csv", "markdown"):
            outcome = call("frag", "--oom", "-", "-f", form, stdin=SAMPLES[name].encode())
            assert outcome.code == 0, outcome.err
            assert outcome.out

    def test_several(self) -> None:
        """Each text of a log has its entry, and the first is said to be the cause."""
        log = "\n".join([SAMPLES["2.2"], SAMPLES["2.9"]]).encode()
        outcome = call("frag", "--oom", "-", "-f", "json", stdin=log)
        assert [one["verdict"] for one in outcome.results] == ["mixed", "impossible"]
        assert "the first is the cause" in outcome.err


def test_pools(tmp_path: Path) -> None:
    """--jax-stats and --bfc-log give the same keys."""
    path = tmp_path / "x"
    path.write_text(str(STATS), encoding="utf-8")
    (one,) = results("--jax-stats", str(path), "--request", "1.5GiB")
    assert (one["free_bytes"], one["largest_free_bytes"], one["holes"]) == (2 * GIB, GIB, None)
    assert one["allocator"]["source"] == "jax"
    path.write_text(LOG, encoding="utf-8")
    (one,) = results("--bfc-log", str(path))
    assert (one["request_bytes"], one["holes"]) == (3 * MIB, 2)
    for option in ("--bfc-log", "--jax-stats"):
        path.write_text(LOG if "bfc" in option else str(STATS), encoding="utf-8")
        assert "allocator tells it" in call("frag", option, str(path)).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--snapshot", "FILE", "--oom", "FILE"], "--snapshot and --oom are both given"),
        (["--snapshot", "FILE", "--free", "1GiB"], "--snapshot and --free are both given"),
        (["--oom", "FILE", "--holes", "1GiB"], "--oom and --holes are both given"),
        (["--oom", "FILE", "--request", "1GiB"], "--oom and --request are both given"),
        (["--jax-stats", "FILE", "--device-free", "1GiB"], "--device-free are both given"),
        (["--device-free", "1GiB", "--holes", "1GiB"], "--device-free goes with a snapshot"),
        (["--snapshot", ""], "no file is named"),
        (["--snapshot", "/no/such/file"], "no such file"),
        (["--oom", "FILE", "llama-3.1-8b"], "judged without a model"),
        (["--oom", "FILE", "--layers", "3"], "judged without a model"),
        (["--snapshot", "FILE", "--request", "0"], "at least one byte"),
        (["--snapshot", "FILE", "--device-free", "40G"], "more than one reading"),
        (["--snapshot", "FILE", "--report", "json:FILE"], "the report would replace"),
        (["--oom", "OTHER", "--report", "json:OTHER"], "the report would replace"),
    ],
)
def test_refused(arguments: list[str], said: str, snapshot: str, tmp_path: Path) -> None:
    """What does not go together, or is none, is an error of usage."""
    other = tmp_path / "oom.txt"
    other.write_text(SAMPLES["2.2"], encoding="utf-8")
    named = [a.replace("FILE", snapshot).replace("OTHER", str(other)) for a in arguments]
    outcome = call("frag", *named)
    assert outcome.code == 2
    assert said in outcome.errors[0]
    assert len(outcome.errors) == 1
    assert len(outcome.hints) == (0 if "at least" in said else 1)  # it says itself what to do
    assert not outcome.out


@pytest.mark.parametrize("option", ["--snapshot", "--oom", "--jax-stats", "--bfc-log"])
@pytest.mark.parametrize("data", [b"", b"\x80\x04cos\nsystem\n.", b"\x1f\x8b\x08", b"\xff" * 100])
def test_other_files(option: str, data: bytes) -> None:
    """A file of another kind is refused, by its own name, with nothing run."""
    outcome = call("frag", option, "-", stdin=data)
    assert outcome.code == 2
    assert outcome.errors[0].startswith("error: stdin: ")
