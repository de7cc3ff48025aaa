from __future__ import annotations

import pytest

from kvcalc.core.errors import (
    InputError,
    InvalidValueError,
    KvcalcError,
    UnavailableError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
    nearest,
)


@pytest.mark.parametrize(
    "kind", [InputError, InvalidValueError, UnavailableError, UnsupportedError, UsageError]
)
def test_every_error_is_ours(kind: type[KvcalcError]) -> None:
    """One handler catches all; a message, a hint and a place are kept apart."""
    error = kind("bad", hint="do this", where="file.yaml:3")

    assert isinstance(error, KvcalcError)
    assert str(error) == "file.yaml:3: bad"
    assert (error.message, error.hint, error.where) == ("bad", "do this", "file.yaml:3")
    assert str(kind("bad")) == "bad"


def test_a_bad_value_is_a_value_error() -> None:
    assert issubclass(InvalidValueError, ValueError)


def test_unknown_name() -> None:
    """The nearest and all known names are told."""
    error = UnknownNameError("engine", "vlm", ["vllm", "none"], where="--engine")

    assert str(error) == "--engine: unknown engine 'vlm'"
    assert error.suggestions == ["vllm"]
    assert error.hint == "did you mean vllm? known: none, vllm"


def test_unknown_name_that_resembles_none() -> None:
    """Where none is near, all are listed."""
    error = UnknownNameError("engine", "xyzzy", ["vllm", "none"])

    assert error.suggestions == []
    assert error.hint == "known: none, vllm"


def test_several_near_names() -> None:
    error = UnknownNameError("dtype", "q4_2", ["q4_1", "q8_0", "q4_0"])

    assert error.hint.startswith(f"did you mean {' or '.join(error.suggestions)}? known: ")
    assert set(error.suggestions) >= {"q4_0", "q4_1"}


def test_many_names() -> None:
    """Of more than forty names only the nearest are told."""
    names = [f"name-{i}" for i in range(100, 150)]

    assert "known" not in UnknownNameError("thing", "name-100x", names).hint
    assert UnknownNameError("thing", "xyzzy", names).hint == "50 are known, none like it"


def test_a_hint_of_ones_own() -> None:
    assert UnknownNameError("engine", "vlm", ["vllm"], hint="look it up").hint == "look it up"


def test_nearest() -> None:
    """Letter case does not matter, the best comes first, and there is a limit."""
    assert nearest("BF17", ["bf16", "fp16", "int8"])[0] == "bf16"
    assert nearest("q8", ["q8_0", "q8_1", "q8_2", "q8_3"], count=2) == ["q8_3", "q8_2"]
    assert nearest("llama-3.1-8B", ["Llama-3.1-8B"]) == ["Llama-3.1-8B"]
    assert nearest("zzz", ["bf16"]) == []
