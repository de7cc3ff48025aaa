"""A file as large as real ones: 40 GB of weights, a vocabulary of 256,000 tokens."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kvcalc.models.gguf import read_gguf
from tests.models.gguf.writer import LIST, TEXT, Tensor, Writer, named

GIB = 2**30
TOKENS = 256_000
LAYERS = 80


def _vocabulary(writer: Writer) -> bytes:
    words = b"".join(writer.text(f"token{i}") for i in range(TOKENS))
    merges = b"".join(writer.text(f"tok en{i}") for i in range(TOKENS))
    texts = writer.pack("IIQ", LIST, TEXT, TOKENS)
    scores = writer.pack("IIQ", LIST, 6, TOKENS) + bytes(4 * TOKENS)
    return (
        writer.text("tokenizer.ggml.tokens")
        + texts
        + words
        + writer.text("tokenizer.ggml.merges")
        + texts
        + merges
        + writer.text("tokenizer.ggml.scores")
        + scores
    )


def write_large(path: Path) -> list[Tensor]:
    """Write a sparse file of 40 GiB with a vocabulary of 256,000 tokens; return its tensors."""
    writer = Writer()
    hp = {
        "context_length": 131072,
        "embedding_length": 8192,
        "block_count": LAYERS,
        "attention.head_count": 64,
        "attention.head_count_kv": 8,
    }
    values = named("llama", hp)
    layer = GIB // 2 - 2**20
    tensors = [
        Tensor(f"blk.{i}.{part}.weight", (32 * 1024, layer // 34 // 1024 // 9), 8, layer // 9)
        for i in range(LAYERS)
        for part in ("q", "k", "v", "o", "up", "down", "gate", "n1", "n2")
    ]
    tensors = [t._replace(size=t.shape[0] // 32 * 34 * t.shape[1]) for t in tensors]
    raw = b"GGUF" + writer.pack("IQQ", 3, len(tensors), len(values) + 3)
    raw += b"".join(writer.text(k) + writer.value(v) for k, v in values.items())
    raw += _vocabulary(writer) + writer.infos(tensors)
    path.write_bytes(raw)
    os.truncate(path, 40 * GIB)
    return tensors


@pytest.mark.skipif(sys.platform == "win32", reason="a truncated file is not sparse on Windows")
def test_forty_gigabytes(tmp_path: Path) -> None:
    """Only the header is read: the vocabulary is walked, the weights are not touched."""
    path = tmp_path / "large.gguf"
    tensors = write_large(path)
    model = read_gguf(str(path))
    assert model.weights_bytes == sum(t.size for t in tensors)
    assert set(model.layer_weights) == {model.weights_bytes // LAYERS}
    assert model.spec.bytes_per_token() == LAYERS * 8 * 128 * 2 * 2
