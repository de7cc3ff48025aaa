"""Traces with one request a line: CSV and TSV with a header line, and plain lists of lengths."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from kvcalc.core.errors import InputError
from kvcalc.workload.columns import choose_columns, no_columns
from kvcalc.workload.faults import fault, printable
from kvcalc.workload.source import Block
from kvcalc.workload.tally import MAX_TOKENS, SHORT_DIGITS, Reading, Tally, is_number, read_tokens

__all__ = ["read_table"]

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
