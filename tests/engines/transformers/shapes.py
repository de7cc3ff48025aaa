"""Models of the oracle that no published file describes: class defaults, written out by hand.

Each is what the config class of transformers 5.24 gives without a file, or the oracle's own words.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
)

__all__ = ["SHAPES"]


def _model(name: str, *runs: LayerRun) -> ModelSpec:
    return ModelSpec(
        name=name,
        num_hidden_layers=sum(run.count for run in runs),
        dtype="bfloat16",
        layers=runs,
    )


def _full(heads: int, head_dim: int) -> FullAttention:
    return FullAttention(num_kv_heads=heads, head_dim=head_dim)


def _window(heads: int, head_dim: int, window: int) -> SlidingWindow:
    return SlidingWindow(num_kv_heads=heads, head_dim=head_dim, sliding_window=window)


def _quantized() -> ModelSpec:
    """Two Llama layers, in the oracle's own words."""
    return _model("2 layers", LayerRun(count=2, caches=(_full(8, 128),)))


def _lfm2() -> ModelSpec:
    """Lfm2Config names no convolution layers by itself."""
    return _model("lfm2", LayerRun(count=32, caches=(_full(8, 80),)))


def _small_lfm2() -> ModelSpec:
    """The widths of the check on the CPU, and no convolution layers either."""
    return _model("lfm2", LayerRun(count=16, caches=(_full(2, 16),)))


def _kimi_linear() -> ModelSpec:
    """KimiLinearConfig: every fourth layer but the first is full attention, 6 of 27."""
    state = KimiDeltaAttention(num_heads=32, head_dim=128, conv_kernel=4)
    return _model(
        "kimi_linear",
        LayerRun(count=21, caches=(state,)),
        LayerRun(count=6, caches=(Mla(kv_lora_rank=512, qk_rope_head_dim=64),)),
    )


def _falcon_mamba() -> ModelSpec:
    state = Mamba1(intermediate_size=2 * 768, state_size=16, conv_kernel=4)
    return _model("falcon_mamba", LayerRun(count=32, caches=(state,)))


def _falcon_h1() -> ModelSpec:
    """FalconH1Config: 128 heads of 1024 / 128 in every layer, beside attention."""
    state = Mamba2(num_heads=128, head_dim=8, state_size=256, n_groups=1, conv_kernel=4)
    return _model("falcon_h1", LayerRun(count=32, caches=(_full(8, 128), state)))


def _zamba2() -> ModelSpec:
    """Zamba2Config: 8 heads of 640 in 54 layers, attention of 2 x 2560 / 32 a head in 9 of them."""
    state = Mamba2(num_heads=8, head_dim=640, state_size=64, n_groups=1, conv_kernel=4)
    return _model(
        "zamba2",
        LayerRun(count=45, caches=(state,)),
        LayerRun(count=9, caches=(_full(32, 160), state)),
    )


def _recurrent_gemma() -> ModelSpec:
    """RecurrentGemmaConfig: every third layer is attention, with as many KV as query heads."""
    state = RgLru(lru_width=2560, conv_kernel=4)
    return _model(
        "recurrent_gemma",
        LayerRun(count=18, caches=(state,)),
        LayerRun(count=8, caches=(_window(10, 256, 2048),)),
    )


def _qwen3_5() -> ModelSpec:
    """Qwen3_5TextConfig: every fourth layer is full attention."""
    state = GatedDeltaNet(
        num_k_heads=16, num_v_heads=32, head_k_dim=128, head_v_dim=128, conv_kernel=4
    )
    return _model(
        "qwen3_5",
        LayerRun(count=24, caches=(state,)),
        LayerRun(count=8, caches=(_full(4, 256),)),
    )


def _modernbert() -> ModelSpec:
    """ModernBertDecoderConfig: the window is half of local_attention; every third layer is full."""
    return _model(
        "modernbert-decoder",
        LayerRun(count=8, caches=(_full(12, 64),)),
        LayerRun(count=14, caches=(_window(12, 64, 64),)),
    )


def _doge() -> ModelSpec:
    return _model("doge", LayerRun(count=32, caches=(_full(8, 128),)))


def _vaultgemma() -> ModelSpec:
    return _model(
        "vaultgemma",
        LayerRun(count=13, caches=(_window(4, 256, 4096),)),
        LayerRun(count=13, caches=(_full(4, 256),)),
    )


def _minimax() -> ModelSpec:
    """The oracle's own words: every eighth of 80 layers is full attention."""
    state = LightningAttention(num_heads=64, head_dim=128)
    return _model(
        "minimax-text-01",
        LayerRun(count=70, caches=(state,)),
        LayerRun(count=10, caches=(_full(8, 128),)),
    )


def _bamba() -> ModelSpec:
    """BambaConfig: 256 states a head, where the published model has 128."""
    state = Mamba2(num_heads=128, head_dim=64, state_size=256, n_groups=1, conv_kernel=4)
    return _model(
        "bamba",
        LayerRun(count=29, caches=(state,)),
        LayerRun(count=3, caches=(_full(8, 128),)),
    )


def _gte_qwen2() -> ModelSpec:
    """Qwen2's class, which does not look at the config's is_causal; vLLM makes it an encoder."""
    return _model("gte-Qwen2-7B-instruct", LayerRun(count=28, caches=(_full(4, 128),)))


SHAPES: dict[str, Callable[[], ModelSpec]] = {
    "Alibaba-NLP--gte-Qwen2-7B-instruct": _gte_qwen2,
    "bamba-9b": _bamba,
    "cpu_check lfm2": _small_lfm2,
    "doge(default)": _doge,
    "falcon-mamba(default)": _falcon_mamba,
    "falcon_h1(default)": _falcon_h1,
    "kimi_linear(default)": _kimi_linear,
    "lfm2(default)": _lfm2,
    "minimax-text-01-shape": _minimax,
    "modernbert-decoder(default)": _modernbert,
    "quantized llama 2L kv8 hd128": _quantized,
    "qwen3_5_text(default)": _qwen3_5,
    "recurrent_gemma(default=2b)": _recurrent_gemma,
    "vaultgemma(default)": _vaultgemma,
    "zamba2(default=Zamba2-2.7B)": _zamba2,
}
"""Row's name -> its model."""
