"""How a model is served: engine-neutral settings in the engines' own words, and the GPU."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Literal

import msgspec

from kvcalc.core.errors import InvalidValueError, NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_bytes
from kvcalc.core.values import MAX_RANKS, MAX_STAGES, Positive, Value, require_range

__all__ = ["MAX_BYTES", "Deployment", "GpuSpec"]

MAX_BYTES = 2**60
"""No card, pool or hole is larger; above it a number is a slip."""

_OF_SPECULATION = ("speculative_method", "num_speculative_tokens", "draft_model")
_NO_ENGINE = "engine none"
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=MAX_BYTES)]


class GpuSpec(Value, frozen=True, kw_only=True):
    """A GPU as its driver reports it; a figure without a source is left out.

    Attributes:
        name: the preset's name.
        title: the vendor's name.
        memory_bytes: what the driver reports as total.
        memory_kind: `dedicated`, or `unified` where the host shares it.
        host_memory_bytes: the machine's whole memory, where the GPU shares it and its driver
            reports less.
        compute_capability: CUDA compute capability, such as "9.0".
        architecture: the vendor's code of the chip where there is no compute capability.
        memory_bandwidth_bytes_per_s: peak, bytes a second.
        dense_flops: peak dense FLOP/s by dtype.
        sources: figure -> where it was read.
        aliases: other spellings of the name.
        notes: caveats.
    """

    name: str
    title: str
    memory_bytes: _Bytes
    memory_kind: Literal["dedicated", "unified"] = "dedicated"
    host_memory_bytes: _Bytes | None = None
    compute_capability: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d$")] | None = None
    architecture: str | None = None
    memory_bandwidth_bytes_per_s: _Bytes | None = None
    dense_flops: dict[str, _Bytes] = {}
    sources: dict[str, str] = {}
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_range(self, 1, "memory_bytes", high=MAX_BYTES)

    def with_memory(self, memory_bytes: int) -> GpuSpec:
        """Return the card with other memory (a MIG slice of it)."""
        name = f"{self.name} with {format_bytes(memory_bytes)}"
        return msgspec.structs.replace(self, name=name, memory_bytes=memory_bytes)


_COUNTS = (
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_gpu_blocks_override",
    "num_speculative_tokens",
)
_MOST = {
    "tensor_parallel_size": MAX_RANKS,
    "pipeline_parallel_size": MAX_STAGES,
    "decode_context_parallel_size": MAX_RANKS,
}
_NONE = type(None)
_Kinds = tuple[tuple[type, ...], tuple[str, ...], tuple[str, str]]
_KINDS: tuple[_Kinds, ...] = (
    (
        (str,),
        ("engine", "dtype", "kv_cache_dtype"),
        ("text", "give its name, such as auto"),
    ),
    (
        (str, _NONE),
        (
            *("engine_version", "attention_backend", "mamba_cache_dtype"),
            *("mamba_ssm_cache_dtype", "speculative_method"),
        ),
        ("text", "give its name, in quotes, or leave it out"),
    ),
    (
        (bool, _NONE),
        (
            *("enable_prefix_caching", "async_scheduling", "enforce_eager"),
            *("disable_hybrid_kv_cache_manager", "enable_expert_parallel"),
        ),
        ("a truth value", "give True or False, or leave it out"),
    ),
    (
        (int, float, _NONE),
        ("gpu_memory_utilization",),
        ("a number", "give a share of the card such as 0.9"),
    ),
    (
        (str, GpuSpec, _NONE),
        ("gpu",),
        ("a GPU", "give its name, such as h100-80gb, or a GpuSpec"),
    ),
    (
        (str, ModelSpec, _NONE),
        ("draft_model",),
        ("a model", "give its name, or what kvcalc.load_model returns"),
    ),
    (
        (dict,),
        ("engine_args",),
        ("a dict", 'give settings by name: {"page_size": 64}'),
    ),
)
"""Kinds, the fields that are of one of them, and what an error says of that."""


class Deployment(Value, frozen=True, kw_only=True):
    """Settings of one serving process group, in vLLM's spelling where it has one.

    GPUs = tensor_parallel_size x pipeline_parallel_size x data_parallel_size; decode context
    parallelism shares the tensor-parallel ranks. None means the engine's own default. What an
    engine has and others do not goes into `engine_args`; an engine refuses what it does not know.
    A GPU and a draft model may be given by name: kvcalc.plan looks them up.
    """

    engine: str = "none"
    engine_version: str | None = None
    gpu: str | GpuSpec | None = None
    dtype: str = "auto"
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    data_parallel_size: Positive = 1
    decode_context_parallel_size: Positive = 1
    kv_cache_dtype: str = "auto"
    block_size: Positive | None = None
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: _Bytes | None = None
    num_gpu_blocks_override: Positive | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    enable_expert_parallel: bool | None = None
    attention_backend: str | None = None
    mamba_cache_dtype: str | None = None
    mamba_ssm_cache_dtype: str | None = None
    num_speculative_tokens: Positive | None = None
    speculative_method: str | None = None
    draft_model: str | ModelSpec | None = None
    engine_args: dict[str, str | int | float | bool | None] = {}

    def __post_init__(self) -> None:
        self._require_kinds()
        try:
            require_range(self, 1, "data_parallel_size")
            for name, most in _MOST.items():
                require_range(self, 1, name, high=most)
            require_range(self, 1, *_COUNTS, optional=True)
            require_range(self, 1, "kv_cache_memory_bytes", high=MAX_BYTES, optional=True)
        except InvalidValueError as error:
            error.hint = error.hint or "give a whole number such as 16"
            raise
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise InvalidValueError(
                f"gpu_memory_utilization {share} is not above 0 and at most 1",
                hint="give a share of the card such as 0.9",
            )
        if self.tensor_parallel_size % self.decode_context_parallel_size:
            raise InvalidValueError(
                f"decode_context_parallel_size {self.decode_context_parallel_size} does not divide"
                f" tensor_parallel_size {self.tensor_parallel_size}",
                hint="decode context parallelism shares the tensor-parallel ranks",
            )

    def _require_kinds(self) -> None:
        """Check that every field is of its kind: Python itself checks none.

        Raises:
            InvalidValueError: naming the field and the value.
        """
        for kinds, names, told in _KINDS:
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                    raise InvalidValueError(f"{name} is {value!r:.60}, not {told[0]}", hint=told[1])
        for name, value in self.engine_args.items():
            if not isinstance(name, str) or not isinstance(value, (str, int, float, type(None))):
                raise InvalidValueError(
                    f"engine_args has {name!r:.40}: {value!r:.40}, not a setting and its value",
                    hint="give a text, a number or a truth value by the setting's name",
                )

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def refuse_others(self, known: Container[str], engine: str, hint: str = "leave it out") -> None:
        """Refuse a setting that is not its default and that an engine has not.

        Raises:
            UnsupportedError: the first such setting.
            NotModelledError: one of speculation, which every engine has in some way; the GPU,
                which is no engine's setting.
        """
        for name in self.changed():
            if name not in known and name == "gpu":
                raise NotModelledError(
                    f"what {engine} leaves of a GPU for the cache is not modelled",
                    hint="give the cache's memory itself: --kv-memory",
                )
            if name not in known and name in _OF_SPECULATION and engine != _NO_ENGINE:
                raise NotModelledError(
                    f"tokens that are proposed ahead are not modelled for {engine} ({name})",
                    hint="leave speculation out to size the rest",
                )
            if name not in known:
                raise UnsupportedError(f"{engine} has no {name}", hint=hint)

    def changed(self) -> dict[str, object]:
        """Return the settings that differ from their defaults, by name."""
        default = Deployment()
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) != getattr(default, name)
        }
