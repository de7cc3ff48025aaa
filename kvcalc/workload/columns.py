"""Which columns of a trace hold the prompt and the output tokens, or both together."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.errors import InputError, UsageError, nearest
from kvcalc.workload.faults import fault, listed, quoted

__all__ = ["PAIRS", "TOTALS", "WRAPPERS", "choose_columns", "no_columns"]

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

TOTALS = ("total_tokens",)
"""Known names of a request's whole length, for files without a pair."""

WRAPPERS = (
    "",
    "usage.",  # responses of OpenAI and Anthropic
    "response.usage.",
    "response.body.usage.",  # OpenAI batch output
    "result.message.usage.",  # Anthropic batch results
)
"""What stands before a known name where the numbers are nested; the first with a pair is taken."""

_OPTIONS = ("--prompt-column", "--output-column")
_ROLES = ("prompt", "output")
_BOTH = "name them with --prompt-column and --output-column"
_TOTAL = f"a column of both together is known as {TOTALS[0]}"


def choose_columns(
    columns: Sequence[str],
    file: str,
    line: int,
    prompt_column: str | None = None,
    output_column: str | None = None,
) -> tuple[str, ...]:
    """Return the prompt and the output column, or that of totals, spelled as in the file.

    Totals serve only where nothing is asked for and there is no pair.

    Args:
        columns: every column name, in the file's order, repetitions included; dots join the keys
            of nested JSON.
        file: the file, for the error.
        line: the line of the header or of the first object, for the error.
        prompt_column: the name that the user gives, or None to recognise it.
        output_column: likewise.

    Raises:
        InputError: no recognised pair and no totals, several pairs, a named column that is
            missing, or a chosen column that is there more than once.
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


def no_columns(file: str, line: int, prompt_column: str | None, output_column: str | None) -> None:
    """Check that no column is asked of a plain list of lengths.

    Raises:
        InputError: one is.
    """
    for name, option in zip((prompt_column, output_column), _OPTIONS, strict=True):
        if name is not None:
            raise fault(
                file,
                line,
                f"no column {quoted(name)} ({option}): the file is a plain list of lengths",
                f"leave out {option}; each number is taken for prompt and output together",
            )


def _folded(name: str) -> str:
    return name.casefold().replace(" ", "").replace("_", "")


def _wrapped(wrapper: str) -> list[tuple[str, str]]:
    return [(wrapper + prompt, wrapper + output) for prompt, output in PAIRS]


def _recognised(columns: Sequence[str], file: str, line: int) -> tuple[str, ...]:
    present = {_folded(name) for name in columns}
    for wrapper in WRAPPERS:
        pairs = [p for p in _wrapped(wrapper) if {_folded(name) for name in p} <= present]
        if len(pairs) == 1:
            return tuple(_spelled(columns, name, file, line) for name in pairs[0])
        if pairs:
            several = " and ".join(f"{prompt}/{output}" for prompt, output in pairs)
            raise fault(file, line, f"more than one pair of length columns: {several}", hint=_BOTH)
    for total in (wrapper + name for wrapper in WRAPPERS for name in TOTALS):
        if _folded(total) in present:
            return (_spelled(columns, total, file, line),)
    raise _unknown(columns, file, line)


def _unknown(columns: Sequence[str], file: str, line: int) -> InputError:
    found = f"columns: {listed(columns)}"
    for role in (0, 1):
        known = {_folded(pair[role]) for wrapper in WRAPPERS for pair in _wrapped(wrapper)}
        one = [name for name in columns if _folded(name) in known]
        if len(one) == 1:
            other = _ROLES[1 - role]
            return fault(
                file,
                line,
                f"{_ROLES[role]} column {quoted(one[0])} but no known {other} column; {found}",
                f"both are needed; name the other with {_OPTIONS[1 - role]}",
            )
    if columns and not any(c.isalpha() for name in columns for c in name):
        names = ",".join(PAIRS[0] if len(columns) > 1 else TOTALS)
        return fault(
            file,
            line,
            f"the first line has numbers where the column names should be; {found}",
            f"add a first line that names the columns, such as {names}",
        )
    message = f"no known pair of prompt and output columns; {found}"
    return fault(file, line, message, f"{_BOTH}; {_TOTAL}")


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
    levels = [
        [pair for pair in _wrapped(wrapper) if _folded(pair[role]) in present]
        for wrapper in WRAPPERS
    ]
    mates = [p for pairs in levels for p in pairs if _folded(p[1 - role]) == _folded(given)]
    names = {_folded(p[role]): p[role] for p in mates or next(filter(None, levels), [])}
    if len(names) != 1:
        what = "several known" if names else "no known"
        raise fault(
            file,
            line,
            f"{what} {_ROLES[role]} columns beside {quoted(given)}; columns: {listed(columns)}",
            f"both are needed; name the other with {_OPTIONS[role]}",
        )
    return _spelled(columns, next(iter(names.values())), file, line)
