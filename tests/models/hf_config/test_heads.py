"""How many KV heads of what size a layer has, and which layers keep nothing of their own."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, SharedKv, SlidingWindow
from kvcalc.core.errors import InputError, UnknownNameError, UnsupportedError

from .builders import by_layer, letters, read


def test_another_model_type_is_told() -> None:
    """`architectures` decides; a `model_type` of another family leaves a note."""
    notes = read("LlamaForCausalLM", model_type="gemma2").notes

    assert "read as LlamaForCausalLM, though model_type gemma2 is Gemma2ForCausalLM" in notes
    assert not any("read as" in n for n in read("LlamaForCausalLM", model_type="mistral").notes)


def test_heads_that_are_not_named_are_told() -> None:
    """Without a number of KV heads each query head has one, and a note says so."""
    notes = read("LlamaForCausalLM", "num_key_value_heads").notes

    assert "the config names no number of KV heads: as many as query heads (8)" in notes


@pytest.mark.parametrize(
    ("architecture", "keys", "heads", "size"),
    [
        ("LlamaForCausalLM", {}, 2, 64),
        ("LlamaForCausalLM", {"num_key_value_heads": None}, 8, 64),
        ("LlamaForCausalLM", {"head_dim": None, "hidden_size": 1024}, 2, 128),
        ("HunYuanDenseV1ForCausalLM", {"head_dim": None, "attention_head_dim": 32}, 2, 32),
        ("QWenLMHeadModel", {"head_dim": None, "kv_channels": 16}, 2, 16),
        ("Step3TextForCausalLM", {"num_key_value_heads": None, "num_attention_groups": 1}, 1, 64),
        ("ChatGLMModel", {"multi_query_group_num": 4}, 8, 64),
        ("ChatGLMModel", {"multi_query_attention": True, "multi_query_group_num": 4}, 4, 64),
        ("ChatGLMModel", {"multi_query_attention": True}, 1, 64),
        ("FalconForCausalLM", {}, 1, 64),
        ("FalconForCausalLM", {"multi_query": False, "num_kv_heads": 4}, 8, 64),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 4}, 4, 64),
        ("FalconForCausalLM", {"new_decoder_architecture": True}, 8, 64),
        ("GPTBigCodeForCausalLM", {}, 1, 64),
        ("GPTBigCodeForCausalLM", {"multi_query": False}, 8, 64),
        ("DbrxForCausalLM", {"attn_config": {"kv_n_heads": 4}}, 4, 64),
        ("DbrxForCausalLM", {"attn_config": {}}, 1, 64),
        ("MPTForCausalLM", {}, 8, 64),
        ("MPTForCausalLM", {"attn_config": {"attn_type": "multihead_attention"}}, 8, 64),
        ("MPTForCausalLM", {"attn_config": {"attn_type": "multiquery_attention"}}, 1, 64),
        (
            "MPTForCausalLM",
            {"attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 4}},
            4,
            64,
        ),
    ],
)
def test_heads_and_their_size(
    architecture: str, keys: dict[str, Any], heads: int, size: int
) -> None:
    """Every spelling, and what a class does without one."""
    full = FullAttention(num_kv_heads=heads, head_dim=size)

    assert by_layer(read(architecture, **keys)) == [(full,)] * 8


def block(**attention: Any) -> dict[str, Any]:
    return {"attention": attention, "ffn": {"no_op": False}}


def test_nas_blocks_have_heads_of_their_own_or_none() -> None:
    """A group size makes KV heads; a left-out or linear block keeps nothing and says why."""
    blocks = [
        *[block(n_heads_in_group=4, no_op=False)] * 2,
        block(n_heads_in_group=8),
        block(n_heads_in_group=None, no_op=True),
        block(n_heads_in_group=None, replace_with_linear=True),
        *[block(n_heads_in_group=4)] * 3,
    ]
    model = read("DeciLMForCausalLM", block_configs=blocks)

    assert letters(model) == "FFF--FFF"
    heads = [c.num_kv_heads for _, c in model.caches() if isinstance(c, FullAttention)]
    assert heads == [2, 1, 2]
    assert model.layers[2].note == "attention is left out"


def test_heads_by_layer() -> None:
    """OpenELM and DeciLM-7B list the KV heads of each layer."""
    groups = [2, 2, 4, 4, 8, 8, 1, 1]
    for architecture, key in (
        ("OpenELMForCausalLM", "num_kv_heads"),
        ("DeciLMForCausalLM", "num_key_value_heads_per_layer"),
    ):
        model = read(architecture, **{key: groups})
        kept = [caches[0] for caches in by_layer(model)]
        assert kept == [FullAttention(num_kv_heads=n, head_dim=64) for n in groups]


def test_cross_layer_attention_counts_with_its_flag_only() -> None:
    """Hunyuan's factor without `use_cla` means nothing; with it layers read the last that keeps."""
    assert letters(read("HunYuanMoEV1ForCausalLM", cla_share_factor=2)) == "FFFFFFFF"
    model = read("HunYuanForCausalLM", cla_share_factor=3, use_cla=True)
    assert letters(model) == "FSSFSSFS"
    assert by_layer(model)[5] == (SharedKv(source_layer=3),)


def test_gemma_3n_shares_by_kind() -> None:
    """The last layers read the last layer of their own kind that keeps something."""
    model = read("Gemma3nForCausalLM", sliding_window=16, num_kv_shared_layers=2)
    assert letters(model) == "WWWWFWSS"
    assert by_layer(model)[6] == (SharedKv(source_layer=5),)
    pair = ["sliding_attention", "full_attention"]
    model = read(
        "Gemma3nForCausalLM", sliding_window=16, num_kv_shared_layers=4, layer_types=pair * 4
    )
    assert letters(model) == "WFWFSSSS"
    sources = [SharedKv(source_layer=i) for i in (2, 3, 2, 3)]
    assert [caches[0] for caches in by_layer(model)[4:]] == sources


def test_gemma_4_has_two_shapes() -> None:
    """Full layers are wider, with their own KV heads where K is V; the last layer is full."""
    keys = {"sliding_window": 16, "global_head_dim": 128, "num_global_key_value_heads": 1}
    model = read("Gemma4ForCausalLM", attention_k_eq_v=True, **keys)
    assert letters(model) == "WWWWWFWF"
    assert by_layer(model)[0] == (SlidingWindow(num_kv_heads=2, head_dim=64, sliding_window=16),)
    assert by_layer(model)[5] == (FullAttention(num_kv_heads=1, head_dim=128),)
    plain = read("Gemma4ForCausalLM", num_kv_shared_layers=2, **keys)
    assert letters(plain) == "WWWWWFSS"
    assert by_layer(plain)[5] == (FullAttention(num_kv_heads=2, head_dim=128),)


def test_draft_layers_are_kept_apart() -> None:
    """Multi-token-prediction layers are counted beside the model's own."""
    model = read("Glm4MoeForCausalLM", num_nextn_predict_layers=1)
    assert model.num_hidden_layers == 8
    assert [run.caches for run in model.draft_layers] == [model.layers[0].caches]
    assert not read("Glm4MoeForCausalLM", num_nextn_predict_layers=0).draft_layers


@pytest.mark.parametrize(
    ("architecture", "without", "keys", "message"),
    [
        ("LlamaForCausalLM", ["num_hidden_layers"], {"model_type": "llama"}, "num_hidden_layers"),
        ("LlamaForCausalLM", ["num_attention_heads", "head_dim"], {}, "num_attention_heads"),
        ("LlamaForCausalLM", ["hidden_size", "head_dim"], {"model_type": "llama"}, "hidden_size"),
        ("LlamaForCausalLM", ["head_dim"], {"hidden_size": 513}, "hidden_size 513"),
        ("LlamaForCausalLM", [], {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ("LlamaForCausalLM", [], {"num_hidden_layers": 100_000}, "num_hidden_layers is 100000"),
        ("DbrxForCausalLM", [], {}, "attn_config is missing"),
        ("DbrxForCausalLM", [], {"attn_config": {"kv_n_heads": 0}}, "attn_config.kv_n_heads is 0"),
        ("DbrxForCausalLM", [], {"attn_config": [1]}, "attn_config is"),
        (
            "MPTForCausalLM",
            [],
            {"attn_config": {"attn_type": "grouped_query_attention"}},
            "attn_config.kv_n_heads is missing",
        ),
        ("OpenELMForCausalLM", [], {}, "num_kv_heads is missing"),
        ("OpenELMForCausalLM", [], {"num_kv_heads": [1]}, "num_kv_heads has"),
        ("DeciLMForCausalLM", [], {}, "block_configs"),
        ("DeciLMForCausalLM", [], {"block_configs": [{}] * 7}, "block_configs has 7 entries"),
        ("DeciLMForCausalLM", [], {"block_configs": [3] * 8}, "block_configs is 3"),
        ("DeciLMForCausalLM", [], {"block_configs": [{}] * 8}, "block_configs[0].attention is"),
        (
            "DeciLMForCausalLM",
            [],
            {"block_configs": [block(n_heads_in_group=3)] * 8},
            "block_configs[0].attention.n_heads_in_group is 3",
        ),
        (
            "Gemma3nForCausalLM",
            [],
            {"sliding_window": 16, "num_kv_shared_layers": 5},
            "num_kv_shared_layers is 5",
        ),
        ("HunYuanForCausalLM", [], {"use_cla": True}, "cla_share_factor is missing"),
    ],
)
def test_faults_name_their_key(
    architecture: str, without: list[str], keys: dict[str, Any], message: str
) -> None:
    """What is missing or cannot be is refused with the key that says it."""
    with pytest.raises(InputError) as caught:
        read(architecture, *without, **keys)

    assert message in str(caught.value)
    assert caught.value.where == "config.json"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("HunYuanForCausalLM", {"use_mla": True}, "use_mla"),
        ("Grok1ForCausalLM", {"sliding_window_size": 128}, "sliding_window_size"),
        (
            "DeciLMForCausalLM",
            {"block_configs": [block(n_heads_in_group=4, window_length=64)] * 8},
            "window_length",
        ),
    ],
)
def test_what_no_rule_is_known_for_is_refused(
    architecture: str, keys: dict[str, Any], message: str
) -> None:
    """A switch whose effect is not known is not guessed at."""
    with pytest.raises(UnsupportedError, match=message) as caught:
        read(architecture, **keys)

    assert caught.value.where == "config.json"
    assert caught.value.hint


def test_an_unknown_attention_type_is_refused() -> None:
    """MPT's types are three."""
    with pytest.raises(UnknownNameError, match="multi_head"):
        read("MPTForCausalLM", attn_config={"attn_type": "multi_head"})
