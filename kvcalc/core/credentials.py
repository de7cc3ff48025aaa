"""What an address may hold beside the place: a user with a password, and signed queries."""

from __future__ import annotations

import re

__all__ = ["without_credentials"]

_USER = re.compile(r"([a-z][a-z0-9+.-]{0,30}://)[^\s/?#'\"]*@", re.IGNORECASE)
_QUERY = re.compile(r"([a-z][a-z0-9+.-]{0,30}://[^\s?'\"]*)\?[^\s'\"]+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Return a text in which no address holds a user, a password or a query.

    >>> without_credentials("https://me:word@host/model?sig=abc is not known")
    'https://***@host/model?*** is not known'
    """
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text))
