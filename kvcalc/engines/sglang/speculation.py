"""Tokens proposed ahead, in SGLang's terms: steps, branches, tokens verified at once.

SGLang 0.5.23 arg_groups/speculative_hook.py; mem_cache/allocation_sizing.py
(get_alloc_len_per_decode); utils/common.py (spec_decode_alloc_len_per_request).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnsupportedError,
    WithoutEffectError,
)
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv, round_up
from kvcalc.engines.sglang.arguments import Arguments
from kvcalc.engines.sglang.version import RELEASES

__all__ = ["ALGORITHMS", "DEFAULT_REQUESTS", "Speculation", "speculation_of"]

DEFAULT_REQUESTS = 48
"""max_running_requests under speculation where nothing is said."""

_NGRAM_TOKENS = 12
_DFLASH_TOKENS = 16
_CHOSEN = {"LlamaForCausalLM": (5, 4, 8), "Grok1ForCausalLM": (5, 4, 8)}
_CHOSEN_ELSE = (3, 1, 4)
"""Steps, branches and tokens where none is given (speculative_hook.py,
_auto_choose_speculative_params; server_args.py before 0.5.13)."""
_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
ALGORITHMS = {
    "mtp": "EAGLE",
    "nextn": "EAGLE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
"""kvcalc's method -> SGLang's algorithm."""


_SINCE = {
    "DFLASH": (0, 5, 11),
    "FROZEN_KV_MTP": (0, 5, 12),
    "DSPARK": (0, 5, 16),
    "UNO": (0, 5, 20),
}
"""Algorithm -> the first release that has it (speculative/spec_info.py, SpeculativeAlgorithm)."""
_NOT_MODELLED = ("DSPARK", "FROZEN_KV_MTP", "UNO")


class Speculation(NamedTuple):
    """Tokens proposed ahead.

    Attributes:
        algorithm: SGLang's name for it.
        steps, topk, tokens: steps of the draft, branches, and tokens verified at once.
        layers: the layers that propose.
        own: they are the model's own, and no other model's.
    """

    algorithm: str
    steps: int
    topk: int
    tokens: int
    layers: tuple[LayerRun, ...] = ()
    own: bool = False

    @property
    def num_layers(self) -> int:
        """Layers that propose."""
        return sum(run.count for run in self.layers)

    def alloc_len(self, page: int) -> int:
        """Tokens that a request may be given in one step of decoding."""
        if page == 1 or self.topk == 1 or self.algorithm == "NGRAM":
            return max(self.steps * self.topk, self.tokens)
        pages = cdiv(page - 1 + self.steps, page)
        return max(pages * page * self.topk, self.tokens)

    def serial_alloc_len(self, page: int) -> int:
        """Tokens that a request may be given in one step where batches do not overlap."""
        steps, tokens = self.steps, self.tokens
        if page > 1:
            steps = round_up(steps + (page if self.topk > 1 else 0), page)
            tokens = round_up(tokens, page)
        return max(steps * self.topk, tokens)


def speculation_of(
    model: ModelSpec, deployment: Deployment, arguments: Arguments, notes: list[str]
) -> Speculation | None:
    """Return what a deployment proposes ahead; None where it proposes nothing.

    vLLM's num_speculative_tokens are SGLang's speculative_num_steps: with one branch, one token
    more is verified at once.

    Args:
        model: as SGLang runs it.
        deployment: as asked for.
        arguments: SGLang's own settings.
        notes: a line is added for numbers that SGLang chooses.

    Raises:
        InvalidValueError: a draft model that is a mere name.
        UnsupportedError: numbers that SGLang refuses, or a method without the layers that it needs.
    """
    method = deployment.speculative_method
    asked = arguments.word("speculative_algorithm")
    if method is not None and method not in ALGORITHMS:
        raise NotModelledError(
            f"speculation by {method} is not modelled for SGLang",
            hint=f"known: {', '.join(ALGORITHMS)}",
        )
    drafted = deployment.draft_model is not None
    told = method or ("draft_model" if drafted else "mtp")
    algorithm = asked or (ALGORITHMS[told] if _said(deployment) else None)
    if algorithm is None:
        _refuse_halves(arguments)
        return None
    _check_algorithm(algorithm, deployment.engine_version)
    algorithm = "EAGLE" if algorithm == "NEXTN" else algorithm
    if algorithm == "NGRAM":
        tokens = arguments.integer("speculative_num_draft_tokens") or _NGRAM_TOKENS
        steps = arguments.integer(
            "speculative_num_steps",
            deployment.num_speculative_tokens,
            called="num_speculative_tokens",
        )
        return Speculation(algorithm, steps or tokens, 1, tokens)
    if algorithm == "DFLASH":
        tokens = arguments.integer("speculative_num_draft_tokens") or _DFLASH_TOKENS
        layers, _ = _layers(model, deployment, "draft_model")
        return Speculation(algorithm, 1, 1, tokens, layers)
    steps, topk, tokens = _numbers(model, algorithm, deployment, arguments, notes)
    return Speculation(algorithm, steps, topk, tokens, *_layers(model, deployment, told))


def _numbers(
    model: ModelSpec,
    algorithm: str,
    deployment: Deployment,
    arguments: Arguments,
    notes: list[str],
) -> tuple[int, int, int]:
    """Return steps, branches and tokens: all three are given, or SGLang chooses them.

    speculative_hook.py, _handle_eagle_family: without steps the two others must not be there
    either; without branches it compares None with 1.
    """
    ours = deployment.num_speculative_tokens
    steps, topk, tokens = (arguments.integer(name) for name in _NUMBERS)
    if steps is None and ours is None:
        for name, value in (("speculative_eagle_topk", topk), (_NUMBERS[2], tokens)):
            if value is not None:
                raise _incomplete(f"{name} without speculative_num_steps", name)
        chosen = _CHOSEN.get(model.architecture or "", _CHOSEN_ELSE)
        chosen = _CHOSEN_ELSE if algorithm == "STANDALONE" else chosen
        notes.append(
            "no numbers of proposed tokens are given, and SGLang chooses them:"
            f" {chosen[0]} steps, {chosen[1]} branches, {chosen[2]} tokens verified at once"
        )
        return chosen
    if ours is None and topk is None:
        raise _incomplete("speculative_num_steps without speculative_eagle_topk", _NUMBERS[0])
    steps = arguments.integer(_NUMBERS[0], ours, called="num_speculative_tokens") or 1
    topk = topk or 1
    if topk == 1:
        return steps, topk, steps + 1
    if tokens is None:
        raise _incomplete("a tree of proposed tokens without their number", _NUMBERS[1])
    return steps, topk, tokens


def _incomplete(what: str, setting: str) -> UnsupportedError:
    return UnsupportedError(
        f"SGLang does not start with {what}",
        hint="give speculative_num_steps, speculative_eagle_topk and speculative_num_draft_tokens,"
        " or none of them",
        code="speculation-settings",
        setting=setting,
    )


def _check_algorithm(name: str, version: str | None) -> None:
    """Refuse an algorithm that a release has not, or that is not modelled.

    Raises:
        UnsupportedError: the release has it not.
        NotModelledError: what it keeps is not known.
    """
    at = RELEASES.read(version).number
    first = _SINCE.get(name, at)
    if at < first:
        raise UnsupportedError(
            f"SGLang {RELEASES.spelled(at)} does not propose tokens by {name}:"
            f" {RELEASES.spelled(first)} does",
            hint=f"choose another algorithm, or give --engine-version {RELEASES.spelled(first)}",
            setting="speculative_algorithm",
        )
    if name in _NOT_MODELLED:
        raise NotModelledError(
            f"what SGLang's speculative algorithm {name} keeps is not modelled",
            hint="leave speculation out to size the rest",
        )


def _refuse_halves(arguments: Arguments) -> None:
    """Refuse numbers of proposed tokens where nothing proposes any.

    Raises:
        UnsupportedError: naming the first.
    """
    for name in _NUMBERS:
        if arguments.integer(name) is not None:
            raise WithoutEffectError(
                f"{name} has no effect without speculative_algorithm",
                settings=(name,),
                hint="give speculative_algorithm, such as EAGLE",
            )


def _said(deployment: Deployment) -> bool:
    return (
        deployment.speculative_method is not None
        or deployment.num_speculative_tokens is not None
        or deployment.draft_model is not None
    )


def _layers(
    model: ModelSpec, deployment: Deployment, method: str
) -> tuple[tuple[LayerRun, ...], bool]:
    """Return the layers that propose, and whether they are the model's own.

    A draft's path that is the model's own means its own layers: SGLang fills it in by itself.
    """
    draft = deployment.draft_model
    same = isinstance(draft, ModelSpec) and draft.name == model.name
    if isinstance(draft, ModelSpec) and not (same and model.draft_layers):
        return draft.layers, False
    if draft is not None and not same:
        raise InvalidValueError(
            f"draft_model {draft!r:.40} is a name where the model itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    if (same or method in ("mtp", "nextn", "eagle")) and model.draft_layers:
        return model.draft_layers, True
    raise UnsupportedError(
        f"{model.name} has no layers that propose tokens",
        hint="name the draft model: --draft-model NAME, or Deployment.draft_model",
        code="speculation-settings",
        setting="speculative_method",
    )
