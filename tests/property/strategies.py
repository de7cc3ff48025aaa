"""Values for the laws: hand-picked nasty ones beside generated ones, small enough to simulate."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.lengths import Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Check, Group, Pool, Rank, Rows
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.core.rules import (
    Chunk,
    Compressed,
    Fixed,
    Form,
    Grow,
    Ring,
    Rule,
    Slots,
    Stepped,
    Whole,
    Window,
)

SETTINGS = settings(max_examples=60, deadline=None, database=None)

# Around the sizes of blocks, windows and chunks; nothing, one, and a long way out.
NASTY_TOKENS = (
    0,
    1,
    2,
    15,
    16,
    17,
    31,
    32,
    33,
    127,
    128,
    129,
    1023,
    1024,
    1025,
    8191,
    8192,
    131_072,
)
tokens = st.one_of(st.sampled_from(NASTY_TOKENS), st.integers(0, 4000))
some_tokens = tokens.filter(bool)
short = st.integers(0, 90)
blocks = st.one_of(st.sampled_from((1, 2, 3, 16, 17, 32, 64, 256, 832)), st.integers(1, 40))
windows = st.one_of(st.sampled_from((1, 2, 15, 16, 17, 128, 1024)), st.integers(1, 60))
limits = st.none() | windows
ratios = st.sampled_from((1, 2, 3, 4, 7, 128))

grow = st.builds(Grow, block_tokens=blocks)
sliding = st.builds(Window, block_tokens=blocks, window=windows, ring=st.booleans())
chunked = st.builds(Chunk, block_tokens=blocks, chunk=windows, ring=st.booleans())
compressed = st.builds(Compressed, block_entries=blocks, ratio=ratios)
# Every token is kept, and no more read than those of a window or chunk.
kept = st.builds(Grow, block_tokens=blocks, limit=windows, restarts=st.booleans())

# Rules that hold blocks as the sequence goes on, without room for anything else.
paged = st.one_of(grow, kept, sliding, chunked, compressed)
# Rules with room for what is in flight or proposed, and those that do not look at the length.
roomy = st.one_of(
    st.builds(
        Grow,
        block_tokens=blocks,
        lookahead=st.integers(0, 20),
        limit=limits,
        restarts=st.booleans(),
    ),
    st.builds(
        Window,
        block_tokens=blocks,
        window=windows,
        in_flight=st.sampled_from((1, 2, 16, 512, 8192)),
        extra_blocks=st.integers(0, 2),
        ring=st.booleans(),
        restarts=st.booleans(),
    ),
    st.builds(
        Chunk,
        block_tokens=blocks,
        chunk=windows,
        in_flight=st.sampled_from((0, 1, 16, 8192)),
        ring=st.booleans(),
    ),
    st.builds(Compressed, block_entries=blocks, ratio=ratios, on_demand=st.just(True)),
)
fixed = st.one_of(
    st.builds(Slots, count=st.integers(1, 5)),
    st.builds(
        Fixed, block_tokens=blocks, tokens=windows, declared=st.none() | windows | some_tokens
    ),
)
# One state live, and one more kept at each of so many tokens.
by_length = st.builds(Slots, count=st.integers(1, 5), every=blocks)
# A region is a window's, a chunk's or a compressed cache's; no kind is two of them.
whole = st.one_of(
    st.builds(Whole, slots=tokens, limit=st.none() | windows, restarts=st.booleans()),
    st.builds(Whole, slots=tokens, ratio=st.sampled_from((1, 4))),
)
stepped = st.builds(
    Stepped,
    first=tokens,
    step=windows,
    rest=st.booleans(),
    slots=st.none() | tokens,
)
ring = st.builds(
    Ring,
    window=windows,
    step=blocks,
    first=st.none() | tokens,
    in_flight=windows,
    spare=st.sampled_from((0, 0, 1, 256)),
    restarts=st.booleans(),
)
form = st.builds(
    Form,
    block_tokens=blocks,
    since=tokens,
    until=st.none() | tokens,
    reach=st.none() | tokens,
    slots=st.none() | tokens,
)
rules: st.SearchStrategy[Rule] = st.one_of(
    paged, roomy, fixed, by_length, whole, stepped, ring, form
)

lengths = st.one_of(
    st.lists(tokens, max_size=8).map(Lengths.of),
    st.dictionaries(tokens, st.integers(0, 10**6), max_size=5).map(Lengths),
)
some_lengths = lengths.filter(lambda found: found.tokens > 0)


payloads = st.dictionaries(st.sampled_from(("k", "v")), st.integers(1, 300), min_size=1)
few = st.sampled_from((0, 0, 1, 2))


def _beside(draw: st.DrawFn, rule: Rule) -> Rule:
    """A rule that hands out as many units as another one, whatever the length."""
    match rule:
        case Grow() if rule.lookahead or draw(st.booleans()):
            return msgspec.structs.replace(rule, limit=draw(limits), restarts=draw(st.booleans()))
        case Grow(block_tokens=block):
            return _entries(draw, block)
        case Compressed(block_entries=entries, ratio=ratio, on_demand=False):
            if draw(st.booleans()):
                return Grow(block_tokens=entries * ratio, limit=draw(limits))
            return _entries(draw, entries * ratio)
    return rule


def _entries(draw: st.DrawFn, block: int) -> Compressed:
    """Entries at any rate that fills blocks of so many tokens."""
    rates = [ratio for ratio in (1, 2, 3, 4, 7, 128) if block % ratio == 0]
    ratio = draw(st.sampled_from(rates))
    return Compressed(block_entries=block // ratio, ratio=ratio)


@st.composite
def groups(draw: st.DrawFn, rule: st.SearchStrategy[Rule] = rules) -> Group:
    """A group with rows of one or two roles, perhaps in widened pages and with lookahead.

    Up to two further sets of rows may fill the same units at other rates.
    """
    chosen = draw(rule)
    payload = draw(payloads)
    ahead = draw(st.sampled_from((0, 0, 7)))
    also = tuple(Rows(rule=_beside(draw, chosen), payload=draw(payloads)) for _ in range(draw(few)))
    rows = (Rows(rule=chosen, payload=payload), *also)
    exact = sum(r.rule.slots_per_unit * r.slot_bytes for r in rows) + ahead
    return Group(
        name="group",
        layers=1,
        rule=chosen,
        payload=payload,
        unit_bytes=exact + draw(st.sampled_from((0, 0, 1, 4096))),
        lookahead_bytes=ahead,
        also=also,
        block_size=draw(st.sampled_from((None, 16, 832))),
    )


@st.composite
def plans(draw: st.DrawFn, rule: st.SearchStrategy[Rule] = rules, ranks: int = 3) -> CachePlan:
    """A plan of up to three ranks with up to two pools of up to three groups each."""
    found = []
    for i in range(draw(st.integers(1, ranks))):
        pools = []
        for j in range(draw(st.integers(1, 2))):
            members = tuple(draw(st.lists(groups(rule), min_size=1, max_size=3)))
            widest = max(g.unit_bytes for g in members)
            slack = draw(st.sampled_from((0, 0, 512)))
            pools.append(Pool(name=f"pool {j}", groups=members, unit_bytes=widest + slack))
        factor = draw(st.sampled_from((1, 1, 2, 4)))
        multiplicity = factor * draw(st.integers(1, 2))
        found.append(
            Rank(
                name=f"stage {i}",
                pools=tuple(pools),
                multiplicity=multiplicity,
                token_factor=factor,
            )
        )
    return CachePlan(
        engine="test",
        model="test",
        kv_cache_dtype="bfloat16",
        block_size=16,
        ranks=tuple(found),
        split="fungible",
        max_model_len=draw(some_tokens),
    )


checks: st.SearchStrategy[Check] = st.sampled_from(("units", "layers", "first_group"))


@st.composite
def checked_plans(draw: st.DrawFn) -> CachePlan:
    """A plan of one pool a rank that is checked at start-up in any of the known ways."""
    plan = draw(plans())
    ranks = []
    for rank in plan.ranks:
        first = msgspec.structs.replace(
            rank.pools[0],
            units=draw(st.sampled_from((None, None, 0, 1, 7, 1000))),
            reserved_units=draw(st.integers(0, 2)),
            check_unit_bytes=draw(st.none() | st.integers(1, 200_000)),
        )
        ranks.append(msgspec.structs.replace(rank, pools=(first,)))
    return msgspec.structs.replace(
        plan,
        ranks=tuple(ranks),
        split="one_pool",
        check=draw(checks),
        check_spares_reserved=draw(st.booleans()),
        check_fixed_units=draw(st.booleans()),
    )


heads = st.sampled_from((1, 2, 4, 8, 16, 24, 32))
dims = st.sampled_from((32, 64, 96, 128, 256))
kernels = st.sampled_from((1, 2, 4))
state_dtypes = st.sampled_from((None, "float32", "bfloat16"))

full_attention = st.builds(
    FullAttention,
    num_kv_heads=heads,
    head_dim=dims,
    v_head_dim=st.sampled_from((None, None, 0, 64, 128)),
)
window_attention = st.builds(
    SlidingWindow, num_kv_heads=heads, head_dim=dims, sliding_window=windows
)
caches_of_all_tokens: st.SearchStrategy[Cache] = st.one_of(
    full_attention,
    st.builds(
        Mla, kv_lora_rank=st.sampled_from((256, 512)), qk_rope_head_dim=st.sampled_from((0, 64))
    ),
    st.builds(Indexer, index_head_dim=st.just(128)),
)
other_caches: st.SearchStrategy[Cache] = st.one_of(
    window_attention,
    st.builds(ChunkedAttention, num_kv_heads=heads, head_dim=dims, attention_chunk_size=windows),
    st.builds(CrossAttention, num_kv_heads=heads, head_dim=dims, encoder_tokens=windows),
    st.builds(
        SlidingMla, head_dim=st.just(512), qk_rope_head_dim=st.just(64), sliding_window=windows
    ),
    st.builds(
        CompressedAttention,
        head_dim=st.just(512),
        qk_rope_head_dim=st.just(64),
        compress_ratio=ratios,
        overlap=st.booleans(),
    ),
    st.builds(Indexer, index_head_dim=st.just(128), compress_ratio=ratios, overlap=st.booleans()),
    st.just(SharedKv(source_layer=0)),
)
states: st.SearchStrategy[Cache] = st.one_of(
    st.builds(
        Mamba1,
        intermediate_size=st.sampled_from((64, 8192)),
        state_size=st.just(16),
        conv_kernel=kernels,
        state_dtype=state_dtypes,
    ),
    st.builds(
        Mamba2,
        num_heads=heads,
        head_dim=dims,
        state_size=st.just(128),
        n_groups=st.sampled_from((1, 2, 4, 8)),
        conv_kernel=kernels,
        state_dtype=state_dtypes,
    ),
    st.builds(
        GatedDeltaNet,
        num_k_heads=heads,
        num_v_heads=heads,
        head_k_dim=dims,
        head_v_dim=dims,
        conv_kernel=kernels,
        state_dtype=state_dtypes,
    ),
    st.builds(
        KimiDeltaAttention,
        num_heads=heads,
        head_dim=dims,
        conv_kernel=kernels,
        state_dtype=state_dtypes,
    ),
    st.builds(LightningAttention, num_heads=heads, head_dim=dims, state_dtype=state_dtypes),
    st.builds(RgLru, lru_width=st.just(2560), conv_kernel=kernels, state_dtype=state_dtypes),
    st.builds(ShortConv, hidden_size=st.just(2048), conv_kernel=kernels),
    st.builds(Rwkv, hidden_size=st.just(2560), head_size=st.just(64), state_dtype=state_dtypes),
)
caches: st.SearchStrategy[Cache] = st.one_of(caches_of_all_tokens, other_caches, states)


@st.composite
def models(draw: st.DrawFn, kinds: st.SearchStrategy[Cache] = caches) -> ModelSpec:
    """A model of up to five runs whose layers keep none, one or two caches."""
    runs = draw(
        st.lists(
            st.builds(
                LayerRun,
                count=st.integers(1, 7),
                caches=st.lists(kinds, max_size=2).map(tuple),
            ),
            min_size=1,
            max_size=5,
        )
    )
    return ModelSpec(
        name="test",
        num_hidden_layers=sum(run.count for run in runs),
        dtype=draw(st.sampled_from(("bfloat16", "float16", "float32"))),
        layers=tuple(runs),
    )
