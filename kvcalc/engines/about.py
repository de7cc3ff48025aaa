"""The engines, which version of each is followed, and how that was checked."""

from __future__ import annotations

from kvcalc.answers.results import EngineSummary

__all__ = ["about"]


def about() -> tuple[EngineSummary, ...]:
    """Return the engines that kvcalc models, the model's own arithmetic first."""
    return (
        EngineSummary(
            name="none",
            follows="the model's own arithmetic",
            checked="configs as published and answers of engines, layer by layer",
        ),
        EngineSummary(
            name="vllm",
            follows="0.2 to 0.33",
            checked="the planner itself run (0.19.1, 0.26, 0.33), start-up logs of all years",
        ),
        EngineSummary(
            name="sglang",
            follows="0.5.10 to 0.5.23",
            checked="its pools and configurators run (0.5.23), start-up logs",
        ),
        EngineSummary(
            name="llama.cpp",
            follows="builds to b11549",
            checked="contexts made by the library itself, on GGUF files of every kind",
        ),
        EngineSummary(
            name="tensorrt-llm",
            follows="0.13 to 1.3, PyTorch backend of 1.2",
            checked="read from source; its own tests' numbers, start-up logs",
        ),
        EngineSummary(
            name="transformers",
            follows="4.57, 5.0 to 5.24",
            checked="caches filled by the library itself, on configs as published",
        ),
        EngineSummary(
            name="lmdeploy",
            follows="PyTorch 0.16 to 0.18; TurboMind",
            checked="the PyTorch engine's cache built; TurboMind read from source",
        ),
        EngineSummary(
            name="tgi",
            follows="3.3 (db931fc, 2026-01-08), block caches",
            checked="read from source; nothing run",
        ),
        EngineSummary(
            name="mlc-llm",
            follows="79d603f (2026-07-23)",
            checked="read from source; nothing run",
        ),
        EngineSummary(
            name="vllm-tpu",
            follows="tpu-inference b8692ff (2026-08-22) on vLLM 0.33",
            checked="pages and blocks read from source; the planner is vLLM's",
        ),
        EngineSummary(
            name="vllm-ascend",
            follows="vllm-ascend 182b75e (2026-08-22) on vLLM 0.27.1",
            checked="pages and blocks read from source, a page logged; the planner is vLLM's",
        ),
        EngineSummary(
            name="mlx-lm",
            follows="0.32",
            checked="models built in full size by the library itself, their caches' nbytes",
        ),
        EngineSummary(
            name="exllamav3",
            follows="1.0 to 1.4",
            checked="read from source",
        ),
        EngineSummary(
            name="exllamav2",
            follows="0.2, 0.3",
            checked="read from source; one report's figures",
        ),
        EngineSummary(
            name="lmcache",
            follows="0.5, behind vLLM",
            checked="read from source",
        ),
    )
