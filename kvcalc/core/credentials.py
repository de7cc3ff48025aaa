"""What gives access and may stand in any text: in addresses, behind keys and flags, or by itself.

A mask too many costs a word of a log; one too few is a key in a public issue. Every expression is
bounded and begins with letters, so that the time is linear in the text.
"""

from __future__ import annotations

import re
from functools import cache

__all__ = ["without_credentials"]

_MASK = "***"

_ADDRESS = re.compile(r"://[^ \t\r\n'\"]+")
_USER = re.compile(r"[^/?#@]*@|[^/?#@:]*:(?!\d{1,5}(?:[/?#]|$))[^@]*(?:@|…$)")
"""A user with a password, which may hold a `/`; or what is left of one that was cut."""

_KEY = (
    r"(?:api[_-]?key|secret|passw(?:or)?d|passphrase|private[_-]?key|access[_-]?key"
    r"|(?:hf|hub|auth|access|api|bearer|session|refresh|client|admin|id|github|gitlab|wandb)"
    r"[_-]?token(?!iz)|authorization)"
)
_IS = r"\\?['\"]?[ \t]{0,4}[:=][ \t]{0,4}"
_VALUE = (
    r"(?!(?:None|null|true|false|VALUE|\*\*\*)\b)(?:\[[^\]\n]{0,2000}\]?|\\?\"[^\"\n]{0,2000}\"?"
    r"|'[^'\n]{0,2000}'?|[^\s,;&'\"(){}\[\]]{1,2000})"
)
_SPACE = r"['\"]?,?[ \t]{1,4}"
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?(?![\w.])"
"""What --bytes-per-token and its like are followed by."""
_ANY_CASE = re.IGNORECASE
_MAY_HOLD = re.compile(
    rf"(?i:://|{_KEY}|cookie|token(?:\\?['\"]|=)|--[a-z-]{{0,40}}?token|-pass|-hft|xox"
    rf"|(?:bearer|basic)[ \t]|(?:hf|gh.|pat|sk|glpat|nvapi)[_-])|(?:TOKEN|PASS|PWD|KEY|AUTH){_IS}"
    r"|AKIA|ASIA|eyJ|AIza"
)
"""What one of the expressions below begins with; no text that merely speaks of tokens."""


@cache
def _held() -> tuple[re.Pattern[str], ...]:
    """Return what stands before a secret, in a group, and the secret.

    Keys, variables, flags, known forms. Few texts hold any: a start does not wait for these.
    """
    return (
        re.compile(
            rf"({_KEY}[\w-]{{0,40}}{_IS}(?:(?:bearer|basic|token)[ ]{{1,4}})?){_VALUE}", _ANY_CASE
        ),
        re.compile(rf"(cookie{_IS})[^\n'\"]{{1,2000}}", _ANY_CASE),
        re.compile(rf"((?<![\w#-])token(?:\\?['\"][ ]?:[ ]?|=)){_VALUE}", _ANY_CASE),
        re.compile(rf"((?:(?<=_)|(?<![\w-]))(?:TOKEN|PASS|PWD|KEY|AUTH){_IS}){_VALUE}"),
        re.compile(
            rf"((?:--[a-z-]{{0,40}}?(?:{_KEY}[a-z-]{{0,40}}|-pass(?![a-z-]))|-hft){_SPACE})"
            rf"(?!-){_VALUE}",
            _ANY_CASE,
        ),
        re.compile(
            rf"(--[a-z-]{{0,40}}?(?<![a-z])token(?![a-z-]){_SPACE})(?!-|{_NUMBER}){_VALUE}",
            _ANY_CASE,
        ),
        re.compile(r"(\b(?:bearer|basic)[ \t]{1,4})[\w.~+/=-]{8,2000}", _ANY_CASE),
        re.compile(
            r"()(?<![A-Za-z0-9])(?:hf_(?:[A-Za-z0-9]{20,200}|(?=[a-z]{0,40}[A-Z0-9])[A-Za-z0-9]{8,200})"
            r"|sk-[\w-]{16,200}|gh[opsur]_[A-Za-z0-9]{16,200}|github_pat_\w{16,200}|glpat-[\w-]{16,200}"
            r"|xox[abprs]-[\w-]{10,200}|nvapi-[\w-]{16,200}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,60}"
            r"|eyJ[\w-]{10,2000}\.[\w-]{10,2000}(?:\.[\w-]{0,2000})?)"
        ),
    )


def without_credentials(text: str) -> str:
    """Return a text in which nothing gives access to anything.

    >>> without_credentials("https://me:word@host/model?sig=abc is not known")
    'https://***@host/model?*** is not known'
    >>> without_credentials("args: {'api_key': ['word'], 'model': 'm'}, HF_TOKEN=word")
    "args: {'api_key': ***, 'model': 'm'}, HF_TOKEN=***"
    """
    if not _MAY_HOLD.search(text):
        return text
    if "://" in text:
        text = _ADDRESS.sub(lambda match: _place(match[0]), text)
    for pattern in _held():
        text = pattern.sub(rf"\1{_MASK}", text)
    return text


def _place(address: str) -> str:
    """Return an address, from its `://` on, without what it gives access with."""
    before, _, inner = address[3:].partition("://")  # of a proxy that has another in its path
    before = _USER.sub(f"{_MASK}@", before, count=1) if _USER.match(before) else before
    place, mark, _ = before.partition("?")
    if mark:
        return f"://{place}?{_MASK}"
    place, mark, rest = before.partition("#")
    if "=" in rest:
        return f"://{place}#{_MASK}"
    return f"://{before}" + (_place(f"://{inner}") if inner else "")
