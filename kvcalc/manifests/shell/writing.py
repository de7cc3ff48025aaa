"""What a script's commands write: here-documents, the files that they become, what echo prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvcalc.manifests.found import Attached, Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.expansion import expand
from kvcalc.manifests.shell.lexer import Lexer
from kvcalc.manifests.shell.state import Segment, State, Value, as_word, flat
from kvcalc.manifests.shell.tree import Simple

__all__ = ["here_document", "printed", "written_by"]

_INTO = (">", ">>", ">|", "&>")


def here_document(command: Simple, state: State, where: str, depth: int) -> Attached | None:
    """Return the last here-document that a command is given, with its variables put in.

    Args:
        command: it.
        state: what is known where it stands.
        where: the file that it stands in.
        depth: how many scripts it stands in.
    """
    body: Attached | None = None
    for each in command.redirects:
        for heredoc in each.bodies:
            text = heredoc.text
            if not heredoc.quoted:
                raw = Lexer("", Lines(1), where, depth).body(text, heredoc.line)
                parts = expand(raw, state, split=False)
                text = as_word(parts[0], 0).text if parts else ""
            body = Attached(where, heredoc.line, text)
    return body


def written_by(
    command: Simple,
    words: Sequence[Word],
    body: Attached | None,
    state: State,
    where: str,
    files: Mapping[str, Attached],
) -> Iterator[tuple[str, Attached]]:
    """Yield the files that cat, tee or echo writes: their paths, and what they hold then.

    Args:
        command: it.
        words: of it, variables put in.
        body: its here-document.
        state: what is known where it stands.
        where: the file that it stands in.
        files: those that were written before, to which `>>` adds.
    """
    targets = [
        (each.operator, as_word(value, 0).text)
        for each in command.redirects
        if each.operator in _INTO and each.target is not None
        for value in expand(each.target, state, split=False)
    ]
    texts = [word.text for word in words] or ["cat"]
    program = texts[1] if texts[0] == "sudo" and len(texts) > 1 else texts[0]
    if body is not None and program == "tee":
        targets += [(">", text) for text in texts[1:] if text not in ("tee", "-a")]
    written = body
    if program == "echo" and written is None:
        line = " ".join(text for text in texts[1:] if text not in ("-e", "-n"))
        written = Attached(where, command.line, line + "\n")
    if written is None or program not in ("cat", "tee", "echo"):
        return
    for operator, path in targets:
        if path.startswith("/dev/"):
            continue
        before = files.get(path) if operator == ">>" else None
        if before is not None:
            written = written._replace(text=before.text + written.text, line=before.line)
        yield path, written


def printed(program: str, arguments: Sequence[Value]) -> Value | None:
    """Return what echo, or printf of one text, prints; None where nobody knows it."""
    if program == "printf":
        match arguments:
            case [form, value] if flat(form) in ("%s", "%s\\n"):
                return value
        return None
    if arguments and flat(arguments[0]) in ("-n", "-e", "-ne"):
        arguments = arguments[1:]
    joined: list[Segment] = []
    for value in arguments:
        joined += [Segment(" "), *value] if joined else value
    return tuple(joined)
