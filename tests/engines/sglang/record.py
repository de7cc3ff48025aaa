"""Write the oracle's answers in compact form: python -m tests.engines.sglang.record.

A line is one pool that SGLang's own class built: its class, what it was built with, the bytes of
its tensors by attribute, and what it says of itself (`reported`, in bytes; `logged`, in GiB).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHARED = HERE.parents[3] / "shared"
ROWS = HERE / "rows.jsonl"

_DROPPED = ("device", "enable_memory_saver", "token_to_kv_pool_class")


def compact(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the tests need of a row."""
    held = row["held"]
    if "full" in held:
        held = {
            f"{part}.{name}": told for part, named in held.items() for name, told in named.items()
        }
    reported = row.get("get_kv_size_bytes")
    logged = row.get("logged_mem_usage_GiB", row.get("mem_usage_GiB"))
    return {
        "name": row["name"],
        "version": row["version"],
        "pool": row["pool"],
        "built_with": {k: v for k, v in row["kwargs"].items() if k not in _DROPPED},
        "bytes": row["bytes"],
        "held": {name: told["bytes"] for name, told in held.items()},
        **({} if reported is None else {"reported": _total(reported)}),
        **({} if logged is None else {"logged": logged}),
    }


def _total(reported: Any) -> int:
    return sum(map(int, reported)) if isinstance(reported, list) else int(reported)


def shared_rows() -> list[dict[str, Any]]:
    """Return the shared answers in compact form."""
    path = SHARED / "oracle" / "sglang_results.jsonl"
    return [compact(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    text = "".join(json.dumps(row) + "\n" for row in shared_rows())
    ROWS.write_text(text, encoding="utf-8")
