"""Ask transformers' own memory handler: python -m tests.engines.transformers.record_memory WHEEL.

The class is taken from the wheel of transformers 5.24.0 and run without torch: it computes with
plain numbers once the element sizes are given. `memory_rows.jsonl` holds, a line each, the model,
the settings, the bytes of a sector and the sectors that fit.
"""

from __future__ import annotations

import itertools
import json
import sys
import zipfile
from math import ceil, lcm
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
ROWS = HERE / "memory_rows.jsonl"
_FILE = "transformers/generation/continuous_batching/cache.py"

_MODELS = {
    "llama-3.1-8b": (32, 0, 32, 8, 128, 4096, 128256),
    "qwen2.5-72b": (80, 0, 64, 8, 128, 8192, 152064),
    "gpt-oss-20b": (12, 12, 64, 8, 64, 2880, 201088),
}
"""Preset -> full layers, window layers, query heads, KV heads, head, hidden and vocabulary size."""


def _handler(wheel: str, memory: dict[str, int]) -> Any:
    """Return the class; `memory` holds what it is told to be free."""
    text = zipfile.ZipFile(wheel).read(_FILE).decode()
    text = text[text.index("class PagedAttentionMemoryHandler") :]
    names: dict[str, Any] = {
        "torch": SimpleNamespace(
            dtype=object, int32=SimpleNamespace(itemsize=4), float32=SimpleNamespace(itemsize=4)
        ),
        "ceil": ceil,
        "SLIDING_ATTENTION": "sliding_attention",
        "find_head_dim": lambda config: config.head_dim,
        "find_num_key_value_heads": lambda config: config.num_key_value_heads,
        "is_flash_attention_requested": lambda config: config.flash,
        "get_device_and_memory_breakdown": lambda: (None, memory["free"], 0, 0),
        "logger": SimpleNamespace(info=lambda *_: None),
    }
    exec(compile(f"from __future__ import annotations\n{text}", _FILE, "exec"), names)
    return names["PagedAttentionMemoryHandler"]


def main() -> int:
    """Write the rows."""
    memory: dict[str, int] = {}
    handler = _handler(sys.argv[1], memory)
    lines = []
    for name, tp, small, flash, sliced, doubled, free in itertools.product(
        _MODELS, (1, 2), (False, True), (True, False), (True, False), (None, True),
        (20 * 2**30, 55_555_555_555),
    ):  # fmt: skip
        full, windows, query, kv, head, hidden, vocab = _MODELS[name]
        page = 16 if small else 256
        page_bytes = 2 * (kv // tp) * head * 2 * page
        blocks = {"full_attention": full * page_bytes, "sliding_attention": windows * page_bytes}
        blocks = {kind: size for kind, size in blocks.items() if size}
        sector = lcm(*blocks.values(), 128)
        config = SimpleNamespace(
            num_attention_heads=query, num_key_value_heads=kv, head_dim=head, hidden_size=hidden,
            vocab_size=vocab, flash=flash,
        )  # fmt: skip
        settings = SimpleNamespace(
            # As resolve_continuous_batching_config leaves them.
            max_blocks_per_request=32 if flash and not windows else 0,
            fallback_max_blocks_per_request=32, return_logprobs=small,
            use_async_batching=flash if doubled is None else doubled, max_memory_percent=1.0,
            max_requests_per_batch=1024, num_blocks=None, max_batch_tokens=2048 if small else None,
        )  # fmt: skip
        memory["free"] = free
        made = handler(
            config, settings, SimpleNamespace(itemsize=2), sector,
            max(sector // size * page for size in blocks.values()),
            (full + windows) * page_bytes, list(blocks), sliced, tp,
        )  # fmt: skip
        args: dict[str, Any] = {
            "page_size": page, "available_memory": free, "hidden_size": hidden,
            "vocab_size": vocab, "logits_to_keep": sliced, "return_logprobs": small,
        }  # fmt: skip
        if not flash:
            args["attn_implementation"] = "sdpa"
        if doubled is not None:
            args["use_async_batching"] = doubled
        if small:
            args["max_batch_tokens"] = 2048
        sectors = made.infer_max_batch_tokens_and_num_sectors()[1]
        row = {"model": name, "tp": tp, "args": args, "sector": sector, "sectors": sectors}
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    ROWS.write_text("".join(lines), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
