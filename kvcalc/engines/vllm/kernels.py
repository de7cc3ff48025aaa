"""What vLLM asks its attention backends, and what a chosen one answers: block sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.rules import Rules, rules_of
from kvcalc.engines.vllm.version import NEWEST

__all__ = [
    "BLACKWELL",
    "BLACKWELL_CONSUMER",
    "FP8",
    "HOPPER",
    "PLAIN",
    "Backend",
    "Kernel",
    "KernelRule",
    "Known",
    "Query",
    "Refusal",
    "multiples_of",
    "sizes",
]

HOPPER, BLACKWELL, BLACKWELL_CONSUMER = 9, 10, 12
"""Major compute capabilities."""

FP8 = ("fp8", "fp8_e4m3")
PLAIN = ("auto", "float16", "bfloat16")
"""KV cache dtypes that are the model's own."""


class Query(NamedTuple):
    """What vLLM asks its backends for one kind of layer.

    Attributes:
        head_size: of K; of the latent and its rotary part with MLA.
        dtype: model dtype.
        kv_dtype: KV cache dtype in vLLM's words.
        block_size: as the user asked for; None where he did not.
        rules: those of the release.
    """

    head_size: int
    head_size_v: int
    dtype: str
    kv_dtype: str
    block_size: int | None
    mla: bool = False
    sparse: bool = False
    sinks: bool = False
    image_prefix: bool = False
    alibi: bool = False
    window: bool = False
    cross: bool = False
    context_parallel: bool = False
    query_heads: int | None = None
    kv_heads: int = 1
    rules: Rules = rules_of(NEWEST)

    @property
    def quantized(self) -> bool:
        """Whether rows are kept in a format of their own."""
        return self.kv_dtype not in PLAIN


class Kernel(NamedTuple):
    """A block size that kernels read; a `multiple` of it is read as well."""

    size: int
    multiple: bool = False


class Backend(NamedTuple):
    """A chosen backend: its name and the block sizes that its kernels read."""

    name: str
    kernels: tuple[Kernel, ...]

    @property
    def smallest(self) -> int:
        """The smallest block that a kernel reads."""
        return min(kernel.size for kernel in self.kernels)

    def takes(self, block_size: int) -> bool:
        """Whether blocks of that size can be cut into blocks that a kernel reads."""
        return any(block_size % kernel.size == 0 for kernel in self.kernels)

    def block_within(self, tokens: int) -> int:
        """Return the largest kernel block of at most `tokens` tokens, else the smallest.

        vLLM 0.33 model_executor/layers/attention/attention.py, _largest_kernel_block_within.
        """
        sizes = [
            max(k.size, tokens // k.size * k.size) if k.multiple else k.size for k in self.kernels
        ]
        fitting = [size for size in sizes if size <= tokens]
        return max(fitting) if fitting else min(sizes)


Refusal = Callable[[Query, Card], str | None]
"""Why a backend cannot serve a query; None where it can."""

KernelRule = Callable[[Query, Card], tuple[Kernel, ...]]


class Known(NamedTuple):
    """A backend: what it refuses, and the blocks that its kernels read."""

    refuses: Refusal
    kernels: KernelRule


def sizes(*tokens: int) -> KernelRule:
    """Return the rule of kernels that read blocks of these sizes alone."""
    kernels = tuple(Kernel(size) for size in tokens)

    def rule(query: Query, card: Card) -> tuple[Kernel, ...]:
        del query, card
        return kernels

    return rule


def multiples_of(tokens: int) -> KernelRule:
    """Return the rule of kernels that read any multiple of a size."""
    kernels = (Kernel(tokens, multiple=True),)

    def rule(query: Query, card: Card) -> tuple[Kernel, ...]:
        del query, card
        return kernels

    return rule
