"""Reading traces: every format, every known pair of columns, and every way to be refused."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InputError, KvcalcError, UsageError
from kvcalc.workload import objects, source, traces
from kvcalc.workload.columns import PAIRS, WRAPPERS
from kvcalc.workload.traces import Trace, read_trace

REQUESTS = [(4808, 10), (3180, 8), (4808, 10), (0, 0), (1, 2)]
PROMPTS, OUTPUTS = sum(p for p, _ in REQUESTS), sum(o for _, o in REQUESTS)
LENGTHS = tuple(sorted(Counter(p + o for p, o in REQUESTS).items()))
TRACES = Path(__file__).parents[3] / "shared" / "corpus" / "traces"
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

Write = Callable[[bytes | str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(content: bytes | str) -> str:
        path = tmp_path / "trace.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return _write


def table(delimiter: str = ",", end: str = "\n", names: tuple[str, str] = PAIRS[0]) -> str:
    rows = [("at", *names), *((f"t{i}", p, o) for i, (p, o) in enumerate(REQUESTS))]
    return "".join(delimiter.join(map(str, row)) + end for row in rows)


def dicts(names: tuple[str, str] = PAIRS[1]) -> list[dict[str, object]]:
    return [{"at": 0.5, names[0]: p, names[1]: o, "ids": [1, [2]]} for p, o in REQUESTS]


def jsonl(names: tuple[str, str] = PAIRS[1]) -> str:
    return "".join(json.dumps(row) + "\n" for row in dicts(names))


def of_bytes(content: bytes, **options: str) -> Trace:
    return read_trace("-", stdin=io.BytesIO(content), **options)


def refused(content: bytes | str, **options: str) -> KvcalcError:
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(KvcalcError) as caught:
        of_bytes(raw, **options)
    for text in (caught.value.message, caught.value.hint, caught.value.where):
        assert text.isprintable() and text, (text, "is not one line")
        assert len(text) < 2000
    return caught.value


def holds(trace: Trace, form: str) -> None:
    assert trace.format == form
    assert trace.lengths.pairs == LENGTHS
    assert (trace.requests, trace.longest) == (len(REQUESTS), 4818)
    assert (trace.prompt_tokens, trace.output_tokens) == (PROMPTS, OUTPUTS)
    assert type(trace.requests) is type(trace.prompt_tokens) is type(trace.longest) is int


# --- formats ------------------------------------------------------------------------------------

FORMATS = [
    pytest.param(table(), "csv", id="csv"),
    pytest.param(table("\t"), "tsv", id="tsv"),
    pytest.param(table(";"), "csv", id="semicolons"),
    pytest.param(jsonl(), "jsonl", id="jsonl"),
    pytest.param(json.dumps(dicts()), "json", id="json"),
    pytest.param(json.dumps(dicts(), indent=2), "json", id="json-indented"),
]


@pytest.mark.parametrize(("text", "form"), FORMATS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["no-bom", "bom"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_every_format(write: Write, text: str, form: str, packed: bool, bom: str, end: str) -> None:
    raw = (bom + text.replace("\n", end)).encode()
    raw = gzip.compress(raw) if packed else raw
    trace = read_trace(write(raw))
    holds(trace, form)
    assert trace.name == "trace.txt"
    from_stdin = of_bytes(raw)
    holds(from_stdin, form)
    assert from_stdin.name == "stdin"


@pytest.mark.parametrize(("text", "form"), FORMATS)
def test_without_a_last_line_end_and_with_blank_lines(text: str, form: str) -> None:
    holds(of_bytes(text.rstrip("\n").encode()), form)
    holds(of_bytes(("\n \r\n" + text.replace("\n", "\n\n") + "\n \n").encode()), form)


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_every_known_pair(pair: tuple[str, str]) -> None:
    for spelled in (pair, (pair[0].upper(), pair[1].lower().replace("_", " "))):
        for content in (table(names=spelled), jsonl(spelled), json.dumps(dicts(spelled))):
            trace = of_bytes(content.encode())
            assert (trace.prompt_column, trace.output_column) == spelled
            assert trace.lengths.pairs == LENGTHS


def test_quoted_cells() -> None:
    text = (
        'id,"ContextTokens","GeneratedTokens"\n'
        '"a, ""b""\nover two lines","4808",10\n3180,3180,8\nx,4808,"10"\n"",0,"0"\n-,"1",2\n'
    )
    holds(of_bytes(text.encode()), "csv")
    assert refused(text + '"\n\n",x,1\n').where == "stdin:8"


def test_numbers_that_are_whole() -> None:
    text = "input_tokens,output_tokens\n4808.0,10\n3180,8.\n 4808 ,1e1\n0.0,-0\n+1,2.000\n"
    holds(of_bytes(text.encode()), "csv")
    keys = [("4808.0", "10"), ("3180", "8"), ("4808", "1e1"), ("0", "-0"), ("1", "2.000")]
    lines = [f'{{"input_tokens":{p},"output_tokens":{o}}}' for p, o in keys]
    holds(of_bytes("\n".join(lines).encode()), "jsonl")
    holds(of_bytes(f"[{','.join(lines)}]".encode()), "json")
    assert of_bytes(b"input_tokens,output_tokens\n1000000000,0\n").longest == 10**9


def test_a_file_of_many_blocks() -> None:
    rows = [f"{i % 977},{i % 13}" for i in range(60_000)]
    wanted = Counter(i % 977 + i % 13 for i in range(60_000))
    head = "prompt_len,output_len"
    plain = "\n".join([head, *rows]).encode()
    assert dict(of_bytes(plain).lengths.pairs) == wanted
    late = "\n".join([head, *rows[:50_000], '"7","7"', *rows[50_000:]]).encode()
    assert dict(of_bytes(late).lengths.pairs) == wanted + Counter([14])
    assert refused(plain + b"\n1,x\n").where == "stdin:60002"
    lines = [f'{{"prompt_len":{i % 977},"output_len":{i % 13}}}' for i in range(60_000)]
    assert dict(of_bytes("\n".join(lines).encode()).lengths.pairs) == wanted
    assert refused("\n".join([*lines, "{}"])).where == "stdin:60001"


def test_long_lines_of_other_keys_are_skipped() -> None:
    line = '{"input_length": 7, "hash_ids": [' + "1, " * 400_000 + '1], "output_length": 2}\n'
    assert of_bytes(line.encode() * 3).lengths.pairs == ((9, 3),)


def test_small_files_need_no_numpy(write: Write) -> None:
    code = (
        "import sys; from kvcalc.workload.traces import read_trace; "
        f"read_trace({write(table())!r}); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)


# --- columns ------------------------------------------------------------------------------------


def test_named_columns() -> None:
    text = "a,B,b,c d\n1,2,3,4\n"
    trace = of_bytes(text.encode(), prompt_column="b", output_column="C D")
    assert (trace.prompt_tokens, trace.output_tokens) == (3, 4)
    assert (trace.prompt_column, trace.output_column) == ("b", "c d")
    both = b"input_tokens,output_tokens,prompt_len,output_len\n1,2,3,4\n"
    one = of_bytes(both, prompt_column="prompt_len")
    assert (one.prompt_tokens, one.output_tokens) == (3, 4)
    other = of_bytes(both, output_column="output_tokens")
    assert (other.prompt_tokens, other.output_tokens) == (1, 2)
    foreign = of_bytes(b"x,output_len\n1,2\n", prompt_column="x")
    assert foreign.output_column == "output_len"
    quote = of_bytes(b'{"a\\"b": 1, "c": 2}', prompt_column='a"b', output_column="c")
    assert (quote.prompt_tokens, quote.output_tokens) == (1, 2)


@pytest.mark.parametrize(
    ("header", "options", "message", "hint"),
    [
        ("a,b", {}, "no known pair", "--prompt-column and --output-column"),
        ("prompt_len,b", {}, "no known output column", "--output-column"),
        ("output_token_length,model", {}, "columns: 'output_token_length', 'model'", "--prompt"),
        ("output_length,model", {}, "no known prompt column", "--prompt-column"),
        (
            "input_tokens,output_tokens,prompt_len,output_len",
            {},
            "more than one pair of length columns: input_tokens/output_tokens and prompt_len/",
            "--prompt-column and --output-column",
        ),
        ("4808,10", {}, "numbers where the column names", "ContextTokens,GeneratedTokens"),
        (
            "input_tokens,output_tokens,Input Tokens",
            {},
            "'input_tokens' is there 2 times",
            "rename",
        ),
        ("a,b,a", {"prompt_column": "a", "output_column": "b"}, "there 2 times", "rename"),
        ("a,A,b", {"prompt_column": "b", "output_column": " a"}, "there 2 times", "rename"),
        (
            "prompt_sise,output_len",
            {"prompt_column": "prompt_size"},
            "no column 'prompt_size' (--prompt-column)",
            "did you mean 'prompt_sise'",
        ),
        ("a,b", {"output_column": "zzz"}, "no column 'zzz' (--output-column)", "columns: 'a', 'b'"),
        ("a,b", {"output_column": "b"}, "no known prompt columns beside 'b'", "--prompt-column"),
        (
            "a,output_len,output_tokens",
            {"prompt_column": "a"},
            "several known output columns",
            "--output-column",
        ),
    ],
)
def test_columns_that_do_not_serve(
    header: str, options: dict[str, str], message: str, hint: str
) -> None:
    error = refused(f"{header}\n" + ",".join("1" * (header.count(",") + 1)), **options)
    assert isinstance(error, InputError)
    assert message in error.message
    assert hint in error.hint
    assert error.where == "stdin:1"


def test_one_column_cannot_be_both() -> None:
    error = refused("a,b\n1,2\n", prompt_column="a", output_column="A")
    assert isinstance(error, UsageError)
    assert error.where == "--output-column"


def test_many_columns_are_not_all_listed() -> None:
    error = refused(",".join(f"c{i}" for i in range(5000)) + "\n")
    assert "and 4980 more" in error.message
    missing = refused(",".join(f"c{i}" for i in range(5000)) + "\n", prompt_column="x" * 9999)
    assert "…" in missing.message


def test_repeated_keys() -> None:
    twice = '{"input_tokens":1,"output_tokens":2,"input_tokens":3}'
    once = '{"input_tokens":1,"output_tokens":2}'
    escaped = '{"input_tokens":1,"output_tokens":2,"input_token\\u0073":3}'
    assert "there 2 times" in refused(twice).message
    for repeated in (twice, escaped):
        for text, where in (
            (f"{once}\n{repeated}", "stdin:2"),
            (f"[{once},\n{repeated}]", "stdin:2"),
        ):
            error = refused(text)
            assert "key 'input_tokens' is there 2 times" in error.message
            assert error.where == where
    inner = '{"x":{"input_tokens":9,"a":0,"a":1},"input_tokens":1,"output_tokens":2}'
    assert of_bytes(inner.encode()).lengths.pairs == ((3, 1),)


# --- nested -------------------------------------------------------------------------------------

USAGE = ("prompt_tokens", "completion_tokens")


def nested(path: str, inner: object) -> dict[str, object]:
    """Wrap an object in the keys of a path, from the inside."""
    for key in reversed(path.split(".")):
        inner = {"id": "x", key: inner}
    assert isinstance(inner, dict)
    return inner


def usages(path: str, names: tuple[str, str] = USAGE) -> list[dict[str, object]]:
    details = {"prompt_tokens_details": {"cached_tokens": 0}}
    return [nested(path, {names[0]: p, names[1]: o, **details}) for p, o in REQUESTS]


def lines(rows: list[dict[str, object]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.parametrize("path", [wrapper[:-1] for wrapper in WRAPPERS if wrapper])
@pytest.mark.parametrize("names", [USAGE, ("input_tokens", "output_tokens")], ids="/".join)
def test_usage_of_logs(path: str, names: tuple[str, str]) -> None:
    rows = usages(path, names)
    for content, form in ((lines(rows), "jsonl"), (json.dumps(rows).encode(), "json")):
        trace = of_bytes(content)
        holds(trace, form)
        assert (trace.prompt_column, trace.output_column) == tuple(f"{path}.{n}" for n in names)


def test_dotted_names() -> None:
    rows = [nested("a.b c", {"d.e": p, "O": {"n": o}}) for p, o in REQUESTS]
    options = {"prompt_column": "a.b c.d.e", "output_column": "A.B C.o.N"}
    for content in (lines(rows), json.dumps(rows).encode()):
        trace = of_bytes(content, **options)
        assert trace.lengths.pairs == LENGTHS
        assert (trace.prompt_column, trace.output_column) == ("a.b c.d.e", "a.b c.O.n")
    only = of_bytes(lines(usages("response.usage")), prompt_column="response.usage.prompt_tokens")
    assert only.output_column == "response.usage.completion_tokens"


def test_literal_names_come_before_dotted_ones() -> None:
    row = {"usage.prompt_tokens": 1, "usage.completion_tokens": 2}
    both = {**row, "usage": {"prompt_tokens": 30, "completion_tokens": 40}}
    named = {"prompt_column": "usage.prompt_tokens"}
    for options in ({}, named):
        assert of_bytes(json.dumps(both).encode(), **options).lengths.pairs == ((3, 1),)
        assert of_bytes(json.dumps(row).encode(), **options).lengths.pairs == ((3, 1),)
        table = b"usage.prompt_tokens,usage.completion_tokens\n1,2\n"  # as pandas flattens
        assert of_bytes(table, **options).lengths.pairs == ((3, 1),)


def test_outer_pairs_come_before_inner_ones() -> None:
    row = {"input_tokens": 1, "output_tokens": 2, **nested("usage", dict.fromkeys(USAGE, 9))}
    assert of_bytes(json.dumps(row).encode()).lengths.pairs == ((3, 1),)
    inner = of_bytes(json.dumps(row).encode(), prompt_column="usage.prompt_tokens")
    assert inner.output_column == "usage.completion_tokens"


GOOD_USAGE = '{"usage":{"prompt_tokens":1,"completion_tokens":2}}'


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ("null", "key 'usage' is null, not an object"),
        ("7", "key 'usage' is a number, not an object"),
        ('"x"', "key 'usage' is the text 'x', not an object"),
        ("[]", "key 'usage' is a list, not an object"),
        ("{}", "key 'usage.prompt_tokens' is missing"),
        ('{"prompt_tokens":1}', "key 'usage.completion_tokens' is missing"),
        ('{"prompt_tokens":1,"completion_tokens":"5"}', "is the text '5', not a number of tokens"),
        ('{"prompt_tokens":true,"completion_tokens":5}', "'usage.prompt_tokens' is true, not"),
        ('{"prompt_tokens":null,"completion_tokens":5}', "'usage.prompt_tokens' is null, not"),
        ('{"prompt_tokens":-1,"completion_tokens":5}', "is '-1', which is negative"),
        ('{"prompt_tokens":1.5,"completion_tokens":5}', "'1.5', which is not a whole number"),
        ('{"prompt_tokens":{},"completion_tokens":5}', "is an object, not a number"),
        (
            '{"prompt_tokens":1,"completion_tokens":5,"prompt_tokens":1}',
            "key 'usage.prompt_tokens' is there 2 times",
        ),
        ('{"prompt_tokens":1,"completion_tokens":5},"usage":{}', "key 'usage' is there 2 times"),
    ],
)
def test_bad_usage(usage: str, message: str) -> None:
    bad = f'{{"usage":{usage}}}'
    for text in (f"{GOOD_USAGE}\n\n{bad}\n", f"[{GOOD_USAGE},\n\n{bad}]"):
        error = refused(text)
        assert message in error.message
        assert error.where == "stdin:3"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ('{"id":1,"usage":null}', {}, "no known pair of prompt and output columns"),
        ('{"usage":{"prompt_tokens":1}}', {}, "'usage.prompt_tokens' but no known output column"),
        ('{"usage":{"a":1},"usage":{"a":1}}', {}, "'usage.a', 'usage.a'"),
        (f"{GOOD_USAGE[:-1]},{GOOD_USAGE[1:]}", {}, "'usage.prompt_tokens' is there 2 times"),
        (GOOD_USAGE, {"prompt_column": "usage.prompt"}, "no column 'usage.prompt' (--prompt"),
        (GOOD_USAGE, {"prompt_column": "usage"}, "key 'usage' is an object, not a number"),
        (GOOD_USAGE, {"prompt_column": "usage", "output_column": "usage.prompt_tokens"}, "object"),
        ('{"x":{"a":1,"A":2},"output_len":1}', {"prompt_column": "X.a"}, "there 2 times"),
        (
            '{"usage":{"prompt_tokens":1,"completion_tokens":2,"input_tokens":1,"output_tokens":2}}',
            {},
            "usage.input_tokens/usage.output_tokens and usage.prompt_tokens/",
        ),
        (f'{GOOD_USAGE}\n{{"input_tokens":1,"output_tokens":2}}', {}, "key 'usage' is missing"),
        (f'{{"input_tokens":1,"output_tokens":2}}\n{GOOD_USAGE}', {}, "'input_tokens' is missing"),
    ],
)
def test_nested_columns_that_do_not_serve(text: str, options: dict[str, str], message: str) -> None:
    assert message in refused(text, **options).message


def test_names_as_deep_as_the_file() -> None:
    for depth in (50, 400, 20_000):
        name = ".".join(["a"] * depth)
        text = '{"a":' * depth + "1" + "}" * depth
        row = f'{{"b":2,{text[1:]}'
        try:
            trace = of_bytes(row.encode(), prompt_column=name, output_column="b")
        except InputError as error:
            assert depth > 400 and "nested too deeply" in error.message
        else:
            assert trace.lengths.pairs == ((3, 1),)


# --- totals -------------------------------------------------------------------------------------


def totals(trace: Trace, form: str, column: str | None) -> None:
    assert trace.format == form
    assert trace.lengths.pairs == LENGTHS
    assert (trace.requests, trace.longest) == (len(REQUESTS), 4818)
    assert (trace.prompt_tokens, trace.output_tokens) == (None, None)
    assert (trace.prompt_column, trace.output_column) == (None, None)
    assert trace.total_column == column


SUMS = [p + o for p, o in REQUESTS]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n \n"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_column_of_totals(end: str, quote: str) -> None:
    cells = [f"{quote}{n}{quote}" for n in SUMS]
    totals(of_bytes(end.join(["total_tokens", *cells]).encode()), "csv", "total_tokens")
    wide = ["id\tTotal Tokens", *(f"x\t{cell}" for cell in cells)]
    totals(of_bytes(end.join(wide).encode()), "tsv", "Total Tokens")


@pytest.mark.parametrize("path", [wrapper[:-1] for wrapper in WRAPPERS if wrapper])
def test_nested_totals(path: str) -> None:
    rows = [nested(path, {"prompt_tokens": 1, "total_tokens": n}) for n in SUMS]
    totals(of_bytes(lines(rows)), "jsonl", f"{path}.total_tokens")
    totals(of_bytes(json.dumps(rows).encode()), "json", f"{path}.total_tokens")


def test_a_pair_comes_before_totals() -> None:
    rows = [{"total_tokens": 1, **row} for row in usages("usage")]
    holds(of_bytes(lines(rows)), "jsonl")
    holds(of_bytes(table().replace("at", "total_tokens", 1).encode()), "csv")


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("total_tokens\n5\n\n-1\n", "'-1', which is negative", "stdin:4"),
        ('total_tokens\n5\n""\n', "column 'total_tokens' is blank", "stdin:3"),
        ("total_tokens\n5\n1,2\n", "2 cells where the header has 1", "stdin:3"),
        ("total_tokens,Total Tokens\n5,5\n", "there 2 times", "stdin:1"),
        ("tokens\n5\n", "no known pair", "stdin:1"),
        ('{"total_tokens":5}\n{"total_tokens":"5"}', "is the text '5'", "stdin:2"),
        ('[{"total_tokens":5},\n{"total_tokens":true}]', "is true", "stdin:2"),
    ],
)
def test_totals_that_do_not_serve(text: str, message: str, where: str) -> None:
    error = refused(text)
    assert message in error.message
    assert error.where == where


def test_a_column_of_unknown_totals_is_told_the_known_name() -> None:
    assert "known as total_tokens" in refused("tokens\n5\n").hint
    assert "such as total_tokens" in refused("12:30\n5\n").hint


# --- plain lists --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n \n", ".0\n", " \n"])
@pytest.mark.parametrize("bom", ["", "\ufeff", "\n \n"])
def test_a_list_of_lengths(end: str, bom: str) -> None:
    text = bom + end.join(map(str, SUMS))
    for raw in (text, text + "\n", gzip.compress(text.encode())):
        totals(of_bytes(raw.encode() if isinstance(raw, str) else raw), "list", None)
    totals(of_bytes("\n".join(f'"{n}"' for n in SUMS).encode()), "list", None)


def test_a_list_of_many_blocks() -> None:
    numbers = [str(i % 977) for i in range(200_000)]
    trace = of_bytes("\n".join(numbers).encode())
    assert dict(trace.lengths.pairs) == Counter(i % 977 for i in range(200_000))
    assert refused("\n".join([*numbers, "1,2"])).where == "stdin:200001"


@pytest.mark.parametrize("form", ["[{}]", "\n [ {}\n]\n"])
def test_an_array_of_lengths(form: str) -> None:
    for end in (",", ",\n", ".0 , "):
        numbers = end.join(map(str, SUMS))
        totals(of_bytes(form.format(numbers).encode()), "json", None)


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("1\n\n-2\n", "the length is '-2', which is negative", "stdin:3"),
        ("-2\n", "which is negative", "stdin:1"),
        ("1.5\n", "not a whole number", "stdin:1"),
        ("1\n2,3\n", "the length is '2,3', not a number", "stdin:2"),
        ("1\ntotal\n", "the length is 'total', not a number", "stdin:2"),
        ('1\n""\n', "the length is blank", "stdin:2"),
        ("1000000001\n", "more than 1000000000", "stdin:1"),
        ("1\n" + "7" * 5000, "7…', not a number", "stdin:2"),
        ("7" * 5000, "numbers where the column names", "stdin:1"),
        ("1\r2\r", "bare CR", "stdin:1"),
        ("1\n{}\n", "the length is '{}'", "stdin:2"),
        ("[1,\n-2]", "the length is '-2', which is negative", "stdin:2"),
        ("[1,\n2.5]", "the length is '2.5', which is not a whole number", "stdin:2"),
        ('[1,\n"2"]', "a text where a number should be", "stdin:2"),
        ("[1,\ntrue]", "true where a number should be", "stdin:2"),
        ("[1,\nnull]", "null where a number should be", "stdin:2"),
        ("[1,\n{}]", "an object where a number should be", "stdin:2"),
        ("[1,\n[2]]", "a list where a number should be", "stdin:2"),
        ("[true]", "true where an object should be", "stdin:1"),
        ("[1, 2", "expected , or ]", "stdin:1"),
        ("[NaN]", "the length is 'NaN', not a number", "stdin:1"),
    ],
)
def test_lists_that_do_not_serve(text: str, message: str, where: str) -> None:
    error = refused(text)
    assert isinstance(error, InputError)
    assert message in error.message
    assert error.where == where


@pytest.mark.parametrize("option", ["prompt_column", "output_column"])
@pytest.mark.parametrize("text", ["\n5\n6\n", "\n[5, 6]"])
def test_a_list_has_no_columns_to_name(option: str, text: str) -> None:
    error = refused(text, **{option: "a"})
    assert (
        f"no column 'a' (--{option.replace('_', '-')}): the file is a plain list" in error.message
    )
    assert error.where == "stdin:2"


def test_what_is_told_of_a_trace() -> None:
    pair = b"input_tokens,output_tokens\n1000,2\n1,1\n"
    assert of_bytes(pair).tokens_told == (
        "1,001 prompt tokens (input_tokens) and 3 output tokens (output_tokens)"
    )
    column = of_bytes(b"total_tokens\n1000\n4\n")
    assert column.tokens_told == "1,004 tokens in all (total_tokens)"
    plain = of_bytes(b"1000\n4\n")
    assert plain.tokens_told == "1,004 tokens in all (a plain list of lengths)"


# --- cells --------------------------------------------------------------------------------------

BAD_CELLS = [
    ("", "blank"),
    ("  ", "blank"),
    ("abc", "is 'abc', not a number of tokens"),
    ("NaN", "not a number"),
    ("inf", "not a number"),
    ("-1", "negative"),
    ("1.5", "not a whole number"),
    ("1e-999", "not a whole number"),
    ("1000000001", "more than 1000000000 tokens"),
    ("1e999", "more than 1000000000 tokens"),
    ("1_000", "not a number"),
    ("0x10", "not a number"),
    ("4.0.0", "not a number"),
    ("٣", "not a number"),
    ("7" * 5000, "7…', not a number"),
    ("true", "not a number"),
]


@pytest.mark.parametrize(("cell", "message"), BAD_CELLS)
@pytest.mark.parametrize("quote", ["", '"'])
def test_bad_cells_of_a_table(cell: str, message: str, quote: str) -> None:
    for row, column in (
        (f"{quote}{cell}{quote},1", "input_tokens"),
        (f"1,{quote}{cell}{quote}", "output_tokens"),
    ):
        error = refused(f"input_tokens,output_tokens\n5,5\n\n{row}\n6,6\n")
        assert message in error.message
        assert f"column '{column}'" in error.message
        assert error.where == "stdin:4"
        assert len(error.message) < 160


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("true", "is true, not a number"),
        ("null", "is null, not a number"),
        ('"12"', "is the text '12', not a number"),
        ("[1]", "is a list, not"),
        ("{}", "is an object, not"),
        ("NaN", "is 'NaN', not a number"),
        ("-Infinity", "not a number"),
        ("-3", "negative"),
        ("0.5", "not a whole number"),
        ("1000000001", "more than"),
        ("8" * 5000, "not a number"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('"' + "x" * 10_000 + '"', "x…'"),
        ('"\\ud800\\u001b[2J"', "\\ud800\\x1b[2J"),
        ("01", "not well-formed JSON"),
    ],
)
def test_bad_values_of_json(value: str, message: str) -> None:
    good = '{"input_tokens":1,"output_tokens":2}'
    bad = f'{{"input_tokens":{value},"output_tokens":2}}'
    for text in (f"{good}\n\n{bad}\n{good}", f"[{good},\n\n{bad},\n{good}]"):
        error = refused(text)
        assert message in error.message
        assert error.where == ("stdin:1" if text[0] == "[" and "deep" in message else "stdin:3")
        assert len(error.message) < 200


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("input_tokens,output_tokens\n1\n", "1 cells where the header has 2", "stdin:2"),
        ("input_tokens,output_tokens\n1,2\n1,2,3\n", "3 cells where", "stdin:3"),
        ('a,input_tokens,output_tokens\n"a",1,2\n1,2\n', "2 cells where", "stdin:3"),
        # one cell too many and one too few: the number of delimiters alone would not tell
        ("input_tokens,output_tokens\n1,2,3\n4\n", "3 cells where", "stdin:2"),
        ('input_tokens,output_tokens\n1,2\n1,"2', "not well-formed", "stdin:3"),
        ('input_tokens,output_tokens\n1,"2"x\n', "not well-formed", "stdin:2"),
        ('input_tokens,"output_tokens\n1,2\n', "header line is not well-formed", "stdin:1"),
        ("input_tokens,output_tokens\n1,2\r3,4\n", "not well-formed", "stdin:2"),
        ("input_tokens,output_tokens\r1,2\r", "bare CR", "stdin:1"),
        ("a" * (2**20 + 1) + ",b\n1,2\n", "header line has", "stdin:1"),
        ("", "is empty", "stdin"),
        ("\ufeff", "is empty", "stdin"),
        ("\n \r\n", "is empty", "stdin"),
        ("input_tokens,output_tokens\n", "no request", "stdin"),
        ("input_tokens,output_tokens\n\n \n", "no request", "stdin"),
        ("[]", "no request", "stdin"),
        ("[ {} ]", "no known pair", "stdin:1"),
        ("{}", "no known pair", "stdin:1"),
        ("[{}, 1]", "no known pair", "stdin:1"),
        ('[{"input_tokens":1,"output_tokens":2}, 1]', "a number where an object", "stdin:1"),
        ("[[1]]", "a list where", "stdin:1"),
        ('["a"]', "a text where", "stdin:1"),
        ('{"input_tokens":1,"output_tokens":2}\n7', "a number where", "stdin:2"),
        (
            '{"input_tokens":1,"output_tokens":2}\n{"input_tokens":1}',
            "'output_tokens' is missing",
            "stdin:2",
        ),
        ('{"input_tokens":1,"output_tokens":2} {}', "more after the value", "stdin:1"),
        ('[{"input_tokens":1,"output_tokens":2}', "expected , or ]", "stdin:1"),
        ('[{"input_tokens":1,"output_tokens":2},]', "not well-formed JSON", "stdin:1"),
        ('[{"input_tokens":1,"output_tokens":2}]\n[]', "expected the end", "stdin:2"),
        ('\x1c[{"input_tokens":1,"output_tokens":2}]', "expected [", "stdin:1"),
        ('{\n"input_tokens":1,"output_tokens":2}', "not well-formed JSON", "stdin:1"),
    ],
)  # fmt: skip
def test_files_that_do_not_serve(text: str, message: str, where: str) -> None:
    error = refused(text)
    assert isinstance(error, InputError)
    assert message in error.message
    assert error.where == where


# --- bytes --------------------------------------------------------------------------------------

HEAD = b"input_tokens,output_tokens\n1,2\n"


PACKED = gzip.compress(HEAD, mtime=0)  # the same bytes in every process, as xdist needs


@pytest.mark.parametrize(
    ("raw", "message", "where"),
    [
        pytest.param(HEAD + b"3,\0004\n", "NUL byte", "stdin:3", id="nul"),
        pytest.param(HEAD + b"\xff,1\n", "not UTF-8 text (byte 0xff)", "stdin:3", id="latin"),
        pytest.param(b"\xef\xbb\xbf" + HEAD + b"\xff", "not UTF-8", "stdin:3", id="latin-bom"),
        pytest.param(HEAD.decode().encode("utf-16"), "UTF-16", "stdin", id="utf-16"),
        pytest.param(b"PK\x03\x04" + HEAD, "zip", "stdin", id="zip"),
        pytest.param(b"PAR1" + HEAD, "Parquet", "stdin", id="parquet"),
        pytest.param(b"\x28\xb5\x2f\xfd" + HEAD, "zstandard", "stdin", id="zstd"),
        pytest.param(PACKED[:-9], "cut short", "stdin", id="gzip-cut"),
        pytest.param(PACKED[:5], "cut short", "stdin", id="gzip-cut-header"),
        pytest.param(b"\x1f\x8b", "cut short", "stdin", id="gzip-magic-only"),
        pytest.param(PACKED[:10] + b"\xff" * 20, "damaged", "stdin", id="gzip-bad-deflate"),
        pytest.param(PACKED + b"rubbish", "damaged", "stdin", id="gzip-tail"),
        pytest.param(PACKED[:-8] + b"\1" * 8, "damaged", "stdin", id="gzip-checksum"),
        pytest.param(gzip.compress(PACKED), "NUL byte", "stdin:1", id="gzip-twice"),
        pytest.param(
            gzip.compress(HEAD + b"1" * (40 * 2**20), 1), "16 MiB", "stdin:3", id="gzip-bomb"
        ),
        pytest.param(HEAD + b"1" * (17 * 2**20) + b"\n", "16 MiB", "stdin:3", id="long-line"),
    ],
)
def test_bytes_that_are_no_trace(raw: bytes, message: str, where: str) -> None:
    error = refused(raw)
    assert message in error.message
    assert error.where == where


def test_gzip_of_two_members() -> None:
    raw = gzip.compress(HEAD) + gzip.compress(b"3,4\n")
    assert of_bytes(raw).lengths.pairs == ((3, 1), (7, 1))


def test_an_array_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_ARRAY_CHARACTERS", 100)
    error = refused(json.dumps(dicts()))
    assert "JSON array is longer" in error.message
    assert "JSONL" in error.hint


def test_paths_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(path: str) -> InputError:
        with pytest.raises(InputError) as caught:
            read_trace(path)
        assert caught.value.hint
        return caught.value

    missing = str(tmp_path / "none.csv")
    assert fault(missing).message == "no such file"
    assert fault(missing).where == missing
    assert fault(str(tmp_path)).message == "is a directory"
    assert fault("a\0b").where == "a\\x00b"
    assert fault("").where == ""
    assert fault("x" * 5000).message

    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source, "open", forbidden, raising=False)
    assert fault(missing).message == "permission denied"


def test_stdin_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(InputError, match="stdin: cannot be read: Input/output error"):
        read_trace("-", stdin=Broken())  # type: ignore[arg-type]
    closed = io.BytesIO(HEAD)
    closed.close()
    with pytest.raises(InputError, match="cannot be read"):
        read_trace("-", stdin=closed)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="no stdin"):
        read_trace("-")


def test_own_stdin_read_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(1)

    class Stdin:
        buffer = Dribble(gzip.compress(jsonl().encode()))

    monkeypatch.setattr(sys, "stdin", Stdin())
    holds(read_trace("-"), "jsonl")
    assert not Stdin.buffer.closed


# --- laws ---------------------------------------------------------------------------------------

CELL = st.one_of(
    st.integers(0, 9999).map(str),
    st.sampled_from(["007", "5.0", "", " 5", "x", "-1", "1000000001", "5\r", "é", '"5"', '"', "٣"]),
)


@given(
    st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=12), st.sampled_from(["\n", "\r\n"])
)
@example([["a", "5", "6"]] * 3, "\r\n")
@QUICK
def test_bulk_rows_equal_rows_one_by_one(rows: list[list[str]], end: str) -> None:
    lines = ["x,prompt_len,output_len", *(",".join(row) for row in rows)]
    _same(end.join(lines), traces._Columns, "add_plain", lambda *_: False)


NUMBER = st.one_of(
    st.integers(0, 9999).map(str), st.sampled_from(["5.0", '"5"', "-1", "NaN", "01", "true"])
)
LINE = st.one_of(
    st.builds('{{"input_length": {}, "output_length": {}, "x": "y"}}'.format, NUMBER, NUMBER),
    st.sampled_from(["", " ", "{}", '{"x": "\\u0041", "input_length": 1, "output_length": 2}']),
)


@given(st.lists(LINE, max_size=12))
@QUICK
def test_bulk_objects_equal_objects_one_by_one(lines: list[str]) -> None:
    first = '{"input_length": 3, "output_length": 4}'
    _same("\n".join([first, *lines]), objects._Fast, "lines", lambda *_: None)
    _same(
        f"[{','.join([first, *filter(str.strip, lines)])}]", objects._Fast, "array", lambda *_: None
    )


USAGE_LINE = st.one_of(
    st.builds(
        '{{"usage": {{"prompt_tokens": {}, "completion_tokens": {}}}}}'.format, NUMBER, NUMBER
    ),
    st.sampled_from(
        ["", " ", "{}", '{"usage": null}', '{"usage": {}}', GOOD_USAGE, f"{GOOD_USAGE} x"]
    ),
    st.just('{"usage": "usage", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}'),
)


@given(st.lists(USAGE_LINE, max_size=12))
@QUICK
def test_bulk_usage_equals_usage_one_by_one(rows: list[str]) -> None:
    _same("\n".join([GOOD_USAGE, *rows]), objects._Fast, "lines", lambda *_: None)
    array = f"[{','.join([GOOD_USAGE, *filter(str.strip, rows)])}]"
    _same(array, objects._Fast, "array", lambda *_: None)


@given(st.lists(CELL, max_size=12), st.sampled_from(["\n", "\r\n"]))
@QUICK
def test_bulk_lengths_equal_lengths_one_by_one(cells: list[str], end: str) -> None:
    _same(end.join(["5", *cells]), traces, "_whole", lambda *_: None)
    _same(end.join(["total_tokens", *cells]), traces, "_whole", lambda *_: None)
    array = f"[{','.join(['5', *filter(str.strip, cells)])}]"
    _same(array, objects, "_fast_lengths", lambda *_: None)


def _same(text: str, owner: object, fast: str, never: Callable[..., object]) -> None:
    def outcome() -> object:
        try:
            return of_bytes(text.encode())
        except KvcalcError as error:
            return str(error)

    quick = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, fast, never)
        assert outcome() == quick


VALID = [
    table().encode(),
    jsonl().encode(),
    json.dumps(dicts()).encode(),
    b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n' * 3,
    b'[{"usage": {"total_tokens": 3}}, {"usage": {"total_tokens": 4}}]',
    b"total_tokens\n1\n2\n3\n",
    b"1\n2\n3\n",
    b"[1, 2, 3]",
    gzip.compress(HEAD, mtime=0),
]


@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 6), st.binary(max_size=4)), max_size=4),
)
@settings(QUICK, max_examples=300)
def test_mutated_traces_never_give_a_traceback(
    raw: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for at, cut, new in edits:
        raw = raw[:at] + new + raw[at + cut :]
    _read_or_refuse(raw)


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x1f\x8b", b"[", b"{", HEAD, b"\xef\xbb\xbf"])
)
@settings(QUICK, max_examples=200)
def test_random_bytes_never_give_a_traceback(raw: bytes, head: bytes) -> None:
    _read_or_refuse(head + raw)


def _read_or_refuse(raw: bytes) -> None:
    try:
        trace = of_bytes(raw)
    except KvcalcError as error:
        assert error.message.isprintable() and error.hint.isprintable() and error.hint
    else:
        assert trace.requests == trace.lengths.requests > 0
        if trace.prompt_tokens is not None and trace.output_tokens is not None:
            assert trace.prompt_tokens + trace.output_tokens == trace.lengths.tokens


# --- the real files -----------------------------------------------------------------------------


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared is absent")
@pytest.mark.parametrize(
    ("file", "form", "rows", "prompt_mean", "output_mean"),
    [
        ("azure_llm_2023_code.csv", "csv", 8819, 2047.8, 27.9),
        ("azure_llm_2023_conv.csv", "csv", 19366, 1154.7, 211.1),
        ("mooncake_fast25_conversation.jsonl.gz", "jsonl", 12031, 12035.1, 342.6),
        ("mooncake_fast25_synthetic.jsonl.gz", "jsonl", 3993, 15325.5, 149.1),
        ("vidur_arxiv_summarization.csv.gz", "csv", 28257, 2588.1, 291.4),
        ("vattention_arxiv_long_online.csv", "csv", 10111, 29567.5, 363.2),
        ("vattention_arxiv_long_offline.csv", "csv", 427, 87426.2, 427.6),
        ("llmservingsim_sharegpt_req100_rate10.tsv", "tsv", 100, 22.4, 68.1),
        ("llmservingsim_sharegpt300_llama31_8b_lengths.csv", "csv", 300, 857.5, 652.5),
        ("llmservingsim_sharegpt300_qwen3_32b_lengths.csv", "csv", 300, 862.3, 665.0),
        ("llmservingsim_alpaca_prompts_bs256.tsv", "tsv", 256, 58.1, 1.0),
        ("servegen_m_small_sampled.csv.gz", "csv", 10000, 84.6, 12.2),
        ("servegen_m_large_sampled.csv.gz", "csv", 10000, 675.1, 148.3),
        ("servegen_deepseek_r1_sampled.csv.gz", "csv", 10000, 1087.0, 1351.2),
    ],
)
def test_the_real_files(
    file: str, form: str, rows: int, prompt_mean: float, output_mean: float
) -> None:
    trace = read_trace(str(TRACES / file))
    assert (trace.name, trace.format, trace.requests) == (file, form, rows)
    assert trace.prompt_tokens is not None and trace.output_tokens is not None
    assert trace.prompt_tokens / rows == pytest.approx(prompt_mean, abs=0.051)
    assert trace.output_tokens / rows == pytest.approx(output_mean, abs=0.051)


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared is absent")
def test_a_real_file_without_prompts_is_refused() -> None:
    path = str(TRACES / "lmsys_chat1m_first_turn_output_lengths.csv.gz")
    with pytest.raises(InputError, match="no known pair"):
        read_trace(path)
    with pytest.raises(InputError) as caught:
        read_trace(path, output_column="output_token_length")
    assert "name the other with --prompt-column" in caught.value.hint
