"""What differs between vLLM's releases, of what changes a number or a line that is printed.

Every threshold was read in the sources of the releases that `COMPARED` lists; a comment names the
file and symbol. A release between two of them has the rules of the earlier one.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from kvcalc.core.plan import Check, Report
from kvcalc.engines.vllm.version import Release

__all__ = ["COMPARED", "Rules", "rules_of", "told_apart"]

COMPARED = (
    "0.8.5 0.9.2 0.10.0 0.10.1 0.10.2 0.11.0 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.1 0.16.0"
    " 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0"
    " 0.25.0 0.25.1 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0"
)
"""Releases whose sources the rules were read in; V0's also from 0.2 to 0.7, by their logs."""

Number = tuple[int, int, int]


class Rules(NamedTuple):
    """The rules of one release.

    Attributes:
        report: how blocks become the logged tokens and concurrency (core.plan.Report).
        check: what the start-up check asks for (core.plan.Check).
        spares_null_block: the start-up check leaves the null block out.
        checks_whole_model: the start-up check compares what all stages keep with the memory of one.
        override_in_check: num_gpu_blocks_override decides what the start-up check compares with.
        hybrid_manager: layers of several kinds share block ids; otherwise windows keep all.
        local_chunks: layers of chunks are freed; otherwise they keep every token.
        group_factor: groups are as large as the largest kind of layer where it is less than so many
            times the smallest, else as the smallest (None: always the smallest).
        uniform_type: layers with pages of several sizes make one group if they hold equal tokens.
        page_unification: blocks of several sizes make pages equal; otherwise pages must be.
        pads_pages: what is widened where no whole number of times fits: layers with K and V by
            head, MLA (0.24 to 0.28, whose backends index by the block's stride), states.
        full_fallback: MLA beside windows that cannot be made equal is kept whole.
        steps_in_flight: windows keep room for all steps in flight; otherwise for one.
        async_scheduling: steps overlap unless told otherwise.
        runs_ahead: an asynchronous pipeline has one step more than stages in flight: for no model,
            for those that are dense (dense), for all.
        ngram_overlaps, drafts_overlap: n-gram speculation, a draft model leave asynchronous
            scheduling on.
        retains_for_drafts: windows keep what several draft modules read again.
        window_block: tokens a block of a window layer: the cache's own, the smallest that its
            kernel reads, or the largest within the cache's own.
        state_blocks: blocks of a state: one; one every block of its own (length); by mode.
        prefix_caching: of hybrids: refused, off whatever is asked for, opt_in, or on.
        prefix_mode: how hybrids that can keep a state a block cache prefixes: with all of them
            (all), or with two (align).
        counts_proposed_in_all: proposed tokens take blocks under mode all too.
        kda_checkpoint, mamba2_checkpoint, gdn_checkpoint: such layers keep a block for a
            checkpoint.
        proposed_rows: convolutions that have rows for proposed tokens.
        state_dtype_is_cache_dtype: states are kept in the KV cache dtype.
        gdn_ssm_dtype: gated delta nets heed mamba_ssm_cache_dtype.
        nemotron_dtype: the state of a Nemotron-H whose config names none.
        aligns: how the block of hybrids is found: not at all, in steps of 16 (fixed), or of what
            the kernels read (kernels).
        mla_alignment: the least step of MLA hybrids.
        all_kernels_align: the found block is rounded up to what every backend reads.
        pads_v: K and V of different size are kept as if V were as large as K, in windows.
        heeds_mimo_dtype: MiMo-V2 heeds the KV cache dtype.
        widens_cohere: a window layer of Cohere2 sees its own token beside those of its window.
        checks_alibi: FlashAttention is asked whether it reads fp8 with biases by distance.
        sparse_splits_fp8_only: sparse MLA is split over ranks in fp8_ds_mla alone.
        wide_pages: FlashAttention 4 reads pages of 128 (heads of 256).
        hopper_fp8_page: FlashAttention 4 reads pages of 64 (heads of 512).
        mla_block: blocks of dense MLA: by the kernels, or as the older ones had them.
        large_cards: cards of 160 GiB take 16,384 tokens a step; gb10_is_small: GB10 takes 2,048.
        a100_is_small: an A100 of 80 GB takes 2,048.
        gpu_memory_utilization: the default.
        packing: how wide DeepSeek-V4's blocks are (assemble).
        pads_windows: DeepSeek-V4's window pages are widened to a compressed cache's.
        declares_step: cross-attention layers are given blocks for a whole step; otherwise for the
            encoder's length.
        images_in_one_step: a step is made large enough for an image that is read both ways.
        batch_within_length: a step has no more tokens than its sequences can have.
        sequences_within_step: sequences that nobody asked for are no more than a step's tokens.
        one_capacity_line: tokens and concurrency are logged in one line.
        plural_possessive, explains_cpu, docs_link: wording of the refusal.
        two_decimals: GiB are printed with two digits, always.
        estimates_length: a refusal names the length that fits.
    """

    report: Report
    check: Check
    spares_null_block: bool
    checks_whole_model: bool
    override_in_check: bool
    hybrid_manager: bool
    local_chunks: bool
    group_factor: float | None
    uniform_type: bool
    page_unification: bool
    pads_pages: tuple[str, ...]
    full_fallback: bool
    steps_in_flight: bool
    async_scheduling: bool
    runs_ahead: Literal["none", "dense", "all"]
    ngram_overlaps: bool
    drafts_overlap: bool
    retains_for_drafts: bool
    window_block: Literal["own", "smallest", "within"]
    state_blocks: Literal["one", "length", "modes"]
    prefix_caching: Literal["refused", "off", "opt_in", "on"]
    prefix_mode: Literal["all", "align"]
    counts_proposed_in_all: bool
    kda_checkpoint: bool
    mamba2_checkpoint: bool
    gdn_checkpoint: bool
    proposed_rows: tuple[str, ...]
    state_dtype_is_cache_dtype: bool
    gdn_ssm_dtype: bool
    nemotron_dtype: str
    aligns: Literal["no", "fixed", "kernels"]
    mla_alignment: int
    all_kernels_align: bool
    pads_v: bool
    heeds_mimo_dtype: bool
    widens_cohere: bool
    checks_alibi: bool
    sparse_splits_fp8_only: bool
    wide_pages: bool
    hopper_fp8_page: bool
    mla_block: Literal["kernels", "2025", "2024"]
    large_cards: bool
    gb10_is_small: bool
    a100_is_small: bool
    gpu_memory_utilization: float
    packing: Literal["products", "sums", "widest"]
    pads_windows: bool
    declares_step: bool
    images_in_one_step: bool
    batch_within_length: bool
    sequences_within_step: bool
    one_capacity_line: bool
    plural_possessive: bool
    explains_cpu: bool
    docs_link: bool
    two_decimals: bool
    estimates_length: bool

    def batches(self, pp: int, overlap: bool, *, dense: bool) -> int:
        """Steps that windows keep room for: config/vllm.py, max_concurrent_batches."""
        if not self.steps_in_flight:
            return 1
        if not overlap:
            return pp
        ahead = self.runs_ahead == "all" or (self.runs_ahead == "dense" and dense)
        return pp + 1 if ahead or pp == 1 else pp

    def group_size(self, counts: list[int]) -> int:
        """Layers a group, where layers of several kinds share block ids."""
        least, most = min(counts), max(counts)
        if self.group_factor is None:
            return least
        return most if most < least * self.group_factor else least


@cache
def rules_of(wanted: Release) -> Rules:
    """Return the rules of a release's V1 engine."""
    at = wanted.number

    def since(minor: int, patch: int = 0) -> bool:
        return at >= (0, minor, patch)

    return Rules(
        # v1/core/kv_cache_utils.py, _report_kv_cache_config
        report="concurrency" if since(20, 1) else "even_groups" if since(9) else "tokens",
        # check_enough_kv_cache_memory; _max_memory_usage_bytes_from_groups
        check="units" if since(19) else "first_group" if since(14) else "layers",
        spares_null_block=since(29),
        checks_whole_model=(0, 14, 0) <= at < (0, 17, 0),
        override_in_check=since(20, 1),
        # config/vllm.py, disable_hybrid_kv_cache_manager
        hybrid_manager=since(9),
        local_chunks=since(14) or (0, 10, 0) <= at < (0, 10, 1),
        # _get_kv_cache_groups_uniform_page_size
        group_factor=1.5 if since(18) else 1.25 if since(12) else None,
        uniform_type=since(11),
        page_unification=since(12),
        pads_pages=(
            ("heads", "state") if since(29) else ("heads", "mla", "state") if since(26)
            else ("heads", "mla") if since(24) else ()
        ),
        full_fallback=since(29),
        # SlidingWindowSpec.max_memory_usage_bytes; config/vllm.py, max_in_flight_tokens
        steps_in_flight=since(26),
        async_scheduling=since(14),
        runs_ahead="all" if since(29) else "dense" if since(25) else "none",
        ngram_overlaps=since(33),
        drafts_overlap=since(28),
        retains_for_drafts=since(28),
        # Attention.get_kv_cache_spec
        window_block="within" if since(30) else "smallest" if since(25) else "own",
        # MambaSpec.max_memory_usage_bytes; models/config.py, MambaModelConfig
        state_blocks="modes" if since(15) else "length" if since(11, 2) else "one",
        prefix_caching="on" if since(28) else "opt_in" if since(11, 2) else "off"
        if since(10, 2) else "refused",
        prefix_mode="align" if since(28) else "all",
        counts_proposed_in_all=since(22),
        # the layers' get_kv_cache_spec
        kda_checkpoint=since(29),
        mamba2_checkpoint=since(32),
        gdn_checkpoint=since(33),
        proposed_rows=(
            *(("gdn",) if since(10, 2) else ()),
            *(("mamba2",) if since(17, 1) else ()),
            *(("kda",) if since(27) else ()),
            *(("short_conv",) if since(29) else ()),
        ),
        # layers/mamba/mamba_utils.py, MambaStateDtypeCalculator
        state_dtype_is_cache_dtype=not since(10, 1),
        gdn_ssm_dtype=since(17, 1),
        nemotron_dtype="float32" if since(20) else "float16" if since(13) else "auto",
        # models/config.py, HybridAttentionMambaModelConfig; platforms/interface.py
        aligns="kernels" if since(20) else "fixed" if since(10) else "no",
        mla_alignment=128 if since(27) else 1 if since(20) else 64,
        all_kernels_align=since(32),
        # models/mimo_v2.py
        pads_v=not since(20),
        heeds_mimo_dtype=since(32),
        # models/commandr.py, Cohere2's sliding_window + 1
        widens_cohere=since(29),
        # v1/attention/backends
        checks_alibi=since(27),
        sparse_splits_fp8_only=since(29),
        wide_pages=since(29),
        hopper_fp8_page=since(31),
        mla_block="kernels" if since(18) else "2025" if since(10, 1) else "2024",
        # engine/arg_utils.py, get_batch_defaults
        large_cards=since(28),
        gb10_is_small=since(33),
        a100_is_small=since(9),
        declares_step=since(11, 2),
        images_in_one_step=since(22),
        batch_within_length=since(11, 2),
        sequences_within_step=since(10, 1),
        gpu_memory_utilization=0.92 if since(20) else 0.9,
        # _get_kv_cache_groups_uniform_groups; _get_packed_kv_cache_groups
        packing="widest" if since(27) else "sums" if since(23) else "products",
        pads_windows=not since(27),
        # texts
        one_capacity_line=since(28),
        plural_possessive=not since(22),
        explains_cpu=since(22),
        docs_link=since(13),
        two_decimals=not since(14),
        estimates_length=since(9),
    )  # fmt: skip


def told_apart(wanted: Release) -> str | None:
    """Say so where a line's patches have different rules and no patch was given."""
    if wanted.patch_given:
        return None
    mine = rules_of(wanted)
    for name in COMPARED.split():
        major, minor, patch = map(int, name.split("."))
        later = Release(major, minor, patch)
        if later.line == wanted.line and rules_of(later) != mine:
            return (
                f"{wanted.major}.{wanted.minor} is read as {wanted}: by {name} rules had changed"
                " that move a number (--engine-version with the patch)"
            )
    return None
