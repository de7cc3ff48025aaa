"""fit: against the real common_params_fit_impl, and what a plan makes of its choice.

`fit_rows.jsonl` holds what common/fit.cpp of b11434 itself decided, compiled as it is, with devices
and models of given sizes standing in for real ones; rows are small models of our own.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.attention import FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.layers import LayerRun
from kvcalc.core.lengths import Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.size import WeightTensor
from kvcalc.engines import plan
from kvcalc.engines.llamacpp import fitting
from kvcalc.engines.llamacpp.contexts import contexts_of, draft_context
from kvcalc.engines.llamacpp.fit import moves_of
from kvcalc.engines.llamacpp.loaded import loaded, tensor_bytes
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.settings import resolve

ROWS = Path(__file__).with_name("fit_rows.jsonl")
MIB = 2**20
KINDS = (
    "attn_q",
    "ffn_up",
    "ffn_gate",
    "ffn_down",
    "ffn_up_exps",
    "ffn_gate_exps",
    "ffn_down_exps",
)
FAILURES = {
    "n_gpu_layers already set by user": "n_gpu_layers was given",
    "model_params::tensor_split already set": "tensor_split was given",
    "model_params::tensor_buft_overrides already": "tensors were moved by override_tensor",
}


def _tensor(name: str, size: int) -> WeightTensor:
    return WeightTensor(name=name, bytes=size, row=512, block=1, block_bytes=1)


def _model(row: dict[str, Any]) -> ModelSpec:
    layers, drafts = row["layers"], row["drafts"]
    sizes = {"token_embd": row["embd"] * 1024, "output_norm": 16384, "output": row["output"] * 1024}
    for layer, (_, *parts) in enumerate(layers):
        sizes |= {
            f"blk.{layer}.{kind}": part * 1024 for kind, part in zip(KINDS, parts, strict=True)
        }
    runs = [
        LayerRun(count=1, caches=(FullAttention(num_kv_heads=heads, head_dim=64),))
        for heads, *_ in layers
    ]
    main = len(layers) - drafts
    return ModelSpec(
        name="made",
        num_hidden_layers=main,
        dtype="float16",
        layers=tuple(runs[:main]),
        draft_layers=tuple(runs[main:]),
        architecture="glm4moe" if drafts else "llama",
        max_position_embeddings=row["train"],
        num_attention_heads=4,
        weights=tuple(_tensor(f"{name}.weight", size) for name, size in sizes.items() if size),
    )


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines())


def _deployment(row: dict[str, Any]) -> Deployment:
    return Deployment(
        engine="llama.cpp",
        engine_args=row["args"],
        speculative_method=row.get("method"),
        draft_model=_model(row["draft"]) if "draft" in row else None,
    )


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return what kvcalc's fit comes to, in the form of the rows."""
    model, deployment = _model(row["model"]), _deployment(row)
    settings = resolve(model, deployment, [])

    def contexts(other: Deployment) -> Any:
        now = resolve(model, other, [])
        found = contexts_of(model, now, [])
        if isinstance(other.draft_model, ModelSpec):
            found.append(draft_context(other.draft_model, model, now, []))
        return found

    found = fitting.fit_devices(model, deployment, settings, contexts)
    assert found is not None
    streams = 1 if settings.cells.unified else settings.cells.sequences
    given = row["args"].get("ctx_size") or (model.max_position_embeddings or 0) * streams
    answer: dict[str, Any] = {"n_ctx": given if found.size is None else found.size}
    if found.failure is not None:
        answer["failure"] = found.failure
    elif found.filling is not None:
        answer["layers"] = [load.layers for load in found.filling.loads]
        moves = [
            [layer, fraction.name, device]
            for layer, told in moves_of(found.filling, found.layers).items()
            for fraction, device in told
        ]
        if moves:
            answer["moves"] = sorted(moves, key=lambda move: move[0])
    return answer


def test_every_answer_is_the_real_one() -> None:
    """Context, layers by device, what of partial layers goes where, and why it gave up."""
    for number, row in enumerate(_rows()):
        expected, found = dict(row["answer"]), _answer(row)
        if "failure" in expected:
            (said,) = [ours for theirs, ours in FAILURES.items() if theirs in expected["failure"]]
            assert found.pop("failure").startswith(said), number
            del expected["failure"]
        if "moves" in expected:
            expected["moves"] = sorted(expected["moves"], key=lambda move: move[0])
        assert found == expected, number


def test_the_rows_hold_every_outcome() -> None:
    answers = [row["answer"] for row in _rows()]
    assert len(answers) == 160
    assert sum("failure" in answer for answer in answers) >= 10
    assert sum("moves" in answer for answer in answers) >= 40
    kinds = {move[1] for answer in answers for move in answer.get("moves", ())}
    assert kinds == {"ATTN", "UP", "GATE", "MOE"}
    assert any(move[2] != HOST for answer in answers for move in answer.get("moves", ()))
    assert sum("draft" in row for row in _rows()) >= 5
    assert sum(row.get("method") == "mtp" for row in _rows()) >= 5


@pytest.mark.parametrize("number", range(0, 160, 8))
def test_a_plan_of_every_choice(number: int) -> None:
    """Weights and caches of all devices are those of the model, and used + wastes are reserved."""
    row = _rows()[number]
    model = _model(row["model"])
    found = plan(model, _deployment(row))
    told = [note for note in found.notes if note.startswith("fit ")]
    assert told or "failure" not in row["answer"]
    for rank in found.ranks:
        for n in (1, 1000, found.max_model_len):
            wastes = rank.wastes(Lengths.of([n]))
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
    layers = sum(rank.share.num_hidden_layers for rank in found.ranks if rank.share is not None)
    assert layers == model.num_hidden_layers


def _dense(layers: int = 8, **rest: Any) -> ModelSpec:
    row = [4, 16 * 1024, 32 * 1024, 32 * 1024, 32 * 1024, 0, 0, 0]
    return _model(
        {"layers": [row] * layers, "drafts": 0, "embd": 65536, "output": 0, "train": 32768, **rest}
    )


def _plan(model: ModelSpec, **args: Any) -> CachePlan:
    return plan(model, Deployment(engine="llama.cpp", engine_args={"parallel": 1, **args}))


class TestOneCard:
    """A layer is 112 MiB of weights and 1 KiB a token; the output a copy of 64 MiB."""

    def test_all_fits(self) -> None:
        found = _plan(_dense(), device_memory="4GiB")
        assert found.max_model_len == 32768
        assert [rank.name for rank in found.ranks] == ["rank"]
        assert found.rank.weights_bytes == 8 * 112 * MIB + 64 * MIB + 16384
        assert "fit leaves the layers where they are: they fit, and the margin stays free" in (
            found.notes
        )

    def test_the_context_shrinks(self) -> None:
        """4 KiB a token over 8 layers: 128 MiB less than the whole context are 16,384 tokens."""
        weights = 8 * 112 * MIB + 64 * MIB + 16384
        found = _plan(_dense(), device_memory=str(1024 * MIB + weights + 128 * MIB))
        assert found.max_model_len == 16384
        smaller = _plan(_dense(), device_memory=str(weights + 128 * MIB), fit_target=0)
        assert smaller.max_model_len == 16384
        counted = _plan(
            _dense(), device_memory=str(weights + 128 * MIB), fit_target=0, compute_mib=64
        )
        assert counted.max_model_len == 8192

    def test_layers_leave_the_card(self) -> None:
        found = _plan(_dense(), device_memory="500MiB", fit_target=0, ctx_size=4096)
        assert found.max_model_len == 4096
        sizes = {rank.name: rank.pools[0].groups[0].layers for rank in found.ranks}
        # 64 MiB for the output, and 116 MiB a layer with its cache.
        assert sizes == {"GPU 0": 3, "host": 5}
        assert [rank.weights_bytes for rank in found.ranks] == [
            3 * 112 * MIB + 64 * MIB + 16384,
            5 * 112 * MIB + 64 * MIB,
        ]
        assert any(
            "GPU 0 layers 5 to 7, the output" in note and "host layers 0 to 4" in note
            for note in found.notes
        )

    def test_no_kv_offload_leaves_room_for_layers(self) -> None:
        found = _plan(
            _dense(), device_memory="500MiB", fit_target=0, ctx_size=32768, no_kv_offload=True
        )
        assert [rank.name for rank in found.ranks] == ["host"]
        assert any("GPU 0 keeps 4 layers" in note for note in found.notes)

    def test_a_number_of_layers_stays(self) -> None:
        for layers in (9, "all"):
            found = _plan(_dense(), device_memory="500MiB", ctx_size=4096, n_gpu_layers=layers)
            assert [rank.name for rank in found.ranks] == ["rank"]
            assert any("n_gpu_layers was given" in note for note in found.notes)
        auto = _plan(_dense(), device_memory="500MiB", ctx_size=4096, n_gpu_layers="auto")
        assert [rank.name for rank in auto.ranks] == ["host"]

    def test_off(self) -> None:
        found = _plan(_dense(), device_memory="500MiB", fit="off")
        assert found.max_model_len == 32768
        assert not any(note.startswith("fit ") for note in found.notes)

    def test_what_cannot_be_known_is_said(self) -> None:
        bare = ModelSpec(name="bare", num_hidden_layers=8, dtype="float16", layers=_dense().layers)
        for model, args, said in (
            (_dense(), {}, "free memory is not known"),
            (bare, {"device_memory": "1GiB"}, "each tensor of the weights"),
            (_dense(), {"device_memory": "1GiB", "device": "none"}, "host's memory"),
        ):
            assert any(said in line for line in _plan(model, **args).unsupported)
        assert any(
            "compute_mib" in line for line in _plan(_dense(), device_memory="4GiB").unsupported
        )

    def test_device_memory_is_read(self) -> None:
        with pytest.raises(InvalidValueError, match="device_memory"):
            _plan(_dense(), device_memory="much")


class TestWeights:
    """Which tensors are loaded where."""

    def test_tied_embedding_is_copied_to_the_output(self) -> None:
        tensors = [_tensor("token_embd.weight", 100), _tensor("blk.0.attn_q.weight", 7)]
        found = loaded(tensors, 1, kept=1, padded=False)
        assert found.on((0, 0)) == {HOST: 128, 0: 107}
        assert found.on((0, HOST)) == {HOST: 128, 0: 7}
        own = loaded([*tensors, _tensor("output.weight", 30)], 1, kept=1, padded=False)
        assert own.on((0, 0)) == {HOST: 128, 0: 37}

    def test_first_layer_and_rope_factors(self) -> None:
        names = ("token_embd_norm.weight", "rope_freqs.weight", "blk.1.attn_q.weight")
        found = loaded([_tensor(name, 10) for name in names], 2, kept=2, padded=False)
        assert found.on((0, 1, 1)) == {HOST: 0, 0: 20, 1: 20}

    def test_draft_layers_are_loaded_only_where_they_propose(self) -> None:
        tensors = [_tensor(f"blk.{layer}.attn_q.weight", 5) for layer in range(3)]
        assert loaded(tensors, 3, kept=2, padded=False).on((0,) * 4)[0] == 10
        assert loaded(tensors, 3, kept=3, padded=False).on((0,) * 4)[0] == 15

    def test_cuda_pads(self) -> None:
        """A quantised row of 576 is padded to 1,024 once a tensor; all end at multiples of 128."""
        q8 = WeightTensor(name="x", bytes=2 * 18 * 34, row=576, block=32, block_bytes=34)
        padded = 2 * 18 * 34 + 14 * 34
        assert tensor_bytes(q8, padded=True) == -(-padded // 128) * 128
        assert tensor_bytes(q8, padded=False) == 2 * 18 * 34
        assert tensor_bytes(_tensor("x", 129), padded=True) == 256
