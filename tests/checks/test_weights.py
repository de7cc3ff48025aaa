"""Whose word on the format of weights counts: entry, map, option, flag, checkpoint, top, name."""

from __future__ import annotations

import msgspec
import pytest

from kvcalc.checks.models import Found
from kvcalc.checks.servers import Said, format_of_weights
from kvcalc.checks.targets import Target
from kvcalc.core.model import ModelSpec
from kvcalc.manifests import read_source
from kvcalc.manifests.commands import read
from kvcalc.manifests.sources import Folder
from kvcalc.models import load_model
from kvcalc.models.weight_names import format_of_name

PLAIN = load_model("qwen2.5-7b")


def served(command: str) -> Target:
    """Return a target of a command."""
    (one,) = read_source("command.sh", command, Folder("."))
    return Target("it", server=read(one, lambda _: None))


def stored_in(name: str) -> ModelSpec:
    """Return the model with weights that its checkpoint has in a format."""
    assert PLAIN.size is not None
    size = msgspec.structs.replace(PLAIN.size, weights_dtype=name)
    return msgspec.structs.replace(PLAIN, size=size)


@pytest.mark.parametrize(
    ("command", "model", "kept", "said", "expected"),
    [
        ("vllm serve a/b-AWQ", PLAIN, None, Said(), "awq"),
        ("vllm serve a/b", PLAIN, None, Said(), None),
        ("vllm serve a/b-AWQ", PLAIN, None, Said(default="fp8"), "fp8"),
        ("vllm serve a/b-AWQ -q fp8", PLAIN, None, Said(default="int8"), "fp8"),
        ("vllm serve a/b-AWQ -q fp8", PLAIN, None, Said(option="int8"), "int8"),
        ("vllm serve a/b-AWQ -q fp8", PLAIN, "nvfp4", Said(option="int8"), "nvfp4"),
        ("vllm serve a/b", PLAIN, "nvfp4", Said(entry="q4_0", option="int8"), "q4_0"),
        ("vllm serve a/b-AWQ", stored_in("gptq"), None, Said(default="fp8"), None),
        ("vllm serve a/b", stored_in("gptq"), None, Said(option="fp8"), "fp8"),
        ("vllm serve a/b -q compressed-tensors", stored_in("int4"), None, Said(), None),
        ("vllm serve a/b-NVFP4 -q modelopt", PLAIN, None, Said(), "nvfp4"),
        ("vllm serve a/b-GPTQ-Int8 -q gptq_marlin", PLAIN, None, Said(), "int8-grouped"),
        ("vllm serve a/b -q gptq_marlin", PLAIN, None, Said(), "gptq_marlin"),
        ("vllm serve a/b --load-format bitsandbytes", PLAIN, None, Said(), "bitsandbytes"),
        ("vllm serve a/b -q none", PLAIN, None, Said(), None),
        (
            """vllm serve a/b --hf-overrides '{"quantization_config": {"quant_method": "fp8"}}'""",
            PLAIN,
            None,
            Said(),
            "fp8",
        ),
    ],
)
def test_precedence(
    command: str, model: ModelSpec, kept: str | None, said: Said, expected: str | None
) -> None:
    """Each case has one word more than the one that counts, where there is one below it."""
    target = served(command)
    assert target.server is not None
    assert target.server.model is not None
    by_name = format_of_name(str(target.server.model.value))
    plain = model is PLAIN
    found = Found(model, kept, by_name if plain else None)

    made, format_ = format_of_weights(target, found, said)

    assert format_ == expected
    codes = [finding.code for finding in made.findings if finding.code.startswith("weights")]
    assumed = by_name is not None and expected == by_name.format and kept is None and plain
    assert codes == (["weights-format-by-name"] if assumed and expected != "fp8" else [])


def test_a_flag_whose_bits_are_not_known() -> None:
    """It is said, and the weights are counted as published."""
    made, format_ = format_of_weights(served("vllm serve a/b -q quark"), Found(PLAIN), Said())

    assert format_ is None
    assert [finding.code for finding in made.findings][-1:] == ["weights-format"]


def test_given_bytes_need_no_format() -> None:
    """Nothing is assumed of weights whose size is said."""
    target = served("vllm serve a/b-AWQ")
    found = Found(PLAIN, None, format_of_name("a/b-AWQ"))
    made, format_ = format_of_weights(target, found, Said(sized=True))

    assert format_ is None
    assert not made.findings
