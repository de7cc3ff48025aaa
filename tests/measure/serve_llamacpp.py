"""Serve a GGUF file with llama.cpp's own server, ask it for some tokens, print its metrics page.

Runs under any Python that has `xllamacpp` (it needs no kvcalc): `python serve_llamacpp.py MODEL
CASE-AS-JSON PAGE`. The log goes to stderr, as the server writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(model: str, case: str, page: str) -> None:
    """Serve, ask, and write the page."""
    import xllamacpp  # type: ignore[import-not-found,import-untyped,unused-ignore]  # not of this project

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.endpoint_metrics = True
    params.verbosity = 4  # as llama-server's own default shows it
    params.cpuparams.n_threads = 1
    params.port = 0
    asked = json.loads(case)
    for name in ("cache_type_k", "cache_type_v"):
        if name in asked:
            asked[name] = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{asked[name].upper()}")
    for name, value in asked.items():
        if not hasattr(params, name):
            raise SystemExit(f"no setting {name}")
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    server.handle_completions(
        {"prompt": "tokens of a byte each", "max_tokens": 40, "ignore_eos": True}
    )
    Path(page).write_text(str(server.handle_metrics()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
