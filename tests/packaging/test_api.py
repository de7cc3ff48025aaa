"""The public names of the package."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvcalc
import kvcalc.api

ROOT = Path(__file__).parents[2]
CONTRACT = ["load_model", "Deployment", "plan", "compare", "fragmentation"]
MEASURED = {"read_log", "read_oom", "read_metrics", "probe"}
MEASURED |= {"LogAnswer", "OutOfMemory", "ServerMetrics", "ProbeResult"}


@pytest.mark.parametrize("name", kvcalc.__all__)
def test_importable_and_documented(name: str) -> None:
    """Every public name is there and says what it is."""
    value = getattr(kvcalc, name)

    if name != "__version__":
        assert (inspect.getdoc(value) or "").strip()


def test_all() -> None:
    """`kvcalc` exports what `kvcalc.api` does, and the version."""
    assert sorted(kvcalc.__all__) == sorted([*kvcalc.api.__all__, "__version__"])
    assert sorted(kvcalc.__all__) == dir(kvcalc)
    assert {*CONTRACT, *MEASURED} <= set(kvcalc.__all__)


def test_unknown_name() -> None:
    """A name that is not there is an AttributeError that says so."""
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = kvcalc.nope


@pytest.mark.parametrize("name", [n for n in kvcalc.api.__all__ if n[0].islower()])
def test_signatures(name: str) -> None:
    """Every public function says what it takes and returns, by type."""
    signature = inspect.signature(getattr(kvcalc, name))

    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty


def test_contract_example() -> None:
    """The contract's example gives what it says."""
    model = kvcalc.load_model("llama-3.1-8b")
    assert model.bytes_per_token("bfloat16") == 131_072
    assert model.sequence_bytes(8192, "bfloat16") == 2**30
    deployment = kvcalc.Deployment(
        tensor_parallel_size=2,
        kv_cache_dtype="fp8",
        block_size=16,
        max_model_len=131_072,
        gpu="h100-80gb",
    )
    plan = kvcalc.plan(model, deployment)
    assert plan.block_size == 16
    assert plan.block_bytes == 16 * 131_072 // 4
    assert plan.bytes_held(8192) == 2**28
    capacity = plan.capacity(kv_cache_bytes=10 * 2**30)
    for name in ("num_blocks", "kv_cache_tokens", "max_concurrency", "fits", "needed_bytes"):
        assert hasattr(capacity, name)
    compared = kvcalc.compare(plan, lengths=[200, 1200, 700, 2600])
    assert compared.workload.tokens == 4_700
    found = kvcalc.fragmentation(holes=[2**30] * 3, request_bytes=2 * 2**30)
    assert (found.fits_contiguous, found.fits_paged) == (False, True)
    for name in ("held", "need", "wastes", "notes", "unsupported", "convention"):
        assert hasattr(plan, name)


LOOSE: Any = kvcalc  # as a program without type hints calls it
MODEL = kvcalc.load_model("llama-3.1-8b")
PLAN: Any = kvcalc.plan(MODEL, kvcalc.Deployment(max_model_len=8192))


@pytest.mark.parametrize(
    ("ask", "message", "hint"),
    [
        (lambda: LOOSE.load_model(None), "source is None", "preset's name"),
        (lambda: LOOSE.load_model(Path("x")), "source is a P", "str(path)"),
        (lambda: LOOSE.plan("llama-3.1-8b"), "model is 'llama-3.1-8b', not a ModelSpec", "load_"),
        (lambda: LOOSE.plan(None), "model is None", "load_model"),
        (lambda: LOOSE.plan(MODEL, {}), "deployment is a dict", "kvcalc.Deployment("),
        (lambda: LOOSE.plan(MODEL, "h100"), "deployment is 'h100'", "kvcalc.Deployment("),
        (lambda: LOOSE.compare(MODEL, [1]), "plan is a ModelSpec, not a CachePlan", "kvcalc.plan"),
        (lambda: LOOSE.fragmentation(plan="x", holes=[1]), "plan is 'x'", "kvcalc.plan"),
        (lambda: LOOSE.compare(PLAN, "abc"), "lengths are 'abc'", "list of ints"),
        (lambda: LOOSE.compare(PLAN, 200), "lengths are 200", "list of ints"),
        (lambda: LOOSE.compare(PLAN, [1.5]), "request 0 is 1.5", "list of ints"),
        (lambda: LOOSE.compare(PLAN, [True]), "request 0 is True", "list of ints"),
        (lambda: LOOSE.compare(PLAN, {1: 2}), "of type dict", "kvcalc.Lengths({200: 50})"),
        (lambda: LOOSE.compare(PLAN, np.ones((2, 2), int)), "2 dimensions", "ravel"),
        (lambda: LOOSE.compare(PLAN, []), "no request", "in Python a list"),
        (lambda: LOOSE.compare(PLAN, [1], kv_cache_bytes=1e10), "kv_cache_bytes is", "2**30"),
        (lambda: LOOSE.compare(PLAN, [1], kv_cache_bytes=-1), "out of range", "bytes"),
        (lambda: LOOSE.compare(PLAN, [1], kv_cache_bytes=10**5000), "out of range", "bytes"),
        (lambda: LOOSE.Lengths(10**5000), "of type int, not a mapping", "Lengths.of"),
        (lambda: LOOSE.Deployment(kv_cache_dtype=5), "kv_cache_dtype is 5, not text", "auto"),
        (
            lambda: LOOSE.fragmentation(plan=PLAN, free_bytes=1.5, largest_free_bytes=1),
            "a size is 1.5",
            "whole bytes",
        ),
        (lambda: LOOSE.read_oom(None), "text is None, not a str", "the text itself"),
        (lambda: LOOSE.read_oom(b"x"), "text is a bytes, not a str", "the text itself"),
        (lambda: LOOSE.read_log(None), "path is None, not a str", "the log's file"),
        (lambda: LOOSE.read_log(b"x"), "path is a bytes, not a str", "the log's file"),
        (lambda: LOOSE.read_metrics(None), "page is None, not a str", "an address, a file"),
        (lambda: LOOSE.read_metrics(b"x"), "page is a bytes, not a str", "an address, a file"),
        (lambda: LOOSE.read_metrics("x", "llama-3.1-8b"), "not a ModelSpec", "load_model"),
        (lambda: LOOSE.read_metrics("x", MODEL, {}), "deployment is a dict", "kvcalc.Deployment("),
        (lambda: LOOSE.probe(MODEL, [1]), "plan is a ModelSpec, not a CachePlan", "kvcalc.plan"),
        (lambda: LOOSE.probe(PLAN, [1.5]), "request 0 is 1.5", "list of ints"),
        (lambda: LOOSE.probe(PLAN, [1], repetitions=0), "repetitions is 0", "1 or more"),
        (lambda: LOOSE.probe(PLAN, [9000], dry_run=True), "over the maximum of 8,192", "raise"),
        (lambda: PLAN.wastes(1.5), "lengths are 1.5", "list of ints"),
        (lambda: PLAN.capacity(kv_cache_bytes=1e10), "kv_cache_bytes is", "2**30"),
    ],
)
def test_slips(ask: Callable[[], object], message: str, hint: str) -> None:
    """A value of the wrong kind is one of kvcalc's errors, which says what to give instead."""
    with pytest.raises(kvcalc.KvcalcError, match=message) as caught:
        ask()

    assert isinstance(caught.value, ValueError)
    assert hint in caught.value.hint


CARD = kvcalc.Deployment(engine="vllm", gpu="l40s", max_model_len=8192)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"sequences": 0}, "sequences is 0, not from 1", "whole number"),
        ({"sequences": -1}, "sequences is -1", "whole number"),
        ({"sequences": 1.5}, "sequences is 1.5 (float), not a whole number", "whole number"),
        ({"sequences": True}, "sequences is True (bool), not a whole number", "whole number"),
        ({"sequences": "2"}, "sequences is '2' (str), not a whole number", "whole number"),
        ({"sequences": None}, "sequences is of type NoneType, not a whole number", "whole number"),
        ({"sequences": 10**100}, "sequences is beyond all measure", "whole number"),
        ({"instances": 0}, "instances is 0", "whole number"),
        ({"instances": 2.5}, "instances is 2.5", "whole number"),
        ({"free_bytes": -1}, "free_bytes is -1", r"2**30"),
        ({"free_bytes": 1e10}, "free_bytes is 1", r"2**30"),
        ({"weights_bytes": 0}, "weights_bytes is 0", r"2**30"),
        ({"weights_bytes": 1.5}, "weights_bytes is 1.5", r"2**30"),
        ({"weights_bytes": "15GiB"}, "weights_bytes is '15GiB'", r"2**30"),
        ({"quantization": 8}, "quantization is 8, not a name", "fp8"),
        ({"at": 5}, "at is 5, not a list", "[4096]"),
        ({"at": "4096"}, "at is '4096', not a list", "[4096]"),
        ({"at": None}, "at is None, not a list", "[4096]"),
        ({"at": [0]}, "a length of at is 0", "whole number"),
        ({"at": [4096.0]}, "a length of at is 4096.0", "whole number"),
        ({"solve_for": None}, "solve_for is None, not a list", "max-model-len"),
        ({"solve_for": "tp"}, "solve_for is 'tp', not a list", '["tp"]'),
        ({"solve_for": "gpu"}, "solve_for is 'gpu', not a list", '["gpus"]'),
    ],
)
def test_slips_of_capacity(settings: dict[str, Any], message: str, hint: str) -> None:
    """What the command refuses, the function refuses as well, with what to write instead."""
    with pytest.raises(kvcalc.KvcalcError, match=re.escape(message)) as caught:
        LOOSE.capacity(MODEL, CARD, **settings)

    assert isinstance(caught.value, ValueError)
    assert hint in caught.value.hint


def test_numbers_of_numpy_are_numbers() -> None:
    found = LOOSE.capacity(MODEL, CARD, sequences=np.int64(2), at=np.array([4096]))
    assert found == kvcalc.capacity(MODEL, CARD, sequences=2, at=[4096])


def test_a_setting_that_is_not_solved_for() -> None:
    with pytest.raises(kvcalc.KvcalcError, match="unknown setting to solve for 'blocks'"):
        kvcalc.capacity(MODEL, CARD, solve_for=["blocks"])


_WRONG: dict[str, object] = {
    "gpu_memory_utilization": "0.9",
    "engine": None,
    "engine_version": 0.9,
    "gpu": 5,
    "dtype": 16,
    "enforce_eager": 1,
    "enable_prefix_caching": "no",
    "attention_backend": True,
    "draft_model": 3,
    "engine_args": "page_size=64",
    "block_size": 16.0,
    "max_model_len": "8192",
    "kv_cache_memory_bytes": 1e10,
    "tensor_parallel_size": None,
}


@pytest.mark.parametrize("name", kvcalc.Deployment.__struct_fields__)
def test_no_field_of_a_deployment_takes_what_it_is_not(name: str) -> None:
    """Every field of every kind: an object is none of them, and neither are these slips."""
    for wrong in (_WRONG.get(name, object()), object(), [1]):
        with pytest.raises(kvcalc.KvcalcError) as caught:
            LOOSE.Deployment(**{name: wrong})
        assert name in caught.value.message
        assert caught.value.hint


@pytest.mark.parametrize("given", [{1: 2}, {"page_size": [64]}, {"page_size": object()}])
def test_engine_args_are_plain(given: object) -> None:
    with pytest.raises(kvcalc.KvcalcError, match="engine_args has") as caught:
        LOOSE.Deployment(engine_args=given)
    assert caught.value.hint


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_share_is_one(share: float) -> None:
    with pytest.raises(kvcalc.KvcalcError, match="gpu_memory_utilization") as caught:
        kvcalc.Deployment(gpu_memory_utilization=share)
    assert caught.value.hint


PAGE = """\
vllm:cache_config_info{block_size="16",num_gpu_blocks="1001",cache_dtype="auto"} 1.0
vllm:kv_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.5
vllm:num_requests_running{model_name="meta-llama/Llama-3.1-8B-Instruct"} 3
what is this
"""


def test_a_page_from_python(tmp_path: Path) -> None:
    """A text, a file or a path; alone, or beside what is computed of a model."""
    file = tmp_path / "page.txt"
    file.write_text(PAGE, encoding="utf-8")
    for page in (PAGE, str(file), file):
        (server,) = kvcalc.read_metrics(page, running_tokens=7_000)
        assert (server.engine, server.blocks_used, server.predicted) == ("vllm", 500, None)
        assert server.waste is not None
        assert server.waste.unused_tokens == 1_000
        assert "1 line could not be read" in server.notes[-1]
    deployment = kvcalc.Deployment(max_model_len=8192)
    (server,) = kvcalc.read_metrics(PAGE, MODEL, deployment)
    assert server.predicted is not None
    assert server.predicted.kv_cache_bytes == 1001 * 16 * 131_072
    assert server.agreed == ("model", "block_size")
    with pytest.raises(kvcalc.KvcalcError, match="what is this"):
        kvcalc.read_metrics(PAGE, strict=True)
    with pytest.raises(kvcalc.KvcalcError, match="the page is vllm's, not sglang's"):
        kvcalc.read_metrics(PAGE, MODEL, kvcalc.Deployment(engine="sglang"))
    with pytest.raises(kvcalc.KvcalcError, match="a deployment of which model"):
        kvcalc.read_metrics(PAGE, deployment=deployment)
    with pytest.raises(kvcalc.KvcalcError, match="cannot be read"):
        kvcalc.read_metrics(str(tmp_path / "nowhere"))


def test_a_probe_from_python() -> None:
    """A dry run and a CPU measure what is computed, to the byte."""
    plan = kvcalc.plan(kvcalc.shape_model(2, 2, 16), kvcalc.Deployment(max_model_len=64))
    for how in ({"dry_run": True}, {"device": "cpu"}):
        found = LOOSE.probe(plan, [40, 3], repetitions=1, **how)
        assert found.measured.storage_bytes == found.computed_bytes == 4 * 16 * 256
        assert found.repetitions == 1
    with pytest.raises(kvcalc.KvcalcError, match="unknown kind of device 'abacus'"):
        kvcalc.probe(plan, [1], device="abacus")
    with pytest.raises(kvcalc.KvcalcError, match="unknown kernel 'x'"):
        kvcalc.probe(plan, [1], kernel="x")


def test_unknown_policy() -> None:
    """What happens to requests over the maximum is one of three policies."""
    with pytest.raises(kvcalc.KvcalcError, match="unknown value of over 'foo'"):
        LOOSE.compare(PLAN, [1], over="foo")


def test_numpy_integers() -> None:
    """An array of integers is compared like the list of them, and its bytes are ints."""
    lengths = [200, 1200, 700, 2600]
    found = LOOSE.compare(PLAN, np.array(lengths), kv_cache_bytes=np.int64(2**34))

    assert found == kvcalc.compare(PLAN, lengths, kv_cache_bytes=2**34)
    assert type(found.paged_total.reserved_bytes) is int
    assert found == kvcalc.compare(
        PLAN, kvcalc.Lengths(dict.fromkeys(lengths, 1)), kv_cache_bytes=2**34
    )


def test_version() -> None:
    """The version is the one of the metadata."""
    assert metadata.version("kvcalc") == kvcalc.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:[-.]?\w+)?", kvcalc.__version__)


def test_metadata() -> None:
    """The metadata says who may use it, with what, and where it runs."""
    found = metadata.metadata("kvcalc")

    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Summary"]
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    required = metadata.requires("kvcalc") or []
    always = sorted(re.split(r"[<>=!~; ]", r)[0] for r in required if "extra ==" not in r)
    assert always == ["msgspec", "numpy", "pyyaml", "rich", "typer"]
    assert found.get_all("Provides-Extra") == ["hub", "probe"]
    (script,) = metadata.entry_points(group="console_scripts", name="kvcalc")
    assert script.value == "kvcalc.__main__:run"


def test_typed() -> None:
    """Type checkers are told that the package is typed."""
    assert (Path(kvcalc.__file__).parent / "py.typed").is_file()


def test_project_files() -> None:
    """The licence is there, and the lock file is not for the repository."""
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "uv.lock" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
