"""llama.cpp asked for the caches of a context, through its own library and without memory for them.

Any wheel that carries the library serves: xllamacpp, llama-cpp-py-sync, llama-cpp-python. The model
is opened with `no_alloc`, so that llama.cpp computes every size and allocates none; then its own
size functions are called. Structures are those of the C header of b11434 to b11739; a library whose
default settings do not read back as those builds' is refused.
"""

from __future__ import annotations

import ctypes
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvcalc.measure.probe.children.answer import reply

__all__ = ["ask"]

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


def ask(question: dict[str, Any]) -> dict[str, Any]:
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


if __name__ == "__main__":
    reply(ask)
