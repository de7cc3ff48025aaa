"""Attention backends and the page that they read.

SGLang 0.5.23 arg_groups/model_override_base.py (get_default_attn_backend) and
arg_groups/overrides.py (_mla_backend_page_constraints, _fa4_page_constraint, _page_size_default).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.sglang.arguments import Arguments
from kvcalc.engines.sglang.card import Card
from kvcalc.engines.sglang.families import (
    BLACKWELL_BACKENDS,
    LATENT_DEFAULT,
    PAGE_64_WITH_EXTRA_BUFFER,
    is_compressed,
    is_latent,
    is_minimax_sparse,
)
from kvcalc.engines.sglang.version import Release

__all__ = ["Asked", "Backends", "backends_of", "default_backend", "page_of"]

_DSA_PAGE = 64
_FA4_PAGE = 128
_COMPRESSED_PAGE = 256
_SPARSE_PAGE = 128
_SPARSE_BACKENDS = ("fa3", "fa4", "trtllm_mha")
_AMPERE = 8
_PAGES = {
    # Backend -> the pages that it reads, the one taken in place of any other, and whether it
    # counts where prefill alone uses it.
    "cutlass_mla": ((128,), 128, False),
    "flashmla": ((64,), 64, False),
    "trtllm_mla": ((32, 64), 64, False),
    "cutedsl_mla": ((32, 64), 64, True),
    "trtllm_mha": ((16, 32, 64, 128), 64, True),
    "hpc_ops": ((64,), 64, True),
}

_ALIASES = {"nsa": "dsa", "compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
_OTHER_PLATFORMS = ("aiter", "wave", "intel_amx", "ascend", "intel_xpu")
_NAMES = (
    *("triton", "torch_native", "flex_attention", "dsa", "qsa", "dsv4", "fa3", "fa4"),
    *("flashinfer", "llada2_cfg_flashinfer", "flashmla", "trtllm_mla", "cutedsl_mla"),
    *("trtllm_mha", "hpc_ops", "minicpm_flashattn", "minicpm_flashinfer"),
    *_ALIASES,
    *_OTHER_PLATFORMS,
)
_OLDER = ("cutlass_mla", "dual_chunk_flash_attn")
_LATENT_ALONE = ("cutlass_mla", "trtllm_mla", "cutedsl_mla")
_ROWS_ALONE = ("trtllm_mha", "hpc_ops")
_LATENT_DTYPES = ("auto", "bfloat16", "fp8_e4m3")


class Backends(NamedTuple):
    """Kernels of prefill and decode; DSA models have two more.

    `main` is attention_backend, the default of both: page rules read it even where both have one
    of their own.
    """

    prefill: str
    decode: str
    dsa_prefill: str = ""
    dsa_decode: str = ""
    main: str = ""

    def uses(self, name: str, *, prefill: bool = True) -> bool:
        """Whether a backend is in use; `prefill` False asks for more than prefill alone."""
        return name in (self.main, self.decode) or (prefill and name == self.prefill)


class Asked(NamedTuple):
    """What decides about backends besides the model and the card.

    Attributes:
        release: of SGLang.
        backend: the deployment's own attention_backend.
        word: KV cache dtype in SGLang's words.
        topk: branches of a tree of proposed tokens; 1 without speculation.
        tracked: states are tracked in extra slots, or no prefix is kept.
        shared_context: ranks share the tokens of a sequence.
    """

    release: Release
    backend: str | None
    word: str
    topk: int
    tracked: bool
    shared_context: bool


def backends_of(model: ModelSpec, card: Card, arguments: Arguments, asked: Asked) -> Backends:
    """Return the backends that serve a model.

    Args:
        model: as SGLang runs it.
        card: what it runs on.
        arguments: SGLang's own settings.
        asked: what else decides.

    Raises:
        UnknownNameError: a backend that SGLang has not.
        UnsupportedError: one that the card or the model has not.
    """
    main = _named(arguments, "attention_backend", asked, asked.backend)
    phases = [
        _named(arguments, f"{phase}_attention_backend", asked) for phase in ("prefill", "decode")
    ]
    if phases[0] is not None and phases[0] == phases[1]:
        main = phases[0]
    main = main or default_backend(model, card, asked.word, topk=asked.topk, tracked=asked.tracked)
    prefill, decode = (phase or main for phase in phases)
    if phases[0] is None and "cutedsl_mla" in (main, decode):
        prefill = "trtllm_mla"
    dsa = "trtllm" if card.since_blackwell else "flashmla_kv"
    if asked.word != "fp8_e4m3":
        dsa = ""
    if asked.shared_context:
        dsa = "trtllm"
    found = Backends(
        prefill,
        decode,
        arguments.word("dsa_prefill_backend") or dsa,
        arguments.word("dsa_decode_backend") or dsa,
        main,
    )
    _check(model, card, found, asked.word)
    return found


def _named(arguments: Arguments, setting: str, asked: Asked, ours: str | None = None) -> str | None:
    """Return a backend under its newest name; None where none is asked for."""
    name = arguments.word(setting, ours, called="attention_backend")
    if name is None:
        return None
    known = (*_NAMES, *(_OLDER if asked.release.has_cutlass else ()))
    if name not in known:
        raise UnknownNameError(f"SGLang {asked.release} attention backend", name, known)
    if name in _OTHER_PLATFORMS:
        raise UnsupportedError(
            f"SGLang's attention backend {name} does not run on CUDA cards",
            hint="leave it out",
            code="no-attention-backend",
            setting="attention_backend",
        )
    return _ALIASES.get(name, name)


def _check(model: ModelSpec, card: Card, found: Backends, word: str) -> None:
    """Refuse backends as SGLang does.

    arg_groups/overrides.py (_mla_kv_cache_dtype_checks, _cutedsl_prefill_backend_fill),
    arg_groups/attention_hook.py, layers/attention/attention_registry.py.
    """
    latent = is_latent(model)
    ampere = card.capability[0] == _AMPERE
    # Backend -> whether the card runs it.
    cards = {
        "trtllm_mla": card.blackwell or not found.uses("trtllm_mla", prefill=False),
        "cutedsl_mla": card.sm100,
        "trtllm_mha": card.hopper or card.blackwell,
        "hpc_ops": card.hopper,
        "fa3": card.hopper or (ampere and not latent),
    }
    for name in dict.fromkeys((found.prefill, found.decode)):
        if not cards.get(name, True):
            raise UnsupportedError(
                f"SGLang's attention backend {name} does not run {model.name} on {card.name}",
                hint="choose another, or leave it out",
                code="no-attention-backend",
                setting="attention_backend",
            )
        if name in (_ROWS_ALONE if latent else _LATENT_ALONE):
            kind = "models without MLA" if latent else "MLA models"
            raise UnsupportedError(
                f"SGLang's attention backend {name} serves {kind} alone",
                hint="choose another, or leave it out",
                code="no-attention-backend",
                setting="attention_backend",
            )
    for name in ("trtllm_mla", "cutedsl_mla"):
        if found.uses(name, prefill=False) and word not in _LATENT_DTYPES:
            raise UnsupportedError(
                f"SGLang's attention backend {name} reads no {word} cache",
                hint="choose --kv-cache-dtype fp8_e4m3 or auto",
                code="no-attention-backend",
                setting="attention_backend",
            )


def _asymmetric(model: ModelSpec) -> bool:
    """Whether K and V rows differ in width."""
    return any(
        getattr(cache, "v_head_dim", None) not in (None, cache.head_dim)
        for _, cache in model.caches()
        if hasattr(cache, "head_dim") and cache.rows()
    )


def default_backend(model: ModelSpec, card: Card, word: str, *, topk: int, tracked: bool) -> str:
    """Return the backend that serves a model where none is asked for.

    Args:
        model: as published.
        card: what it runs on.
        word: the KV cache dtype in SGLang's words.
        topk: branches of a tree of proposed tokens; 1 without speculation.
        tracked: states are tracked in extra slots, or no prefix is kept.
    """
    name = model.architecture or ""
    if is_latent(model):
        if card.hopper:
            return "fa3"
        if card.sm100:
            return "trtllm_mla" if name in LATENT_DEFAULT else "flashinfer"
        return "triton"
    if card.sm100:
        if is_minimax_sparse(model):
            return "trtllm_mha" if word == "fp8_e4m3" else "fa4"
        if name in PAGE_64_WITH_EXTRA_BUFFER and not tracked:
            return "triton"
        chosen = BLACKWELL_BACKENDS.get(name)
        if chosen is not None or topk == 1:
            return chosen or ("fa4" if _asymmetric(model) else "trtllm_mha")
    if card.hopper and topk == 1:
        return "fa3"
    return "triton" if "attention_sinks" in model.traits else "flashinfer"


def page_of(
    model: ModelSpec,
    card: Card,
    backends: Backends,
    asked: int | None,
    notes: list[str],
    *,
    topk: int = 1,
) -> int:
    """Return the tokens of a page: what is asked for, as the kernels let it be.

    Args:
        model: as published.
        card: what it runs on.
        backends: the kernels in use.
        asked: page_size; None for the default.
        notes: a line is added where the kernels have their way.
        topk: branches of a tree of proposed tokens.
    """
    if not any(cache.rows() for _, cache in model.caches()):
        return asked or 1  # states alone
    page, why = _read(model, card, backends, asked, topk)
    if page is None:
        return 1
    if why and page != asked:
        instead = "" if asked is None else f" instead of {asked}"
        notes.append(f"pages of {page} tokens{instead}: {why} reads no others")
    return page


def _read(
    model: ModelSpec, card: Card, backends: Backends, page: int | None, topk: int
) -> tuple[int | None, str]:
    """Return the page that the kernels read, and which of them decides."""
    if is_compressed(model):
        return _COMPRESSED_PAGE, "dsv4"
    why = ""
    if is_minimax_sparse(model):
        if page is None and backends.prefill in _SPARSE_BACKENDS and (card.hopper or card.sm100):
            page, why = _SPARSE_PAGE, "MiniMax's sparse attention"
    elif any(cache.kind == "indexer" for _, cache in model.caches()):
        page, why = _DSA_PAGE, "the sparse-attention indexer"
    for name, (pages, instead, prefill) in _PAGES.items():
        if backends.uses(name, prefill=prefill) and page not in pages:
            page, why = instead, name
    if backends.uses("fa4") and card.sm100 and not is_latent(model) and topk <= 1:
        page, why = _FA4_PAGE, "fa4"
    return page, why
