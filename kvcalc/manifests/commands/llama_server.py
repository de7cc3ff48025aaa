"""`llama-server`, by its words and by the variables LLAMA_ARG_*.

llama.cpp common/arg.cpp (common_params_parse_ex) at b11434 to b11549.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.errors import nearest, printable
from kvcalc.engines.llamacpp.args import full_name
from kvcalc.engines.llamacpp.flags import REFUSED
from kvcalc.manifests.commands.flags import number_of
from kvcalc.manifests.commands.llama_flags import GRAMMAR, VARIABLE_NAMES, VARIABLES
from kvcalc.manifests.commands.llama_rules import FLASH_WORDS, ON, QUIET, RULES
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.found import Word

__all__ = ["read", "variables"]

_PREFIX = "LLAMA_ARG_"
_BARE_UNTIL, _BARE_GONE = 6303, 6341
"""Builds on either side of the change by which -fa wants a value."""


def read(reading: Reading, start: Start) -> None:
    """Read a command of llama-server's."""
    words = start.words
    if words and words[0].text in ("--server", "-s") and start.how == "image":
        words = words[1:]  # the script of the full image
    variables(reading)
    found = split(_flash(reading, words), GRAMMAR, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        _option(reading, given)
    reading.stray(found.alone, "llama-server", "write the flag that it is a value of")
    _speculation(reading)


def _option(reading: Reading, given: Given) -> None:
    name = full_name(given.name)
    rule = RULES.get(name)
    if rule is not None:
        rule(reading, given)
    if name in REFUSED and name not in QUIET and given.on:
        reading.not_modelled(given.written, given.word, REFUSED[name])


def _speculation(reading: Reading) -> None:
    """Leave the number of tokens out where nothing proposes any."""
    given = reading.settings.get("num_speculative_tokens")
    drafts = {"speculative_method", "draft_model"} & reading.settings.keys()
    if given is not None and not drafts:
        reading.settings["num_speculative_tokens"] = given._replace(kind="other")


def _flash(reading: Reading, words: Sequence[Word]) -> list[Word]:
    """Return words with a value for each bare -fa, which builds before b6341 took so."""
    found: list[Word] = []
    for at, word in enumerate(words):
        found.append(word)
        if word.text not in ("-fa", "--flash-attn", "--flash_attn"):
            continue
        after = words[at + 1] if at + 1 < len(words) else None
        if after is None or not (after.text.lower() in FLASH_WORDS or after.unresolved):
            found.append(word._replace(text="on"))
            _bare(reading, word, after)
    return found


def _bare(reading: Reading, word: Word, after: Word | None) -> None:
    build = (number_of(reading.version) or (_BARE_GONE,))[0]
    if build <= _BARE_UNTIL or reading.fork:
        return
    taken = ""
    if after is not None:
        shown = "the next word" if after.variables else printable(after.text)[:40]
        taken = f": it takes {shown} for it"
    reading.find(
        "bad-value",
        "error" if build >= _BARE_GONE else "warning",
        f"{word.text} wants a value since about b{_BARE_GONE}{taken}",
        f"write {word.text} on",
        word,
    )


def variables(reading: Reading, skip: frozenset[str] = frozenset()) -> None:
    """Read LLAMA_ARG_*, over which the command wins.

    Args:
        reading: takes what they say.
        skip: options that somebody else gives, in the engine's spelling.
    """
    for name, word in reading.env.items():
        if not name.startswith(_PREFIX):
            continue
        short = name.removeprefix(_PREFIX).lower()
        off = short.startswith("no_") and short not in VARIABLE_NAMES
        short = short.removeprefix("no_") if off else short
        own = full_name(VARIABLES.get(short, short))
        if short not in VARIABLE_NAMES:
            _unread(reading, name, word)
        elif own not in skip and (off or word.text.strip()):
            on = not off and word.text.strip().lower() in ON
            _option(reading, Given(own, name, (word,), on))


def _unread(reading: Reading, name: str, word: Word) -> None:
    near = nearest(name, [_PREFIX + known.upper() for known in VARIABLE_NAMES], 1)
    reading.find(
        "ignored-variable",
        "warning",
        f"llama-server {GRAMMAR.newest} does not read {printable(name)[:60]}",
        f"write {near[0]} if that is meant" if near else "leave it out",
        word,
    )
