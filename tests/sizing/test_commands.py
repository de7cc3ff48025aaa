"""The engine's own command, read back as `kvcalc check` reads it: it starts what was asked for."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import kvcalc
from kvcalc import Deployment, load_model
from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.deployment import GpuSpec
from kvcalc.engines import ENGINES
from kvcalc.models import shape_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from tests.manifests.commands.harness import read_command

_FIGURES = (
    *("kv_cache_tokens", "max_concurrency", "max_sequences", "num_blocks", "max_model_len"),
    *("block_size", "needed_bytes", "max_model_len_that_fits", "host"),
)
_QUIET = ("blocks-not-share",)


def asked(model: str, gpu: str, **settings: Any) -> Question:
    beside = {k: settings.pop(k) for k in ("quantization", "weights_bytes") if k in settings}
    draft = settings.pop("draft_model", None)
    if draft is not None:
        settings["draft_model"] = load_model(draft)
    deployment = Deployment(gpu=load_gpu(gpu), **settings)
    return Question(load_model(model), deployment, **beside)


def read_back(question: Question, found: CapacityAnswer) -> Deployment:
    """Return the deployment that the command starts."""
    assert found.suggested is not None
    image = None
    version = question.deployment.engine_version
    if version is not None and question.deployment.engine == "vllm":
        image = f"vllm/vllm-openai:v{version}"
    files = {}
    for line in found.suggested_notes:
        name, colon, text = line.removeprefix("what has no flag goes into ").partition(": ")
        if colon and name.endswith(".yaml"):
            files[name] = text
    server = read_command(found.suggested, image=image, files=files)
    assert [f for f in server.findings if f.code not in _QUIET] == []
    assert server.model is not None
    assert str(server.model.value) in shlex.split(found.suggested)
    fields: dict[str, Any] = {s.name: s.value for s in server.settings if s.kind == "field"}
    args: dict[str, Any] = {s.name: s.value for s in server.settings if s.kind == "arg"}
    if "draft_model" in fields:
        fields["draft_model"] = load_model(_preset(fields["draft_model"]))
    return Deployment(
        engine=question.deployment.engine,
        engine_version=version,
        gpu=question.deployment.gpu,
        engine_args=args,
        **fields,
    )


def _preset(name: str) -> str:
    stem = name.rsplit("/", 1)[-1].removesuffix(".gguf").lower()
    return stem.removesuffix("-instruct")


_ASKED = {
    "plain": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192),
    "all of vLLM's": asked(
        "llama-3.1-8b", "h100-80gb", engine="vllm", max_model_len=8192, dtype="float16",
        tensor_parallel_size=2, data_parallel_size=2, kv_cache_dtype="fp8", block_size=32,
        max_num_seqs=64, max_num_batched_tokens=4096, gpu_memory_utilization=0.8,
        enable_prefix_caching=False, async_scheduling=False, enforce_eager=True,
        attention_backend="FLASHINFER",
    ),
    "bytes": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                   kv_cache_memory_bytes=10 * 2**30),
    "blocks": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                    num_gpu_blocks_override=1000),
    "adapters": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                      engine_args={"max_loras": 4, "max_lora_rank": 64}),
    "adapters in full": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                              engine_args={"enable_lora": True, "max_loras": 2,
                                           "max_lora_rank": 16, "fully_sharded_loras": True}),
    "on the host": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                         engine_args={"cpu_offload_gb": 4, "kv_offloading_size": 32}),
    "no images": asked("qwen3.5-27b", "h100-80gb", engine="vllm", max_model_len=8192,
                       max_num_seqs=256,
                       engine_args={"limit_mm_per_prompt": '{"image": 0, "video": 0}'}),
    "graphs": asked("qwen3.5-27b", "h100-80gb", engine="vllm", max_model_len=8192,
                    engine_args={"cudagraph_mode": "piecewise"}),
    "prefills": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                      engine_args={"enable_chunked_prefill": False,
                                   "long_prefill_token_threshold": 1024,
                                   "disable_chunked_mm_input": True}),
    "swapped": asked("llama-3.1-8b", "l40s", engine="vllm", engine_version="0.6.3",
                     max_model_len=8192, engine_args={"swap_space": 8}),
    "a partition": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                         pipeline_parallel_size=2,
                         engine_args={"VLLM_PP_LAYER_PARTITION": "18,14"}),
    "a draft": asked("llama-3.1-8b", "h100-80gb", engine="vllm", max_model_len=8192,
                     speculative_method="draft_model", draft_model="llama-3.2-3b",
                     num_speculative_tokens=3),
    "a head": asked("llama-3.1-8b", "h100-80gb", engine="vllm", max_model_len=8192,
                    speculative_method="eagle3", num_speculative_tokens=3),
    "its own layers": asked("qwen3.5-27b", "h100-80gb", engine="vllm", max_model_len=8192,
                            max_num_seqs=256,
                            speculative_method="mtp", num_speculative_tokens=2,
                            mamba_ssm_cache_dtype="float32"),
    "ngram": asked("llama-3.1-8b", "h100-80gb", engine="vllm", max_model_len=8192,
                   speculative_method="ngram", num_speculative_tokens=3),
    "experts": asked("qwen3-30b-a3b-instruct-2507", "h100-80gb", engine="vllm", max_model_len=8192,
                     tensor_parallel_size=2, enable_expert_parallel=True),
    "windows": asked("gemma-3-27b", "h100-80gb", engine="vllm", max_model_len=8192,
                     disable_hybrid_kv_cache_manager=True),
    "context parallel": asked("deepseek-v2-lite", "h100-80gb", engine="vllm", max_model_len=8192,
                              tensor_parallel_size=2, decode_context_parallel_size=2),
    "an old release": asked("llama-3.1-8b", "h100-80gb", engine="vllm", engine_version="0.9.0",
                            max_model_len=8192, attention_backend="FLASH_ATTN"),
    "weights of fewer bits": asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192,
                                   quantization="int4"),
    "sglang": asked("llama-3.1-8b", "h100-80gb", engine="sglang", max_model_len=8192,
                    tensor_parallel_size=2, kv_cache_dtype="fp8_e4m3", block_size=64,
                    max_num_seqs=64, enable_prefix_caching=False, enforce_eager=True,
                    engine_args={"mem_fraction_static": 0.7}),
    "sglang's bytes": asked("llama-3.1-8b", "h100-80gb", engine="sglang", max_model_len=8192,
                            kv_cache_memory_bytes=10 * 2**30),
    "sglang's overlap": asked("llama-3.1-8b", "h100-80gb", engine="sglang", max_model_len=8192,
                              async_scheduling=False, max_num_batched_tokens=4096),
    "sglang's variables": asked("qwen3.5-27b", "h100-80gb", engine="sglang", max_model_len=8192,
                                engine_args={"SGLANG_MAMBA_CONV_DTYPE": "bfloat16"}),
    "sglang's copies": asked("llama-3.1-8b", "h100-80gb", engine="sglang", max_model_len=8192,
                             engine_args={"enable_hierarchical_cache": True, "hicache_ratio": 3}),
    "sglang's draft": asked("llama-3.1-8b", "h100-80gb", engine="sglang", max_model_len=8192,
                            speculative_method="draft_model", draft_model="llama-3.2-3b",
                            num_speculative_tokens=3),
    "llama.cpp": asked("llama-3.1-8b", "rtx-4090", engine="llama.cpp", max_model_len=8192,
                       engine_args={"parallel": 2}, quantization="q4_k_m", kv_cache_dtype="q8_0"),
    "llama.cpp, shared": asked("llama-3.1-8b", "rtx-4090", engine="llama.cpp", max_model_len=8192),
    "llama.cpp, in part": asked("llama-3.1-8b", "rtx-4090", engine="llama.cpp",
                                engine_args={"ctx_size": 16384, "parallel": 4, "kv_unified": False,
                                             "n_gpu_layers": 0, "flash_attn": "on"}),
    "llama.cpp, one pool": asked("llama-3.1-8b", "rtx-4090", engine="llama.cpp", max_num_seqs=4,
                                 max_model_len=8192, engine_args={"kv_unified": True},
                                 kv_cache_dtype="q8_0:q4_0"),
    "llama.cpp, a draft": asked("llama-3.1-8b", "rtx-4090", engine="llama.cpp", max_model_len=4096,
                                draft_model="llama-3.2-3b", quantization="q4_k_m",
                                engine_args={"parallel": 1}),
    "tensorrt-llm": asked("llama-3.1-8b", "h100-80gb", engine="tensorrt-llm", max_model_len=8192,
                          tensor_parallel_size=2, max_num_seqs=64, kv_cache_dtype="fp8",
                          engine_args={"free_gpu_memory_fraction": 0.8}),
    "tensorrt-llm's file": asked("llama-3.1-8b", "h100-80gb", engine="tensorrt-llm", block_size=64,
                                 max_model_len=8192, enable_prefix_caching=False),
    "tensorrt-llm's bytes": asked("llama-3.1-8b", "h100-80gb", engine="tensorrt-llm",
                                  max_model_len=8192, kv_cache_memory_bytes=10 * 2**30),
    "lmdeploy": asked("llama-3.1-8b", "h100-80gb", engine="lmdeploy", max_model_len=8192,
                      tensor_parallel_size=2, kv_cache_dtype="int8", max_num_seqs=64,
                      enable_prefix_caching=True, engine_args={"cache_max_entry_count": 0.7}),
    "turbomind's blocks": asked("llama-3.1-8b", "h100-80gb", engine="lmdeploy", block_size=128,
                                max_model_len=8192, num_gpu_blocks_override=4000,
                                engine_args={"backend": "turbomind"}),
}  # fmt: skip


@pytest.mark.parametrize("question", _ASKED.values(), ids=_ASKED)
def test_the_command_starts_what_was_asked(question: Question) -> None:
    found = answer(question, suggest=True)
    again = answer(question._replace(deployment=read_back(question, found)))
    for name in _FIGURES:
        assert getattr(again, name) == getattr(found, name), name


_SAME = ("adapters in full", "on the host", "no images", "graphs", "prefills", "swapped",
         "plain", "all of vLLM's",
         "bytes", "blocks", "a partition", "a draft", "a head", "its own layers", "ngram",
         "experts", "windows", "context parallel", "sglang", "sglang's copies",
         "sglang's variables", "tensorrt-llm", "lmdeploy", "turbomind's blocks")  # fmt: skip


@pytest.mark.parametrize("name", _SAME)
def test_it_is_the_same_deployment(name: str) -> None:
    question = _ASKED[name]
    again = read_back(question, answer(question, suggest=True))
    assert _folded(again) == _folded(question.deployment)


def _folded(deployment: Deployment) -> dict[str, object]:
    changed = deployment.changed()
    assert isinstance(deployment.gpu, GpuSpec)
    draft = deployment.draft_model
    if draft is not None and not isinstance(draft, str):
        changed["draft_model"] = draft.name
    return changed


def _suggestion(question: Question, *solve_for: str) -> CapacityAnswer:
    return answer(question, suggest=True, solve_for=solve_for)


@pytest.mark.parametrize("release", ["0.6.3", "0.9.0", "0.10.1"])
def test_an_older_release_is_given_blocks(release: str) -> None:
    """Bytes of a cache are a flag since 0.10.2; what they come to is the same."""
    question = _ASKED["bytes"]._replace(
        deployment=Deployment(
            engine="vllm", engine_version=release, gpu=load_gpu("l40s"), max_model_len=8192,
            kv_cache_memory_bytes=10 * 2**30,
        )
    )  # fmt: skip
    found = _suggestion(question)
    assert found.suggested is not None
    assert "--kv-cache-memory-bytes" not in found.suggested
    assert f"--num-gpu-blocks-override {found.num_blocks}" in found.suggested
    assert any(f"of vllm {release}" in line for line in found.suggested_notes)
    again = answer(question._replace(deployment=read_back(question, found)))
    assert again.num_blocks == found.num_blocks


@pytest.mark.parametrize(
    ("question", "solve_for"),
    [
        (asked("llama-3.1-405b", "t4", engine="vllm"), ("gpus", "tp")),
        (asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192)._replace(sequences=60),
         ("kv-memory",)),
        (asked("llama-3.1-70b", "h100-80gb", engine="vllm", tensor_parallel_size=4,
               max_model_len=32768)._replace(sequences=20), ("max-num-seqs",)),
        (asked("llama-3.1-405b", "l40s", engine="sglang"), ()),
        (asked("llama-3.1-8b", "h100-80gb", engine="vllm")._replace(free_bytes=2**30), ()),
    ],
)  # fmt: skip
def test_no_command_where_the_answer_is_no(question: Question, solve_for: tuple[str, ...]) -> None:
    found = _suggestion(question, *solve_for)
    assert not found.may_fit
    assert found.suggested is None
    assert [one.command for one in found.solutions] == [None] * len(solve_for)
    assert any(line.startswith("no command") for line in found.suggested_notes)


def test_a_solution_that_holds_is_the_command_of_a_no() -> None:
    question = asked("llama-3.1-70b", "h100-80gb", engine="vllm", max_model_len=8192)
    found = _suggestion(question, "tp")
    assert not found.may_fit
    assert found.suggested == found.solutions[0].command
    assert "--tensor-parallel-size" in str(found.suggested)


@pytest.mark.parametrize(
    "engine", ["none", "transformers", "mlx-lm", "exllamav2", "exllamav3", "lmcache"]
)
def test_an_engine_without_a_command_says_so(engine: str) -> None:
    assert engine in ENGINES
    deployment = Deployment(engine=engine, max_model_len=4096, gpu=load_gpu("h100-80gb"))
    if engine in ("none", "lmcache"):
        deployment = Deployment(engine=engine, max_model_len=4096, kv_cache_memory_bytes=2**33)
    found = _suggestion(Question(load_model("llama-3.1-8b"), deployment))
    assert found.suggested is None
    assert found.may_fit
    assert found.suggested_notes == (f"kvcalc knows no command that starts {engine}",)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tensorrt-llm", "lmdeploy"])
def test_a_shape_is_nothing_to_load(engine: str) -> None:
    deployment = Deployment(engine=engine, gpu=load_gpu("h100-80gb"), max_model_len=4096)
    found = _suggestion(Question(shape_model(32, 8, 128), deployment, weights_bytes=15 * 2**30))
    assert found.suggested is not None
    assert "32 layers" not in found.suggested
    assert "MODEL" in found.suggested
    assert any("MODEL" in line for line in found.suggested_notes)
    assert any("weights of 15 GiB" in line for line in found.suggested_notes)


@pytest.mark.parametrize(
    ("engine", "word", "flags"),
    [
        ("vllm", "fp8", "--quantization fp8"),
        ("vllm", "bitsandbytes", "--quantization bitsandbytes"),
        ("sglang", "fp8_e4m3", "--quantization fp8"),
        ("vllm", "bf16", ""),
    ],
)
def test_a_format_that_is_made_on_loading(engine: str, word: str, flags: str) -> None:
    found = _suggestion(asked("llama-3.1-8b", "h100-80gb", engine=engine, quantization=word))
    assert str(found.suggested).endswith(flags)
    assert found.suggested_notes == ()


@pytest.mark.parametrize("word", ["int4", "awq", "gptq", "nvfp4", "int8"])
def test_a_format_of_another_checkpoint(word: str) -> None:
    found = _suggestion(asked("llama-3.1-8b", "h100-80gb", engine="vllm", quantization=word))
    assert any(f"weights in {word} are another checkpoint" in n for n in found.suggested_notes)


def test_a_variable_is_no_flag() -> None:
    deployment = Deployment(
        engine="vllm", pipeline_parallel_size=2, max_model_len=200_000,
        kv_cache_memory_bytes=64 * 2**30,
        engine_args={"VLLM_PP_LAYER_PARTITION": "18,14", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": 1},
    )  # fmt: skip
    found = _suggestion(Question(load_model("llama-3.1-8b"), deployment))
    assert str(found.suggested).startswith(
        "VLLM_PP_LAYER_PARTITION=18,14 VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve "
    )
    assert "--VLLM" not in str(found.suggested)


def test_what_has_no_flag_is_told() -> None:
    question = asked("llama-3.1-8b", "h100-80gb", engine="lmdeploy", max_model_len=8192,
                     kv_cache_memory_bytes=10 * 2**30)  # fmt: skip
    found = _suggestion(question)
    assert any("kv_cache_memory_bytes 10737418240 is not in it" in n for n in found.suggested_notes)


def test_a_head_that_nobody_named_is_told() -> None:
    found = _suggestion(_ASKED["a head"])
    assert any("eagle3 needs a head" in line for line in found.suggested_notes)


def test_one_of_several_servers() -> None:
    question = asked("llama-3.1-8b", "h100-80gb", engine="vllm", max_model_len=8192)
    found = _suggestion(question._replace(instances=2))
    assert "--gpu-memory-utilization 0.46" in str(found.suggested)
    assert any("one of 2 servers" in line for line in found.suggested_notes)


def test_what_may_not_fit_is_told() -> None:
    """A start that hangs on what is not known has its command, with the doubt in front of it."""
    question = asked("llama-3.1-8b", "l40s", engine="vllm", max_model_len=8192)
    low, high = answer(question).low.max_sequences, answer(question).high.max_sequences
    assert low < high
    found = _suggestion(question._replace(sequences=high))
    assert found.may_fit
    assert not found.fits
    assert found.suggested is not None
    assert any("it fits if" in line for line in found.suggested_notes)


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "adapters in full", "on the host", "no images", "a partition", "a draft"),
        *("sglang", "sglang's bytes", "lmdeploy"),
    ],
)
def test_check_reads_the_same_figures(name: str) -> None:
    """`kvcalc check -- COMMAND` says of a command what kvcalc capacity said that it would do."""
    question = _ASKED[name]
    found = _suggestion(question)
    gpu = question.deployment.gpu
    assert isinstance(gpu, GpuSpec)
    assert found.suggested is not None
    (read,) = kvcalc.check(command=found.suggested, gpu=gpu.name).deployments
    assert read.engine == found.engine
    figures = read.figures
    assert figures is not None
    for key in ("kv_cache_tokens", "max_concurrency", "max_sequences", "max_model_len", "fits"):
        assert figures[key] == getattr(found, key), key
