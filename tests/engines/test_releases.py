"""Releases of every engine: newer ones are counted and warned of, older and none are not known."""

from __future__ import annotations

import msgspec
import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnknownReleaseError
from kvcalc.engines import ENGINES, plan, release_warning
from kvcalc.models import load_model
from tests.cli.harness import call

_ENGINES = [name for name in ENGINES if name != "none"]
_OLDER = {"llama.cpp": "b1200", "mlc-llm": "0.18"}
_NEWER = {"llama.cpp": ("b99999", "2031-01-01")}
_NO_RELEASE = (
    "banana",
    "",
    "1",
    "v",
    "0.33.0.0.1 ",
    "b12",
    "-1.2.3",
    "\u0661.\u0662.\u0663",
    "9" * 400,
)


def _deployment(engine: str, version: str | None) -> Deployment:
    return Deployment(engine=engine, engine_version=version, max_model_len=4096)


@pytest.mark.parametrize("engine", _ENGINES)
class TestReleases:
    """Every engine has the same answers for releases that it does not know."""

    def test_newer(self, engine: str) -> None:
        """What is newer is counted as the newest known is, and says so."""
        model = load_model("llama-3.1-8b")
        newest = plan(model, _deployment(engine, None))
        assert not newest.warnings
        for version in (*_NEWER.get(engine, ("99.0.0", "v99.1.0rc2.dev3+gabc")), "nightly"):
            made = plan(model, _deployment(engine, version))
            (warning,) = made.warnings
            assert "is newer than" in warning
            assert msgspec.structs.replace(made, warnings=()) == newest

    def test_words(self, engine: str) -> None:
        """What is called the latest is the newest known."""
        model = load_model("llama-3.1-8b")
        made = plan(model, _deployment(engine, "latest"))
        assert made == plan(model, _deployment(engine, None))

    def test_older(self, engine: str) -> None:
        """What is older than the oldest known is not known, and is no refusal of the engine."""
        with pytest.raises(UnknownReleaseError) as caught:
            plan(load_model("llama-3.1-8b"), _deployment(engine, _OLDER.get(engine, "0.0.1")))
        assert caught.value.hint

    @pytest.mark.parametrize("version", _NO_RELEASE)
    def test_none(self, engine: str, version: str) -> None:
        """What is no release is of the same class."""
        with pytest.raises(UnknownReleaseError) as caught:
            plan(load_model("llama-3.1-8b"), _deployment(engine, version))
        assert len(caught.value.message) < 120

    def test_commands(self, engine: str) -> None:
        """A command warns of a newer release; what is none is an error with its option."""
        newer = _NEWER.get(engine, ("99.0.0",))[0]
        asked = ("plan", "llama-3.1-8b", "--engine", engine, "--max", "4096", "--engine-version")
        outcome = call(*asked, newer)
        assert outcome.code == 0
        assert outcome.err.count("warning: ") == 1, outcome.err
        outcome = call(*asked, "banana")
        assert outcome.code == 2
        assert outcome.errors[0].startswith("error: --engine-version: 'banana' is no ")


def test_patches_of_the_newest_line() -> None:
    """A patch that came after the newest known release is newer than it."""
    assert release_warning("vllm", "0.33.1")
    assert not release_warning("vllm", "0.33.0.post1")
    assert not release_warning("tensorrt-llm", "1.3.7")
