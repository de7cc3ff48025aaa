"""Real request lengths: the figures of an independent reference, to its printed digits."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import kvcalc
from kvcalc.core.lengths import Over
from tests.cli.harness import call

SHARED = Path(__file__).parents[3] / "shared"
REFERENCE = SHARED / "facts" / "waste_reference.txt"
TRACES = SHARED / "corpus" / "traces"

FILES = {  # as in waste_reference.py, load()
    "azure23-code": "azure_llm_2023_code.csv",
    "azure23-conv": "azure_llm_2023_conv.csv",
    "mooncake-conv": "mooncake_fast25_conversation.jsonl.gz",
    "mooncake-synth": "mooncake_fast25_synthetic.jsonl.gz",
    "vidur-arxiv": "vidur_arxiv_summarization.csv.gz",
    "vattn-arxiv-long": "vattention_arxiv_long_online.csv",
    "sharegpt-100": "llmservingsim_sharegpt_req100_rate10.tsv",
    "sharegpt-300-l3": "llmservingsim_sharegpt300_llama31_8b_lengths.csv",
    "servegen-m-small": "servegen_m_small_sampled.csv.gz",
    "servegen-m-large": "servegen_m_large_sampled.csv.gz",
    "servegen-r1": "servegen_deepseek_r1_sampled.csv.gz",
}
MODELS = (  # in the order of section 3b's columns
    "qwen3.5-27b-attention",
    "llama-3.1-8b",
    "llama-2-7b",
    "llama-3.1-70b",
    "opt-13b",
    "deepseek-v3",
)
POOLS = {
    "12GiB opt-13b": (12, "opt-13b"),
    "40GiB llama-3.1-70b": (40, "llama-3.1-70b"),
    "15GiB seed shape": (15, "qwen3.5-27b-attention"),
}
POLICIES: tuple[Over, ...] = ("exclude", "clip")
MAXIMA = (2048, 4096, 8192)
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

pytestmark = pytest.mark.skipif(not REFERENCE.is_file(), reason="../shared is absent")


def section(number: str) -> list[str]:
    """Return the lines of a section of the reference."""
    text = REFERENCE.read_text(encoding="utf-8")
    return text.split(f"\n{number}. ", 1)[1].split("\n\n", 1)[0].splitlines()[1:]


@cache
def trace(name: str) -> kvcalc.Trace:
    return kvcalc.read_trace(str(TRACES / FILES[name]))


def compared(
    name: str,
    model: kvcalc.ModelSpec,
    block: int,
    longest: int,
    over: Over,
    cache_bytes: int | None = None,
) -> kvcalc.Comparison:
    plan = kvcalc.plan(model, kvcalc.Deployment(block_size=block, max_model_len=longest))
    return kvcalc.compare(plan, trace(name).lengths, over=over, kv_cache_bytes=cache_bytes)


@cache
def shape() -> kvcalc.ModelSpec:
    return kvcalc.shape_model(1, 1, 64)


@pytest.mark.parametrize(
    ("name", "wasted"),
    [
        ("azure23-conv", ("44.25", "67.01", "83.33")),
        ("azure23-code", ("35.94", "56.43", "74.66")),
    ],
)
def test_azure(name: str, wasted: tuple[str, ...]) -> None:
    """`compare --trace` shows what reserving the maximum wastes on Azure's requests."""
    for longest, percent in zip(MAXIMA, wasted, strict=True):
        arguments = ("compare", "--trace", str(TRACES / FILES[name]), "--max", str(longest))
        outcome = call(*arguments)
        total = call(*arguments, "--format", "json").results[0]["contiguous_total"]

        assert outcome.code == 0
        assert f"{percent} %" in outcome.out
        assert f"{100 * total['waste_ratio']:.2f}" == percent


def test_lengths_as_told() -> None:
    """A trace's requests and lengths are those of section 1."""
    total = re.compile(r"(\S+)\s+total\s+(\d+)\s+([\d.]+)\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)")
    seen = 0
    for line in section("1"):
        if match := total.match(line):
            name, requests, mean, _, _, longest = match.groups()
            lengths = trace(name).lengths
            assert lengths.requests == int(requests), name
            assert f"{lengths.tokens / lengths.requests:.1f}" == mean, name
            assert lengths.longest == int(longest), name
            seen += 1

    assert seen == len(FILES)


def test_contiguous() -> None:
    """Section 2: reserving the maximum, with longer requests left out or cut."""
    unit = shape().bytes_per_token() or 0
    seen = 0
    for line in section("2")[1:]:
        head, *policies = line.split("|")
        name, longest, share = head.split()
        for over, figures in zip(POLICIES, policies, strict=True):
            percent, tokens = figures.split()
            if percent == "-":
                with pytest.raises(kvcalc.KvcalcError, match="no request is left"):
                    compared(name, shape(), 16, int(longest), over)
                continue
            found = compared(name, shape(), 16, int(longest), over)
            total, load = found.contiguous_total, found.workload
            assert f"{100 * total.waste_ratio:.2f}" == percent, (name, longest, over)
            assert f"{total.waste_bytes / unit / load.requests:.1f}" == tokens, (name, longest)
            over_share = 100 * load.over_requests / trace(name).requests
            assert f"{over_share:.2f}%" == share, (name, longest)
            seen += 1

    assert seen == 2 * len(MAXIMA) * len(FILES) - 3


def test_paged() -> None:
    """Section 3: what the last block leaves empty, by block size, nothing cut."""
    unit = shape().bytes_per_token() or 0
    lines = section("3")
    blocks = [int(n) for n in lines[0].split()[1:]]
    seen = 0
    for ratios, tokens in zip(lines[1::2], lines[2::2], strict=True):
        name, *percents = ratios.split()
        for block, percent, unused in zip(blocks, percents, tokens.split()[1:], strict=True):
            found = compared(name, shape(), block, 4096, "keep")
            total = found.paged_total
            assert f"{100 * total.waste_ratio:.3f}" == percent, (name, block)
            mean = total.waste_bytes / unit / found.workload.requests
            assert f"{mean:.2f}" == unused, (name, block)
            assert total.waste.tail_bytes == total.waste_bytes
            seen += 1

    assert blocks == list(BLOCKS)
    assert seen == len(FILES) * len(BLOCKS)


def test_bytes_a_request() -> None:
    """Section 3b: unused MiB a request, contiguous to 4,096 and in blocks of 16, by model."""
    lines = section("3b")
    seen = 0
    for line in lines[1:]:
        name, *figures = line.replace("/", " ").split()
        pairs = list(zip(figures[::2], figures[1::2], strict=True))
        for model, (contiguous, paged) in zip(MODELS, pairs, strict=True):
            spec = kvcalc.load_model(model)
            cut = compared(name, spec, 16, 4096, "clip")
            whole = compared(name, spec, 16, 4096, "keep")
            mean = cut.contiguous_total.waste_bytes / cut.workload.requests / 2**20
            tail = whole.paged_total.waste_bytes / whole.workload.requests / 2**20
            assert f"{mean:.2f}" == contiguous, (name, model)
            assert f"{tail:.3f}" == paged, (name, model)
            seen += 1

    assert seen == len(FILES) * len(MODELS)


def test_concurrency() -> None:
    """Section 4: slots of the maximum, and requests of the mean number of final blocks."""
    pool = ""
    seen = 0
    for line in section("4"):
        if " tokens; slots " in line:
            pool, _, rest = line.strip().partition(": ")
            tokens, *slots = [int(n) for n in re.findall(r"(?:^|:)(\d+)", rest)]
            gib, model = POOLS[pool]
            size = kvcalc.load_model(model).bytes_per_token() or 0
            assert gib * 2**30 // size == tokens
            for longest, number in zip(MAXIMA, slots, strict=True):
                found = compared(
                    "sharegpt-100", kvcalc.load_model(model), 16, longest, "clip", gib * 2**30
                )
                assert found.concurrency is not None
                assert found.concurrency.contiguous == number
            continue
        name, figures = line.split()[0], line.rpartition(":")[2].split()
        gib, model = POOLS[pool]
        for longest, figure in zip(MAXIMA, figures, strict=True):
            found = compared(name, kvcalc.load_model(model), 16, longest, "clip", gib * 2**30)
            assert found.concurrency is not None
            assert f"{found.concurrency.paged_mean:.1f}" == figure, (pool, name, longest)
            assert found.concurrency.paged == int(found.concurrency.paged_mean)
            seen += 1

    assert seen == len(POOLS) * len(FILES) * len(MAXIMA)
