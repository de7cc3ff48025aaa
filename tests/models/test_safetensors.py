"""Weights to the byte from headers, and files that lie about themselves."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.errors import InputError, InvalidValueError, KvcalcError, UnsupportedError
from kvcalc.models.weights import Tensor, Weights, read_header, read_safetensors, summarise
from kvcalc.models.weights.header import DTYPE_BITS, MAX_HEADER_BYTES
from kvcalc.models.weights.summary import draft_layers, tensor_class
from tests.conftest import ABSENT, SHARED
from tests.guards import HANG

Shapes = Mapping[str, tuple[str, list[int]]]


def header_of(tensors: Shapes, metadata: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the header that lays the tensors one behind the other."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape) in tensors.items():
        bits = DTYPE_BITS[dtype]
        for dimension in shape:
            bits *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    return header


def packed(header: dict[str, Any] | bytes, data_bytes: int = 0, length: int | None = None) -> bytes:
    """Return a file: length, header, and zeros for data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return size.to_bytes(8, "little") + text + bytes(data_bytes)


def write(path: Path, tensors: Shapes) -> int:
    """Write a file whose data is a hole, and return the bytes of its tensors."""
    header = header_of(tensors, {"format": "pt"})
    total = max((entry["data_offsets"][1] for n, entry in header.items() if n[0] != "_"), default=0)
    text = packed(header)
    path.write_bytes(text)
    os.truncate(path, len(text) + int(total))
    return int(total)


def read_bytes(data: bytes, size: int | None = None) -> tuple[Tensor, ...]:
    return read_header(lambda at, n: data[at : at + n], len(data) if size is None else size, "f")


def refused(data: bytes, size: int | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read_bytes(data, size)
    assert caught.value.where.startswith("f")
    assert caught.value.hint
    assert (caught.value.message + caught.value.hint).isprintable()
    return caught.value.message


def weights_of(tensors: Shapes) -> Weights:
    """Read the weights of a file of any size, of which only the header exists."""
    header = header_of(tensors)
    end = max(entry["data_offsets"][1] for entry in header.values())
    text = packed(header)
    return summarise(read_bytes(text, len(text) + end), shards=1)


def decoder(
    *,
    layers: int,
    hidden: int,
    mlp: int,
    vocab: int,
    q: int,
    kv: int,
    bias: bool = False,
    head_norm: int = 0,
    tied: bool = False,
    experts: int = 0,
) -> Shapes:
    """Return the tensors of a Llama or Qwen checkpoint (q and kv: rows of the projections)."""
    found: dict[str, tuple[str, list[int]]] = {}

    def add(name: str, *shape: int) -> None:
        found[name] = ("BF16", list(shape))

    add("model.embed_tokens.weight", vocab, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            add(f"{at}.self_attn.{name}_proj.weight", rows, hidden)
            if bias:
                add(f"{at}.self_attn.{name}_proj.bias", rows)
        add(f"{at}.self_attn.o_proj.weight", hidden, q)
        if head_norm:
            add(f"{at}.self_attn.q_norm.weight", head_norm)
            add(f"{at}.self_attn.k_norm.weight", head_norm)
        if experts:
            add(f"{at}.mlp.gate.weight", experts, hidden)
        for expert in range(experts) or [None]:
            inner = f"{at}.mlp" if expert is None else f"{at}.mlp.experts.{expert}"
            add(f"{inner}.gate_proj.weight", mlp, hidden)
            add(f"{inner}.up_proj.weight", mlp, hidden)
            add(f"{inner}.down_proj.weight", hidden, mlp)
        add(f"{at}.input_layernorm.weight", hidden)
        add(f"{at}.post_attention_layernorm.weight", hidden)
    add("model.norm.weight", hidden)
    if not tied:
        add("lm_head.weight", vocab, hidden)
    return found


LLAMA_8B = decoder(layers=32, hidden=4096, mlp=14336, vocab=128256, q=4096, kv=1024)
LLAMA_70B = decoder(layers=80, hidden=8192, mlp=28672, vocab=128256, q=8192, kv=1024)
QWEN25_05B = decoder(
    layers=24, hidden=896, mlp=4864, vocab=151936, q=896, kv=128, bias=True, tied=True
)
QWEN3_30B = decoder(
    layers=48, hidden=2048, mlp=768, vocab=151936, q=4096, kv=512, head_norm=128, experts=128
)
PUBLISHED = {
    "meta-llama/Llama-3.1-8B": (LLAMA_8B, 16_060_522_496),
    "meta-llama/Llama-3.1-70B": (LLAMA_70B, 141_107_412_992),
    "Qwen/Qwen2.5-0.5B": (QWEN25_05B, 988_065_536),
    "Qwen/Qwen3-30B-A3B": (QWEN3_30B, 61_064_245_248),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_totals(model: str) -> None:
    tensors, total = PUBLISHED[model]
    weights = weights_of(tensors)
    assert weights.total_bytes == total
    assert weights.parameters == total // 2
    assert weights.tensors == len(tensors)
    assert weights.by_dtype == {"BF16": total}
    assert sum(weights.by_class.values()) == total
    assert "other" not in weights.by_class
    per_layer = set(weights.by_layer.values())
    assert len(per_layer) == 1
    outside = sum(
        part.divided_bytes + part.whole_bytes for part in weights.parts if part.layer is None
    )
    assert sum(weights.by_layer.values()) + outside == total
    assert weights.per_rank() == (total,)
    assert weights.notes == ()


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_published_totals_are_those_of_the_corpus() -> None:
    lines = (SHARED / "corpus" / "weights.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    known = {(row[0], row[1]) for row in rows}
    assert all((model, str(total)) in known for model, (_, total) in PUBLISHED.items())


def test_every_dtype() -> None:
    bits = {
        "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
        "U8": 8, "BOOL": 8, "U16": 16, "U32": 32, "U64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
        "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
        "C64": 64,
    }  # fmt: skip
    assert bits == DTYPE_BITS
    weights = weights_of({dtype: (dtype, [3, 8]) for dtype in bits})
    assert weights.by_dtype == {dtype: 3 * size for dtype, size in sorted(bits.items())}
    assert weights.parameters == 24 * len(bits)


def test_scalars_and_empty_tensors() -> None:
    weights = weights_of({"a": ("F32", []), "b": ("F32", [0, 7]), "c": ("U8", [5])})
    assert (weights.total_bytes, weights.parameters, weights.tensors) == (9, 6, 3)
    assert read_bytes(packed({})) == ()
    assert read_bytes(packed({"__metadata__": {"format": "pt"}})) == ()
    assert read_bytes(packed({"__metadata__": None})) == ()


def test_order_and_padding_of_a_header_do_not_matter() -> None:
    header = header_of({"a": ("U8", [4]), "b": ("U8", [2])})
    backwards = json.dumps(dict(reversed(header.items()))).encode() + b"     "
    found = read_bytes(packed(backwards, 6))
    assert [tensor.name for tensor in found] == ["a", "b"]


ENTRY = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"a": 1}', "its entry is not a mapping"),
        ('{"a": {}}', "its dtype is missing or no text"),
        (ENTRY.replace("U8", "INT8"), "unknown dtype 'INT8'"),
        (ENTRY.replace('"U8"', "8"), "its dtype is missing or no text"),
        (ENTRY.replace("[2]", "2"), "its shape is not a list of whole numbers"),
        (ENTRY.replace("[2]", "[-2]"), "its shape is not a list of whole numbers"),
        (ENTRY.replace("[2]", "[2.0]"), "its shape is not a list of whole numbers"),
        (ENTRY.replace("[2]", "[true]"), "its shape is not a list of whole numbers"),
        (ENTRY.replace("[2]", "[[2]]"), "its shape is not a list of whole numbers"),
        (ENTRY.replace("[2]", "[9223372036854775808]"), "is not a list of whole numbers"),
        (ENTRY.replace("[2]", f"[{','.join(['9223372036854775807'] * 9)}]"), "larger than any"),
        (ENTRY.replace("[2]", "[3]"), "take 3 bytes, its offsets 2"),
        (ENTRY.replace("[0,2]", "[0]"), "its data_offsets are not two whole numbers"),
        (ENTRY.replace("[0,2]", "[0,2,4]"), "its data_offsets are not two whole numbers"),
        (ENTRY.replace("[0,2]", "[-2,0]"), "its data_offsets are not two whole numbers"),
        (ENTRY.replace("[0,2]", "[2,0]"), "take 2 bytes, its offsets -2"),
        (ENTRY.replace("U8", "F4").replace("[2]", "[3]"), "12 bits are no whole number of bytes"),
        (ENTRY.replace("[0,2]", "[1,3]"), "leaves a gap before it"),
        (f'{{"a":{ENTRY},"b":{ENTRY}}}', "the data of 'b' overlaps the one before it"),
        (f'{{"a":{ENTRY},"b":{ENTRY.replace("[0,2]", "[1,3]")}}}', "'b' overlaps"),
        (f'{{"a":{ENTRY},"b":{ENTRY.replace("[0,2]", "[3,5]")}}}', "'b' leaves a gap"),
        (f'{{"a":{ENTRY},\n"a":{ENTRY}}}', "'a' stands twice"),
        (f'{{"a":{ENTRY},"__metadata__":[]}}', "__metadata__ is not a mapping"),
        (f'{{"a":{ENTRY},"__metadata__":{{"a":1}}}}', "__metadata__ is not a mapping"),
        ("[]", "not a JSON object"),
        ('{"a":', "not valid JSON"),
        ('{"a":' * 5000, "levels deep"),
        ('{"a":' + "[" * 99999, "levels deep"),
        ("", "the file is empty"),
    ],
)
def test_hostile_headers(header: str, message: str) -> None:
    if header.startswith('{"dtype"'):
        header = f'{{"a":{header}}}'
    assert message in refused(packed(header.encode(), 2))


def test_lengths_that_lie() -> None:
    sound = header_of({"a": ("U8", [4])})
    length = len(json.dumps(sound))
    assert read_bytes(packed(sound, 4))
    assert "the file holds 3" in refused(packed(sound, 3))
    assert "the file holds 5" in refused(packed(sound, 5))
    assert "not valid JSON" in refused(packed(sound, 4, length=length - 1))
    assert "has 61 after it" in refused(packed(sound, 4, length=99)).replace(str(length + 4), "61")
    assert "a header of 100000001 bytes" in refused(packed(sound, 4, MAX_HEADER_BYTES + 1))
    assert "not a safetensors file" in refused(b"\xff" * 40)
    assert "ends inside its header" in refused(packed(sound)[:-5], 10**9)
    for short in range(8):
        assert "too short" in refused(bytes(short))
    assert "GGUF" in refused(b"GGUF\3\0\0\0" + bytes(99))
    assert "zip" in refused(b"PK\3\4\0\0\x08\x08" + bytes(99))
    assert "Git LFS pointer" in refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0")
    assert "not UTF-8" in refused(packed(b'{"\xff": 1}'))


def test_only_the_header_is_read() -> None:
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": ("F8_E4M3", [4096, 4096]) for n in range(9)}
    text = packed(header_of(tensors))
    asked: list[tuple[int, int]] = []

    def read(offset: int, count: int) -> bytes:
        asked.append((offset, count))
        return text[offset : offset + count]

    assert len(read_header(read, len(text) + 9 * 2**24, "f")) == 9
    assert asked == [(0, 8), (8, len(text) - 8)]


def test_classes_by_name() -> None:
    """Names of published checkpoints."""
    expected = {
        "embedding": (
            "model.embed_tokens.weight", "transformer.wte.weight", "transformer.wpe.weight",
            "transformer.word_embeddings.weight", "gpt_neox.embed_in.weight", "shared.weight",
            "model.decoder.embed_positions.weight", "tok_embeddings.weight",
            "backbone.embeddings.weight", "model.language_model.embed_tokens_per_layer.weight",
            "transformer.embedding.word_embeddings.weight",
        ),
        "lm_head": (
            "lm_head.weight", "embed_out.weight", "output.weight", "head.weight",
            "transformer.output_layer.weight", "language_model.lm_head.weight",
        ),
        "attention": (
            "model.layers.0.self_attn.q_proj.weight", "transformer.h.0.attn.c_attn.weight",
            "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
            "model.layers.0.self_attn.indexer.wk.weight", "layers.0.attention.wq.weight",
            "transformer.h.0.self_attention.query_key_value.weight",
            "decoder.block.0.layer.0.SelfAttention.q.weight",
            "decoder.block.0.layer.1.EncDecAttention.q.weight",
            "backbone.layers.7.mixer.q_proj.weight", "model.layers.0.temporal_block.q_proj.weight",
            "language_model.model.layers.3.cross_attn.q_proj.weight",
        ),
        "mlp": (
            "model.layers.0.mlp.gate_proj.weight", "model.decoder.layers.0.fc1.weight",
            "transformer.h.0.mlp.dense_h_to_4h.weight", "layers.0.feed_forward.w1.weight",
            "backbone.layers.1.mixer.up_proj.weight", "model.layers.0.mlp.down_proj.qweight",
            "decoder.block.0.layer.2.DenseReluDense.wi_0.weight",
        ),
        "experts": (
            "model.layers.3.mlp.experts.17.up_proj.weight", "model.layers.0.mlp.experts.down_proj",
            "model.layers.3.mlp.shared_experts.up_proj.weight",
            "model.layers.0.block_sparse_moe.experts.1.w1.weight",
            "model.layers.0.mlp.experts.gate_up_proj_blocks",
            "model.layers.0.mlp.shared_expert.up_proj.weight",
            "backbone.layers.1.mixer.experts.3.up_proj.weight",
        ),
        "router": (
            "model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate.e_score_correction_bias",
            "model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.router.weight",
            "language_model.model.layers.0.feed_forward.router.weight",
            "model.layers.0.mlp.shared_expert_gate.weight",
            "backbone.layers.1.mixer.gate.weight",
        ),
        "norm": (
            "model.norm.weight", "model.layers.0.input_layernorm.weight",
            "model.layers.0.self_attn.q_norm.weight", "transformer.h.0.ln_1.bias",
            "model.layers.0.self_attn.kv_a_layernorm.weight", "transformer.ln_f.weight",
            "backbone.layers.0.mixer.norm.weight", "backbone.norm_f.weight",
            "model.layers.0.linear_attn.norm.weight",
        ),
        "recurrent": (
            "model.layers.0.mamba.in_proj.weight", "backbone.layers.0.mixer.A_log",
            "backbone.layers.0.mixer.conv1d.weight", "model.layers.0.linear_attn.dt_bias",
            "model.layers.0.conv.in_proj.weight", "model.layers.0.temporal_block.linear_y.weight",
        ),
        "vision": (
            "model.visual.blocks.0.attn.qkv.weight", "vision_tower.encoder.layers.0.mlp.fc1.weight",
            "multi_modal_projector.linear_1.weight", "mm_projector.proj.0.weight", "mlp1.1.weight",
            "vision_model.encoder.layers.0.norm1.weight", "model.embed_vision.embedding.weight",
        ),
        "audio": ("audio_tower.layers.0.self_attn.k_proj.weight", "model.embed_audio.norm.weight"),
        "draft": ("mtp.layers.0.mlp.up_proj.weight", "model.mtp_layers.0.norm.weight"),
        "other": ("model.altup_projections.0.weight", "x", "", "..", "score.weight"),
    }  # fmt: skip
    found = {name: tensor_class(name) for names in expected.values() for name in names}
    assert found == {name: kind for kind, names in expected.items() for name in names}


def test_draft_layers_in_the_list_of_layers() -> None:
    """DeepSeek-V3 keeps its extra layer as number 61 of 61."""
    tensors: dict[str, tuple[str, list[int]]] = {
        f"model.layers.{n}.self_attn.o_proj.weight": ("BF16", [8, 8]) for n in range(4)
    }
    tensors["model.layers.3.eh_proj.weight"] = ("BF16", [8, 16])
    tensors["model.layers.3.embed_tokens.weight"] = ("BF16", [64, 8])
    tensors["mtp.layers.0.shared_head.norm.weight"] = ("BF16", [8])
    weights = weights_of(tensors)
    assert weights.by_layer == {0: 128, 1: 128, 2: 128}
    assert weights.by_class == {"attention": 384, "draft": 128 + 256 + 1024 + 16}
    assert draft_layers(tensors) == {3}


def test_an_encoder_is_not_among_the_decoder_layers() -> None:
    both = {
        f"{stack}.block.{n}.layer.0.SelfAttention.q.weight": ("F32", [2, 2])
        for stack in ("encoder", "decoder")
        for n in range(2)
    }
    assert weights_of(both).by_layer == {0: 16, 1: 16}
    # ChatGLM's decoder, and a language model beside a tower with an encoder.
    glm = {"transformer.encoder.layers.0.mlp.dense_h_to_4h.weight": ("F16", [2, 2])}
    assert weights_of(glm).by_layer == {0: 8}
    opt = {
        "model.decoder.layers.0.fc1.weight": ("F16", [2, 2]),
        "vision_tower.encoder.layers.0.fc1.weight": ("F16", [2, 2]),
    }
    assert weights_of(opt).by_layer == {0: 8}


def test_ranks_of_llama_8b() -> None:
    weights = weights_of(LLAMA_8B)
    norms = 65 * 4096 * 2
    matrices = weights.total_bytes - norms
    assert weights.per_rank(2) == (matrices // 2 + norms,)
    assert weights.per_rank(8) == (matrices // 8 + norms,)
    table = 128256 * 4096 * 2
    layer = weights.by_layer[0]
    assert weights.per_rank(1, 2) == (table + 16 * layer, table + 16 * layer + 4096 * 2)
    assert sum(weights.per_rank(1, 3)) == weights.total_bytes
    # Rows of a table are rounded up: 128256 = 7 * 18322 + 2.
    (seventh,) = weights.per_rank(7)
    assert seventh > matrices // 7 + norms + 2 * 8192 * 5 // 7


def test_ranks_of_tied_embeddings_and_refusals() -> None:
    weights = weights_of(QWEN25_05B)
    table = 151936 * 896 * 2
    assert sum(weights.per_rank(1, 2)) == weights.total_bytes + table
    assert "lm_head" not in weights.by_class
    with pytest.raises(UnsupportedError, match="24 layers cannot be split"):
        weights.per_rank(1, 25)
    for sizes in ((0, 1), (1, 0), (-1, 1), (True, 1)):
        with pytest.raises(InvalidValueError):
            weights.per_rank(*sizes)
    with pytest.raises(UnsupportedError, match="show no layers"):
        weights_of({"a": ("U8", [1])}).per_rank(1, 2)


def test_routers_and_vectors_are_whole_on_every_rank() -> None:
    weights = weights_of(
        {
            "model.layers.0.mlp.gate.weight": ("F32", [8, 4]),
            "model.layers.0.mlp.experts.0.up_proj.weight": ("U8", [8, 4]),
            "model.layers.0.mlp.experts.0.up_proj.scale": ("F32", []),
            "model.layers.0.self_attn.q_proj.bias": ("U8", [6]),
        }
    )
    assert weights.per_rank(4) == (128 + 8 + 4 + 6,)


SHARD = "model-0000{}-of-00003.safetensors"


def sharded(folder: Path, stated: object = None) -> int:
    """Write a checkpoint of three shards and its index; return the bytes of its tensors."""
    names = list(QWEN25_05B)
    weight_map: dict[str, str] = {}
    total = 0
    for number in (1, 2, 3):
        own = {name: QWEN25_05B[name] for name in names[number - 1 :: 3]}
        total += write(folder / SHARD.format(number), {n: (d, [1, 8]) for n, (d, _) in own.items()})
        weight_map |= dict.fromkeys(own, SHARD.format(number))
    metadata = {} if stated is None else {"metadata": {"total_size": stated}}
    index = metadata | {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def test_a_single_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    total = write(file, {"lm_head.weight": ("F8_E4M3", [1000, 1000])})
    weights = read_safetensors(file)
    assert (weights.total_bytes, weights.shards) == (total, 1)
    assert read_safetensors(str(tmp_path)) == weights
    os.rename(file, tmp_path / "other.safetensors")
    assert read_safetensors(tmp_path) == weights


def test_shards_with_an_index(tmp_path: Path) -> None:
    total = sharded(tmp_path)
    weights = read_safetensors(tmp_path)
    assert weights == read_safetensors(tmp_path / "model.safetensors.index.json")
    assert (weights.total_bytes, weights.shards, weights.stated_bytes) == (total, 3, None)
    assert weights.tensors == len(QWEN25_05B)
    assert weights.notes == ()


@pytest.mark.parametrize(
    ("stated", "read", "note"),
    [
        (4640, 4640, ""),
        (4640.0, 4640, ""),
        (4641, 4641, "the index's total_size is 4641, the tensors take 4640"),
        (0, 0, "the index's total_size is 0, the tensors take 4640"),
        ("4640", None, "the index's total_size is '4640', not a number of bytes"),
        (-1, None, "the index's total_size is -1, not a number of bytes"),
        (1e300, None, "the index's total_size is 1e+300, not a number of bytes"),
        ({}, None, "the index's total_size is a mapping, not a number of bytes"),
    ],
)
def test_total_size_of_the_index(
    tmp_path: Path, stated: object, read: int | None, note: str
) -> None:
    assert sharded(tmp_path, stated) == 4640
    weights = read_safetensors(tmp_path)
    assert weights.total_bytes == 4640
    assert weights.stated_bytes == read
    assert weights.notes == ((note,) if note else ())


def test_shards_that_do_not_match(tmp_path: Path) -> None:
    sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / SHARD.format(2)).unlink()
    with pytest.raises(InputError, match=r"1 of 3 shards are missing: model-00002-of-00003"):
        read_safetensors(tmp_path)
    (tmp_path / SHARD.format(1)).unlink()
    with pytest.raises(InputError, match=r"2 of 3 shards are missing: .*, \.\.\."):
        read_safetensors(index)
    sharded(tmp_path)
    write(tmp_path / SHARD.format(2), {"x": ("U8", [3])})
    with pytest.raises(InputError, match=r"holds no tensor 'model\..*, nor \d+ more of the index"):
        read_safetensors(tmp_path)
    sharded(tmp_path)
    most = {name: ("BF16", [1, 8]) for name in list(QWEN25_05B)[4::3]}
    write(tmp_path / SHARD.format(2), most)
    with pytest.raises(InputError, match=r"holds no tensor 'model\.[^,]*$"):
        read_safetensors(tmp_path)
    sharded(tmp_path)
    extra = {name: ("BF16", [1, 8]) for name in list(QWEN25_05B)[1::3]} | {"x": ("U8", [3])}
    write(tmp_path / SHARD.format(2), extra)
    weights = read_safetensors(tmp_path)
    assert weights.total_bytes == 4640
    assert "holds 1 tensors (3 bytes) that the index does not list" in weights.notes[0]
    (tmp_path / SHARD.format(3)).write_bytes(b"x")
    with pytest.raises(InputError, match="too short") as caught:
        read_safetensors(tmp_path)
    assert caught.value.where.endswith(SHARD.format(3))


def test_shards_without_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    weights = read_safetensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    unlisted = read_safetensors(tmp_path)
    assert unlisted.by_class == weights.by_class
    assert unlisted.notes == ("the shards have no index",)
    with pytest.raises(InputError, match="this is shard 2 of 3, not the checkpoint"):
        read_safetensors(tmp_path / SHARD.format(2))
    write(tmp_path / SHARD.format(3), {next(iter(QWEN25_05B)): ("U8", [3])})
    with pytest.raises(InputError, match="two shards hold a tensor"):
        read_safetensors(tmp_path)
    (tmp_path / SHARD.format(1)).unlink()
    with pytest.raises(InputError, match="2 of 3 shards are there; number 1 is missing"):
        read_safetensors(tmp_path)
    write(tmp_path / "model-00004-of-00003.safetensors", {"x": ("U8", [3])})
    write(tmp_path / SHARD.format(1), {"y": ("U8", [3])})
    with pytest.raises(InputError, match="4 of 3 shards are there"):
        read_safetensors(tmp_path)
    write(tmp_path / "other-00001-of-00002.safetensors", {"x": ("U8", [3])})
    with pytest.raises(InputError, match="2 sets of shards"):
        read_safetensors(tmp_path)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \.safetensors file"):
        read_safetensors(tmp_path)
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.safetensors", {"x": ("U8", [3])})
    with pytest.raises(InputError, match=r"holds 3 \.safetensors files and no index"):
        read_safetensors(tmp_path)
    sharded(tmp_path)
    assert read_safetensors(tmp_path).shards == 3
    write(tmp_path / "model.safetensors", {"x": ("U8", [3])})
    with pytest.raises(InputError, match=r"holds model.safetensors and also"):
        read_safetensors(tmp_path)
    (tmp_path / "a-00001-of-00002.safetensors").mkdir()
    text = json.dumps({"weight_map": {"x": "a-00001-of-00002.safetensors"}})
    (tmp_path / "a.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="is a directory"):
        read_safetensors(tmp_path / "a.safetensors.index.json")
    # An index may name the single file.
    text = json.dumps({"weight_map": {"x": "model.safetensors"}})
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert read_safetensors(tmp_path).total_bytes == 3


@pytest.mark.parametrize(
    "index",
    [
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": "../a.safetensors"}}',
        '{"weight_map": {"a": "/a.safetensors"}}',
        '{"weight_map": {"a": "b\\\\a.safetensors"}}',
        '{"weight_map": {"a": "C:a.safetensors"}}',
        '{"weight_map": {"a": ".safetensors"}}',
        '{"weight_map": {"a": "a.bin"}}',
        '{"weight_map": {"a": "a\\u0000.safetensors"}}',
        '{"weight_map": {"a": "a.safetensors", "a": "b.safetensors"}}',
        "[",
        "",
        "null",
    ],
)
def test_hostile_indexes(tmp_path: Path, index: str) -> None:
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(index, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_safetensors(file)
    assert str(tmp_path) in caught.value.where
    assert caught.value.hint


def test_too_many_shards(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors.index.json"
    names = {f"t{n}": f"s{n}.safetensors" for n in range(10_001)}
    file.write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    with pytest.raises(InputError, match="more than 10000 shards"):
        read_safetensors(file)


def test_paths_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="no such file"):
        read_safetensors(tmp_path / SHARD.format(1))
    with pytest.raises(InputError, match="not an index of safetensors files"):
        read_safetensors(tmp_path / "config.json")
    with pytest.raises(InputError, match="no such file"):
        read_safetensors(tmp_path / "x.safetensors.index.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_safetensors("a\0.safetensors")
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(InputError):
        read_safetensors(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match="permission denied"):
        read_safetensors(tmp_path)


def _slips(rng: random.Random) -> Iterable[str]:
    yield from ("0", "-1", "1.5", "null", "[]", "{}", '"U8"', '"F4"', "1e400", "9" * 30, "")
    yield from (str(2**63), "true", "[" * 70, '"a"', ",", "}", "]", '"', "\\", "\x00", "é")
    yield str(rng.randrange(300))


def test_mutated_files() -> None:
    rng = random.Random(20261129)
    shapes: Shapes = {
        "model.embed_tokens.weight": ("BF16", [16, 4]),
        "model.layers.0.mlp.up_proj.weight": ("F4", [8, 4]),
        "model.layers.0.input_layernorm.weight": ("F32", [4]),
        "x": ("I64", []),
    }
    header = header_of(shapes, {"format": "pt"})
    sound, total = json.dumps(header), 128 + 16 + 16 + 8
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1000):
        text, data = sound, total
        for _ in range(rng.choice([0, 1, 1, 2, 5])):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(list(_slips(rng))) + text[at + rng.randrange(4) :]
        file = bytearray(packed(text.encode(), data))
        if rng.random() < 0.3:
            file[rng.randrange(8)] = rng.randrange(256)
        if rng.random() < 0.2:
            del file[rng.randrange(len(file)) :]
        start = time.process_time()
        try:
            weights = summarise(read_bytes(bytes(file)), shards=1)
            assert weights.total_bytes == total
            weights.per_rank(rng.randrange(1, 9))
            outcomes["read"] += 1
        except KvcalcError as error:
            assert error.where.startswith("f")
            assert (error.message + error.hint).isprintable()
            outcomes["refused"] += 1
        assert time.process_time() - start < HANG
    assert min(outcomes.values()) > 50, outcomes


def test_a_checkpoint_of_many_experts_is_read_quickly() -> None:
    """As many tensors as a shard of DeepSeek-V3 has, ten times over."""
    tensors: dict[str, tuple[str, list[int]]] = {
        f"model.layers.{n // 768}.mlp.experts.{n % 256}.{'gd'[n % 2]}{n % 3}.weight": (
            "F8_E4M3",
            [2048, 7168],
        )
        for n in range(20_000)
    }
    text = packed(header_of(tensors))
    size = len(text) + len(tensors) * 2048 * 7168
    start = time.process_time()
    weights = summarise(read_bytes(text, size), shards=1)
    assert time.process_time() - start < HANG
    assert weights.tensors == len(tensors)
