"""What the layers of an architecture are made of beside their widths: biases, norms, gates.

The widths stand in a config; these do not, or only in part. Read from transformers 5.24
(models/*/modeling_*.py) and, for classes that are not there, vLLM 0.33 (model_executor/models).
Sums of checkpoints confirm them (tests/core/test_weights.py).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Shape", "shape_of"]


class Shape(NamedTuple):
    """The make of a decoder layer.

    Attributes:
        matrices: of an MLP or expert: 3 with a gate, 2 without.
        qkv_bias: the projections of Q, K and V have biases.
        o_bias: so has the output's.
        mlp_bias: so have an MLP's; experts too.
        norms: vectors of hidden_size that norms of one layer hold, biases counted.
        final_norms: the same outside layers.
        qk_norm: norms of Q and K: `head`, one vector of head_dim each; `full`, of all heads.
        positions: rows of a table of positions beyond max_position_embeddings; None: no table.
        output_gate: attention has a gate as wide as its queries.
        shared_gate: shared experts are weighed by one row.
        sinks: a number a query head.
        router_bias: a number an expert.
        router_single: engines keep the router in float32, whatever the model runs in (vLLM 0.12 to
            0.33 models: `params_dtype=torch.float32` of the gate; SGLang 0.5.23 the same).
        head_bias: a number a word.
        vectors: further numbers a layer.
        tied: the output shares the embedding's matrix where the config does not say.
        flags: the config's attention_bias and mlp_bias are followed.
        head: there is an output matrix.
        draft_tables: each draft layer brings embedding and head of its own; None: not known.
        loose: only matrices and tied are known; biases and norms lie between bounds.
        gate_open: so does a gate as wide as the queries.
    """

    matrices: int = 3
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    final_norms: int = 1
    qk_norm: Literal["", "head", "full"] = ""
    positions: int | None = None
    output_gate: bool = False
    shared_gate: bool = False
    sinks: bool = False
    router_bias: bool = False
    router_single: bool = False
    head_bias: bool = False
    vectors: int = 0
    tied: bool | None = None
    flags: bool = False
    head: bool = True
    draft_tables: bool | None = False
    loose: bool = False
    gate_open: bool = False


_LLAMA = Shape(tied=False, flags=True)
_PLAIN = Shape(tied=False)
_GEMMA = Shape(tied=True)
_QWEN2 = Shape(qkv_bias=True, tied=False)
_QWEN3 = Shape(qk_norm="head", tied=False)
_GATED = Shape(qk_norm="head", output_gate=True, shared_gate=True, tied=False)
_GEMMA3 = Shape(norms=4, qk_norm="head", tied=True)
_LATENT = Shape(router_bias=True, tied=False, draft_tables=True)
_GATED_MLP = Shape(loose=True, draft_tables=None)
_MAY_GATE = _GATED_MLP._replace(gate_open=True)
_NO_GATE = Shape(matrices=2, loose=True, draft_tables=None)
_ALL_BIAS = Shape(
    matrices=2, qkv_bias=True, o_bias=True, mlp_bias=True, norms=4, final_norms=2, tied=True
)

_SHAPES: dict[str, Shape] = {
    "ApertusForCausalLM": Shape(matrices=2, qk_norm="head", vectors=2, tied=False),
    "ArceeForCausalLM": Shape(matrices=2, tied=False),
    "BaiChuanForCausalLM": _PLAIN,
    "BaichuanForCausalLM": _PLAIN,
    "BloomForCausalLM": _ALL_BIAS._replace(final_norms=4),
    "ChatGLMForConditionalGeneration": _QWEN2,
    "ChatGLMModel": _QWEN2,
    "Cohere2ForCausalLM": Shape(norms=1, tied=True),
    "CohereForCausalLM": Shape(norms=1, tied=True),
    "DeepseekForCausalLM": _PLAIN,
    "DeepseekV2ForCausalLM": _PLAIN,
    "DeepseekV32ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "DeepseekV4ForCausalLM": _GATED_MLP,
    "Exaone4ForCausalLM": _QWEN3,
    "ExaoneForCausalLM": _PLAIN,
    "FalconForCausalLM": _NO_GATE._replace(tied=True),
    "FalconH1ForCausalLM": _GATED_MLP,
    "FalconMambaForCausalLM": Shape(norms=1, tied=True),
    "GPT2LMHeadModel": _ALL_BIAS._replace(positions=0),
    "GPTBigCodeForCausalLM": _ALL_BIAS._replace(positions=0),
    "GPTJForCausalLM": Shape(
        matrices=2, mlp_bias=True, norms=2, final_norms=2, head_bias=True, tied=False
    ),
    "GPTNeoXForCausalLM": _ALL_BIAS._replace(tied=False),
    "Gemma2ForCausalLM": Shape(norms=4, tied=True),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma3TextModel": _GEMMA3._replace(head=False),
    "Gemma3nForConditionalGeneration": _GATED_MLP._replace(tied=True),
    "Gemma4ForCausalLM": _GATED_MLP._replace(tied=True),
    "Gemma4ForConditionalGeneration": _GATED_MLP._replace(tied=True),
    "GemmaForCausalLM": _GEMMA,
    "Glm4ForCausalLM": Shape(qkv_bias=True, norms=4, tied=False),
    "Glm4MoeForCausalLM": Shape(
        qkv_bias=True, router_bias=True, router_single=True, tied=False, draft_tables=True
    ),
    "Glm4vForConditionalGeneration": _GATED_MLP,
    "GlmForCausalLM": _QWEN2,
    "GlmMoeDsaForCausalLM": _LATENT._replace(draft_tables=None),
    "GptOssForCausalLM": Shape(
        qkv_bias=True, o_bias=True, mlp_bias=True, router_bias=True, sinks=True, tied=False
    ),
    "GraniteForCausalLM": _LLAMA,
    "GraniteMoeHybridForCausalLM": _GATED_MLP,
    "HunYuanMoEV1ForCausalLM": _GATED_MLP,
    "InternLM2ForCausalLM": _PLAIN,
    "InternLM2ForRewardModel": Shape(head=False),
    "InternLM3ForCausalLM": _LLAMA,
    "InternLMForCausalLM": _GATED_MLP,
    "InternVLChatModel": _GATED_MLP,
    "JambaForCausalLM": _GATED_MLP,
    "KimiK25ForConditionalGeneration": _LATENT,
    "KimiK3ForConditionalGeneration": _MAY_GATE,
    "KimiLinearForCausalLM": _MAY_GATE,
    "LLaMAForCausalLM": _LLAMA,
    "LagunaForCausalLM": _MAY_GATE,
    "Lfm2ForCausalLM": _GATED_MLP._replace(tied=True),
    "Llama4ForCausalLM": _PLAIN,
    "Llama4ForConditionalGeneration": _PLAIN,
    "LlamaForCausalLM": _LLAMA,
    "LlamaForSequenceClassification": _LLAMA._replace(head=False),
    "LlamaModel": _LLAMA._replace(head=False),
    "LlavaLlamaForCausalLM": _LLAMA,
    "MPTForCausalLM": Shape(matrices=2, tied=True),
    "MiMoForCausalLM": _QWEN2,
    "MiMoV2FlashForCausalLM": _GATED_MLP._replace(router_single=True),
    "MiniCPMForCausalLM": _PLAIN,
    "MiniCPMV": _GATED_MLP,
    "MiniCPMV4_6ForConditionalGeneration": _GATED_MLP,
    "MiniMaxM1ForCausalLM": _GATED_MLP._replace(router_single=True),
    "MiniMaxM2ForCausalLM": Shape(qk_norm="full", router_bias=True, router_single=True, tied=False),
    "MiniMaxM3ForCausalLM": _GATED_MLP,
    "MiniMaxM3SparseForConditionalGeneration": _GATED_MLP,
    "Ministral3ForCausalLM": _PLAIN,
    "MinistralForCausalLM": _PLAIN,
    "Mistral3ForConditionalGeneration": _PLAIN,
    "MistralForCausalLM": _PLAIN,
    "MistralModel": Shape(head=False),
    "MixtralForCausalLM": _PLAIN,
    "MllamaForConditionalGeneration": _GATED_MLP,
    "MptForCausalLM": Shape(matrices=2, tied=True),
    "NemotronForCausalLM": _NO_GATE,
    "NemotronHForCausalLM": _NO_GATE._replace(router_single=True),
    "OPTForCausalLM": _ALL_BIAS._replace(positions=2),
    "Olmo2ForCausalLM": Shape(qk_norm="full", tied=False),
    "Olmo3ForCausalLM": Shape(qk_norm="full", tied=False),
    "OlmoForCausalLM": Shape(norms=0, final_norms=0, tied=False),
    "OlmoeForCausalLM": Shape(qk_norm="full", tied=False),
    "OrionForCausalLM": Shape(norms=4, final_norms=2, tied=False),
    "PaddleOCRVLForConditionalGeneration": _GATED_MLP,
    "Phi3ForCausalLM": _PLAIN,
    "Phi3SmallForCausalLM": _GATED_MLP,
    "PhiForCausalLM": _ALL_BIAS._replace(norms=2, head_bias=True, tied=False),
    "PhiMoEForCausalLM": Shape(
        qkv_bias=True, o_bias=True, norms=4, final_norms=2, head_bias=True, tied=False
    ),
    "QWenLMHeadModel": _QWEN2,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": Shape(qkv_bias=True, shared_gate=True, tied=False),
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5OmniForConditionalGeneration": _GATED_MLP,
    "Qwen2_5OmniModel": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3Model": _QWEN3._replace(head=False),
    "Qwen3MoeForCausalLM": _QWEN3,
    "Qwen3NextForCausalLM": _GATED,
    "Qwen3OmniMoeForConditionalGeneration": _GATED_MLP,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3,
    "Qwen3_5ForCausalLM": _GATED,
    "Qwen3_5ForConditionalGeneration": _GATED,
    "Qwen3_5MoeForCausalLM": _GATED,
    "Qwen3_5MoeForConditionalGeneration": _GATED,
    "Rwkv5ForCausalLM": _NO_GATE,
    "RwkvForCausalLM": _NO_GATE,
    "SeedOssForCausalLM": Shape(qkv_bias=True, tied=False),
    "SmolLM3ForCausalLM": Shape(tied=True, flags=True),
    "StableLMEpochForCausalLM": Shape(norms=4, final_norms=2, tied=False),
    "StableLmForCausalLM": Shape(norms=4, final_norms=2, tied=False),
    "Starcoder2ForCausalLM": _ALL_BIAS,
    "Step3p5ForCausalLM": _GATED_MLP._replace(router_single=True),
    "Step3p7FlashForCausalLM": _GATED_MLP._replace(router_single=True),
    "Step3p7ForConditionalGeneration": _GATED_MLP._replace(router_single=True),
    "XverseForCausalLM": _PLAIN,
    "YuanForCausalLM": _GATED_MLP,
}


def shape_of(architecture: str | None) -> Shape | None:
    """Return the make of an architecture's layers; None where it is not listed here.

    >>> shape_of("OPTForCausalLM").matrices
    2
    """
    return _SHAPES.get(architecture or "")
