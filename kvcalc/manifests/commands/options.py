"""A command's words, told apart into options, their values and what stands alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvcalc.manifests.commands.flags import Flag, Grammar, Takes, number_of
from kvcalc.manifests.commands.spelling import Speller, shown
from kvcalc.manifests.found import Finding, Level, Word

__all__ = ["Given", "Split", "split"]

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)
_TRUTH = {"true": True, "false": False}


class Given(NamedTuple):
    """An option as it was given.

    Attributes:
        name: of the option.
        written: as it stands in the command.
        words: its values; one that stands for the option where it takes none.
        on: what it says where it takes no word.
        path: keys behind the dots of a JSON option.
    """

    name: str
    written: str
    words: tuple[Word, ...]
    on: bool = True
    path: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        """The value, or where the option stands."""
        return self.words[0]


class Split(NamedTuple):
    """What a command says.

    Attributes:
        given: options in the order of the words.
        alone: words that belong to no option.
        passed: words that were taken for values of options that nobody knows.
        findings: what is wrong.
    """

    given: list[Given]
    alone: list[Word]
    passed: list[Word]
    findings: list[Finding]


def split(words: Sequence[Word], grammar: Grammar, version: str | None) -> Split:
    """Return what the words say to a program.

    Args:
        words: without the program.
        grammar: of the program.
        version: of the program; None where it is not known: the newest is taken.
    """
    return _Splitter(words, grammar, version).run()


class _Splitter:
    def __init__(self, words: Sequence[Word], grammar: Grammar, version: str | None) -> None:
        self.words = words
        self.grammar = grammar
        self.version = version
        self.at = 0
        self.found = Split([], [], [], [])
        self.speller = Speller(grammar, version, self.found.findings)

    def run(self) -> Split:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.text == "--":
                self.found.alone.extend(self.words[self.at :])
                break
            if not _is_flag(word.text):
                self.found.alone.append(word)
            else:
                self._option(word)
        self._repeated()
        return self.found

    def _option(self, word: Word) -> None:
        name, equals, value = word.text.partition("=")
        if any(c.isspace() for c in name):
            first = name.split()[0]
            if first not in self.grammar.flags:
                first = shown(word, first)
            self._find(
                "blank-in-flag",
                "error",
                f"{first} and its value are one word, which {self.grammar.engine} does not know",
                f"make them two words, or write {first}=VALUE",
                word,
            )
            return
        spelled, _, keys = name.partition(".") if self.grammar.dotted else (name, "", "")
        found = self.speller.look_up(word, spelled)
        if found is None:
            if not equals and self._next_is_value():
                self.found.passed.append(self._next())
            return
        flag, on, written = found
        if equals and not self.grammar.equals:
            self._find(
                "equals-form",
                "error",
                f"{self.grammar.engine} does not read {written}=VALUE",
                f"write {written} and its value as two words",
                word,
            )
        inline = word._replace(text=value) if equals else None
        path = tuple(key.rstrip("+") for key in keys.split(".")) if keys else ()
        self._take(flag, on, written, word, inline, path)

    def _take(
        self,
        flag: Flag,
        on: bool,
        written: str,
        word: Word,
        inline: Word | None,
        path: tuple[str, ...],
    ) -> None:
        """Take the words of an option."""
        takes: Takes = "one" if path else flag.takes
        if takes in ("switch", "pair"):
            given = Given(flag.name, written, (word,), self._switched(on, written, word, inline))
        elif takes == "many":
            many = [inline] if inline is not None else []
            while inline is None and self._next_is_value():
                many.append(self._next())
            if not many:
                self._wants_value(written, word)
                return
            given = Given(flag.name, written, tuple(many))
        elif inline is not None:
            given = Given(flag.name, written, (inline,), path=path)
        elif self._next_is_value(greedy=self.grammar.greedy and takes != "maybe"):
            given = Given(flag.name, written, (self._next(),), path=path)
        elif takes == "maybe":
            given = Given(flag.name, written, (word,))
        else:
            self._wants_value(written, word)
            return
        self.found.given.append(given)

    def _wants_value(self, written: str, word: Word) -> None:
        self._find("bad-value", "error", f"{written} has no value", f"write {written} VALUE", word)

    def _switched(self, on: bool, written: str, word: Word, inline: Word | None) -> bool:
        """Return what a switch says; a value after it, which it does not take, is told."""
        value = inline
        if value is None and self.at < len(self.words):
            value = self.words[self.at]
            if value.text.lower() not in _TRUTH:
                return on
            self.at += 1
        if value is None:
            return on
        said = _TRUTH.get(value.text.lower(), True)
        number, since = number_of(self.version), number_of("0.8.0")
        if self.grammar.engine == "vLLM" and number and since and number < since:
            return on if said else not on  # 0.6 and 0.7 took a value for some
        away = self._opposite(written)
        cure = written if said else f"write {away}" if away else "leave it out"
        self._find(
            "boolean-value",
            "error",
            f"{written} takes no value",
            cure if cure != written else f"write {written} alone",
            word,
        )
        return on if said else not on

    def _opposite(self, written: str) -> str | None:
        flag, on = self.grammar.flags.get(written, (None, True))
        for spelling, (other, says) in self.grammar.flags.items():
            if other is flag and says is not on:
                return spelling
        return None

    def _repeated(self) -> None:
        """Tell options that stand twice in one file."""
        seen: dict[tuple[str, str], Given] = {}
        takes = {flag.name: flag.takes for flag, _ in self.grammar.flags.values()}
        for given in self.found.given:
            key = (given.name, given.word.file)
            if key in seen and not given.path and takes.get(given.name) != "each":
                self._find(
                    "repeated-flag",
                    "warning",
                    f"{given.written} stands more than once: the last one counts",
                    "leave one of them",
                    given.word,
                )
            seen[key] = given

    def _next_is_value(self, *, greedy: bool = False) -> bool:
        return self.at < len(self.words) and (greedy or not _is_flag(self.words[self.at].text))

    def _next(self) -> Word:
        self.at += 1
        return self.words[self.at - 1]

    def _find(self, code: str, level: Level, message: str, cure: str, word: Word) -> None:
        self.found.findings.append(Finding(code, level, message, cure, word.line, word.file))


def _is_flag(text: str) -> bool:
    """Whether a word is an option: dashes in front, and no negative number.

    >>> _is_flag("--tp"), _is_flag("-1"), _is_flag("-")
    (True, False, False)
    """
    return len(text) > 1 and text[0] == "-" and not _NEGATIVE.fullmatch(text)
