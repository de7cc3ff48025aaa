"""The gguf package of llama.cpp reads the same from files as kvcalc does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvcalc.models.gguf import read_gguf, read_header
from kvcalc.models.gguf.header import GGML_TYPES, tensor_bytes
from tests.models.gguf.writer import LLAMA, Tensor, Writer, named

gguf: Any = pytest.importorskip("gguf")

Q8_1 = 9
"""The package says 40 bytes; block_q8_1 of ggml-common.h has 36 since 2024. No file holds it."""

TENSORS = [
    Tensor("token_embd.weight", (256, 32), 1, 16384),
    Tensor("blk.0.attn_k.weight", (256, 4), 12, 576),
    Tensor("blk.1.attn_k.weight", (256, 4), 8, 1088),
    Tensor("output_norm.weight", (256,), 0, 1024),
]


def test_types() -> None:
    """Every type that the package knows has the same block, and no other."""
    official = {int(t): size for t, size in gguf.GGML_QUANT_SIZES.items()}
    assert official.pop(Q8_1) == (32, 40)
    ours = {number: (t.elements, t.bytes) for number, t in GGML_TYPES.items()}
    assert {n: ours[n] for n in official} == official
    names = {int(t): t.name.lower() for t in gguf.GGML_QUANT_SIZES}
    assert {n: GGML_TYPES[n].name for n in names} == names


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_reader(tmp_path: Path, order: str, version: int) -> None:
    """Keys, values and tensor sizes agree in both byte orders and versions."""
    path = tmp_path / "m.gguf"
    values = named("llama", {**LLAMA, "general.name": "N", "list": [1, 2], "words": ["a", "b"]})
    path.write_bytes(Writer(order).file(values, TENSORS, version=version))
    official = gguf.GGUFReader(str(path))
    with path.open("rb") as stream:
        header = read_header(stream, path.stat().st_size, "m.gguf")
    assert set(header.entries) == {k for k in official.fields if not k.startswith("GGUF.")}
    for key, entry in header.entries.items():
        if key != "llama.words":
            contents = official.fields[key].contents()
            assert entry == (tuple(contents) if isinstance(contents, list) else contents)
    assert header.tensors.total == sum(int(t.n_bytes) for t in official.tensors)
    layers = {
        i: sum(int(t.n_bytes) for t in official.tensors if f"blk.{i}." in t.name) for i in (0, 1)
    }
    assert header.tensors.by_layer == layers
    foreign = (order == "<") != (sys.byteorder == "little")
    assert official.byte_order == ("S" if foreign else "I")
    del official  # a memory map, which on Windows keeps the file from being removed


@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_writer(tmp_path: Path, endian: str) -> None:
    """A file of the package's writer is read as it was meant."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama", endianess=gguf.GGUFEndian[endian])
    writer.add_name("Written")
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv([1, 2])
    writer.add_token_list(["a", "b", "c"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = read_gguf(str(path))
    assert model.spec.name == "Written"
    assert model.byte_order == endian.lower()
    assert model.spec.bytes_per_token() == 3 * 2 * 64 * 2


def test_tensor_bytes() -> None:
    """The sizes of tensors of every type are those of the package."""
    for type_, known in GGML_TYPES.items():
        if type_ == Q8_1:
            continue
        try:
            official = gguf.GGMLQuantizationType(type_)
        except ValueError:
            continue
        shape = (known.elements * 3, 5)
        expected = gguf.quants.quant_shape_to_byte_shape(shape[::-1], official)
        assert tensor_bytes(type_, shape) == expected[0] * expected[1]
