"""vLLM asked how it would cut a cache of given bytes: its own config, model class and planner.

The model is built on torch's meta device, which holds no weights; layers say what they keep, and
vllm/v1/core plans it as an engine core does at its start. One rank.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from kvcalc.measure.probe.children.answer import reply

__all__ = ["ask"]


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Return blocks, bytes and capacity of a cache of `available` bytes."""
    torch: Any = import_module("torch")
    vllm: Any = import_module("vllm")
    config: Any = import_module("vllm.config")
    arguments: Any = import_module("vllm.engine.arg_utils")
    usage: Any = import_module("vllm.usage.usage_lib")
    names = set(arguments.EngineArgs.__dataclass_fields__)
    wanted = {
        "model": question["folder"],
        "tokenizer": question["folder"],
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "enforce_eager": True,
        **question["settings"],
    }
    unknown = set(wanted) - names
    if unknown:
        raise ValueError(f"this vLLM has no {', '.join(sorted(unknown))}")
    made = arguments.EngineArgs(**wanted).create_engine_config(
        usage_context=usage.UsageContext.OPENAI_API_SERVER
    )
    with tempfile.TemporaryDirectory() as folder, config.set_current_vllm_config(made):
        _one_rank(Path(folder))
        _build(torch, made)
        specs = _specs(made)
        _layout(made, specs)
    if not specs:
        raise ValueError("no layer of this model keeps a cache")
    planner = _planner()
    configs = _configs(planner, made, specs, question["available"])
    found = configs[0]
    answer = {
        "version": str(vllm.__version__),
        "torch": str(torch.__version__),
        "device": str(import_module("vllm.platforms").current_platform.device_name or "cpu"),
        "num_blocks": int(found.num_blocks),
        "bytes": int(found.num_blocks) * _block_bytes(planner, made, found),
        "groups": len(found.kv_cache_groups),
        "block_size": int(made.cache_config.block_size),
        "max_model_len": int(made.model_config.max_model_len),
        "max_num_batched_tokens": int(made.scheduler_config.max_num_batched_tokens),
        "async_scheduling": bool(getattr(made.scheduler_config, "async_scheduling", False)),
        "prefix_caching": bool(made.cache_config.enable_prefix_caching),
    }
    capacity = planner.get("get_kv_cache_capacity")
    if capacity is not None:
        merged = planner["generate_scheduler_kv_cache_config"](configs)
        tokens, concurrency = capacity(made, merged)
        answer |= {"kv_cache_tokens": int(tokens), "max_concurrency": float(concurrency)}
    return answer


def _one_rank(folder: Path) -> None:
    """Make groups of one process, which layers ask for their share."""
    parallel: Any = import_module("vllm.distributed.parallel_state")
    parallel.init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        distributed_init_method=f"file://{folder / 'one'}",
        backend="gloo",
    )
    parallel.initialize_model_parallel(1, 1)


def _build(torch: Any, made: Any) -> None:
    """Build the model's own class without weights; layers note themselves in the config."""
    loader: Any = import_module("vllm.model_executor.model_loader.utils")
    dtypes: Any = import_module("vllm.utils.torch_utils")
    with dtypes.set_default_torch_dtype(made.model_config.dtype), torch.device("meta"):
        loader.initialize_model(vllm_config=made)
    platform: Any = import_module("vllm.platforms").current_platform
    if hasattr(platform, "update_block_size_for_backend"):
        platform.update_block_size_for_backend(made)


def _specs(made: Any) -> dict[str, Any]:
    """Return what each layer keeps, as it describes it to the planner."""
    layers: Any = import_module("vllm.config.vllm")
    base: Any = import_module("vllm.model_executor.layers.attention_layer_base")
    found = layers.get_layers_from_vllm_config(made, base.AttentionLayerBase)
    specs = {}
    for name, layer in found.items():
        if getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        spec = layer.get_kv_cache_spec(made)
        if spec is not None:
            specs[name] = spec
    return specs


def _layout(made: Any, specs: dict[str, Any]) -> None:
    """Let releases that choose a layout by the backends choose it, as their engine core does."""
    backends: Any = import_module("vllm.v1.attention.backends.utils")
    if not hasattr(backends, "resolve_kv_cache_layout"):
        return
    layers: Any = import_module("vllm.config.vllm")
    base: Any = import_module("vllm.model_executor.layers.attention_layer_base")
    found = layers.get_layers_from_vllm_config(made, base.AttentionLayerBase).values()
    kinds = list(dict.fromkeys(layer.get_attn_backend() for layer in found))
    names = [layout.name for layout in backends.get_supported_kv_cache_layouts(kinds)]
    backends.resolve_kv_cache_layout(made, [names], list(specs.values()))


def _planner() -> dict[str, Any]:
    """Return the planner's functions; 0.33 moved them to modules of their own."""
    found: dict[str, Any] = {}
    for name in ("kv_cache_utils", "kv_cache_planning", "kv_cache_config_builder"):
        try:
            module = import_module(f"vllm.v1.core.{name}")
        except ImportError:
            continue
        for key in dir(module):
            found.setdefault(key, getattr(module, key))
    return found


def _configs(planner: dict[str, Any], made: Any, specs: dict[str, Any], available: int) -> Any:
    manager: Any = import_module("vllm.v1.core.single_type_kv_cache_manager")
    if hasattr(manager, "register_all_kvcache_specs"):
        manager.register_all_kvcache_specs(made)
    if "get_global_kv_cache_groups" in planner:
        groups = planner["get_global_kv_cache_groups"](made, [specs])
        return planner["get_kv_cache_configs"](made, [specs], [available], groups)
    return planner["get_kv_cache_configs"](made, [specs], [available])


def _block_bytes(planner: dict[str, Any], made: Any, found: Any) -> int:
    """Return the bytes of one block id over all layers, which share it.

    Tensors of a config may be views of one buffer (in 0.32 each layer has one of the whole size),
    so that their sizes do not add up; before there was a function for it, they did.
    """
    groups = found.kv_cache_groups
    if "_pool_bytes_per_block_from_builder" in planner:
        builder: Any = import_module("vllm.v1.core.kv_cache_config_builder")
        of = planner["_pool_bytes_per_block_from_builder"]
        return int(of(builder.get_kv_cache_config_builder(made), made, groups))
    if "_pool_bytes_per_block" in planner:
        return int(planner["_pool_bytes_per_block"](made, groups))
    return sum(int(tensor.size) for tensor in found.kv_cache_tensors) // int(found.num_blocks)


if __name__ == "__main__":
    reply(ask)
