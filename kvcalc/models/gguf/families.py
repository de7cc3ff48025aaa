"""The rules that only one architecture, or a few close ones, need.

llama.cpp b11434, as in `rules`; each function names its file under `src/models/`.
"""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, FullAttention, Indexer, SlidingMla
from kvcalc.core.layers import Cache
from kvcalc.core.recurrent import ShortConv
from kvcalc.models.gguf import recurrent, windows
from kvcalc.models.gguf.attention import INDEX_DTYPE, Block, Heads, Latent, indexer, shared_kv
from kvcalc.models.gguf.fields import MAX_BLOCKS, Fields
from kvcalc.models.gguf.rules import (
    attend,
    latent,
    mixed,
    plain,
    required_windows,
    sparse_latent,
    unheaded,
)

__all__ = [
    "deepseek4",
    "deepseek32",
    "dflash",
    "dots3note",
    "exaone4",
    "falcon_h1",
    "gemma3n",
    "gemma4",
    "glm5_next",
    "glm_dsa",
    "granite_switch",
    "hrm_text",
    "hy_v4",
    "kimi",
    "lfm2",
    "llama4",
    "minimax_01",
    "minimax_m3",
    "nanbeige",
    "nemotron_h",
    "plamo2",
    "qwen4exp",
    "t5",
]

_LLAMA4_CHUNK = 8192
_EXAONE4_SLIDING_LAYERS = 64
_GEMMA3N_OWN_LAYERS = 20
_CSA_RATIO, _HCA_RATIO = 4, 128
_GLM_INDEXER_CONTEXT = 1_048_576  # GLM-5.2 on: shorter contexts are GLM-5 and 5.1
_GLM_INDEXER_LISTED = 78


def llama4(fields: Fields) -> list[Block]:
    """llama4.cpp: chunks of 8192 tokens whatever the file's window, unless that is 0."""
    heads = Heads(fields)
    name = "attention.sliding_window"
    off = fields.has(name) and not windows.optional_window(fields)
    chunks = windows.periodic(fields, 0 if off else _LLAMA4_CHUNK, 4)
    return [unheaded(heads.chunked(i, chunk)) for i, chunk in enumerate(chunks)]


def exaone4(fields: Fields) -> list[Block]:
    """exaone4.cpp: only the model of 64 layers slides."""
    if fields.main != _EXAONE4_SLIDING_LAYERS:
        return plain(fields)
    return required_windows(4, 4096)(fields)


def gemma3n(fields: Fields) -> list[Block]:
    """gemma3n.cpp: layers from 20 on keep nothing; the number stands in the code, not the file."""
    sizes = windows.periodic(fields, windows.required_window(fields), 5)
    return _sharing(fields, sizes, min(_GEMMA3N_OWN_LAYERS, fields.blocks))


def gemma4(fields: Fields) -> list[Block]:
    """gemma4.cpp: the last `shared_kv_layers` layers keep nothing."""
    sizes = windows.listed(fields, windows.required_window(fields))
    shared = fields.number("attention.shared_kv_layers", low=0, high=fields.blocks, default=0)
    return _sharing(fields, sizes, fields.blocks - shared)


def _sharing(fields: Fields, sizes: tuple[int, ...], own: int) -> list[Block]:
    """Return `own` layers with K and V; later ones read the last of these of their own kind.

    llama_model::create_memory takes the last of the owning layers for one that keeps all tokens
    and the last but one for a sliding one, and aborts where they are not.
    """
    blocks = attend(fields, sizes)
    for i in range(own, fields.blocks):
        source = own - (2 if sizes[i] else 1)
        if source < 0 or bool(sizes[source]) != bool(sizes[i]):
            raise fields.senseless(f"layer {i} is to share the K and V of a layer of another kind")
        blocks[i] = Block(shared_kv(source))
    return blocks


def deepseek32(fields: Fields) -> list[Block]:
    """deepseek32.cpp: an indexer in every layer but the draft layers."""
    return sparse_latent(fields, (True,) * fields.main)


def glm_dsa(fields: Fields) -> list[Block]:
    """glm-dsa.cpp: GLM-5 and 5.1 as deepseek32; later ones have an indexer in some layers.

    Without a list in the file those are the first two of 78 and every fourth after layer 2.
    """
    if fields.number("context_length") < _GLM_INDEXER_CONTEXT:
        default = (1,) * fields.main
    else:
        default = tuple(
            int(i < _GLM_INDEXER_LISTED and (i < 2 or (i - 2) % 4 == 0))  # noqa: PLR2004
            for i in range(fields.main)
        )
    return sparse_latent(fields, _owners(fields, default))


def hy_v4(fields: Fields) -> list[Block]:
    """hy-v4.cpp: an indexer in the layers that the file lists, unless top_k is 0 or absent."""
    _refuse_drafts(fields)
    if not fields.number("attention.indexer.top_k", low=0, default=0):
        if not Latent.described(fields):
            raise fields.missing("attention.key_length_mla")
        return latent(fields)
    return sparse_latent(fields, _owners(fields, None))


def _owners(fields: Fields, default: tuple[int, ...] | None) -> tuple[bool, ...]:
    types = fields.numbers("attention.indexer.types", fields.main, default=default)
    return tuple(type_ != 0 for type_ in types)


def dots3note(fields: Fields) -> list[Block]:
    """dots3note.cpp, llama_kv_cache_dsa_iswa: latents of two sizes, the smaller ones sliding.

    An indexer on a sliding layer would be as wide as that layer's latent.
    """
    window = windows.required_window(fields)
    sizes = windows.listed(fields, window)
    owners = fields.flags("attention.indexer.types", fields.blocks)
    latents, key = Latent(fields), indexer(fields)
    blocks = []
    for i, size in enumerate(sizes):
        own: Cache = latents.sliding(i, size) if size else latents.cache(i)
        if i < fields.main and owners[i]:
            narrow = fields.number("attention.key_length_swa", default=key.index_head_dim)
            wide = Indexer(index_head_dim=narrow, index_dtype=INDEX_DTYPE) if size else key
            blocks.append(Block((own, wide)))
        else:
            blocks.append(Block((own,)))
    return blocks


def minimax_m3(fields: Fields) -> list[Block]:
    """minimax-m3.cpp, llama_kv_cache_msa: K, V and an indexer's key behind the dense layers.

    llama.cpp gives the indexer's cache a V that nothing uses; it is the engine's, not the model's.
    """
    heads, key = Heads(fields), indexer(fields)
    dense = fields.number("leading_dense_block_count", low=0, default=0)
    return [
        Block((*heads.full(i), key)) if i >= dense else unheaded(heads.full(i))
        for i in range(fields.blocks)
    ]


def deepseek4(fields: Fields) -> list[Block]:
    """deepseek4.cpp, llama_kv_cache_dsv4: raw entries, compressed ones and an indexer's.

    Every layer slides, so `key_length_swa` holds for all entries where the file has it.
    """
    name = "attention.compress_ratios"
    if not fields.has(name):
        raise fields.missing(name)
    heads = Heads(fields)
    window = windows.required_window(fields)
    rope = fields.number("rope.dimension_count", low=0, high=heads.k_swa - 1, default=0)
    ratios = _ratios(fields, name)
    raw = SlidingMla(head_dim=heads.k_swa, qk_rope_head_dim=rope, sliding_window=window)
    kept: dict[int, tuple[Cache, ...]] = {0: (raw,)}
    for ratio in (_CSA_RATIO, _HCA_RATIO):
        overlap = ratio == _CSA_RATIO
        compressed = CompressedAttention(
            head_dim=heads.k_swa, qk_rope_head_dim=rope, compress_ratio=ratio, overlap=overlap
        )
        kept[ratio] = (raw, compressed)
    if _CSA_RATIO in ratios:
        key = Indexer(
            index_head_dim=fields.number("attention.indexer.key_length"),
            index_dtype=INDEX_DTYPE,
            compress_ratio=_CSA_RATIO,
            overlap=True,
        )
        kept[_CSA_RATIO] += (key,)
    for i, kv in enumerate(heads.kv):
        if kv != 1:
            raise fields.senseless(f"layer {i} keeps single entries for {kv} KV heads, not one")
    return [Block(kept[ratio]) for ratio in ratios]


def _ratios(fields: Fields, name: str) -> tuple[int, ...]:
    ratios = fields.leading(name, fields.blocks)
    for ratio in ratios:
        if ratio not in (0, _CSA_RATIO, _HCA_RATIO):
            raise fields.senseless(f"a compress ratio of {ratio}; llama.cpp knows 4 and 128")
    return ratios


def dflash(fields: Fields) -> list[Block]:
    """dflash.cpp: a draft model; over DeepSeek-V4 every layer slides, else those listed."""
    if fields.number("hyper_connection.count", low=0, default=0):
        return attend(fields, (windows.required_window(fields),) * fields.blocks)
    window = windows.optional_window(fields)
    return attend(fields, windows.listed(fields, window)) if window else plain(fields)


def lfm2(fields: Fields) -> list[Block]:
    """lfm2.cpp: with a window every attention layer slides, draft layers apart."""
    heads, window = Heads(fields), windows.optional_window(fields)
    return mixed(
        recurrent.without_kv_heads(fields),
        recurrent.short_conv(fields),
        lambda i: heads.sliding(i, window if i < fields.main else 0),
    )


def plamo2(fields: Fields) -> list[Block]:
    """plamo2.cpp: as Jamba, but the head dims are read though the first layer has no heads."""
    heads = Heads(fields, without_heads=True)
    states = recurrent.without_kv_heads(fields)
    return mixed(states, recurrent.mamba2(fields), heads.full)


def nemotron_h(fields: Fields) -> list[Block]:
    """nemotron-h.cpp: a state without KV heads and feed-forward; a layer with the latter: none."""
    name = "feed_forward_length"
    if not fields.has(name):
        raise fields.missing(name)
    feeds = fields.numbers(name, fields.blocks)
    heads, state = Heads(fields), recurrent.mamba2(fields)
    states = recurrent.without_kv_heads(fields)
    blocks = mixed(states, state, heads.full)
    return [Block((), "feed-forward") if feed else b for feed, b in zip(feeds, blocks, strict=True)]


def falcon_h1(fields: Fields) -> list[Block]:
    """falcon-h1.cpp: every layer has both, a state and K and V; draft layers K and V alone."""
    heads, state = Heads(fields), recurrent.mamba2(fields)
    return [
        Block((*heads.full(i), state) if i < fields.main else heads.full(i))
        for i in range(fields.blocks)
    ]


def kimi(fields: Fields) -> list[Block]:
    """kimi-linear.cpp, kimi-k3.cpp, bailingmoe3.cpp: delta attention, and latents between."""
    latents = Latent(fields)
    return mixed(
        recurrent.without_kv_heads(fields),
        recurrent.kimi_delta_attention(fields),
        lambda i: (latents.cache(i),),
    )


def glm5_next(fields: Fields) -> list[Block]:
    """glm5-next.cpp: as Kimi, with an indexer whose key, gate and pooled key lie side by side."""
    latents = Latent(fields)
    fields.number("attention.indexer.kpool", low=2)
    key = indexer(fields, times=3)
    owners = (*_owners(fields, (1,) * fields.main), *(True,) * fields.drafts)
    return mixed(
        recurrent.without_kv_heads(fields),
        recurrent.kimi_delta_attention(fields),
        lambda i: (latents.cache(i), key) if owners[i] else (latents.cache(i),),
    )


def qwen4exp(fields: Fields) -> list[Block]:
    """qwen4exp.cpp: as Qwen3-Next, with an indexer, and n-gram embeddings in one layer.

    An indexer that pools keeps raw and pooled key; the n-gram embeddings a convolution's window
    (llama_hparams::ple_conv_state) beside the layer's own state.
    """
    heads, state = Heads(fields), recurrent.gated_delta_net(fields)
    pools = any(fields.numbers("attention.compress_ratios", fields.blocks, default=(0,)))
    key = indexer(fields, times=2 if pools else 1)
    states = recurrent.by_interval(fields, 4)
    blocks = mixed(states, state, lambda i: (*heads.full(i), key))
    if fields.has("ple.layers"):
        layer, window = _ngrams(fields)
        if not states[layer]:
            raise fields.senseless(f"layer {layer} has n-gram embeddings and no state")
        blocks[layer] = Block((state, window), "with the window of the n-gram embeddings")
    return blocks


def _ngrams(fields: Fields) -> tuple[int, Cache]:
    layers = fields.leading("ple.layers", 1)
    if layers[0] >= fields.main:
        raise fields.senseless(f"n-gram embeddings in layer {layers[0]} of {fields.main}")
    channels = fields.number("ple.ngram_size", low=2)
    channels *= fields.number("hyper_connection.count") * fields.number("embedding_length")
    kernel = fields.number("ple.conv_kernel")
    return layers[0], ShortConv(hidden_size=channels, conv_kernel=kernel)


def minimax_01(fields: Fields) -> list[Block]:
    """minimax-01.cpp: lightning attention in all but every eighth layer."""
    heads = Heads(fields)
    return mixed(recurrent.by_interval(fields, 8), recurrent.lightning(heads), heads.full)


def granite_switch(fields: Fields) -> list[Block]:
    """granite-switch.cpp: one more layer of a single head routes tokens to adapters."""
    _refuse_drafts(fields)
    heads = Heads(fields)
    router = FullAttention(
        num_kv_heads=1, head_dim=heads.k, v_head_dim=None if heads.v == heads.k else heads.v
    )
    return [*plain(fields), Block((router,), "routes tokens to adapters")]


def nanbeige(fields: Fields) -> list[Block]:
    """nanbeige.cpp: the layers run `num_loops` times and keep K and V each time."""
    _refuse_drafts(fields)
    loops = fields.number("num_loops", high=MAX_BLOCKS // fields.blocks, default=1)
    return plain(fields) * loops


def hrm_text(fields: Fields) -> list[Block]:
    """hrm-text.cpp: block_count already counts the layers of every cycle."""
    stack, high, low = (
        fields.number(f"hrm.{name}") for name in ("layers_per_stack", "h_cycles", "l_cycles")
    )
    if stack * high * (low + 1) != fields.main:
        raise fields.senseless(f"{fields.main} layers are not {stack} x {high} x {low + 1}")
    return plain(fields)


def t5(fields: Fields) -> list[Block]:
    """t5.cpp: K and V of the decoder's own tokens; the encoder's output is kept as it is."""
    decoder = fields.number("decoder_block_count", default=fields.blocks)
    if decoder != fields.blocks:
        raise fields.senseless(
            f"a decoder of {decoder} layers beside an encoder of {fields.blocks}"
        )
    return plain(fields)


def _refuse_drafts(fields: Fields) -> None:
    if fields.drafts:
        raise fields.senseless(f"{fields.arch} has no draft layers in llama.cpp")
