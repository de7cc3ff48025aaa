"""Request-length traces: what was asked of a real service, as a histogram of lengths."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import add, index
from typing import TYPE_CHECKING, Any, BinaryIO, SupportsIndex

import msgspec

from kvcalc.core.errors import InputError, InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.workload.columns import choose_columns, no_columns
from kvcalc.workload.faults import fault, printable
from kvcalc.workload.objects import read_array, read_lines
from kvcalc.workload.source import Block, file_name, opened, text_blocks
from kvcalc.workload.tally import MAX_TOKENS, SHORT_DIGITS, Reading, Tally, is_number, read_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Trace", "lengths_from_arrays", "read_trace"]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of the requests of one trace."""

    name: str
    """The file without its folder, or `stdin`."""
    lengths: Lengths
    """Requests by total length: prompt and output tokens together."""
    requests: int
    prompt_tokens: int | None
    """Of all requests together; None where the file has only totals."""
    output_tokens: int | None
    """Likewise."""
    prompt_column: str | None
    """As the file spells it; for JSON the key, or nested keys joined by dots. None where the file
    has only totals."""
    output_column: str | None
    """Likewise."""
    total_column: str | None = None
    """The column of totals; None where the file has both parts, or is a plain list of lengths."""
    format: str
    """`csv` (comma or semicolon), `tsv`, `jsonl`, `json` or `list` (one length a line); gzip does
    not show."""
    longest: int
    """Tokens of the longest request, prompt and output together."""

    @property
    def tokens_told(self) -> str:
        """The tokens of all requests in words, each part with the column it is from."""
        if self.prompt_tokens is None or self.output_tokens is None:
            column = self.total_column or "a plain list of lengths"
            return f"{self.lengths.tokens:,} tokens in all ({column})"
        return (
            f"{self.prompt_tokens:,} prompt tokens ({self.prompt_column})"
            f" and {self.output_tokens:,} output tokens ({self.output_column})"
        )


def read_trace(
    source: str,
    *,
    prompt_column: str | None = None,
    output_column: str | None = None,
    stdin: BinaryIO | None = None,
) -> Trace:
    """Read a trace: CSV, TSV, JSONL, a JSON array of objects, or a list of lengths; gzip too.

    The format is told by content, not by name. Without column names, the pair must be one that
    is known (`kvcalc.workload.columns.PAIRS`), for JSON also in a `usage` object; failing that,
    a known column of totals serves. With one name, the other column is looked for. In a list,
    one number a line or a JSON array of numbers, each is a request's total.

    Args:
        source: a path, or `-` for stdin.
        prompt_column: the column of prompt tokens, matched exactly, then without case; for JSON
            also nested keys joined by dots, such as `usage.prompt_tokens`.
        output_column: the column of output tokens, likewise.
        stdin: the binary stream that `-` means; the process's own when None.

    Raises:
        InputError: the file cannot be read, is no trace, or has a row without whole numbers of
            tokens from 0 to 10^9; `where` has the file and, for a row, the line.
        UsageError: both options name the same column.
    """
    file = "stdin" if source == "-" else printable(source)
    with opened(source, file, stdin) as stream:
        blocks = text_blocks(stream, file)
        first = next((block for block in blocks if not block[1].isspace()), None)
        if first is None or not first[1]:
            raise fault(
                file, None, "the file is empty", "give a header line and one request a line"
            )
        text = first[1].lstrip()
        reader = {"{": read_lines, "[": read_array}.get(text[0], read_table)
        found = reader(chain([first], blocks), file, prompt_column, output_column)
    tally = found.tally
    lengths = Lengths(tally.counts)
    if not tally.counts:
        raise fault(file, None, "there is no request in the file", "give one request a line")
    columns = [printable(column) for column in found.columns]
    prompt, output = columns if len(columns) > 1 else (None, None)
    return Trace(
        name=file_name(source),
        lengths=lengths,
        requests=lengths.requests,
        prompt_tokens=None if prompt is None else tally.prompt_tokens,
        output_tokens=None if output is None else tally.output_tokens,
        prompt_column=prompt,
        output_column=output,
        total_column=columns[0] if len(columns) == 1 else None,
        format=found.format,
        longest=lengths.longest,
    )


# From arrays of prompt and output tokens to a histogram, at about the speed of memory.

_CHUNK = 2**17  # requests; two columns and their sum stay in the cache, 3 MiB in all
_BINS = 2**22  # totals below are counted in an array (32 MiB at most), others in a dict
_EXACT = 2**62  # from here a sum of two could leave int64


def lengths_from_arrays(
    prompts: Sequence[int] | npt.NDArray[np.integer[Any]],
    outputs: Sequence[int] | npt.NDArray[np.integer[Any]],
) -> Lengths:
    """Count requests by total length.

    Args:
        prompts: prompt tokens of each request: a numpy array of any integer dtype (or what numpy
            takes for one), or a sequence of ints.
        outputs: output tokens of the same requests, in the same shape.

    Raises:
        InvalidValueError: different shapes, values that are not integers, or a negative one.

    >>> lengths_from_arrays([100, 100, 7], [5, 5, 0]).pairs
    ((7, 1), (105, 2))
    """
    if hasattr(prompts, "dtype") or hasattr(outputs, "dtype"):
        return _of_arrays(prompts, outputs)
    if len(prompts) != len(outputs):
        raise _shapes(f"{len(prompts)} requests", f"{len(outputs)} requests")
    return Lengths(Counter(map(add, _ints("prompt", prompts), _ints("output", outputs))))


_HINT = "give whole numbers of tokens, 0 or more"


def _ints(name: str, values: Sequence[int]) -> Iterator[int]:
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise InvalidValueError(
                f"the {name} tokens of request {i} are a {type(value).__name__}, not an int",
                hint=_HINT,
            )
        number = index(value)  # a plain int of a numpy scalar
        if number < 0:
            raise _negative(name, i, number)
        yield number


def _shapes(prompts: str, outputs: str) -> InvalidValueError:
    return InvalidValueError(
        f"prompts have {prompts}, outputs {outputs}", hint="give both for the same requests"
    )


def _negative(name: str, place: int, value: int) -> InvalidValueError:
    return InvalidValueError(
        f"the {name} tokens of request {place} are negative: {value}", hint=_HINT
    )


def _of_arrays(prompts: Any, outputs: Any) -> Lengths:
    import numpy as np  # here, because it takes longer to import than most calls to run

    pair = (np.asarray(prompts), np.asarray(outputs))
    if pair[0].shape != pair[1].shape:
        raise _shapes(f"shape {pair[0].shape}", f"shape {pair[1].shape}")
    size = pair[0].size
    if not size:  # before the dtype: an empty list becomes an array of floats
        return Lengths({})
    for name, array in zip(("prompt", "output"), pair, strict=True):
        if array.dtype.kind not in "iu":
            raise InvalidValueError(
                f"the {name} tokens are {array.dtype}, not integers", hint=_HINT
            )
    p, o = (array.reshape(-1) for array in pair)
    bins = np.zeros(0, np.int64)
    others: Counter[int] = Counter()
    buffer = np.empty(min(_CHUNK, size), np.int64)
    one = np.int64(1)
    for start in range(0, size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        # Wraps a uint64 from 2^63 to a negative, which then takes the exact way below.
        a, b = (x[chunk].astype(np.int64, copy=False) for x in (p, o))
        # One pass over each: no value has more binary digits than this, and none is negative if
        # this is not, so no minimum and no maximum need be sought.
        bits = int(np.bitwise_or.reduce(a) | np.bitwise_or.reduce(b))
        if bits < 0 or bits >= _EXACT:
            others.update(_exact_sums(p[chunk].tolist(), o[chunk].tolist(), start))
            continue
        total = np.add(a, b, out=buffer[: len(a)])
        need = min(2 << bits.bit_length(), _BINS)
        if need == _BINS:
            lengths, counts = np.unique(total[total >= _BINS], return_counts=True)
            others.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
            total = total[total < _BINS]
        if need > len(bins):
            bins = np.concatenate((bins, np.zeros(need - len(bins), np.int64)))
        # Not bincount: it makes a histogram a chunk, which costs more than the chunk if lengths
        # are long. Both take some 1.1 ns a request here (add.at since numpy 1.25).
        np.add.at(bins, total, one)
    used = np.flatnonzero(bins)
    found: dict[int, int] = dict(zip(used.tolist(), bins[used].tolist(), strict=True))
    for tokens, count in others.items():  # small totals too, from chunks that had a huge one
        found[tokens] = found.get(tokens, 0) + count
    return Lengths(found)


def _exact_sums(prompts: list[int], outputs: list[int], start: int) -> list[int]:
    for name, values in (("prompt", prompts), ("output", outputs)):
        for place, value in enumerate(values, start):
            if value < 0:
                raise _negative(name, place, value)
    return list(map(add, prompts, outputs))


# Traces with one request a line: CSV and TSV with a header line, and plain lists of lengths.

_DELIMITERS = "\t,;"
_MAX_HEADER = 2**20  # characters
_BLANK_LINES = re.compile(r"(?:[ \t\r]*\n)*")
_QUOTED = re.compile(r'"[^"]*"')
_BATCH = 4096  # rows


def read_table(
    blocks: Iterator[Block], file: str, prompt_column: str | None, output_column: str | None
) -> Reading:
    """Read a CSV or TSV trace; tab, comma or semicolon is told by the header line.

    Where the first line is one number, there is no header, and every line is a request's length.

    Raises:
        InputError: a header or a row that does not serve, with its line.
        UsageError: both options name the same column.
    """
    line, block = next(blocks)
    skipped = _BLANK_LINES.match(block)
    at = skipped.end() if skipped else 0
    line += block.count("\n", 0, at)
    header, _, rest = block[at:].partition("\n")
    if is_number(_bare(header)):
        no_columns(file, line, prompt_column, output_column)
        return _read_list(chain([(line, block[at:])], blocks), file)
    delimiter, names = _header(header.removesuffix("\r"), file, line)
    chosen = choose_columns(names, file, line, prompt_column, output_column)
    columns = _Columns(file, delimiter, names, chosen)
    tally = Tally()
    pending = chain([(line + 1, rest)], blocks)
    for first, text in pending:
        if '"' in text:  # a quoted cell may run on into the next block, so all the rest goes here
            columns.add_rows(chain(_lines(text), *map(_lines_of, pending)), first, tally)
        elif text and not columns.add_plain(text, tally):
            columns.add_rows(_lines(text), first, tally)
    return Reading("tsv" if delimiter == "\t" else "csv", chosen, tally)


def _read_list(blocks: Iterator[Block], file: str) -> Reading:
    """Read one length a line; blank lines are skipped."""
    tally = Tally()
    for first, text in blocks:
        cells = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        tally.add(_whole(cells) or _lengths(cells, file, first))
    return Reading("list", (), tally)


def _lengths(cells: list[str], file: str, first: int) -> list[int]:
    numbered = ((line, cell) for line, cell in enumerate(cells, first) if cell.strip())
    return [read_tokens(_bare(cell), None, file, line) for line, cell in numbered]


def _bare(line: str) -> str:
    """Strip a line of space and of the quotes that some programs put round every cell."""
    text = line.strip()
    quoted = len(text) > 1 and text.startswith('"') and text.endswith('"')
    return text[1:-1] if quoted else text


def _whole(cells: list[str]) -> list[int] | None:
    """Read cells in bulk, or give None where any is out of the ordinary."""
    digits = "".join(cells)
    if ".0" in digits:  # as pandas writes a column that once lacked a value
        cells = [cell.removesuffix(".0") for cell in cells]
        digits = "".join(cells)
    if not (digits.isascii() and digits.isdigit()):
        return None
    try:
        numbers = list(map(int, cells))
    except ValueError:  # a blank cell, or thousands of digits
        return None
    return None if max(numbers) > MAX_TOKENS else numbers


def _lines(text: str) -> Iterator[str]:
    # Only LF ends a line here, so that lines are counted as editors count them.
    return io.StringIO(text, newline="\n")


def _lines_of(block: Block) -> Iterator[str]:
    return _lines(block[1])


def _header(header: str, file: str, line: int) -> tuple[str, list[str]]:
    if len(header) > _MAX_HEADER:
        raise fault(file, line, f"the header line has {len(header)} characters", _HEADER_HINT)
    if "\r" in header:
        raise fault(file, line, "lines end in a bare CR", "save the file with LF or CRLF line ends")
    bare = _QUOTED.sub("", header)
    delimiter = max(_DELIMITERS, key=bare.count) if any(d in bare for d in _DELIMITERS) else ","
    try:
        (names,) = csv.reader([header], delimiter=delimiter, strict=True)
    except csv.Error as error:
        message = f"the header line is not well-formed: {printable(str(error))}"
        raise fault(file, line, message, _HEADER_HINT) from None
    return delimiter, [name.strip() for name in names]


def _is_short(cell: str) -> bool:
    """Say whether a cell is plainly a number below 10^9."""
    return cell.isdigit() and cell.isascii() and len(cell) <= SHORT_DIGITS


_HEADER_HINT = "the first line names the columns, such as ContextTokens,GeneratedTokens"


class _Columns:
    """Where the chosen columns, one or two, are in a row, and the two ways to read rows."""

    def __init__(
        self, file: str, delimiter: str, names: list[str], chosen: tuple[str, ...]
    ) -> None:
        self.file = file
        self.delimiter = delimiter
        self.width = len(names)
        self.names = chosen
        self.places = tuple(map(names.index, chosen))

    def add_plain(self, text: str, tally: Tally) -> bool:
        """Count rows in bulk, or say False and count none where any row is out of the ordinary.

        For text without quotes. The line ends become cells of their own, so one split gives every
        column as a slice, and a row of another width shows because a line end is out of place.
        """
        if not text.endswith("\n"):
            text += "\n"
        end = "\r\n" if text.endswith("\r\n") else "\n"
        rows, stride = text.count("\n"), self.width + 1
        delimiters = text.count(self.delimiter)
        if text.count("\r") != (rows if end == "\r\n" else 0) or text.count(end) != rows:
            return False
        if delimiters != rows * (self.width - 1):
            return False
        cells = text.replace(end, f"{self.delimiter}\n{self.delimiter}").split(self.delimiter)
        if cells[self.width :: stride].count("\n") != rows:
            return False
        tokens: list[list[int]] = []
        for place in self.places:
            numbers = _whole(cells[place:-1:stride])
            if numbers is None:
                return False
            tokens.append(numbers)
        tally.add(*tokens)
        return True

    def add_rows(self, lines: Iterable[str], first: int, tally: Tally) -> None:
        """Count rows one by one, with csv's rules for quotes.

        Raises:
            InputError: the first row that does not serve, with its line.
        """
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        prompt_at, output_at = self.places[0], self.places[-1]  # one and the same for totals
        prompt, output = self.names[0], self.names[-1]
        width, file, paired = self.width, self.file, len(self.places) > 1
        prompts: list[int] = []
        outputs: list[int] = []
        line = first
        try:
            for row in reader:
                if len(row) == width and (width > 1 or not row[0].isspace()):
                    p, o = row[prompt_at], row[output_at]
                    prompts.append(int(p) if _is_short(p) else read_tokens(p, prompt, file, line))
                    if paired:
                        outputs.append(
                            int(o) if _is_short(o) else read_tokens(o, output, file, line)
                        )
                elif len(row) > 1 or (row and row[0].strip()):
                    raise self._ragged(row, line)
                line = first + reader.line_num
                if len(prompts) >= _BATCH:
                    tally.add(prompts, outputs if paired else None)
                    prompts, outputs = [], []
        except csv.Error as error:
            raise fault(
                self.file,
                line,
                f"the row is not well-formed: {printable(str(error))}",
                'quote a cell as CSV does: "…" round all of it, and "" for a quote inside',
            ) from None
        tally.add(prompts, outputs if paired else None)

    def _ragged(self, row: list[str], line: int) -> InputError:
        return fault(
            self.file,
            line,
            f"the row has {len(row)} cells where the header has {self.width}",
            "give every row one cell for each column, and quote cells that hold the delimiter",
        )
