"""vLLM's own settings: host memory, adapters, towers; each is counted, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.memory import HostPart
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.vllm.arguments import ENGINE_ARGS, NOT_MODELLED, counts_of
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.weights.on_rank import weights_on_rank

_GIB = 2**30
LLAMA = load_model("llama-3.1-8b")
OSS = load_model("gpt-oss-20b")
TOWER = load_model("qwen3.5-27b")
H100 = load_gpu("h100-80gb")


def deployed(version: str | None = None, **args: Any) -> Deployment:
    fields = {k: args.pop(k) for k in [*args] if k in Deployment.__struct_fields__}
    return Deployment(engine="vllm", engine_version=version, gpu=H100, max_model_len=8192,
                      engine_args=args, **fields)  # fmt: skip


def planned(version: str | None = None, model: ModelSpec = LLAMA, **args: Any) -> CachePlan:
    return plan(model, deployed(version, **args))


def host(found: CachePlan) -> dict[str, HostPart]:
    return {part.name: part for part in found.host}


class TestOffloadedBlocks:
    @pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
    def test_all_ranks_together(self, tp: int, pp: int) -> None:
        """Whole blocks of every rank within the bytes that are given for all of them."""
        found = planned(tensor_parallel_size=tp, pipeline_parallel_size=pp, kv_offloading_size=64)
        part = host(found)["offloaded blocks"]
        # A block of 16 tokens on all ranks: 131,072 B a token, whatever the split.
        blocks = 64 * _GIB // (16 * 131_072)
        assert f"{blocks:,} blocks of {16 * 131_072:,} B" in part.source
        assert part.high_bytes == 64 * _GIB
        assert 64 * _GIB - 2 * 2**20 <= part.low_bytes <= 64 * _GIB

    def test_they_change_nothing_on_the_card(self) -> None:
        without = answer(Question(LLAMA, deployed()))
        found = answer(Question(LLAMA, deployed(kv_offloading_size=64)))
        assert found.kv_cache_tokens == without.kv_cache_tokens
        assert found.budget == without.budget
        assert {part.name for part in found.host} == {"processes", "offloaded blocks"}
        assert {part.name for part in without.host} == {"processes"}

    def test_a_release_without_them(self) -> None:
        with pytest.raises(UnsupportedError, match=r"vLLM 0.10.2 has no kv_offloading_size"):
            planned("0.10.2", kv_offloading_size=64)
        assert "offloaded blocks" in host(planned("0.11.2", kv_offloading_size=64))

    def test_those_of_another_program(self) -> None:
        with pytest.raises(UnsupportedError, match="lmcache"):
            planned(kv_offloading_size=64, kv_offloading_backend="lmcache")
        native = planned(kv_offloading_size=64, kv_offloading_backend="native")
        assert "offloaded blocks" in host(native)


class TestWeights:
    @pytest.mark.parametrize("gib", [1, 4, 8.5])
    def test_they_leave_the_card(self, gib: float) -> None:
        """Between so many bytes and one more parameter of a layer move to the host."""
        whole = weights_on_rank(LLAMA)
        (budget,) = answer(Question(LLAMA, deployed(cpu_offload_gb=gib))).budget
        (term,) = (t for t in budget.terms if t.name == "weights")
        (before,) = answer(Question(LLAMA, deployed())).budget
        (all_,) = (t for t in before.terms if t.name == "weights")
        limit = int(gib * _GIB)
        assert all_.high_bytes - limit == term.high_bytes
        layer = whole.high_bytes // LLAMA.num_hidden_layers
        assert limit <= all_.low_bytes - term.low_bytes <= limit + layer * 1.1
        assert "cpu_offload_gb moves" in term.source

    def test_embedding_and_head_stay(self) -> None:
        """However much may move, tables of 128,256 x 4,096 stay: the layers alone do."""
        (budget,) = answer(Question(LLAMA, deployed(cpu_offload_gb=500))).budget
        (term,) = (t for t in budget.terms if t.name == "weights")
        assert term.low_bytes == 0
        assert term.high_bytes >= 2 * 128_256 * 4096 * 2

    @pytest.mark.parametrize("tp", [1, 2])
    def test_each_gpu_has_its_own(self, tp: int) -> None:
        part = host(planned(tensor_parallel_size=tp, cpu_offload_gb=4))["weights"]
        assert (part.low_bytes, part.high_bytes) == (0, 4 * tp * _GIB)

    def test_they_make_room_for_the_cache(self) -> None:
        without = answer(Question(LLAMA, deployed()))
        found = answer(Question(LLAMA, deployed(cpu_offload_gb=4)))
        assert found.low.kv_cache_tokens > without.low.kv_cache_tokens + 30_000

    @pytest.mark.parametrize(
        ("version", "moved"),
        [
            ("0.33.0", True), ("0.28.0", True), ("0.27.1", False), ("0.25.1", False),
            ("0.23.0", False), ("0.22.1", True), ("0.20.0", True), ("0.9.2", True),
        ],
    )  # fmt: skip
    def test_a_runner_that_does_not_read_it(self, version: str, moved: bool) -> None:
        """vllm-project/vllm#51396; config/vllm.py, DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES."""
        found = answer(Question(LLAMA, deployed(version, cpu_offload_gb=8)))
        (term,) = (t for t in found.budget[0].terms if t.name == "weights")
        assert (term.high_bytes < weights_on_rank(LLAMA).low_bytes) is moved
        notes = planned(version, cpu_offload_gb=8).notes
        assert any("has no effect" in line for line in notes) is not moved

    def test_v0_copies_a_layer_back(self) -> None:
        """0.8.2 falls back to V0, whose forward copies a layer's parameters to the GPU."""
        high = {}
        for version in ("0.8.2", "0.8.3"):
            (budget,) = answer(Question(LLAMA, deployed(version, cpu_offload_gb=8))).budget
            (high[version],) = (t.high_bytes for t in budget.terms if t.name == "weights")
        layer = weights_on_rank(LLAMA).high_bytes / LLAMA.num_hidden_layers
        assert high["0.8.2"] - high["0.8.3"] == pytest.approx(layer, rel=0.01)

    @pytest.mark.parametrize(("version", "kept"), [("0.16.0", True), ("0.17.0", False)])
    def test_repacked_weights_stay(self, version: str, kept: bool) -> None:
        """0.17 model_loader/utils.py, device_loading_context, moves anew what a kernel made."""
        question = Question(LLAMA, deployed(version, cpu_offload_gb=2), quantization="awq")
        (term,) = (t for t in answer(question).budget[0].terms if t.name == "weights")
        whole = weights_on_rank(LLAMA, quantization="awq")
        assert (term.high_bytes >= whole.low_bytes) is kept
        assert term.low_bytes < whole.low_bytes - 2 * _GIB

    @pytest.mark.parametrize("version", ["0.10.1", "0.19.1"])
    def test_groups_of_blocks_are_refused(self, version: str) -> None:
        """gpu_model_runner.py, may_reinitialize_input_batch, until the assertion left in 0.20."""
        with pytest.raises(UnsupportedError, match="2 groups of blocks") as found:
            planned(version, model=OSS, cpu_offload_gb=4)
        assert found.value.code == "cpu-offload-groups"
        assert planned(version, model=OSS)
        assert planned("0.20.0", model=OSS, cpu_offload_gb=4)

    def test_a_release_without_it(self) -> None:
        with pytest.raises(UnsupportedError, match=r"0\.5\.2 has no cpu_offload_gb"):
            planned("0.5.2", cpu_offload_gb=4)

    def test_nothing_is_nothing(self) -> None:
        assert answer(Question(LLAMA, deployed(cpu_offload_gb=0))) == answer(
            Question(LLAMA, deployed())
        )


class TestSwapSpace:
    def test_v0_has_it_unasked(self) -> None:
        """4 GiB a GPU, in whole blocks; a public log of such a start counts 2,048 CPU blocks."""
        part = host(planned("0.6.3"))["swap space"]
        assert part.low_bytes == part.high_bytes == 4 * _GIB
        assert "2,048 CPU blocks" in part.source

    def test_v0_as_asked(self) -> None:
        part = host(planned("0.6.3", swap_space=1.5, tensor_parallel_size=2))["swap space"]
        # 16 tokens of half the heads: 1 MiB a block on each of two GPUs.
        assert part.low_bytes == part.high_bytes == 2 * 1536 * 2**20
        assert "1,536 CPU blocks" in part.source

    def test_only_whole_blocks(self) -> None:
        part = host(planned("0.6.3", swap_space=0.0029))["swap space"]
        assert part.high_bytes == 2 * 2**20

    def test_v0_without(self) -> None:
        assert "swap space" not in host(planned("0.6.3", swap_space=0))

    def test_v1_passes_over_it(self) -> None:
        found = planned("0.12.0", swap_space=4)
        assert "swap space" not in host(found)
        assert any("swap_space plays no part" in note for note in found.notes)

    @pytest.mark.parametrize("version", ["0.18.1", "0.33.0", None])
    def test_later_releases_have_none(self, version: str | None) -> None:
        with pytest.raises(UnsupportedError, match="has no swap_space") as caught:
            planned(version, swap_space=4)
        assert "kv_offloading_size" in caught.value.hint


class TestAdapters:
    @staticmethod
    def slots(**args: Any) -> tuple[int, int] | None:
        (budget,) = answer(Question(LLAMA, deployed(**args))).budget
        found = [t for t in budget.terms if "adapters" in t.source]
        return (found[0].low_bytes, found[0].high_bytes) if found else None

    def test_the_switch_makes_one_of_rank_16(self) -> None:
        assert self.slots(enable_lora=True) == self.slots(max_loras=1, max_lora_rank=16)
        assert self.slots(enable_lora=True) is not None

    def test_numbers_alone_make_them_too(self) -> None:
        assert self.slots(max_loras=4) == self.slots(enable_lora=True, max_loras=4)

    def test_none(self) -> None:
        assert self.slots() is None
        assert self.slots(enable_lora=False, max_loras=4) is None

    def test_split_over_ranks(self) -> None:
        whole = self.slots(enable_lora=True, max_loras=8, tensor_parallel_size=4)
        split = self.slots(enable_lora=True, max_loras=8, tensor_parallel_size=4,
                           fully_sharded_loras=True)  # fmt: skip
        assert whole is not None
        assert split is not None
        assert split[0] == whole[0]
        assert split[1] < whole[1]


class TestTowers:
    @staticmethod
    def encoder(**args: Any) -> tuple[int, int] | None:
        version = args.pop("version", None)
        (budget,) = answer(Question(TOWER, deployed(version, **args))).budget
        found = [t for t in budget.terms if "encoder" in t.source]
        return (found[0].low_bytes, found[0].high_bytes) if found else None

    def test_a_tower_is_profiled(self) -> None:
        found = self.encoder()
        assert found is not None
        assert found == self.encoder(limit_mm_per_prompt='{"image": 8}')

    @pytest.mark.parametrize(
        "args",
        [
            {"language_model_only": True},
            {"limit_mm_per_prompt": '{"image": 0, "video": 0, "audio": 0}'},
            {"limit_mm_per_prompt": "image=0,video=0,audio=0"},
        ],
    )
    def test_no_input_no_profile(self, args: dict[str, Any]) -> None:
        assert self.encoder(**args) is None
        notes = planned(model=TOWER, **args).notes
        assert any("the encoder is not profiled" in note for note in notes)

    def test_some_kinds_leave_it_open(self) -> None:
        """Which kinds a tower is for is not known: the least is nothing, the most as before."""
        found, all_ = self.encoder(limit_mm_per_prompt='{"image": 0}'), self.encoder()
        assert found is not None
        assert all_ is not None
        assert found == (0, all_[1])

    def test_a_model_without_one(self) -> None:
        notes = planned(language_model_only=True).notes
        assert not any("encoder" in note for note in notes)

    def test_v0_profiles_as_many_as_are_allowed(self) -> None:
        """multimodal/profiling.py: as many items of every kind as a prompt may have."""

        def most(images: int) -> int:
            limits = f'{{"image": {images}}}'
            asked = Question(
                load_model("gemma-3-27b"), deployed("0.8.5+v0", limit_mm_per_prompt=limits)
            )
            (budget,) = answer(asked).budget
            return sum(term.high_bytes for term in budget.terms if term.label == "encoder")

        assert 0 == most(0) < most(1) < most(4)

    @pytest.mark.parametrize(
        ("text", "counts"),
        [
            ('{"image": 2, "video": 0}', {"image": 2, "video": 0}),
            ("image=2,video=0", {"image": 2, "video": 0}),
            ('{"video": {"count": 1, "num_frames": 32}}', {"video": 1}),
        ],
    )
    def test_spellings(self, text: str, counts: dict[str, int]) -> None:
        assert counts_of(text) == counts

    @pytest.mark.parametrize(
        "text",
        ["", "many", "image", "image=-1", '{"image": -1}', '{"image": "2"}', '{"image": true}',
         '{"image": {"size": 3}}', "[1]", '{"image": 1.5}', "{", "{" * 5000],
    )  # fmt: skip
    def test_no_limits(self, text: str) -> None:
        with pytest.raises(InvalidValueError) as caught:
            counts_of(text)
        assert "image" in caught.value.hint


@pytest.mark.parametrize("name", NOT_MODELLED)
def test_what_is_not_modelled_is_refused_by_name(name: str) -> None:
    """With what it would need, or what to give instead."""
    with pytest.raises(UnsupportedError, match=f"vLLM's {name} is not modelled") as caught:
        plan(LLAMA, Deployment(engine="vllm", engine_args={name: "x"}))
    assert len(caught.value.hint) > 10


@pytest.mark.parametrize("name", ["max_model_len", "kv_cache_dtype", "block_size"])
def test_what_has_an_option_of_its_own(name: str) -> None:
    asked = Deployment(engine="vllm", engine_args={name: 16})
    with pytest.raises(UnsupportedError, match=f"{name} is no engine_arg") as caught:
        plan(LLAMA, asked)
    assert name.replace("_", "-") in caught.value.hint


def test_what_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="unknown vLLM setting 'swap_spaces'") as caught:
        planned(swap_spaces=4)
    assert "swap_space" in caught.value.hint


@pytest.mark.parametrize("name", [n for n in ENGINE_ARGS if not n.startswith("VLLM_")])
@pytest.mark.parametrize("value", ["some", -1, float("nan"), float("inf"), 1e300])
def test_a_value_that_is_none(name: str, value: Any) -> None:
    with pytest.raises(KvcalcError) as caught:
        planned("0.12.0", **{name: value})
    assert caught.value.hint
