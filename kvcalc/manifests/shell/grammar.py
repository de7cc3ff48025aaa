"""The commands of a script as a tree: lists, pipelines, conditions, loops, functions."""

from __future__ import annotations

import re

from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.lexer import Lexer, Operator
from kvcalc.manifests.shell.tree import (
    Array,
    Assign,
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
    while parser.token is not None:
        commands += parser.commands()
        if parser.token is not None:
            parser.advance()  # an end of something that nothing began
    return tuple(commands)


class _Parser:
    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.token = lexer.next()
        self.depth = 0

    def advance(self) -> None:
        self.token = self.lexer.next()

    @property
    def keyword(self) -> str:
        """The word that stands here as it would be a keyword; "" for anything else."""
        return (self.token.literal or "") if isinstance(self.token, Raw) else ""

    def commands(self) -> tuple[Command, ...]:
        """Return commands up to a keyword that ends some, a `)` or `;;`, or the end."""
        found: list[Command] = []
        self.depth += 1
        while self.token is not None:
            token = self.token
            if isinstance(token, Operator):
                if token in (")", ";;", ";&", ";;&"):
                    break
                if token == "(" or token in _REDIRECTS:
                    found.append(self.chain())
                    continue
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
        while isinstance(self.token, Operator) and self.token in ("&&", "||"):
            joint = str(self.token)
            self.advance()
            self.breaks()
            if self.token is None:
                break
            links.append((joint, self.pipeline()))
        return links[0][1] if len(links) == 1 else Chain(tuple(links))

    def pipeline(self) -> Command:
        while self.keyword in ("!", "time"):
            self.advance()
        parts = [self.command()]
        while isinstance(self.token, Operator) and self.token in ("|", "|&"):
            self.advance()
            self.breaks()
            if self.token is None:
                break
            parts.append(self.command())
        return parts[0] if len(parts) == 1 else Group(tuple(parts), (), apart=True)

    def breaks(self) -> None:
        while isinstance(self.token, Operator) and self.token == "\n":
            self.advance()

    def command(self) -> Command:
        word = self.keyword
        if isinstance(self.token, Operator) and self.token == "(":
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
            if isinstance(self.token, Operator) and self.token == "(":
                self.advance()
                self.close(")")
            return self.function(name)
        return self.simple()

    def parentheses(self) -> Command:
        self.advance()
        if isinstance(self.token, Operator) and self.token == "(":  # (( arithmetic ))
            level = 2
            self.advance()
            while self.token is not None and level:
                if isinstance(self.token, Operator):
                    level += (self.token == "(") - (self.token == ")")
                self.advance()
            return Simple((), (), (), self.lexer.line())
        body = self.commands()
        self.close(")")
        return Group(body, self.redirects(), apart=True)

    def close(self, word: str) -> None:
        if self.token is not None and (self.token == word or self.keyword == word):
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
        while self.token is not None and self.keyword != "do":
            self.advance()
        return self.loop(variable, ())

    def case(self) -> Case:
        self.advance()
        word = self.token if isinstance(self.token, Raw) else Raw((), self.lexer.line())
        self.advance()
        self.breaks()
        self.close("in")
        arms: list[tuple[tuple[Raw, ...], tuple[Command, ...]]] = []
        while self.token is not None and self.keyword != "esac":
            patterns: list[Raw] = []
            while self.token is not None and self.token != ")" and self.keyword != "esac":
                if isinstance(self.token, Raw):
                    patterns.append(self.token)
                self.advance()
            self.close(")")
            body = self.commands()
            arms.append((tuple(patterns), body))
            while isinstance(self.token, Operator) and self.token in (";;", ";&", ";;&", "\n", ")"):
                self.advance()
            if self.keyword in _ENDS and self.keyword != "esac":
                self.advance()
        self.close("esac")
        self.redirects()
        return Case(word, tuple(arms))

    def function(self, name: str) -> Command:
        self.breaks()
        self.depth += 1
        if self.token is None or self.depth > _MAX_DEPTH:
            self.depth -= 1
            return Simple((), (), (), self.lexer.line())
        body = self.command()
        self.depth -= 1
        return Function(name, body.body if isinstance(body, Group) else (body,))

    def redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while isinstance(self.token, Operator) and self.token in _REDIRECTS:
            found.append(self.redirect())
        return tuple(found)

    def redirect(self) -> Redirect:
        operator = str(self.token)
        self.advance()
        target = self.token if isinstance(self.token, Raw) else None
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
        while self.token is not None:
            token = self.token
            if isinstance(token, Operator):
                if token in _REDIRECTS:
                    redirects.append(self.redirect())
                    continue
                if token == "(" and len(words) == 1 and not assigns and self.keyless(words[0]):
                    self.advance()
                    self.close(")")
                    return self.function(words[0].literal or "")
                if self.within_test(words) and token in ("&&", "||", "(", ")", "<", ">", "\n"):
                    words.append(Raw((Literal(str(token), quoted=False),), self.lexer.line()))
                    self.advance()
                    continue
                break
            if not words and (assign := self.assign(token)) is not None:
                assigns.append(assign)
                continue
            words.append(token)
            self.advance()
            declares = words[0].literal in ("export", "declare", "local", "readonly", "typeset")
            while declares and isinstance(self.token, Raw):
                declared = self.assign(self.token)
                if declared is None:
                    break
                assigns.append(declared)
        redirects_now = tuple(redirects)
        if words:
            line = words[0].line
        return Simple(tuple(assigns), tuple(words), redirects_now, line)

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
        while self.token is not None and self.token != ")":
            if isinstance(self.token, Raw):
                words.append(self.token)
            self.advance()
        self.close(")")
        return Assign(name, found[3] == "+", Array(tuple(words)))
