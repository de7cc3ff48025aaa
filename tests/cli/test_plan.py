"""kvcalc plan, and the other commands, with an engine's settings."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.results import PlanGroup, PlanRank, PlanSummary, StartUp
from tests.cli.harness import Outcome, call, is_fault

GIB = 2**30
VLLM = ("--engine", "vllm", "--gpu", "h100-80gb", "--max", "8192")
LOGGED = (
    "GPU KV cache size: 127,191 tokens, Maximum concurrency for 8,192 tokens per request: 15.53x"
)
COMMON = (
    "qwen3.5-27b",
    "gemma-3-27b",
    "gpt-oss-120b",
    "deepseek-v4-flash",
    "llama-4-scout",
    "jamba-v0.1",
)


def results(*arguments: str) -> Any:
    outcome = call(*arguments, "--format", "json")

    assert outcome.code == 0, outcome
    return outcome.results


def one(*arguments: str) -> Any:
    (found,) = results(*arguments)
    return found


def blocks(found: Any) -> list[tuple[int, int, int]]:
    """Return (layers, tokens a block, blocks a request) of every group of a plan."""
    return [(g["layers"], g["block_size"], g["units_needed"]) for g in found["groups"]]


class TestFigures:
    def test_article(self) -> None:
        """Qwen3.5-27B on an H100 in 15 GiB: what vLLM 0.33 logs, and 15 sessions rather than 23."""
        found = one("plan", "qwen3.5-27b", *VLLM, "--kv-memory", "15GiB")
        start = found["start_up"]

        assert (found["engine"], found["engine_version"]) == ("vllm", "0.33.0")
        assert blocks(found) == [(16, 832, 3)] * 3 + [(16, 832, 10)]
        assert (found["block_bytes"], found["units_needed"]) == (54_525_952, 19)
        assert found["needed_bytes"] == found["request"]["reserved_bytes"] == 1_035_993_088
        assert found["request"]["used_bytes"] == 690_814_976
        assert found["reuse_tokens"] == 832
        assert (start["num_blocks"], start["kv_cache_tokens"]) == (295, 127_191)
        assert f"{start['max_concurrency']:.2f}" == "15.53"
        assert (start["max_sequences"], start["fits"]) == (15, False)  # 1,024 states, 295 blocks
        assert start["overhead_bytes"] == 15 * GIB - 294 * 54_525_952
        assert start["log"][:2] == ["Available KV cache memory: 15.0 GiB", LOGGED]
        assert start["log"][2].startswith("ValueError: max_num_seqs (1024) exceeds available Mamba")
        bounded = one("plan", "qwen3.5-27b", *VLLM, "--kv-memory", "15GiB", "--max-num-seqs", "295")
        assert bounded["start_up"]["fits"]
        assert bounded["start_up"]["log"] == start["log"][:2]

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            (["--no-enable-prefix-caching"], [(16, 8192, 1)] * 3 + [(16, 784, 11)]),
            (["--gpu", "a100-80gb"], [(16, 784, 2)] * 3 + [(16, 784, 11)]),
            (["--mamba-ssm-cache-dtype", "bfloat16"], [(16, 448, 3)] * 3 + [(16, 448, 19)]),
            (["--kv-cache-dtype", "fp8"], [(16, 1600, 3)] * 3 + [(16, 1600, 6)]),
            (["--tp", "2"], [(16, 832, 3)] * 3 + [(16, 832, 10)]),
        ],
        ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
    )
    def test_settings_move_the_blocks(
        self, settings: list[str], expected: list[tuple[int, int, int]]
    ) -> None:
        """Each setting of the engine reaches its rules."""
        base = [word for word in VLLM if word not in ("--gpu", "h100-80gb")]
        card = [] if "--gpu" in settings else ["--gpu", "h100-80gb"]
        assert blocks(one("plan", "qwen3.5-27b", *base, *card, *settings)) == expected

    def test_kernels(self) -> None:
        """Kernels that are named decide the block in place of the card's own."""
        assert blocks(one("plan", "deepseek-v3", *VLLM)) == [(61, 16, 512)]
        flash = one("plan", "deepseek-v3", *VLLM, "--attention-backend", "FLASHMLA")
        assert blocks(flash) == [(61, 64, 128)]

    def test_tokens_in_flight(self) -> None:
        """A window's room follows the tokens of a step, and the steps at once."""
        few = ("--max-num-batched-tokens", "2048")

        def window(*settings: str) -> int:
            return blocks(one("plan", "gemma-3-27b", *VLLM[:-1], "131072", *settings))[0][2]

        assert window() == (1023 + 2 * 8192 + 15) // 16 + 1
        assert window(*few) == (1023 + 2 * 2048 + 15) // 16 + 1
        assert window(*few, "--no-async-scheduling") == (1023 + 2048 + 15) // 16 + 1
        assert window(*few, "--async-scheduling") == window(*few)

    def test_without_the_hybrid_manager(self) -> None:
        """One group of all layers; what a window no longer reads is retention."""
        flags = ("--engine-version", "0.19.1", "--disable-hybrid-kv-cache-manager")
        found = one("plan", "gemma-3-27b", *VLLM, *flags)

        assert blocks(found) == [(62, 16, 512)]
        assert found["request"]["waste"]["retention_bytes"] == 52 * 8192 * (8192 - 1024)

    def test_proposed_tokens(self) -> None:
        """A draft layer and two proposed tokens: five states a group instead of three."""
        mtp = ("--speculative-method", "mtp", "--num-speculative-tokens", "2")
        found = one("plan", "qwen3.5-27b", *VLLM, *mtp)

        assert [g["units_needed"] for g in found["groups"]] == [5, 5, 5, 10]
        assert found["groups"][-1]["layers"] == 17

    def test_a_draft_model(self) -> None:
        """A model that proposes tokens has its layers beside those of the one that is served."""
        draft = ("--draft-model", "llama-3.2-3b", "--num-speculative-tokens", "3")
        found = one("plan", "llama-3.1-70b", *VLLM, *draft)

        assert sum(group["layers"] for group in found["groups"]) == 80 + 28

    def test_older_releases(self) -> None:
        """V0 has no null block and no groups; its lines are its own."""
        cache = ("--kv-memory", "10GiB")
        found = one("plan", "llama-2-7b", *VLLM[:2], "--engine-version", "0.6.4", *cache)

        assert found["engine_version"] == "0.6.4+v0"
        assert found["start_up"]["num_blocks"] == 1280
        assert found["start_up"]["overhead_bytes"] == 0
        assert found["start_up"]["log"][0] == "# GPU blocks: 1280, # CPU blocks: 512"

    def test_stages(self) -> None:
        """Every stage is told with its GPUs; a note says whose groups are shown."""
        outcome = call("plan", "llama-3.1-70b", *VLLM, "--pp", "3", "--tp", "4", "-f", "json")
        (found,) = outcome.results

        assert found["num_gpus"] == 12
        assert [(r["name"], r["num_gpus"], r["block_bytes"]) for r in found["ranks"]] == [
            (f"stage {i}", 4, layers * 16_384) for i, layers in enumerate((27, 27, 26))
        ]
        assert found["block_bytes"] == 27 * 16_384
        assert any("figures of stage 0 of 3" in note for note in outcome.document["notes"])


class TestCache:
    def test_none(self) -> None:
        """Without a cache nothing is said of a start."""
        outcome = call("plan", "llama-3.1-8b", *VLLM)

        assert one("plan", "llama-3.1-8b", *VLLM)["start_up"] is None
        assert "starts" not in outcome.out
        assert "GPU KV cache" not in outcome.out

    def test_too_small(self) -> None:
        """The engine's refusal is a result, with the length that would do."""
        arguments = ("plan", "llama-3.1-8b", *VLLM, "--kv-memory", "100MiB")
        start = one(*arguments)["start_up"]
        outcome = call(*arguments)

        assert (start["fits"], start["max_sequences"], start["num_blocks"]) == (False, 0, 50)
        assert start["max_model_len_that_fits"] == 49 * 16
        assert start["log"][0] == "Available KV cache memory: 0.1 GiB"
        assert start["log"][1].startswith(
            "ValueError: To serve at least one request with the model's max seq len (8192),"
            " (1.0 GiB KV cache is needed, which is larger than the available KV cache memory"
            " (0.1 GiB). Based on the available memory, the estimated maximum model length is 784."
        )
        assert len(start["log"]) == 2
        assert outcome.code == 0
        assert start["log"][1] in outcome.out.splitlines()
        assert "with 100 MiB for the cache it does not start" in outcome.out
        assert "784 tokens" in outcome.out

    def test_too_small_for_a_block(self) -> None:
        """Where not even the null block fits there is no memory, in the engine's words."""
        start = one("plan", "llama-3.1-8b", *VLLM, "--kv-memory", "1B")["start_up"]

        assert (start["num_blocks"], start["max_model_len_that_fits"]) == (0, 0)
        assert start["log"][-1].startswith("ValueError: No available memory for the cache blocks.")

    def test_exactly_enough(self) -> None:
        """One sequence and the null block start; a byte less does not."""
        enough = 513 * 2 * 2**20
        cases = {enough: (True, 1), enough - 1: (False, 0)}
        for memory, expected in cases.items():
            start = one("plan", "llama-3.1-8b", *VLLM, "--kv-memory", str(memory))["start_up"]
            assert (start["fits"], start["max_sequences"]) == expected

    def test_blocks_that_are_set(self) -> None:
        """--num-gpu-blocks-override needs no memory: the blocks are known."""
        arguments = ("plan", "llama-3.1-8b", *VLLM, "--num-gpu-blocks-override", "1000")
        start = one(*arguments)["start_up"]
        shown = call(*arguments).out

        assert (start["kv_cache_bytes"], start["num_blocks"]) == (None, 1000)
        assert (start["kv_cache_tokens"], start["fits"], start["max_sequences"]) == (
            16_000,
            True,
            1,
        )
        assert start["overhead_bytes"] == 2 * 2**20
        assert len(start["log"]) == 1
        assert "with the size that is set it starts" in shown

    def test_too_few_blocks_are_set(self) -> None:
        """So is what they do not hold."""
        arguments = ("plan", "llama-3.1-8b", *VLLM, "--num-gpu-blocks-override", "100")
        start = one(*arguments)["start_up"]

        assert (start["fits"], start["max_model_len_that_fits"]) == (False, 99 * 16)
        assert start["log"][0].startswith("ValueError: To serve at least one request")

    def test_blocks_that_are_set_in_a_memory(self) -> None:
        """With both, the blocks are those set, and the rest of the memory is nobody's."""
        memory = ("--kv-memory", "10GiB", "--num-gpu-blocks-override", "1000")
        start = one("plan", "llama-3.1-8b", *VLLM, *memory)["start_up"]

        assert (start["kv_cache_bytes"], start["num_blocks"]) == (10 * GIB, 1000)
        assert start["overhead_bytes"] == 10 * GIB - 999 * 2 * 2**20

    def test_more_blocks_than_memory(self) -> None:
        """Blocks that the memory given cannot hold are told."""
        memory = ("--kv-memory", "1GiB", "--num-gpu-blocks-override", "1000")
        found = one("plan", "llama-3.1-8b", *VLLM, *memory)

        assert any("allocating them would fail" in note for note in found["notes"])

    @pytest.mark.parametrize(
        ("engine", "setting", "tokens"),
        [
            ("lmdeploy", "num_gpu_blocks=300", 300 * 64),
            ("sglang", "max_total_tokens=100000", 100_000),
            ("tensorrt-llm", "max_tokens=100000", 100_000),
        ],
    )
    def test_settings_that_fix_the_cache(self, engine: str, setting: str, tokens: int) -> None:
        """Where the settings say how large the cache is, no bytes are asked for."""
        card = ("--gpu", "h100-80gb", "--max", "8192")
        start = one("plan", "llama-3.1-8b", "--engine", engine, "--engine-arg", setting, *card)[
            "start_up"
        ]

        assert start["kv_cache_bytes"] is None
        assert start["kv_cache_tokens"] == tokens

    def test_an_engine_that_shortens(self) -> None:
        """It starts, the heading says for how long a sequence, and so does a note."""
        few = ("plan", "llama-3.1-8b", "--engine", "lmdeploy", "--kv-memory", "2GiB")
        found = one(*few)
        start = found["start_up"]

        assert (start["fits"], start["start"]) == (True, "shortens")
        assert (start["max_model_len_that_fits"], start["max_model_len_served"]) == (16320, 16256)
        assert found["notes"][0].startswith("it starts and serves no sequence over 16,256 tokens")
        assert "it starts, for sequences of up to 16,256" in call(*few).out

    def test_an_engine_that_does_not_check(self) -> None:
        few = ("plan", "llama-3.1-8b", "--engine", "transformers", "--kv-memory", "2GiB")
        found = one(*few)

        assert (found["start_up"]["fits"], found["start_up"]["start"]) == (True, "never_checks")
        assert "no room for a sequence of more than 16,384 tokens" in found["notes"][0]
        assert "it starts, and checks nothing" in call(*few).out

    def test_in_the_models_own_arithmetic(self) -> None:
        """Engine none has a size of cache too, and no log."""
        start = one("plan", "llama-3.1-8b", "--max", "8192", "--kv-memory", "10GiB")["start_up"]

        assert (start["num_blocks"], start["max_concurrency"], start["log"]) == (5120, 10.0, [])

    def test_the_engines_spelling(self) -> None:
        """--kv-cache-memory-bytes is vLLM's name of the same."""
        ours, theirs = (
            results("plan", "llama-3.1-8b", *VLLM, flag, "10GiB")
            for flag in ("--kv-memory", "--kv-cache-memory-bytes")
        )

        assert ours == theirs


class TestSeveral:
    def test_order(self) -> None:
        """Entries come model by model as typed, then dtype by dtype, then block by block."""
        found = results(
            "plan", "qwen3-8b", "llama-3.1-8b", *VLLM,
            "--kv-cache-dtype", "fp8", "--kv-cache-dtype", "bf16", "--block", "64", "--block", "16",
        )  # fmt: skip

        assert [(r["model"], r["kv_cache_dtype"], r["block_size"]) for r in found] == [
            (model, dtype, block)
            for model in ("qwen3-8b", "llama-3.1-8b")
            for dtype in ("fp8_e4m3", "bfloat16")
            for block in (64, 16)
        ]

    def test_engines_side_by_side(self) -> None:
        """Several engines are put beside one another before each is told."""
        arguments = ("plan", "llama-3.1-8b", "--max", "8192", "--engine", "none", *VLLM[:2])
        found = results(*arguments)
        shown = call(*arguments).out

        assert [r["engine"] for r in found] == ["none", "vllm"]
        assert shown.startswith("side by side\n")
        assert shown.count("\nwhy\n") == 2

    def test_alone_as_among_others(self) -> None:
        """A plan does not depend on what is planned beside it."""
        together = results("plan", *COMMON, *VLLM, "--kv-memory", "40GiB")

        assert together == [one("plan", name, *VLLM, "--kv-memory", "40GiB") for name in COMMON]

    def test_a_refusal_among_others(self) -> None:
        """One that is refused is told by name, and nothing of the others is printed."""
        outcome = call("plan", "llama-3.1-8b", "minimax-m3", *VLLM)

        assert is_fault(outcome).startswith("minimax-m3: ")


class TestDocument:
    def test_keys(self) -> None:
        """The keys are those of the values, in their order: additions alone may come."""
        found = one("plan", "gemma-3-27b", *VLLM, "--kv-memory", "15GiB")

        assert tuple(found) == PlanSummary.__struct_fields__
        assert {tuple(group) for group in found["groups"]} == {PlanGroup.__struct_fields__}
        assert {tuple(rank) for rank in found["ranks"]} == {PlanRank.__struct_fields__}
        assert tuple(found["start_up"]) == StartUp.__struct_fields__

    @pytest.mark.parametrize("name", COMMON)
    def test_sums(self, name: str) -> None:
        """Reserved is used plus the wastes, and the groups' blocks are the request's."""
        found = one("plan", name, *VLLM, "--kv-memory", "40GiB")
        request = found["request"]

        assert found["units_needed"] == sum(g["units_needed"] for g in found["groups"])
        assert found["units_needed"] * found["block_bytes"] == found["needed_bytes"]
        assert request["reserved_bytes"] == found["needed_bytes"]
        assert request["waste_bytes"] == sum(request["waste"].values())
        assert request["reserved_bytes"] == request["used_bytes"] + request["waste_bytes"]
        assert max(g["group_bytes"] for g in found["groups"]) == found["block_bytes"]
        for group in found["groups"]:
            assert group["content_bytes"] <= group["group_bytes"]
            assert group["page_bytes"] in (None, group["group_bytes"] // group["layers"])
            assert group["units_held"] <= group["units_needed"]

    def test_inputs(self) -> None:
        """Settings of the engine are echoed as typed, those switched off too."""
        flags = ("--max-num-seqs", "64", "--no-async-scheduling", "--enable-prefix-caching")
        inputs = call("plan", "llama-3.1-8b", *VLLM, *flags, "-f", "json").document["inputs"]

        assert inputs["max_num_seqs"] == "64"
        assert inputs["async_scheduling"] is False
        assert inputs["enable_prefix_caching"] is True
        assert inputs["resolved"]["engine"] == "vllm"
        assert inputs["resolved"]["block_size"] == [16]

    def test_reasons_are_the_plans(self) -> None:
        """Why a number moved stands in the plan, not on stderr; other commands say it there."""
        plan = call("plan", "qwen3.5-27b", *VLLM)
        other = call("compare", "qwen3.5-27b", *VLLM)
        reason = "attention block raised from 16 to 832 tokens"

        assert reason in plan.out
        assert reason not in plan.err
        assert f"note: qwen3.5-27b: {reason}" in other.err


class TestTable:
    @pytest.mark.parametrize("name", COMMON)
    def test_groups_fit(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """At 80 columns a group is a row of one table: nothing is wrapped into a second part.

        The log's line is the engine's own, and stays whole.
        """
        monkeypatch.setenv("COLUMNS", "80")
        asked = ("plan", name, *VLLM, "--kv-memory", "40GiB", "--max-num-seqs", "64")
        lines = call(*asked).out.splitlines()
        heads = [line for line in lines if line.split()[:2] == ["group", "layers"]]

        log = [line for line in lines if line.startswith("GPU KV cache size: ")]
        assert len(log) == 1
        assert max(len(line) for line in lines if line not in log) <= 80
        assert len(heads) == 1
        assert heads[0].split() == ["group", "layers", "keeps", "block", "page", "blocks"]

    def test_pipe(self) -> None:
        """In a pipe a line of the log and a reason stand whole."""
        lines = call("plan", "qwen3.5-27b", *VLLM, "--kv-memory", "15GiB").out.splitlines()

        assert LOGGED in lines
        assert sum("kernels leave checkpoints" in line for line in lines) == 1

    def test_alike_groups_are_one_row(self) -> None:
        """Three equal groups of states are `3 x 16` layers and `3 x 3` blocks."""
        rows = [line.split("  ") for line in call("plan", "qwen3.5-27b", *VLLM).out.splitlines()]
        (state,) = [[c.strip() for c in row if c] for row in rows if row[0] == "state"]

        assert (state[1], state[-1]) == ("3 x 16", "3 x 3")

    def test_pages_of_several_sizes(self) -> None:
        """A group whose layers have pages of different sizes shows what they come to, no mean."""
        shown = call("plan", "deepseek-v3.2", *VLLM).out

        assert "5,012,736 in all" in shown
        assert "41,088" not in shown

    def test_units_of_several_pools_are_no_sum(self) -> None:
        """Blocks and states of engine none differ in size: they are not added up."""
        assert "a request" not in call("plan", "qwen3.5-27b", "--max", "8192").out
        assert "a request" in call("plan", "llama-3.1-8b", "--max", "8192").out

    def test_blocks_of_the_models_own_arithmetic(self) -> None:
        """Engine none's blocks stand for tokens too."""
        groups = one("plan", "deepseek-v4-flash", "--max", "8192")["groups"]

        assert [g["block_size"] for g in groups] == [64, 2048, 16, None]


class TestOtherCommands:
    def test_compare(self) -> None:
        """The engine's wastes stand apart: retention, widened pages, places that groups lack."""
        found = one("compare", "kimi-k3", *VLLM)
        waste = found["paged_total"]["waste"]
        shown = call("compare", "kimi-k3", *VLLM).out

        assert (found["engine"], found["block_size"]) == ("vllm", 5760)
        for cause in ("retention", "page_padding", "group_padding", "tail"):
            assert waste[f"{cause}_bytes"] > 0
            assert f"\n  {cause.replace('_', ' ')} " in shown
        assert found["contiguous_total"]["waste"]["retention_bytes"] == 0
        assert found["paged_total"]["used_bytes"] == found["contiguous_total"]["used_bytes"]

    def test_worst_tail(self) -> None:
        """Groups that share a pool have a last block each."""
        shown = call("compare", "gemma-3-27b", *VLLM).out

        assert "15 tokens in a block of every group = 7,618,560 B" in shown

    def test_per_token(self) -> None:
        """A sequence in whole blocks is what the engine reserves for it."""
        found = one("per-token", "qwen3.5-27b", *VLLM, "--tokens", "8192")
        (sequence,) = found["sequences"]

        assert (found["block_size"], found["block_bytes"]) == (832, 54_525_952)
        assert (found["bytes_per_token"], found["state_bytes"]) == (65_536, 153_944_064)
        assert (sequence["bytes"], sequence["allocated_bytes"]) == (690_814_976, 1_035_993_088)
        shown = call("per-token", "qwen3.5-27b", *VLLM, "--tokens", "8192").out
        assert "the engine reserves   1,035,993,088" in shown
        assert "in whole blocks" not in shown

    def test_frag(self) -> None:
        """A sequence of the maximum is as large as the engine reserves it."""
        memory = ("--free", "15GiB", "--largest", "2GiB")
        found = one("frag", *memory, "qwen3.5-27b", *VLLM)

        assert found["sequences_of_max"]["bytes"] == found["request_bytes"] == 1_035_993_088
        assert found["sequences_of_max"]["in_free"] == 15

    @pytest.mark.parametrize(
        "command",
        [["compare"], ["per-token"], ["frag", "--free", "9GiB", "--largest", "9GiB"]],
        ids=lambda command: command[0],
    )
    def test_settings_reach_them(self, command: list[str]) -> None:
        """Each takes the settings of the engine."""
        plain, switched = (
            one(*command, "qwen3.5-27b", *VLLM, *flags)
            for flags in ((), ("--no-enable-prefix-caching",))
        )

        assert (plain["block_size"], switched["block_size"]) == (832, 784)

    def test_one_engine_alone(self) -> None:
        """They answer for one engine; the plan puts several side by side."""
        for command in ("compare", "per-token"):
            outcome = call(command, "llama-3.1-8b", *VLLM, "--engine", "none")
            assert "several engines" in is_fault(outcome)
            assert "kvcalc plan" in outcome.hints[0]


def test_deterministic() -> None:
    """Twice the same question is twice the same answer, in every format."""
    for form in ("table", "json", "csv", "markdown"):
        first, second = (
            call("plan", *COMMON, *VLLM, "--kv-memory", "15GiB", "-f", form) for _ in "12"
        )
        assert isinstance(first, Outcome)
        assert first == second
