"""Tokens proposed ahead: the method, how many, and the layers that propose them.

vLLM 0.33 config/speculative.py (SpeculativeConfig) and config/vllm.py (num_lookahead_tokens,
async scheduling); models/llama_eagle.py for the shape of an EAGLE head. speculation.tsv says since
and until which release there is each method (SpeculativeMethod), and whether it keeps a cache:
`own` layers of the target, a `head` that is shaped as the target where none is named, a `draft`
that must be named, `nothing`, or what is not modelled (`unknown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.tables import read_table
from kvcalc.engines.served import Number, number_of, served_by
from kvcalc.engines.vllm.version import RELEASES, Release

__all__ = ["Speculation", "speculation_of", "starts_v0_for"]

_NO_MTP = ("MiniCPMV4_6ForConditionalGeneration",)
"""Wrappers of models with such layers that vLLM 0.33 does not hand on (hf_config_override)."""
_MTP_CLASSES = {
    "DeepseekV3ForCausalLM": "DeepSeekMTPModel",
    "DeepseekV32ForCausalLM": "DeepSeekMTPModel",
    "DeepseekV4ForCausalLM": "DeepSeekV4MTPModel",
    "Glm4MoeForCausalLM": "Glm4MoeMTPModel",
    "Glm4MoeLiteForCausalLM": "Glm4MoeLiteMTPModel",
    "GlmMoeDsaForCausalLM": "DeepSeekMTPModel",
    "MiMoForCausalLM": "MiMoMTPModel",
    "MiMoV2FlashForCausalLM": "MiMoV2MTPModel",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3MTP",
    "NemotronHForCausalLM": "NemotronHMTPModel",
    "Qwen3NextForCausalLM": "Qwen3NextMTP",
    "Qwen3_5ForCausalLM": "Qwen3_5MTP",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5MTP",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeMTP",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeMTP",
}
"""Architecture -> the class of the registry that runs its own layers (hf_config_override)."""

_SUFFIX_TOKENS = 24
"""suffix_decoding_max_tree_depth, which suffix decoding proposes where nothing is said."""
_V1_ALONE = (0, 10, 2)
"""engine/arg_utils.py, _is_v1_supported_oracle: before, what V1 had not was left to V0."""
_V1_DRAFTS_SINCE = (0, 15, 0)
"""engine/arg_utils.py: "Speculative decoding with draft model is not supported yet"."""
_V1_MEDUSA_SINCE = (0, 9, 0)
_FILLS_IN_SINCE = (0, 23, 0)
"""v1/core/sched/scheduler.py: DFlash has a query for the bonus token beside those it fills in."""


class Speculation(NamedTuple):
    """Tokens proposed ahead: by which method, how many, and the layers that propose them.

    Attributes:
        method: of SpeculativeConfig, `mtp` for each of its older names.
        tokens: proposed at once.
        layers: that propose them, and keep a cache.
        lookahead: slots held beyond the tokens of the target model (num_lookahead_tokens).
        unweighed: what proposes has weights that nothing tells.
    """

    method: str
    tokens: int
    layers: tuple[LayerRun, ...] = ()
    lookahead: int = 0
    unweighed: bool = False

    @property
    def reads_target(self) -> bool:
        """Whether what proposes reads the target's hidden states (use_eagle)."""
        return self.method in ("eagle", "eagle3", "mtp", "dflash", "dspark")

    @property
    def draws_blocks(self) -> bool:
        """Whether all tokens are drawn in one pass of their own."""
        return self.method in ("dflash", "dspark")


class _Method(NamedTuple):
    since: Number | None
    until: Number | None
    keeps: str


@cache
def _methods() -> Mapping[str, _Method]:
    return {
        name: _Method(number_of(since), number_of(until), keeps)
        for name, since, until, keeps in read_table("kvcalc.engines.vllm", "speculation.tsv")[1:]
    }


def speculation_of(model: ModelSpec, deployment: Deployment, wanted: Release) -> Speculation | None:
    """Return what a deployment proposes ahead; None where it proposes nothing.

    Raises:
        InvalidValueError: no number of tokens, or a draft model that is a mere name.
        UnknownNameError: a method that vLLM has not.
        UnsupportedError: a method that the release has not, or without the layers that it needs.
        NotModelledError: a method, or a draft, that is not known.
    """
    asked, tokens = deployment.speculative_method, deployment.num_speculative_tokens
    draft = deployment.draft_model
    if asked is None and tokens is None and draft is None:
        return None
    name = asked or ("mtp" if draft is None else "draft_model")
    newer = RELEASES.read(deployment.engine_version).newer
    keeps = _looked_up(name, wanted, newer=newer, typed=asked is not None)
    if keeps == "unknown":
        raise NotModelledError(
            f"what vLLM's speculative method {name} keeps is not modelled",
            hint="leave speculation out to size the rest",
        )
    method = "mtp" if keeps == "own" else name
    layers = _drafting(model, keeps, name, draft, wanted)
    if tokens is None and method == "suffix":
        tokens = _SUFFIX_TOKENS
    if tokens is None and method == "dspark":
        raise NotModelledError(
            "how many tokens dspark proposes stands in its draft's own config",
            hint="give num_speculative_tokens",
        )
    if tokens is None:
        raise InvalidValueError(
            "speculation without a number of tokens", hint="give num_speculative_tokens"
        )
    fills = method == "dflash" and wanted.number >= _FILLS_IN_SINCE
    return Speculation(
        method,
        tokens,
        layers,
        lookahead=0 if keeps == "nothing" else tokens + fills,
        unweighed=(not isinstance(draft, ModelSpec) and keeps in ("head", "draft"))
        or method in ("medusa", "mlp_speculator"),
    )


def _looked_up(name: str, wanted: Release, *, newer: bool, typed: bool) -> str:
    """Return what a method keeps.

    Raises:
        UnknownNameError, UnsupportedError: vLLM, or the release, has it not.
        NotModelledError: a release that is not known may have it.
    """
    known = _methods().get(name)
    if known is None:
        if newer:
            raise NotModelledError(
                f"speculative method {name!r:.40} is none that vLLM {wanted} has",
                hint="a newer release may: leave it out to size the rest",
            )
        raise UnknownNameError("speculative method", name, _methods())
    at = wanted.number
    if typed and known.since is not None and at < known.since:
        raise _lacks(wanted, name, f"{RELEASES.spelled(known.since)} does", known.since)
    if known.until is not None and at > known.until:
        last = RELEASES.spelled(known.until)
        raise _lacks(wanted, name, f"{last} was the last that did", known.until)
    if at >= _V1_ALONE and name == "mlp_speculator":
        raise _lacks(wanted, name, "0.10.1 was the last that ran it", (0, 10, 1))
    if _V1_ALONE <= at < _V1_DRAFTS_SINCE and name == "draft_model":
        raise _lacks(wanted, name, "0.15.0 does", _V1_DRAFTS_SINCE)
    return known.keeps


def _lacks(wanted: Release, name: str, which: str, better: Number) -> UnsupportedError:
    return UnsupportedError(
        f"vLLM {wanted} does not propose tokens by {name}: {which}",
        hint=f"choose another method, or give --engine-version {RELEASES.spelled(better)}",
        setting="speculative_method",
    )


def starts_v0_for(speculation: Speculation | None, at: Number) -> bool:
    """Whether a release that has V0 as well leaves a method to it."""
    if speculation is None or at >= _V1_ALONE:
        return False
    medusa = speculation.method == "medusa" and at < _V1_MEDUSA_SINCE
    return medusa or speculation.method in ("draft_model", "mlp_speculator")


def _drafting(
    model: ModelSpec, keeps: str, name: str, draft: str | ModelSpec | None, wanted: Release
) -> tuple[LayerRun, ...]:
    """Return the layers that propose tokens."""
    if keeps == "nothing":
        return ()
    if keeps == "own":
        return _own_layers(model, draft, wanted)
    if isinstance(draft, ModelSpec):
        return draft.layers
    if draft is not None:
        raise InvalidValueError(
            f"draft_model {draft!r:.40} is a name where the model itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    if keeps == "head":
        return (_eagle_head(model),)
    raise NotModelledError(
        f"the draft model of {name} is not known: its layers keep a cache, too",
        hint="name it, or its config.json: --draft-model (check: --model NAME=config.json)",
    )


def _own_layers(
    model: ModelSpec, draft: str | ModelSpec | None, wanted: Release
) -> tuple[LayerRun, ...]:
    instead = "choose ngram, eagle or a draft model"
    if not model.draft_layers and draft is not None:
        raise NotModelledError(
            f"a draft of {model.name}'s own kind is not modelled: what of the target's cache it"
            " reads is not known",
            hint=instead,
        )
    if model.architecture in _NO_MTP:
        raise UnsupportedError(
            f"vLLM proposes no tokens with {model.architecture}'s own layers", hint=instead
        )
    if not model.draft_layers:
        raise UnsupportedError("the model has no multi-token-prediction layers", hint=instead)
    name = _MTP_CLASSES.get(model.architecture or "")
    spans = served_by(__package__).get(name or "", ())
    if spans and spans[0].since is not None and wanted.number < spans[0].since:
        first = RELEASES.spelled(spans[0].since)
        raise UnsupportedError(
            f"vLLM {wanted} does not run the layers of {model.architecture} that propose tokens:"
            f" {first} does",
            hint=f"give --engine-version {first} or newer, or leave speculation out",
            setting="speculative_method",
        )
    return model.draft_layers


def _eagle_head(model: ModelSpec) -> LayerRun:
    """Return the one full-attention layer of an EAGLE head that is shaped as its target."""
    for _, cached in model.caches():
        if isinstance(cached, (FullAttention, SlidingWindow)):
            full = FullAttention(num_kv_heads=cached.num_kv_heads, head_dim=cached.head_dim)
            return LayerRun(count=1, caches=(full,))
    raise NotModelledError(
        "an EAGLE head's shape cannot be told from this model",
        hint="give the head itself: --draft-model NAME",
    )
