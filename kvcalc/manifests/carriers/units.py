"""systemd units, podman quadlets, supervisord: ExecStart=, Exec=, command=, Environment=."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kvcalc.manifests.found import GpuRequest, Invocation, MemoryLimit, Word
from kvcalc.manifests.launches import Place, of_container, of_script
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.requests import DEFAULT_SHM, SHM, memory_limit, shm_size, with_visible
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.substitution import interpolated, read_env_file
from kvcalc.manifests.templates import Templates

__all__ = ["is_ini", "is_unit", "of_unit"]

_SECTION = re.compile(
    r"^\[(Unit|Service|Container|Install|Kube|Pod|program:[^\]\n]{1,100})\]\s*$", re.MULTILINE
)
_INI = re.compile(r"\A(?:[ \t]*(?:[#;][^\n]*)?\n)*\[[\w .:@/-]{1,100}\][ \t]*\n")
_PROGRAM = "program:"  # supervisord
_PAIRS = re.compile(r"([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^,\s]*)")
_FIRST = re.compile(r"\A(?:[ \t]*(?:[#;{\ue000][^\n]*)?\n)*\[")  # after comments and templates
_SHARING = ("PodmanArgs", "Volume", "Mount", "Tmpfs")
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*=\s*(.*)", re.DOTALL)


class _Entry(NamedTuple):
    section: str
    key: str
    text: str
    line: int


def is_unit(text: str) -> bool:
    """Whether a text is a unit or a quadlet."""
    if _FIRST.match(text) is None:
        return False  # a script that writes units begins otherwise
    sections = {found[1] for found in _SECTION.finditer(text[:100_000])}
    return any(s in ("Service", "Container") or s.startswith(_PROGRAM) for s in sections)


def is_ini(text: str) -> bool:
    """Whether a text is settings of some program in sections, which are no list of YAML's."""
    return _INI.match(text) is not None


def of_unit(
    text: str, name: str, place: Place, marks: Templates, first: int = 1
) -> list[Invocation]:
    """Return the servers that a unit or quadlet starts.

    Args:
        text: of it.
        name: of the unit.
        place: where it stands.
        marks: takes what further marks stand for.
        first: the line of the file that it begins on.
    """
    entries = _entries(text, first)
    programs = {e.section: None for e in entries if e.section.startswith(_PROGRAM)}
    found: list[Invocation] = []
    for section in programs:
        own = [each for each in entries if each.section in (section, "supervisord")]
        called = section.removeprefix(_PROGRAM)
        env = _environment(own, place, marks)
        found += _started(own, "command", called, "supervisord", env, place, marks)
    if programs:
        return found
    env = _environment(entries, place, marks)
    found += _started(entries, "ExecStart", name, "systemd", env, place, marks)
    if any(e.section == "Container" for e in entries):
        found += _quadlet(entries, name, env, place, marks)
    if not found and any(key.startswith("OLLAMA_") for key in env):
        found.append(
            Invocation(
                name=name,
                carrier="systemd",
                file=place.file,
                line=entries[0].line,
                env=env,
                gpu=with_visible(GpuRequest(), env),
                engine="ollama",
            )
        )
    return found


def _started(
    entries: list[_Entry],
    key: str,
    name: str,
    carrier: str,
    env: Mapping[str, Word],
    place: Place,
    marks: Templates,
) -> list[Invocation]:
    """Return the servers of the commands that stand under a key."""

    def lookup(variable: str) -> str | None:
        word = env.get(variable)
        return None if word is None or word.unresolved else marks.restored(word.text)

    found: list[Invocation] = []
    for entry in entries:
        if entry.key != key or not entry.text.strip():
            continue
        command = interpolated(entry.text.lstrip("-@:+!"), lookup, marks, "systemd")
        words = split_words(command, Lines(entry.line), marks)
        quoted = " ".join(_quoted(word.text) for word in words)
        launches, _ = of_script(quoted, Lines(entry.line, step=0), env, place)
        for launch in launches:
            own = launch.words
            if own and [w.text for w in words[-len(own) :]] == [w.text for w in own]:
                own = tuple(words[-len(own) :])
            called = name if not found else f"{name}/{len(found) + 1}"
            server = launch.started(called, carrier, place.file, entry.line)
            found.append(server._replace(words=own, memory_limit=_memory_limit(entries)))
    return found


def _quadlet(
    entries: list[_Entry],
    name: str,
    env: Mapping[str, Word],
    place: Place,
    marks: Templates,
) -> list[Invocation]:
    def of(key: str) -> list[_Entry]:
        return [e for e in entries if e.section == "Container" and e.key == key]

    unknown: dict[str, str] = {}  # podman puts no variables in
    words: list[Word] = []
    for key in ("Entrypoint", "Exec"):
        for entry in of(key):
            text = interpolated(entry.text, unknown.get, marks, "systemd")
            words += split_words(text, Lines(entry.line), marks)
    images = of("Image")
    image = Word(images[-1].text.strip(), images[-1].line) if images else None
    gpu = GpuRequest()
    for entry in (*of("AddDevice"), *of("PodmanArgs")):
        if found := re.search(r"nvidia\.com/gpu=([\w:-]+)", entry.text):
            every = found[1] == "all"
            gpu = GpuRequest(
                devices=None if every else 1,
                every=every,
                resource="nvidia.com/gpu",
                visible=None if every else (found[1],),
                line=entry.line,
            )
        elif entry.text.startswith(("/dev/kfd", "/dev/dri")) and gpu.resource is None:
            gpu = GpuRequest(every=True, resource=entry.text.split(":")[0], line=entry.line)
    line = images[-1].line if images else entries[0].line
    asks = gpu.resource is not None
    named = of("ContainerName")
    called = named[-1].text.strip() if named else name
    launches = of_container(
        words,
        image,
        env,
        place,
        line=line,
        likely=asks,
        under_entry_point=not of("Entrypoint"),
    )
    return [
        launch._replace(
            gpu=gpu, shm_bytes=_shm(entries), memory_limit=_memory_limit(entries)
        ).started(called if number == 1 else f"{called}/{number}", "quadlet", place.file, line)
        for number, launch in enumerate(launches, 1)
    ]


def _memory_limit(entries: list[_Entry]) -> MemoryLimit | None:
    """Return the host memory that a unit may have."""
    limits = [e for e in entries if e.key in ("MemoryMax", "MemoryLimit", "Memory")]
    return memory_limit(limits[-1].text, limits[-1].line) if limits else None


def _shm(entries: list[_Entry]) -> int | None:
    """Return the size of a quadlet's own /dev/shm; None where it is the host's."""
    size: int | None = DEFAULT_SHM
    for entry in entries:
        if entry.key == "ShmSize":
            size = shm_size(entry.text)
        elif entry.key in _SHARING and re.search(rf"{SHM}|--ipc|--shm-size|\$", entry.text):
            return None
    return size


def _entries(text: str, first: int) -> list[_Entry]:
    entries: list[_Entry] = []
    section = ""
    rows = text.split("\n")
    at = 0
    while at < len(rows):
        start, row = at, rows[at]
        at += 1
        stripped = row.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped.startswith("[") and stripped.endswith("]"):
            section = stripped[1:-1]
            continue
        parts = [row]
        while parts[-1].rstrip().endswith("\\") and at < len(rows):
            parts[-1] = parts[-1].rstrip()[:-1]
            while at < len(rows) and rows[at].lstrip()[:1] in ("#", ";"):
                parts.append("")
                at += 1
            if at < len(rows):
                parts.append(rows[at])
                at += 1
        found = _KEY.fullmatch("\n".join(parts))
        if found is not None:
            entries.append(_Entry(section, found[1], found[2], start + first))
    return entries


def _environment(entries: list[_Entry], place: Place, marks: Templates) -> dict[str, Word]:
    env: dict[str, Word] = {}
    for entry in entries:
        if entry.key == "environment":  # supervisord's: NAME="value",NAME="value"
            for key, value in _PAIRS.findall(entry.text):
                env[key] = Word(value.strip("\"'"), entry.line)
        if entry.key == "Environment":
            for word in split_words(entry.text, Lines(entry.line), marks):
                key, equals, value = word.text.partition("=")
                if equals:
                    env[key] = Word(value, word.line)
        elif entry.key == "EnvironmentFile" and place.beside is not None:
            path = entry.text.strip().lstrip("-")
            for key, value in read_env_file(place.beside(path) or "").items():
                env[key] = Word(value, entry.line)
    return env


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
