"""Two JSON documents of kvcalc check or capacity, compared figure by figure."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvcalc.answers.changes import Changed, costs
from kvcalc.answers.metrics import METRICS
from kvcalc.core.errors import InputError
from kvcalc.models.json_documents import MAX_CHARACTERS, read_json, read_json_file
from kvcalc.models.text import printable

__all__ = ["Figures", "compared", "read_check", "read_document"]

_SCHEMAS = ("kvcalc.check/1", "kvcalc.capacity/1")
_WORSE = {"pass": 0, "note": 0, "off": 0, "skip": 1, "warn": 2, "fail": 3, "refused": 4}
_TOTALS = {
    "num_gpus": "num_gpus",
    "replicas": "replicas",
    "kv_cache_tokens": "total_kv_cache_tokens",
    "max_concurrency": "total_concurrency",
    "duplication_factor": "duplication_factor",
}
"""Of a capacity answer's `deployment`: its key -> the metric."""


class Figures(NamedTuple):
    """A document's figures by deployment, and its statuses by deployment and check."""

    figures: Mapping[str, Mapping[str, Any]]
    statuses: Mapping[tuple[str, str], str]


def read_document(path: str) -> Figures:
    """Read a document.

    Args:
        path: of the file; `-` for stdin.

    Raises:
        InputError: it is missing, no JSON, or no document of kvcalc check or capacity.
    """
    where = printable(path)
    document = _read(path, _SCHEMAS, "check or capacity")
    schema = document["schema"]
    try:
        if schema == _SCHEMAS[1]:
            return Figures(dict(_of_capacity(document["results"])), {})
        figures = {_name(d["name"]): _figures_of(d["figures"]) for d in document["deployments"]}
        statuses: dict[tuple[str, str], str] = {}
        for result in document["results"]:  # of several of a kind the worst is told
            key, status = (_name(result["name"]), _about(result)), result["status"]
            if _WORSE[status] >= _WORSE[statuses.get(key, "pass")]:
                statuses[key] = status
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            "the document is not as kvcalc wrote it", hint="write it anew", where=where
        ) from None
    return Figures(figures, statuses)


def read_check(path: str) -> list[dict[str, Any]]:
    """Return the results of a document of kvcalc check; as `read_document`."""
    results = _read(path, _SCHEMAS[:1], "check").get("results")
    if isinstance(results, list) and all(map(_is_result, results)):
        return results
    raise InputError(
        "the document is not as kvcalc wrote it", hint="write it anew", where=printable(path)
    )


def _is_result(given: object) -> bool:
    """Whether a value is a result of kvcalc check, as far as it is compared."""
    if not isinstance(given, dict):
        return False
    texts = all(isinstance(given.get(key), str) for key in ("name", "assertion", "status"))
    numbers = all(_is_figure(given.get(key)) for key in ("actual", "amount"))
    return texts and numbers and isinstance(given.get("workload"), (str, type(None)))


def _is_figure(given: object) -> bool:
    return given is None or (isinstance(given, (int, float)) and math.isfinite(given))


def _name(given: object) -> str:
    """Return a deployment's name.

    Raises:
        TypeError: it is none.
    """
    if isinstance(given, str) and given:
        return given
    raise TypeError


def _figures_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures, each a number, true or false, or null.

    Raises:
        TypeError: one is not.
    """
    if all(isinstance(key, str) and _is_figure(value) for key, value in given.items()):
        return dict(given)
    raise TypeError


def _read(path: str, schemas: tuple[str, ...], what: str) -> dict[str, Any]:
    if path == "-":
        document = read_json(sys.stdin.read(MAX_CHARACTERS + 1), "stdin")
    else:
        document = read_json_file(path)
    if isinstance(document, dict) and document.get("schema") in schemas:
        return document
    raise InputError(
        f"no document of kvcalc {what}",
        hint="write one: kvcalc check --format json > before.json",
        where="stdin" if path == "-" else printable(path),
    )


def _about(result: Mapping[str, Any]) -> str:
    of = result.get("workload")
    return f"{result['assertion']} of {of}" if of else str(result["assertion"])


def _of_capacity(results: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    names: dict[str, int] = {}
    for result in results:
        apart = result.get("flags")  # of several values of an option
        flags = [printable(str(word)) for word in apart] if isinstance(apart, list) else []
        name = " ".join((f"{result['model']} on {result['engine']}", *flags))
        names[name] = number = names.get(name, 0) + 1
        found = {key: value for key, value in result.items() if key in METRICS}
        found |= {
            metric: result["deployment"][key]
            for key, metric in _TOTALS.items()
            if key in result.get("deployment", {})
        }
        yield (name if number == 1 else f"{name} ({number})"), _figures_of(found)


def compared(before: Figures, after: Figures, *, unchanged: bool = False) -> list[Changed]:
    """Return what changed, what costs capacity first.

    Args:
        before: the earlier document.
        after: the later one.
        unchanged: also what did not change.
    """
    found = [*_statuses(before, after), *_figures(before, after, unchanged=unchanged)]
    return sorted(found, key=lambda each: (not each.costs, not each.gains))


def _figures(before: Figures, after: Figures, *, unchanged: bool) -> Iterator[Changed]:
    for name in dict.fromkeys((*before.figures, *after.figures)):
        old, new = before.figures.get(name), after.figures.get(name)
        if old is None or new is None:
            yield Changed(
                name=name,
                metric="deployment",
                before=None if old is None else "there",
                after=None if new is None else "there",
            )
            continue
        for metric in dict.fromkeys((*old, *new)):
            was, now = old.get(metric), new.get(metric)
            if was != now or unchanged:
                yield _changed(name, metric, was, now)


def _changed(name: str, metric: str, was: Any, now: Any) -> Changed:
    worse, better = costs(metric, was, now)
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (was, now))
    return Changed(
        name=name,
        metric=metric,
        before=was,
        after=now,
        delta=now - was if numbers else None,
        ratio=now / was if numbers and was else None,
        costs=worse,
        gains=better,
    )


def _statuses(before: Figures, after: Figures) -> Iterator[Changed]:
    """Yield checks that fail or warn now and did not, and those that no longer do."""
    for key in dict.fromkeys((*before.statuses, *after.statuses)):
        was, now = before.statuses.get(key), after.statuses.get(key)
        if was == now:
            continue
        old, new = _WORSE.get(was or "pass", 0), _WORSE.get(now or "pass", 0)
        if max(old, new) > 1 and old != new:
            yield Changed(
                name=key[0],
                metric=key[1],
                before=was,
                after=now,
                costs=new > old,
                gains=new < old,
            )
