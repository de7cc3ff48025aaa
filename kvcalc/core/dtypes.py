"""Cache dtypes: how one row of elements is packed into bytes.

A layer kind says which rows it keeps (`Row`: role, width, count); a dtype says what a row of that
role and width costs. Neither knows the other, so every kind works with every dtype that can pack
its rows, and a dtype that cannot says so.
"""

from __future__ import annotations

import re
from typing import Literal

from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.units import cdiv
from kvcalc.core.values import Positive, Value

__all__ = [
    "DTYPES",
    "CacheDtype",
    "KvDtype",
    "Packing",
    "Role",
    "Row",
    "cache_dtype",
    "element_bytes",
    "kv_dtype",
]

Role = Literal["k", "v", "latent", "nope", "rope", "index"]
"""What a row is: K or V of one head; an MLA latent; the part of a DeepSeek-V4 entry without rotary
position (`nope`); the rotary part that MLA keeps once for all heads; an indexer key."""


class Row(Value, frozen=True, kw_only=True):
    """Vectors kept for one token: `count` of them, `width` elements each.

    `dtype` is set where the model's published reference fixes the storage whatever the KV dtype
    (an indexer's keys); otherwise the KV dtype packs the row.
    """

    role: Role
    width: Positive
    count: Positive = 1
    dtype: str | None = None


class Packing(Value, frozen=True, kw_only=True):
    """`elements` elements become `bytes` bytes; a row adds `row_bytes` once (its own scales).

    `whole` says that a row must be a whole number of such groups (the kernels refuse others);
    otherwise the last group of a row is filled up to a whole byte.
    """

    elements: int
    bytes: int
    row_bytes: int = 0
    whole: bool = False


class CacheDtype(Value, frozen=True, kw_only=True):
    """A dtype of cache rows.

    `packing` serves the roles that `by_role` does not name; with `packing` None those are refused.
    """

    name: str
    packing: Packing | None
    by_role: dict[Role, Packing] = {}
    source: str = ""

    def row_bytes(self, row: Row) -> int:
        """Return the bytes of one of the row's vectors.

        Raises:
            UnsupportedError: this dtype cannot pack such a row.

        >>> cache_dtype("q8_0").row_bytes(Row(role="k", width=128))
        136
        """
        if row.dtype is not None and (own := cache_dtype(row.dtype)) != self:
            return own.row_bytes(row)
        packing = self.by_role.get(row.role, self.packing)
        if packing is None:
            raise UnsupportedError(
                f"{self.name} packs {' and '.join(self.by_role)} rows, not {row.role} rows",
                hint="choose another KV cache dtype",
            )
        if packing.whole and row.width % packing.elements:
            raise UnsupportedError(
                f"{self.name} packs {packing.elements} elements at a time and a {row.role} row has"
                f" {row.width}",
                hint="choose another KV cache dtype",
            )
        return cdiv(row.width * packing.bytes, packing.elements) + packing.row_bytes

    def bytes_of(self, row: Row) -> int:
        """Return the bytes of all the row's vectors (one token, one layer)."""
        return row.count * self.row_bytes(row)


def _plain(name: str, elements: int, bytes_: int, source: str) -> CacheDtype:
    return CacheDtype(name=name, packing=Packing(elements=elements, bytes=bytes_), source=source)


def _row_scaled(name: str, elements: int, scale_bytes: int, source: str) -> CacheDtype:
    packing = Packing(elements=elements, bytes=1, row_bytes=scale_bytes)
    return CacheDtype(name=name, packing=packing, source=source)


def _grouped(name: str, elements: int, bytes_: int, source: str) -> CacheDtype:
    packing = Packing(elements=elements, bytes=bytes_, whole=True)
    return CacheDtype(name=name, packing=packing, source=source)


_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GGML = "llama.cpp ggml/src/ggml-common.h, block_{}"
_HEAD_SCALED = "vLLM 0.33 triton_attn.customize_spec: one fp32 scale a head and token"
_OUTSIDE = "one scale a tensor, kept outside the cache"


def _turboquant(name: str, k: Packing, v: Packing) -> CacheDtype:
    return CacheDtype(
        name=f"turboquant_{name}",
        packing=None,
        by_role={"k": k, "v": v},
        source="vLLM 0.33 quantization/turboquant/config.py: slot_size_aligned",
    )


def _scaled(bits: int, row_bytes: int) -> Packing:
    # Sixteen elements at a time, so that a head's K and V come to an even number of bytes.
    return Packing(elements=16, bytes=2 * bits, row_bytes=row_bytes, whole=True)


DTYPES: dict[str, CacheDtype] = {
    d.name: d
    for d in (
        *(_plain(name, 1, size, "element width") for name, size in _FLOAT_BYTES.items()),
        _plain("fp8_e4m3", 1, 1, _OUTSIDE),
        _plain("fp8_e5m2", 1, 1, _OUTSIDE),
        _plain("int8", 1, 1, _OUTSIDE),
        _plain("int4", 2, 1, _OUTSIDE),
        _row_scaled("fp8_per_token_head", 1, 4, _HEAD_SCALED),
        _row_scaled("int8_per_token_head", 1, 4, _HEAD_SCALED),
        _row_scaled("int4_per_token_head", 2, 4, _HEAD_SCALED),
        _row_scaled("int8_asym", 1, 4, "LMDeploy block.h Layout: 16-bit scale and zero a row"),
        _row_scaled("int4_asym", 2, 4, "LMDeploy block.h Layout: 16-bit scale and zero a row"),
        _grouped("fp8_block128", 128, 132, "DeepSeek-V3.2 indexer: fp8 keys, one fp32 scale a 128"),
        _grouped("nvfp4", 16, 9, "vLLM 0.33 nvfp4_kv_cache_full_dim: one fp8 scale per 16"),
        _grouped("mxfp8", 32, 33, "SGLang 0.5.23 pool_configurator.py: one byte of scale per 32"),
        _grouped("q8_0", 32, 34, _GGML.format("q8_0")),
        _grouped("q5_1", 32, 24, _GGML.format("q5_1")),
        _grouped("q5_0", 32, 22, _GGML.format("q5_0")),
        _grouped("q4_1", 32, 20, _GGML.format("q4_1")),
        _grouped("q4_0", 32, 18, _GGML.format("q4_0")),
        _grouped("iq4_nl", 32, 18, _GGML.format("iq4_nl")),
        _turboquant("k8v4", Packing(elements=1, bytes=1), _scaled(4, 4)),
        _turboquant("4bit_nc", _scaled(4, 2), _scaled(4, 4)),
        _turboquant("k3v4_nc", _scaled(3, 2), _scaled(4, 4)),
        _turboquant("3bit_nc", _scaled(3, 2), _scaled(3, 4)),
        CacheDtype(
            name="nvfp4_ds_mla",
            packing=None,
            by_role={
                # Fp4 and an fp8 scale per 16; the rotary part in fp8.
                "latent": Packing(elements=16, bytes=9, whole=True),
                "rope": Packing(elements=1, bytes=1),
            },
            source="vLLM 0.33 flashmla_sparse.py: 352 B a token",
        ),
        CacheDtype(
            name="fp8_ds_mla",
            packing=None,
            by_role={
                # 512 fp8 and four fp32 tile scales; the rotary part stays in 16 bits.
                "latent": Packing(elements=128, bytes=132, whole=True),
                "rope": Packing(elements=1, bytes=2),
                # DeepSeek-V4: 448 fp8, seven one-byte tile scales and one byte of padding.
                "nope": Packing(elements=1, bytes=1, row_bytes=8),
            },
            source="vLLM 0.33 MLAAttentionSpec: 656 B a token (DeepSeek-V4: 584 B an entry)",
        ),
    )
}

_ALIASES = {
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp8": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    # SGLang's: half a byte an element and a byte of scale for 16 of them.
    "fp4_mx_block16": "nvfp4",
    "fp4_e2m1": "nvfp4",
}
_GROUPED_INT = re.compile(r"int([248])_asym_g(\d{2,4})", re.ASCII)
_BITS = re.compile(r"([1-9]|1[0-6])bit", re.ASCII)


def cache_dtype(name: str) -> CacheDtype:
    """Return the dtype of that name.

    Besides the named ones there are two families: `int8_asym_g64` (2, 4 or 8 bits with a 16-bit
    scale and a 16-bit zero for every group of so many elements: Quanto, HQQ and MLX caches) and
    `6bit` (1 to 16 bits an element and no scales, as in DeepSeek-V2's 6-bit cache).

    Raises:
        UnknownNameError: no such dtype; the nearest are named.
    """
    known = name.lower()  # GGUF writes Q8_0, safetensors BF16
    found = DTYPES.get(_ALIASES.get(known, known))
    if found is not None:
        return found
    if match := _GROUPED_INT.fullmatch(known):
        bits, group = int(match[1]), int(match[2])
        if group and group % 8 == 0:
            return _grouped(
                known, group, group * bits // 8 + 4, "transformers 5.24 QuantoQuantizedLayer, HQQ"
            )
    if match := _BITS.fullmatch(known):
        return _plain(known, 8, int(match[1]), "arXiv 2405.04434 section 3.2.3: 6 bits on average")
    if "," in name:
        raise InvalidValueError(
            f"{name!r:.60} is no cache dtype", hint="repeat the option for several; K:V for two"
        )
    raise UnknownNameError(
        "cache dtype", name, [*DTYPES, *_ALIASES, "int8_asym_g64", "int4_asym_g64", "6bit"]
    )


def element_bytes(name: str) -> int:
    """Return the bytes of one element of a plain float dtype (model and state dtypes).

    Raises:
        UnsupportedError: not a dtype that models and states are kept in.
    """
    found = _FLOAT_BYTES.get(_ALIASES.get(name, name))
    if found is None:
        raise UnsupportedError(
            f"{name!r:.60} is not a dtype of models or states",
            hint="use float32, bfloat16 or float16",
        )
    return found


class KvDtype(Value, frozen=True, kw_only=True):
    """The dtype of K (and of every row that is not V) and the dtype of V."""

    k: CacheDtype
    v: CacheDtype

    @property
    def name(self) -> str:
        """The name, `K:V` where the two differ."""
        return self.k.name if self.k == self.v else f"{self.k.name}:{self.v.name}"

    def bytes_of(self, row: Row) -> int:
        """Return the bytes of all the row's vectors (one token, one layer).

        Raises:
            UnsupportedError: the dtype cannot pack the row, or K and V differ for a row that is
                both (a latent).
        """
        if self.k != self.v and row.role in ("latent", "nope", "rope"):
            raise UnsupportedError(
                f"K in {self.k.name} and V in {self.v.name}: an MLA row is K and V at once",
                hint="give one KV cache dtype for this model",
            )
        return (self.v if row.role == "v" else self.k).bytes_of(row)


def kv_dtype(text: str, model_dtype: str) -> KvDtype:
    """Read a KV cache dtype: a name, `K:V`, or `auto` for the model's own.

    Raises:
        UnknownNameError: no such dtype.

    >>> kv_dtype("q8_0:q4_0", "bfloat16").name
    'q8_0:q4_0'
    """
    k, colon, v = text.partition(":")
    first = cache_dtype(model_dtype if k == "auto" else k)
    if not colon:
        return KvDtype(k=first, v=first)
    return KvDtype(k=first, v=cache_dtype(model_dtype if v == "auto" else v))
