"""Resources and values of single vendors, by the table `vendors.toml`, which says what it holds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from kvcalc.core.errors import printable
from kvcalc.manifests.carriers import vendor_quirks
from kvcalc.manifests.carriers.containers import environment, image_of_node
from kvcalc.manifests.carriers.context import Context, as_flags
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.requests import (
    copies_of,
    of_count,
    of_resources,
    with_product,
    with_visible,
)

__all__ = ["STARTS", "Vendor", "of_vendor", "table", "vendor_of"]

STARTS: Mapping[str, tuple[tuple[str, ...], str | None]] = {
    # engine -> its command, and the flag of the model; None where it is not served by name
    "vllm": (("vllm", "serve"), ""),
    "sglang": (("sglang", "serve"), "--model-path"),
    "llama.cpp": (("llama-server",), "-m"),
    "ollama": ((), None),
    "nim": ((), None),
}
_MOST_SHOWN = 60


class Vendor(NamedTuple):
    """A row of the table."""

    parts: Sequence[str]
    engine: str | Mapping[str, Any]
    kinds: Sequence[str] = ()
    group: str = ""
    keys: Sequence[str] = ()
    carrier: str = ""
    refers: Sequence[str] = ()
    otherwise: str = ""
    needs: Sequence[str] = ()
    name: str = "name"
    unnamed: str = ""
    model: str | None = None
    flags: Mapping[str, str] = {}
    options: Sequence[str] = ()
    passed: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    image: str | None = None
    resources: str | None = None
    devices: str | None = None
    counts: str = ""
    product: str | None = None
    pod: Sequence[str] = ()
    replicas: str | None = None
    least: int = 0
    nodes: str | None = None
    given: Mapping[str, str] = {}
    quirk: str = ""


@cache
def table() -> tuple[Vendor, ...]:
    """Return the rows of the table."""
    text = files(__package__).joinpath("vendors.toml").read_text(encoding="utf-8")
    return tuple(Vendor(**row) for row in tomllib.loads(text)["vendor"])


def vendor_of(node: Node) -> Vendor | None:
    """Return the row that a document is read by; None where none fits."""
    kind, group = node.get("kind").text, node.get("apiVersion").text.partition("/")[0]
    for vendor in table():
        if kind and kind in vendor.kinds and vendor.group in ("", group):
            return vendor
        if not kind and any(not node.get(*key.split(".")).is_null for key in vendor.keys):
            return vendor
    return None


def of_vendor(vendor: Vendor, resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a resource, or of a file of values."""
    parts = [each for path in vendor.parts for each in _along(resource, path)]
    parts = [each for each in parts if _is_part(each.node, vendor)]
    if not parts and vendor.otherwise:
        parts = list(_along(resource, vendor.otherwise))
    found: list[Invocation] = []
    for part in parts:
        reader = _Part(vendor, resource, part, context, alone=len(parts) == 1)
        found += reader.invocations() if reader.engine is not None else []
    return found


def _is_part(node: Node, vendor: Vendor) -> bool:
    return node.is_mapping and (not vendor.needs or any(key in node for key in vendor.needs))


class _Place(NamedTuple):
    """A node of a resource, what it is called, and the line that it begins on."""

    node: Node
    label: str
    line: int


def _along(node: Node, path: str, label: str = "", line: int = 0) -> Iterator[_Place]:
    """Yield the nodes that a path leads to."""
    key, _, rest = path.partition(".")
    if not key:
        yield _Place(node, label, line or node.line)
    elif key == "*":
        for name, value in node.fields.items():
            yield from _along(value, rest, name, node.key_lines.get(name, value.line))
    elif key == "[]":
        for item in node.items:
            own = item.get("name").text
            yield from _along(item, rest, f"{label}/{own}" if label and own else own or label)
    elif key in node:
        yield from _along(node.get(key), rest, label if rest or key == "spec" else key)


class _Part:
    """A server of a resource."""

    def __init__(
        self, vendor: Vendor, resource: Node, place: _Place, context: Context, *, alone: bool
    ) -> None:
        self.vendor = vendor
        self.resource = resource
        self.part, self.label = place.node, place.label
        self.context = context
        self.alone = alone
        whole = resource.get("kind").is_text and (alone or not place.label)
        self.line = resource.line if whole else place.line
        self.referred = self.reference = Node("", resource.line, resource.file)
        if vendor.refers:
            kind, path = vendor.refers
            self.reference = next(n for p in path.split("|") if not (n := self.at(f"/{p}")).is_null)
            self.referred = context.find(kind, self.reference.text) or self.referred
        engine = vendor.engine
        self.engine = engine if isinstance(engine, str) else self.named(engine)

    def named(self, engine: Mapping[str, Any]) -> str | None:
        """Return the engine that a word of the part means; None for none that is read."""
        word, parts = self.first(str(engine["at"])).text, engine.get("has", {})
        return engine.get(word) or next((parts[key] for key in parts if key in word), None)

    def first(self, paths: str | None) -> Node:
        """Return what the first path that leads to something leads to; a null otherwise."""
        nodes = [] if paths is None else [self.at(path) for path in paths.split("|")]
        null = Node("", self.line, self.resource.file)
        return next((node for node in nodes if not node.is_null), null)

    def at(self, path: str) -> Node:
        """Return what a path leads to."""
        node = {"/": self.resource, "@": self.referred}.get(path[:1], self.part)
        keys = path.lstrip("/@")
        return node.get(*keys.split(".")) if keys else node

    def words(self) -> Iterator[Word]:
        """Yield the command that the vendor makes of its keys."""
        vendor, context = self.vendor, self.context
        program, flag = STARTS[str(self.engine)]
        yield from (Word(text, self.line) for text in program)
        model = self.first(vendor.model)
        if model.is_null:
            model = self.reference
        if model.is_text and flag is not None:
            text = model.raw.removeprefix("hf://").removeprefix("huggingface://")
            yield from [Word(flag, model.line)] if flag else []
            yield context.word(model, text)
        for path, written in vendor.flags.items():
            yield from _flag(written, self.first(path), context)
        for path in vendor.options:
            keys = self.at(path).fields.items()
            yield from as_flags(((k, n) for k, n in keys if k not in vendor.passed), context)
        for path in vendor.args:
            yield from context.words(self.at(path))

    def gpu(self, env: Mapping[str, Word], findings: list[Finding]) -> GpuRequest:
        """Return the devices that the part asks for."""
        vendor, gpu = self.vendor, GpuRequest()
        if vendor.resources is not None:
            gpu, more = of_resources(self.at(vendor.resources), bare=True)
            findings += more
        elif (devices := self.first(vendor.devices)).is_text:
            paths = [p for p in str(vendor.devices).split("|") if not self.at(p).is_null]
            gpu = of_count(devices, vendor.counts or paths[0].rpartition(".")[2], findings)
        for path in vendor.pod:
            gpu = gpu if gpu.product else with_product(gpu, self.at(path))
        if (product := self.first(vendor.product)).is_text:
            gpu = gpu._replace(
                product=self.context.word(product),
                product_key=str(vendor.product).rpartition(".")[2],
                line=gpu.line or product.line,
            )
        return with_visible(gpu, env)

    def called(self) -> str:
        """Return the server's name: the resource's own, with the part's where there are several."""
        own = self.first(self.vendor.name).text or self.vendor.unnamed
        base, label = name_of(self.resource), self.label
        if base:
            return base if self.alone or not (own or label) else f"{base}/{own or label}"
        return f"{label}/{own}" if label and own and label != own else own or label

    def invocations(self) -> list[Invocation]:
        """Return the server, as the vendor's own rules leave it."""
        vendor, context, resource = self.vendor, self.context, self.resource
        env: dict[str, Word] = {}
        for path in vendor.env:
            env |= environment(self.at(path), context)
        findings = [] if self.reference.is_null or not self.referred.is_null else [self.assumed()]
        copies = copies_of(*map(self.at, (vendor.replicas or "-").split("|")), least=vendor.least)
        given = {name: self.at(path) for path, name in vendor.given.items()}
        made = Invocation(
            name=self.called() or f"model on line {self.line}",
            carrier=vendor.carrier or resource.get("kind").text or "helm values",
            file=context.file,
            line=self.line,
            words=tuple(self.words()),
            image=None
            if vendor.image is None
            else image_of_node(self.first(vendor.image), context),
            env=env,
            gpu=self.gpu(env, findings),
            replicas=copies.number,
            replicas_line=copies.line,
            nodes=self.first(vendor.nodes).number or 1,
            findings=tuple(findings),
            engine=self.engine,
            given={name: context.word(node) for name, node in given.items() if node.is_text},
        )
        if not vendor.quirk:
            return [made]
        return list(getattr(vendor_quirks, vendor.quirk)(made, self.part, resource, context))

    def assumed(self) -> Finding:
        """Return the note of a resource that is not at hand, whose name stands for the model's."""
        kind = self.vendor.refers[0]
        message = f"the {kind} {printable(self.reference.text)[:_MOST_SHOWN]} is not at hand: its"
        return Finding(
            "assumed-model",
            "note",
            f"{message} name is taken for the model's",
            f"put the {kind} into the same file or folder",
            self.reference.line,
        )


def _flag(written: str, node: Node, context: Context) -> Iterator[Word]:
    """Yield a flag of the table with the value of its key."""
    name, *values = written.split()
    if node.is_true or node.is_false:
        off = name.startswith("--[no-]")
        name = name.replace("[no-]", "" if node.is_true else "no-")
        if node.is_true or off:
            yield from (Word(text, node.line) for text in (name, *values))
    elif node.is_text:
        yield from (Word(name, node.line), context.word(node))
