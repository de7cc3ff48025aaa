"""Which two columns of a trace hold the prompt and the output tokens."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.errors import InputError, UsageError, nearest
from kvcalc.workload.faults import fault, listed, quoted

__all__ = ["PAIRS", "choose_columns"]

PAIRS = (
    ("ContextTokens", "GeneratedTokens"),  # Azure LLM inference traces
    ("input_length", "output_length"),  # Mooncake, Qwen-Bailian
    ("num_prefill_tokens", "num_decode_tokens"),  # Vidur, vAttention
    ("input_tokens", "output_tokens"),  # ServeGen
    ("Request tokens", "Response tokens"),  # BurstGPT
    ("input_toks", "output_toks"),  # LLMServingSim
    ("prompt_tokens", "completion_tokens"),  # OpenAI-style usage records
    ("prompt_len", "output_len"),
    ("prompt_length", "output_length"),
)
"""(prompt, output) names that are known; case, spaces and underscores do not count."""

_OPTIONS = ("--prompt-column", "--output-column")
_ROLES = ("prompt", "output")
_BOTH = "name them with --prompt-column and --output-column"


def choose_columns(
    columns: Sequence[str],
    file: str,
    line: int,
    prompt_column: str | None = None,
    output_column: str | None = None,
) -> tuple[str, str]:
    """Return the names of the prompt and the output column, spelled as in the file.

    Args:
        columns: every column name, in the file's order, repetitions included.
        file: the file, for the error.
        line: the line of the header or of the first object, for the error.
        prompt_column: the name that the user gives, or None to recognise it.
        output_column: likewise.

    Raises:
        InputError: no recognised pair, several, a named column that is missing, or a chosen
            column that is there more than once.
        UsageError: both options name the same column.
    """
    asked = (prompt_column, output_column)
    if prompt_column is None and output_column is None:
        return _recognised(columns, file, line)
    chosen = [
        None if name is None else _named(columns, name, file, line, option)
        for name, option in zip(asked, _OPTIONS, strict=True)
    ]
    for role in (0, 1):
        if chosen[role] is None:
            chosen[role] = _partner(columns, file, line, role, chosen[1 - role] or "")
    prompt, output = chosen[0] or "", chosen[1] or ""
    if prompt == output:
        raise UsageError(
            f"{quoted(prompt)} is named as both the prompt and the output column",
            hint=f"name two columns; {file} has {listed(columns)}",
            where=_OPTIONS[1],
        )
    return prompt, output


def _folded(name: str) -> str:
    return name.casefold().replace(" ", "").replace("_", "")


def _recognised(columns: Sequence[str], file: str, line: int) -> tuple[str, str]:
    present = {_folded(name) for name in columns}
    pairs = [pair for pair in PAIRS if {_folded(name) for name in pair} <= present]
    if len(pairs) == 1:
        prompt, output = (_spelled(columns, name, file, line) for name in pairs[0])
        return prompt, output
    found = f"columns: {listed(columns)}"
    if pairs:
        several = " and ".join(f"{prompt}/{output}" for prompt, output in pairs)
        raise fault(file, line, f"more than one pair of length columns: {several}", hint=_BOTH)
    for role in (0, 1):
        known = {_folded(pair[role]) for pair in PAIRS}
        one = [name for name in columns if _folded(name) in known]
        if len(one) == 1:
            other = _ROLES[1 - role]
            raise fault(
                file,
                line,
                f"{_ROLES[role]} column {quoted(one[0])} but no known {other} column; {found}",
                f"both are needed; name the other with {_OPTIONS[1 - role]}",
            )
    if columns and not any(c.isalpha() for name in columns for c in name):
        raise fault(
            file,
            line,
            f"the first line has numbers where the column names should be; {found}",
            f"add a first line that names the columns, such as {','.join(PAIRS[0])}",
        )
    raise fault(file, line, f"no known pair of prompt and output columns; {found}", _BOTH)


def _spelled(columns: Sequence[str], known: str, file: str, line: int) -> str:
    """Return the one column that is `known` but for case, spaces and underscores."""
    alike = [name for name in columns if _folded(name) == _folded(known)]
    if len(alike) > 1:
        raise _repeated(alike, file, line)
    return alike[0]


def _repeated(alike: Sequence[str], file: str, line: int) -> InputError:
    return fault(
        file,
        line,
        f"column {quoted(alike[0])} is there {len(alike)} times: {listed(alike)}",
        "rename or remove all but one",
    )


def _named(columns: Sequence[str], name: str, file: str, line: int, option: str) -> str:
    wanted = name.strip().casefold()
    alike = [c for c in columns if c == name] or [
        c for c in columns if c.strip().casefold() == wanted
    ]
    if len(alike) > 1:
        raise _repeated(alike, file, line)
    if alike:
        return alike[0]
    # Bounded, because resemblance takes time that grows with the square of the names.
    close = nearest(name[:100], [c[:100] for c in columns[:200]])
    meant = f"did you mean {' or '.join(quoted(c) for c in close)}? " if close else ""
    raise fault(
        file,
        line,
        f"no column {quoted(name)} ({option})",
        f"{meant}columns: {listed(columns)}",
    )


def _partner(columns: Sequence[str], file: str, line: int, role: int, given: str) -> str:
    """Find the column of `role` (0 prompt, 1 output) that goes with the one the user named."""
    present = {_folded(name) for name in columns if name != given}
    pairs = [pair for pair in PAIRS if _folded(pair[role]) in present]
    mates = [pair for pair in pairs if _folded(pair[1 - role]) == _folded(given)]
    names = {_folded(pair[role]): pair[role] for pair in mates or pairs}
    if len(names) != 1:
        what = "several known" if names else "no known"
        raise fault(
            file,
            line,
            f"{what} {_ROLES[role]} columns beside {quoted(given)}; columns: {listed(columns)}",
            f"both are needed; name the other with {_OPTIONS[role]}",
        )
    return _spelled(columns, next(iter(names.values())), file, line)
