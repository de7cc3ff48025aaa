"""What changed from release to release, each rule at the releases before and after its change.

The expectations are computed by hand from the formulas in vLLM's sources, of the release that a
line names; the file and symbol stand in the docstrings, below vllm/. Pages are those of one layer.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.capacity import start_up_limit, start_up_need
from kvcalc.core.layers import LayerRun
from kvcalc.core.plan import CachePlan
from kvcalc.core.rules import Chunk, Grow, Slots, Window
from kvcalc.engines.vllm.rules import COMPARED, Rules, rules_of, told_apart
from kvcalc.engines.vllm.version import Release, release
from tests.core import builders
from tests.core.builders import FULL
from tests.engines.vllm.asking import GIB, NGRAM, asked, in_flight, refused, widths

_EAGLE3: dict[str, Any] = {"speculative_method": "eagle3", "num_speculative_tokens": 1}
_CACHED: dict[str, Any] = {"enable_prefix_caching": True}
_UNCACHED: dict[str, Any] = {"enable_prefix_caching": False}
_KIMI_LINEAR = "moonshotai--Kimi-Linear-48B-A3B-Instruct"


def _windows(kv_heads: int = 8) -> SlidingWindow:
    return SlidingWindow(num_kv_heads=kv_heads, head_dim=128, sliding_window=1024)


# Figures that are logged


@pytest.mark.parametrize(
    ("at", "blocks", "tokens", "concurrency"),
    [
        ("0.8.5", 2520, 2520 * 16, 2520 * 16 / 2048),
        ("0.9.2", 16384, 16384 // 7 * 16, 16384 / 902),
        ("0.11.2", 16384, 16384 // 7 * 16, 16384 / 902),
        ("0.19.1", 16384, 16384 // 7 * 16, 16384 / 902),
        ("0.20.0", 16384, 16384 // 7 * 16, 16384 / 902),
        ("0.20.1", 16384, 37_200, 16384 / 902),
        ("0.33", 16384, 37_200, 16384 / 902),
    ],
)
def test_token_line(at: str, blocks: int, tokens: int, concurrency: float) -> None:
    """Gemma-3-1b in 1 GiB: 22 windows and 4 full layers, pages of 16 x 256 x 2 x 2 = 16,384 B.

    0.8.5 keeps all 26 layers whole: 2**30 // (26 x 16,384) blocks. Later there are 7 groups of 4;
    a request of 2,048 takes 6 x (128 + 1) + 128 = 902 blocks. v1/core/kv_cache_utils.py,
    _get_kv_cache_config_uniform_type (0.8.5), _report_kv_cache_config (0.20.0 and 0.20.1).
    """
    found = asked("gemma-3-1b", at, max_model_len=2048, max_num_batched_tokens=2048)
    capacity = found.capacity(GIB)

    assert capacity.num_blocks == blocks
    assert capacity.kv_cache_tokens == tokens
    assert capacity.max_concurrency == concurrency


@pytest.mark.parametrize(
    ("at", "tokens"), [("0.10.2", 2340 * 64), ("0.20.0", 2340 * 64), ("0.20.1", 149_760)]
)
def test_token_line_of_ranks_that_share_a_sequence(at: str, tokens: int) -> None:
    """One group: blocks x 16 x dcp; later it is concurrency x length, and comes to the same.

    Llama-3.1-70B over 32 ranks, 4 a sequence: 80 layers of 1 head, a block is 655,360 B. 2,048
    tokens are 512 a rank, 32 blocks. kv_cache_utils.py, _report_kv_cache_config.
    """
    found = asked(
        "llama-3.1-70b",
        at,
        tensor_parallel_size=32,
        decode_context_parallel_size=4,
        max_model_len=2048,
    )

    assert found.capacity(2340 * 655_360).kv_cache_tokens == tokens


# Groups


@pytest.mark.parametrize(
    ("at", "full", "windows", "groups"),
    [
        ("0.11.2", 10, 12, [10, 6, 6]),  # the smallest kind decides
        ("0.12.0", 10, 12, [10, 12]),  # 12 < 1.25 x 10
        ("0.12.0", 8, 10, [8, 5, 5]),  # 10 = 1.25 x 8
        ("0.17.1", 10, 12, [10, 12]),
        ("0.17.1", 10, 14, [10, 7, 7]),
        ("0.18.0", 10, 14, [10, 14]),  # 14 < 1.5 x 10
        ("0.18.0", 10, 15, [10, 8, 7]),  # 15 = 1.5 x 10
        ("0.33", 10, 14, [10, 14]),
        ("0.33", 10, 15, [10, 8, 7]),
    ],
)
def test_group_size(at: str, full: int, windows: int, groups: list[int]) -> None:
    """kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size: min, then 1.25 and 1.5 times."""
    spec = builders.model((full, (FULL,)), (windows, (_windows(),)))
    found = asked(spec, at, max_model_len=4096)

    assert [layers for _, layers, _ in widths(found)] == groups
    assert found.block_bytes == max(groups) * 16 * 8 * 128 * 2 * 2


@pytest.mark.parametrize(
    ("at", "groups"),
    [
        ("0.11.2", [("window 128", 12), ("full attention (1)", 7), ("full attention (2)", 6)]),
        ("0.12.0", [("window 128", 12), ("full attention", 13)]),
    ],
)
def test_a_draft_layer_joins_the_groups(at: str, groups: list[tuple[str, int]]) -> None:
    """gpt-oss-20b with an EAGLE head: 12 windows and 13 full layers."""
    found = asked("gpt-oss-20b", at, max_model_len=8192, **_EAGLE3)

    assert [(name, layers) for name, layers, _ in widths(found)] == groups


@pytest.mark.parametrize("at", ["0.8.5", "0.10.2"])
def test_heads_that_vary_are_refused_before_0_11(at: str) -> None:
    """kv_cache_utils.py of 0.10.2: pages of one kind of layer must be equal (is_kv_cache_type_*).

    0.11.0 has UniformTypeKVCacheSpecs.
    """
    fewer = FullAttention(num_kv_heads=4, head_dim=128)
    spec = builders.model((4, (FULL,)), (4, (fewer,)))

    assert refused(spec, at, max_model_len=4096) == (
        "this release of vLLM wants pages of one size, and this model's differ by layer"
    )
    found = asked(spec, "0.11.0", max_model_len=4096)
    assert widths(found) == [("full attention", 8, 16)]
    assert found.block_bytes == 4 * 16 * (8 + 4) * 128 * 2 * 2


def test_pages_are_made_equal_since_0_12() -> None:
    """unify_kv_cache_spec_page_size: half the heads, so blocks of twice the tokens."""
    spec = builders.model((4, (_windows(4),)), (4, (FULL,)))

    for at in ("0.9.2", "0.11.2"):
        assert refused(spec, at, max_model_len=4096).endswith("this model's differ by layer")
    found = asked(spec, "0.12.0", max_model_len=4096)
    assert widths(found) == [("window 1024", 4, 32), ("full attention", 4, 16)]
    assert found.reuse_tokens == 32


def test_pages_that_fit_no_whole_number_of_times_are_widened() -> None:
    """unify_kv_cache_spec_page_size: 40,960 B beside 65,536 B."""
    spec = builders.model((4, (_windows(5),)), (4, (FULL,)))

    for at in ("0.12.0", "0.23.0"):
        assert refused(spec, at, max_model_len=4096) == (
            "pages of 40,960 B cannot be made 65,536 B, another layer's"
        )
    for at in ("0.29", "0.33"):
        found = asked(spec, at, max_model_len=4096)
        assert widths(found) == [("window 1024", 4, 16), ("full attention", 4, 16)]
        assert found.rank.groups()[0].unit_bytes == 4 * 65_536
        assert found.rank.groups()[0].content_bytes == 4 * 40_960


@pytest.mark.parametrize("at", ["0.26", "0.33"])
def test_states_beside_a_wider_draft_layer(at: str) -> None:
    """unify_kv_cache_spec_page_size: a state's page is widened, its block stays the length.

    A token of the draft layer is twice as wide as the model's 4,096 B; a state with its room for
    one proposed token is 3,227,648 B, so that blocks of 800 cover it.
    """
    spec = builders.model(*((3, (builders.GDN_27B,)), (1, (builders.FULL_27B,))) * 4)
    wide = FullAttention(num_kv_heads=8, head_dim=256)
    found = asked(
        msgspec.structs.replace(spec, draft_layers=(LayerRun(count=1, caches=(wide,)),)),
        at,
        max_model_len=8192,
        enable_prefix_caching=False,
        speculative_method="mtp",
        num_speculative_tokens=1,
    )
    state, *_, draft = found.rank.groups()

    assert (state.block_size, state.unit_bytes) == (8192, 800 * 8192)
    assert (draft.block_size, draft.unit_bytes) == (800, 800 * 8192)
    assert found.block_size == 1600


def test_latents_beside_windows_are_kept_whole() -> None:
    """_try_get_full_allocation_fallback_groups (0.27): one group, every layer every token."""
    latent = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
    spec = builders.model((4, (latent,)), (4, (_windows(),)))

    assert refused(spec, "0.23.0", max_model_len=4096).startswith("pages of 18,432 B")
    found = asked(spec, "0.29", max_model_len=4096)
    assert widths(found) == [("MLA", 8, 16)]
    assert found.block_bytes == 4 * (16 * 1152 + 65_536)


# Windows and chunks


def test_0_8_has_no_hybrid_manager() -> None:
    """unify_hybrid_kv_cache_specs: windows beside full layers keep all; windows alone do not."""
    found = asked("gemma-3-1b", "0.8.5", max_model_len=4096)
    assert [group.layers for group in found.rank.groups()] == [26]
    assert found.need(4096) == {"blocks": 256}

    alone = asked("mistral-7b-v0.1", "0.8.5", max_model_len=32768, max_num_batched_tokens=2048)
    assert alone.need(32768) == {"blocks": 385}  # (4,095 + 2,048) / 16, and one

    later = asked("gemma-3-1b", "0.9.2", max_model_len=4096, max_num_batched_tokens=2048)
    assert later.need(4096) == {"blocks": 6 * (160 + 1) + 256}  # (511 + 2,048) / 16, and one


@pytest.mark.parametrize(
    ("at", "freed"),
    [
        ("0.9.2", False),  # has no such spec
        ("0.10.0", True),
        ("0.10.1", False),  # VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is 0
        ("0.10.2", False),
        ("0.13.0", False),
        ("0.14.0", True),  # it is 1
        ("0.33", True),
    ],
)
def test_local_chunks(at: str, freed: bool) -> None:
    """Llama-4-Scout, 36 layers with chunks of 8,192 and 12 full; config/vllm.py, __post_init__."""
    found = asked(
        "llama-4-scout",
        at,
        tensor_parallel_size=8,
        max_model_len=65536,
        max_num_batched_tokens=4096,
        async_scheduling=False,
    )
    chunks = found.rank.groups()[0].rule

    if freed:
        assert isinstance(chunks, Chunk)
        assert found.need(65536) == {"blocks": 3 * (8192 + 4096) // 16 + 4096}
    else:
        assert isinstance(chunks, Grow)
        assert (chunks.limit, chunks.restarts) == (8192, True)
        assert widths(found) == [("chunk", 48, 16)]


@pytest.mark.parametrize(
    ("at", "blocks"), [("0.25", 161), ("0.25.1", 161), ("0.26", 289), ("0.33", 289)]
)
def test_tokens_in_flight(at: str, blocks: int) -> None:
    """SlidingWindowSpec.max_memory_usage_bytes: (511 + F) / 16 rounded up, and one.

    F is max_num_batched_tokens until 0.25, then VllmConfig.max_in_flight_tokens: two steps.
    """
    found = asked("gemma-3-1b", at, max_model_len=32768, max_num_batched_tokens=2048)

    assert found.rank.groups()[0].rule.peak(32768) == blocks


def test_tokens_in_flight_without_overlap() -> None:
    found = asked(
        "gemma-3-1b",
        "0.26",
        max_model_len=32768,
        max_num_batched_tokens=2048,
        async_scheduling=False,
    )

    assert found.rank.groups()[0].rule.peak(32768) == 161


@pytest.mark.parametrize(
    ("at", "model", "overlap", "steps"),
    [
        ("0.25.1", "gemma-3-1b", None, 1),
        ("0.26", "gemma-3-1b", None, 3),  # dense: the newer runner has a step more than stages
        ("0.26", "gpt-oss-20b", None, 2),
        ("0.26", "gemma-3-1b", False, 2),
        ("0.28", "gemma-3-1b", None, 3),
        ("0.28", "gpt-oss-20b", None, 2),
        ("0.29", "gemma-3-1b", None, 3),
        ("0.29", "gpt-oss-20b", None, 3),
        ("0.29", "gpt-oss-20b", False, 2),
        ("0.33", "gpt-oss-20b", None, 3),
    ],
)
def test_steps_of_a_pipeline(at: str, model: str, overlap: bool | None, steps: int) -> None:
    """config/vllm.py, max_concurrent_batches and use_v2_model_runner, over two stages."""
    found = asked(
        model,
        at,
        max_model_len=32768,
        max_num_batched_tokens=1000,
        pipeline_parallel_size=2,
        async_scheduling=overlap,
    )

    assert in_flight(found) == steps * 1000


@pytest.mark.parametrize(
    ("at", "method", "steps"),
    [
        ("0.26", "ngram", 1),
        ("0.28", "ngram", 1),
        ("0.32", "ngram", 1),
        ("0.33", "ngram", 2),
        ("0.26", "eagle", 2),
        ("0.32", "eagle", 2),
        ("0.33", "eagle", 2),
    ],
)
def test_speculation_and_overlap(at: str, method: str, steps: int) -> None:
    """config/vllm.py, __post_init__: n-gram speculation switches overlap off before 0.33."""
    found = asked(
        "gemma-3-1b",
        at,
        max_model_len=32768,
        max_num_batched_tokens=1000,
        speculative_method=method,
        num_speculative_tokens=2,
    )

    assert in_flight(found) == steps * 1000


@pytest.mark.parametrize(
    ("at", "modules", "proposed", "extra"),
    [
        ("0.27", 2, 4, 0),
        ("0.28", 2, 4, 3),
        ("0.33", 2, 4, 3),
        ("0.28", 1, 3, 0),  # one module
        ("0.28", 2, 1, 0),  # one of them is used
    ],
)
def test_windows_keep_what_several_modules_read(
    at: str, modules: int, proposed: int, extra: int
) -> None:
    """kv_cache_utils.py, get_kv_cache_configs (extra_retained_tokens): k - 1."""
    spec = builders.model((6, (_windows(),)), (6, (FULL,)))
    drafts = (LayerRun(count=modules, caches=(FULL,)),)
    found = asked(
        msgspec.structs.replace(spec, draft_layers=drafts),
        at,
        max_model_len=32768,
        max_num_batched_tokens=1000,
        speculative_method="mtp",
        num_speculative_tokens=proposed,
    )

    assert in_flight(found) == 2000 + extra


@pytest.mark.parametrize(
    ("at", "blocks"), [("0.10.2", 94), ("0.11.0", 94), ("0.11.2", 512), ("0.33", 512)]
)
def test_blocks_of_an_encoder(at: str, blocks: int) -> None:
    """CrossAttentionSpec.max_memory_usage_bytes: 1,500 rows of Whisper, since 0.11.2 a step's."""
    full, cross = asked("openai--whisper-tiny", at, max_model_len=448).rank.groups()

    assert (full.name, full.rule.peak(448)) == ("full attention", 28)
    assert (cross.name, cross.rule.peak(448)) == ("cross attention", blocks)
    assert cross.rule.held(1) == 94


@pytest.mark.parametrize(
    ("at", "alone", "beside"),
    [
        ("0.24", 64, (128, 64)),  # cache_config.block_size
        ("0.25", 16, (64, 32)),  # the smallest that the kernel reads
        ("0.29", 16, (64, 32)),
        ("0.30", 64, (128, 64)),  # the largest within the cache's own
        ("0.33", 64, (128, 64)),
    ],
)
def test_block_of_a_window(at: str, alone: int, beside: tuple[int, int]) -> None:
    """With --block-size 64: layers/attention/attention.py, Attention.get_kv_cache_spec.

    Mistral-7B has windows alone. MiMo-V2's windows have twice the heads of its full layers, so that
    pages are made equal by blocks of twice the tokens in the full ones, or in neither.
    """
    found = asked("mistral-7b-v0.1", at, block_size=64, max_model_len=4096)
    assert widths(found) == [("window 4096", 32, alone)]

    mixed = widths(asked("mimo-v2-flash", at, block_size=64, max_model_len=4096))
    assert (mixed[0][2], mixed[1][2]) == beside


@pytest.mark.parametrize(
    ("at", "limit"), [("0.10.1", 4096), ("0.28", 4096), ("0.29", 4097), ("0.33", 4097)]
)
def test_a_window_of_cohere2_sees_its_own_token_too(at: str, limit: int) -> None:
    """models/commandr.py, CohereAttention: per_layer_sliding_window; since 0.29 with one more."""
    found = asked("CohereForAI--c4ai-command-r7b-12-2024", at, max_model_len=8192)
    windows = {g.rule.window for g in found.rank.groups() if isinstance(g.rule, Window)}
    assert windows == {limit}


# States


@pytest.mark.parametrize(
    ("at", "model", "settings", "slots", "every"),
    [
        # One, whatever is proposed; then one every block of its own, which is the length.
        ("0.10.2", "qwen3-next-80b-a3b", {}, 1, None),
        ("0.11.0", "qwen3-next-80b-a3b", NGRAM, 1, None),
        ("0.11.2", "qwen3-next-80b-a3b", {}, 1, None),
        ("0.14.1", "qwen3-next-80b-a3b", NGRAM, 1, None),
        ("0.11.2", "granite-4.0-h-small", _CACHED, 1, 768),
        ("0.14.1", "granite-4.0-h-small", _CACHED, 1, 768),
        # By mode since 0.15: none, and align for models that cannot keep one every block.
        ("0.15.1", "qwen3-next-80b-a3b", NGRAM, 3, None),
        ("0.15.1", "qwen3-next-80b-a3b", _CACHED, 2, None),
        ("0.17.1", "qwen3-next-80b-a3b", _CACHED | NGRAM, 4, None),
        ("0.32", "qwen3-next-80b-a3b", {}, 2, None),
        ("0.33", "qwen3-next-80b-a3b", {}, 3, None),  # a checkpoint of FlashInfer's kernels
        ("0.33", "qwen3-next-80b-a3b", _UNCACHED | NGRAM, 3, None),
        # The others, all: proposed tokens count since 0.22, and change the mode in 0.20 and 0.21.
        ("0.15.1", "nemotron-3-nano-30b-a3b", _CACHED, 1, 2176),
        ("0.19.1", "nemotron-3-nano-30b-a3b", _CACHED | NGRAM, 1, 2176),
        ("0.20.0", "nemotron-3-nano-30b-a3b", _CACHED, 1, 2176),
        ("0.20.0", "nemotron-3-nano-30b-a3b", _CACHED | NGRAM, 4, None),
        ("0.21.0", "nemotron-3-nano-30b-a3b", _CACHED | NGRAM, 4, None),
        ("0.22.0", "nemotron-3-nano-30b-a3b", _CACHED | NGRAM, 3, 2176),
        ("0.27", "nemotron-3-nano-30b-a3b", _CACHED | NGRAM, 3, 2176),
        ("0.27", "nemotron-3-nano-30b-a3b", {}, 1, None),
        # All align since 0.28; Mamba-2 keeps a checkpoint since 0.32.
        ("0.28", "nemotron-3-nano-30b-a3b", {}, 2, None),
        ("0.31", "nemotron-3-nano-30b-a3b", NGRAM, 4, None),
        ("0.32", "nemotron-3-nano-30b-a3b", {}, 3, None),
        ("0.32", "nemotron-3-nano-30b-a3b", NGRAM, 5, None),
        # Kimi-K3's kernels do since 0.29, Kimi-Linear's and short convolutions never do.
        ("0.28", "kimi-k3", {}, 2, None),
        ("0.29", "kimi-k3", {}, 3, None),
        ("0.33", _KIMI_LINEAR, {}, 2, None),
        ("0.33", "lfm2-1.2b", {}, 2, None),
    ],
)
def test_blocks_of_a_state(
    at: str, model: str, settings: dict[str, Any], slots: int, every: int | None
) -> None:
    """MambaSpec.max_memory_usage_bytes; models/config.py, MambaModelConfig."""
    found = asked(model, at, max_model_len=8192, **settings)

    assert found.rank.groups()[0].rule == Slots(count=slots, every=every)


@pytest.mark.parametrize(
    ("at", "gpu", "slots"),
    [("0.33", "h100-80gb", 3), ("0.33", "a100-80gb", 2), ("0.33", "b200", 3), ("0.33", "l40s", 2)],
)
def test_cards_whose_kernels_leave_checkpoints(at: str, gpu: str, slots: int) -> None:
    """gdn/qwen_gdn_linear_attn.py: FlashInfer's prefill on Hopper and Blackwell."""
    found = asked("qwen3-next-80b-a3b", at, gpu, max_model_len=8192)

    assert found.rank.groups()[0].rule == Slots(count=slots)


def test_a_request_takes_blocks_of_states_and_proposed_tokens() -> None:
    """Mode all, 0.22: 8,192 / 2,176 rounded up, and two for each of the four groups of states."""
    found = asked("nemotron-3-nano-30b-a3b", "0.22.0", max_model_len=8192, **_CACHED, **NGRAM)

    assert [group.rule.peak(8192) for group in found.rank.groups()] == [6, 6, 6, 6, 4]


@pytest.mark.parametrize(
    ("at", "default", "asked_for"),
    [
        ("0.10.1+v1", None, "refused"),
        ("0.10.2", None, None),
        ("0.11.2", None, 768),
        ("0.27", None, 768),
        ("0.28", 528, 528),
        ("0.33", 528, 528),
    ],
)
def test_prefix_caching_of_hybrids(
    at: str, default: int | None, asked_for: int | str | None
) -> None:
    """engine/arg_utils.py; models/config.py, MambaModelConfig: tokens that a prefix is reused in.

    It is refused, off (asking is not looked at here), opt-in, on.
    """
    found = asked("granite-4.0-h-small", at, max_model_len=8192)
    assert found.reuse_tokens == default
    if asked_for == "refused":
        assert refused("granite-4.0-h-small", at, max_model_len=8192, **_CACHED) == (
            "this release of vLLM does not cache prefixes of models with states"
        )
    elif asked_for is not None:
        cached = asked("granite-4.0-h-small", at, max_model_len=8192, **_CACHED)
        assert cached.reuse_tokens == asked_for
        off = asked("granite-4.0-h-small", at, max_model_len=8192, **_UNCACHED)
        assert off.reuse_tokens is None


def test_prefix_caching_that_is_silently_turned_off() -> None:
    """0.11.2 to 0.14: gated delta nets cannot keep a state every block, and there is no align."""
    for at in ("0.11.2", "0.14.1"):
        found = asked("qwen3-next-80b-a3b", at, max_model_len=8192, **_CACHED)
        assert found.reuse_tokens is None
        assert "this release caches no prefixes of this architecture" in found.notes[0]
    assert asked("qwen3-next-80b-a3b", "0.15.1", max_model_len=8192, **_CACHED).reuse_tokens == 544


def test_states_alone_cache_no_prefixes() -> None:
    for at in ("0.10.2", "0.27", "0.28", "0.33"):
        assert asked("falcon-mamba-7b", at, max_model_len=8192).reuse_tokens is None


@pytest.mark.parametrize(
    ("at", "model", "gpu", "settings", "block"),
    [
        # A state of 2,147,840 B over 4,096 B a token: 524.4, in steps of 16.
        ("0.10.0+v1", "granite-4.0-h-small", "h100-80gb", {}, 528),
        ("0.10.2", "granite-4.0-h-small", "h100-80gb", {}, 528),
        ("0.19.1", "granite-4.0-h-small", "h100-80gb", {}, 528),
        ("0.33", "granite-4.0-h-small", "h100-80gb", {}, 528),
        # The user's block is a lower bound, since 0.20 the step.
        ("0.19.1", "granite-4.0-h-small", "h100-80gb", {"block_size": 64} | _UNCACHED, 528),
        ("0.20.0", "granite-4.0-h-small", "h100-80gb", {"block_size": 64} | _UNCACHED, 576),
        ("0.33", "granite-4.0-h-small", "h100-80gb", {"block_size": 64} | _UNCACHED, 576),
        # Mode all: whole chunks of 256.
        ("0.11.2", "granite-4.0-h-small", "h100-80gb", _CACHED, 768),
        ("0.19.1", "granite-4.0-h-small", "h100-80gb", _CACHED, 768),
        ("0.26", "granite-4.0-h-small", "h100-80gb", _CACHED, 768),
        ("0.28", "granite-4.0-h-small", "h100-80gb", _CACHED, 528),
        # Latents of 1,152 B, a state of 1,085,440 B on each of two ranks: 942.2.
        ("0.11.2", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 960),
        ("0.18.0", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 960),
        ("0.19.1", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 960),
        ("0.20.0", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 944),
        ("0.26", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 944),
        ("0.27", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 1024),
        ("0.33", _KIMI_LINEAR, "h100-80gb", {"tensor_parallel_size": 2}, 1024),
        # Heads of 256 on Blackwell, 0.11.2 to 0.17: steps of 32 (274,432 B over 1,024; 783 tokens).
        ("0.11.0", "qwen3-next-80b-a3b", "b200", {"tensor_parallel_size": 4}, 272),
        ("0.11.2", "qwen3-next-80b-a3b", "b200", {"tensor_parallel_size": 4}, 288),
        ("0.11.2", "qwen3-next-80b-a3b", "h100-80gb", {"tensor_parallel_size": 4}, 272),
        ("0.17.1", "qwen3.5-27b", "b200", {}, 800),
        ("0.17.1", "qwen3.5-27b", "h100-80gb", {}, 784),
        ("0.18.0", "qwen3.5-27b", "b200", {}, 784),
        # Steps of 64 where checkpoints are kept (0.33), else not.
        ("0.32", "qwen3.5-27b", "h100-80gb", {}, 784),
        ("0.33", "qwen3.5-27b", "h100-80gb", {}, 832),
        ("0.33", "qwen3.5-27b", "h100-80gb", _UNCACHED, 784),
    ],
)
def test_block_of_hybrids(
    at: str, model: str, gpu: str, settings: dict[str, Any], block: int
) -> None:
    """models/config.py, HybridAttentionMambaModelConfig; platforms/interface.py since 0.20."""
    assert asked(model, at, gpu, max_model_len=8192, **settings).block_size == block


def test_hybrids_of_0_9_find_no_block() -> None:
    """VLLM_USE_V1=1 in 0.9.2 wants --block-size to be large enough; unasked it starts V0."""
    assert asked("granite-4.0-h-small", "0.9.2", max_model_len=8192).engine_version == "0.9.2+v0"
    assert refused("granite-4.0-h-small", "0.9.2+v1", max_model_len=8192) == (
        "this release of vLLM does not find a block for models with states"
    )


@pytest.mark.parametrize(
    ("at", "model", "tp", "lookahead"),
    [
        ("0.10.2", "qwen3-next-80b-a3b", 1, 12 * 2 * 8192 * 2),
        ("0.11.0", "qwen3-next-80b-a3b", 1, 12 * 2 * 8192 * 2),
        ("0.17.1", "nemotron-3-nano-30b-a3b", 1, 6 * 2 * 6144 * 2),
        ("0.26", _KIMI_LINEAR, 2, 0),
        ("0.27", _KIMI_LINEAR, 2, 7 * 2 * 6144 * 2),
    ],
)
def test_rows_for_proposed_tokens(at: str, model: str, tp: int, lookahead: int) -> None:
    """mamba_utils.py, MambaStateShapeCalculator: layers x tokens x channels x 2 bytes."""
    found = asked(model, at, tensor_parallel_size=tp, max_model_len=8192, **NGRAM)

    assert found.rank.groups()[0].lookahead_bytes == lookahead


@pytest.mark.parametrize(("at", "size"), [("0.16.0", 2), ("0.17.1", 4), ("0.33", 4)])
def test_dtype_of_gated_delta_nets(at: str, size: int) -> None:
    """mamba_utils.py: mamba_ssm_cache_dtype is heeded since 0.17.1."""
    found = asked("qwen3-next-80b-a3b", at, max_model_len=8192, mamba_ssm_cache_dtype="float32")

    assert found.rank.groups()[0].payload["recurrent"] == 12 * 32 * 128 * 128 * size


@pytest.mark.parametrize("at", ["0.10.1+v1", "0.10.2", "0.33"])
def test_states_are_not_kept_in_the_cache_dtype(at: str) -> None:
    """mamba_utils.py, MambaStateDtypeCalculator: since 0.10.1 fp8 does not shrink them."""
    found = asked("granite-4.0-h-small", at, max_model_len=8192, kv_cache_dtype="fp8")

    assert found.kv_cache_dtype == "fp8_e4m3"
    assert found.rank.groups()[0].payload == {
        "conv": 4 * 3 * 8448 * 2,
        "recurrent": 4 * 128 * 64 * 128 * 2,
    }


@pytest.mark.parametrize(("at", "size"), [("0.12.0", 2), ("0.13.0", 4), ("0.20.0", 4)])
def test_dtype_of_nemotron_h(at: str, size: int) -> None:
    """NemotronHForCausalLMConfig: the model's dtype until 0.12, then what the config names."""
    found = asked("nemotron-3-nano-30b-a3b", at, max_model_len=8192)

    assert found.rank.groups()[0].payload["recurrent"] == 6 * 64 * 64 * 128 * size


# DeepSeek-V4


@pytest.mark.parametrize(
    ("at", "width", "blocks", "request_blocks", "tokens"),
    [
        ("0.20.1", 1_051_776, 20_417, 3481, 768_772),
        ("0.22.1", 1_051_776, 20_417, 3481, 768_772),
        ("0.23.0", 1_039_680, 20_655, 3481, 777_734),
        ("0.25.1", 1_039_680, 20_655, 3481, 777_734),
        ("0.26", 1_039_680, 20_655, 6429, 421_106),
        ("0.27", 1_002_240, 21_426, 7194, 390_373),
        ("0.28", 1_002_240, 21_426, 7194, 390_373),
        ("0.29", 1_002_240, 21_426, 7194, 390_373),
        ("0.33", 1_002_240, 21_426, 7194, 390_373),
    ],
)
def test_deepseek_v4(at: str, width: int, blocks: int, request_blocks: int, tokens: int) -> None:
    """DeepSeek-V4-Flash at 131,072 tokens in 20 GiB: what each release's own code gave.

    kv_cache_utils.py, _get_kv_cache_groups_uniform_groups, _get_packed_kv_cache_groups (0.29),
    get_max_concurrency_for_kv_cache_config.
    """
    found = _deepseek_v4(at)
    capacity = found.capacity(20 * GIB)

    assert found.block_bytes == width
    assert capacity.num_blocks == blocks
    assert capacity.max_concurrency == blocks / request_blocks
    assert capacity.kv_cache_tokens == tokens == int(blocks / request_blocks * 131_072)


def test_deepseek_v4_in_0_20_0() -> None:
    """The token line is still that of one of five groups in blocks of 4; they are weighed."""
    capacity = _deepseek_v4("0.20.0").capacity(20 * GIB)

    assert (capacity.num_blocks, capacity.kv_cache_tokens) == (20_417, 20_417 // 5 * 4)
    assert capacity.max_concurrency == 20_417 / 3481


@pytest.mark.parametrize(
    ("at", "mla", "windows"),
    [("0.20.1", 1_002_240, (22, 21, 42, 20)), ("0.28", 1_002_240, (22, 21, 42, 20))],
)
def test_groups_of_deepseek_v4(at: str, mla: int, windows: tuple[int, ...]) -> None:
    """One group of compressed caches and four of windows; until 0.28 the compressed ones first."""
    first, *others = _deepseek_v4(at).rank.groups()

    assert (first.name, first.layers, first.unit_bytes) == ("MLA", 62, mla)
    assert tuple(group.layers for group in others) == windows
    assert widths(_deepseek_v4("0.29")) == [
        ("window 128 (1)", 22, 64),
        ("window 128 (2)", 21, 64),
        ("MLA", 62, 256),
        ("compressor 8", 42, 4),
        ("compressor 128", 20, 8),
    ]


@pytest.mark.parametrize(
    ("at", "bytes_of_groups"),
    [
        ("0.26", [1_002_240, 823_680, 786_240, 967_680, 748_800]),  # windows widened to 37,440 B
        ("0.27", [1_002_240, 823_680, 786_240, 870_912, 656_640]),
    ],
)
def test_window_pages_of_deepseek_v4(at: str, bytes_of_groups: list[int]) -> None:
    """group_and_unify_kv_cache_specs: pages are widened to a compressed cache's until 0.26."""
    assert [group.unit_bytes for group in _deepseek_v4(at).rank.groups()] == bytes_of_groups


@pytest.mark.parametrize(
    ("at", "needed", "limit"),
    [
        ("0.20.1", 3866 * 1_051_776, 20 * GIB),
        ("0.25.1", 3866 * 1_051_776, 20 * GIB),
        ("0.26", 7194 * 1_051_776, 20 * GIB),
        ("0.28", 7194 * 1_051_776, 20 * GIB),
        ("0.29", 7194 * 1_002_240, 20 * GIB - 1_002_240),
    ],
)
def test_start_up_check_of_deepseek_v4(at: str, needed: int, limit: int) -> None:
    """The product of 0.20 until 0.28, whatever a block takes.

    512 + 2 x 131 + 2,051 + 1,041 blocks, and with two steps in flight 7,194.
    """
    found = _deepseek_v4(at)

    assert start_up_need(found, found.rank, 131_072) == needed
    assert start_up_limit(found, found.rank, 20 * GIB) == limit


def test_a_logged_block_of_deepseek_v4() -> None:
    """VLLM's issue 44376 (0.22, two ranks): 6,800 blocks of 1,051,776 B in 6.66 GiB."""
    found = asked(
        "deepseek-v4-flash",
        "0.22.0",
        kv_cache_dtype="fp8",
        tensor_parallel_size=2,
        max_model_len=30_000,
        max_num_batched_tokens=16_384,
    )

    assert found.block_bytes == 1_051_776
    assert f"{6800 * 1_051_776 / GIB:.2f}" == "6.66"


def _deepseek_v4(at: str) -> CachePlan:
    return asked(
        "deepseek-v4-flash",
        at,
        kv_cache_dtype="fp8",
        max_model_len=131_072,
        max_num_batched_tokens=8192,
    )


# The start-up check


@pytest.mark.parametrize(
    ("at", "pages", "spared"),
    [
        ("0.11.2", 12 * 521 + 13 * 8192, 0),  # layers, not the empty places of three groups of 12
        ("0.13.0", 12 * 521 + 13 * 8192, 0),
        ("0.14.0", 13 * 521, 0),  # the first group alone
        ("0.18.1", 13 * 521, 0),
        ("0.19.0", 13 * (521 + 8192), 0),
        ("0.25.1", 13 * (521 + 8192), 0),
        ("0.28", 13 * (1033 + 8192), 0),  # two steps in flight
        ("0.29", 13 * (1033 + 8192), 13),  # the null block
        ("0.33", 13 * (1033 + 8192), 13),
    ],
)
def test_start_up_check(at: str, pages: int, spared: int) -> None:
    """gpt-oss-20b with an EAGLE head: 12 windows of (127 + 8,192) / 16 and one, 13 full layers.

    check_enough_kv_cache_memory until 0.13, then _max_memory_usage_bytes_from_groups. A page is
    16 x 8 x 64 x 2 x 2 = 32,768 B.
    """
    found = asked("gpt-oss-20b", at, max_model_len=131_072, max_num_batched_tokens=8192, **_EAGLE3)
    needed = pages * 32_768

    assert start_up_need(found, found.rank, 131_072) == needed
    assert start_up_limit(found, found.rank, 10 * GIB) == 10 * GIB - spared * 32_768
    enough = needed + spared * 32_768
    assert found.capacity(enough).fits
    assert not found.capacity(enough - 1).fits


@pytest.mark.parametrize(
    ("at", "limit", "fits"),
    [
        ("0.20.0", 10 * GIB, True),  # the memory, which 100 blocks are not
        ("0.20.1", 100 * 1_835_008, False),
        ("0.28", 100 * 1_835_008, False),
        ("0.29", 99 * 1_835_008, False),
    ],
)
def test_an_override_in_the_start_up_check(at: str, limit: int, fits: bool) -> None:
    """kv_cache_utils.py, get_kv_cache_configs: 4,096 tokens of Qwen3-0.6B want 256 blocks."""
    found = asked("qwen3-0.6b", at, max_model_len=4096, num_gpu_blocks_override=100)
    capacity = found.capacity(10 * GIB)

    assert start_up_limit(found, found.rank, 10 * GIB) == limit
    assert capacity.num_blocks == 100
    assert capacity.fits is fits


# Blocks and dtypes


@pytest.mark.parametrize(
    ("at", "hopper", "hopper_fp8", "ampere", "blackwell"),
    [
        ("0.8.5", 64, 64, 16, 16),
        ("0.10.0", 64, 64, 16, 16),
        ("0.10.1", 64, 64, 16, 128),
        ("0.14.1", 64, 64, 16, 128),
        ("0.15.1", 64, 64, 16, 64),
        ("0.17.1", 64, 64, 16, 64),
        ("0.18.0", 16, 64, 16, 32),
        ("0.33", 16, 64, 16, 32),
    ],
)
def test_block_of_mla(at: str, hopper: int, hopper_fp8: int, ampere: int, blackwell: int) -> None:
    """platforms/cuda.py, check_and_update_config; since 0.18 get_preferred_block_size."""

    def block(gpu: str, word: str = "auto") -> int | None:
        found = asked("deepseek-v2-lite", at, gpu, max_model_len=4096, kv_cache_dtype=word)
        return found.block_size

    assert block("h100-80gb") == hopper
    assert block("h100-80gb", "fp8") == hopper_fp8
    assert block("a100-80gb") == ampere
    assert block("b200") == blackwell


@pytest.mark.parametrize(
    ("at", "gpu", "word", "kept", "block_bytes"),
    [
        # 61 layers, 64 tokens: 656 or 1,152 B a latent, 132 B an indexer key.
        ("0.11.0", "h100-80gb", "auto", "fp8_ds_mla", 61 * 64 * (656 + 132)),
        ("0.11.0", "h100-80gb", "bfloat16", "bfloat16", 61 * 64 * (1152 + 132)),
        ("0.11.2", "h100-80gb", "auto", "bfloat16", 61 * 64 * (1152 + 132)),
        ("0.11.2", "h100-80gb", "fp8", "fp8_ds_mla", 61 * 64 * (656 + 132)),
        ("0.17.1", "b200", "auto", "bfloat16", 61 * 64 * (1152 + 132)),
        ("0.33", "h100-80gb", "auto", "bfloat16", 61 * 64 * (1152 + 132)),
        ("0.33", "h100-80gb", "fp8", "fp8_ds_mla", 61 * 64 * (656 + 132)),
        ("0.33", "b200", "auto", "bfloat16", 61 * 64 * (1152 + 132)),
    ],
)
def test_deepseek_v3_2(at: str, gpu: str, word: str, kept: str, block_bytes: int) -> None:
    """models/config.py, DeepseekV32ForCausalLM: `auto` is fp8_ds_mla in 0.11.0 alone."""
    found = asked("deepseek-v3.2", at, gpu, max_model_len=4096, kv_cache_dtype=word)

    assert (found.kv_cache_dtype, found.block_size) == (kept, 64)
    assert found.block_bytes == block_bytes


@pytest.mark.parametrize(
    ("at", "sizes"), [("0.14.0", 384), ("0.19.1", 384), ("0.20.0", 320), ("0.33", 320)]
)
def test_v_of_another_size(at: str, sizes: int) -> None:
    """MiMo-V2: heads of 192 and 128; mimo_v2_flash.py pads V to K until 0.19."""
    found = asked("mimo-v2-flash", at, max_model_len=4096)

    assert [group.unit_bytes for group in found.rank.groups()] == [
        layers * 16 * 8 * sizes * 2 for layers in (9, 8, 8, 8, 8, 7)
    ]


@pytest.mark.parametrize(("at", "size"), [("0.31", 2), ("0.32", 1), ("0.33", 1)])
def test_mimo_heeds_the_cache_dtype_since_0_32(at: str, size: int) -> None:
    """models/mimo_v2.py hands its attention layers no cache_config before."""
    found = asked("mimo-v2-flash", at, max_model_len=4096, kv_cache_dtype="fp8")

    assert found.block_bytes == 9 * 16 * 8 * 320 * size
    assert found.kv_cache_dtype == ("bfloat16" if size == 2 else "fp8_e4m3")


@pytest.mark.parametrize(("at", "block"), [("0.28", 16), ("0.29", 128), ("0.33", 128)])
def test_wide_pages_on_blackwell(at: str, block: int) -> None:
    """flash_attn.py, _get_fa4_hd256_block_size: heads of 256."""
    found = asked("gemma-2b", at, "b200", max_model_len=4096, attention_backend="FLASH_ATTN")

    assert found.block_size == block


@pytest.mark.parametrize(
    ("at", "blocks"), [("0.30", (16, 32)), ("0.31", (64, 128)), ("0.33", (64, 128))]
)
def test_fp8_pages_of_wide_heads_on_hopper(at: str, blocks: tuple[int, int]) -> None:
    """flash_attn.py, _get_sm90_fa4_fp8_kv_block_size: Gemma-4's heads of 512 in blocks of 64.

    A token of its full layers is half as wide as one of its windows: twice the tokens a block.
    """
    found = asked("gemma-4-31b-it-nvfp4", at, max_model_len=4096, kv_cache_dtype="fp8")

    assert {block for _, _, block in widths(found)} == set(blocks)


def test_fp8_with_biases_by_distance() -> None:
    """fa_utils.py, requires_alibi: asked for since 0.27, which serves MPT until 0.28."""
    found = asked("mpt-7b", "0.26", max_model_len=2048, kv_cache_dtype="fp8")
    assert found.kv_cache_dtype == "fp8_e4m3"

    assert refused("mpt-7b", "0.27", max_model_len=2048, kv_cache_dtype="fp8") == (
        "FLASH_ATTN, which vLLM picks here, does not read an fp8 cache of this model on h100-80gb"
    )


def test_sparse_latents_are_split_over_ranks_in_fp8() -> None:
    """mla/flashmla_sparse.py of 0.29."""
    split: dict[str, Any] = {
        "tensor_parallel_size": 8,
        "decode_context_parallel_size": 8,
        "max_model_len": 4096,
    }

    assert refused("deepseek-v3.2", "0.29", **split) == (
        "FLASHMLA_SPARSE splits a sequence over ranks in fp8_ds_mla only"
    )
    found = asked("deepseek-v3.2", "0.29", kv_cache_dtype="fp8", **split)
    assert found.reuse_tokens == 8 * 64


@pytest.mark.parametrize(
    ("word", "model", "gpu", "before", "first"),
    [
        ("nvfp4", "llama-3.1-8b", "b200", "0.19.1", "0.20.0"),
        ("fp8_per_token_head", "llama-3.1-8b", "h100-80gb", "0.19.1", "0.20.0"),
        ("int8_per_token_head", "llama-3.1-8b", "h100-80gb", "0.19.1", "0.20.0"),
        ("turboquant_k8v4", "llama-3.1-8b", "h100-80gb", "0.19.1", "0.20.0"),
        ("turboquant_4bit_nc", "llama-3.1-8b", "h100-80gb", "0.19.1", "0.20.0"),
        ("turboquant_k3v4_nc", "llama-3.1-8b", "h100-80gb", "0.19.1", "0.20.0"),
        ("turboquant_3bit_nc", "llama-3.1-8b", "h100-80gb", "0.19.1", "0.20.0"),
        ("int4_per_token_head", "llama-3.1-8b", "h100-80gb", "0.24.0", "0.25.0"),
        ("nvfp4_4over6", "llama-3.1-8b", "b200", "0.27.0", "0.28.0"),
        ("nvfp4_ds_mla", "deepseek-v3.2", "b200", "0.29.0", "0.30.0"),
    ],
)
def test_kv_cache_dtypes_that_came_later(
    word: str, model: str, gpu: str, before: str, first: str
) -> None:
    """config/cache.py, CacheDType."""
    settings: dict[str, Any] = {"kv_cache_dtype": word, "max_model_len": 4096}

    assert refused(model, before, gpu, **settings) == (
        f"vLLM {before} has no KV cache dtype {word}: it came with {first}"
    )
    assert asked(model, first, gpu, **settings).engine_version == first


def test_a_dtype_that_no_cuda_kernel_reads() -> None:
    """fp8_inc is for Gaudi: a word of vLLM's since 0.10."""
    settings: dict[str, Any] = {"kv_cache_dtype": "fp8_inc", "max_model_len": 4096}

    assert refused("llama-3.1-8b", "0.9.2", **settings) == (
        "vLLM 0.9.2 has no KV cache dtype fp8_inc: it came with 0.10.0"
    )
    assert refused("llama-3.1-8b", "0.10.0", **settings).startswith(
        "vLLM has no attention backend for head size 128 in fp8_inc (bfloat16) on h100-80gb"
    )


@pytest.mark.parametrize(
    ("word", "before", "first"), [("bfloat16", "0.10.2", "0.11.0"), ("float16", "0.17.1", "0.18.0")]
)
def test_the_models_own_dtype_needs_no_word(word: str, before: str, first: str) -> None:
    """Until they had names of their own, plain dtypes were what `auto` makes of the model's."""
    for at in (before, first):
        found = asked("llama-3.1-8b", at, dtype=word, kv_cache_dtype=word, max_model_len=4096)
        assert found.kv_cache_dtype == word
    other = {"bfloat16": "float16", "float16": "bfloat16"}[word]
    told = refused("llama-3.1-8b", before, dtype=other, kv_cache_dtype=word, max_model_len=4096)
    assert told == f"vLLM {before} has no KV cache dtype {word}: it came with {first}"


# Defaults by card


@pytest.mark.parametrize(
    ("at", "gpu", "tokens", "sequences"),
    [
        ("0.8.5", "h100-80gb", "8,192", "1,024"),
        ("0.8.5", "a100-80gb", "8,192", "1,024"),
        ("0.8.5", "l40s", "2,048", "256"),
        ("0.9.2", "h100-80gb", "8,192", "1,024"),
        ("0.9.2", "a100-80gb", "2,048", "256"),  # "a100" in the device's name
        ("0.27", "b200", "8,192", "1,024"),
        ("0.28", "b200", "16,384", "1,024"),  # 160 GiB
        ("0.28", "h100-80gb", "8,192", "1,024"),
        ("0.28", "h200", "8,192", "1,024"),
        ("0.32", "dgx-spark", "8,192", "1,024"),
        ("0.33", "dgx-spark", "2,048", "256"),  # compute capability 12.1
        ("0.33", "a100-80gb-pcie", "2,048", "256"),
        ("0.33", "gb300", "16,384", "1,024"),
    ],
)
def test_batch_defaults(at: str, gpu: str, tokens: str, sequences: str) -> None:
    """engine/arg_utils.py: _set_default_args_v1, get_batch_defaults since 0.11.2."""
    found = asked("qwen3-0.6b", at, gpu, max_model_len=32768)

    assert found.convention[0] == (
        f"A step has {tokens} tokens and {sequences} sequences (`vllm serve` on {gpu}, unless"
        " given)."
    )


_SHORT: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 1024}


@pytest.mark.parametrize(
    ("at", "model", "gpu", "settings", "told"),
    [
        # min(B, max_num_seqs x L) since 0.11.2
        ("0.11.0", "qwen3-0.6b", "h100-80gb", _SHORT, "8,192 tokens and 4"),
        ("0.11.2", "qwen3-0.6b", "h100-80gb", _SHORT, "4,096 tokens and 4"),
        # no more sequences than tokens
        ("0.11.2", "qwen3-0.6b", "b200", {"max_num_batched_tokens": 512}, "512 tokens and 512"),
        # one item of a model that reads images both ways, since 0.22: 32 frames of 78 tokens
        ("0.21", "gemma-4-26b-a4b", "a100-80gb", {}, "2,048 tokens and 256"),
        ("0.22.0", "gemma-4-26b-a4b", "a100-80gb", {}, "2,496 tokens and 256"),
        ("0.22.0", "gemma-4-26b-a4b", "h100-80gb", {}, "8,192 tokens and 1,024"),
    ],
)
def test_batch_that_is_adjusted(
    at: str, model: str, gpu: str, settings: dict[str, Any], told: str
) -> None:
    """_set_default_max_num_seqs_and_batched_tokens_args; models/gemma4_mm.py."""
    found = asked(model, at, gpu, **settings)

    assert found.convention[0].startswith(f"A step has {told} sequences ")


_TAKEN_OFF = "CUDA graphs are estimated and taken off"


@pytest.mark.parametrize(
    ("at", "share", "graphs"),
    [
        ("0.8.5", "0.9", "CUDA graphs come on top of it"),
        ("0.17.1", "0.9", "CUDA graphs come on top of it"),
        ("0.18.0", "0.9", "CUDA graphs come on top of it unless their estimate is switched on"),
        ("0.19.1", "0.9", "CUDA graphs come on top of it unless their estimate is switched on"),
        ("0.20.0", "0.92", _TAKEN_OFF + " (as nothing by the newer runner)"),
        ("0.28", "0.92", _TAKEN_OFF + " (as nothing by the newer runner)"),
        ("0.29", "0.92", _TAKEN_OFF),
    ],
)
def test_memory_of_the_card(at: str, share: str, graphs: str) -> None:
    """config/cache.py, gpu_memory_utilization; v1/worker/gpu_worker.py."""
    found = asked("qwen3-0.6b", at, max_model_len=4096)

    assert found.convention[-1] == (
        f"Unless its bytes are given, the cache gets what is left of {share} of the card; {graphs}."
    )


# Architectures and versions


@pytest.mark.parametrize(
    ("model", "before", "first"),
    [
        ("hunyuan-a13b", "0.8.5", "0.9.2"),
        ("exaone-4.0-32b", "0.9.2", "0.10.0"),
        ("gpt-oss-20b", "0.10.0", "0.10.1"),
        ("lfm2-1.2b", "0.10.1", "0.10.2"),
        ("olmo-3.1-32b", "0.10.2", "0.11.0"),
        (_KIMI_LINEAR, "0.11.0", "0.11.1"),
        ("mimo-v2-flash", "0.13.0", "0.14.0"),
        ("kimi-k2.5", "0.14.1", "0.15.0"),
        ("glm-5", "0.15.1", "0.16.0"),
        ("qwen3.5-0.8b", "0.16.0", "0.17.0"),
        ("gemma-4-26b-a4b", "0.18.1", "0.19.0"),
        ("deepseek-v4-flash", "0.19.1", "0.20.0"),
        ("laguna-xs.2-fp8", "0.20.2", "0.21.0"),
        ("minicpm-v-4-6", "0.21.0", "0.22.0"),
        ("minimax-m3-nvfp4", "0.23.0", "0.24.0"),
        ("kimi-k3", "0.26.0", "0.27.0"),
    ],
)
def test_architectures_that_came_later(model: str, before: str, first: str) -> None:
    """models/registry.py of both releases."""
    found = asked(model, first, max_model_len=8192)
    assert found.engine_version == first

    told = refused(model, before, max_model_len=8192)
    assert told.startswith(f"vLLM {before} does not serve ")
    assert told.endswith(f" yet: {first} does")


@pytest.mark.parametrize(
    ("model", "last", "later"),
    [
        ("phi-3-small-8k", "0.9.2", "0.10.0"),
        ("qwen-7b", "0.23.0", "0.24.0"),
        ("internlm-chat-7b", "0.23.0", "0.24.0"),
        ("xverse-7b", "0.23.0", "0.24.0"),
        ("minimax-m1-80k", "0.23.0", "0.24.0"),
        ("mpt-7b", "0.28.0", "0.29.0"),
    ],
)
def test_architectures_that_are_no_longer_served(model: str, last: str, later: str) -> None:
    """models/registry.py, _PREVIOUSLY_SUPPORTED_MODELS."""
    settings: dict[str, Any] = {"max_model_len": 2048, "tensor_parallel_size": 8}
    asked(model, last, **settings)

    assert refused(model, later, **settings).startswith(f"vLLM {later} no longer serves ")
    assert refused(model, later, **settings).endswith(f": {last} was the last that did")


@pytest.mark.parametrize("model", ["rwkv-5-world-3b", "vila1.5-3b", "yuan2-2b"])
def test_architectures_that_never_were_served(model: str) -> None:
    for at in ("0.8.5", "0.19.1", "0.33"):
        told = refused(model, at, max_model_len=2048)
        assert told.startswith(f"vLLM {release(at)} does not serve ")
        assert "yet" not in told


@pytest.mark.parametrize(
    ("model", "architecture"),
    [
        ("mamba-codestral-7b-v0.1", "Mamba2ForCausalLM"),
        ("paddleocr-vl-1.5", "PaddleOCRVLForConditionalGeneration"),
    ],
)
def test_architectures_of_one_stage(model: str, architecture: str) -> None:
    """Classes without the SupportsPP interface."""
    assert len(asked(model, max_model_len=2048).ranks) == 1
    assert refused(model, max_model_len=2048, pipeline_parallel_size=2) == (
        f"vLLM does not run {architecture} over several pipeline stages"
    )


@pytest.mark.parametrize(
    ("given", "taken", "by"),
    [("0.10", "0.10.0", "0.10.1"), ("0.11", "0.11.0", "0.11.2"), ("0.17", "0.17.0", "0.17.1"),
     ("0.20", "0.20.0", "0.20.1")],
)  # fmt: skip
def test_versions_without_a_patch_are_told_apart(given: str, taken: str, by: str) -> None:
    found = asked("qwen3-0.6b", given, max_model_len=4096)
    told = (
        f"{given} is read as {taken}: by {by} rules had changed that move a number"
        " (--engine-version with the patch)"
    )

    assert found.notes == (told,)
    assert found.engine_version == taken
    assert asked("qwen3-0.6b", taken, max_model_len=4096).notes == ()


def test_lines_whose_patches_have_the_same_rules() -> None:
    apart = {"0.10", "0.11", "0.17", "0.20"}

    for name in COMPARED.split():
        line = name.rpartition(".")[0]
        assert (told_apart(release(line)) is not None) == (line in apart)
        assert told_apart(release(name)) is None


@pytest.mark.parametrize(("between", "earlier", "near"), [
    ("0.21.3", "0.21.0", "0.21.0 and 0.22.0"), ("0.10.3", "0.10.2", "0.10.2 and 0.11.0"),
    ("0.11.1", "0.11.0", "0.11.0 and 0.11.2"), ("0.22.2", "0.22.1", "0.22.1 and 0.23.0"),
])  # fmt: skip
def test_releases_between_the_compared_ones(between: str, earlier: str, near: str) -> None:
    found = asked("qwen3-0.6b", between, max_model_len=4096)

    assert rules_of(release(between)) == rules_of(release(earlier))
    assert (
        f"The sources of {between} were not compared: its rules were told from those of {near}."
        in found.convention
    )
    assert not any(
        "were not compared" in told
        for told in asked("qwen3-0.6b", earlier, max_model_len=4096).convention
    )


def test_kernels_of_older_releases() -> None:
    told = "Kernels are chosen as 0.33.0 chooses them, but for the rules known of 0.26.0."

    assert told in asked("qwen3-0.6b", "0.26", max_model_len=4096).convention
    assert told not in asked("qwen3-0.6b", "0.33", max_model_len=4096).convention


def test_every_rule_changes_at_some_release() -> None:
    """A rule with one value in all releases would be none."""
    compared = [rules_of(release(name)) for name in COMPARED.split()]

    for field in Rules._fields:
        assert len({getattr(rules, field) for rules in compared}) > 1, field


def test_overlap_by_default() -> None:
    """config/vllm.py, __post_init__: since 0.14, before windows keep room for it."""
    assert not rules_of(release("0.13.0")).async_scheduling
    assert rules_of(release("0.14.0")).async_scheduling
    assert rules_of(release("0.14.0")).batches(1, overlap=True, dense=True) == 1


def test_rules_do_not_depend_on_how_a_version_is_spelled() -> None:
    assert rules_of(Release(0, 26)) == rules_of(release("v0.26.0")) == rules_of(release("0.26"))
