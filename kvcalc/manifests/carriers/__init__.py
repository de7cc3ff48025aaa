"""Files that people deploy -> the servers that they start: one short module a carrier."""

from __future__ import annotations
