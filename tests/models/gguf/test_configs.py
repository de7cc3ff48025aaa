"""One model, two files: a GGUF and a config.json describe the same layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc.models import load_model
from kvcalc.models.gguf import read_gguf

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"

PAIRS = {
    "llama-3.1-8b.meta": "meta-llama--Meta-Llama-3.1-8B",
    "gemma-3-27b.meta": "google--gemma-3-27b-it",
    "deepseek-v3.meta": "deepseek-ai--DeepSeek-V3",
    "qwen3-next-80b-a3b.meta": "Qwen--Qwen3-Next-80B-A3B-Instruct",
}


@pytest.mark.skipif(not CORPUS.is_dir(), reason="../shared is absent")
@pytest.mark.parametrize("gguf", PAIRS)
def test_same_layers(gguf: str) -> None:
    """Layer by layer the same caches, whichever file is read."""
    here = read_gguf(str(CORPUS / "gguf" / f"{gguf}.gguf")).spec
    there = load_model(str(CORPUS / "configs" / f"{PAIRS[gguf]}.json"))

    assert [(run.count, run.caches) for run in here.layers] == [
        (run.count, run.caches) for run in there.layers
    ]
    assert here.bytes_per_token("bfloat16") == there.bytes_per_token("bfloat16")
