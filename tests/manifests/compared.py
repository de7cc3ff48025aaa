"""What kvcalc reads of a server, held to what is expected of it, setting by setting."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvcalc.checks.cards import card_of
from kvcalc.core.errors import KvcalcError
from kvcalc.manifests.found import GpuRequest, Server, Setting
from tests.manifests.public_rows import NAMES, Expected

__all__ = ["of_server"]

_SAME = {
    # an engine's own word -> the same setting in the table's words
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "context_length": "max_model_len",
    "max_seq_len": "max_model_len",
    "session_len": "max_model_len",
    "max_total_tokens": "max_total_tokens",
    "max_running_requests": "max_num_seqs",
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "max_batch_prefill_tokens": "max_num_batched_tokens",
    "page_size": "block_size",
    "tokens_per_block": "block_size",
    "speculative_num_draft_tokens": "num_speculative_tokens",
    "speculative_algorithm": "speculative_method",
    "speculative_draft_model_path": "draft_model",
    "enable_block_reuse": "enable_prefix_caching",
    "num_shard": "tensor_parallel_size",
}
_OPPOSITE = {"disable_radix_cache": "enable_prefix_caching", "no_kv_unified": "kv_unified"}
_WORDS = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp8_e4m3": "fp8"}
_SCHEMES = re.compile(r"^(hf|huggingface)://")
_PLUGINS = ("vllm-ascend", "vllm-tpu")  # vLLM on other devices


def of_server(asked: str, found: Server, expected: Expected) -> Iterator[str]:
    """Yield what was read otherwise than expected.

    Args:
        asked: the engine that is expected.
        found: what was read.
        expected: what should have been.
    """
    engine = "vllm" if found.engine in _PLUGINS else found.engine
    if engine != asked:
        yield f"engine {found.engine}, not {asked}"
    model = "-" if found.model is None else _text(found.model.value)
    if _plain(model) != _plain(expected.model):
        yield f"model {model}, not {expected.model}"
    settings = dict(_settings(found.settings))
    for name, value in expected.settings.items():
        is_said = settings.get(name, "nothing")
        if _folded(is_said) != _folded(value) and not (value == "?" and name not in settings):
            yield f"{name} {is_said}, not {value}"
    for name, value in settings.items():
        allowed = expected.settings.keys() | {
            key for key, said in expected.optional.items() if said in ("*", value)
        }
        if name in NAMES and name not in allowed:
            yield f"{name} {value}, which is not there"
    cards = _cards(found)
    if cards not in expected.devices:
        yield f"{cards} cards, not {' or '.join(expected.devices)}"
    products = tuple(_products(found.invocation.gpu))
    if products != expected.products:
        yield f"product {','.join(products)}, not {','.join(expected.products)}"


def _settings(settings: tuple[Setting, ...]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        if setting.name in _OPPOSITE:
            yield _OPPOSITE[setting.name], _text(not setting.value)
        else:
            yield _SAME.get(setting.name, setting.name), _text(setting.value)


def _cards(found: Server) -> str:
    gpu, nodes = found.invocation.gpu, found.invocation.nodes
    if gpu.visible is not None:
        cards = str(len(gpu.visible))
    elif gpu.devices is not None:
        cards = str(gpu.devices)
    else:
        cards = "all" if gpu.every else gpu.fraction or "-"
    return cards if nodes == 1 else f"{cards}x{nodes}"


def _products(gpu: GpuRequest) -> Iterator[str]:
    words = [*([] if gpu.product is None else [gpu.product]), *gpu.choices]
    for word in words:
        try:
            yield card_of(word.text, gpu.product_key).name
        except KvcalcError:
            yield word.text
    if not words:
        yield "-"


def _text(value: object) -> str:
    """Return a value as the table writes it."""
    if value is None:
        return "?"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(model: str) -> str:
    return _SCHEMES.sub("", model).rstrip("/")


def _folded(value: str) -> object:
    """Return a value so that two spellings of one are equal."""
    word = value.casefold().replace("_", "-") if "/" not in value else value
    word = _WORDS.get(value, word)
    try:
        return float(value)
    except ValueError:
        return word
