"""What came out of variables is told by their names: nobody knows which of them hold secrets.

A message may hold a text in another form than the file: in lower case, without blanks, escaped, or
cut. Words that kvcalc knows (fp8, bfloat16) are no secrets and stay, so that what they mean stays
readable. Addresses are shown without users, passwords and queries, wherever they came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import msgspec

from kvcalc.answers.assertions import Check
from kvcalc.core.credentials import without_credentials
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import KvcalcError, printable
from kvcalc.manifests.found import Server
from kvcalc.weights.formats import weight_width

__all__ = ["hide"]

_HEAD = 24
"""Characters of a long text by which it is known where it was cut."""

_LEAST = 3
"""Characters of a text below which it is a part of too many words."""

_PLAIN = ("auto", "none", "true", "false", "float16", "bfloat16", "float32", "half", "bf16", "fp16")
_NAMES = ("draft_model", "speculative_draft_model_path", "revision")
"""Settings that are names and no vocabulary, known or not."""


def hide(server: Server | None) -> Callable[[Check], Check]:
    """Return what makes a result fit to be shown.

    Texts that variables hold are replaced by the variables' names, addresses lose what gives
    access to them.
    """
    told = _told(server)

    def hidden(check: Check) -> Check:
        return msgspec.structs.replace(
            check,
            message=told(check.message),
            detail=told(check.detail),
            hint=told(check.hint),
        )

    return hidden


def _told(server: Server | None) -> Callable[[str], str]:
    texts: dict[str, str] = {}
    for text, name in _texts(server) if server is not None else ():
        for form in _forms(text):
            texts.setdefault(form, name)
        texts.setdefault(name.lower(), name)  # engines fold what they are given
    if not texts:
        return without_credentials
    longest_first = sorted(texts, key=len, reverse=True)
    words = "|".join(
        re.escape(form) + (r"[^\s'\",;]*" if len(form) == _HEAD else "") for form in longest_first
    )
    held = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)

    def name_of(match: re.Match[str]) -> str:
        text = match[0].lower()
        return texts.get(text) or texts[text[:_HEAD]]

    return lambda text: without_credentials(held.sub(name_of, text))


def _forms(text: str) -> Iterator[str]:
    """Yield how a text may stand in a message, in lower case."""
    bare = text.strip()
    for form in (text, bare, printable(bare), bare.replace("-", "_"), bare.replace("_", "-")):
        if len(form) >= _LEAST:
            yield form.lower()
    if len(printable(bare)) > _HEAD:
        yield printable(bare)[:_HEAD].lower()


def _texts(server: Server) -> Iterator[tuple[str, str]]:
    """Yield each text that a variable held, and how it is told."""
    for setting in (server.model, *server.settings):
        if setting is None or not setting.variables or not isinstance(setting.value, str):
            continue
        name = setting is server.model or setting.name in _NAMES
        if name or not _is_vocabulary(setting.value):
            yield setting.value, str(setting.shown)
    gpu = server.invocation.gpu
    for word in (gpu.product, *gpu.choices):
        if word is not None and word.variables and word.text:
            yield word.text, word.shown


@cache
def _is_vocabulary(text: str) -> bool:
    """Whether a text is a word that kvcalc knows: a dtype, a format of weights, a number."""
    word = text.strip().lower()
    if word in _PLAIN or word.replace(".", "").isdigit():
        return True
    for known in (cache_dtype, weight_width):
        try:
            known(word)
        except KvcalcError:
            continue
        return True
    return False
