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
from kvcalc.workload import objects, source, tables
from kvcalc.workload.columns import PAIRS
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
        ("[1]", "a number where an object should be", "stdin:1"),
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
    _same(end.join(lines), tables._Columns, "add_plain", lambda *_: False)


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


def _same(text: str, owner: type, fast: str, never: Callable[..., object]) -> None:
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
