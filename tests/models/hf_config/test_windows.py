"""Which layers have a window or a chunk, in every spelling that configs use."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import ChunkedAttention, SlidingWindow
from kvcalc.core.errors import InputError, UnknownNameError

from .builders import by_layer, letters, read

TYPES = ["sliding_attention", "full_attention"] * 4


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        # A window is every layer's, unless it is switched off or `layer_types` differ.
        ("MistralForCausalLM", {"sliding_window": 16}, "WWWWWWWW"),
        ("MistralForCausalLM", {"sliding_window": None, "model_type": "mistral"}, "FFFFFFFF"),
        ("MistralForCausalLM", {"model_type": "mistral"}, "WWWWWWWW"),
        ("LlamaForCausalLM", {"model_type": "llama"}, "FFFFFFFF"),
        ("MixtralForCausalLM", {"sliding_window": 0}, "FFFFFFFF"),
        ("Phi3ForCausalLM", {"sliding_window": -1}, "FFFFFFFF"),
        ("Starcoder2ForCausalLM", {"sliding_window": 16, "use_sliding_window": False}, "FFFFFFFF"),
        ("LlamaForCausalLM", {"sliding_window": 16, "layer_types": TYPES}, "WFWFWFWF"),
        # Qwen: only where the flag is there, and from a layer on.
        ("Qwen2ForCausalLM", {"sliding_window": 16, "max_window_layers": 2}, "FFFFFFFF"),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 16, "max_window_layers": 2, "use_sliding_window": True},
            "FFWWWWWW",
        ),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": 16, "use_sliding_window": True, "layer_types": TYPES},
            "WFWFWFWF",
        ),
        ("Qwen3ForCausalLM", {"sliding_window": 16, "use_sliding_window": True}, "FFFFFFFF"),
        ("Qwen3MoeForCausalLM", {"sliding_window": 16, "max_window_layers": 2}, "FFFFFFFF"),
        ("Qwen3MoeForCausalLM", {"sliding_window": 16, "use_sliding_window": True}, "WWWWWWWW"),
        (
            "Qwen2MoeForCausalLM",
            {"sliding_window": 16, "max_window_layers": 3, "use_sliding_window": True},
            "WFWFFFFF",
        ),
        # In turn, by an int, by letters, by the class's default.
        ("Gemma2ForCausalLM", {"model_type": "gemma2"}, "WFWFWFWF"),
        ("GptOssForCausalLM", {"model_type": "gpt_oss"}, "WFWFWFWF"),
        ("Gemma3ForCausalLM", {"model_type": "gemma3_text"}, "WWWWWFWW"),
        ("Gemma3ForCausalLM", {"sliding_window": 16, "sliding_window_pattern": 3}, "WWFWWFWW"),
        ("Gemma3ForCausalLM", {"sliding_window": 16, "_sliding_window_pattern": 1}, "FFFFFFFF"),
        ("Cohere2ForCausalLM", {"model_type": "cohere2"}, "WWWFWWWF"),
        ("Cohere2ForCausalLM", {"sliding_window": 16, "layer_types": TYPES}, "WFWFWFWF"),
        ("Cohere2ForCausalLM", {"sliding_window": None, "model_type": "cohere2"}, "FFFFFFFF"),
        ("Gemma3ForCausalLM", {"sliding_window": 16, "layer_types": TYPES}, "WFWFWFWF"),
        ("Olmo3ForCausalLM", {"model_type": "olmo3"}, "WWWFWWWF"),
        ("Exaone4ForCausalLM", {"model_type": "exaone4"}, "WWWFWWWF"),
        ("Exaone4ForCausalLM", {"sliding_window": None, "sliding_window_pattern": 4}, "FFFFFFFF"),
        ("Exaone4ForCausalLM", {"sliding_window": 16, "sliding_window_pattern": 2}, "WFWFWFWF"),
        (
            "Exaone4ForCausalLM",
            {"sliding_window": 16, "sliding_window_pattern": "LLG"},
            "WWFWWFWF",
        ),
        ("LagunaForCausalLM", {"sliding_window": 16}, "FFFFFFFF"),
        ("LagunaForCausalLM", {"sliding_window": 16, "layer_types": TYPES}, "WFWFWFWF"),
        # SmolLM3: the layers without rotary position.
        ("SmolLM3ForCausalLM", {"sliding_window": 16}, "FFFFFFFF"),
        ("SmolLM3ForCausalLM", {"sliding_window": 16, "use_sliding_window": True}, "FFFWFFFW"),
        (
            "SmolLM3ForCausalLM",
            {"sliding_window": 16, "use_sliding_window": True, "no_rope_layers": [0, 1] * 4},
            "WFWFWFWF",
        ),
        # Llama 4: the layers with it.
        ("Llama4ForCausalLM", {"attention_chunk_size": 32}, "CCCFCCCF"),
        ("Llama4ForCausalLM", {"attention_chunk_size": 32, "no_rope_layers": []}, "CCCFCCCF"),
        (
            "Llama4ForCausalLM",
            {"attention_chunk_size": 32, "no_rope_layer_interval": 2},
            "CFCFCFCF",
        ),
        (
            "Llama4ForCausalLM",
            {"attention_chunk_size": 32, "no_rope_layers": [0, 0, 1, 1] * 2},
            "FFCCFFCC",
        ),
        ("Llama4ForCausalLM", {"attention_chunk_size": None, "model_type": "llama4"}, "FFFFFFFF"),
        ("Llama4ForCausalLM", {"model_type": "llama4_text"}, "CCCFCCCF"),
        (
            "Llama4ForCausalLM",
            {
                "attention_chunk_size": 32,
                "layer_types": ["full_attention", "chunked_attention"] * 4,
            },
            "FCFCFCFC",
        ),
        # GPT-Neo: words, or patterns and how often they repeat.
        ("GPTNeoForCausalLM", {"attention_layers": ["local", "global"] * 4}, "WFWFWFWF"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 4]]}, "FWFWFWFW"),
        (
            "GPTNeoForCausalLM",
            {"attention_types": [[["global"], 2], [["local"], 6]]},
            "FFWWWWWW",
        ),
        ("Grok1ForCausalLM", {"sliding_window_size": -1}, "FFFFFFFF"),
    ],
)
def test_layers(architecture: str, keys: dict[str, Any], expected: str) -> None:
    """The layers, a letter each."""
    assert letters(read(architecture, **keys)) == expected


def test_a_window_keeps_what_its_class_means() -> None:
    """The size of a window or chunk is the config's; what an engine makes of it is its own."""
    assert by_layer(read("MistralForCausalLM", sliding_window=16))[0] == (
        SlidingWindow(num_kv_heads=2, head_dim=64, sliding_window=16),
    )
    assert by_layer(read("Cohere2ForCausalLM", sliding_window=16))[0] == (
        SlidingWindow(num_kv_heads=2, head_dim=64, sliding_window=16),
    )
    assert by_layer(read("Llama4ForCausalLM", attention_chunk_size=32))[0] == (
        ChunkedAttention(num_kv_heads=2, head_dim=64, attention_chunk_size=32),
    )


def test_a_class_default_is_said() -> None:
    """What the file leaves out is named in a note, with the class it is of."""
    mistral = read("MistralForCausalLM", "num_key_value_heads", model_type="mistral")
    assert set(mistral.notes) == {
        "num_key_value_heads is left out: 8 by default of MistralConfig",
        "sliding_window is left out: 4096 by default of MistralConfig",
        "max_position_embeddings is left out: 131072 by default of MistralConfig",
    }
    whole = read("MistralForCausalLM", sliding_window=16, max_position_embeddings=32)
    assert not whole.notes


@pytest.mark.parametrize(
    ("architecture", "keys", "key"),
    [
        ("LlamaForCausalLM", {"layer_types": TYPES}, "sliding_window is missing"),
        ("LlamaForCausalLM", {"layer_types": TYPES[:7]}, "layer_types has 7 entries"),
        ("LlamaForCausalLM", {"layer_types": "full_attention"}, "layer_types is"),
        ("LlamaForCausalLM", {"sliding_window": -2}, "sliding_window is -2"),
        ("LlamaForCausalLM", {"sliding_window": True}, "sliding_window is true"),
        ("LlamaForCausalLM", {"use_sliding_window": 1}, "use_sliding_window is 1"),
        ("Exaone4ForCausalLM", {"sliding_window": 16, "sliding_window_pattern": "LXG"}, "LXG"),
        ("Exaone4ForCausalLM", {"sliding_window": 16, "sliding_window_pattern": ""}, "pattern is"),
        ("Gemma3ForCausalLM", {"sliding_window": 16, "sliding_window_pattern": 0}, "pattern is 0"),
        ("Llama4ForCausalLM", {"no_rope_layers": [1, 1, 0]}, "no_rope_layers is"),
        ("SmolLM3ForCausalLM", {"use_sliding_window": True, "sliding_window": 9,
                                "no_rope_layers": [1]}, "no_rope_layers has"),
        ("GPTNeoForCausalLM", {}, "attention_types is '0 entries'"),
        ("GPTNeoForCausalLM", {"attention_types": [[["global"], 3]]}, "attention_types is"),
        ("GPTNeoForCausalLM", {"attention_types": [["global", 3]]}, "attention_types is"),
        ("GPTNeoForCausalLM", {"attention_types": [[["else"], 8]]}, "attention_types is"),
        ("GPTNeoForCausalLM", {"attention_layers": ["global"]}, "attention_layers has"),
        ("MiMoV2FlashForCausalLM", {}, "hybrid_layer_pattern is missing"),
        ("MiMoV2FlashForCausalLM", {"hybrid_layer_pattern": [2] * 8}, "hybrid_layer_pattern is 2"),
        ("Gemma4ForCausalLM", {"sliding_window": 0}, "sliding_window is missing"),
        ("LagunaForCausalLM", {"sliding_window": 0, "layer_types": TYPES}, "sliding_window is"),
    ],
)  # fmt: skip
def test_faults_name_their_key(architecture: str, keys: dict[str, Any], key: str) -> None:
    """What cannot be is refused with the key that says it."""
    with pytest.raises(InputError) as caught:
        read(architecture, **keys)

    assert key in str(caught.value)
    assert caught.value.where == "config.json"
    assert caught.value.hint


def test_an_unknown_layer_type_is_refused() -> None:
    """A word that no rule is known for names the known ones."""
    with pytest.raises(UnknownNameError, match="sparse_attention") as caught:
        read("LlamaForCausalLM", layer_types=["sparse_attention"] * 8)

    assert "full_attention" in caught.value.hint


def test_mimo_v2_has_heads_and_sizes_by_kind() -> None:
    """Window layers have KV heads of their own; V is narrower; one draft layer is a window's."""
    model = read(
        "MiMoV2FlashForCausalLM",
        hybrid_layer_pattern=[0, 1] * 4,
        sliding_window_size=16,
        v_head_dim=32,
        swa_num_key_value_heads=4,
        swa_head_dim=48,
        swa_v_head_dim=24,
    )
    local = SlidingWindow(num_kv_heads=4, head_dim=48, v_head_dim=24, sliding_window=16)

    assert letters(model) == "FWFWFWFW"
    assert by_layer(model)[1] == (local,)
    assert [run.caches for run in model.draft_layers] == [(local,)]


def test_step_counts_draft_layers_where_it_says_their_kind() -> None:
    """By `mtp_layer_types`, or by what `layer_types` has left; else a note instead."""
    types = [*TYPES, "sliding_attention", "full_attention"]
    keys = {"sliding_window": 16, "num_nextn_predict_layers": 2}
    padded = read("Step3p5ForCausalLM", layer_types=types, **keys)
    apart = read("Step3p5ForCausalLM", layer_types=TYPES, mtp_layer_types=types[8:], **keys)
    unsaid = read("Step3p5ForCausalLM", layer_types=TYPES, **keys)

    assert padded.layers == apart.layers == unsaid.layers
    assert [run.label for run in padded.draft_layers] == ["sliding_window", "full_attention"]
    assert apart.draft_layers == padded.draft_layers
    assert unsaid.draft_layers == ()
    assert "2 draft layers, of which the config does not say what they keep" in unsaid.notes
