"""Deployments and servers that tests of checks are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvcalc.answers.assertions import Assertion, Check, parse_assertion
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.context import Context
from kvcalc.checks.gather import Options, gather
from kvcalc.checks.models import Models, Named
from kvcalc.checks.run import run
from kvcalc.checks.servers import of_server
from kvcalc.checks.targets import Target
from kvcalc.engines import engine_of
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Server, Setting, Word

__all__ = ["by_code", "checked", "codes", "gpus", "report_on", "server", "target"]

_MAPS = {"served": "llama-3.1-8b", "large": "llama-3.1-70b", "few-heads": "qwen2.5-3b"}


def gpus(
    devices: int | None = 1,
    product: str | None = "nvidia-l40s",
    *,
    resource: str | None = "nvidia.com/gpu",
    fraction: str | None = None,
    visible: tuple[str, ...] | None = None,
    shared: bool = False,
    every: bool = False,
    memory_bytes: int | None = None,
) -> GpuRequest:
    """Return what a file asks for, on line 30."""
    return GpuRequest(
        devices=devices,
        fraction=fraction,
        every=every,
        resource=resource,
        product=None if product is None else Word(product, 31),
        product_key=None if product is None else "nvidia.com/gpu.product",
        memory_bytes=memory_bytes,
        shared=shared,
        visible=visible,
        line=30,
    )


def server(
    model: str | None = "served",
    *,
    engine: str | None = "vllm",
    version: str | None = None,
    name: str = "chat",
    carrier: str = "Deployment",
    gpu: GpuRequest | None = None,
    nodes: int = 1,
    replicas: int | None = None,
    env: Mapping[str, str] | None = None,
    args: Mapping[str, str | int | float | bool | None] | None = None,
    other: Mapping[str, str | int | float | bool | None] | None = None,
    findings: tuple[Finding, ...] = (),
    background: bool = False,
    after: tuple[int, ...] = (),
    **fields: str | float | bool | None,
) -> Server:
    """Return a server of deploy.yaml, its settings from line 11 on, one a line."""
    invocation = Invocation(
        name=name,
        carrier=carrier,
        file="deploy.yaml",
        line=5,
        env={key: Word(value, 20) for key, value in (env or {}).items()},
        gpu=gpus() if gpu is None else gpu,
        background=background,
        after=after,
        nodes=nodes,
        replicas=replicas,
    )
    given = [
        *((n, v, "field") for n, v in fields.items()),
        *((n, v, "arg") for n, v in (args or {}).items()),
        *((n, v, "other") for n, v in (other or {}).items()),
    ]
    flags = {} if engine is None else engine_of(engine).flags
    settings = tuple(
        Setting(n, v, kind, flags.get(n, f"--{n.replace('_', '-')}"), line)  # type: ignore[arg-type]
        for line, (n, v, kind) in enumerate(given, 11)
    )
    named = None if model is None else Setting("model", model, "other", "--model", 10)
    return Server(invocation, engine, version, named, settings, findings)


def target(
    given: Server,
    *,
    asserts: Mapping[str, object] | None = None,
    gpu: str | None = None,
    levels: Mapping[str, str] | None = None,
) -> Target:
    """Return a server as it is checked."""
    found: dict[str, Assertion] = {n: parse_assertion(n, v) for n, v in (asserts or {}).items()}
    context = Context(
        models=Models({name: Named(source) for name, source in _MAPS.items()}),
        gpu=gpu,
        assertions=found,
        levels=dict(levels or {}),  # type: ignore[arg-type]
    )
    return of_server(given, context)


def report_on(*servers: Server, asserts: Mapping[str, object] | None = None) -> CheckReport:
    """Return what checks of servers come to."""
    return run([target(one, asserts=asserts) for one in servers], figures=True, allow_skips=True)


def checked(text: str, tmp_path: Path, **options: object) -> CheckReport:
    """Return what a kvcalc.yaml of that text comes to."""
    (tmp_path / "kvcalc.yaml").write_text(text, encoding="utf-8")
    found = gather([str(tmp_path / "kvcalc.yaml")], (), Options(**options))  # type: ignore[arg-type]
    return run(found, figures=True, allow_skips=True)


def codes(report: CheckReport) -> list[str]:
    """Return the codes of the findings, in order."""
    return [r.assertion for r in report.results if r.operator is None]


def by_code(report: CheckReport, code: str) -> Check:
    """Return the one result of that code."""
    found = [r for r in report.results if r.assertion == code]
    assert len(found) == 1, [r.assertion for r in report.results]
    return found[0]
