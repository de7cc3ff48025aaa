"""What a container's image says: whose server it is, which release, what it starts by itself."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Image", "image_of", "table"]


class Image(NamedTuple):
    """An image.

    Attributes:
        program: a name of programs.PROGRAMS; None where the image is not known.
        version: of the engine, by the tag: a release, or the word for what is not released yet
            ("nightly"); None where the tag does not say it.
        starts: the command that the image runs by itself, before the words that are given; ()
            where it starts nothing.
        fork: of the engine, with flags of its own: "ik_llama.cpp"; "" for none.
        variables: the prefix of variables that become flags; `*` for all; "" for none.
        device: what it runs on, where that is no GPU: the resource that counts it.
        own_releases: the tag counts releases of the vendor's own, and nobody says which of the
            engine's it holds.
    """

    program: str | None = None
    version: str | None = None
    starts: tuple[str, ...] = ()
    fork: str = ""
    variables: str = ""
    device: str = ""
    own_releases: bool = False


class _Row(NamedTuple):
    """A row of images.tsv, which says what each column is."""

    part: str
    program: str
    starts: str
    tag: str
    fork: str
    variables: str
    device: str


_API_SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")
_NUMBER = r"(\d+\.\d+(?:\.\d+)?(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)?)"
_RELEASE = re.compile(
    r"(?:^|[^0-9.])v?(\d+\.\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)*)(?![0-9.])", re.ASCII
)
_LEADING = re.compile(r"v?(\d+\.\d+(?:\.\d+(?:\.?(?:post|rc|dev)\d+)?)?)(?!\d)", re.ASCII)
_BUILD = re.compile(r"(?:^|-)(b\d{4,6})(?=$|[^0-9])", re.ASCII)
_NAMED = re.compile(rf"vllm[-_]?v?{_NUMBER}|v?{_NUMBER}[-_+]gaudi", re.ASCII | re.IGNORECASE)
_UNRELEASED = re.compile(r"(?:^|[-_.])(nightly|main|master|dev|edge)(?=$|[-_.])", re.ASCII)
_SERVE_SINCE = (0, 11)
_LONGEST = 500


@cache
def table(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a table beside this module, without its comments and its head."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return tuple(tuple(row) for row in rows[1:])


def image_of(text: str | None) -> Image:
    """Return what an image's name says.

    >>> image_of("vllm/vllm-openai:v0.6.3").version
    '0.6.3'
    >>> image_of("ghcr.io/ggml-org/llama.cpp:server-cuda-b6341").version
    'b6341'
    >>> image_of("nvcr.io/nvidia/vllm:25.10-py3").version
    '0.10.2'
    """
    if not text or len(text) > _LONGEST:
        return Image()
    name, _, tag = text.split("@", 1)[0].rpartition(":")
    if not name or "/" in tag:  # no tag: the colon belongs to a port, or there is none
        name, tag = text.split("@", 1)[0], ""
    for row in map(_Row._make, table("images.tsv")):
        if re.search(row.part, name.lower()):
            version = _version(name.lower(), tag, row)
            own = version is None and row.tag in ("own", "below 1", "named")
            return Image(
                row.program,
                version,
                _starts(row, version, tag),
                row.fork,
                row.variables,
                row.device,
                own and re.search(r"\d\.\d", tag) is not None,
            )
    return Image()


def _starts(row: _Row, version: str | None, tag: str) -> tuple[str, ...]:
    """Return what an image runs by itself."""
    starts = tuple(row.starts.split())
    if row.starts == "api_server":
        return _API_SERVER
    if row.program == "llama-server" and not tag.startswith("server"):
        return ()  # full: a script that wants --server; light: llama-cli
    if row.program == "vllm" and starts and version is not None and version[0].isdigit():
        major, minor = (int(part) for part in version.split(".")[:2])
        return starts if (major, minor) >= _SERVE_SINCE else _API_SERVER
    return starts


def _version(name: str, tag: str, row: _Row) -> str | None:
    """Return the engine's release that a tag says."""
    if row.tag == "build":
        match = _BUILD.search(tag)
    elif row.tag == "leading":
        match = _LEADING.match(tag)
    elif row.tag in ("release", "below 1", "named"):
        match = _NAMED.search(tag)
        if match is None and row.tag != "named":
            match = _RELEASE.search(tag) or _UNRELEASED.search(tag)
    else:
        return _counted(name, tag) if row.tag == "own" else None
    found = None if match is None else next(each for each in match.groups() if each)
    if row.tag == "below 1" and found is not None and not found.startswith("0."):
        return None
    return found


def _counted(name: str, tag: str) -> str | None:
    """Return the engine's release in an image of a vendor that counts its own."""
    for image, begins, release, _ in table("releases.tsv"):
        if image in name and re.search(rf"(?:^|[-_v]){re.escape(begins)}(?!\d)", tag):
            return release
    return None
