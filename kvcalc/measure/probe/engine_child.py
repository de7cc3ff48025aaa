"""Engines asked in a process of their own, so that one that aborts ends that process alone."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["MARK", "ask_llamacpp", "ask_transformers", "ask_vllm", "reply"]

MARK = "kvcalc-answer "


def reply(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the question on stdin; an error of the engine is an answer too."""
    question = json.load(sys.stdin)
    # What an engine prints goes to stderr, whether Python prints it or a library below it.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        told: dict[str, Any] = {"answer": answer(question)}
    except ImportError as error:
        told = {"missing": str(error)}
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(out, "w", encoding="utf-8") as stdout:
        stdout.write(f"\n{MARK}{json.dumps(told)}\n")


# --------------------------------------------------------------------- vLLM
#
# vLLM asked how it would cut a cache of given bytes: its own config, model class and planner.
#
# The model is built on torch's meta device, which holds no weights; layers say what they keep, and
# vllm/v1/core plans it as an engine core does at its start. One rank.


def ask_vllm(question: dict[str, Any]) -> dict[str, Any]:
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


# --------------------------------------------------------------------- llama.cpp
#
# llama.cpp asked for the caches of a context, through its own library and without memory for them.
#
# Any wheel that carries the library serves: xllamacpp, llama-cpp-py-sync, llama-cpp-python. The
# model is opened with `no_alloc`, so that llama.cpp computes every size and allocates none; then
# its own size functions are called. Structures are those of the C header of b11434 to b11739; a
# library whose default settings do not read back as those builds' is refused.

_PACKAGES = (
    # package, distribution, where its library lies
    ("xllamacpp", "xllamacpp", "xllamacpp*.so"),
    ("llama_cpp_py_sync", "llama-cpp-py-sync", "libllama.so"),
    ("llama_cpp", "llama-cpp-python", "lib/libllama.so"),
)
_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
_TYPES |= {"iq4_nl": 20, "bf16": 30}
_FLASH = {"auto": -1, "off": 0, "on": 1}

_Pointer, _Int, _Uint, _Bool = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_bool


class _Model(ctypes.Structure):
    _fields_ = [
        ("devices", _Pointer), ("tensor_buft_overrides", _Pointer), ("n_gpu_layers", _Int),
        ("split_mode", _Int), ("load_mode", _Int), ("lazy_mode", _Int), ("main_gpu", _Int),
        ("tensor_split", _Pointer), ("progress_callback", _Pointer),
        ("progress_callback_user_data", _Pointer), ("kv_overrides", _Pointer),
        ("vocab_only", _Bool), ("check_tensors", _Bool), ("use_extra_bufts", _Bool),
        ("no_host", _Bool), ("no_alloc", _Bool), ("load_mtp", _Bool),
    ]  # fmt: skip


_HEAD: list[tuple[str, Any]] = [
    ("n_ctx", _Uint), ("n_batch", _Uint), ("n_ubatch", _Uint), ("n_seq_max", _Uint),
    ("n_rs_seq", _Uint), ("n_outputs_max", _Uint), ("n_outputs_max_per_seq", _Uint),
    ("n_threads", _Int), ("n_threads_batch", _Int), ("ctx_type", _Int),
    ("rope_scaling_type", _Int), ("pooling_type", _Int), ("attention_type", _Int),
    ("flash_attn_type", _Int), *((f"rope_{i}", ctypes.c_float) for i in range(6)),
    ("yarn_orig_ctx", _Uint), ("defrag_thold", ctypes.c_float), ("cb_eval", _Pointer),
    ("cb_eval_user_data", _Pointer), ("type_k", _Int), ("type_v", _Int),
]  # fmt: skip
_TAIL: list[tuple[str, Any]] = [
    ("abort_callback", _Pointer), ("abort_callback_data", _Pointer), ("embeddings", _Bool),
    ("offload_kqv", _Bool), ("no_perf", _Bool), ("op_offload", _Bool), ("swa_full", _Bool),
    ("kv_unified", _Bool), ("samplers", _Pointer), ("n_samplers", ctypes.c_size_t),
    ("ctx_other", _Pointer),
]  # fmt: skip


class _Context(ctypes.Structure):
    _fields_ = _HEAD + _TAIL


class _ContextWithMoe(ctypes.Structure):
    """Builds that keep a cache of experts."""

    _fields_ = [*_HEAD, ("moe_cache_size", ctypes.c_size_t), *_TAIL]


_MOE_SYMBOL = "_ZNK15llama_moe_cache16memory_breakdownEv"
_SIZES = {
    # class: functions that tell bytes
    "llama_kv_cache": ("size_k_bytes", "size_v_bytes"),
    "llama_memory_recurrent": ("size_r_bytes", "size_s_bytes", "size_p_bytes"),
}
_PARTS = {
    # class: (name of the part, function that returns it, class that has the function)
    "llama_kv_cache_iswa": (("base", "get_base", ""), ("swa", "get_swa", "")),
    "llama_kv_cache_dsa": (("mla", "get_mla", ""), ("indexer", "get_lid", "")),
    "llama_kv_cache_msa": (("base", "get_base", ""), ("indexer", "get_idx", "")),
    "llama_kv_cache_dsa_iswa": (("dsa", "get_dsa", ""), ("swa", "get_swa", "")),
    "llama_memory_hybrid": (("attention", "get_mem_attn", ""), ("states", "get_mem_recr", "")),
    "llama_memory_hybrid_iswa": (("attention", "get_mem_attn", ""), ("states", "get_mem_recr", "")),
    "llama_memory_hybrid_idx": (
        ("attention", "get_mem_attn", "llama_memory_hybrid"),
        ("states", "get_mem_recr", "llama_memory_hybrid"),
        ("indexer", "get_mem_idx", ""),
    ),
}


def ask_llamacpp(question: dict[str, Any]) -> dict[str, Any]:
    """Return what the caches of a context hold, to the byte."""
    library, name = _library()
    context_of = _ContextWithMoe if hasattr(library, _MOE_SYMBOL) else _Context
    _declare(library, context_of)
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _Pointer)(lambda *_: None)
    library.llama_log_set(silent, None)
    library.llama_backend_init()
    options = library.llama_model_default_params()
    options.n_gpu_layers = 0
    options.no_alloc = True
    options.load_mode = 0
    options.use_extra_bufts = False
    settings = library.llama_context_default_params()
    read_back = (settings.n_ctx, settings.n_batch, settings.type_k, settings.type_v)
    if read_back != (512, 2048, 1, 1) or not settings.offload_kqv:
        raise ValueError(f"the settings of {name} are laid out in another way than is known")
    wanted = dict(question["settings"])
    settings.type_k = _TYPES[wanted.pop("type_k", "f16")]
    settings.type_v = _TYPES[wanted.pop("type_v", "f16")]
    settings.flash_attn_type = _FLASH[wanted.pop("flash_attn", "auto")]
    settings.swa_full = False  # the programs' default; the library's own is true
    settings.n_threads = settings.n_threads_batch = 1
    for key, value in wanted.items():
        setattr(settings, key, value)
    model = library.llama_model_load_from_file(question["file"].encode(), options)
    if not model:
        raise ValueError("llama.cpp does not load this file")
    context = library.llama_init_from_model(model, settings)
    if not context:
        raise ValueError("llama.cpp makes no context of these settings")
    caches: dict[str, dict[str, int]] = {}
    _visit(library, library.llama_get_memory(context), "", caches)
    return {
        "version": name,
        "n_ctx": int(library.llama_n_ctx(context)),
        "n_seq_max": int(library.llama_n_seq_max(context)),
        "caches": caches,
        "bytes": sum(size for cache in caches.values() for k, size in cache.items() if k[0] != "n"),
    }


def _library() -> tuple[Any, str]:
    """Load the library of the first package that is there."""
    for package, distribution, pattern in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).glob(pattern)):
                for part in ("libggml-base.so*", "libggml-cpu.so*", "libggml.so*"):
                    for other in sorted(path.parent.glob(part))[:1]:
                        ctypes.CDLL(str(other), mode=ctypes.RTLD_GLOBAL)
                try:
                    told = version(distribution)
                except PackageNotFoundError:
                    told = "?"
                return ctypes.CDLL(str(path)), f"{distribution} {told}"
    raise ImportError("xllamacpp")


def _declare(library: Any, context_of: type[ctypes.Structure]) -> None:
    for name, result, arguments in (
        ("llama_model_default_params", _Model, ()),
        ("llama_context_default_params", context_of, ()),
        ("llama_model_load_from_file", _Pointer, (ctypes.c_char_p, _Model)),
        ("llama_init_from_model", _Pointer, (_Pointer, context_of)),
        ("llama_get_memory", _Pointer, (_Pointer,)),
        ("llama_n_ctx", _Uint, (_Pointer,)),
        ("llama_n_seq_max", _Uint, (_Pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)


def _class_of(this: int) -> str:
    """Return the class of an object of C++, by its table of functions (Itanium ABI)."""
    table = ctypes.cast(this, ctypes.POINTER(_Pointer))[0]
    info = ctypes.cast(table or 0, ctypes.POINTER(_Pointer))[-1]
    name = ctypes.cast(ctypes.cast(info or 0, ctypes.POINTER(_Pointer))[1] or 0, ctypes.c_char_p)
    return re.sub(r"^\d+", "", (name.value or b"").decode())


def _call(library: Any, owner: str, name: str, this: int, result: Any) -> int:
    symbol = f"_ZNK{len(owner)}{owner}{len(name)}{name}Ev"
    if not hasattr(library, symbol):
        return 0
    function = getattr(library, symbol)
    function.restype, function.argtypes = result, [_Pointer]
    return int(function(this) or 0)


def _visit(library: Any, this: int, name: str, into: dict[str, dict[str, int]]) -> None:
    """Note the sizes of a cache, or of each of its parts."""
    if not this:
        return
    kind = _class_of(this)
    if kind in _SIZES:
        found = {
            key.removeprefix("size_"): _call(library, kind, key, this, ctypes.c_size_t)
            for key in _SIZES[kind]
        }
        if kind == "llama_kv_cache":
            found["n_cells"] = _call(library, kind, "get_size", this, _Uint)
            found["n_streams"] = _call(library, kind, "get_n_stream", this, _Uint)
        into[name or "cache"] = found
    elif kind in _PARTS:
        for part, function, owner in _PARTS[kind]:
            inner = _call(library, owner or kind, function, this, _Pointer)
            _visit(library, inner, f"{name} {part}".strip(), into)
    else:
        raise ValueError(f"a cache of class {kind}, which is not known")


# --------------------------------------------------------------------- transformers
#
# transformers asked what its cache object holds after a run over a sequence.
#
# The model's own class runs on torch's meta device: shapes and dtypes are true, no weight is stored
# and nothing is computed.

_COUNTERS = ("cumulative_length", "_sliding_window_tensor", "_pending_beam_idx")
"""Tensors of a cache that count and hold no rows."""


def ask_transformers(question: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of the cache of one sequence of `tokens` tokens."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(question["folder"])
    with torch.device("meta"), torch.inference_mode():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=config.dtype)
        ids = torch.zeros((1, question["tokens"]), dtype=torch.int64)
        cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    rows = storages = 0
    seen: set[int] = set()
    kept: set[int] = set()
    layers = getattr(cache, "layers", None)
    for name, tensor in _tensors(vars(cache) if layers is None else layers, "", seen):
        if name.rsplit(".", 1)[-1] in _COUNTERS:
            continue
        rows += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        if storage._cdata not in kept:  # noqa: SLF001 - torch has no other name for one
            kept.add(storage._cdata)  # noqa: SLF001 - as above
            storages += storage.nbytes()
    return {
        "version": str(transformers.__version__),
        "torch": str(torch.__version__),
        "cache": type(cache).__name__,
        "bytes": rows,
        "storage_bytes": storages,
    }


def _tensors(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield every tensor that hangs on a value, each once."""
    torch: Any = import_module("torch")
    if isinstance(value, (str, int, float, bool, type(None), type)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, f"{name}.{key}", seen)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _tensors(inner, f"{name}.{i}", seen)
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        for key, inner in vars(value).items():
            if not key.endswith("config"):
                yield from _tensors(inner, f"{name}.{key}", seen)


_ENGINES = {"vllm": ask_vllm, "llama.cpp": ask_llamacpp, "transformers": ask_transformers}

if __name__ == "__main__":
    reply(_ENGINES[sys.argv[1]])
