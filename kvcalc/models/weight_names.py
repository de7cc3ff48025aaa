"""The format of weights by what a checkpoint is called, where nothing in it says so.

A name is an assumption: it is read only where no flag, no config and no file of the checkpoint says
what its weights are in, and whoever takes it says so. Patterns stand in the table beside this
module, the first that fits counts. What they stand for is llm-compressor's, AutoAWQ's, GPTQModel's,
ModelOpt's, MLX's and llama.cpp's own way to name what they make.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from kvcalc.core.errors import UnknownNameError
from kvcalc.core.tables import read_table
from kvcalc.weights.formats import weight_width

__all__ = ["ByName", "format_of_name", "plain_name"]

_EDGE = r"(?:^|(?<=[-_. :/@]))"
_END = r"(?=$|[-_. :/@])"
_GGML = re.compile(
    rf"{_EDGE}(?P<ud>ud-)?(?P<type>i?q[1-8](?:_(?:[01]|k|nl|xxs|xs|s|m|l|xl))*|tq[12]_0){_END}"
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_SNAPSHOT = re.compile(r"(?:^|/)models--([^/]+)(?:/snapshots/[0-9a-f]{7,40})?/?$")
_MOUNTS = frozenset(["model", "models", "weights", "target", "mnt", "data", "checkpoint", "ckpt"])
"""Names of folders that name no model."""
_MLX = ("mlx-community/", "lmstudio-community/")
_OLLAMA = re.compile(r"[a-z0-9._-]+:(?:(?:e|\d+x)?\d+(?:\.\d+)?[bm]|latest)[a-z0-9._-]*")
_TAGLESS = re.compile(r"[^/]+/[^/:]+-gguf")
_USUAL = "q4_k_m"
_NOT_GGML = re.compile("unquantized|dequantized|mxfp4")


class ByName(NamedTuple):
    """What a name says of the weights.

    Attributes:
        format: as `weights.formats` knows it; None: 16 bits, as the model's own config says.
        word: of the name, that says so.
        usual: the name has no word for it, and this is what its kind has as a rule.
    """

    format: str | None
    word: str
    usual: bool = False

    def assumption(self) -> str:
        """Return the line that says what was taken for granted."""
        what = self.format or "16 bits"
        if self.usual:
            return f"weights: {what}, which {self.word} is as a rule; its file would make sure"
        source = "file" if weight_width(self.format or "bfloat16").mixture else "config.json"
        return f"weights: {what}, by its name ({self.word}); its {source} would make sure"


def format_of_name(name: str) -> ByName | None:
    """Return what a repository, a path, a file or a tag says of its weights; None for nothing.

    >>> format_of_name("/models/Qwen2.5-7B-Instruct-AWQ").format
    'awq'
    >>> format_of_name("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL").format
    'ud-q4_k_xl'
    >>> format_of_name("google/gemma-3-27b-it-qat-q4_0-unquantized").format is None
    True
    >>> format_of_name("meta-llama/Llama-3.1-8B-Instruct") is None
    True
    """
    folded = name.strip().lower().replace("\\", "/").rstrip("/")
    for text in _said(folded):
        found = _by_pattern(text, mlx=folded.startswith(_MLX) or "mlx" in text)
        if found is not None:
            return found
    if _TAGLESS.fullmatch(folded):
        return ByName(_USUAL, "a repository of GGUF files without a tag", usual=True)
    if _OLLAMA.fullmatch(folded):
        return ByName(_USUAL, "a tag of ollama without a format", usual=True)
    return None


def plain_name(name: str) -> str:
    """Return the last part of a name without what is said of its weights.

    >>> plain_name("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic")
    'Meta-Llama-3.1-8B-Instruct'
    """
    short = name.rstrip("/").replace("\\", "/").rpartition("/")[2]
    short = _SHARD.sub("", re.sub(r"\.gguf$", "", short, flags=re.IGNORECASE))
    while (cut := _ending(short.lower())) is not None:
        short = short[:cut]
    return short


def _said(folded: str) -> list[str]:
    """Return the parts of a name that may say something, the most telling first."""
    snapshot = _SNAPSHOT.search(folded)
    if snapshot is not None:
        return [snapshot[1].rpartition("--")[2]]
    parts = [part for part in re.split(r"/|://", folded) if part and part not in _MOUNTS]
    if not parts:
        return []
    last = _SHARD.sub("", parts[-1].removesuffix(".gguf"))
    if not folded.startswith(("/", ".", "~")) and "://" not in folded:
        return [last]  # a repository: its publisher's name says nothing
    return [last, *parts[-2:-1]]


def _by_pattern(text: str, *, mlx: bool) -> ByName | None:
    ggml = _GGML.search(text)
    if ggml is not None and not _NOT_GGML.search(text):
        found = f"{ggml['ud'] or ''}{ggml['type']}"
        try:
            weight_width(found)
        except UnknownNameError:
            return None
        return ByName(found, ggml[0])
    for pattern, named in _patterns():
        match = pattern.search(text)
        if match is None:
            continue
        bits = next((group for group in match.groups() if group), "")
        found = named.format(bits)
        if mlx and (of_integers := re.fullmatch(r"int(\d)(?:-grouped)?", found)):
            found = f"mlx-{of_integers[1]}bit"
        try:
            weight_width(found or "bfloat16")
        except UnknownNameError:
            continue
        return ByName(found or None, match[0])
    return None


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    heads, *table = read_table("kvcalc.models", "weight_names.tsv")
    rows = [dict(zip(heads, cells, strict=True)) for cells in table]
    return tuple((re.compile(f"{_EDGE}(?:{r['pattern']}){_END}"), r["format"]) for r in rows)


_NO_WEIGHTS = ("gguf", "mlx", "unsloth", "quantized", "dynamic", "qat", "ct", "hf")
"""Endings that tell of a file or of who made it, and no format."""


def _ending(folded: str) -> int | None:
    """Return where the last word about weights begins; None where the name ends otherwise."""
    for word in _NO_WEIGHTS:
        if folded.endswith((f"-{word}", f".{word}", f"_{word}")):
            return len(folded) - len(word) - 1
    places = [
        match.start()
        for pattern in (_GGML, *(one for one, _ in _patterns()))
        for match in pattern.finditer(folded)
        if match.end() == len(folded) and match.start()
    ]
    return min(places) - 1 if places else None
