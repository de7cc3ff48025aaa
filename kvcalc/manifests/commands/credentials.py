"""Addresses without what opens them: a user's name and password, a signed query."""

from __future__ import annotations

import re

__all__ = ["without_credentials"]

_USER = re.compile(r"(?<=://)[^/\s?#@]*@")
_QUERY = re.compile(r"(\w://[^\s?#]*)[?#]\S*")


def without_credentials(text: str) -> str:
    """Return a text whose addresses hold no user, password or query.

    >>> without_credentials("https://user:password@host/model?token=x")
    'https://host/model'
    """
    return _QUERY.sub(r"\1", _USER.sub("", text)) if "://" in text else text
