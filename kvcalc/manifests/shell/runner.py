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
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.core.errors import InputError
from kvcalc.manifests.found import Attached, Branch, Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.conditions import decide
from kvcalc.manifests.shell.expansion import expand
from kvcalc.manifests.shell.grammar import read_script
from kvcalc.manifests.shell.merging import merge
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
from kvcalc.manifests.shell.writing import here_document, printed, written_by
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
