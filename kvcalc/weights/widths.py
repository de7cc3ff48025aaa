"""The widths of a model that its activations follow; spans where a config leaves them out."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize

__all__ = ["Span", "Widths", "is_multimodal", "widths_of"]

_TOWERS = ("VL", "Vision", "ImageText", "ConditionalGeneration", "Llava", "Pixtral", "Omni")


class Span(NamedTuple):
    """An interval of whole numbers, bytes or widths."""

    low: int
    high: int

    def __add__(self, other: object) -> Span:
        if not isinstance(other, Span):
            return NotImplemented
        return Span(self.low + other.low, self.high + other.high)

    def times(self, low: int, high: int | None = None) -> Span:
        """Return the span times a number, or times one for each end."""
        return Span(self.low * low, self.high * (low if high is None else high))

    def over(self, divisor: int) -> Span:
        """Return the span divided, the ends rounded outwards."""
        return Span(self.low // divisor, -(-self.high // divisor))

    def or_more(self, other: Span) -> Span:
        """Return what the greater of two is."""
        return Span(max(self.low, other.low), max(self.high, other.high))


class Widths(NamedTuple):
    """What activations follow; a span of two numbers where it is not known.

    Attributes:
        hidden, inner, vocab: of the residual stream, of a dense MLP (0 without one), of the logits.
        experts: routed experts that a token goes through (0 without any).
        expert_inner: inner width of one of them.
        multimodal: there is a tower for images, audio or video.
        known: nothing had to be guessed.
    """

    hidden: Span
    inner: Span
    vocab: Span
    experts: Span
    expert_inner: Span
    multimodal: bool
    known: bool

    @property
    def row(self) -> Span:
        """Elements of a token on the way: two of an MLP's (or of all experts') and two streams."""
        inner = self.inner.or_more(self.expert_inner.times(1, max(1, self.experts.high)))
        return inner.times(2) + self.hidden.times(2)


def widths_of(model: ModelSpec) -> Widths:
    """Return the widths of a model; wide spans for those that its config did not tell."""
    size = model.size or ModelSize()
    hidden = _known(size.hidden_size) or _hidden_of(model)
    vocab = _known(size.vocab_size) or Span(32_000, 262_144)
    routed = size.num_experts is not None
    inner = _known(size.intermediate_size)
    if inner is None:
        inner = Span(0, 0) if routed else Span(hidden.low * 5 // 2, hidden.high * 11 // 2)
    experts = expert_inner = Span(0, 0)
    if routed:
        experts = _known(size.num_experts_per_tok) or Span(1, 10)
        expert_inner = (
            _known(size.moe_intermediate_size) or _known(size.intermediate_size) or Span(512, 4096)
        )
    told = (size.hidden_size, size.vocab_size, size.intermediate_size or size.moe_intermediate_size)
    return Widths(
        hidden, inner, vocab, experts, expert_inner, is_multimodal(model), None not in told
    )


def is_multimodal(model: ModelSpec) -> bool:
    """Whether a model has a tower beside its language model, by its sizes or by its name."""
    size = model.size
    if size is not None and size.encoder_bytes is not None:
        return size.encoder_bytes > 0
    name = model.architecture or ""
    return model.encoder_divisor is not None or any(word in name for word in _TOWERS)


def _known(value: int | None) -> Span | None:
    return None if value is None else Span(value, value)


def _hidden_of(model: ModelSpec) -> Span:
    """Heads of 64 to 256 elements; a published model is 512 to 18,432 wide."""
    heads = model.num_attention_heads
    return Span(512, 18_432) if heads is None else Span(heads * 64, heads * 256)
