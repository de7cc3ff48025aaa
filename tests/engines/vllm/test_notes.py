"""Every line that a plan is told with: in a case that needs it, word for word, and not in another.

A line's mark is the part of it that no other line has: it stands in the case and in no line of the
other one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.core import builders
from tests.core.builders import FULL, LLAMA_8B
from tests.engines.vllm.asking import NGRAM, asked


class Ask(NamedTuple):
    """What a plan is asked of."""

    model: str | ModelSpec
    at: str = "0.33"
    gpu: str = "h100-80gb"
    settings: dict[str, Any] = {}
    length: int = 8192

    def plan(self) -> CachePlan:
        """Return the plan."""
        return asked(self.model, self.at, self.gpu, max_model_len=self.length, **self.settings)

    def given(self, **settings: Any) -> Ask:
        """Return the same with other settings."""
        return self._replace(settings=settings)


class Case(NamedTuple):
    """A line, where it is told, and where it is not.

    Attributes:
        mark: the part that no other line has.
    """

    line: str
    mark: str
    told: Ask
    silent: Ask


_LLAMA = Ask("llama-3.1-8b")
_QWEN3_NEXT = Ask("qwen3-next-80b-a3b")
_GRANITE = Ask("granite-4.0-h-small", "0.26")
_GPT_OSS = Ask("gpt-oss-20b", length=131_072)
_GEMMA = Ask("gemma-3-1b")
_MIMO = Ask("mimo-v2-flash")
_SCOUT = Ask("llama-4-scout", settings={"tensor_parallel_size": 8})
_V3 = Ask("deepseek-v3")
_V32 = Ask("deepseek-v3.2", "0.20.0", "b200")
_WHISPER = Ask("openai--whisper-tiny", length=448)

_WINDOW = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=1024)
_ODD_WINDOW = SlidingWindow(num_kv_heads=5, head_dim=128, sliding_window=1024)
_FEWER = FullAttention(num_kv_heads=4, head_dim=128)
_LATENT = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
_TWO_DRAFTS = msgspec.structs.replace(LLAMA_8B, draft_layers=(LayerRun(count=2, caches=(FULL,)),))
_UNNAMED = "the model names no architecture: vllm is taken to serve it"
_SINGLE = msgspec.structs.replace(LLAMA_8B, dtype="float32")

CASES = {
    # notes.py
    "layout": Case(
        "the cache is kept as fp8_ds_mla, the layout of FLASHMLA_SPARSE",
        "is kept as",
        Ask("deepseek-v3.2").given(kv_cache_dtype="fp8"),
        Ask("deepseek-v3.2"),
    ),
    "layout of DeepSeek-V4": Case(
        "the cache is kept as fp8_ds_mla, the layout of FLASHMLA_SPARSE_DSV4",
        "is kept as",
        Ask("deepseek-v4-flash"),
        _V3,
    ),
    "raised block": Case(
        "attention block raised from 16 to 528 tokens so that its page of one layer (2,162,688 B)"
        " covers one state (2,147,840 B)",
        "block raised",
        _GRANITE,
        _LLAMA,
    ),
    "block raised from the user's": Case(
        "attention block raised from 64 to 576 tokens so that its page of one layer (2,359,296 B)"
        " covers one state (2,147,840 B)",
        "block raised",
        _GRANITE.given(block_size=64),
        _GRANITE.given(block_size=576),
    ),
    "steps of checkpoints": Case(
        "attention block raised from 16 to 576 tokens so that its page of one layer (1,179,648 B)"
        " covers one state (1,097,728 B), in steps of 64 where FlashInfer's kernels leave"
        " checkpoints",
        "in steps of 64",
        _QWEN3_NEXT,
        _QWEN3_NEXT._replace(gpu="a100-80gb"),
    ),
    "block of kernels": Case(
        "blocks of 64 tokens: no smaller ones suit FLASH_ATTN_MLA_SPARSE and DEEPSEEK_V32_INDEXER",
        "no smaller ones suit",
        Ask("deepseek-v3.2"),
        Ask("deepseek-v3.2").given(block_size=64),
    ),
    "widened state": Case(
        "a state's page is widened from 2,147,840 to 2,162,688 B, the attention page (0.69 % of it"
        " is padding)",
        "a state's page is widened",
        _GRANITE,
        Ask("falcon-mamba-7b"),
    ),
    "a state a block": Case(
        "prefixes are cached with a state at every block (mamba_cache_mode all): a request takes as"
        " many blocks of every group of state layers as of attention",
        "mamba_cache_mode all",
        _GRANITE.given(enable_prefix_caching=True),
        _GRANITE,
    ),
    "one block of a state": Case(
        "1 block a request in every group of state layers: the running one",
        "in every group of state layers: the running one",
        _GRANITE,
        _GRANITE.given(enable_prefix_caching=True),
    ),
    "two blocks of a state": Case(
        "2 blocks a request in every group of state layers: the running one, the last one at a"
        " block's end, as prefixes are cached",
        "as prefixes are cached",
        _GRANITE._replace(at="0.28"),
        _GRANITE._replace(at="0.28").given(enable_prefix_caching=False),
    ),
    "five blocks of a state": Case(
        "5 blocks a request in every group of state layers: the running one, the last one at a"
        " block's end, as prefixes are cached, one for a checkpoint inside a prefill, 2 for"
        " proposed tokens",
        "one for a checkpoint inside a prefill, 2 for proposed tokens",
        _QWEN3_NEXT.given(**NGRAM),
        _QWEN3_NEXT,
    ),
    "proposed tokens alone": Case(
        "3 blocks a request in every group of state layers: the running one, 2 for proposed tokens",
        "the running one, 2 for proposed tokens",
        _QWEN3_NEXT.given(enable_prefix_caching=False, **NGRAM),
        _QWEN3_NEXT.given(enable_prefix_caching=False),
    ),
    "without prefix caching": Case(
        "without prefix caching (--no-enable-prefix-caching) it would be 3 blocks",
        "--no-enable-prefix-caching",
        _QWEN3_NEXT.given(**NGRAM),
        _QWEN3_NEXT.given(enable_prefix_caching=False, **NGRAM),
    ),
    "windows kept whole": Case(
        "layers with a window of 512 tokens are given blocks for every token",
        "are given blocks for every token",
        _GEMMA.given(disable_hybrid_kv_cache_manager=True),
        _GEMMA,
    ),
    "chunks kept whole": Case(
        "layers with a chunk of 8,192 tokens are given blocks for every token",
        "are given blocks for every token",
        _SCOUT._replace(at="0.13.0"),
        _SCOUT._replace(at="0.14.0"),
    ),
    "windows that cannot be freed": Case(
        "layers with a window of 1,024 tokens are given blocks for every token (pages cannot be"
        " made equal)",
        "(pages cannot be made equal)",
        Ask(builders.model((4, (_WINDOW,)), (4, (_LATENT,)))),
        Ask(builders.model((4, (_WINDOW,)), (4, (FULL,)))),
    ),
    "room for steps in flight": Case(
        "a window of 128 keeps room for 16,384 tokens in flight beside it (2 steps of"
        " max_num_batched_tokens): no more than 16,511 tokens' blocks",
        "no more than 16,511 tokens' blocks",
        _GPT_OSS,
        _GPT_OSS._replace(length=16_511),
    ),
    "room that saves nothing": Case(
        "a window of 128 keeps room for 16,384 tokens in flight beside it (2 steps of"
        " max_num_batched_tokens): at 16,511 tokens that saves nothing",
        "that saves nothing",
        _GPT_OSS._replace(length=16_511),
        _GPT_OSS._replace(length=16_512),
    ),
    "room for one step": Case(
        "a window of 128 keeps room for 8,192 tokens in flight beside it (max_num_batched_tokens):"
        " no more than 8,319 tokens' blocks",
        "beside it (max_num_batched_tokens)",
        _GPT_OSS.given(async_scheduling=False),
        _GPT_OSS,
    ),
    "room beside a chunk": Case(
        "a chunk of 8,192 keeps room for 16,384 tokens in flight beside it (2 steps of"
        " max_num_batched_tokens): no more than 24,576 tokens' blocks",
        "a chunk of 8,192 keeps room",
        _SCOUT._replace(length=131_072),
        _GPT_OSS,
    ),
    "groups": Case(
        "2 groups of 12 layers share block ids: a request takes its own blocks for each of them",
        "share block ids",
        _GPT_OSS,
        _LLAMA,
    ),
    "groups of several page sizes": Case(
        "5 groups of several page sizes share block ids, each as wide as the widest",
        "of several page sizes",
        Ask("deepseek-v4-flash"),
        _GPT_OSS,
    ),
    "empty places": Case(
        "6 of 54 places for layers are empty (11.11 % of the pool)",
        "places for layers are empty",
        _MIMO,
        _GPT_OSS,
    ),
    "blocks of several sizes": Case(
        "blocks of 16, 32 tokens make the pages of all layers equal",
        "make the pages of all layers equal",
        _MIMO,
        _GPT_OSS,
    ),
    "widened pages": Case(
        "pages of some attention layers are widened to the largest",
        "pages of some attention layers are widened",
        Ask(builders.model((4, (_ODD_WINDOW,)), (4, (FULL,)))),
        Ask(builders.model((4, (_WINDOW,)), (4, (FULL,)))),
    ),
    "draft layer": Case(
        "1 draft layer is kept too (mtp)",
        "kept too",
        _V3.given(speculative_method="mtp", num_speculative_tokens=1),
        _V3.given(**NGRAM),
    ),
    "draft layers": Case(
        "2 draft layers are kept too (mtp)",
        "are kept too",
        Ask(_TWO_DRAFTS).given(speculative_method="mtp", num_speculative_tokens=2),
        Ask(_TWO_DRAFTS),
    ),
    "slots of proposed tokens": Case(
        "a running request holds 3 slots beyond its tokens for those proposed; admission does not"
        " count them",
        "beyond its tokens for those proposed",
        _LLAMA.given(speculative_method="eagle", num_speculative_tokens=3),
        _LLAMA.given(**NGRAM),
    ),
    "copies": Case(
        "2 of 16 tensor-parallel ranks keep the same rows",
        "tensor-parallel ranks keep the same rows",
        _LLAMA.given(tensor_parallel_size=16),
        _LLAMA.given(tensor_parallel_size=8),
    ),
    "copies of a part": Case(
        "2 of 8 tensor-parallel ranks keep the same rows in part of the layers",
        "in part of the layers",
        Ask(builders.model((4, (FULL,)), (4, (_FEWER,)))).given(tensor_parallel_size=8),
        Ask(builders.model((4, (FULL,)), (4, (_FEWER,)))).given(tensor_parallel_size=4),
    ),
    "shared sequences": Case(
        "4 ranks share a sequence's tokens: a block of 16 spans 64 of them",
        "ranks share a sequence's tokens",
        _V3.given(tensor_parallel_size=8, decode_context_parallel_size=4),
        _V3.given(tensor_parallel_size=8),
    ),
    "equal stages": Case(
        "2 stages have blocks of 1,048,576 B each",
        "stages have blocks of",
        _LLAMA.given(pipeline_parallel_size=2),
        _LLAMA,
    ),
    "stages": Case(
        "3 stages of 11 / 11 / 10 layers have blocks of 720,896 / 720,896 / 655,360 B; the widest"
        " decides how many there are, and the others leave memory unused",
        "the others leave memory unused",
        _LLAMA.given(pipeline_parallel_size=3),
        _LLAMA.given(pipeline_parallel_size=2),
    ),
    "many stages": Case(
        "5 stages of 6 to 7 layers have blocks of 393,216 to 458,752 B; the widest decides how many"
        " there are, and the others leave memory unused",
        "stages of 6 to 7 layers",
        _LLAMA.given(pipeline_parallel_size=5),
        _LLAMA.given(pipeline_parallel_size=3),
    ),
    "fixed blocks": Case(
        "num_gpu_blocks_override: 1,000 blocks, whatever memory there is",
        "num_gpu_blocks_override",
        _LLAMA.given(num_gpu_blocks_override=1000),
        _LLAMA,
    ),
    "encoder": Case(
        "cross-attention layers are given blocks for 8,192 tokens, the largest step, whatever the"
        " encoder's own length",
        "cross-attention layers",
        _WHISPER,
        _WHISPER._replace(at="0.11.0"),
    ),
    # What is told on the way to a plan
    "dtype that layers do not heed": Case(
        "vLLM's FalconForCausalLM keeps its cache in bfloat16, whatever is asked for",
        "whatever is asked for",
        Ask("falcon-rw-1b", length=2048).given(kv_cache_dtype="fp8"),
        Ask("falcon-rw-1b", length=2048),
    ),
    "dtype that MiMo-V2 does not heed": Case(
        "vLLM's MiMoV2FlashForCausalLM keeps its cache in bfloat16, whatever is asked for",
        "whatever is asked for",
        _MIMO._replace(at="0.31").given(kv_cache_dtype="fp8"),
        _MIMO._replace(at="0.32").given(kv_cache_dtype="fp8"),
    ),
    "card without bfloat16": Case(
        "t4 has no bfloat16: vLLM runs the model in float16",
        "has no bfloat16",
        _LLAMA._replace(gpu="t4"),
        _LLAMA._replace(gpu="t4").given(dtype="float16"),
    ),
    "published in float32": Case(
        "published in float32: vLLM runs it in bfloat16",
        "published in float32",
        Ask(_SINGLE),
        Ask(_SINGLE).given(dtype="float32"),
    ),
    "prefixes that are not cached": Case(
        "this release caches no prefixes of this architecture: asked for and turned off",
        "caches no prefixes of this architecture",
        _QWEN3_NEXT._replace(at="0.14.1").given(enable_prefix_caching=True),
        _QWEN3_NEXT._replace(at="0.15.1").given(enable_prefix_caching=True),
    ),
    "version without a patch": Case(
        "0.20 is read as 0.20.0: by 0.20.1 rules had changed that move a number (--engine-version"
        " with the patch)",
        "is read as",
        _LLAMA._replace(at="0.20"),
        _LLAMA._replace(at="0.21"),
    ),
    # release_notes.py, notes_of_release
    "logged tokens of one group": Case(
        "the logged tokens are those of one of 7 groups in blocks of 16, as until 0.20.0:"
        " concurrency x maximum is what fits",
        "the logged tokens are those of one of",
        _GEMMA._replace(at="0.20.0"),
        _GEMMA._replace(at="0.20.1"),
    ),
    "check of the first group": Case(
        "the start-up check of 0.14 to 0.18 asks for the first group's blocks alone: a server can"
        " start that cannot hold one sequence of the maximum",
        "the first group's blocks alone",
        _GEMMA._replace(at="0.18.1"),
        _GEMMA._replace(at="0.19.0"),
    ),
    "check of the first group of one": Case(
        "the start-up check of 0.14 to 0.18 asks for the first group's blocks alone: a server can"
        " start that cannot hold one sequence of the maximum",
        "the first group's blocks alone",
        _GPT_OSS._replace(at="0.14.0"),
        _LLAMA._replace(at="0.14.0"),
    ),
    "check of layers": Case(
        "the start-up check until 0.13 leaves the empty places for layers out: a server can start"
        " that cannot hold one sequence of the maximum",
        "leaves the empty places for layers out",
        _GEMMA._replace(at="0.13.0"),
        _GPT_OSS._replace(at="0.13.0"),  # no empty places
    ),
    "states of Nemotron-H": Case(
        "0.13 to 0.19 keep states in float16 where the config names no mamba_ssm_cache_dtype"
        " (--mamba-ssm-cache-dtype float16)",
        "keep states in float16",
        Ask("nemotron-3-nano-30b-a3b", "0.19.1"),
        Ask("nemotron-3-nano-30b-a3b", "0.20.0"),
    ),
    "states of other models": Case(
        "0.13 to 0.19 keep states in float16 where the config names no mamba_ssm_cache_dtype"
        " (--mamba-ssm-cache-dtype float16)",
        "keep states in float16",
        Ask("nemotron-3-nano-30b-a3b", "0.13.0"),
        Ask("granite-4.0-h-small", "0.13.0"),
    ),
    "check without the override": Case(
        "the start-up check compares with the memory, not with num_gpu_blocks_override, as until"
        " 0.20.0",
        "compares with the memory",
        _LLAMA._replace(at="0.20.0").given(num_gpu_blocks_override=1000),
        _LLAMA._replace(at="0.20.1").given(num_gpu_blocks_override=1000),
    ),
    "whole model against one stage": Case(
        "the start-up check of 0.14 to 0.16 compares what all 2 pipeline stages keep with the"
        " memory of one: it refuses lengths that would fit",
        "with the memory of one",
        _LLAMA._replace(at="0.16.0").given(pipeline_parallel_size=2),
        _LLAMA._replace(at="0.17.1").given(pipeline_parallel_size=2),
    ),
    "whole model against the only stage": Case(
        "the start-up check of 0.14 to 0.16 compares what all 4 pipeline stages keep with the"
        " memory of one: it refuses lengths that would fit",
        "with the memory of one",
        _LLAMA._replace(at="0.14.0").given(pipeline_parallel_size=4),
        _LLAMA._replace(at="0.14.0"),
    ),
    # release_notes.py, not_modelled
    "groups of every stage": Case(
        "until 0.10 every stage made groups of its own layers: a block can be narrower than here",
        "every stage made groups of its own layers",
        _GEMMA._replace(at="0.10.2").given(pipeline_parallel_size=2),
        _GEMMA._replace(at="0.11.0").given(pipeline_parallel_size=2),
    ),
    "one group on every stage": Case(
        "until 0.10 every stage made groups of its own layers: a block can be narrower than here",
        "every stage made groups of its own layers",
        _GEMMA._replace(at="0.9.2").given(pipeline_parallel_size=2),
        _LLAMA._replace(at="0.9.2").given(pipeline_parallel_size=2),
    ),
    "check of windows that are kept": Case(
        "the start-up check until 0.13 counts windows as if they were freed, even where they are"
        " not: it can let a start pass that this plan refuses",
        "counts windows as if they were freed",
        _SCOUT._replace(at="0.13.0"),
        _SCOUT._replace(at="0.10.0"),  # they are freed
    ),
    "check of windows that are kept, later": Case(
        "the start-up check until 0.13 counts windows as if they were freed, even where they are"
        " not: it can let a start pass that this plan refuses",
        "counts windows as if they were freed",
        _GEMMA._replace(at="0.13.0").given(disable_hybrid_kv_cache_manager=True),
        _GEMMA._replace(at="0.14.0").given(disable_hybrid_kv_cache_manager=True),
    ),
    "block of sparse MLA": Case(
        "the block size of sparse MLA on Blackwell was not determined for 0.18 to 0.30: it is 32 or"
        " 64",
        "was not determined",
        _V32._replace(at="0.18.0"),
        _V32._replace(at="0.31.0"),
    ),
    "block of sparse MLA on other cards": Case(
        "the block size of sparse MLA on Blackwell was not determined for 0.18 to 0.30: it is 32 or"
        " 64",
        "was not determined",
        _V32._replace(at="0.30.0"),
        _V32._replace(gpu="h100-80gb"),
    ),
}


def _told(found: CachePlan) -> tuple[str, ...]:
    return (*found.notes, *found.unsupported)


@pytest.mark.parametrize("name", CASES)
def test_a_line_is_told_where_it_is_needed_and_nowhere_else(name: str) -> None:
    case = CASES[name]

    assert case.mark in case.line
    assert _told(case.told.plan()).count(case.line) == 1
    assert not [line for line in _told(case.silent.plan()) if case.mark in line]


def test_what_is_not_modelled_is_no_note() -> None:
    found = CASES["groups of every stage"].told.plan()

    assert len(found.unsupported) == 1
    assert not set(found.unsupported) & set(found.notes)


@pytest.mark.parametrize("at", ["0.8.5", "0.10.2", "0.14.0", "0.19.1", "0.20.1", "0.26", "0.33"])
def test_a_plain_model_needs_no_words(at: str) -> None:
    found = asked("llama-3.1-8b", at, max_model_len=8192)

    assert (found.notes, found.unsupported) == ((), ())


def test_no_card_and_no_maximum() -> None:
    found = plan(LLAMA_8B, Deployment(engine="vllm"))

    assert found.notes == (
        "no card was named: h100-80gb (kernels, block size, batched tokens depend on it; --gpu)",
        "the model names no maximum: 8,192 tokens are taken",
        _UNNAMED,
    )
    assert asked(LLAMA_8B, max_model_len=8192).notes == (_UNNAMED,)


def test_a_kept_layout_is_the_plans_dtype() -> None:
    found = CASES["layout"].told.plan()

    assert found.kv_cache_dtype == "fp8_ds_mla"
    assert CASES["layout"].silent.plan().kv_cache_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("at", "planner"),
    [
        ("0.33", "kv_cache_planning.py"),
        ("0.32", "kv_cache_utils.py"),
        ("0.8.5", "kv_cache_utils.py"),
    ],
)
def test_source(at: str, planner: str) -> None:
    found = asked("llama-3.1-8b", at, max_model_len=8192)

    assert found.source == (
        f"vLLM {found.engine_version}: v1/kv_cache_interface.py, v1/core/{planner}"
    )
