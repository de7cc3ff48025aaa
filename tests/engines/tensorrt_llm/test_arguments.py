"""Every setting of TensorRT-LLM's cache is modelled, harmless, or refused with what to do."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.engines.tensorrt_llm.arguments import (
    KNOWN_ARGUMENTS,
    NO_BYTES,
    NOT_MODELLED,
    arguments,
    harmless,
)
from tests.engines.tensorrt_llm.fields import KV_CACHE_CONFIG, TORCH_LLM_ARGS


def test_the_tables_are_the_engine_s_settings() -> None:
    names = [*KNOWN_ARGUMENTS, *NO_BYTES, *NOT_MODELLED]

    assert sorted(names) == sorted([*KV_CACHE_CONFIG, *TORCH_LLM_ARGS])


@pytest.mark.parametrize("prefix", ["", "kv_cache_config."])
@pytest.mark.parametrize("name", KV_CACHE_CONFIG)
def test_a_field_of_the_cache(name: str, prefix: str) -> None:
    if name in NOT_MODELLED:
        with pytest.raises(UnsupportedError, match="not modelled") as refused:
            arguments({prefix + name: 1})
        assert refused.value.hint
        return
    found = arguments({prefix + name: 1})

    assert found == {name: 1}
    assert bool(harmless(found)) == (name in NO_BYTES)


@pytest.mark.parametrize("name", TORCH_LLM_ARGS)
def test_a_field_of_the_engine(name: str) -> None:
    if name in NOT_MODELLED:
        with pytest.raises(UnsupportedError, match="not modelled"):
            arguments({name: 1})
    else:
        assert arguments({name: 1}) == {name: 1}


def test_another_name_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match="page_size"):
        arguments({"kv_cache_config.page_size": 1})
