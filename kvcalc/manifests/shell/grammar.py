"""The commands of a script as a tree: lists, pipelines, conditions, loops, functions."""

from __future__ import annotations

import re

from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.lexer import Lexer, Operator
from kvcalc.manifests.shell.tree import (
    Array,
    Assign,
    Background,
    Case,
    Chain,
    Command,
    Function,
    Group,
    Heredoc,
    If,
    Literal,
    Loop,
    Raw,
    Redirect,
    Simple,
)

__all__ = ["read_script"]

_MAX_DEPTH = 40  # conditions, loops and groups inside one another
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
_REDIRECTS = {"<<<", "<<-", "<<", "<>", "<&", ">>", ">|", ">&", "<", ">", "&>", "&>>"}
_ENDS = {"then", "do", "done", "fi", "elif", "else", "esac", "}"}
_NAMED = re.compile(r"[A-Za-z_][\w.:-]*")


def read_script(text: str, lines: Lines, where: str, depth: int = 0) -> tuple[Command, ...]:
    """Return a script's commands.

    Args:
        text: the script.
        lines: the lines of the file that it stands in.
        where: how errors name the file.
        depth: how many scripts it stands in.

    Raises:
        InputError: with the line: a quote or brace that nothing closes; too large, too deep.
    """
    parser = _Parser(Lexer(text, lines, where, depth))
    commands: list[Command] = []
    while parser.here is not None:
        commands += parser.commands()
        if parser.here is not None:
            parser.advance()  # an end of something that nothing began
    return tuple(commands)


class _Parser:
    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.here = lexer.next()
        self.depth = 0

    def advance(self) -> None:
        self.here = self.lexer.next()

    @property
    def keyword(self) -> str:
        """The word that stands here as it would be a keyword; "" for anything else."""
        return (self.here.literal or "") if isinstance(self.here, Raw) else ""

    def commands(self) -> tuple[Command, ...]:
        """Return commands up to a keyword that ends some, a `)` or `;;`, or the end."""
        found: list[Command] = []
        self.depth += 1
        while self.here is not None:
            current = self.here
            if isinstance(current, Operator):
                if current in (")", ";;", ";&", ";;&"):
                    break
                if current == "(" or current in _REDIRECTS:
                    found.append(self.chain())
                    continue
                if current == "&" and found:
                    found[-1] = Background(found[-1])
                self.advance()
                continue
            if self.keyword in _ENDS:
                break
            if self.depth > _MAX_DEPTH:
                self.advance()
                continue
            found.append(self.chain())
        self.depth -= 1
        return tuple(found)

    def chain(self) -> Command:
        links: list[tuple[str, Command]] = [("", self.pipeline())]
        while isinstance(self.here, Operator) and self.here in ("&&", "||"):
            joint = str(self.here)
            self.advance()
            self.breaks()
            if self.here is None:
                break
            links.append((joint, self.pipeline()))
        return links[0][1] if len(links) == 1 else Chain(tuple(links))

    def pipeline(self) -> Command:
        while self.keyword in ("!", "time"):
            self.advance()
        parts = [self.command()]
        while isinstance(self.here, Operator) and self.here in ("|", "|&"):
            self.advance()
            self.breaks()
            if self.here is None:
                break
            parts.append(self.command())
        return parts[0] if len(parts) == 1 else Group(tuple(parts), (), apart=True)

    def breaks(self) -> None:
        while isinstance(self.here, Operator) and self.here == "\n":
            self.advance()

    def command(self) -> Command:
        word = self.keyword
        if isinstance(self.here, Operator) and self.here == "(":
            return self.parentheses()
        if word == "{":
            self.advance()
            body = self.commands()
            self.close("}")
            return Group(body, self.redirects(), apart=False)
        if word == "if":
            return self.condition()
        if word in ("while", "until"):
            self.advance()
            condition = self.commands()
            return self.loop("", condition)
        if word in ("for", "select"):
            return self.each()
        if word == "case":
            return self.case()
        if word == "function":
            self.advance()
            name = self.keyword
            self.advance()
            if isinstance(self.here, Operator) and self.here == "(":
                self.advance()
                self.close(")")
            return self.function(name)
        return self.simple()

    def parentheses(self) -> Command:
        self.advance()
        if isinstance(self.here, Operator) and self.here == "(":  # (( arithmetic ))
            level = 2
            self.advance()
            while self.here is not None and level:
                if isinstance(self.here, Operator):
                    level += (self.here == "(") - (self.here == ")")
                self.advance()
            return Simple((), (), (), self.lexer.line())
        body = self.commands()
        self.close(")")
        return Group(body, self.redirects(), apart=True)

    def close(self, word: str) -> None:
        if self.here is not None and word in (self.here, self.keyword):
            self.advance()

    def condition(self) -> If:
        branches: list[tuple[tuple[Command, ...], tuple[Command, ...]]] = []
        while self.keyword in ("if", "elif"):
            self.advance()
            test = self.commands()
            self.close("then")
            branches.append((test, self.commands()))
        if self.keyword == "else":
            self.advance()
            branches.append(((), self.commands()))
        self.close("fi")
        self.redirects()
        return If(tuple(branches))

    def loop(self, variable: str, condition: tuple[Command, ...]) -> Loop:
        self.close("do")
        body = self.commands()
        self.close("done")
        self.redirects()
        return Loop(variable, condition, body)

    def each(self) -> Loop:
        self.advance()
        variable = self.keyword
        while self.here is not None and self.keyword != "do":
            self.advance()
        return self.loop(variable, ())

    def case(self) -> Case:
        self.advance()
        word = self.here if isinstance(self.here, Raw) else Raw((), self.lexer.line())
        self.advance()
        self.breaks()
        self.close("in")
        arms: list[tuple[tuple[Raw, ...], tuple[Command, ...]]] = []
        while self.here is not None and self.keyword != "esac":
            patterns: list[Raw] = []
            while self.here is not None and self.here != ")" and self.keyword != "esac":
                if isinstance(self.here, Raw):
                    patterns.append(self.here)
                self.advance()
            self.close(")")
            body = self.commands()
            arms.append((tuple(patterns), body))
            while isinstance(self.here, Operator) and self.here in (";;", ";&", ";;&", "\n", ")"):
                self.advance()
            if self.keyword in _ENDS and self.keyword != "esac":
                self.advance()
        self.close("esac")
        self.redirects()
        return Case(word, tuple(arms))

    def function(self, name: str) -> Command:
        self.breaks()
        self.depth += 1
        if self.here is None or self.depth > _MAX_DEPTH:
            self.depth -= 1
            return Simple((), (), (), self.lexer.line())
        body = self.command()
        self.depth -= 1
        return Function(name, body.body if isinstance(body, Group) else (body,))

    def redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while isinstance(self.here, Operator) and self.here in _REDIRECTS:
            found.append(self.redirect())
        return tuple(found)

    def redirect(self) -> Redirect:
        operator = str(self.here)
        self.advance()
        target = self.here if isinstance(self.here, Raw) else None
        heredoc: list[Heredoc] = []
        if target is not None:
            if operator in ("<<", "<<-"):
                heredoc = self.lexer.expect(target, tabs=operator == "<<-")
            self.advance()
        return Redirect(operator, target, heredoc)

    def simple(self) -> Command:
        line = self.lexer.line()
        assigns: list[Assign] = []
        words: list[Raw] = []
        redirects: list[Redirect] = []
        while self.here is not None:
            current = self.here
            if isinstance(current, Operator):
                if current in _REDIRECTS:
                    redirects.append(self.redirect())
                    continue
                if current == "(" and len(words) == 1 and not assigns and self.keyless(words[0]):
                    self.advance()
                    self.close(")")
                    return self.function(words[0].literal or "")
                if self.within_test(words) and current in ("&&", "||", "(", ")", "<", ">", "\n"):
                    words.append(Raw((Literal(str(current), quoted=False),), self.lexer.line()))
                    self.advance()
                    continue
                break
            if not words and (assign := self.assign(current)) is not None:
                assigns.append(assign)
                continue
            words.append(current)
            self.advance()
            declares = words[0].literal in ("export", "declare", "local", "readonly", "typeset")
            while declares and isinstance(self.here, Raw):
                declared = self.assign(self.here)
                if declared is None:
                    break
                assigns.append(declared)
        line = words[0].line if words else line
        return Simple(tuple(assigns), tuple(words), tuple(redirects), line)

    def within_test(self, words: list[Raw]) -> bool:
        return bool(words) and words[0].literal == "[[" and words[-1].literal != "]]"

    def keyless(self, word: Raw) -> bool:
        return word.literal is not None and _NAMED.fullmatch(word.literal) is not None

    def assign(self, token: Raw) -> Assign | None:
        """Return the assignment that stands here, past it; None where it is a word."""
        first = token.parts[0] if token.parts else None
        if not isinstance(first, Literal) or first.quoted:
            return None
        found = _ASSIGN.match(first.text)
        if found is None:
            return None
        rest = first.text[found.end() :]
        parts = token.parts[1:] if not rest else (Literal(rest, quoted=False), *token.parts[1:])
        name = found[1] if not found[2] else ""  # one element of an array: not read
        begins = not parts and self.lexer.text[self.lexer.at : self.lexer.at + 1] == "("
        self.advance()
        if not begins:
            return Assign(name, found[3] == "+", Raw(parts, token.line, token.offset))
        self.advance()
        words: list[Raw] = []
        while self.here is not None and self.here != ")":
            if isinstance(self.here, Raw):
                words.append(self.here)
            self.advance()
        self.close(")")
        return Assign(name, found[3] == "+", Array(tuple(words)))
