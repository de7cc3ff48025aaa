"""What a probe measured against what was computed.

Fields ending in `_bytes` are exact ints; None means that this device has no such reading.
"""

from __future__ import annotations

from kvcalc.core.values import Value

__all__ = ["MeasuredBytes", "ProbeDifference", "ProbeResult"]


class MeasuredBytes(Value, frozen=True, kw_only=True):
    """The same bytes as seen from further and further outside, each more than before it was taken.

    Attributes:
        storage_bytes: of the tensors' storages, each once.
        requested_bytes: asked of the framework's allocator.
        allocated_bytes: handed out by it, rounded.
        reserved_bytes: taken from the device by it, in segments.
        process_bytes: of this process, as the driver (or on a CPU the system) counts it.
        device_bytes: no longer free on the device, whoever took it.
    """

    storage_bytes: int | None = None
    requested_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None
    device_bytes: int | None = None


class ProbeDifference(Value, frozen=True, kw_only=True):
    """A gap between two figures, and what it is.

    Attributes:
        name: of the gap.
        bytes: the outer figure less the inner one.
        expected_bytes: what the gap should be; None where only the device can tell.
        explained_by: the cause.
    """

    name: str
    bytes: int
    expected_bytes: int | None
    explained_by: str


class ProbeResult(Value, frozen=True, kw_only=True):
    """One model's cache on one device.

    Attributes:
        backend: torch, dry-run, vllm, llama.cpp, transformers or nvml.
        device: its name; `kind` is cuda, rocm, xpu, mps, cpu or synthetic.
        kernel: what ran over the pool; None where nothing did.
        versions: of the driver and the libraries.
        layout: how the pool is cut into tensors.
        tensors: of the pool.
        requests: how many sequences were laid into it.
        tokens: of them all.
        units: blocks (cells, token slots) of the pool.
        computed_bytes: of the pool, by the plan; None where the device alone was read.
        measured: of the pool, the median of the repetitions.
        workspace_bytes: the most that a decode step took beside the pool.
        contiguous_computed_bytes: of the same sequences, each with room for the maximum.
        contiguous: of the same, measured; None where it was left out.
        contiguous_workspace_bytes: of a step over them.
        leak_bytes: what was not given back at the end of the last repetition.
        repetitions: how many there were.
        spread_bytes: the largest difference of a reading between two of them.
        engine_says: figures of an engine that was asked, by name.
        verdict: the answer in a sentence or two.
    """

    backend: str
    device: str
    kind: str
    model: str | None
    engine: str | None
    kv_cache_dtype: str | None
    block_size: int | None
    max_model_len: int | None
    kernel: str | None = None
    versions: dict[str, str] = {}
    layout: str = ""
    tensors: int = 0
    requests: int = 0
    tokens: int = 0
    units: int | None = None
    computed_bytes: int | None = None
    measured: MeasuredBytes = MeasuredBytes()
    workspace_bytes: int | None = None
    contiguous_computed_bytes: int | None = None
    contiguous: MeasuredBytes | None = None
    contiguous_workspace_bytes: int | None = None
    leak_bytes: int | None = None
    repetitions: int = 0
    spread_bytes: int | None = None
    engine_says: dict[str, int] = {}
    differences: tuple[ProbeDifference, ...] = ()
    verdict: str = ""
    notes: tuple[str, ...] = ()
