"""transformers' own settings, in its spelling, read from `Deployment.engine_args`."""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError

__all__ = ["Arguments"]

_OF = {
    "cache_implementation": "any",
    "prefill_chunk_size": "any",
    "prompt_tokens": "any",
    "qk_nope_head_dim": "any",
    "v_head_dim": "any",
    "max_cache_len": "static",
    "backend": "quantized",
    "nbits": "quantized",
    "axis_key": "quantized",
    "axis_value": "quantized",
    "q_group_size": "quantized",
    "residual_length": "quantized",
    "page_size": "paged",
    "num_blocks": "paged",
    "allow_block_sharing": "paged",
    "max_batch_tokens": "paged",
    "max_requests_per_batch": "paged",
    "max_blocks_per_request": "paged",
    "use_async_batching": "paged",
    "return_logprobs": "paged",
    "attn_implementation": "paged",
    "available_memory": "paged",
    "hidden_size": "paged",
    "vocab_size": "paged",
    "logits_to_keep": "paged",
}
"""Setting -> the cache that has it. GenerationConfig, QuantizedCache and ContinuousBatchingConfig
of transformers 5.24; `prompt_tokens`, `available_memory` and `logits_to_keep` are kvcalc's, and
`qk_nope_head_dim`, `v_head_dim`, `hidden_size` and `vocab_size` are the config's."""


class Arguments:
    """The settings of `Deployment.engine_args`, checked for name and type when they are read."""

    def __init__(self, deployment: Deployment) -> None:
        self._given = {k: v for k, v in deployment.engine_args.items() if v is not None}
        for name in self._given:
            if name not in _OF:
                raise UnknownNameError("setting of transformers", name, _OF)

    def belong_to(self, cache: str) -> None:
        """Check that every setting is one that this cache has.

        Raises:
            UnsupportedError: one belongs to another cache.
        """
        for name in self._given:
            if _OF[name] not in ("any", cache):
                raise UnsupportedError(
                    f"{name} is a setting of the {_OF[name]} cache, not of the {cache} one",
                    hint=f"leave it out, or set cache_implementation to {_OF[name]!r}",
                )

    def text(self, name: str) -> str | None:
        """Return a setting that is a word."""
        value = self._given.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidValueError(f"{name} is {value!r:.60}, not a word")
        return value

    def number(self, name: str, low: int = 1) -> int | None:
        """Return a setting that is a whole number of at least `low`."""
        value = self._given.get(name)
        if value is None:
            return None
        if type(value) is not int or value < low:
            raise InvalidValueError(f"{name} is {value!r:.60}, not a whole number from {low}")
        return value

    def switch(self, name: str) -> bool | None:
        """Return a setting that is true or false."""
        value = self._given.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidValueError(f"{name} is {value!r:.60}, not true or false")
        return value
