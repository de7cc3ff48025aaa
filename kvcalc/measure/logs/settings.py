"""What a log says that a server was started with: argument lists and configurations in a line.

`non-default args: {...}`, `args: Namespace(...)`, `Initializing a V1 LLM engine (v0.10.1) with
config: model='...', ...`, `server_args=ServerArgs(...)`, llama.cpp's GGUF key-values and model
path. Nothing in them is evaluated: keys that are known are taken with the text behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["MARKS", "Setting", "Settings", "settings_of"]

_LONGEST = 300  # characters of a value

_PAIR = re.compile(
    r"(?:'(?P<quoted>[A-Za-z_]\w{0,60})':[ ]?|(?<![\w.'\"-])(?P<bare>[A-Za-z_]\w{0,60})="
    r"|\"(?P<double>[A-Za-z_]\w{0,60})\":[ ]?)"
    r"(?P<value>'[^'\n]{0,1000}'|\"[^\"\n]{0,1000}\"|[^\s,(){}\[\]'\"]{1,300}|(?=[({\[]))"
)
_RUST = re.compile(
    r"(?<![\w.'\"-])(?P<bare>[A-Za-z_]\w{0,60}):[ ](?:Some\()?"
    r"(?P<value>\"[^\"\n]{0,1000}\"|[^\s,(){}\[\]'\"]{1,300})"
)
"""As Rust prints a structure: `num_shard: Some(2)`."""
_SAFE = re.compile(r"[^\x20-\x7e]")


class Setting(NamedTuple):
    """A setting as it was logged: its text, and the line."""

    value: str
    line: int


class Settings(dict[str, Setting]):
    """Settings by the engine's own name for them."""

    def update_from(self, found: dict[str, str], line: int) -> None:
        """Take what a line says; a later line is right about what an earlier one said."""
        for name, value in found.items():
            self[name] = Setting(value, line)

    def text(self, *names: str) -> str | None:
        """Return the first of these that was logged and is no None."""
        for name in names:
            found = self.get(name)
            if found is not None and found.value not in ("None", "null", ""):
                return found.value
        return None

    def whole(self, *names: str) -> int | None:
        """Return the first of these as a whole number from 1; None where it is none."""
        text = self.text(*names)
        if text is None or not re.fullmatch(r"[0-9]{1,12}", text):
            return None
        return int(text) or None

    def part(self, *names: str) -> float | None:
        """Return the first of these as a share above 0 and at most 1; None where it is none."""
        text = self.text(*names)
        if text is None or not re.fullmatch(r"[0-9]{0,3}(?:\.[0-9]{1,12})?", text) or text == "":
            return None
        value = float(text)
        return value if 0 < value <= 1 else None

    def on(self, *names: str) -> bool | None:
        """Return the first of these as a switch; None where it is none."""
        return {"true": True, "false": False}.get((self.text(*names) or "").lower())


_WANTED = {
    "vllm": frozenset(
        [
            "model",
            "model_tag",
            "served_model_name",
            "dtype",
            "max_model_len",
            "max_seq_len",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "decode_context_parallel_size",
            "kv_cache_dtype",
            "block_size",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "kv_cache_memory",
            "num_gpu_blocks_override",
            "enable_prefix_caching",
            "enforce_eager",
            "cudagraph_mode",
            "max_num_seqs",
            "max_num_batched_tokens",
            "quantization",
            "speculative_config",
            "speculative_model",
            "method",
            "num_speculative_tokens",
            "num_spec_tokens",
            "disable_hybrid_kv_cache_manager",
            "attention_backend",
            "mamba_cache_dtype",
            "mamba_ssm_cache_dtype",
            "enable_expert_parallel",
            "async_scheduling",
            "device_config",
            "swap_space",
            "cpu_offload_gb",
        ]
    ),
    "sglang": frozenset(
        [
            "model_path",
            "served_model_name",
            "dtype",
            "tp_size",
            "dp_size",
            "pp_size",
            "mem_fraction_static",
            "kv_cache_dtype",
            "context_length",
            "page_size",
            "quantization",
            "chunked_prefill_size",
            "max_running_requests",
            "max_total_tokens",
            "max_prefill_tokens",
            "enable_dp_attention",
            "disable_radix_cache",
            "attention_backend",
            "speculative_algorithm",
            "speculative_num_steps",
            "speculative_num_draft_tokens",
            "speculative_eagle_topk",
            "speculative_draft_model_path",
            "mamba_radix_cache_strategy",
            "mamba_scheduler_strategy",
            "disable_overlap_schedule",
            "attn_dp_size",
            "mamba_ssm_dtype",
            "max_mamba_cache_size",
            "swa_full_tokens_ratio",
            "mamba_full_memory_ratio",
            "disable_cuda_graph",
            "cuda_graph_max_bs",
            "dcp_size",
        ]
    ),
    "tgi": frozenset(
        [
            "model_id",
            "max_total_tokens",
            "max_batch_total_tokens",
            "max_input_tokens",
            "num_shard",
            "quantize",
            "dtype",
            "kv_cache_dtype",
            "cuda_memory_fraction",
        ]
    ),
    "lmdeploy": frozenset(
        [
            "tp",
            "session_len",
            "max_batch_size",
            "cache_max_entry_count",
            "quant_policy",
            "cache_block_seq_len",
            "block_size",
            "dtype",
            "model_path",
        ]
    ),
}
_MARKS = (
    ("non-default args", "vllm"),
    ("args: Namespace(", "vllm"),
    ("LLM engine (v", "vllm"),
    ("server_args=", "sglang"),
    ("text_generation_launcher: Args", "tgi"),
    ("EngineConfig(", "lmdeploy"),
)
"""What is in such a line -> the engine that prints it."""

MARKS = (*(mark for mark, _ in _MARKS), "llama_model_loader", "general.name")
"""What is in every line that lists settings."""

_GGUF = re.compile(
    r"llama_model_loader: - kv[ ]{1,8}\d{1,5}:[ ]{1,60}(?P<key>[\w.-]{1,120})[ ]{1,60}"
    r"(?P<type>\w{1,10}(?:\[\w{1,10},[ ]?\d{1,9}\])?)[ ]{1,60}=[ ](?P<value>[^\n]{0,400})"
)
_LOADED = re.compile(
    r"loaded meta data with \d{1,9} key-value pairs and \d{1,9} tensors from"
    r" (?P<path>\S[^\n]{0,400}?) \(version"
)
_NAME = re.compile(r"general\.name[ ]{1,20}=[ ](?P<name>[^\n]{1,200})")
_OLLAMA = re.compile(r"OLLAMA_(?P<key>[A-Z_]{1,40}):(?P<value>\S{0,60})")


def settings_of(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the engine and the settings of a line that lists some."""
    for mark, engine in _MARKS:
        if mark in text:
            told = text[text.index(mark) :]
            found = _rust(told) if engine == "tgi" else _pairs(told, _WANTED[engine])
            if found:
                yield engine, found
            return
    if "llama_model_loader" in text:
        if match := _GGUF.search(text):
            yield "llama.cpp", {f"{match['type']} {match['key']}": _clean(match["value"])}
        elif match := _LOADED.search(text):
            yield "llama.cpp", {"model_path": _clean(match["path"])}
    elif "general.name" in text and (match := _NAME.search(text)):
        yield "llama.cpp", {"general.name": _clean(match["name"])}


def _pairs(text: str, wanted: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in _PAIR.finditer(text):
        name = match["quoted"] or match["bare"] or match["double"]
        if name in wanted:
            value = match["value"].strip("'\"").rstrip(";")
            found.setdefault(name, _clean(value))
    return found


def _rust(text: str) -> dict[str, str]:
    wanted = _WANTED["tgi"]
    return {
        match["bare"]: _clean(match["value"].strip('"'))
        for match in _RUST.finditer(text)
        if match["bare"] in wanted
    }


def _clean(text: str) -> str:
    return _SAFE.sub("?", text.strip())[:_LONGEST]
