"""Models with an encoder or with something beside K and V, and models around a language model."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import CrossAttention, FullAttention
from kvcalc.core.errors import InputError
from kvcalc.models.hf_config import read_config

from .builders import SMALL, by_layer, letters, read

WHISPER = {
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "encoder_layers": 6,
    "d_model": 64,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
T5 = {"num_layers": 3, "num_heads": 4, "d_kv": 16, "d_model": 64}


def test_a_decoder_keeps_its_own_tokens_and_the_encoders() -> None:
    """Whisper's layers are the decoder's, with 1,500 encoder rows in each."""
    model = read("WhisperForConditionalGeneration", **WHISPER)
    own = FullAttention(num_kv_heads=4, head_dim=16)
    cross = CrossAttention(num_kv_heads=4, head_dim=16, encoder_tokens=1500)

    assert by_layer(model) == [(own, cross)] * 2
    assert model.max_position_embeddings == 448
    assert model.notes == ("cross-attention is counted for an input of 1500 encoder tokens",)


def test_bart_and_t5_have_no_longest_input_of_their_own() -> None:
    """The length that the encoder's rows are counted for is said."""
    sizes = {k: v for k, v in WHISPER.items() if not k.startswith("max_")}
    bart = read("BartModel", **sizes, max_position_embeddings=1024)
    t5 = read("T5ForConditionalGeneration", **T5)
    shorter = read("T5ForConditionalGeneration", **T5, num_decoder_layers=1, n_positions=64)

    assert "cross-attention is counted for an input of 512 encoder tokens" in t5.notes
    assert letters(t5) == "XXX"
    assert letters(shorter) == "X"
    assert letters(bart) == "XX"
    assert "cross-attention is counted for an input of 1024 encoder tokens" in bart.notes


def test_images_keep_nothing_for_text_alone() -> None:
    """Llama 3.2 Vision's image layers are empty, and a note counts them."""
    model = read("MllamaForConditionalGeneration", cross_attention_layers=[3, 7])

    assert letters(model) == "FFF-FFF-"
    assert model.layers[1].note == "attends to images: nothing for text alone"
    assert "2 layers attend to images" in model.notes[0]


def test_yuan_keeps_two_hidden_vectors() -> None:
    """The filter before attention looks at the last two tokens."""
    model = read("YuanForCausalLM")
    ((full, memory),) = set(by_layer(model))

    assert full == FullAttention(num_kv_heads=2, head_dim=64)
    assert [state.shape for state in memory.states()] == [(2, 512)]


@pytest.mark.parametrize(
    "architecture", ["Qwen2ForCausalLM", "LlamaForCausalLM", "Gemma3TextModel", "Gemma4ForCausalLM"]
)
def test_an_encoder_keeps_nothing(architecture: str) -> None:
    """Attention that is not causal has no cache."""
    model = read(architecture, is_causal=False)

    assert letters(model) == "--------"
    assert "is_causal is false" in model.notes[0]


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("WhisperForConditionalGeneration", {}, "decoder_layers is missing"),
        ("WhisperForConditionalGeneration", WHISPER | {"d_model": 65}, "d_model 65"),
        ("T5ForConditionalGeneration", {}, "num_decoder_layers (or num_layers) is missing"),
        ("MllamaForConditionalGeneration", {}, "cross_attention_layers is missing"),
        ("MllamaForConditionalGeneration", {"cross_attention_layers": [8]}, "cross_attention_"),
    ],
)
def test_faults_name_their_key(architecture: str, keys: dict[str, Any], message: str) -> None:
    """What is missing or cannot be is refused with the key that says it."""
    with pytest.raises(InputError) as caught:
        read(architecture, **keys)

    assert message in str(caught.value)
    assert caught.value.hint


def nested(architecture: str, key: str, part: dict[str, Any], **outer: Any) -> Any:
    config = {"architectures": [architecture], key: part, **outer}
    return read_config(config, "config.json", "nested")


@pytest.mark.parametrize(
    ("architecture", "key", "part", "expected"),
    [
        ("InternVLChatModel", "llm_config", {"architectures": ["InternLM2ForCausalLM"]}, "F"),
        (
            "InternVLChatModel",
            "llm_config",
            {"architectures": ["Phi3ForCausalLM"], "sliding_window": 16},
            "W",
        ),
        ("LlavaLlamaModel", "llm_cfg", {"architectures": ["LlamaForCausalLM"]}, "F"),
        ("LlavaForConditionalGeneration", "text_config", {"model_type": "mistral"}, "W"),
        ("Cohere2VisionForConditionalGeneration", "text_config", {"model_type": "cohere2"}, "WWWF"),
        ("Mistral3ForConditionalGeneration", "text_config", {"model_type": "ministral3"}, "F"),
    ],
)
def test_a_language_model_inside_is_read_by_its_own_family(
    architecture: str, key: str, part: dict[str, Any], expected: str
) -> None:
    """By its class, else by its model type."""
    model = nested(architecture, key, {**SMALL, **part})

    assert letters(model) == (expected * 8)[:8]
    assert model.architecture == architecture
    assert model.dtype == "bfloat16"


def test_a_nested_part_leaves_out_what_its_class_supplies() -> None:
    """LLaVA-1.5's text_config has no sizes: they are LlamaConfig's; an outer key does not count."""
    model = nested(
        "LlavaForConditionalGeneration",
        "text_config",
        {"model_type": "llama", "torch_dtype": "float16"},
        num_hidden_layers=3,
    )

    assert model.num_hidden_layers == 32
    assert by_layer(model)[0] == (FullAttention(num_kv_heads=32, head_dim=128),)
    assert "text_config.num_hidden_layers is left out: 32 by default of LlamaConfig" in model.notes


def test_a_thinker_is_found_behind_two_keys() -> None:
    """Qwen-Omni's language model stands in thinker_config.text_config; its talker is left out."""
    talker = {"text_config": {"num_hidden_layers": 3}}
    model = nested(
        "Qwen2_5OmniForConditionalGeneration",
        "thinker_config",
        {"text_config": SMALL},
        talker_config=talker,
    )

    assert letters(model) == "FFFFFFFF"


def test_a_part_that_is_no_object_is_a_fault() -> None:
    """The key is named."""
    with pytest.raises(InputError, match="text_config is"):
        nested("LlavaForConditionalGeneration", "text_config", [])  # type: ignore[arg-type]
