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

    @pytest.mark.parametrize(
        ("name", "value", "option"),
        [
            ("KVCALC_ENGINE", "none", "--engine"),
            ("KVCALC_ENGINE_VERSION", "0.26", "--engine-version"),
            ("KVCALC_GPU", "a100-80gb", "--gpu"),
            ("KVCALC_MAX_NUM_BATCHED_TOKENS", "2048", "--max-num-batched-tokens"),
            ("KVCALC_MAX_NUM_SEQS", "64", "--max-num-seqs"),
            ("KVCALC_NUM_GPU_BLOCKS_OVERRIDE", "100", "--num-gpu-blocks-override"),
            ("KVCALC_ATTENTION_BACKEND", "TRITON_ATTN", "--attention-backend"),
            ("KVCALC_MAMBA_CACHE_DTYPE", "float32", "--mamba-cache-dtype"),
            ("KVCALC_MAMBA_SSM_CACHE_DTYPE", "bfloat16", "--mamba-ssm-cache-dtype"),
            ("KVCALC_NUM_SPECULATIVE_TOKENS", "2", "--num-speculative-tokens"),
            ("KVCALC_KV_MEMORY", "15GiB", "--kv-memory"),
            ("KVCALC_KV_CACHE_MEMORY_BYTES", "15GiB", "--kv-memory"),
        ],
    )
    def test_settings_of_an_engine(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str, option: str
    ) -> None:
        """So do the variables of what an engine takes."""
        plan = ["plan", "qwen3.5-27b", "--max", "8192", "--format", "json"]
        plan += [] if option == "--engine" else ["--engine", "vllm"]
        flagged = call(*plan, option, value)
        monkeypatch.setenv(name, value)

        assert flagged.code == 0, flagged
        assert flagged == call(*plan)

    def test_speculation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A method and a draft model can be set for a whole job too."""
        plan = ("plan", "llama-3.1-70b", "--max", "8192", "--engine", "vllm", "--format", "json")
        tokens = ("--num-speculative-tokens", "3")
        for flag, name, value in (
            ("--speculative-method", "KVCALC_SPECULATIVE_METHOD", "eagle"),
            ("--draft-model", "KVCALC_DRAFT_MODEL", "llama-3.2-3b"),
        ):
            flagged = call(*plan, *tokens, flag, value)
            with monkeypatch.context() as patched:
                patched.setenv(name, value)
                assert call(*plan, *tokens) == flagged
            assert flagged.code == 0
            assert flagged.results != call(*plan).results

    @pytest.mark.parametrize(
        ("name", "flag"),
        [
            ("KVCALC_ENABLE_PREFIX_CACHING", "enable-prefix-caching"),
            ("KVCALC_ASYNC_SCHEDULING", "async-scheduling"),
            ("KVCALC_DISABLE_HYBRID_KV_CACHE_MANAGER", "disable-hybrid-kv-cache-manager"),
        ],
    )
    def test_switches(self, monkeypatch: pytest.MonkeyPatch, name: str, flag: str) -> None:
        """A switch is on or off, in any of the usual words; what is neither names its variable."""
        plan = ("plan", "llama-3.1-8b", "--max", "8192", "--engine", "vllm")
        monkeypatch.delenv("_", raising=False)
        words = {"true": f"--{flag}", "1": f"--{flag}", "off": f"--no-{flag}", "No": f"--no-{flag}"}
        for word, typed in words.items():
            expected = call(*plan, typed)
            monkeypatch.setenv(name, word)
            assert call(*plan) == expected
            monkeypatch.delenv(name)
        monkeypatch.setenv(name, "perhaps")
        assert is_fault(call(*plan)) == f"{name}: 'perhaps' is neither true nor false"

    def test_fault_of_an_engines_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bad value is told with the variable that holds it."""
        monkeypatch.setenv("KVCALC_KV_CACHE_MEMORY_BYTES", "0")

        assert (
            is_fault(call("plan")) == "KVCALC_KV_CACHE_MEMORY_BYTES: a cache of 0 B holds nothing"
        )

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

    def test_every_setting_of_an_engine(self) -> None:
        """So does every setting of an engine: the same as its flag does."""
        settings(
            "model: qwen3.5-27b\n"
            "engine: vllm\n"
            'engine_version: "0.30"\n'
            "gpu: l40s\n"
            "max_model_len: 8192\n"
            "max_num_batched_tokens: 1024\n"
            "max_num_seqs: 16\n"
            "enable_prefix_caching: true\n"
            "async_scheduling: false\n"
            "num_gpu_blocks_override: 300\n"
            "attention_backend: FLASH_ATTN\n"
            "mamba_cache_dtype: float32\n"
            "mamba_ssm_cache_dtype: float32\n"
            "speculative_method: mtp\n"
            "num_speculative_tokens: 2\n"
            "kv_cache_memory_bytes: 20GiB\n"
            "format: json\n"
        )
        outcome = call("plan")
        flags = (
            "--engine vllm --engine-version 0.30 --gpu l40s --max 8192"
            " --max-num-batched-tokens 1024 --max-num-seqs 16 --enable-prefix-caching"
            " --no-async-scheduling --num-gpu-blocks-override 300 --attention-backend FLASH_ATTN"
            " --mamba-cache-dtype float32 --mamba-ssm-cache-dtype float32"
            " --speculative-method mtp --num-speculative-tokens 2 --kv-memory 20GiB"
        )
        typed = call("plan", "qwen3.5-27b", *flags.split(), "--settings", "", "-f", "json")

        assert outcome.code == 0, outcome
        assert outcome.results == typed.results
        assert "kvcalc.yaml:15" in outcome.document["notes"][0]

    def test_a_draft_model_by_settings(self) -> None:
        """A draft model may stand there as well."""
        settings("engine: vllm\ndraft_model: llama-3.2-3b\nnum_speculative_tokens: 3\n")
        groups = one("plan", "llama-3.1-70b", "--max", "8192")["groups"]

        assert sum(group["layers"] for group in groups) == 80 + 28

    @pytest.mark.parametrize("told", ["false", "no", "off", "'0'", "No", "FALSE"])
    def test_switched_off(self, told: str) -> None:
        """A switch of a settings file is a truth value, or a word for one."""
        settings(f"engine: vllm\nenable_prefix_caching: {told}\n")

        assert one("plan", "qwen3.5-27b", "--max", "8192")["reuse_tokens"] is None
        on = one("plan", "qwen3.5-27b", "--max", "8192", "--enable-prefix-caching")
        assert on["reuse_tokens"] == 832

    @pytest.mark.parametrize(
        "text",
        [
            "enable_prefix_caching: perhaps\n",
            "async_scheduling: 2\n",
            "disable_hybrid_kv_cache_manager: [true]\n",
            "enable_prefix_caching:\n",
            "max_num_seqs: true\n",
            "max_num_batched_tokens: 2k\n",
            "num_gpu_blocks_override: 0\n",
            "num_speculative_tokens: [0, 2]\n",
            "draft_model: nope\n",
            "kv_memory: 0\n",
            "kv_memory: 1GiB\nkv_cache_memory_bytes: 1GiB\n",
            "engine_version: 0.10\n",
        ],
    )
    def test_broken_settings_of_an_engine(self, text: str) -> None:
        """What an engine's setting cannot be is refused with its file and line."""
        settings(text)
        line = text.count("\n")

        assert is_fault(call("plan", "--engine", "vllm")).startswith(f"kvcalc.yaml:{line}: ")

    def test_settings_of_other_commands(self) -> None:
        """A setting that a command has no option for is no fault of that command."""
        settings("lengths: [1, 2]\nkv_memory: 1GiB\n")

        assert call("per-token").code == 0
        assert call("gpus", "l4").code == 0
