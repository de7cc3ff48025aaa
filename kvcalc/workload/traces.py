"""Request-length traces: what was asked of a real service, as a histogram of lengths."""

from __future__ import annotations

from itertools import chain
from typing import BinaryIO

import msgspec

from kvcalc.core.lengths import Lengths
from kvcalc.workload.arrays import lengths_from_arrays
from kvcalc.workload.faults import fault, printable
from kvcalc.workload.objects import read_array, read_lines
from kvcalc.workload.source import file_name, opened, text_blocks
from kvcalc.workload.tables import read_table

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
