"""What a name says of weights, and what a format takes: known files lie within the bounds."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from kvcalc.core.errors import UnknownNameError
from kvcalc.models import load_model
from kvcalc.models.weight_names import format_of_name, plain_name
from kvcalc.weights.formats import quantised, weight_width
from kvcalc.weights.on_rank import weights_on_rank

_TABLE = files("kvcalc.models").joinpath("weight_names.tsv").read_text(encoding="utf-8")
ROWS = list(csv.DictReader(_TABLE.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("row", ROWS, ids=[row["example"] for row in ROWS])
def test_every_pattern_reads_its_example(row: dict[str, str]) -> None:
    """No earlier pattern takes it, and the format is one that has a width."""
    found = format_of_name(row["example"])

    assert found is not None
    if not row["format"]:
        assert found.format is None
        return
    assert found.format is not None
    kind, _, rest = row["format"].partition("{}")
    assert found.format.startswith(kind)
    assert found.format.endswith(rest)
    assert weight_width(found.format).low > 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/models/Qwen2.5-7B-Instruct-AWQ/", "awq"),
        ("/models/awq/llama", "awq"),
        ("model-IQ4_NL.gguf", "iq4_nl"),
        ("/m/Qwen_QwQ-32B-Q4_K_M.gguf", "q4_k_m"),
        ("/models/Q5_K_S/model-00001-of-00003.gguf", "q5_k_s"),
        ("unsloth/Kimi-K2.5-GGUF:UD-Q2_K_XL", "ud-q2_k_xl"),
        ("bartowski/Llama-3.2-3B-Instruct-GGUF", "q4_k_m"),
        ("llama3.1:8b-instruct-q8_0", "q8_0"),
        ("qwen3:30b-a3b", "q4_k_m"),
        ("models--Qwen--Qwen3-32B-FP8/snapshots/0123456789abcdef0123456789abcdef01234567", "fp8"),
        ("s3://bucket/llama-70b-w4a16:latest", "int4"),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", "mxfp4_moe"),
        ("mlx-community/Qwen3-8B-8bit", "mlx-8bit"),
        ("org/Name-8bit", "int8-grouped"),
        ("Qwen/Qwen1.5-7B-Chat-GPTQ-Int8", "int8-grouped"),
        ("ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g", "gptq"),
        ("org/Name-3.0bpw", "3.0bpw"),
    ],
)
def test_names(name: str, expected: str) -> None:
    """Repositories, paths, files, tags and folders of the Hub's cache."""
    found = format_of_name(name)

    assert found is not None
    assert found.format == expected
    assert found.format in found.assumption()


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-30B-A3B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct-1M",
        "deepseek-ai/DeepSeek-R1-0528",
        "bigscience/bloom-560m",
        "/mnt/models",
        "/models/model.gguf",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        "casperhansen/mixtral-instruct",
        "org/eightbit-model",
    ],
)
def test_names_that_say_nothing(name: str) -> None:
    """A size, a date, a publisher or a length is no format."""
    assert format_of_name(name) is None


def test_sixteen_bits_by_name() -> None:
    """Copies that were brought back say so, whatever they were quantised for."""
    for name in ("google/gemma-3-27b-it-qat-q4_0-unquantized", "unsloth/gpt-oss-20b-BF16"):
        found = format_of_name(name)
        assert found is not None
        assert found.format is None


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "Meta-Llama-3.1-8B-Instruct"),
        ("unsloth/phi-4-unsloth-bnb-4bit", "phi-4"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "Qwen3-8B"),
        ("google/gemma-3-27b-it-qat-w4a16-ct", "gemma-3-27b-it"),
        ("Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
    ],
)
def test_plain_names(name: str, plain: str) -> None:
    """The last part without what is said of weights."""
    assert plain_name(name) == plain


BITS_OF_8B = {
    "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_l": 4.2979, "iq4_xs": 4.4597, "iq4_nl": 4.6818,
    "q4_k_s": 4.6672, "q4_k_m": 4.8944, "q5_k_s": 5.5704, "q5_k_m": 5.7036, "q6_k": 6.5633,
    "q8_0": 8.5008, "iq1_s": 2.0042, "iq2_xxs": 2.3824, "iq2_m": 2.9294, "iq3_xxs": 3.2548,
    "iq3_m": 3.7628,
}  # fmt: skip
"""Bits a weight of Llama-3.1-8B's files: llama.cpp tools/quantize/README.md."""


@pytest.mark.parametrize("name", BITS_OF_8B)
def test_mixtures_of_llama_cpp(name: str) -> None:
    """The recipe comes to the published size: no more than 2 % above it, and never below."""
    term = weights_on_rank(load_model("llama-3.1-8b"), quantization=name)
    known = BITS_OF_8B[name] * 8_030_261_248 / 8

    assert term.low_bytes <= known <= term.high_bytes * 1.0002  # rounded to four digits
    assert term.high_bytes < known * (1.06 if name.startswith("iq2_xxs") else 1.045)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("qwen3-8b", 5.03),
        ("llama-3.1-70b", 42.52),
        ("qwen2.5-32b", 19.85),
        ("llama-3.2-3b", 2.02),
        ("gemma-3-1b", 0.806),
        ("qwen2.5-0.5b", 0.398),
        ("qwen3-30b-a3b-instruct-2507", 18.56),
    ],
)
def test_files_of_q4_k_m(model: str, size: float) -> None:
    """Sizes of files as they are published, in GB of three digits: rows that fit no block too."""
    term = weights_on_rank(load_model(model), quantization="q4_k_m")

    assert term.low_bytes < size * 1.005e9
    assert size * 0.995e9 <= term.high_bytes < size * 1.07e9


def test_widths_that_a_name_makes_up() -> None:
    """Bits a weight of ExLlama, groups of MLX, and mixtures whose publisher chose the types."""
    assert float(weight_width("4.25bpw").low) == 4.25
    assert (
        float(weight_width("mlx-4bit-g64").low) == float(weight_width("mlx-4bit-g64").high) == 4.5
    )
    assert weight_width("ud-q2_k_xl").high > weight_width("q2_k_xl").high
    assert weight_width("ud-q2_k_xl").low == weight_width("q2_k_xl").low
    for name in ("99bpw", "0.1bpw", "ud-nothing", "mlx-4bit-g63"):
        with pytest.raises(UnknownNameError):
            weight_width(name)


@pytest.mark.parametrize("name", quantised())
def test_bounds_are_in_order(name: str) -> None:
    """A format's least bits are no more than its most, in every kind of matrix."""
    width = weight_width(name)

    assert 1 < width.low <= width.high < 32
    assert width.mixture is None or all(bits >= width.low for bits in width.mixture)
