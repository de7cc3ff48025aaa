"""Compute and output buffers: what the real llama.cpp reserved, and what kvcalc says of it."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest

import kvcalc
from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.engines import start_up_log
from kvcalc.engines.llamacpp import Interval, compute_buffer
from kvcalc.engines.llamacpp.output import output_buffer
from kvcalc.engines.llamacpp.settings import Settings, resolve
from tests.conftest import ABSENT, SHARED
from tests.engines.llamacpp import record
from tests.engines.llamacpp.compute_rows import FILES, compute_tally, interval
from tests.engines.llamacpp.rows import model, rows

_WIDTHS = ModelSize(hidden_size=4096, intermediate_size=14336, vocab_size=128256)

UNKNOWN = Counter(
    {
        "deepseek32": 6,
        "deepseek4": 4,
        "falcon-h1": 1,
        "gemma3n": 4,
        "gemma4": 2,
        "glm-dsa": 3,
        "jamba": 8,
        "kimi-linear": 1,
        "mamba": 4,
        "minimax-01": 2,
        "minimax-m3": 2,
        "rwkv7": 3,
    }
)
"""Architectures whose graphs kvcalc does not have, with the shared questions about them."""


Args = dict[str, str | int | float | bool | None]


def _llama(**args: str | float | bool | None) -> tuple[ModelSpec, Settings]:
    spec = msgspec.structs.replace(kvcalc.load_model("llama-3.1-8b"), size=_WIDTHS)
    asked = Deployment(engine="llama.cpp", engine_args={"fit": False, **args})
    return spec, resolve(spec, asked, [])


def _known(found: Interval | None) -> Interval:
    assert found is not None
    return found


@pytest.mark.parametrize("name", FILES)
def test_no_answer_is_outside(name: str) -> None:
    """Every buffer is equal to the byte, or inside the interval, or named as not known."""
    assert compute_tally(name).wrong == ()


def test_every_shared_question_is_counted() -> None:
    found = compute_tally("rows.jsonl")
    exact, within = sum(found.exact.values()), sum(found.within.values())
    assert (exact, within, found.refused) == (172, 6, 3)
    assert found.unknown == UNKNOWN
    assert set(found.within) == {"glm4moe", "granitehybrid"}
    assert exact + within + sum(found.unknown.values()) + found.refused == len(rows()) == 221
    assert len(found.exact) == 22


def test_further_questions() -> None:
    """Probes of many architectures, and published models with vocabularies of their own."""
    found = compute_tally("compute.jsonl")
    exact, within = sum(found.exact.values()), sum(found.within.values())
    unknown = sum(found.unknown.values())
    assert exact + within + unknown == len(rows("compute.jsonl"))
    assert exact >= 250
    assert within <= 20
    known = set(found.exact) | set(found.within)
    assert not known & set(found.unknown)
    assert len(known) >= 45


def test_intervals_are_narrow() -> None:
    """What a file leaves open moves a buffer by no more than a tenth."""
    assert [compute_tally(name).widest <= 1.1 for name in FILES] == [True, True]


def test_leaving_layers_out_changes_no_byte() -> None:
    """One question a model, all layers laid out."""
    seen = set()
    for row in rows():
        if row.get("refused") or row["ctx"].get("ctx_type") == "mtp" or row["model"] in seen:
            continue
        seen.add(row["model"])
        assert interval(row, "rows.jsonl") == interval(row, "rows.jsonl", every_layer=True)
    assert len(seen) > 50


def test_logits_of_a_step_dominate_where_all_tokens_have_them() -> None:
    """The shared measurements of Llama 3.1 8B at 8192 tokens."""
    spec, settings = _llama(ctx_size=8192, parallel=1, kv_unified=False)
    assert compute_buffer(spec, settings) == Interval(138_430_496, 138_430_496)
    assert compute_buffer(spec, settings, outputs=512) == Interval(313_020_416, 313_020_416)
    assert output_buffer(spec, settings) == 4 * 128256


def test_without_widths_nothing_is_said() -> None:
    spec, settings = _llama(ctx_size=8192)
    bare = msgspec.structs.replace(spec, size=None)
    assert compute_buffer(bare, settings) is None
    assert output_buffer(bare, settings) is None
    found = kvcalc.plan(bare, Deployment(engine="llama.cpp", engine_args={"ctx_size": 8192}))
    assert any(line.startswith("compute buffers") for line in found.unsupported)
    assert any(line.startswith("the output buffer") for line in found.unsupported)


def test_builds_before_the_measured_ones_are_not_known() -> None:
    spec, _ = _llama()
    old = Deployment(engine="llama.cpp", engine_version="b10488", engine_args={"ctx_size": 8192})
    assert compute_buffer(spec, resolve(spec, old, [])) is None


def test_speculation_widens_the_interval() -> None:
    """A slot may ask for a row of logits for each proposed token; how many is not said."""
    spec, settings = _llama(ctx_size=8192, parallel=1, kv_unified=False)
    found = _known(compute_buffer(spec, settings._replace(method="ngram")))
    assert (found.low, found.high) == (138_430_496, 313_020_416)
    assert found.reason


def test_a_context_that_feeds_its_drafts_is_not_known() -> None:
    """With MTP the target keeps what its drafts read, which is another graph."""
    spec = kvcalc.load_model("qwen3.5-27b")
    widths = ModelSize(hidden_size=5120, intermediate_size=17408, vocab_size=248320)
    spec = msgspec.structs.replace(spec, size=widths)
    args: Args = {"ctx_size": 8192, "fit": False}
    asked = Deployment(engine="llama.cpp", speculative_method="mtp", engine_args=args)
    assert compute_buffer(spec, resolve(spec, asked, [])) is None
    found = kvcalc.plan(spec, asked)
    assert "the compute buffer of the mtp context" in found.unsupported


def test_a_gpu_has_bounds() -> None:
    """They hold what a CPU takes without inputs, and grow with copies for several GPUs."""
    spec, settings = _llama(ctx_size=8192, parallel=4, kv_unified=True)
    cpu = _known(compute_buffer(spec, settings))
    one = _known(compute_buffer(spec, settings, gpu=True))
    assert one.low <= cpu.low <= one.high
    assert not one.exact
    two = settings._replace(placing=settings.placing._replace(shares=(1.0, 1.0)))
    assert _known(compute_buffer(spec, two, gpu=True)).high > one.high


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_logs_of_gpus() -> None:
    """One of one start on a GPU that prints its compute buffer lies within the bounds.

    The log does not say how many outputs a step could have: the bounds span all that it could.
    """
    path = SHARED / "logs" / "cases.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = [c for c in cases if c["engine"] == "llama.cpp" and "compute buffer" in c["log_excerpt"]]
    assert [case["id"] for case in told] == ["llamacpp-129"]
    printed = float(told[0]["log_excerpt"].rsplit("=", 1)[1].removesuffix("MiB"))
    widths = ModelSize(hidden_size=5120, intermediate_size=17408, vocab_size=248320)
    spec = msgspec.structs.replace(kvcalc.load_model("qwen3.5-27b"), size=widths)
    args: Args = {"ctx_size": 8192, "parallel": 1, "rs_seq": 2, "fit": False}
    settings = resolve(spec, Deployment(engine="llama.cpp", engine_args=args), [])
    fewest = _known(compute_buffer(spec, settings, gpu=True, outputs=1))
    most = _known(compute_buffer(spec, settings, gpu=True, outputs=512))
    assert fewest.low <= printed * 2**20 <= most.high
    assert most.low <= printed * 2**20


def test_the_plan_and_the_log_tell() -> None:
    """On a CPU the bytes stand beside the cache, and in llama.cpp's own lines."""
    spec, _ = _llama()
    args: Args = {
        "ctx_size": 8192,
        "parallel": 1,
        "kv_unified": False,
        "n_gpu_layers": 0,
        "fit": False,
    }
    found = kvcalc.plan(spec, Deployment(engine="llama.cpp", engine_args=args))
    assert found.rank.outside_bytes == 138_430_496 + 4 * 128256
    lines = start_up_log(found, None)
    assert lines[-2:] == (
        "llama_context:        CPU  output buffer size =     0.49 MiB",
        "sched_reserve:        CPU compute buffer size =   132.02 MiB",
    )
    assert any(note.startswith("compute buffer on a CPU: 138,430,496 B") for note in found.notes)
    assert not any("compute buffer" in line for line in found.unsupported)


def test_a_named_card_is_told_bounds_alone() -> None:
    spec, _ = _llama()
    asked = Deployment(engine="llama.cpp", gpu="l4", engine_args={"ctx_size": 8192, "fit": False})
    found = kvcalc.plan(spec, asked)
    assert found.rank.outside_bytes == 0
    assert any(note.startswith("compute buffer on a GPU: ") for note in found.notes)
    assert not any("compute buffer" in line for line in start_up_log(found, None))


@pytest.mark.parametrize("args", [{"n_gpu_layers": 10}, {"no_kv_offload": True}])
def test_a_divided_graph_is_not_known(args: Args) -> None:
    """With some layers on the host, or the cache there, two devices share the graph."""
    spec, _ = _llama()
    asked = {"ctx_size": 8192, "fit": False, **args}
    found = kvcalc.plan(spec, Deployment(engine="llama.cpp", gpu="l4", engine_args=asked))
    assert not any("compute buffer on" in note for note in found.notes)
    assert any(line.startswith("compute buffers") for line in found.unsupported)


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_printed_sizes_agree() -> None:
    """Every output and compute buffer that a shared answer prints, to its rounding."""
    path = SHARED / "oracle" / "llamacpp_results.jsonl"
    printed = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sizes = [text for text in row["log"] if "output buffer size" in text]
        vocab = row.get("n_vocab") or (record.read_model(row).size or ModelSize()).vocab_size
        if not row["ok"] or not sizes or vocab is None:
            continue
        told = float(sizes[0].rsplit("=", 1)[1].removesuffix("MiB"))
        assert abs(4 * vocab * row["n_seq_max"] / 2**20 - told) <= 0.0051, row["name"]
        printed += 1
    assert printed >= 200


def test_gguf_files_tell_widths() -> None:
    """The keys of the recorded models, as ModelSize has them."""
    found = model("deepseek-v3.meta.gguf").size
    assert found is not None
    assert (found.hidden_size, found.vocab_size, found.num_experts) == (7168, 129280, 256)
    assert (found.q_lora_rank, found.kv_lora_rank, found.qk_nope_head_dim) == (1536, 512, 128)
    assert (found.first_moe_layer, found.num_moe_layers) == (3, 58)
