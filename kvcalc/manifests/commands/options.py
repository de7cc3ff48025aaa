"""A command's words, told apart into options, their values and what stands alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvcalc.core.errors import nearest
from kvcalc.manifests.commands.flags import Flag, Gone, Grammar, Takes, number_of
from kvcalc.manifests.found import Finding, Level, Word
from kvcalc.models.text import printable

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


# Which option a spelling stands for: abbreviated, of an older release, or of none at all.

Found = tuple[Flag, bool, str]
"""An option, what it says where it takes no word, and how it was written."""
_ALIKE = (
    ("--tensor-parallel-size", "--tp-size", "--tp_size", "--tp", "-tp", "--num-shard"),
    ("--pipeline-parallel-size", "--pp-size", "--pp_size", "--pp", "-pp"),
    ("--data-parallel-size", "--dp-size", "--dp_size", "--dp", "-dp"),
    (
        *("--max-model-len", "--context-length", "--session-len", "--max_seq_len", "--ctx-size"),
        *("--max-total-tokens", "-c"),
    ),
    ("--max-num-seqs", "--max-running-requests", "--max_batch_size", "--max-batch-size"),
    ("--gpu-memory-utilization", "--mem-fraction-static", "--cache-max-entry-count"),
)
"""What engines call the same, long names first."""
_GLUED = re.compile(r"(-{1,2}[a-z][a-z-]*?)(\d+)", re.ASCII)
_MOST_NAMED = 60
_MOST_UNKNOWN = 30
_LEAST_LETTERS = 4
_MOST_LISTED = 4


class Speller:
    """Looks options up, and tells what is wrong with how they are spelled."""

    def __init__(self, grammar: Grammar, version: str | None, findings: list[Finding]) -> None:
        self.grammar = grammar
        self.version = version
        self._findings = findings
        self._unknown_ones = 0

    def look_up(self, word: Word, spelled: str) -> Found | None:
        """Return the option of that spelling; what is wrong with it is told."""
        folded = self._folded(spelled)
        gone = self.grammar.gone.get(folded)
        if gone is not None:
            self._gone(word, folded, gone)
            return gone.flag, True, folded
        exact = self.grammar.flags.get(folded)
        if exact is not None:
            return (*exact, folded)
        if self.grammar.abbreviates and folded.startswith("--"):
            return self._abbreviated(word, folded)
        self._unknown(word, spelled)
        return None

    def _folded(self, spelled: str) -> str:
        folds = self.grammar.folds and spelled.startswith("--")
        return spelled.replace("_", "-") if folds else spelled

    def _abbreviated(self, word: Word, start: str) -> Found | None:
        tried = len(start) >= _LEAST_LETTERS and self._unknown_ones <= _MOST_UNKNOWN
        matches = [name for name in self.grammar.flags if tried and name.startswith(start)]
        meant = {self.grammar.flags[name] for name in matches}
        if not meant:
            self._unknown(word, start)
            return None
        if len(meant) == 1:
            whole = matches[0]
            if start not in self.grammar.usual:
                self._find(
                    "abbreviated-flag",
                    "note",
                    f"{start} is the beginning of {whole} alone, and read as it",
                    f"write {whole}",
                    word,
                )
            return (*meant.pop(), whole)
        self._unknown_ones += 1
        whole = self.grammar.meant.get(start, "")
        some = ", ".join(matches[:_MOST_LISTED]) + (", ..." if len(matches) > _MOST_LISTED else "")
        number, newest = number_of(self.version), number_of(self.grammar.newest)
        older = number is not None and newest is not None and number < newest
        self._find(
            "ambiguous-flag",
            "warning" if older and whole else "error",
            f"{start} is the beginning of {some}: {self.grammar.engine}"
            f" {self.grammar.newest} refuses it",
            f"write {whole}" if whole else "write the whole flag",
            word,
        )
        return (*self.grammar.flags[whole], whole) if whole else None

    def _unknown(self, word: Word, spelled: str) -> None:
        self._unknown_ones += 1
        name = shown(word, spelled)
        engine = f"{self.grammar.engine} {self.grammar.newest}"
        self._find(
            "unknown-flag", "warning", f"{engine} has no flag {name}", self._cure(spelled), word
        )

    def _cure(self, spelled: str) -> str:
        """Return what to write instead of an option that there is not."""
        for start, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
            opposite = other + spelled.removeprefix(start)
            if spelled.startswith(start) and opposite in self.grammar.flags:
                return f"leave it out: there is {opposite} alone"
        meant = self._meant(spelled)
        if meant:
            return f"write {meant}"
        near: list[str] = []
        if self._unknown_ones <= _MOST_UNKNOWN:  # to look for near names takes time
            known = [name for name in self.grammar.flags if name.startswith("--")]
            longer = [
                name
                for name in known
                if len(spelled) >= _LEAST_LETTERS and name.startswith(spelled)
            ]
            near = [min(longer, key=len)] if longer else nearest(spelled, known, 1)
        return f"write {near[0]} if that is meant" if near else "leave it out"

    def _meant(self, spelled: str) -> str | None:
        """Return what another engine's flag is called here; a value behind a flag is set apart."""
        flags = self.grammar.flags
        alike = next((names for names in _ALIKE if spelled in names), ())
        found = next((name for name in alike if name in flags), None)
        if found is None and (glued := _GLUED.fullmatch(spelled)) and glued[1] in flags:
            found = f"{glued[1]} {glued[2]}"
        short = flags.get(spelled[1:]) if spelled.startswith("--") else None
        return short[0].written if found is None and short is not None else found

    def _still(self, gone: Gone) -> bool:
        """Whether the release that is started has an option that later ones have not."""
        number, last = number_of(self.version), number_of(gone.last)
        return number is not None and last is not None and number <= last

    def _gone(self, word: Word, spelled: str, gone: Gone) -> None:
        if self._still(gone):
            return
        number, first = number_of(self.version), number_of(gone.first)
        sure = number is not None and first is not None and number >= first
        when = f"since {self.grammar.engine} {gone.first}" if gone.first else "any more"
        last = f" ({gone.last} still had it)" if gone.last else ""
        self._find(
            "renamed-flag" if gone.renamed else "removed-flag",
            "error" if sure else "warning",
            f"there is no {spelled} {when}{last}",
            f"write {gone.now}" if gone.renamed else gone.now or "leave it out",
            word,
        )

    def _find(self, code: str, level: Level, message: str, cure: str, word: Word) -> None:
        self._findings.append(Finding(code, level, message, cure, word.line, word.file))


def shown(word: Word, text: str) -> str:
    """Return an option as a message may name it: not what came out of a variable.

    Args:
        word: that it stands in.
        text: the option itself.
    """
    if word.variables:
        return word.shown[:_MOST_NAMED]
    name = printable(text)
    return name if len(name) <= _MOST_NAMED else name[: _MOST_NAMED - 1] + "…"
