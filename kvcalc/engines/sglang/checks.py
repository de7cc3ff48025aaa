"""What SGLang refuses as it starts by its settings alone, once they are resolved.

SGLang 0.5.23 arg_groups/speculative_hook.py and validation_hook.py; server_args.py before 0.5.13.
"""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.units import format_count
from kvcalc.engines.sglang.settings import Settings
from kvcalc.engines.sglang.speculation import Speculation

__all__ = ["check_start"]

_TREES_OVER_PAGES = ("flashinfer", "fa3", "triton")
"""Backends that verify a tree of proposed tokens over pages; Triton since 0.5.13."""

_EAGLES = ("EAGLE", "EAGLE3", "STANDALONE")


def check_start(settings: Settings) -> None:
    """Refuse settings that exclude each other.

    Raises:
        UnsupportedError: naming the setting.
    """
    _pages(settings)
    if settings.speculation is not None:
        _speculation(settings.speculation, settings)


def _pages(settings: Settings) -> None:
    """Refuse a chunk of prompts that is no whole number of pages (check_server_args).

    Groups of DP attention share the chunk first.
    """
    chunk = settings.chunk // settings.attn_dp
    if chunk <= 0 or settings.role == "decode" or chunk % settings.page == 0:
        return
    shared = f" on each of {settings.attn_dp} groups" if settings.attn_dp > 1 else ""
    least = -(-chunk // settings.page) * settings.page * settings.attn_dp
    raise UnsupportedError(
        f"SGLang computes prompts in whole pages: {format_count(chunk)} tokens at once{shared} are"
        f" no multiple of {settings.page}",
        hint=f"set chunked_prefill_size {least}, or another page_size",
        code="chunk-not-whole-pages",
        setting="chunked_prefill_size",
    )


def _speculation(found: Speculation, settings: Settings) -> None:
    release, backends, name = settings.release, settings.backends, found.algorithm
    if settings.pp > 1 and not (
        release.drafts_over_stages and name == "EAGLE" and settings.role == "prefill"
    ):
        only = "; a prefill server's EAGLE alone" if release.drafts_over_stages else ""
        raise _refused(f"{name} over {settings.pp} pipeline stages{only}", "pp_size 1", "pp_size")
    if settings.attn_dp > 1 and name in ("STANDALONE", "NGRAM"):
        raise _refused(f"{name} with DP attention", "EAGLE, or no DP attention", "dp_size")
    if name in _EAGLES and found.topk > 1:
        if "trtllm_mha" in (backends.main, backends.prefill, backends.decode):
            raise _refused(
                f"attention backend trtllm_mha and {found.topk} branches",
                "speculative_eagle_topk 1",
                "speculative_eagle_topk",
            )
        able = _TREES_OVER_PAGES if release.overlaps_trees else _TREES_OVER_PAGES[:2]
        if settings.page > 1 and backends.main not in able:
            raise _refused(
                f"{found.topk} branches over pages of {settings.page} tokens with attention backend"
                f" {backends.main}",
                f"speculative_eagle_topk 1, page_size 1, or one of {', '.join(able)}",
                "speculative_eagle_topk",
            )


def _refused(what: str, instead: str, setting: str) -> UnsupportedError:
    return UnsupportedError(
        f"SGLang does not start with {what}",
        hint=f"use {instead}",
        code="speculation-settings",
        setting=setting,
    )
