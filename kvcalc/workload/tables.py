"""Traces with a header line and one request a line: CSV and TSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from kvcalc.core.errors import InputError
from kvcalc.workload.columns import choose_columns
from kvcalc.workload.faults import fault, printable
from kvcalc.workload.source import Block
from kvcalc.workload.tally import MAX_TOKENS, SHORT_DIGITS, Reading, Tally, read_tokens

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

    Raises:
        InputError: a header or a row that does not serve, with its line.
        UsageError: both options name the same column.
    """
    line, block = next(blocks)
    skipped = _BLANK_LINES.match(block)
    at = skipped.end() if skipped else 0
    line += block.count("\n", 0, at)
    header, _, rest = block[at:].partition("\n")
    delimiter, names = _header(header.removesuffix("\r"), file, line)
    prompt, output = choose_columns(names, file, line, prompt_column, output_column)
    columns = _Columns(file, delimiter, names, prompt, output)
    tally = Tally()
    pending = chain([(line + 1, rest)], blocks)
    for first, text in pending:
        if '"' in text:  # a quoted cell may run on into the next block, so all the rest goes here
            columns.add_rows(chain(_lines(text), *map(_lines_of, pending)), first, tally)
        elif text and not columns.add_plain(text, tally):
            columns.add_rows(_lines(text), first, tally)
    return Reading("tsv" if delimiter == "\t" else "csv", prompt, output, tally)


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
    """Where the two columns are in a row, and the two ways to read rows."""

    def __init__(
        self, file: str, delimiter: str, names: list[str], prompt: str, output: str
    ) -> None:
        self.file = file
        self.delimiter = delimiter
        self.width = len(names)
        self.names = (prompt, output)
        self.places = (names.index(prompt), names.index(output))

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
            column = cells[place:-1:stride]
            digits = "".join(column)
            if ".0" in digits:  # as pandas writes a column that once lacked a value
                column = [cell.removesuffix(".0") for cell in column]
                digits = "".join(column)
            if not (digits.isascii() and digits.isdigit()):
                return False
            try:
                numbers = list(map(int, column))
            except ValueError:  # a blank cell, or thousands of digits
                return False
            if max(numbers) > MAX_TOKENS:
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
        (prompt_at, output_at), (prompt, output) = self.places, self.names
        width, file = self.width, self.file  # at least 2: a table has two columns to choose
        prompts: list[int] = []
        outputs: list[int] = []
        line = first
        try:
            for row in reader:
                if len(row) == width:
                    p, o = row[prompt_at], row[output_at]
                    prompts.append(int(p) if _is_short(p) else read_tokens(p, prompt, file, line))
                    outputs.append(int(o) if _is_short(o) else read_tokens(o, output, file, line))
                elif len(row) > 1 or (row and row[0].strip()):
                    raise self._ragged(row, line)
                line = first + reader.line_num
                if len(prompts) >= _BATCH:
                    tally.add(prompts, outputs)
                    prompts, outputs = [], []
        except csv.Error as error:
            raise fault(
                self.file,
                line,
                f"the row is not well-formed: {printable(str(error))}",
                'quote a cell as CSV does: "…" round all of it, and "" for a quote inside',
            ) from None
        tally.add(prompts, outputs)

    def _ragged(self, row: list[str], line: int) -> InputError:
        return fault(
            self.file,
            line,
            f"the row has {len(row)} cells where the header has {self.width}",
            "give every row one cell for each column, and quote cells that hold the delimiter",
        )
