"""What a script would start, found by following it without running anything.

Assignments are followed; a test whose words are known decides its branch; of a test that nobody
can decide all branches are looked into, and a variable that they leave different is known only as
far as they agree. A loop's body is looked into once, a function's at its calls, or once where
nothing calls it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kvcalc.core.errors import InputError
from kvcalc.manifests.found import Attached, Branch, Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.expansion import expand
from kvcalc.manifests.shell.grammar import read_script
from kvcalc.manifests.shell.lexer import Lexer
from kvcalc.manifests.shell.state import Segment, State, Value, as_value, as_word, flat
from kvcalc.manifests.shell.tree import (
    Array,
    Assign,
    Background,
    Case,
    Chain,
    Command,
    Function,
    Group,
    If,
    Loop,
    Simple,
)
from kvcalc.manifests.templates import MARK

__all__ = ["Ran", "Script", "parse"]


_MAX_STEPS = 20_000  # commands followed
_MAX_CALLS = 8  # functions inside one another
_MAX_ELEMENTS = 1_000  # of an array, pieces of a value
_MAX_SCRIPTS = 6  # scripts inside one another
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}
_FORGETS = {"unset", "read", "mapfile", "readarray", "getopts"}  # or set to what none knows


class Ran(NamedTuple):
    """A command that a script would start.

    Attributes:
        words: program and arguments.
        line: where it begins.
        env: what it sees: exported variables, and those set for it alone.
        stdin: a here-document.
        variables: all that is set where it stands, exported or not.
        branch: the conditions that it stands in, and the branch of each; those that a word
            decides, or what went before, and no test (`case`, `||`), are below zero.
        background: it runs on while what follows starts (`&`).
    """

    words: tuple[Word, ...]
    line: int
    env: Mapping[str, Word]
    stdin: Attached | None
    variables: Mapping[str, Word]
    branch: Branch = ()
    background: bool = False


class Script(NamedTuple):
    """What a script does.

    Attributes:
        commands: what it starts, in order.
        files: what it writes by here-documents and echo, by their paths.
    """

    commands: tuple[Ran, ...]
    files: Mapping[str, Attached]


def parse(
    text: str,
    lines: Lines | int = 1,
    env: Mapping[str, Word] | None = None,
    *,
    where: str = "",
    arguments: Sequence[Word] = (),
    zero: Word | None = None,
    closed: bool = False,
    beside: Callable[[str], str | None] | None = None,
    depth: int = 0,
) -> Script:
    """Return what a script starts and writes.

    Args:
        text: the script.
        lines: the file's lines that it stands in, or the first of them.
        env: variables that it is started with.
        where: the file that it stands in.
        arguments: `$1`, `$2`, ...
        zero: `$0`.
        closed: `env` is all that is set, so that a test of another variable finds it empty.
        beside: reads a file beside it (`source .env`); None where there is none.
        depth: how many scripts it stands in.

    Raises:
        InputError: with the line: nothing closes a quote or brace; too large, too deep.
    """
    if depth > _MAX_SCRIPTS:
        return Script((), {})
    lines = Lines(lines) if isinstance(lines, int) else lines
    state = State()
    for name, word in (env or {}).items():
        state.values[name] = as_value(word)
        state.lines[name] = word.line
        state.exported.add(name)
    state.arguments = tuple(as_value(word) for word in arguments)
    state.zero = None if zero is None else as_value(zero)
    state.closed = closed
    runner = _Runner(where, beside, depth)
    state.substitute = lambda inner: runner.substituted(inner, state)
    runner.run(read_script(text, lines, where, depth), state)
    runner.uncalled(state)
    return Script(tuple(runner.found), runner.files)


class _Runner:
    def __init__(self, where: str, beside: Callable[[str], str | None] | None, depth: int) -> None:
        self.where = where
        self.beside = beside
        self.depth = depth
        self.found: list[Ran] = []
        self.files: dict[str, Attached] = {}
        self.functions: dict[str, tuple[Command, ...]] = {}
        self.called: set[str] = set()
        self.calls = 0
        self.steps = 0
        self.all_exported = False
        self.branch: Branch = ()
        self.behind = False
        self.assumed = False  # a program was started last, of which `&&` expects that it succeeds
        self.conditions = 0
        self.sourced_at = 0  # the line that reads the file whose commands are followed

    def run(self, commands: Sequence[Command], state: State) -> bool | None:
        """Follow commands; return whether the last one succeeds, None where nobody knows."""
        status: bool | None = True
        for command in commands:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                return None
            if state.ended:
                break
            status = self.step(command, state)
        return status

    def step(self, command: Command, state: State) -> bool | None:
        match command:
            case Simple():
                return self.simple(command, state)
            case Chain(links=links):
                return self.chain(links, state)
            case Group(body=body):
                return self.group(body, state, apart=command.apart)
            case Background(command=inner):
                branch, outer, self.behind = self.branch, self.behind, True
                self.run((inner,), state.copy())
                self.branch, self.behind = branch, outer
            case If(branches=branches):
                self.condition(branches, state)
            case Loop():
                self.loop(command, state)
            case Case():
                self.case(command, state)
            case Function(name=name, body=body):
                self.functions[name] = body
        return True

    def group(self, body: tuple[Command, ...], state: State, *, apart: bool) -> bool | None:
        """Follow a group; what a subshell sets is lost."""
        if not apart:
            return self.run(body, state)
        branch = self.branch
        for each in body:
            self.run((each,), state.copy())
        self.branch, self.assumed = branch, True
        return None

    def loop(self, command: Loop, state: State) -> None:
        """Follow a loop's body once."""
        self.run(command.condition, state)
        inside, branch = state.copy(), self.branch
        inside.values.pop(command.variable, None)
        self.run(command.body, inside)
        self.branch = branch
        inside.ended = ""
        merge(state, [state.copy(), inside])

    def uncalled(self, state: State) -> None:
        """Look once into the functions that nothing calls: of these a word may choose one."""
        names = [name for name in self.functions if name not in self.called]
        condition = self.conditions = self.conditions + 1
        for place, name in enumerate(names):
            inside = state.copy()
            inside.arguments = None
            inside.ended = ""
            self.branch = (((-condition,), place),)
            self.run(self.functions[name], inside)

    def chain(self, links: tuple[tuple[str, Command], ...], state: State) -> bool | None:
        """Follow a chain; what `||` joins runs where what went before has ended."""
        outer = self.branch
        condition = self.conditions = self.conditions + 1
        either = any(joint == "||" for joint, _ in links)
        status: bool | None = True
        place, decided = 0, False
        for joint, command in links:
            place += joint == "||"
            self.branch = (*outer, ((-condition,), place)) if either else outer
            goes_on = True if status is None and self.assumed else status
            status = goes_on if decided else status  # `[ test ] && a || b` is an if with an else
            decided |= joint == "&&" and status is True
            wanted = {"": True, "&&": goes_on, "||": None if status is None else not status}[joint]
            if wanted is False:
                continue
            if wanted is None:
                inside = state.copy()
                self.run((command,), inside)
                merge(state, [state.copy(), inside])
                status = None
            else:
                status = self.run((command,), state)
        self.branch = outer
        return status

    def condition(
        self, branches: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...], state: State
    ) -> None:
        ends: list[State] = []
        number = self.conditions = self.conditions + 1
        outer = self.branch
        for place, (test, body) in enumerate(branches):
            status = self.run(test, state) if test else True
            if status is False:
                continue
            inside = state.copy()
            self.branch = (*outer, ((number,), place))
            self.run(body, inside)
            self.branch = outer
            ends.append(inside)
            if status is True:
                break
        else:
            ends.append(state.copy())
        if any(end.ended for end in ends):  # what follows runs in the other branches alone
            self.branch = (*outer, ((number,), len(branches)))
        merge(state, ends)

    def case(self, command: Case, state: State) -> None:
        given = expand(command.word, state, split=False, unset_is_empty=state.closed)
        text = flat(given[0]) if given else ""
        if text is not None and MARK in text:
            text = None
        ends = [state.copy()]
        condition = self.conditions = self.conditions + 1
        outer = self.branch
        for place, (patterns, body) in enumerate(command.arms):
            known = [flat(v) for p in patterns for v in expand(p, state, split=False)]
            fits = text is not None and any(
                each is not None and fnmatch.fnmatchcase(text, each) for each in known
            )
            if text is not None and not fits and None not in known:
                continue
            inside = state.copy()
            self.branch = (*outer, ((-condition,), place))
            self.run(body, inside)
            self.branch = outer
            if fits:
                ends = [inside]
                break
            ends.append(inside)
        if any(end.ended for end in ends):
            self.branch = (*outer, ((-condition,), len(command.arms)))
        merge(state, ends)

    def simple(self, command: Simple, state: State) -> bool | None:
        self.assumed = False
        first = command.words[0].literal if command.words else None
        test = first in ("[", "[[", "test")
        values = [
            (value, raw.line)
            for raw in command.words
            for value in expand(
                raw, state, split=first != "[[", unset_is_empty=test and state.closed
            )
            or ([()] if first == "[[" else [])
        ]
        words = tuple(as_word(value, line) for value, line in values)
        program = words[0].text if words else ""
        local: dict[str, Value] = {}
        for assign in command.assigns:
            self.assign(assign, state, local if words and program not in _DECLARES else None)
        if program in _DECLARES:
            self.declare(program, command, words, state)
            return True
        stdin = self.redirected(command, words, state)
        if not words:
            return True
        if program in ("[", "[[", "test"):
            return decide(words)
        if program in ("true", ":", "false"):
            return program != "false"
        if program in self.functions:
            self.call(program, [value for value, _ in values[1:]], state)
            return True
        if program in ("exit", "return"):
            state.ended = program
            return True
        if not self.builtin(program, words, [value for value, _ in values], state):
            state.ended = "exec" if program == "exec" and len(words) > 1 else state.ended
            lines = state.lines
            known = {
                name: as_word(value, lines.get(name, 0)) for name, value in state.values.items()
            }
            exported = state.values if self.all_exported else state.exported
            env = {name: known[name] for name in exported if name in known}
            env |= {name: as_word(value, command.line) for name, value in local.items()}
            ran = Ran(words, command.line, env, stdin, known, self.branch, self.behind)
            self.found.append(ran)
            self.assumed = True
            return None
        return True

    def call(self, name: str, arguments: Sequence[Value], state: State) -> None:
        """Follow a function's body with its arguments."""
        self.called.add(name)
        if self.calls >= _MAX_CALLS:
            return
        self.calls += 1
        branch, outer, state.arguments = self.branch, state.arguments, tuple(arguments)
        self.run(self.functions[name], state)
        state.ended = "" if state.ended == "return" else state.ended
        state.arguments, self.branch = outer, branch
        self.calls -= 1

    def assign(self, assign: Assign, state: State, local: dict[str, Value] | None) -> None:
        """Set a variable; only for the command that follows where `local` is given."""
        name = assign.name
        if isinstance(assign.value, Array):
            elements = tuple(
                tuple(segment._replace(line=self.sourced_at or raw.line) for segment in value)
                for raw in assign.value.words
                for value in expand(raw, state)
            )
            before = state.arrays.get(name, ()) if assign.append else ()
            state.arrays[name] = (before + elements)[:_MAX_ELEMENTS]
            state.values.pop(name, None)
            return
        given = expand(assign.value, state, split=False)
        value = given[0] if given else ()
        if assign.append and name in state.arrays:
            first = state.arrays[name][:1]
            state.arrays[name] = ((first[0] if first else ()) + value, *state.arrays[name][1:])
            return
        if assign.append:
            value = (state.values.get(name, ()) + value)[:_MAX_ELEMENTS]
        if local is not None:
            local[name] = value
            return
        state.values[name] = value
        state.lines[name] = self.sourced_at or assign.value.line
        state.arrays.pop(name, None)

    def declare(self, program: str, command: Simple, words: Sequence[Word], state: State) -> None:
        exports = program == "export" or any(
            w.text.startswith("-") and "x" in w.text for w in words
        )
        if exports:
            state.exported.update(assign.name for assign in command.assigns)
            state.exported.update(word.text for word in words[1:] if word.text.isidentifier())

    def redirected(self, command: Simple, words: Sequence[Word], state: State) -> Attached | None:
        """Note the file that a command writes; return the here-document that it is given."""
        body = here_document(command, state, self.where, self.depth)
        for path, text in written_by(command, words, body, state, self.where, self.files):
            self.files[path] = text
        return body

    def builtin(
        self, program: str, words: Sequence[Word], values: Sequence[Value], state: State
    ) -> bool:
        """Follow a command that changes what is known; return whether it was one."""
        arguments = [word.text for word in words[1:]]
        if program == "set":
            self.all_exported |= "-a" in arguments or "allexport" in arguments
            if "--" in arguments:
                state.arguments = tuple(values[arguments.index("--") + 2 :])
        elif program in _FORGETS:
            state.forget(arguments)
        elif program == "shift" and state.arguments is not None:
            state.arguments = state.arguments[1:]
        elif program in ("source", ".") and arguments and self.beside is not None:
            self.source(arguments[0], words[0].line, state)
        elif program == "eval":
            self.nested(" ".join(arguments), words[0].line, state)
        else:
            return False
        return True

    def source(self, path: str, line: int, state: State) -> None:
        """Follow a file beside, whose lines are not this one's."""
        text = None if self.beside is None else self.beside(path)
        if text is None or self.depth >= _MAX_SCRIPTS:
            return
        outer, self.sourced_at = self.sourced_at, self.sourced_at or line
        self.sourced(text, path, state)
        self.sourced_at = outer

    def sourced(self, text: str, file: str, state: State) -> None:
        """Take the assignments of a file that a script reads; a fault in it is not this file's."""
        count = len(self.found)
        self.depth += 1
        with contextlib.suppress(InputError):
            self.run(read_script(text, Lines(1), file, self.depth), state)
        self.depth -= 1
        del self.found[count:]

    def nested(self, text: str, line: int, state: State) -> None:
        if self.depth < _MAX_SCRIPTS:
            self.depth += 1
            self.run(read_script(text, Lines(line), self.where, self.depth), state)
            self.depth -= 1

    def substituted(self, text: str, state: State) -> Value | None:
        """Return what `$(command)` gives where its words alone say it: echo, printf %s, cat."""
        text = text.strip()
        if not re.match(r"(echo|printf|cat)\b", text) or self.depth >= _MAX_SCRIPTS:
            return None
        commands = read_script(text, Lines(1), self.where, self.depth + 1)
        if len(commands) != 1 or not isinstance(command := commands[0], Simple):
            return None
        values = [value for raw in command.words for value in expand(raw, state)]
        program, arguments = flat(values[0]), values[1:]
        if program == "cat":
            body = self.redirected(command, [Word("cat")], state)
            if body is not None and not arguments:
                return (Segment(body.text.rstrip("\n")),)
            return None
        if command.redirects:
            return None
        return printed(program or "", arguments)


# What is still known after a condition that nobody can decide: what all of its ways agree on.

_Each = TypeVar("_Each")


def merge(state: State, ends: Sequence[State]) -> None:
    """Keep of variables what the ways through a condition agree on."""
    going = [end for end in ends if not end.ended]
    if ends and not going:
        state.ended = ends[0].ended
    ends = going or ends
    if len(ends) == 1:
        state.values, state.arrays = ends[0].values, ends[0].arrays
        state.lines = ends[0].lines
        state.exported = ends[0].exported
        state.arguments = ends[0].arguments
        return
    for end in ends:
        state.lines.update(end.lines)
    names = {name for end in ends for name in (*end.values, *end.arrays)}
    for name in names:
        arrays = [end.arrays.get(name) for end in ends]
        if any(array is not None for array in arrays):
            common = _common([array or () for array in arrays])
            if any(array != common for array in arrays):
                written = f"${{{name}[@]}}"
                common = (*common, (Segment(written, (), (name,)),))
            state.arrays[name] = common
            state.values.pop(name, None)
            continue
        values = [end.values.get(name) for end in ends]
        if all(value == values[0] for value in values):
            state.values[name] = values[0] or ()
            continue
        begin = _beginning([value or () for value in values])
        if begin and begin[-1].unresolved == (name,):
            state.values[name] = begin
            continue
        blank = " " if begin else ""
        state.values[name] = (*begin, Segment(f"{blank}${{{name}}}", (), (name,)))
    state.exported = set().union(*(end.exported for end in ends))


def _beginning(values: Sequence[Value]) -> Value:
    """Return the shortest value where all others go on from it; nothing otherwise."""
    texts = ["".join(segment.text for segment in value) for value in values]
    shortest = min(range(len(texts)), key=lambda at: len(texts[at]))
    same = all(text.startswith(texts[shortest]) for text in texts)
    return values[shortest] if same else ()


def _common(values: Sequence[tuple[_Each, ...]]) -> tuple[_Each, ...]:
    """Return what all begin with."""
    count = 0
    for column in zip(*values, strict=False):
        if any(each != column[0] for each in column):
            break
        count += 1
    return values[0][:count]


# `[ ... ]`, `[[ ... ]]` and `test`: true, false, or not to be known from the script alone.

_NUMBERS = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"}
_NUMBER = re.compile(r"-?[0-9]{1,15}")
_JOINTS = (("||", True), ("-o", True), ("&&", False), ("-a", False))
_LONGEST_PATTERN = 200


def decide(words: Sequence[Word]) -> bool | None:
    """Return whether a test holds; None where a word of it is not known, or what it asks is not.

    Args:
        words: of the test, its own name first.
    """
    inner = [word for word in words[1:] if word.text not in ("]", "]]")]
    for joint, either in _JOINTS:
        places = [at for at, word in enumerate(inner) if word.text == joint]
        if places:
            parts = inner[: places[0]], inner[places[0] + 1 :]
            return _joined([decide([words[0], *part]) for part in parts], either=either)
    if inner and inner[0].text == "!":
        held = decide([words[0], *inner[1:]])
        return None if held is None else not held
    if any(word.unresolved or MARK in word.text for word in inner):
        return None
    return _held([word.text for word in inner], glob=words[0].text == "[[")


def _joined(parts: Sequence[bool | None], *, either: bool) -> bool | None:
    """Return what two tests joined by "or" (either) or "and" say."""
    if either in parts:
        return either
    return None if None in parts else not either


def _held(texts: Sequence[str], *, glob: bool) -> bool | None:
    """Return whether a test of known words holds.

    Args:
        texts: the words.
        glob: a pattern stands on the right of `=`.
    """
    match texts:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==", right]:
            return _equal(left, right, glob=glob)
        case [left, "!=", right]:
            return not _equal(left, right, glob=glob)
        case [left, compare, right] if compare in _NUMBERS:
            return _compared(left, compare, right)
    return None


def _equal(left: str, right: str, *, glob: bool) -> bool:
    matched = glob and len(right) < _LONGEST_PATTERN
    return fnmatch.fnmatchcase(left, right) if matched else left == right


def _compared(left: str, compare: str, right: str) -> bool | None:
    if not _NUMBER.fullmatch(left) or not _NUMBER.fullmatch(right):
        return None
    one, two = int(left), int(right)
    return {
        "-eq": one == two,
        "-ne": one != two,
        "-lt": one < two,
        "-le": one <= two,
        "-gt": one > two,
        "-ge": one >= two,
    }[compare]


# What a script's commands write: here-documents, the files that they become, what echo prints.

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
