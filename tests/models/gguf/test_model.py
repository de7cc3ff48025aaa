"""From a file to the model: names, drafts, shards, weights, notes, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, Mla, SharedKv, SlidingMla, SlidingWindow
from kvcalc.core.errors import InputError, KvcalcError, UnsupportedError
from kvcalc.models.gguf import ARCHITECTURES, WITHOUT_CACHE, GgufModel, read_gguf
from tests.models.gguf.oracle import layers, shares
from tests.models.gguf.writer import LLAMA, Tensor, Writer, metadata, named


def read(tmp_path: Path, arch: str, hp: dict[str, Any], tensors: Any = ()) -> GgufModel:
    path = tmp_path / "m.gguf"
    path.write_bytes(Writer().file(named(arch, hp), tensors))
    return read_gguf(str(path))


MLA = {
    **LLAMA,
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
}


class TestModel:
    def test_plain(self, tmp_path: Path) -> None:
        """A plain file is layers of full attention in llama.cpp's default cache type."""
        model = read(tmp_path, "llama", {**LLAMA, "general.name": " My\nModel "})
        assert model.spec.name == "My\\nModel"
        assert model.spec.dtype == "float16"
        assert model.spec.architecture == "llama"
        assert model.spec.max_position_embeddings == 8192
        assert [(run.count, run.caches) for run in model.spec.layers] == [
            (2, (FullAttention(num_kv_heads=2, head_dim=64),))
        ]
        assert model.spec.notes[0].startswith("GGUF files say no dtype")
        assert (model.weights_bytes, model.tensors, model.layer_weights) == (None, 0, ())
        assert "holds no tensors" in model.spec.notes[-1]

    def test_the_file_gives_the_name_that_is_missing(self, tmp_path: Path) -> None:
        assert read(tmp_path, "llama", LLAMA).spec.name == "m.gguf"

    def test_weights(self, tmp_path: Path) -> None:
        """Weights are counted in all and by layer, whatever else the file holds."""
        tensors = [
            Tensor("token_embd.weight", (32, 4), 1, 256),
            Tensor("blk.0.a.weight", (32, 4), 8, 136),
            Tensor("blk.1.a.weight", (256,), 12, 144),
            Tensor("blk.1.b.weight", (3,), 0, 12),
        ]
        model = read(tmp_path, "llama", LLAMA, tensors)
        assert (model.weights_bytes, model.layer_weights) == (548, (136, 156))

    def test_unknown_tensor_types(self, tmp_path: Path) -> None:
        """A type that kvcalc does not know makes the weights unknown, which is said."""
        tensors = [Tensor("a", (32,), 99, 0), Tensor("b", (32,), 31, 0)]
        model = read(tmp_path, "llama", LLAMA, tensors)
        assert (model.weights_bytes, model.layer_weights, model.tensors) == (None, (), 2)
        assert "2 tensors of ggml types that kvcalc does not know (31, 99)" in model.spec.notes[-1]

    def test_drafts_stand_apart(self, tmp_path: Path) -> None:
        """NextN layers are no layers of the model."""
        model = read(tmp_path, "glm4moe", {**LLAMA, "nextn_predict_layers": 1})
        assert model.spec.num_hidden_layers == 1
        assert [run.count for run in model.spec.draft_layers] == [1]
        assert not model.draft_layers_in_main

    def test_drafts_of_deepseek4_need_their_weights(self, tmp_path: Path) -> None:
        """DeepSeek-V4 without the tensors of its draft layer has one layer more."""
        hp = {
            **LLAMA,
            "attention.head_count_kv": 1,
            "attention.sliding_window": 128,
            "attention.indexer.key_length": 64,
            "attention.compress_ratios": [0, 4],
            "rope.dimension_count": 16,
            "nextn_predict_layers": 1,
        }
        assert read(tmp_path, "deepseek4", hp).spec.num_hidden_layers == 2
        probe = Tensor("blk.1.nextn.eh_proj.weight", (32,), 0, 128)
        model = read(tmp_path, "deepseek4", hp, [probe])
        assert model.spec.num_hidden_layers == 1
        assert model.draft_layers_in_main
        assert "main context as well" in model.spec.notes[-1]

    def test_a_file_of_draft_layers_alone(self, tmp_path: Path) -> None:
        model = read(tmp_path, "qwen3", {**LLAMA, "nextn_predict_layers": 2})
        assert (model.spec.num_hidden_layers, model.spec.draft_layers) == (2, ())

    def test_old_deepseek_files_keep_all_heads(self, tmp_path: Path) -> None:
        """Without the keys of latents llama.cpp keeps K and V, and the note says so."""
        new = read(tmp_path, "deepseek2", MLA)
        assert new.spec.layers[0].caches == (Mla(kv_lora_rank=512, qk_rope_head_dim=64),)
        hp = {k: v for k, v in MLA.items() if not k.endswith("_mla")}
        old = read(tmp_path, "deepseek2", hp)
        assert old.spec.layers[0].caches == (
            FullAttention(num_kv_heads=1, head_dim=576, v_head_dim=512),
        )
        assert "a new conversion keeps far less" in old.spec.notes[1]

    def test_windows_that_llama_cpp_ignores(self, tmp_path: Path) -> None:
        """Mistral's window changes nothing; a note says so."""
        model = read(tmp_path, "llama", {**LLAMA, "attention.sliding_window": 4096})
        assert model.spec.layers[0].caches[0].kind == "full_attention"
        assert "does not use the file's sliding_window" in model.spec.notes[1]

    def test_latents_of_two_sizes(self, tmp_path: Path) -> None:
        """dots3note: a small latent slides, a large one has an indexer, a draft has none."""
        hp = {
            **MLA,
            "block_count": 3,
            "nextn_predict_layers": 1,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, False, True],
            "attention.indexer.types": [False, True, False],
            "attention.indexer.key_length": 128,
            "attention.key_length_swa": 320,
            "attention.kv_lora_rank_swa": 256,
        }
        model = read(tmp_path, "dots3note", hp)
        assert [run.label for run in model.spec.layers] == ["sliding_mla", "mla+indexer"]
        assert [run.label for run in model.spec.draft_layers] == ["sliding_mla"]
        assert model.spec.layers[0].caches == (
            SlidingMla(head_dim=320, qk_rope_head_dim=64, sliding_window=512),
        )

    def test_shared_layers_say_whose(self, tmp_path: Path) -> None:
        """Gemma-3n: sliding layers read layer 18, the others layer 19."""
        hp = {**LLAMA, "block_count": 30, "attention.sliding_window": 512}
        model = read(tmp_path, "gemma3n", hp)
        assert shares(model) == [18, 18, 18, 18, 19] * 2
        runs = list(layers(model.spec.layers))
        assert isinstance(runs[18].caches[0], SlidingWindow)
        assert isinstance(runs[20].caches[0], SharedKv)


class TestShards:
    HP = {**LLAMA, "split.count": 2, "split.no": 0, "split.tensors.count": 2}

    def _write(self, folder: Path, tensors: list[Tensor]) -> list[Path]:
        paths = [folder / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
        paths[0].write_bytes(Writer().file(named("llama", self.HP), tensors[:1]))
        later = {"split.count": 2, "split.no": 1, "split.tensors.count": 2}
        paths[1].write_bytes(Writer().file(later, tensors[1:]))
        return paths

    TENSORS = [Tensor("blk.0.a", (32,), 8, 34), Tensor("blk.1.a", (32,), 0, 128)]

    def test_all_files_are_there(self, tmp_path: Path) -> None:
        """The first file is read for the model, the others for their weights."""
        first, _ = self._write(tmp_path, self.TENSORS)
        model = read_gguf(str(first))
        assert (model.weights_bytes, model.layer_weights, model.shards) == (162, (34, 128), 2)
        assert "split into 2 files" in model.spec.notes[-1]

    def test_a_file_is_missing(self, tmp_path: Path) -> None:
        """The model is known all the same, its weights are not."""
        first, second = self._write(tmp_path, self.TENSORS)
        second.unlink()
        model = read_gguf(str(first))
        assert (model.weights_bytes, model.tensors, model.shards) == (None, 1, 2)
        assert "file 2 of 2 is not beside it" in model.spec.notes[-1]

    def test_a_file_of_another_model(self, tmp_path: Path) -> None:
        """Files that do not add up to the tensors they should are not added up."""
        first, _ = self._write(tmp_path, self.TENSORS[:1])
        model = read_gguf(str(first))
        assert model.weights_bytes is None
        assert "do not hold the tensors they should" in model.spec.notes[-1]

    def test_a_later_file_names_the_first(self, tmp_path: Path) -> None:
        _, second = self._write(tmp_path, self.TENSORS)
        with pytest.raises(InputError, match="file 2 of a model in 2 files") as caught:
            read_gguf(str(second))
        assert "m-00001-of-00002.gguf" in caught.value.hint

    @pytest.mark.parametrize(
        "odd",
        [{"split.count": -1}, {"split.count": "2"}, {"split.no": 2}, {"split.no": [1]}],
    )
    def test_senseless_counts(self, tmp_path: Path, odd: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="split"):
            read(tmp_path, "llama", {**self.HP, **odd})


DELTA: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 512,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
    "attention.indexer.key_length": 64,
    "hyper_connection.count": 4,
    "ple.ngram_size": 3,
    "ple.conv_kernel": 4,
}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no context": ("llama", {"context_length": None}, "llama.context_length is missing"),
    "no layers": ("llama", {"block_count": None}, "llama.block_count is missing"),
    "no heads": ("llama", {"attention.head_count": None}, "attention.head_count is missing"),
    "no embedding": ("llama", {"embedding_length": None}, "embedding_length is missing"),
    "layers 0": ("llama", {"block_count": 0}, "not a whole number from 1 to 512"),
    "layers 513": ("llama", {"block_count": 513}, "not a whole number from 1 to 512"),
    "text": ("llama", {"block_count": "2"}, "block_count is '2'"),
    "heads 0": ("llama", {"attention.head_count": 0}, "the first layer has no heads"),
    "odd": ("llama", {"embedding_length": 513}, "does not divide by 8 heads"),
    "negative": ("llama", {"attention.head_count_kv": -1}, "head_count_kv is -1"),
    "short": ("llama", {"attention.head_count_kv": [1]}, "1 entries for 2 layers"),
    "long": ("llama", {"attention.head_count_kv": [1] * 3}, "3 entries for 2 layers"),
    "very long": ("llama", {"attention.head_count_kv": [1] * 5000}, "list of 5000 entries"),
    "words": ("llama", {"attention.head_count_kv": ["a", "b"]}, "list of 2 entries"),
    "floats": ("llama", {"attention.head_count": 8.0}, "attention.head_count is 8.0"),
    "drafts": ("llama", {"nextn_predict_layers": 3}, "from 0 to 2"),
    "window": ("gpt-oss", {}, "gpt-oss.attention.sliding_window is missing"),
    "window 0": ("gemma2", {"attention.sliding_window": 0}, "not a whole number from 1"),
    "pattern": ("mimo2", {"attention.sliding_window": 9}, "sliding_window_pattern is missing"),
    "pattern one": (
        "mimo2",
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": 2},
        "must be a list",
    ),
    "pattern short": (
        "mimo2",
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True]},
        "1 entries for 2 layers",
    ),
    "half a latent": (
        "deepseek2",
        {"attention.key_length_mla": 192},
        "value_length_mla is missing",
    ),
    "latents": ("deepseek32", {}, "key_length_mla is missing"),
    "latent heads": ("deepseek2", {**MLA, "attention.head_count_kv": 2}, "2 KV heads, not one"),
    "rank": ("deepseek2", {**MLA, "attention.kv_lora_rank": 600}, "from 1 to 576"),
    "indexer": ("glm-dsa", MLA, "indexer.key_length is missing"),
    "ratios": ("deepseek4", {}, "compress_ratios is missing"),
    "ratio": (
        "deepseek4",
        {
            "attention.compress_ratios": [4, 8],
            "attention.sliding_window": 128,
            "rope.dimension_count": 16,
        },
        "a compress ratio of 8",
    ),
    "interval": ("minimax-01", {"full_attention_interval": 0}, "not a whole number from 1"),
    "states": ("mamba", {}, "ssm.inner_size is missing"),
    "wkv": ("rwkv7", {"wkv.head_size": 100}, "no multiple of head_size"),
    "feed-forward": ("nemotron_h", {}, "feed_forward_length is missing"),
    "shared": (
        "gemma4",
        {
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [True, False],
            "attention.shared_kv_layers": 1,
        },
        "a layer of another kind",
    ),
    "cycles": (
        "hrm_text",
        {"hrm.layers_per_stack": 2, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
        "2 layers are not 2 x 2 x 3",
    ),
    "loops": ("nanbeige", {"num_loops": 300}, "from 1 to 256"),
    "n-grams": (
        "qwen4exp",
        {**DELTA, "ple.layers": [0], "full_attention_interval": 1},
        "layer 0 has n-gram embeddings and no state",
    ),
    "n-gram layer": ("qwen4exp", {**DELTA, "ple.layers": [2]}, "n-gram embeddings in layer 2 of 2"),
    "value heads": ("qwen3next", {**DELTA, "ssm.time_step_rank": 7}, "does not divide by 7"),
    "state heads": ("mamba2", {**DELTA, "ssm.time_step_rank": 7}, "does not divide by 7"),
    "no drafts": ("graniteswitch", {"nextn_predict_layers": 1}, "has no draft layers"),
    "hy_v4": ("hy_v4", {}, "key_length_mla is missing"),
    "types": (
        "hy_v4",
        {**MLA, "attention.indexer.top_k": 8, "attention.indexer.key_length": 64},
        "indexer.types is missing",
    ),
    "latent list": ("dots3note", {"attention.sliding_window": 8}, "pattern is missing"),
    "ratios short": (
        "deepseek4",
        {
            "attention.compress_ratios": [4],
            "attention.sliding_window": 128,
            "rope.dimension_count": 16,
        },
        "1 entries for 2 layers",
    ),
    "t5": ("t5", {"decoder_block_count": 3}, "a decoder of 3 layers"),
    "adapter": ("llama", {"general.type": "adapter"}, "type 'adapter', not a model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    """A key that is missing or senseless is named, in one line, with the file and a hint."""
    arch, changes, message = REFUSED[name]
    hp = {k: v for k, v in {**LLAMA, **changes}.items() if v is not None}
    with pytest.raises(InputError) as caught:
        read(tmp_path, arch, hp)
    assert message in caught.value.message
    assert caught.value.where.endswith("m.gguf")
    assert "\n" not in str(caught.value)


class TestArchitectures:
    def test_unknown(self, tmp_path: Path) -> None:
        """The nearest known ones are named."""
        with pytest.raises(UnsupportedError, match="unknown architecture 'gptoss'") as caught:
            read(tmp_path, "gptoss", LLAMA)
        assert "gpt-oss" in caught.value.hint
        with pytest.raises(UnsupportedError, match="unknown architecture"):
            read(tmp_path, "\x1b[31m" * 50, LLAMA)

    @pytest.mark.parametrize("arch", WITHOUT_CACHE)
    def test_without_cache(self, tmp_path: Path, arch: str) -> None:
        with pytest.raises(UnsupportedError, match=arch):
            read(tmp_path, arch, LLAMA)

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(Writer().file({"general.name": "x"}))
        with pytest.raises(InputError, match=r"general\.architecture is missing"):
            read_gguf(str(path))

    def test_every_rule_refuses_an_empty_file(self, tmp_path: Path) -> None:
        """No rule makes layers from nothing."""
        for arch in ARCHITECTURES:
            for hp in ({}, {"block_count": 2}, {"block_count": 2, "context_length": 9}):
                with pytest.raises(InputError, match="is missing"):
                    read(tmp_path, arch, hp)


class TestPaths:
    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file"):
            read_gguf(str(tmp_path / "none.gguf"))

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is a directory"):
            read_gguf(str(tmp_path))

    def test_a_name_that_no_file_can_have(self) -> None:
        with pytest.raises(KvcalcError):
            read_gguf("a\0b.gguf")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        os.mkfifo(path)
        with pytest.raises(InputError, match="is not a file"):
            read_gguf(str(path))

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        path.touch()
        with pytest.raises(InputError, match="0 are left"):
            read_gguf(str(path))


def test_metadata_helper() -> None:
    """The tests' own writer begins as a GGUF file does."""
    assert metadata("llama", LLAMA)[:4] == b"GGUF"
