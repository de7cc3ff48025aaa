"""Where a value comes from: flag, KVCALC_* variable, settings file, default, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvcalc.models.presets import preset_folder
from tests.cli.harness import call, is_fault

TRACE = "ContextTokens,GeneratedTokens\n100,28\n"


def settings(text: str, name: str = "kvcalc.yaml") -> str:
    Path(name).write_bytes(text.encode())
    return name


def one(*arguments: str) -> Any:
    outcome = call(*arguments, "--format", "json")
    assert outcome.code == 0, outcome
    return outcome.results[0]


class TestOrder:
    def test_default(self) -> None:
        """With nothing given a block has 16 tokens and a sequence 8,192."""
        found = one("compare")

        assert (found["block_size"], found["max_model_len"]) == (16, 8192)

    def test_settings_over_default(self) -> None:
        """./kvcalc.yaml comes before the default."""
        settings("block_size: 32\nmax_model_len: 4096\n")
        found = one("compare")

        assert (found["block_size"], found["max_model_len"]) == (32, 4096)

    def test_variable_over_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A variable comes before the settings file."""
        settings("block_size: 32\nmax_model_len: 4096\n")
        monkeypatch.setenv("KVCALC_BLOCK", "64")
        found = one("compare")

        assert (found["block_size"], found["max_model_len"]) == (64, 4096)

    def test_flag_over_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A flag comes before everything, and replaces a list."""
        settings("block_size: [32, 48]\n")
        monkeypatch.setenv("KVCALC_BLOCK", "64")
        outcome = call("compare", "--block", "128", "--format", "json")

        assert [r["block_size"] for r in outcome.results] == [128]

    def test_model_flag_over_settings(self) -> None:
        """A model on the command line replaces the one of the settings file."""
        settings("model: llama-3.1-8b\n")

        for named in (["opt-13b"], ["--preset", "opt-13b"], ["--model", "opt-13b"]):
            outcome = call("per-token", *named, "--format", "json")
            assert [r["model"] for r in outcome.results] == ["opt-13b"]

    def test_short_keys_and_what_was_taken(self) -> None:
        """A settings file may say what the short flags say; a note tells what it has set."""
        settings("preset: llama-3.1-8b\ntp: 2\n")
        outcome = call("per-token", "--format", "json")

        assert outcome.results[0]["bytes_per_token"] == 65536
        assert "preset (kvcalc.yaml:1), tp (kvcalc.yaml:2)" in outcome.document["notes"][0]

    def test_the_same_setting_twice(self) -> None:
        """Two keys that mean one option are not weighed against each other."""
        settings("tp: 2\ntensor_parallel_size: 4\n")

        assert is_fault(call("compare")) == "kvcalc.yaml:2: tensor_parallel_size is set twice"

    def test_shape_over_settings(self) -> None:
        """A shape on the command line replaces the model of the settings file."""
        settings("model: llama-3.1-8b\n")
        found = one("per-token", "--layers", "2", "--kv-heads", "1", "--head-dim", "64")

        assert found["bytes_per_token"] == 512

    def test_trace_over_settings(self) -> None:
        """A trace on the command line replaces the lengths of the settings file."""
        settings("lengths: [100, 200]\n")
        Path("t.csv").write_text(TRACE, encoding="utf-8")

        assert one("compare", "--trace", "t.csv")["workload"]["tokens"] == 128

    def test_trace_over_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A trace on the command line replaces the lengths of a variable."""
        monkeypatch.setenv("KVCALC_LENGTHS", "100,200")
        Path("t.csv").write_text(TRACE, encoding="utf-8")

        assert one("compare", "--trace", "t.csv")["workload"]["tokens"] == 128


class TestPresetsOfOnesOwn:
    def test_a_hidden_preset_is_told(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A preset of one's own that hides one of ours leaves a note with its folder."""
        (tmp_path / "models").mkdir()
        text = (preset_folder() / "models" / "opt-13b.yaml").read_text(encoding="utf-8")
        (tmp_path / "models" / "opt-13b.yaml").write_text(text, encoding="utf-8")
        monkeypatch.setenv("KVCALC_PRESETS", str(tmp_path))
        notes = call("per-token", "opt-13b", "--format", "json").document["notes"]

        assert any("not the one that comes with kvcalc" in note for note in notes)

    def test_files_and_folders(self, tmp_path: Path) -> None:
        """A preset's file can be shown, and a folder of them checked, empty ones refused."""
        source = preset_folder() / "models" / "opt-13b.yaml"
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "opt-13b.yaml").write_bytes(source.read_bytes())
        (tmp_path / "none").mkdir()
        shown = call("presets", "show", str(source), "--format", "json")
        checked = call("presets", "validate", str(tmp_path), "--format", "json")

        assert shown.results == call("presets", "show", "opt-13b", "--format", "json").results
        assert [one["message"] for one in checked.results] == [None]
        assert "no preset file is in it" in is_fault(
            call("presets", "validate", str(tmp_path / "none"))
        )


class TestVariables:
    @pytest.mark.parametrize(
        ("name", "value", "option"),
        [
            ("KVCALC_MAX", "4096", "--max"),
            ("KVCALC_MAX_MODEL_LEN", "4096", "--max"),
            ("KVCALC_TENSOR_PARALLEL_SIZE", "2", "--tp"),
            ("KVCALC_BLOCK", "32", "--block"),
            ("KVCALC_TP", "2", "--tp"),
            ("KVCALC_PP", "2", "--pp"),
            ("KVCALC_DTYPE", "float32", "--dtype"),
            ("KVCALC_KV_CACHE_DTYPE", "fp8", "--kv-cache-dtype"),
            ("KVCALC_LENGTHS", "10,20", "--lengths"),
            ("KVCALC_OVER", "keep", "--over"),
            ("KVCALC_KV_MEMORY", "1GiB", "--kv-memory"),
        ],
    )
    def test_same_as_the_flag(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str, option: str
    ) -> None:
        """A variable gives what its flag gives."""
        flagged = call("compare", option, value, "--format", "json")
        monkeypatch.setenv(name, value)
        found = call("compare", "--format", "json")

        assert flagged.code == 0
        assert flagged == found

    def test_several(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A variable may hold several blocks."""
        monkeypatch.setenv("KVCALC_BLOCK", "16 32")
        outcome = call("compare", "--format", "json")

        assert [r["block_size"] for r in outcome.results] == [16, 32]

    def test_format(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The format can be set once for a whole job."""
        monkeypatch.setenv("KVCALC_FORMAT", "json")

        assert call("gpus", "l4").document["schema"] == "kvcalc.gpus/1"

    def test_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bad value of a variable is refused like a flag's."""
        monkeypatch.setenv("KVCALC_MAX", "32k")

        assert "'32k'" in is_fault(call("compare"))

    def test_preset_folder(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A folder of presets of one's own comes before those that come with kvcalc."""
        (tmp_path / "own" / "models").mkdir(parents=True)
        (tmp_path / "own" / "models" / "llama-3.1-8b.yaml").write_text(
            "kind: model\nname: llama-3.1-8b\ntitle: mine\narchitecture: X\ndtype: bfloat16\n"
            "num_hidden_layers: 1\n"
            "layers: [{kind: full_attention, num_kv_heads: 1, head_dim: 64}]\n"
            "source: {repository: here, file: here}\n"
            "expect: {bytes_per_token: {bfloat16: 256}, confirmed_by: [me]}\n",
            encoding="utf-8",
        )
        monkeypatch.setenv("KVCALC_PRESETS", "own")

        assert one("per-token", "llama-3.1-8b")["bytes_per_token"] == 256

    def test_preset_folder_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder of presets that is none is refused."""
        monkeypatch.setenv("KVCALC_PRESETS", "nowhere")

        assert "nowhere: no folder of presets" in is_fault(call("compare"))


class TestSettings:
    def test_none(self) -> None:
        """--settings "" leaves ./kvcalc.yaml alone, even a broken one."""
        settings("{{{\n")

        assert call("compare", "--settings", "").code == 0

    def test_none_by_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So does an empty KVCALC_SETTINGS."""
        settings("block_size: 32\n")
        monkeypatch.setenv("KVCALC_SETTINGS", "")

        assert one("compare")["block_size"] == 16

    def test_named(self) -> None:
        """A named file replaces ./kvcalc.yaml."""
        settings("block_size: 32\n")
        settings("block_size: 64\n", "other.yaml")

        assert one("compare", "--settings", "other.yaml")["block_size"] == 64

    def test_not_sought_above(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folders above are not searched."""
        settings("block_size: 32\n")
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")

        assert one("compare")["block_size"] == 16

    def test_unknown(self) -> None:
        """An unknown setting is told with its line and the nearest that there is."""
        settings("max_model_len: 4096\nblocksize: 32\n")
        outcome = call("compare")

        assert is_fault(outcome) == "kvcalc.yaml:2: unknown setting 'blocksize'"
        assert "did you mean block_size or block?" in outcome.hints[0]

    @pytest.mark.parametrize(
        "text",
        [
            "block_size: {a: 1}\n",
            "block_size: [16, [32]]\n",
            "block_size: true\n",
            "block_size:\n",
            "- block_size\n",
            "block_size: 16\nblock_size: 32\n",
            "block_size: &a 16\n",
            "block_size: [16\n",
            "\tblock_size: 16\n",
            "1: 2\n",
        ],
    )
    def test_broken(self, text: str) -> None:
        """What is no setting is refused with the file's name."""
        settings(text)

        assert is_fault(call("compare")).startswith("kvcalc.yaml")

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("units: binary\nmax_model_len: 32k\n", 2),
            ("kv_memory: 40G\n", 1),
            ("over: sometimes\n", 1),
            ("units: decimal\n\nformat: jsn\n", 3),
            ("tensor_parallel_size: 0\n", 1),
        ],
    )
    def test_bad_value_has_its_line(self, text: str, line: int) -> None:
        """A value that its option refuses is told with the file and line it stands on."""
        settings(text)

        assert f"kvcalc.yaml:{line}" in is_fault(call("compare"))

    @pytest.mark.parametrize("text", ["block_size: []\n", "lengths: []\n", "max_model_len: []\n"])
    def test_empty_list(self, text: str) -> None:
        """A list of nothing is refused at its line."""
        settings(text)

        assert is_fault(call("compare")).startswith("kvcalc.yaml:1")

    def test_only_a_comment(self) -> None:
        """A settings file without a setting sets nothing."""
        settings("# to be filled in\n")

        assert call("compare").code == 0

    def test_windows_text(self) -> None:
        """CRLF and a byte order mark are read as any other text."""
        settings("\ufeffmax_model_len: 4096\r\nunits: decimal\r\n")

        assert one("compare")["max_model_len"] == 4096
        assert "MB" in call("compare").out

    def test_every_setting(self) -> None:
        """Every setting reaches its option."""
        settings(
            "model: deepseek-v3\n"
            "engine: none\n"
            "dtype: float16\n"
            "kv_cache_dtype: fp8_ds_mla\n"
            "block_size: [64, 128]\n"
            "max_model_len: 131072\n"
            "tensor_parallel_size: 4\n"
            "pipeline_parallel_size: 1\n"
            "data_parallel_size: 2\n"
            "decode_context_parallel_size: 2\n"
            "gpu: h100-80gb\n"
            "kv_memory: 1GiB\n"
            "lengths: [1000, 2000]\n"
            "over: exclude\n"
            "units: decimal\n"
            "format: json\n"
        )
        outcome = call("compare")

        assert outcome.code == 0, outcome
        assert [r["block_size"] for r in outcome.results] == [64, 128]
        found = outcome.results[0]
        assert found["model"] == "deepseek-v3"
        assert found["kv_cache_dtype"] == "fp8_ds_mla"
        assert found["max_model_len"] == 131_072
        assert found["workload"]["tokens"] == 3_000
        assert found["workload"]["over"] == "exclude"
        assert found["concurrency"]["kv_cache_bytes"] == 2**30
        assert found["all_ranks"]["num_gpus"] == 4

    def test_settings_of_other_commands(self) -> None:
        """A setting that a command has no option for is no fault of that command."""
        settings("lengths: [1, 2]\nkv_memory: 1GiB\n")

        assert call("per-token").code == 0
        assert call("gpus", "l4").code == 0
