"""The figures that the first release must show, each by a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.harness import call

GIB = 2**30

PER_TOKEN = {
    "llama-2-7b": 524_288,
    "llama-3.1-8b": 131_072,
    "llama-3.1-70b": 327_680,
    "llama-3.1-405b": 516_096,
    "qwen2.5-72b": 327_680,
    "opt-13b": 819_200,
    "deepseek-v3": 70_272,
    "deepseek-v2-lite": 31_104,
    "gemma-3-27b": 507_904,
    "gpt-oss-20b": 49_152,
    "qwen3-next-80b-a3b": 24_576,
    "jamba-v0.1": 16_384,
    "nemotron-3-nano-30b-a3b": 6_144,
    "llama-4-scout": 196_608,
    "qwen3.5-27b": 65_536,
    "qwen3.5-27b-attention": 65_536,
}


def results(*arguments: str) -> Any:
    outcome = call(*arguments, "--format", "json")

    assert outcome.code == 0, outcome
    return outcome.results


class TestCompare:
    def test_article(self) -> None:
        """The article's shape reserves 512 MiB a request in one piece and wastes 85.66 % of it."""
        (one,) = results("compare", "--block", "16", "--max", "8192")

        assert one["bytes_per_token"] == 65_536
        assert one["contiguous"] == {"reserved_bytes_per_request": 536_870_912}
        assert one["paged"]["block_bytes"] == 2**20
        assert one["paged"]["max_tail_tokens"] == 15
        assert one["paged"]["max_tail_bytes"] == 983_040
        assert one["workload"]["requests"] == 4
        assert one["workload"]["used_bytes"] == 4_700 * 65_536
        assert one["contiguous_total"]["reserved_bytes"] == 4 * 536_870_912
        assert one["contiguous_total"]["waste_bytes"] == (4 * 8_192 - 4_700) * 65_536
        assert f"{100 * one['contiguous_total']['waste_ratio']:.2f}" == "85.66"
        assert one["paged_total"]["reserved_bytes"] == 295 * 2**20
        assert one["paged_total"]["waste"]["tail_bytes"] == 20 * 65_536
        assert f"{one['reserved_gain']:.2f}" == "6.94"

    def test_article_table(self) -> None:
        """The table shows the article's figures without being asked for more."""
        shown = call("compare", "--block", "16", "--block", "32", "--max", "8192").out

        for figure in (
            "65,536 B (64 KiB)",
            "536,870,912 B (512 MiB)",
            "1,048,576 B (1 MiB)",
            "15 tokens = 983,040 B (960 KiB)",
            "31 tokens = 2,031,616 B (1,984 KiB)",
            "85.66 %",
            "0.42 %",
            "6.94 x",
        ):
            assert figure in shown

    def test_block_of_32(self) -> None:
        """A block of 32 leaves at most 31 tokens empty."""
        (one,) = results("compare", "--block", "32", "--max", "8192")

        assert one["paged"]["max_tail_tokens"] == 31
        assert one["paged"]["max_tail_bytes"] == 1_984 * 1024

    def test_llama(self) -> None:
        """Llama-3.1-8B with a maximum of 4,096 wastes 71.31 % against 0.42 %."""
        (one,) = results("compare", "llama-3.1-8b", "--max", "4096")
        shown = call("compare", "llama-3.1-8b", "--max", "4096").out

        assert f"{100 * one['contiguous_total']['waste_ratio']:.1f}" == "71.3"
        assert f"{100 * one['paged_total']['waste_ratio']:.2f}" == "0.42"
        assert "71.31 %" in shown
        assert "0.42 %" in shown

    def test_one_short_request(self) -> None:
        """One request of 200 tokens wastes 95.1 % of a maximum of 4,096."""
        (one,) = results("compare", "--lengths", "200", "--max", "4096")

        assert f"{100 * one['contiguous_total']['waste_ratio']:.1f}" == "95.1"

    @pytest.mark.parametrize(
        ("model", "sequences"), [("qwen3.5-27b-attention", 30), ("qwen3.5-27b", 23)]
    )
    def test_state_takes_its_share(self, model: str, sequences: int) -> None:
        """15 GiB hold 30 sequences of 8,192 tokens without the state, and 23 with it."""
        memory = ("--kv-memory", "15GiB", "--lengths", "8192", "--max", "8192")
        (one,) = results("compare", model, *memory)

        assert one["concurrency"]["kv_cache_bytes"] == 15 * GIB
        assert one["concurrency"]["contiguous"] == sequences
        assert one["concurrency"]["paged"] == sequences
        assert one["concurrency"]["gain"] >= 1

    def test_state(self) -> None:
        """Qwen3.5-27B's state is vLLM's, and a note says what two other engines hold."""
        (one,) = results("compare", "qwen3.5-27b")
        outcome = call("compare", "qwen3.5-27b")

        assert one["state_bytes"] == 153_944_064
        assert one["contiguous"]["reserved_bytes_per_request"] == 153_944_064 + 536_870_912
        assert "153,944,064 B" in outcome.out
        for figure in ("154,927,104", "156,893,184"):
            assert any(figure in line for line in outcome.err.splitlines() if "note: " in line)

    def test_conservation(self) -> None:
        """Reserved is used plus the eight named wastes, each way, for every model and block."""
        found = results("compare", *PER_TOKEN, "--block", "1", "--block", "16", "--block", "48")

        assert len(found) == 3 * len(PER_TOKEN)
        for one in found:
            for total in (one["contiguous_total"], one["paged_total"]):
                assert len(total["waste"]) == 8
                assert total["waste_bytes"] == sum(total["waste"].values())
                assert total["reserved_bytes"] == total["used_bytes"] + total["waste_bytes"]
                assert total["used_bytes"] == one["workload"]["used_bytes"]

    def test_order(self) -> None:
        """Entries come model by model as typed, and within a model block by block as typed."""
        found = results("compare", "opt-13b", "llama-2-7b", "--block", "32", "--block", "8")

        assert [(one["model"], one["block_size"]) for one in found] == [
            ("opt-13b", 32),
            ("opt-13b", 8),
            ("llama-2-7b", 32),
            ("llama-2-7b", 8),
        ]


class TestFrag:
    ARTICLE = ("--free", "15GiB", "--largest", "1.9GiB", "--request", "2GiB")

    def test_article(self) -> None:
        """2 GiB fit no hole of 1.9 GiB although 15 GiB are free: 30 sequences against 4."""
        (one,) = results("frag", *self.ARTICLE)
        of_max = one["sequences_of_max"]

        assert one["free_bytes"] == 15 * GIB
        assert one["largest_free_bytes"] == 2_040_109_465  # rounded down
        assert one["request_bytes"] == 2 * GIB
        assert one["fits_contiguous"] is False
        assert one["fits_paged"] is True
        assert one["assumes"]
        assert one["free_over_request"] == 7.5
        assert of_max["max_model_len"] == 8192
        assert (of_max["in_request"], of_max["in_free"]) == (4, 30)
        assert of_max["in_holes"] is None
        assert of_max["bounds"] == [3, 29]
        assert one["holes"] is None
        assert one["unusable_ratio"] is None

    def test_article_table(self) -> None:
        """The table says that it does not fit, what would, and which level of memory is meant."""
        shown = call("frag", *self.ARTICLE).out

        for words in ("7.5", "30 sequences of 8,192", "at start", "allocator", "3 to 29"):
            assert words in shown

    def test_gigabytes(self) -> None:
        """With GB instead of GiB it is 3 and 27; a note under GiB says so."""
        (one,) = results("frag", "--free", "15GB", "--largest", "1.9GB", "--request", "2GB")
        of_max = one["sequences_of_max"]
        notes = call("frag", *self.ARTICLE).err

        assert (of_max["in_request"], of_max["in_free"]) == (3, 27)
        assert "3 sequences" in notes
        assert "27" in notes

    def test_holes(self) -> None:
        """With every hole given nothing is left between bounds."""
        holes = "1.9GiB,1.9GiB,11x1GiB"
        (one,) = results("frag", "--holes", holes, "--request", "2GiB")
        of_max = one["sequences_of_max"]

        assert one["holes"] == 13
        assert one["unusable_ratio"] == 1.0
        assert of_max["in_holes"] == 2 * 3 + 11 * 2
        assert of_max["bounds"] == [28, 28]

    def test_request_of_a_sequence(self) -> None:
        """Without a request the question is one sequence of the maximum."""
        (one,) = results("frag", "llama-3.1-8b", "--max", "4096", "--holes", "3x512MiB")

        assert one["request_bytes"] == one["sequences_of_max"]["bytes"] == 512 * 2**20
        assert one["fits_contiguous"] is True

    def test_rounding(self) -> None:
        """Fractions of a byte are rounded down where memory is free, up where it is asked for."""
        (one,) = results("frag", "--free", "10.9B", "--largest", "10.9B", "--request", "9.1B")

        assert (one["free_bytes"], one["largest_free_bytes"], one["request_bytes"]) == (10, 10, 10)
        assert one["fits_contiguous"] is True

    def test_exact_fit(self) -> None:
        """A request as large as the hole fits; one byte more does not."""
        (one,) = results("frag", "--free", "1GiB", "--largest", "1GiB", "--request", "1073741824")
        (two,) = results("frag", "--free", "1GiB", "--largest", "1GiB", "--request", "1073741825")

        assert one["fits_contiguous"] is True
        assert two["fits_contiguous"] is False
        assert two["fits_paged"] is False


class TestPerToken:
    def test_dtypes_side_by_side(self) -> None:
        """Several dtypes give a column each, in the order asked for, whatever their case."""
        asked = ("bf16", "FP8", "Q8_0:q4_0", "bf16")
        found = results(
            "per-token", "llama-3.1-8b", *(a for d in asked for a in ("--kv-cache-dtype", d))
        )

        assert [(one["kv_cache_dtype"], one["bytes_per_token"]) for one in found] == [
            ("bfloat16", 131_072),
            ("fp8_e4m3", 65_536),
            ("q8_0:q4_0", 32 * 8 * (136 + 72)),
        ]

    def test_usual_lengths(self) -> None:
        """Unasked, only lengths that the models can reach are sized; more are sized with a note."""
        (short,) = results("per-token", "gpt2")
        (asked,) = results("per-token", "gpt2", "--tokens", "8192")

        assert [one["tokens"] for one in short["sequences"]] == [1024]
        assert [one["tokens"] for one in asked["sequences"]] == [8192]
        notes = call("per-token", "gpt2", "--tokens", "8192", "--format", "json").document["notes"]
        assert "gpt2: 8,192 tokens are more than the 1,024 that the model was made for" in notes

    def test_the_stage_shown(self) -> None:
        """Where stages differ a note says whose figures they are, and at which length."""
        outcome = call("per-token", "qwen3-next-80b-a3b", "--pp", "5", "--format", "json")

        assert any(
            "figures of stage 2 of 5, the fullest at 262,144 tokens" in note
            for note in outcome.document["notes"]
        )

    def test_models(self) -> None:
        """Every preset grows by the bytes that papers, logs and engines say."""
        found = results("per-token", *PER_TOKEN)

        assert {one["model"]: one["bytes_per_token"] for one in found} == PER_TOKEN

    @pytest.mark.parametrize(("model", "size"), PER_TOKEN.items())
    def test_table(self, model: str, size: int) -> None:
        """Every figure is in the table with all its digits."""
        assert f"{size:,}" in call("per-token", model).out

    def test_aliases(self) -> None:
        """The names of the explainer and of the Hub reach the same presets."""
        found = results("per-token", "8b", "7b", "70b", "meta-llama/Llama-3.1-8B-Instruct")

        assert [one["model"] for one in found] == [
            "llama-3.1-8b",
            "llama-2-7b",
            "llama-3.1-70b",
            "llama-3.1-8b",
        ]

    def test_fp8_ds_mla(self) -> None:
        """DeepSeek-V3 in fp8_ds_mla is 656 B a token and layer."""
        (one,) = results("per-token", "deepseek-v3", "--kv-cache-dtype", "fp8_ds_mla")

        assert one["kv_cache_dtype"] == "fp8_ds_mla"
        assert one["bytes_per_token"] == 40_016

    def test_six_bits(self, tmp_path: Path) -> None:
        """60 MLA layers at 6 bits an element are 25,920 B a token."""
        file = tmp_path / "deepseek-v2.yaml"
        file.write_text(
            "kind: model\n"
            "name: deepseek-v2\n"
            "title: DeepSeek-V2\n"
            "architecture: DeepseekV2ForCausalLM\n"
            "dtype: bfloat16\n"
            "num_hidden_layers: 60\n"
            "layers:\n"
            "  - {count: 60, kind: mla, kv_lora_rank: 512, qk_rope_head_dim: 64}\n"
            "source: {repository: deepseek-ai/DeepSeek-V2, file: config.json}\n"
            "expect:\n"
            "  bytes_per_token: {bfloat16: 69120, 6bit: 25920}\n"
            "  confirmed_by: ['arXiv 2405.04434']\n",
            encoding="utf-8",
        )
        (one,) = results("per-token", str(file), "--kv-cache-dtype", "6bit")

        assert one["bytes_per_token"] == 25_920

    def test_sequence(self) -> None:
        """8,000 tokens of Llama-3.1-70B are 2,621,440,000 B."""
        (one,) = results("per-token", "llama-3.1-70b", "--tokens", "8000")

        assert one["sequences"] == [
            {"tokens": 8000, "bytes": 2_621_440_000, "allocated_bytes": 2_621_440_000}
        ]
        assert "2,621,440,000" in call("per-token", "llama-3.1-70b", "--tokens", "8000").out

    def test_default_sequences(self) -> None:
        """Sequences of 8,192 and 131,072 tokens are sized when none is asked for."""
        (one,) = results("per-token", "llama-3.1-8b")

        assert [(s["tokens"], s["bytes"]) for s in one["sequences"]] == [
            (8_192, GIB),
            (131_072, 16 * GIB),
        ]

    @pytest.mark.parametrize(
        ("model", "groups"),
        [
            ("gemma-3-27b", [("sliding_window", 52, 425_984), ("full_attention", 10, 81_920)]),
            ("gpt-oss-20b", [("sliding_window", 12, 24_576), ("full_attention", 12, 24_576)]),
            ("llama-4-scout", [("chunked_attention", 36, 147_456), ("full_attention", 12, 49_152)]),
        ],
    )
    def test_windows(self, model: str, groups: list[tuple[str, int, int]]) -> None:
        """Layers are told apart by what they keep; past its windows a model grows by the rest."""
        (one,) = results("per-token", model)
        kinds = [(g["kind"], g["count"], g["bytes_per_token"]) for g in one["layers"]]

        assert sorted(groups) == sorted(kinds)
        assert one["bytes_per_token_past_windows"] == {k: b for k, _, b in groups}["full_attention"]

    @pytest.mark.parametrize(
        ("model", "state"),
        [
            ("qwen3.5-27b", 153_944_064),
            ("jamba-v0.1", 8_716_288),
            ("nemotron-3-nano-30b-a3b", 49_082_368),
        ],
    )
    def test_states(self, model: str, state: int) -> None:
        """The fixed state of a sequence is told beside what grows."""
        (one,) = results("per-token", model)

        assert one["state_bytes"] == state
        assert f"{state:,}" in call("per-token", model).out

    def test_shape(self) -> None:
        """A shape instead of a model: 2 x 16 layers x 4 heads x 256 x 2 B."""
        shape = ("--layers", "16", "--kv-heads", "4", "--head-dim", "256")

        assert results("per-token", *shape)[0]["bytes_per_token"] == 65_536
        half = results("per-token", *shape, "--v-head-dim", "128")[0]
        assert half["bytes_per_token"] == 16 * 4 * (256 + 128) * 2
        wide = results("per-token", *shape, "--dtype", "float32")[0]
        assert wide["bytes_per_token"] == 131_072

    def test_ranks(self) -> None:
        """Tensor and pipeline ranks share the layers and heads; MLA's latent is on every rank."""
        (split,) = results("per-token", "llama-3.1-70b", "--tp", "4", "--pp", "2")
        (mla,) = results("per-token", "deepseek-v3", "--tp", "8")

        assert split["num_gpus"] == 8
        assert split["bytes_per_token"] == 327_680 // 8
        assert split["bytes_per_token_all_ranks"] == 327_680
        assert mla["bytes_per_token"] == 70_272
        assert mla["bytes_per_token_all_ranks"] == 8 * 70_272

    def test_default_model(self) -> None:
        """With no model named it is the article's shape, and a note says so."""
        (one,) = results("per-token")
        outcome = call("per-token")

        assert one["model"] == "qwen3.5-27b-attention"
        assert "note: no model was named: qwen3.5-27b-attention" in outcome.err


def test_compare_says_that_an_engine_does_not_start() -> None:
    """What fits by itself is no start: vLLM wants room for one sequence of the maximum."""
    asked = ("compare", "llama-3.1-8b", "--engine", "vllm", "--max", "8192", "--gpu", "h100-80gb")
    told = "note: llama-3.1-8b: vllm does not start with 536,870,912 B: one sequence of 8,192"

    assert told in call(*asked, "--kv-memory", "512MiB").err
    assert "does not start" not in call(*asked, "--kv-memory", "2GiB").err
