"""Models small enough to write anew for a test: a config without weights, and GGUF files with them.

The shapes are made up here; weights are noise. The CPU build of vLLM makes its own (`--load-format
dummy`) and reads words `w0 w1 ...` with the tokenizer that is written beside the config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["CONFIGS", "GGUFS", "write_config", "write_gguf"]

_COMMON = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
    },
    "gemma": {
        **_COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "max_position_embeddings": 4096,
        "sliding_window": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
    },
}
"""Name -> config.json."""

GGUFS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama", "layers": 2, "context": 2048},
    "gemma": {"architecture": "gemma3", "layers": 7, "context": 4096, "window": 512},
}
"""Name -> shape; heads and widths are those of the configs."""

_WIDTH, _FF, _HEADS, _KV_HEADS, _DIM = 256, 512, 4, 2, 64
_TOKENS = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]


def write_config(folder: Path, name: str) -> Path:
    """Write config.json and a tokenizer of whole words into a folder, and return it."""
    config = CONFIGS[name]
    folder.mkdir(parents=True, exist_ok=True)
    words = {f"w{i}": i for i in range(config["vocab_size"])}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w0", "unk_token": "w0"}
    for file, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", kind),
    ):
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


def write_gguf(path: Path, name: str) -> Path:
    """Write a GGUF file with weights of noise, and return its path."""
    import gguf

    shape: Mapping[str, Any] = GGUFS[name]
    writer = gguf.GGUFWriter(str(path), shape["architecture"])
    _describe(writer, shape, name)
    _fill(writer, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: Any, shape: Mapping[str, Any], name: str) -> None:
    writer.add_name(f"tiny-{name}")
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(_FF)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_key_length(_DIM)
    writer.add_value_length(_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    if "window" in shape:
        writer.add_sliding_window(shape["window"])
    writer.add_vocab_size(len(_TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(_TOKENS)
    writer.add_token_scores([0.0] * len(_TOKENS))
    writer.add_token_types([2, 3, 3, *[6] * 256])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _fill(writer: Any, shape: Mapping[str, Any]) -> None:
    import numpy as np

    noise = np.random.default_rng(0)

    def tensor(key: str, *dimensions: int) -> None:
        dtype = np.float16 if len(dimensions) > 1 else np.float32
        values = (noise.standard_normal(dimensions) * 0.02).astype(dtype)
        writer.add_tensor(f"{key}.weight", values)

    tensor("token_embd", len(_TOKENS), _WIDTH)
    tensor("output_norm", _WIDTH)
    for layer in range(shape["layers"]):
        block = f"blk.{layer}"
        norms = ["attn_norm", "ffn_norm"]
        if shape["architecture"] == "gemma3":
            norms += ["post_attention_norm", "post_ffw_norm"]
            tensor(f"{block}.attn_q_norm", _DIM)
            tensor(f"{block}.attn_k_norm", _DIM)
        for norm in norms:
            tensor(f"{block}.{norm}", _WIDTH)
        tensor(f"{block}.attn_q", _HEADS * _DIM, _WIDTH)
        tensor(f"{block}.attn_k", _KV_HEADS * _DIM, _WIDTH)
        tensor(f"{block}.attn_v", _KV_HEADS * _DIM, _WIDTH)
        tensor(f"{block}.attn_output", _WIDTH, _HEADS * _DIM)
        tensor(f"{block}.ffn_gate", _FF, _WIDTH)
        tensor(f"{block}.ffn_up", _FF, _WIDTH)
        tensor(f"{block}.ffn_down", _WIDTH, _FF)
