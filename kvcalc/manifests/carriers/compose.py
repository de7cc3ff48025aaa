"""Compose files: services, their commands, environment and devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import (
    Attached,
    Branch,
    Finding,
    GpuRequest,
    Invocation,
    MemoryLimit,
    Word,
)
from kvcalc.manifests.launches import of_container
from kvcalc.manifests.requests import (
    DEFAULT_SHM,
    SHM,
    Copies,
    memory_limit,
    of_count,
    of_device,
    of_gpus_option,
    shm_size,
)
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.substitution import interpolated, read_env_file

__all__ = ["of_compose"]

_MAX_EXTENDS = 5
_OPEN = re.compile(r"\$\{?([A-Za-z_]\w*)")  # a variable to which nothing gave a value
_PROFILE = (0,)
"""The condition that services of different profiles stand in: who starts one starts no other."""


def of_compose(document: Node, context: Context) -> list[Invocation]:
    """Return the servers of a Compose file's services."""
    beside = read_env_file(context.folder.read(".env") or "", lambda _name: None)
    services = document.get("services")
    reader = _Reader(context, beside.get, services, document)
    found: list[Invocation] = []
    for name, service in services.fields.items():
        if service.is_mapping:
            found += reader.of_service(name, service, services.key_lines[name])
    return found


class _Reader:
    def __init__(
        self,
        context: Context,
        lookup: Callable[[str], str | None],
        services: Node,
        document: Node,
    ) -> None:
        self.context = context
        self.lookup = lookup
        self.services = services
        self.document = document
        self.known_profiles: list[str] = []

    def of_service(self, name: str, service: Node, line: int) -> list[Invocation]:
        service = self.extended(service, 0)
        env = self.environment(service)
        findings: list[Finding] = []
        gpu = self.devices(service, findings)
        entry, command = service.get("entrypoint"), service.get("command")
        words = [*self.words(entry), *self.words(command)]
        given = service.get("image")
        image = self.word(given) if given.is_text else None
        last = command if command.is_list or command.is_text else entry
        node = last.items[-1] if last.items else last
        launches = of_container(
            words,
            image,
            env,
            self.context.place,
            lines=node.lines() if node.is_text and node.end != node.line else None,
            line=line,
            likely=gpu.resource is not None,
            under_entry_point=entry.is_null and "build" not in service,
        )
        replicas = self.copies(service)
        several = len(launches) > 1
        servers = [
            launch._replace(
                gpu=launch.gpu if gpu.resource is None else gpu,
                attached={**self.configs(service), **launch.attached},
                findings=(*findings, *launch.findings),
                after=(*self.after(service), *launch.after),
                shm_bytes=self.shm(service),
                memory_limit=self.memory_limit(service),
            )
            .started(f"{name}/{number}" if several else name, "compose", self.context.file, line)
            ._replace(replicas=replicas.number, replicas_line=replicas.line)
            for number, launch in enumerate(launches, 1)
        ]
        profile = self.profile(service)
        return [each._replace(branch=(*profile, *each.branch)) for each in servers]

    def copies(self, service: Node) -> Copies:
        """Return how many containers a service has."""
        for node in (service.get("deploy", "replicas"), service.get("scale")):
            number = self.number(node)
            if number is not None:
                return Copies(number, node.line)
        return Copies()

    def profile(self, service: Node) -> Branch:
        """Return the profile that a service is of, as a branch; () where it is of several."""
        given = [self.known(each) for each in service.get("profiles").items]
        if len(given) != 1:
            return ()
        if given[0] not in self.known_profiles:
            self.known_profiles.append(given[0])
        return ((_PROFILE, self.known_profiles.index(given[0])),)

    def after(self, service: Node, depth: int = 0) -> Iterator[int]:
        """Yield the lines of services that are healthy before one starts."""
        for name, needed in service.get("depends_on").fields.items():
            other = self.services.get(name)
            if depth > _MAX_EXTENDS or not other.is_mapping:
                continue
            if needed.get("condition").text == "service_healthy" and _has_health(other):
                yield self.services.key_lines[name]
            yield from self.after(other, depth + 1)

    def shm(self, service: Node) -> int | None:
        """Return the size of a service's own /dev/shm; None where it is not its own."""
        ipc = self.known(service.get("ipc"))
        mounts = [*service.get("volumes").items, *service.get("tmpfs").items, service.get("tmpfs")]
        if ipc and not ipc.startswith(("private", "shareable")):
            return None
        if any(SHM in self.known(each) + self.known(each.get("target")) for each in mounts):
            return None
        size = service.get("shm_size")
        return shm_size(self.known(size)) if size.is_text else DEFAULT_SHM

    def memory_limit(self, service: Node) -> MemoryLimit | None:
        """Return the host memory that a service may have."""
        for node in (
            service.get("deploy", "resources", "limits", "memory"),
            service.get("mem_limit"),
        ):
            found = memory_limit(self.known(node), node.line) if node.is_text else None
            if found is not None:
                return found
        return None

    def extended(self, service: Node, depth: int) -> Node:
        """Put a service over the one that it extends, where that stands in this file."""
        base = service.get("extends")
        name = base.text or base.get("service").text
        other = self.services.get(name) if name and not base.get("file").is_text else None
        if other is None or not other.is_mapping or other is service or depth > _MAX_EXTENDS:
            return service
        other = self.extended(other, depth + 1)
        whole = Node({}, service.line, service.file)
        whole.fields.update({**other.fields, **service.fields})
        whole.key_lines = {**other.key_lines, **service.key_lines}
        return whole

    def text(self, node: Node) -> str:
        return interpolated(node.raw, self.lookup, self.context.marks)

    def word(self, node: Node) -> Word:
        return self.context.word(node, self.text(node))

    def number(self, node: Node) -> int | None:
        text = self.known(node).strip()
        return int(text) if re.fullmatch(r"[0-9]{1,8}", text) else None

    def words(self, node: Node) -> list[Word]:
        if node.is_list:
            return [self.word(item) for item in node.items if isinstance(item.value, str)]
        if not node.is_text:
            return []
        text = self.text(node)
        return split_words(text, node.lines(text), self.context.marks)

    def environment(self, service: Node) -> dict[str, Word]:
        env: dict[str, Word] = {}
        files = service.get("env_file")
        for each in files.items or ([files] if files.is_text else []):
            path = each.text or each.get("path").text
            text = self.context.folder.read(path) or ""
            for key, value in read_env_file(text, self.lookup).items():
                open_ = tuple(name for name in _OPEN.findall(value))
                env[key] = Word(value, each.line, (), open_)
        given = service.get("environment")
        for key, node in given.fields.items():
            env[key] = self.word(node) if node.is_text else self.passed(key, node)
        for item in given.items:
            key, equals, _ = item.raw.partition("=")
            if equals:
                value = interpolated(item.raw[len(key) + 1 :], self.lookup, self.context.marks)
                env[key] = self.context.word(item, value)
            elif key:
                env[key] = self.passed(key, item)
        return env

    def passed(self, name: str, node: Node) -> Word:
        """Return a variable that is taken from where Compose runs."""
        known = self.lookup(name)
        if known is not None:
            return Word(known, node.line, (name,))
        return Word(f"${name}", node.line, (), (name,))

    def devices(self, service: Node, findings: list[Finding]) -> GpuRequest:
        """Return the devices that a service reserves."""
        reserved = service.get("deploy", "resources", "reservations", "devices")
        for device in (*reserved.items, *service.get("gpus").items):
            if _names_gpus(device):
                return self.reserved(device, findings)
        gpus = service.get("gpus")
        if gpus.is_text:
            return of_gpus_option(self.word(gpus))
        for device in service.get("devices").items:
            asked = of_device(self.word(device)._replace(text=self.known(device)))
            if asked.resource is not None:
                return asked
        return GpuRequest()

    def known(self, node: Node) -> str:
        """Return a scalar's text with what is known put in."""
        return self.context.marks.restored(self.text(node))

    def reserved(self, device: Node, findings: list[Finding]) -> GpuRequest:
        """Return what one entry of `devices` reserves: named ones, a number, or all."""
        ids, count = device.get("device_ids"), device.get("count")
        if ids.items:
            visible = tuple(part for each in ids.items for part in self.known(each).split(","))
            if any(part.endswith("=all") for part in visible):
                return GpuRequest(every=True, resource="device_ids", line=ids.line)
            return GpuRequest(
                devices=len(visible), resource="device_ids", visible=visible, line=ids.line
            )
        if not count.is_text:
            return GpuRequest(every=True, resource="devices", line=device.line)
        return of_count(Node(self.known(count), count.line, count.file, "'"), "count", findings)

    def configs(self, service: Node) -> dict[str, Attached]:
        """Return the files of `configs:` whose content stands in the file."""
        found: dict[str, Attached] = {}
        for each in service.get("configs").items:
            name = each.text or each.get("source").text
            content = self.document.get("configs", name, "content")
            if content.is_text:
                target = each.get("target").text or f"/{name}"
                text = self.context.marks.restored(self.text(content))
                found[target] = Attached(self.context.file, content.lines().at(0, 0), text)
        return found


def _has_health(service: Node) -> bool:
    """Whether a service has a health check, without which none waits for it."""
    check = service.get("healthcheck")
    if "llama.cpp" in service.get("image").text:  # its image has one
        return not check.get("disable").is_true
    return "test" in check and not check.get("disable").is_true


def _names_gpus(device: Node) -> bool:
    """Whether a reservation is one of cards."""
    kinds = " ".join(item.text for item in device.get("capabilities").items)
    named = "gpu" in kinds or device.get("driver").text in ("nvidia", "amd", "cdi")
    return named or device.get("count").is_text
