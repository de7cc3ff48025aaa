"""Ask SGLang's own pools and configurators on a CPU, and write what they answer to asked.jsonl.

Not a test: run by hand where SGLang's wheel lies unzipped, in an environment of its own with
torch, transformers, msgspec, numpy, pydantic, orjson, psutil, dill, pillow, einops, tiktoken,
aiohttp, fastapi and pyzmq (the wheel's other requirements need CUDA and are stood in for):

    PYTHONPATH=WHEEL SGLANG_VERSION=0.5.23 python tests/engines/sglang/ask.py SHARED/oracle

The stand-ins for absent modules are those of the shared oracle. A line is one question: `kind`
`pool` (a pool class built with `built_with`, the bytes of its tensors by name) or `sizes` (a
configurator asked what a budget comes to). DeepSeek-V4's pools are built on
the meta device, at full size; others are small.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ASKED = Path(__file__).parent / "asked.jsonl"

FLASH = [0, 0, *[4, 128] * 20, 4]
PRO = [128, 128, *[4, 128] * 29, 4]
RATIOS = {"deepseek-v4-flash": FLASH, "deepseek-v4-pro-fp8": PRO}

_CONTEXT = 1_048_576
_NOPE, _ROPE, _INDEX, _WINDOW, _PAGE = 448, 64, 128, 128, 256


def _modules(oracle: str) -> tuple[Any, Any, Any]:
    """Import SGLang behind the shared oracle's stand-ins: torch and the two modules asked."""
    sys.path.insert(0, oracle)
    import_module("sglang_oracle")  # puts the stand-ins up
    wheel = next(path for path in sys.path if (Path(path) / "sglang" / "srt").is_dir())
    package = types.ModuleType("sglang")
    package.__path__ = [str(Path(wheel) / "sglang")]
    sys.modules["sglang"] = package
    return (
        import_module("torch"),
        import_module("sglang.srt.mem_cache.deepseek_v4_memory_pool"),
        import_module("sglang.srt.model_executor.pool_configurator"),
    )


def _settings(modules: tuple[Any, ...], **told: Any) -> None:
    """Publish settings in place of a server's: what the pools and configurators read."""
    drafts = told.get("drafts", 0)
    schedule = SimpleNamespace(
        max_running_requests=told.get("requests"),
        swa_full_tokens_ratio=told.get("ratio", 0.1),
        _swa_full_tokens_ratio_explicitly_set=True,
        swa_prefix_tails=None,
        chunked_prefill_size=8192,
        page_size=told.get("page", _PAGE),
        max_total_tokens=None,
        disable_overlap_schedule=False,
    )
    execution = SimpleNamespace(
        kernel=SimpleNamespace(
            dsv4_attn_backend=told.get("backend", "flashmla"),
            enable_deepseek_v4_fp4_indexer=told.get("fp4_indexer", False),
        ),
        features=SimpleNamespace(enable_encoder_swa_bounded_replay=False),
        graph=SimpleNamespace(cuda_graph_config=None),
    )
    speculation = SimpleNamespace(
        speculative_algorithm="EAGLE" if drafts else None,
        speculative_num_draft_tokens=drafts or None,
    )
    memory = SimpleNamespace(
        enable_hisparse=False, disable_radix_cache=False, enable_unified_memory=False
    )
    disaggregation = SimpleNamespace(
        disaggregation_mode="null", disaggregation_decode_extra_slots=0
    )
    parallel = SimpleNamespace(
        attn_tp_size=told.get("tp", 1), attn_dcp_size=told.get("dcp", 1), tp_rank=0
    )
    for module in modules:
        module.get_schedule = lambda: schedule
        module.get_exec = lambda: execution
        module.get_spec = lambda: speculation
        module.get_memory = lambda: memory
        module.get_disagg = lambda: disaggregation
        module.get_parallel = lambda: parallel
        module.get_platform = lambda: SimpleNamespace(
            is_sm120=False, is_sm90=told.get("hopper", True), is_blackwell=False, is_sm100=False
        )
        module.max_speculative_num_draft_tokens = lambda: drafts


def _bytes(torch: Any, value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, (list, tuple)):
        return sum(_bytes(torch, one) for one in value)
    if hasattr(value, "kv_score_buffer"):
        return _bytes(torch, value.kv_score_buffer.kv_score)
    return 0


def _model_config(ratios: list[int]) -> SimpleNamespace:
    hf = SimpleNamespace(kv_source_layer_ids=[], architectures=["DeepseekV4ForCausalLM"])
    return SimpleNamespace(
        qk_nope_head_dim=_NOPE,
        qk_rope_head_dim=_ROPE,
        index_head_dim=_INDEX,
        context_len=_CONTEXT,
        compress_ratios=ratios,
        window_size=_WINDOW,
        hf_config=hf,
    )


def _configurator(configurator: Any, ratios: list[int], stage: tuple[int, int]) -> Any:
    speculative = configurator.get_spec().speculative_algorithm
    kvc = SimpleNamespace(
        kv_cache_dtype_str="fp8_e4m3",
        model_config=_model_config(ratios),
        layer_info=SimpleNamespace(start_layer=stage[0], end_layer=stage[1]),
        pp_size=1 if stage == (0, len(ratios)) else 2,
        pp_group=SimpleNamespace(rank_in_group=0),
        spec_algorithm=SimpleNamespace(
            is_dspark=lambda: False,
            is_eagle=lambda: speculative is not None,
            is_none=lambda: speculative is None,
        ),
        spec_aux_config=SimpleNamespace(),
        sliding_window_size=_WINDOW,
        page_size=_PAGE,
        attn_dp_size=1,
    )
    return configurator.DSV4PoolConfigurator(kvc)


def _v4_pool(torch: Any, pools: Any, ratios: list[int], sizes: Any, stage: tuple[int, int]) -> Any:
    requests = sizes.max_running_requests
    return pools.DeepSeekV4TokenToKVPool(
        max_num_reqs=requests,
        num_req_slots=requests + 1,
        swa_size=sizes.swa_max_total_num_tokens,
        c4_size=sizes.c4_max_total_num_tokens,
        c128_size=sizes.c128_max_total_num_tokens,
        c4_state_pool_size=sizes.c4_state_pool_size,
        c128_state_pool_size=sizes.c128_state_pool_size,
        page_size=_PAGE,
        swa_page_size=_PAGE,
        sliding_window=_WINDOW,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=_NOPE,
        qk_rope_head_dim=_ROPE,
        indexer_head_dim=_INDEX,
        layer_num=stage[1] - stage[0],
        device="meta",
        enable_memory_saver=False,
        compression_ratios=ratios,
        start_layer=stage[0],
        end_layer=stage[1],
        full_size=sizes.full_max_total_num_tokens,
    )


def _v4_held(torch: Any, pool: Any) -> dict[str, int]:
    named = {
        "swa": pool.swa_kv_pool.kv_buffer,
        "c4": pool.kv_pools[4].kv_buffer if 4 in pool.kv_pools else [],
        "c128": pool.kv_pools[128].kv_buffer if 128 in pool.kv_pools else [],
        "c4_index": pool.index_pools[4].index_k_with_scale_buffer if 4 in pool.index_pools else [],
        "c4_state": [p for p in pool.compress_state_pools if p is not None and p.ratio == 4],
        "c128_state": [p for p in pool.compress_state_pools if p is not None and p.ratio == 128],
        "c4_index_state": [p for p in pool.indexer_compress_state_pools if p is not None],
    }
    return {name: _bytes(torch, value) for name, value in named.items() if value}


def _v4(torch: Any, pools: Any, configurator: Any) -> Iterator[dict[str, Any]]:
    """Yield DeepSeek-V4: what budgets come to, and the pools of that size."""
    gib = 2**30
    cases: list[dict[str, Any]] = [
        {"model": name, "budget": budget, "requests": requests, "ratio": ratio, **more}
        for name in RATIOS
        for budget in (20 * gib + 12_345_677, 60 * gib)
        for requests, ratio, more in (
            (256, 0.1, {}),
            (48, 0.1, {"drafts": 4}),
            (16, 0.8, {}),
            (256, 0.1, {"backend": "trtllm"}),
            (64, 0.1, {"fp4_indexer": True}),
            (256, 0.1, {"stage": (0, 20)}),
            (256, 0.1, {"cap": 300_000}),
        )
    ]
    for case in cases:
        _settings((pools, configurator), **case)
        ratios = RATIOS[case["model"]]
        stage = case.get("stage", (0, len(ratios)))
        asked = _configurator(configurator, ratios, stage)
        sizes = asked.calculate_pool_sizes(case["budget"], _PAGE)
        if "cap" in case:
            most = min(case["cap"], sizes.max_total_num_tokens) // _PAGE * _PAGE
            sizes = asked.calculate_pool_sizes_from_max_tokens(most, _PAGE)
        sizes.max_running_requests = min(case["requests"], sizes.max_total_num_tokens // 2)
        sizes = asked.finalize_with_max_running_requests(sizes)
        pool = _v4_pool(torch, pools, ratios, sizes, stage)
        yield {
            "kind": "sizes",
            "pool": "DeepSeekV4TokenToKVPool",
            "built_with": case,
            "bytes_per_full_token": asked.bytes_per_full_token,
            "tokens": sizes.full_max_total_num_tokens,
            "window_tokens": sizes.swa_max_total_num_tokens,
            "c4_state": sizes.c4_state_pool_size,
            "c128_state": sizes.c128_state_pool_size,
            "held": _v4_held(torch, pool),
        }


def _minimax(torch: Any, memory_pool: Any) -> Iterator[dict[str, Any]]:
    """Yield MiniMax-M3's pool: rows of all layers, keys of the sparse ones' indexer."""
    for dtype, index, heads, page in (
        ("bfloat16", "bfloat16", 4, 128),
        ("float8_e4m3fn", "float8_e4m3fn", 4, 128),
        ("float8_e4m3fn", "bfloat16", 1, 1),
    ):
        built = memory_pool.MiniMaxSparseKVPool(
            size=512,
            page_size=page,
            dtype=getattr(torch, dtype),
            index_dtype=getattr(torch, index),
            head_num=heads,
            head_dim=128,
            idx_head_dim=128,
            dense_layer_ids=[0, 1, 2],
            sparse_layer_ids=list(range(3, 60)),
            disable_value_sparse_layer_ids=list(range(3, 60)),
            device="cpu",
            start_layer=0,
            end_layer=60,
        )
        yield {
            "kind": "pool",
            "pool": "MiniMaxSparseKVPool",
            "built_with": {"dtype": dtype, "index": index, "heads": heads, "page": page},
            "tokens": 512,
            "held": {
                "k": _bytes(torch, built.main_pool.k_buffer),
                "v": _bytes(torch, built.main_pool.v_buffer),
                "index": _bytes(torch, built.index_k_pool.k_buffer),
            },
        }


def _answers(oracle: str) -> Iterator[dict[str, Any]]:
    torch, pools, configurator = _modules(oracle)
    memory_pool = import_module("sglang.srt.mem_cache.memory_pool")

    parts: list[Callable[[], Iterator[dict[str, Any]]]] = [
        lambda: _v4(torch, pools, configurator),
        lambda: _minimax(torch, memory_pool),
    ]
    version = os.environ.get("SGLANG_VERSION", "0.5.23")
    for part in parts:
        for told in part():
            yield {"version": version, **told}


if __name__ == "__main__":
    text = "".join(json.dumps(row) + "\n" for row in _answers(sys.argv[1]))
    ASKED.write_text(text, encoding="utf-8")
