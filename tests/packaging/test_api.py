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
    assert set(CONTRACT) <= set(kvcalc.__all__)


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
        (lambda: LOOSE.Deployment(kv_cache_dtype=5), "kv_cache_dtype is not text", "auto"),
        (
            lambda: LOOSE.fragmentation(plan=PLAN, free_bytes=1.5, largest_free_bytes=1),
            "a size is 1.5",
            "whole bytes",
        ),
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
