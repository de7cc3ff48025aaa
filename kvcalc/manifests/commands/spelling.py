"""Which option a spelling stands for: abbreviated, of an older release, or of none at all."""

from __future__ import annotations

import re

from kvcalc.core.errors import nearest
from kvcalc.manifests.commands.flags import Flag, Gone, Grammar, number_of
from kvcalc.manifests.found import Finding, Level, Word
from kvcalc.models.text import printable

__all__ = ["Found", "Speller", "shown"]

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
