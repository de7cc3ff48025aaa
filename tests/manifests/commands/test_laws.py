"""Laws of reading commands: what kvcalc writes it reads back, nothing fails, nothing leaks."""

from __future__ import annotations

import shlex
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.api import load_model
from kvcalc.core.deployment import Deployment
from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Attached, Invocation, Server, Word
from kvcalc.sizing.question import Question
from kvcalc.sizing.suggest import command
from tests.guards import HANG
from tests.manifests.commands.harness import read_command
from tests.manifests.commands.test_tables import GRAMMARS, STARTS

MODEL = load_model("llama-3.1-8b")

_COUNT = st.integers(1, 2**31 - 1)
_SMALL = st.integers(1, 64)
_SHARE = st.floats(0.01, 1, exclude_min=True).map(lambda x: round(x, 4))
_MAYBE = st.none() | st.booleans()


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_VLLM = _some(
    dtype=st.sampled_from(("auto", "float16", "bfloat16")),
    tensor_parallel_size=_SMALL,
    pipeline_parallel_size=_SMALL,
    data_parallel_size=_SMALL,
    kv_cache_dtype=st.sampled_from(("auto", "fp8", "fp8_e5m2", "nvfp4", "bfloat16")),
    block_size=_COUNT,
    max_model_len=_COUNT,
    max_num_seqs=_COUNT,
    max_num_batched_tokens=_COUNT,
    gpu_memory_utilization=_SHARE,
    kv_cache_memory_bytes=st.integers(1, 2**60),
    num_gpu_blocks_override=_COUNT,
    enable_prefix_caching=_MAYBE,
    async_scheduling=_MAYBE,
    enforce_eager=_MAYBE,
    disable_hybrid_kv_cache_manager=_MAYBE,
    enable_expert_parallel=_MAYBE,
    attention_backend=st.sampled_from(("FLASHINFER", "FLASH_ATTN")),
    mamba_cache_dtype=st.sampled_from(("auto", "float32")),
    mamba_ssm_cache_dtype=st.sampled_from(("auto", "float32")),
)
_SGLANG = _some(
    dtype=st.sampled_from(("auto", "float16", "bfloat16")),
    tensor_parallel_size=_SMALL,
    pipeline_parallel_size=_SMALL,
    data_parallel_size=_SMALL,
    kv_cache_dtype=st.sampled_from(("auto", "fp8_e4m3", "fp8_e5m2", "bf16")),
    block_size=_COUNT,
    max_model_len=_COUNT,
    max_num_seqs=_COUNT,
    max_num_batched_tokens=_COUNT,
    attention_backend=st.sampled_from(("fa3", "flashinfer")),
    enable_prefix_caching=st.sampled_from((None, False)),
    engine_args=_some(
        mem_fraction_static=_SHARE,
        max_total_tokens=_COUNT,
        enable_dp_attention=st.just(value=True),
        swa_full_tokens_ratio=_SHARE,
        max_mamba_cache_size=_COUNT,
        speculative_algorithm=st.sampled_from(("EAGLE", "NGRAM")),
        speculative_num_steps=_SMALL,
        disable_overlap_schedule=st.just(value=True),
    ),
)
_LLAMA = _some(
    engine_args=_some(
        ctx_size=st.integers(0, 2**31),
        parallel=st.integers(1, 256),
        kv_unified=st.just(value=True),
        cache_type_k=st.sampled_from(("f16", "q8_0")),
        cache_type_v=st.sampled_from(("f16", "q4_0")),
        flash_attn=st.sampled_from(("on", "off", "auto")),
        swa_full=st.just(value=True),
        batch_size=_COUNT,
        ubatch_size=_COUNT,
        n_gpu_layers=st.integers(0, 999),
        tensor_split=st.sampled_from(("1,1", "3,1")),
        split_mode=st.sampled_from(("layer", "row")),
        n_cpu_moe=st.integers(1, 99),
        cache_ram=st.integers(1, 99999),
        override_tensor=st.just("exps=CPU"),
    )
)
_TRTLLM = _some(
    tensor_parallel_size=_SMALL,
    pipeline_parallel_size=_SMALL,
    max_model_len=_COUNT,
    max_num_seqs=_COUNT,
    kv_cache_dtype=st.sampled_from(("auto", "fp8", "nvfp4")),
    engine_args=_some(free_gpu_memory_fraction=_SHARE),
)
_LMDEPLOY = _some(
    dtype=st.sampled_from(("auto", "float16", "bfloat16")),
    tensor_parallel_size=_SMALL,
    data_parallel_size=_SMALL,
    block_size=_COUNT,
    max_model_len=_COUNT,
    max_num_seqs=_COUNT,
    kv_cache_dtype=st.sampled_from(("auto", "int4", "int8", "fp8")),
    engine_args=_some(
        cache_max_entry_count=st.floats(0.01, 0.99).map(lambda x: round(x, 4)),
        max_prefill_token_num=_COUNT,
        backend=st.sampled_from(("pytorch", "turbomind")),
    ),
)
_ASKED = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA,
    "tensorrt-llm": _TRTLLM,
    "lmdeploy": _LMDEPLOY,
}


def _deployment(server: Server) -> Deployment:
    """Return the deployment that a server's settings make."""
    assert server.engine is not None
    fields = {s.name: s.value for s in server.settings if s.kind == "field"}
    args = {s.name: s.value for s in server.settings if s.kind == "arg"}
    return Deployment(engine=server.engine, engine_args=args, **fields)  # type: ignore[arg-type]


def _file(written: str) -> str:
    return shlex.split(written)[2]


@pytest.mark.parametrize("engine", _ASKED)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(engine: str, data: st.DataObject) -> None:
    """The engine's own command for a deployment is the same deployment again."""
    asked = Deployment(engine=engine, **data.draw(_ASKED[engine]))
    question = Question(MODEL, asked)
    written, _ = command(question)
    assert written is not None

    server = read_command(written)

    assert server.findings == ()
    assert _deployment(server) == asked
    assert server.model is not None
    source = MODEL.origin or MODEL.name
    assert server.model.value == (source if engine != "llama.cpp" else _file(written))


@given(tokens=st.integers(1, 64), method=st.sampled_from(("mtp", "ngram", "eagle", "deepseek_mtp")))
@settings(deadline=None)
def test_speculation_is_read_back(tokens: int, method: str) -> None:
    asked = Deployment(engine="vllm", speculative_method=method, num_speculative_tokens=tokens)

    assert _deployment(read_command(command(Question(MODEL, asked))[0] or "")) == asked


@given(
    kind=st.sampled_from(("q8_0", "q8_0:q4_0", "f16")),
    length=st.integers(256, 2**20),
    slots=st.integers(1, 64),
)
@settings(deadline=None)
def test_llama_server_s_own_words_for_a_type_and_a_length(
    kind: str, length: int, slots: int
) -> None:
    asked = Deployment(
        engine="llama.cpp",
        kv_cache_dtype=kind,
        max_model_len=length,
        engine_args={"parallel": slots},
    )
    key, _, other = kind.partition(":")

    assert _deployment(read_command(command(Question(MODEL, asked))[0] or "")).engine_args == {
        "cache_type_k": key,
        "cache_type_v": other or key,
        "ctx_size": length * slots,
        "parallel": slots,
    }


_TEXT = st.text(max_size=24) | st.sampled_from(
    (
        "",
        "-",
        "--",
        "---",
        "=",
        "--=",
        "-1",
        "1e999",
        "9" * 40,
        "{",
        "[[[[",
        "\0",
        "$(X)",
        "${X:-1}",
        "--config",
        "-O",
        "serve",
        "a/b",
        '{"method": []}',
        "nan",
        "inf",
        "1_0",
        "\uff10",
        "true",
        "auto",
    )
)


@st.composite
def _words(draw: st.DrawFn, engine: str) -> list[str]:
    known = sorted(GRAMMARS[engine].flags) + sorted(GRAMMARS[engine].gone)
    flags = st.sampled_from(known)
    joined = st.tuples(flags, st.sampled_from(("=", ".x=", ".method ", " ")), _TEXT).map("".join)
    return draw(st.lists(flags | joined | _TEXT, max_size=12))


@pytest.mark.parametrize("engine", GRAMMARS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_fails_on_any_words(engine: str, data: st.DataObject) -> None:
    """Whatever stands in a command, a variable or a file is read or told, and nothing is raised."""
    texts = data.draw(_words(engine))
    names = st.sampled_from(
        ("LLAMA_ARG_CTX_SIZE", "OLLAMA_NUM_PARALLEL", "MAX_TOTAL_TOKENS", "VLLM_USE_V1",
         "VLLM_CPU_KVCACHE_SPACE", "CUDA_VISIBLE_DEVICES", "SGLANG_SWA_EVICTION_INTERVAL")
    )  # fmt: skip
    env = data.draw(st.dictionaries(names, _TEXT, max_size=3))
    file = data.draw(_TEXT)
    words = tuple(Word(text, 1) for text in (*shlex.split(STARTS[engine]), *texts))
    asked = Invocation("x", "command", "", 1, words, env={k: Word(v) for k, v in env.items()})

    server = read(asked, lambda path: Attached(path, 1, file))

    assert server.engine == engine
    for finding in server.findings:
        assert "\n" not in finding.message + finding.cure
        assert finding.level in ("error", "warning", "note")
    for setting in server.settings:
        assert isinstance(setting.value, str | int | float | bool | None)


@given(texts=st.lists(_TEXT, max_size=8), image=st.none() | _TEXT)
@settings(max_examples=200, deadline=None)
def test_nothing_fails_on_any_command(texts: list[str], image: str | None) -> None:
    words = tuple(Word(text) for text in texts)

    read(Invocation("x", "command", "", 0, words, image=None if image is None else Word(image)))


_SECRET = "very-private"  # noqa: S105 - no password: what stands for one


@pytest.mark.parametrize("engine", GRAMMARS)
def test_no_value_of_a_variable_is_shown(engine: str) -> None:
    """Whichever flag a secret stands behind, and however: no finding tells it."""
    grammar = GRAMMARS[engine]
    start = tuple(Word(text) for text in shlex.split(STARTS[engine]))
    secret = Word(_SECRET, 1, ("TOKEN",))
    for spelling in (*grammar.flags, *grammar.gone, "--no-such-flag"):
        for words in (
            (Word(spelling, 1), secret),
            (Word(f"{spelling}={_SECRET}", 1, ("TOKEN",)),),
            (Word(f"{spelling} {_SECRET}", 1, ("TOKEN",)),),
        ):
            for finding in read(Invocation("x", "command", "", 1, (*start, *words))).findings:
                assert _SECRET not in finding.message + finding.cure, spelling
    whole = (*start, Word(f"--{_SECRET}", 1, ("TOKEN",)), secret)
    for finding in read(Invocation("x", "command", "", 1, whole)).findings:
        assert _SECRET not in finding.message + finding.cure


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--api-key"),
        ("vllm", "--hf-token"),
        ("sglang", "--api-key"),
        ("sglang", "--ssl-keyfile-password"),
        ("llama.cpp", "--api-key"),
        ("llama.cpp", "-hft"),
        ("tgi", "--api-key"),
        ("tgi", "--ngrok-authtoken"),
        ("lmdeploy", "--api-keys"),
    ],
)
def test_keys_are_not_kept(engine: str, flag: str) -> None:
    server = read_command(f"{STARTS[engine]} {flag} {_SECRET}")

    assert server.findings == ()
    assert all(setting.value != _SECRET for setting in server.settings)


@pytest.mark.parametrize("engine", GRAMMARS)
def test_a_variable_without_a_value_is_told(engine: str) -> None:
    """Each sizing flag that hangs on such a variable is there, without a value, and told."""
    grammar = GRAMMARS[engine]
    start = tuple(Word(text) for text in shlex.split(STARTS[engine]))
    open_word = Word("${N}", 4, unresolved=("N",))
    seen = 0
    for spelling, (flag, _) in grammar.flags.items():
        if flag.takes != "one" or spelling in grammar.gone:
            continue
        server = read(Invocation("x", "command", "", 1, (*start, Word(spelling, 4), open_word)))
        for setting in server.settings:
            if setting.kind == "field" and setting.line == 4:
                seen += 1
                assert setting.value is None, spelling
                assert any(f.code == "unresolved-variable" for f in server.findings), spelling
    assert seen >= 3 or engine == "llama.cpp"


def test_a_model_that_hangs_on_a_variable() -> None:
    words = (Word("vllm"), Word("serve"), Word("$MODEL", 7, unresolved=("MODEL",)))
    server = read(Invocation("x", "command", "", 1, words))

    assert server.model is not None
    assert (server.model.value, server.model.line) == (None, 7)
    (finding,) = server.findings
    assert (finding.code, "MODEL" in finding.message) == ("unresolved-variable", True)


@pytest.mark.parametrize("engine", GRAMMARS)
def test_long_commands_take_no_time(engine: str) -> None:
    """Thirty thousand unknown flags, and one of half a megabyte."""
    many = " ".join(f"--x{number} {number}" for number in range(15_000))
    words = tuple(Word(text) for text in f"{STARTS[engine]} {many}".split())
    huge = (*words[:5], Word("--" + "a" * 500_000), Word("{" * 100_000))
    began = time.process_time()

    read(Invocation("x", "command", "", 1, words))
    read(Invocation("x", "command", "", 1, huge))

    assert time.process_time() - began < HANG
