"""Decode kernels over a paged pool: FlashInfer, flash-attn, FlexAttention, or gathered blocks.

Each reads the pool where it lies: [K or V, blocks, block, heads, head_dim] in one tensor a layer,
or K and V in tensors of their own. A kernel that cannot (a block size, a dtype, a missing package)
says why, and with `auto` the next one is taken. `sdpa` is torch's own attention over copies of the
blocks, which every device has.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvcalc.core.errors import UnavailableError
from kvcalc.measure.probe import KERNELS
from kvcalc.measure.probe.device import Contiguous, Decoded, Paged
from kvcalc.measure.probe.layout import Attention

__all__ = ["Kernels"]

_WORKSPACE = 128 * 2**20  # FlashInfer's float workspace, as its documentation gives it
_FLASH_BLOCK = 256  # flash-attn 2 reads blocks of multiples of it
_PACKAGES = {"flashinfer": "flashinfer-python", "flash-attn": "flash-attn"}


class _CannotError(Exception):
    """This kernel does not run here; the message says why."""


class Kernels:
    """The kernels of one device.

    Args:
        torch: the module.
        device: torch's.
        wanted: one of KERNELS.
    """

    def __init__(self, torch: Any, device: Any, wanted: str) -> None:
        self._torch = torch
        self._device = device
        self._wanted = wanted
        self._compiled: Any = None
        self.versions = dict(_versions())

    def paged(self, step: Paged) -> Decoded:
        """Run a step with the kernel that is wanted, or with the first that can.

        Raises:
            UnavailableError: the one that is wanted cannot.
        """
        notes: list[str] = []
        names = self._order() if self._wanted == "auto" else (self._wanted,)
        for name in names:
            try:
                run = {
                    "flashinfer": self._flashinfer,
                    "flash-attn": self._flash_attn,
                    "flex": self._flex,
                    "sdpa": self._sdpa,
                }[name]
                with self._torch.inference_mode():
                    run(step)
                return Decoded(name, notes=tuple(notes))
            except _CannotError as error:
                if self._wanted != "auto":
                    raise UnavailableError(
                        f"kernel {name} does not run here: {error}", hint="--kernel auto"
                    ) from None
                notes.append(f"{name} was not taken: {error}")
        raise UnavailableError("no kernel runs here", hint="; ".join(notes)[:200])

    def _order(self) -> tuple[str, ...]:
        """On a CPU gathered blocks: uncompiled FlexAttention computes all scores there."""
        return ("sdpa",) if self._device.type == "cpu" else KERNELS[1:]

    def contiguous(self, step: Contiguous) -> Decoded:
        """Run SDPA over one piece a request, each request its own tokens."""
        torch, attention = self._torch, step.attention
        query = self._query(attention, 1)
        with torch.inference_mode():
            for keys, values in zip(step.keys, step.values, strict=True):
                k, v = (self._whole(each, attention, step.slots) for each in (keys, values))
                for request, length in enumerate(step.lengths):
                    self._attend(query, k[request, :length], v[request, :length], attention)
        return Decoded("sdpa")

    # ------------------------------------------------------------------ views

    def _dtype(self, attention: Attention) -> Any:
        return getattr(self._torch, attention.dtype)

    def _query(self, attention: Attention, requests: int) -> Any:
        shape = (requests, attention.num_heads, attention.head_dim)
        return self._torch.zeros(shape, dtype=self._dtype(attention), device=self._device)

    def _layers(self, step: Paged) -> Iterator[tuple[Any, Any]]:
        """Yield K and V of each layer as [blocks, block, heads, head_dim]."""
        a = step.attention
        shape = (-1, a.block_size, a.num_kv_heads, a.head_dim)
        for layer in range(a.layers):
            if step.apart:
                pair = step.tensors[layer], step.tensors[a.layers + layer]
                yield tuple(each.view(self._dtype(a)).view(shape) for each in pair)
            else:
                both = step.tensors[layer].view(self._dtype(a)).view(2, *shape)
                yield both[0], both[1]

    def _whole(self, tensor: Any, attention: Attention, slots: int) -> Any:
        shape = (-1, slots, attention.num_kv_heads, attention.head_dim)
        return tensor.view(self._dtype(attention)).view(shape)

    def _ids(self, values: list[int], dtype: str = "int32") -> Any:
        dtype_ = getattr(self._torch, dtype)
        return self._torch.tensor(values, dtype=dtype_, device=self._device)

    def _table(self, step: Paged) -> Any:
        """Return block ids of all requests in rows of one length."""
        width = max(len(table) for table in step.tables)
        rows = [[*table, *[0] * (width - len(table))] for table in step.tables]
        return self._ids(rows)  # type: ignore[arg-type]  # rows of them

    # ------------------------------------------------------------------ kernels

    def _attend(self, query: Any, keys: Any, values: Any, attention: Attention) -> Any:
        """Attend from one query to [tokens, heads, head_dim]."""
        k, v = (each.transpose(0, 1).unsqueeze(0) for each in (keys, values))
        q = query[:1].unsqueeze(2)
        groups = attention.num_heads // attention.num_kv_heads
        return self._torch.nn.functional.scaled_dot_product_attention(
            q, k, v, enable_gqa=groups > 1
        )

    def _sdpa(self, step: Paged) -> None:
        """Gather each request's blocks, last block whole, and attend to its tokens."""
        a = step.attention
        query = self._query(a, 1)
        tables = [self._ids(list(table), "int64") for table in step.tables]
        for keys, values in self._layers(step):
            for table, length in zip(tables, step.lengths, strict=True):
                k, v = (
                    each.index_select(0, table).view(-1, a.num_kv_heads, a.head_dim)[-length:]
                    if a.window
                    else each.index_select(0, table).view(-1, a.num_kv_heads, a.head_dim)[:length]
                    for each in (keys, values)
                )
                self._attend(query, k, v, a)

    def _flex(self, step: Paged) -> None:
        """Run FlexAttention with a mask whose blocks are the pool's pages."""
        a, torch = step.attention, self._torch
        if a.window:
            raise _CannotError("windows are not masked here")
        try:
            flex = import_module("torch.nn.attention.flex_attention")
            paging = import_module("torch.nn.attention.experimental._paged_attention")
        except ImportError:
            raise _CannotError("this torch has no paged FlexAttention") from None
        requests = len(step.lengths)
        first = next(self._layers(step))[0]
        blocks, width = first.shape[0], max(len(table) for table in step.tables)
        paged = paging.PagedAttention(blocks, a.block_size, requests, device=str(self._device))
        for request, length in enumerate(step.lengths):
            paged.reserve(self._ids([request], "int64")[0], self._ids([length], "int64")[0])
        lengths = self._ids(list(step.lengths), "int64")

        def written(b: Any, h: Any, q: Any, kv: Any) -> Any:
            del h, q
            return kv < lengths[b]

        mask = flex.create_block_mask(
            written, requests, None, 1, width * a.block_size,
            device=str(self._device), BLOCK_SIZE=(1, a.block_size),
        )  # fmt: skip
        mask = paged.convert_logical_block_mask(mask, self._ids(list(range(requests)), "int64"))
        query = self._query(a, requests).unsqueeze(2)
        run = flex.flex_attention
        if self._device.type != "cpu":
            self._compiled = self._compiled or torch.compile(flex.flex_attention)
            run = self._compiled
        for keys, values in self._layers(step):
            k, v = (
                each.reshape(1, -1, a.num_kv_heads, a.head_dim).transpose(1, 2)
                for each in (keys, values)
            )
            run(query, k, v, block_mask=mask, enable_gqa=a.num_heads != a.num_kv_heads)

    def _flash_attn(self, step: Paged) -> None:
        a = step.attention
        if self._device.type != "cuda":
            raise _CannotError("it runs on CUDA and ROCm")
        if a.block_size % _FLASH_BLOCK:
            raise _CannotError(f"it reads blocks of multiples of {_FLASH_BLOCK} tokens")
        if a.dtype == "float32":
            raise _CannotError("it reads 16-bit caches")
        if a.window:
            raise _CannotError("windows are not masked here")
        try:
            package = import_module("flash_attn")
        except ImportError:
            raise _CannotError("the package is not installed") from None
        query = self._query(a, len(step.lengths)).unsqueeze(1)
        lengths, table = self._ids(list(step.lengths)), self._table(step)
        for keys, values in self._layers(step):
            package.flash_attn_with_kvcache(
                query, keys, values, cache_seqlens=lengths, block_table=table
            )

    def _flashinfer(self, step: Paged) -> None:
        a = step.attention
        if self._device.type != "cuda":
            raise _CannotError("it runs on CUDA")
        if a.dtype == "float32":
            raise _CannotError("it reads 16-bit caches")
        if a.window:
            raise _CannotError("windows are not masked here")
        try:
            package = import_module("flashinfer")
        except ImportError:
            raise _CannotError("the package is not installed") from None
        torch = self._torch
        # Made for each step, so that its peak counts it; servers make it once.
        buffer = torch.zeros(_WORKSPACE, dtype=torch.uint8, device=self._device)
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper(buffer, "NHD")
        starts, last = [0], []
        ids: list[int] = []
        for table, length in zip(step.tables, step.lengths, strict=True):
            ids += table
            starts.append(len(ids))
            last.append((length - 1) % a.block_size + 1)
        wrapper.plan(
            self._ids(starts), self._ids(ids), self._ids(last),
            a.num_heads, a.num_kv_heads, a.head_dim, a.block_size,
            q_data_type=self._dtype(a), kv_data_type=self._dtype(a),
        )  # fmt: skip
        query = self._query(a, len(step.lengths))
        for keys, values in self._layers(step):
            wrapper.run(query, (keys, values))


def _versions() -> Iterator[tuple[str, str]]:
    for name, package in _PACKAGES.items():
        try:
            yield name, version(package)
        except PackageNotFoundError:
            continue
