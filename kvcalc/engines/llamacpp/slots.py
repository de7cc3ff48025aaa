"""How many sequences a server runs at once, and how many cells it asks for.

llama.cpp b11434 tools/server/server.cpp (slots), common/common.cpp (the context's parameters).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError, UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.args import Args
from kvcalc.engines.llamacpp.cells import Cells, Wanted, context
from kvcalc.engines.llamacpp.version import Build, Rules

__all__ = ["Asked", "cells_of", "fits", "trained"]

_DEFAULT_MAX_MODEL_LEN = 8192
_SERVER_SLOTS = 4
_MOST_SEQUENCES, _FEW_SEQUENCES = 256, 64  # LLAMA_MAX_SEQ
_FEW_UNTIL = 6150
"""About the last build that was read with the few (August 2025)."""
_N_BATCH, _N_UBATCH = 2048, 512


class Asked(NamedTuple):
    """What was asked for, and whose rules hold."""

    model: ModelSpec
    deployment: Deployment
    args: Args
    rules: Rules
    build: Build
    flash: bool


def cells_of(asked: Asked, notes: list[str]) -> Cells:
    """Return the cells of the server's context.

    Raises:
        UnsupportedError: what llama.cpp refuses, or a build that kvcalc does not know well enough.
        InvalidValueError, UsageError: settings that make no sense, or do not agree.
    """
    seqs, unified = _slots(asked, notes)
    rules, length = asked.rules, asked.deployment.max_model_len
    pad = rules.pad if asked.flash else rules.pad_plain
    size = _size(asked, seqs, notes, unified=unified)
    wanted = Wanted(
        n_ctx=size,
        n_seq_max=seqs,
        unified=unified,
        n_batch=asked.args.number("batch_size", _N_BATCH, low=1),
        n_ubatch=asked.args.number("ubatch_size", _N_UBATCH, low=0),
        pad=pad,
        streams=rules.streams,
        pads_first=rules.pads_first,
    )
    cells = context(wanted)
    per_slot = asked.args.number("kv_unified_per_slot", None, low=1)
    if per_slot is not None:
        cells = cells._replace(longest=min(cells.per_sequence, per_slot))
    if length not in (None, cells.longest):
        alone = context(wanted._replace(n_ctx=length or 0, n_seq_max=1))
        if alone.per_sequence != cells.longest:
            total = format_count((length or 0) * cells.streams)
            raise UsageError(
                f"max_model_len {format_count(length or 0)} and ctx_size {format_count(size)} do"
                f" not agree: a sequence gets {format_count(cells.longest)} cells",
                hint=f"give one of the two: max_model_len is one sequence (ctx_size {total}),"
                f" ctx_size the total (max_model_len {format_count(cells.longest)})",
            )
    share = size if unified else size // seqs
    if cells.per_sequence != share:
        notes.append(
            f"a sequence gets {format_count(cells.per_sequence)} cells, not"
            f" {format_count(share)}: they come in multiples of {pad}"
        )
    return cells


def _size(asked: Asked, seqs: int, notes: list[str], *, unified: bool) -> int:
    """Return the tokens of the whole context before they are rounded up (n_ctx)."""
    size = asked.args.number("ctx_size", None, low=0)
    per_slot = asked.args.number("kv_unified_per_slot", None, low=1)
    if per_slot is not None:
        if not unified:
            raise UsageError("kv_unified_per_slot is for one pool", hint="set kv_unified")
        size = seqs * per_slot if size is None else size  # 0 asks for the model's own length
    length = asked.deployment.max_model_len
    if size is None and length is not None:
        size = length if unified else length * seqs
    if size:
        return size
    train = trained(asked.model)
    if asked.model.max_position_embeddings is None:
        notes.append(f"the model names no maximum: {format_count(train)} tokens are taken")
    # common/fit.cpp: a context that was not given is the model's own for every stream.
    return train if unified or not fits(asked.args, asked.rules) else train * seqs


def trained(model: ModelSpec) -> int:
    """Return the tokens that a model was trained for; llama.cpp's n_ctx_train."""
    return model.max_position_embeddings or _DEFAULT_MAX_MODEL_LEN


def fits(asked: Args, rules: Rules) -> bool:
    """Whether what was not given is made to fit (fit.cpp gives up at once in split_mode tensor)."""
    return rules.fits and asked.flag("fit", default=True) and asked.text("split_mode") != "tensor"


def _slots(asked: Asked, notes: list[str]) -> tuple[int, bool]:
    """Return sequences at once, and whether they share one pool."""
    rules = asked.rules
    parallel = asked.args.number("parallel", None, low=-1)
    if parallel == 0:
        raise InvalidValueError("parallel 0 is no number of slots", hint="give 1 or more")
    parallel = None if parallel == -1 else parallel
    told = asked.deployment.max_num_seqs
    if None not in (parallel, told) and parallel != told:
        raise UsageError(
            f"max_num_seqs {told} and parallel {parallel} do not agree",
            hint="they are the same setting: give one of the two",
        )
    seqs = parallel or told
    automatic = seqs is None and rules.server_slots
    proposes = asked.deployment.speculative_method or asked.deployment.draft_model
    shared = asked.args.flag("kv_unified", default=False)
    if seqs == 1 and rules.one_is_four and not proposes and not shared:
        # tools/server/server.cpp until pull request 17997 (December 2025)
        notes.append(
            f"llama-server {asked.build.text} takes four slots that share one cache where one is"
            " asked for (kv_unified keeps it at one)"
        )
        return _SERVER_SLOTS, True
    unified = asked.args.flag("kv_unified", default=automatic)
    if automatic and not unified:
        raise UsageError(
            "llama-server lets its slots share one cache where it chooses their number",
            hint="give parallel, for a cache each",
        )
    if seqs is None:
        seqs = _SERVER_SLOTS if automatic else 1
    if automatic:
        notes.append(
            f"no number of slots was given: llama-server takes {seqs}, which share one cache"
        )
    most = _MOST_SEQUENCES if asked.build.number > _FEW_UNTIL else _FEW_SEQUENCES
    if seqs > most:
        raise UnsupportedError(
            f"{seqs} sequences: llama.cpp {asked.build.text} has at most {most}",
            hint="give fewer",
            code="sequences-over-limit",
            setting="parallel",
        )
    if not rules.streams:
        if asked.args.given("kv_unified") and not unified:
            raise UnsupportedError(
                f"llama.cpp {asked.build.text} has one pool for all sequences",
                hint="set kv_unified",
            )
        unified = True
    return seqs, unified
