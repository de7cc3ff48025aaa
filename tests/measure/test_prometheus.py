"""The text format of metrics: what it allows, what it does not, and no page that hurts."""

from __future__ import annotations

import math
import time
import tracemalloc

import pytest

from kvcalc.core.errors import InputError
from kvcalc.measure import prometheus
from kvcalc.measure.prometheus import parse
from tests.guards import HANG


def test_samples_labels_and_times() -> None:
    page = parse(
        '# HELP a text with "quotes" and { braces\n'
        "# TYPE a counter\n"
        "a 1\n"
        'b{x="1",y="two, with } and \\"quotes\\"",} 2.5 1700000000000\n'
        '  c { z = "\\\\ \\n \\q" }\t-0.5e-3\r\n'
        "\n",
        strict=True,
    )
    a, b, c = page.samples
    assert (a.name, a.labels, a.value, a.timestamp, a.line) == ("a", {}, 1.0, None, 3)
    assert b.labels == {"x": "1", "y": 'two, with } and "quotes"'}
    assert b.timestamp == 1_700_000_000_000
    assert c.labels == {"z": "\\ \n \\q"}
    assert c.value == -0.0005
    assert page.types == {"a": "counter"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("+Inf", math.inf), ("-Inf", -math.inf), ("1e5", 1e5), ("+.5", 0.5), ("7.", 7.0)],
)
def test_numbers(text: str, value: float) -> None:
    assert parse(f"a {text}\n", strict=True).samples[0].value == value


def test_nan() -> None:
    assert math.isnan(parse("a NaN").samples[0].value)


def test_openmetrics() -> None:
    """Exemplars say nothing of a sample, and nothing follows `# EOF`."""
    page = parse(
        'a_bucket{le="1"} 5 # {trace_id="x # y"} 0.7 1700000000.5\n# EOF\nb 1\n', strict=True
    )
    assert [(s.name, s.value) for s in page.samples] == [("a_bucket", 5.0)]


def test_quoted_names() -> None:
    """A name of any characters stands quoted in the braces."""
    page = parse('{"my.metric", "a b"="c"} 3\n', strict=True)
    assert page.samples[0].name == "my.metric"
    assert page.samples[0].labels == {"a b": "c"}


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a b",
        "a 1_000",
        "a 0x10",
        "a 1 2 3",
        "a{x=1} 1",
        'a{x="1} 1',
        'a{x="1",x="2"} 1',
        'a{x="1"',
        "a{,} 1",
        "1a 1",
        '{x="1"} 1',
        'a{"b"} 1',
        "a{x} 1",
        "# TYPE a colour",
        "a ٣",
    ],
)
def test_faults(line: str) -> None:
    """What is not in the format is told with its line and left out; strictly, it is refused."""
    page = parse(f"ok 1\n{line}\nafter 2\n")
    assert [s.name for s in page.samples] == ["ok", "after"]
    assert page.fault_count == 1
    assert page.faults[0].line == 2
    with pytest.raises(InputError, match="line 2"):
        parse(f"ok 1\n{line}\n", strict=True)


def test_the_same_sample_twice() -> None:
    page = parse('a{x="1",y="2"} 1\na{y="2",x="1"} 9\n')
    assert [s.value for s in page.samples] == [1.0]
    assert page.fault_count == 1


@pytest.mark.parametrize(
    "page",
    [
        "a{" + 'x="' * 300_000,
        "a{" + 'x="1",' * 200_000,
        'a{x="' + "\\" * 600_000,
        "a 1\n" * 200_000,
        "#" * 600_000 + "\n" * 200_000,
        "{" * 600_000,
        "a" + " " * 600_000 + "1",
        "a{x=" + '"' * 500_000 + "} 1",
        "9" * 600_000,
        "a " + "9" * 600_000,
        "a 1e99999999",
        "# TYPE " + "a" * 600_000 + " counter\n",
    ],
)
def test_linear(page: str) -> None:
    """No page takes more than its length is worth: these are 600 kB each."""
    start = time.process_time()
    parse(page)
    assert time.process_time() - start < HANG


def test_a_label_is_kept_as_far_as_anybody_reads_it() -> None:
    """Escapes are two letters of the page and one of the label, wherever it is cut."""
    for text in ("\\n" * 5_000, "x" + "\\n" * 5_000, "\\q" * 5_000, "x" * 5_000):
        whole = text.replace("\\n", "\n")
        (sample,) = parse('a{x="' + text + '"} 1').samples
        assert sample.labels["x"] == whole[:1_000] + "…"


def test_escapes_take_no_memory_of_their_own() -> None:
    page = 'a{x="' + "\\n" * 500_000 + '"} 1'
    tracemalloc.start()
    try:
        parse(page)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(page)
    finally:
        tracemalloc.stop()


def test_samples_and_labels_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_MOST_SAMPLES", 10)
    monkeypatch.setattr(prometheus, "_MOST_LABELS", 10)
    monkeypatch.setattr(prometheus, "_LONGEST_PLAIN", 20)
    assert len(parse("".join(f"a{i} 1\n" for i in range(10))).samples) == 10
    with pytest.raises(InputError, match="more than 10 samples"):
        parse("".join(f"a{i} 1\n" for i in range(11)))
    for labels, faults in ((10, 0), (11, 1)):
        page = parse("a{" + ",".join(f'b{i}="1"' for i in range(labels)) + "} 1\n")
        assert (len(page.samples), page.fault_count) == (1 - faults, faults)
