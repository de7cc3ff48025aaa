"""kvcalc.yaml: deployments, workloads, assertions, and what they have in common.

The same file may hold the defaults of kvcalc's commands: what of them says how a model is deployed
is the default of its deployments, too. Every fault is found at once, each with its line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from kvcalc.answers.assertions import Assertion, CheckLevel, parse_assertion
from kvcalc.answers.finding_codes import FINDING_CODES
from kvcalc.answers.metrics import Figure, read_figure
from kvcalc.checks.keys import (
    BESIDE,
    CHECK_KEYS,
    COMMAND_KEYS,
    DEPLOYMENT_KEYS,
    ENTRY_KEYS,
    FILE_VERSION,
    TOP_BESIDE,
    Form,
)
from kvcalc.checks.models import Named
from kvcalc.checks.workloads import WorkloadEntry, read_workload
from kvcalc.core.errors import (
    InputError,
    InputFaults,
    InvalidValueError,
    KvcalcError,
    UnknownNameError,
)
from kvcalc.core.units import parse_tokens
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.documents import Document, KeyPath, read_document

__all__ = ["DEFAULT_FILE", "CheckFile", "Entry", "Given", "is_check_file", "read_check_file"]


DEFAULT_FILE = "kvcalc.yaml"
FigureChoice = Literal["expected", "low", "high"]
_CHOICES: tuple[FigureChoice, ...] = ("expected", "low", "high")
_FINDING_LEVELS: tuple[CheckLevel, ...] = ("off", "note", "warn", "error")


class Given(NamedTuple):
    """A value of the file, and its line."""

    value: Figure | str
    line: int


class Entry(NamedTuple):
    """One deployment of the file.

    Attributes:
        name: unique; the file's where manifests are named and nothing else is said.
        line: where it begins.
        files: manifests to read instead of settings.
        server: which of their servers, where they start several.
        settings: by field of Deployment.
        args: the engine's own, by name.
        beside: model, quantization, sequences, ... (see keys.BESIDE).
        workloads: names.
        assertions: by name, above the file's.
        levels: of findings by code, above the file's.
        file: that all of this stands in.
    """

    name: str
    line: int
    files: tuple[str, ...] = ()
    server: str | None = None
    settings: Mapping[str, Given] = {}
    args: Mapping[str, Given] = {}
    beside: Mapping[str, Given] = {}
    workloads: tuple[str, ...] = ()
    assertions: Mapping[str, Assertion] = {}
    levels: Mapping[str, CheckLevel] = {}
    file: str = ""


class CheckFile(NamedTuple):
    """A kvcalc.yaml as checks see it.

    Attributes:
        file: how errors name it.
        folder: that paths in it are relative to.
        defaults: what every deployment of the file has unless it says otherwise.
        models: served names and paths -> what they are.
        workloads: by name.
        figures: which of an estimate's figures is compared.
    """

    file: str
    folder: str
    defaults: Entry
    models: Mapping[str, Named]
    workloads: Mapping[str, WorkloadEntry]
    deployments: tuple[Entry, ...]
    figures: FigureChoice = "expected"

    @property
    def price(self) -> float | None:
        """Of an hour of one GPU."""
        given = self.defaults.beside.get("price_per_gpu_hour")
        return None if given is None else float(given.value)


def is_check_file(path: str, text: str) -> bool:
    """Whether a file is a kvcalc.yaml: by its name, or by a key of it at the top."""
    name = os.path.basename(path).lower()
    if name in ("kvcalc.yaml", "kvcalc.yml") or name.endswith((".kvcalc.yaml", ".kvcalc.yml")):
        return True
    starts = ("deployments:", "assert:", "workloads:")
    return any(line.startswith(starts) for line in text.splitlines())


def read_check_file(text: str, file: str, folder: str = "") -> CheckFile:
    """Read a kvcalc.yaml.

    Args:
        text: the document.
        file: how errors name it.
        folder: that paths in it are relative to.

    Raises:
        InputFaults: every fault, each with its line.
        InputError: it is no mapping.
    """
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return CheckFile(file, folder, Entry("", 1), {}, {}, ())
    document = read_document(text, file)
    if not isinstance(document.value, dict):
        raise InputError(
            "kvcalc.yaml is a mapping",
            where=f"{file}:1",
            hint="write deployments: with a list under it",
        )
    return _Reader(document, folder).read(document.value)


class _Reader:
    def __init__(self, document: Document, folder: str) -> None:
        self.document = document
        self.folder = folder
        self.faults: list[tuple[int, KvcalcError]] = []

    def read(self, top: dict[str, Any]) -> CheckFile:
        known = [*CHECK_KEYS, *COMMAND_KEYS, *DEPLOYMENT_KEYS, *TOP_BESIDE, "model"]
        for key in top:
            if key not in known:
                self.unknown("setting", key, known, (key,))
        self.version(top)
        workloads = self.workloads(top.get("workloads"))
        defaults = self.defaults(top)
        entries = self.list_of(top.get("deployments"), ("deployments",), "a list of deployments")
        deployments = [
            self.entry(entry, ("deployments", i), workloads) for i, entry in enumerate(entries)
        ]
        self.distinct([entry for entry in deployments if entry is not None])
        figures: FigureChoice = "expected"
        if "figures" in top:
            figures = self.one_of(top["figures"], _CHOICES, ("figures",), "value") or figures
        models = self.models(top.get("models"))
        if self.faults:
            raise InputFaults([error for _, error in sorted(self.faults, key=lambda f: f[0])])
        return CheckFile(
            self.document.file,
            self.folder,
            defaults,
            models,
            workloads,
            tuple(entry for entry in deployments if entry is not None),
            figures,
        )

    # ------------------------------------------------------------------ faults

    def fault(self, path: KeyPath, message: str, hint: str = "") -> None:
        self.told(path, InputError(message, hint=hint))

    def told(self, path: KeyPath, error: KvcalcError) -> None:
        line = self.document.line(path)
        error.where = f"{self.document.file}:{line}"
        self.faults.append((line, error))

    def unknown(self, what: str, name: str, known: Iterable[str], path: KeyPath) -> None:
        self.told(path, UnknownNameError(what, f"{name:.60}", known))

    def one_of(self, given: object, known: tuple[Any, ...], path: KeyPath, what: str) -> Any:
        if given in known:
            return given
        self.unknown(what, str(given), known, path)
        return None

    def mapping(self, given: object, path: KeyPath, what: str) -> dict[str, Any]:
        if given is None or isinstance(given, dict):
            return given or {}
        self.fault(path, f"{path[-1]} is not a mapping", f"write {what}")
        return {}

    def list_of(self, given: object, path: KeyPath, what: str) -> list[Any]:
        if given is None or isinstance(given, list):
            return given or []
        self.fault(path, f"{path[-1]} is not {what}", "begin each with a dash")
        return []

    # ------------------------------------------------------------------ parts

    def version(self, top: dict[str, Any]) -> None:
        if top.get("version", FILE_VERSION) != FILE_VERSION:
            self.fault(("version",), "another version of this file", f"version is {FILE_VERSION}")

    def defaults(self, top: dict[str, Any]) -> Entry:
        """Return what the top of the file says of every deployment."""
        both: dict[str, Any] = {}
        places: dict[str, KeyPath] = {}
        for key in (*DEPLOYMENT_KEYS, *TOP_BESIDE, "model"):
            if key in top and not isinstance(top[key], list):  # of other commands: several at once
                both[key], places[key] = top[key], (key,)
        inner = self.mapping(top.get("defaults"), ("defaults",), "defaults: {engine: vllm}")
        for key, value in inner.items():
            if key not in DEPLOYMENT_KEYS and key not in BESIDE and key != "engine_args":
                self.unknown("setting", key, (*DEPLOYMENT_KEYS, *BESIDE), ("defaults", key))
            both[key], places[key] = value, ("defaults", key)
        settings, args = self.settings(both, places)
        return Entry(
            "",
            1,
            settings=settings,
            args=args,
            beside=self.beside(both, places),
            assertions=self.assertions(top.get("assert"), ("assert",)),
            levels=self.levels(top.get("findings"), ("findings",)),
        )

    def entry(
        self, given: object, path: KeyPath, workloads: Mapping[str, WorkloadEntry]
    ) -> Entry | None:
        if not isinstance(given, dict):
            self.fault(path, "a deployment is a mapping", "write - name: chat-prod")
            return None
        known = (*ENTRY_KEYS, *DEPLOYMENT_KEYS, *BESIDE)
        for key in given:
            if key not in known:
                self.unknown("setting of a deployment", key, known, (*path, key))
        places: dict[str, KeyPath] = {key: (*path, key) for key in given}
        files = self.texts(given.get("file"), (*path, "file"))
        name = given.get("name", files[0] if files else None)
        if name is None or name == "":
            self.fault(path, "a deployment has no name", "write - name: chat-prod")
            name = ""
        elif not isinstance(name, str) or not name.strip():
            hint = f'quote it: name: "{name}"' if isinstance(name, (int, float)) else "give a text"
            self.fault((*path, "name"), "the name of a deployment is no text", hint)
            name = ""
        if not files and "model" not in given and "server" in given:
            self.fault((*path, "server"), "server is of a file", "write file: deploy.yaml")
        settings, args = self.settings(given, places)
        names = self.texts(given.get("workload"), (*path, "workload"))
        for each in names:
            if each not in workloads:
                self.unknown("workload", each, workloads, (*path, "workload"))
        server = given.get("server")
        return Entry(
            name,
            self.document.line(path),
            files=files,
            server=None if server is None else str(server),
            settings=settings,
            args=args,
            beside=self.beside(given, places),
            workloads=names,
            assertions=self.assertions(given.get("assert"), (*path, "assert")),
            levels=self.levels(given.get("findings"), (*path, "findings")),
            file=self.document.file,
        )

    def distinct(self, entries: list[Entry]) -> None:
        first: dict[str, int] = {}
        for i, entry in enumerate(entries):
            if entry.name and entry.name in first:
                self.fault(
                    ("deployments", i),
                    f"two deployments are called {entry.name!r:.60}, the first on line"
                    f" {first[entry.name]}",
                    "give one of them another name",
                )
            first.setdefault(entry.name, entry.line)

    def settings(
        self, given: Mapping[str, Any], places: Mapping[str, KeyPath]
    ) -> tuple[dict[str, Given], dict[str, Given]]:
        """Return fields of Deployment, and the engine's own arguments."""
        found: dict[str, Given] = {}
        for key, (field, form) in DEPLOYMENT_KEYS.items():
            if key not in given:
                continue
            if field in found:
                self.fault(places[key], f"{field} is set twice", "leave out one of them")
            value = self.value(form, given[key], places[key])
            if value is not None:
                found[field] = Given(value, self.document.line(places[key]))
        args: dict[str, Given] = {
            name: found.pop(name)
            for name in ("ctx_size", "parallel", "n_gpu_layers")
            if name in found
        }
        path = places.get("engine_args", ())
        for name, value in self.mapping(
            given.get("engine_args"), path or ("engine_args",), "engine_args: {swa_full: true}"
        ).items():
            if isinstance(value, (dict, list)) or value is None:
                self.fault((*path, name), f"{name} is no text or number", f"write {name}: VALUE")
                continue
            args[name] = Given(value, self.document.line((*path, name)))
        return found, args

    def beside(self, given: Mapping[str, Any], places: Mapping[str, KeyPath]) -> dict[str, Given]:
        found = {}
        for key, form in BESIDE.items():
            if key in given:
                value = self.value(form, given[key], places[key])
                if value is not None:
                    found[key] = Given(value, self.document.line(places[key]))
        return found

    def value(self, form: Form, given: object, path: KeyPath) -> Figure | str | None:
        try:
            return read_value(form, given, str(path[-1]))
        except KvcalcError as error:
            self.told(path, error)
            return None

    def texts(self, given: object, path: KeyPath) -> tuple[str, ...]:
        values = given if isinstance(given, list) else [] if given is None else [given]
        for value in values:
            if not isinstance(value, str) or not value:
                self.fault(path, f"{path[-1]} is no text", f"write {path[-1]}: NAME")
                return ()
        return tuple(values)

    def assertions(self, given: object, path: KeyPath) -> dict[str, Assertion]:
        found = {}
        entries = self.mapping(given, path, "assert: {min_max_concurrency: 32}")
        for name, value in entries.items():
            line = self.document.line((*path, name))
            try:
                found[name] = parse_assertion(name, value, file=self.document.file, line=line)
            except KvcalcError as error:
                self.told((*path, name), error)
        return found

    def levels(self, given: object, path: KeyPath) -> dict[str, CheckLevel]:
        found: dict[str, CheckLevel] = {}
        for code, level in self.mapping(given, path, "findings: {unknown-flag: error}").items():
            if code not in FINDING_CODES:
                self.unknown("finding", code, FINDING_CODES, (*path, code))
                continue
            known = self.one_of(level, _FINDING_LEVELS, (*path, code), "level")
            if known is not None:
                found[code] = known
        return found

    def workloads(self, given: object) -> dict[str, WorkloadEntry]:
        found = {}
        entries = self.mapping(given, ("workloads",), "workloads: {chat: {lengths: [200, 1200]}}")
        for name, value in entries.items():
            path: KeyPath = ("workloads", name)
            try:
                found[name] = read_workload(name, value, self.document.line(path))
            except KvcalcError as error:
                self.told(path, error)
        return found

    def models(self, given: object) -> dict[str, Named]:
        found = {}
        for name, value in self.mapping(given, ("models",), "models: {NAME: PRESET}").items():
            path: KeyPath = ("models", name)
            inner = {"model": value} if isinstance(value, str) else value
            if not isinstance(inner, dict) or not isinstance(inner.get("model"), str):
                self.fault(path, f"{name:.60} is mapped to no model", "write NAME: llama-3.1-8b")
                continue
            for key in inner:
                if key not in ("model", "quantization"):
                    self.unknown("key", key, ("model", "quantization"), (*path, key))
            kept = inner.get("quantization")
            found[name] = Named(inner["model"], None if kept is None else str(kept))
        return found


# Values of kvcalc.yaml, by the form that their key has.


def read_value(form: Form, given: object, key: str) -> Figure | str:
    """Read a value.

    Args:
        form: how it is written.
        given: as it stands in the file.
        key: what it belongs to.

    Raises:
        InvalidValueError: it is not of that form.

    >>> read_value("bytes", "15GiB", "kv_memory"), read_value("tokens", 8192, "max")
    (16106127360, 8192)
    """
    match form:
        case "tokens" | "count":
            return _whole(given)
        case "bytes":
            size = read_figure("bytes", given)
            if not size:
                raise InvalidValueError(f"{key} of 0 B holds nothing", hint="give a size")
            return size
        case "number":
            return read_figure("number", given)
        case "share":
            return _share(given)
        case "switch":
            return read_figure("bool", given)
        case "version":
            return _version(given, key)
        case "text":
            return _text(given, key)


def _whole(given: object) -> int:
    if isinstance(given, str):
        return parse_tokens(given, maximum=MAX_DIMENSION)
    if type(given) is int and 1 <= given <= MAX_DIMENSION:
        return given
    raise InvalidValueError(
        f"{given!r:.40} is not a whole number from 1 to {MAX_DIMENSION}",
        hint="write a number such as 16",
    )


def _share(given: object) -> float:
    number = read_figure("number", given)
    if not 0 < number <= 1:
        raise InvalidValueError(
            f"{given!r:.40} is no share above 0 and up to 1", hint="write a share such as 0.9"
        )
    return float(number)


def _version(given: object, key: str) -> str:
    if isinstance(given, float):
        raise InvalidValueError(
            f"{key} {given} is a number, in which 0.10 and 0.1 are the same",
            hint=f'quote it: {key}: "{given}0" or "{given}"',
        )
    return _text(given, key)


def _text(given: object, key: str) -> str:
    if isinstance(given, bool) or given is None or isinstance(given, (dict, list)):
        raise InvalidValueError(f"{key} takes a text", hint=f"write {key}: NAME")
    return str(given)
