"""Shell scripts, and the files that they write: units, Compose files, manifests, other scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

from kvcalc.core.errors import InputError
from kvcalc.manifests.found import Attached, Invocation
from kvcalc.manifests.launches import Launch, Place, of_script
from kvcalc.manifests.lines import Lines

__all__ = ["MENTIONS", "of_launches", "of_shell"]

MENTIONS = re.compile(
    r"(?i)vllm|sglang|llama-server|llama\.cpp|llamafile|koboldcpp|trtllm|tensorrt|lmdeploy|ollama|"
    r"text-generation|huggingfaceserver|dynamo\.|llama_cpp|/server\b"
)
"""What a script that starts a server of a known engine mentions."""

_WRITTEN = re.compile(r"(?i)\.(ya?ml|service|container|conf|sh|py)$|(docker|container|model)file$")
_APPLIED = re.compile(r"(kubectl|oc|docker|podman|docker-compose|helm)$")

Inner = Callable[[str, Attached], list[Invocation]]
"""Reads a file that a script writes: its path, and itself."""


def of_shell(text: str, place: Place, inner: Inner, first: int = 1) -> list[Invocation]:
    """Return the servers that a script starts, and those of the files that it writes.

    Args:
        text: the script.
        place: where it stands.
        inner: reads a file that it writes; an InputError of it is passed over.
        first: the line of the file that it begins on.

    Raises:
        InputError: with the line: nothing closes a quote or brace; too large, too deep.
    """
    if not MENTIONS.search(text):
        return []
    launches, script = of_script(text, Lines(first), {}, place)
    found = of_launches(launches, place)
    written = {
        path: body
        for path, body in script.files.items()
        if _WRITTEN.search(path) or body.text.startswith("#!")
    }
    for ran in script.commands:
        if ran.stdin is not None and any(_APPLIED.search(w.text) for w in ran.words[:3]):
            written.setdefault(f"-{ran.line}", ran.stdin)
    for path, body in written.items():
        try:
            more = inner(path, body)
        except InputError:
            continue
        found += more
    return found


def of_launches(launches: list[Launch], place: Place) -> list[Invocation]:
    """Return the servers of a script's commands."""
    return [launch.started(launch.name or "server", "shell", place.file) for launch in launches]
