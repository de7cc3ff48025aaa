"""transformers asked what its cache object holds after a run over a sequence.

The model's own class runs on torch's meta device: shapes and dtypes are true, no weight is stored
and nothing is computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from kvcalc.measure.probe.children.answer import reply

__all__ = ["ask"]

_COUNTERS = ("cumulative_length", "_sliding_window_tensor", "_pending_beam_idx")
"""Tensors of a cache that count and hold no rows."""


def ask(question: dict[str, Any]) -> dict[str, Any]:
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


if __name__ == "__main__":
    reply(ask)
