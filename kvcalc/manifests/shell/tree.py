"""What a script is made of, before anything is put in for its variables."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "Array",
    "Assign",
    "Background",
    "Case",
    "Chain",
    "Command",
    "Function",
    "Group",
    "Heredoc",
    "If",
    "Literal",
    "Loop",
    "Part",
    "Raw",
    "Redirect",
    "Simple",
    "Substitution",
    "Variable",
]


class Literal(NamedTuple):
    """Characters that stand for themselves."""

    text: str
    quoted: bool


class Variable(NamedTuple):
    """`$X`, `${X}`, `${X:-word}`, `${X[@]}` and their like.

    Attributes:
        name: of it; a digit, `@`, `*`, `#`, `?`, `$`, `!` for the special ones.
        operator: `:-`, `-`, `:+`, `+`, `:=`, `=`, `:?`, `?`, another one as it stands, or "".
        argument: what follows the operator.
        subscript: `@`, `*` or another subscript of an array; "" without.
        quoted: whether it stands in double quotes.
        written: as it stands.
    """

    name: str
    operator: str
    argument: Raw | None
    subscript: str
    quoted: bool
    written: str


class Substitution(NamedTuple):
    """`$(command)`, a backquoted one, `<(command)`, or `$((arithmetic))`."""

    kind: str  # "command" or "arithmetic"
    text: str
    quoted: bool
    written: str


Part = Literal | Variable | Substitution


class Raw(NamedTuple):
    """A word as it stands: its parts, and where it begins."""

    parts: tuple[Part, ...]
    line: int
    offset: int = 0

    @property
    def literal(self) -> str | None:
        """Its text where nothing is quoted or put in."""
        if len(self.parts) == 1 and isinstance(part := self.parts[0], Literal) and not part.quoted:
            return part.text
        return None


class Array(NamedTuple):
    """`(a b c)` after a `=`."""

    words: tuple[Raw, ...]


class Assign(NamedTuple):
    """`X=value`, `X+=value`, `X=(a b)`."""

    name: str
    append: bool
    value: Raw | Array


class Heredoc(NamedTuple):
    """The lines after `<<EOF`."""

    text: str
    line: int
    quoted: bool


class Redirect(NamedTuple):
    """`> file`, `< file`, `<<EOF`.

    Attributes:
        operator: as it stands.
        target: the word behind it.
        bodies: the here-document, once the line has ended.
    """

    operator: str
    target: Raw | None
    bodies: list[Heredoc]


class Simple(NamedTuple):
    """Assignments, words and redirections."""

    assigns: tuple[Assign, ...]
    words: tuple[Raw, ...]
    redirects: tuple[Redirect, ...]
    line: int


class Group(NamedTuple):
    """`{ ...; }`, `( ... )`, and a pipeline's parts."""

    body: tuple[Command, ...]
    redirects: tuple[Redirect, ...]
    apart: bool  # a subshell: what it assigns is lost


class If(NamedTuple):
    """`if cond; then body; elif ...; else ...; fi`; the last has no condition for `else`."""

    branches: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...]


class Loop(NamedTuple):
    """`for x in words`, `while cond`, `until cond`."""

    variable: str
    condition: tuple[Command, ...]
    body: tuple[Command, ...]


class Case(NamedTuple):
    """`case word in pattern) body ;; esac`."""

    word: Raw
    arms: tuple[tuple[tuple[Raw, ...], tuple[Command, ...]], ...]


class Function(NamedTuple):
    """`name() { body; }`."""

    name: str
    body: tuple[Command, ...]


class Chain(NamedTuple):
    """Commands joined by `&&` and `||`: the first one's joint is ""."""

    links: tuple[tuple[str, Command], ...]


class Background(NamedTuple):
    """A command that `&` leaves running while the next one starts."""

    command: Command


Command = Simple | Group | If | Loop | Case | Function | Chain | Background
