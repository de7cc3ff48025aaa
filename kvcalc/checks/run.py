"""Running checks: targets become questions, questions figures, and figures results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kvcalc.answers.assertions import (
    Assertion,
    Check,
    CheckLevel,
    Status,
    check,
    holds,
    parse_assertion,
    skipped,
    summary,
)
from kvcalc.answers.check_report import CheckReport, Deployed, ReadSetting
from kvcalc.answers.metrics import METRICS
from kvcalc.checks.cards import memory_only
from kvcalc.checks.cures import cure
from kvcalc.checks.gpu_findings import on_requests, on_shared_memory
from kvcalc.checks.hidden import hide
from kvcalc.checks.plan_findings import on_plan
from kvcalc.checks.shared_cards import on_shared_cards
from kvcalc.checks.sized import Load, MissingFigureError, Sized
from kvcalc.checks.targets import Fault, Target
from kvcalc.core.credentials import without_credentials
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    KvcalcError,
    NotModelledError,
    UnknownReleaseError,
    UnsupportedError,
    WithoutEffectError,
    printable,
)
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.engines import engine_of
from kvcalc.manifests.found import Finding, Server, Setting
from kvcalc.sizing.question import Question

__all__ = ["report_of", "run"]


_BY_FINDING: dict[str, CheckLevel] = {"error": "error", "warning": "warn", "note": "note"}
_STATUS: dict[CheckLevel, Status] = {"error": "fail", "warn": "warn", "note": "note", "off": "off"}
_ENDLESS = 2**50
"""A cache that is never short, for what of a plan does not hang on the memory."""
_OF_PLAN = (
    *("bytes_per_token", "state_bytes", "needed_bytes", "max_model_len", "block_size"),
    *("block_bytes", "num_gpus", "replicas", "duplication_factor"),
)
"""Figures that need no memory; those over a workload but for its concurrency do neither."""
_DEFAULT = parse_assertion("fits", given=True)


def run(
    targets: Sequence[Target],
    *,
    figures: bool = False,
    show: bool = False,
    allow_skips: bool = False,
) -> CheckReport:
    """Check every target.

    Args:
        targets: in the order of the files.
        figures: also the figures of every deployment.
        show: also what was read, and from which line.
        allow_skips: a run in which no assertion could be asked is no failure.
    """
    known: dict[tuple[Any, ...], list[Sized]] = {}
    shared: dict[int, list[Finding]] = {}
    for target, finding in on_shared_cards(targets):
        shared.setdefault(id(target), []).append(finding)
    results: list[Check] = []
    told = []
    for target in targets:
        sized = None if target.question is None else _sized(target, known)
        also = shared.get(id(target), ())
        results += map(hide(target.server), _Checked(target, sized, also).results())
        told.append(deployed(target, sized, figures=figures, show=show))
    if not allow_skips:
        results += _nothing_checked(targets, results)
    return report_of(results, tuple(told))


def _nothing_checked(targets: Sequence[Target], results: Sequence[Check]) -> Iterator[Check]:
    """Yield the failure of a run that asked nothing: it would else pass for one that is well."""
    skips = [r for r in results if r.status == "skip"]
    asked = any(r.operator is not None and r.status in ("pass", "warn", "fail") for r in results)
    if not skips or asked or any(r.status in ("fail", "refused") for r in results):
        return
    levels = {t.levels.get("nothing-checked", "error") for t in targets}
    level = next(each for each in _BY_FINDING.values() if each in levels or each == "note")
    first, one = skips[0], len({r.name for r in skips}) == 1
    if levels == {"off"}:
        return
    yield Check(
        name=first.name if one else "kvcalc check",
        assertion="nothing-checked",
        level=level,
        status=_STATUS[level],
        message=f"nothing was checked: {format_number_of(len(skips), 'assertion')} could not be"
        " asked",
        hint=f"{first.hint}; or allow it: --allow-skips" if first.hint else "--allow-skips",
        where=first.where if one else "",
        file=first.file if one else "",
        line=first.line if one else 0,
    )


def report_of(results: Iterable[Check], deployments: Iterable[Any]) -> CheckReport:
    """Return a report, its results counted."""
    found = tuple(results)
    return CheckReport(results=found, deployments=tuple(deployments), summary=summary(found))


def _sized(target: Target, known: dict[tuple[Any, ...], list[Sized]]) -> Sized:
    """Return the figures of a target; equal questions share them."""
    question = target.question
    assert question is not None  # noqa: S101 - its caller has looked
    deployment = question.deployment
    key = (
        question.model.name,
        deployment.engine,
        deployment.tensor_parallel_size,
        deployment.max_model_len,
        target.copies,
        target.price,
    )
    alike = known.setdefault(key, [])
    for sized in alike:
        if sized.asked == question:
            return sized
    alike.append(Sized(question, copies=target.copies, price=target.price))
    return alike[-1]


class _Checked:
    """The results of one target."""

    def __init__(self, target: Target, sized: Sized | None, shared: Iterable[Finding]) -> None:
        self.target = target
        self.sized = sized
        self.findings = [*target.findings, *shared]
        self.skip: tuple[str, str] | None = (target.reason, target.hint) if target.reason else None
        self.only_plan = False
        self.faults: list[Fault] = []

    def results(self) -> Iterator[Check]:
        target = self.target
        self.prepare()
        for fault in (*target.faults, *self.faults):
            yield self.fault(fault)
            self.skip = ("it was refused", "")
        checks = list(self.assertions())
        for finding in self.findings:
            yield self.finding(finding)
        yield from checks

    def prepare(self) -> None:
        """Ask the engine; what it refuses is a finding, what kvcalc does not model a reason."""
        target = self.target
        if self.sized is None:
            self.findings += contradictions(target, None)
            return
        if target.no_card is not None:
            self.without_card()
        self.without_effect()
        try:
            if self.sized.worked.memory and target.auto_length and not self.sized.fits:
                self.shorten()
            self.findings += contradictions(target, self.sized, only_plan=self.only_plan)
        except KvcalcError as error:
            self.findings += contradictions(target, None)
            self.refused(error)

    def refused(self, error: KvcalcError) -> None:
        """Tell what the engine refuses, or that kvcalc does not know it."""
        assert self.sized is not None  # noqa: S101 - it was asked
        if isinstance(error, UnknownReleaseError) and self.target.asked_release:
            self.faults.append(Fault("engine-refuses", error.message, error.hint))
            return
        if isinstance(error, NotModelledError):
            self.skip = (error.message, error.hint)
            return
        for found in refusals(self.target, self.sized, error):
            if isinstance(found.error, NotModelledError):
                break
            place = self.place(*([found.setting] if found.setting is not None else []))
            message, hint = found.error.message, found.error.hint
            self.findings.append(Finding(found.code, "error", message, hint, *place))
        self.skip = ("the engine refuses these settings", "")

    def without_effect(self) -> None:
        """Leave out settings that have no effect beside the others: an engine passes over them."""
        assert self.sized is not None  # noqa: S101 - its caller has looked
        for _ in self.sized.asked.deployment.engine_args:
            asked = self.sized.asked
            try:
                self.sized.worked  # noqa: B018 - it is worked out here
            except WithoutEffectError as error:
                idle = error
            except KvcalcError:
                return
            else:
                return
            args = dict(asked.deployment.engine_args)
            if not all(name in args for name in idle.settings):
                return
            for name in idle.settings:
                del args[name]
            self.findings.append(
                Finding(
                    "setting-without-effect",
                    "warning",
                    idle.message,
                    f"{idle.hint}; or leave it out",
                    *self.place(*idle.settings),
                )
            )
            self.replace(msgspec.structs.replace(asked.deployment, engine_args=args))

    def replace(self, deployment: Deployment) -> None:
        """Go on with other settings."""
        assert self.sized is not None  # noqa: S101 - its caller has looked
        asked = self.sized.asked._replace(deployment=deployment)
        self.sized = Sized(asked, copies=self.target.copies, price=self.target.price)

    def without_card(self) -> None:
        """Look at the plan alone where no card is known, as if the cache were never short."""
        assert self.sized is not None  # noqa: S101 - its caller has looked
        asked = self.sized.asked
        self.only_plan = True
        engine = engine_of(asked.deployment.engine)
        if engine.settings_fix_cache:
            return
        endless: dict[str, Any] = {"kv_cache_memory_bytes": _ENDLESS}
        if not engine.cache_in_bytes:
            endless = {"gpu": memory_only(_ENDLESS)}
        deployment = msgspec.structs.replace(asked.deployment, **endless)
        self.sized = Sized(
            asked._replace(deployment=deployment),
            copies=self.target.copies,
            price=self.target.price,
        )

    def shorten(self) -> None:
        """Take the longest maximum that fits, as an engine does that is told `auto`."""
        assert self.sized is not None  # noqa: S101 - its caller has looked
        longest = self.sized.low.max_model_len_that_fits
        asked = self.sized.asked
        if not longest:
            return
        deployment = msgspec.structs.replace(asked.deployment, max_model_len=longest)
        shorter = Sized(
            asked._replace(deployment=deployment),
            copies=self.target.copies,
            price=self.target.price,
        )
        if not shorter.fits:
            return
        own, self.sized = self.sized.plan.max_model_len, shorter
        self.findings.append(
            Finding(
                "length-is-shortened",
                "note",
                f"an automatic maximum comes to about {format_count(longest)} tokens of the model's"
                f" {format_count(own)}",
                "name the length that you need, so that a start without room for it fails",
                *self.place(),
            )
        )

    def place(self, *names: str) -> tuple[int, str]:
        """Return the line and file of a setting; of the length, which most refusals are about."""
        server = self.target.server
        by_name = {s.name: s for s in server.settings} if server is not None else {}
        for name in names or ("max_model_len", "context_length", "ctx_size", "max_seq_len"):
            if name in by_name:
                return by_name[name].line, by_name[name].file
            if name in self.target.lines:
                return self.target.lines[name], self.target.settings_file
        return self.target.line, ""

    # ------------------------------------------------------------------ results

    def fault(self, fault: Fault) -> Check:
        target = self.target
        level = target.levels.get(fault.code, "error")
        status: Status = "refused" if level == "error" else _STATUS[level]
        file = fault.file or target.file
        line = (fault.line or target.line) if file else 0
        return Check(
            name=target.name,
            assertion=fault.code,
            level=level,
            status=status,
            message=fault.message,
            hint=fault.hint,
            where=_where(file, line),
            file=file,
            line=line,
        )

    def finding(self, finding: Finding) -> Check:
        level = self.target.levels.get(finding.code, _BY_FINDING[finding.level])
        file = finding.file or self.target.file
        line = (finding.line or self.target.line) if file else 0
        return Check(
            name=self.target.name,
            assertion=finding.code,
            level=level,
            status=_STATUS[level],
            message=printable(finding.message),
            hint=printable(finding.cure),
            where=_where(file, line),
            file=file,
            line=line,
            amount=finding.amount,
        )

    def assertions(self) -> Iterator[Check]:
        given = self.target.assertions
        wanted = given.values() if "fits" in given else (_DEFAULT, *given.values())
        for assertion in wanted:
            placed = self.placed(assertion)
            if METRICS.get(assertion.metric) and METRICS[assertion.metric].needs == "workload":
                for load in self.target.loads:
                    yield self.checked(placed, load)
                if self.target.loads:
                    continue
            yield self.checked(placed, None)

    def placed(self, assertion: Assertion) -> Assertion:
        if assertion.line:
            return assertion
        line, file = self.place()
        file = file or self.target.file
        return assertion._replace(file=file, line=line if file else 0)

    def checked(self, assertion: Assertion, load: Load | None) -> Check:
        name, workload = self.target.name, None if load is None else load.name
        if self.skip is not None:
            return skipped(name, assertion, *self.skip, workload)
        sized = self.sized
        assert sized is not None  # noqa: S101 - without a question there is a reason
        if self.target.no_card is not None and not _of_plan(assertion.metric):
            return skipped(name, assertion, *self.target.no_card, workload)
        try:
            found = sized.figure(assertion.metric, load)
        except MissingFigureError as error:
            return skipped(name, assertion, error.message, error.hint, workload)
        except KvcalcError as error:
            return skipped(name, assertion, error.message, error.hint, workload)
        hint = detail = ""
        amount: float | None = None
        figures = self.target.figures
        if assertion.level != "off" and not holds(assertion, found, figures):
            hint = cure(self.target, sized, assertion, load)
            detail = _why(sized, assertion)
            amount = _amount(sized, assertion)
        return check(
            name, assertion, found,
            figures=figures, workload=workload, hint=hint, detail=detail, amount=amount,
        )  # fmt: skip


def _of_plan(metric: str) -> bool:
    known = METRICS.get(metric)
    over_requests = known is not None and known.needs == "workload"
    return metric in _OF_PLAN or (over_requests and metric != "workload_concurrency")


def _amount(sized: Sized, assertion: Assertion) -> int | None:
    """Return by how many bytes it does not fit; None where no memory would do."""
    if assertion.metric not in ("fits", "may_fit") or assertion.limit is not True:
        return None
    return sized.worked.missing() or None


def _why(sized: Sized, assertion: Assertion) -> str:
    """Say why it does not fit, or not surely."""
    if assertion.metric not in ("fits", "may_fit", "missing_bytes") or assertion.limit is False:
        return ""
    worked = sized.worked
    if worked.meets("high"):
        return (
            f"{format_bytes(worked.missing())} are missing on a GPU for {_longest(sized)} if"
            " everything else takes its most, nothing if it takes its least"
        )
    refusal = worked.refusal("high") or worked.refusal("low")
    if refusal is not None:
        return refusal.why
    if worked.crowded is not None:
        return worked.crowded
    stopped = worked.stopped("high") or worked.stopped("low")
    if stopped is not None:
        return f"{sized.plan.engine} does not start: {stopped[0].code}"
    missing = worked.missing()
    if not missing:
        return f"no memory holds {_longest(sized)}"
    needed = format_bytes(sized.plan.bytes_needed(sized.plan.max_model_len))
    one = sized.asked.sequences == 1
    return (
        f"{format_bytes(missing)} are missing on a GPU for {_longest(sized)}, which"
        f" {'needs' if one else 'need'} {needed}{'' if one else ' each'}"
    )


def _longest(sized: Sized) -> str:
    count = sized.asked.sequences
    what = "one sequence" if count == 1 else f"{format_count(count)} sequences"
    return f"{what} of {format_count(sized.plan.max_model_len)} tokens"


def _where(file: str, line: int) -> str:
    return f"{file}:{line}" if file and line else file


_OF_MEMORY = (
    *("sequences-out-of-reach", "speculation-costs-cache", "fraction-out-of-interval"),
    *("two-limits", "share-without-effect"),
)
"""Findings that hang on how much memory there is."""


def contradictions(
    target: Target, sized: Sized | None, *, only_plan: bool = False
) -> list[Finding]:
    """Return the findings on a target.

    Args:
        target: what is checked.
        sized: its figures; None where there are none: the file's own contradictions are found.
        only_plan: the memory is not known.

    Raises:
        KvcalcError: the engine refuses its settings.
    """
    return list(_all(target, sized, only_plan=only_plan))


def _all(target: Target, sized: Sized | None, *, only_plan: bool) -> Iterator[Finding]:
    yield from on_requests(target)
    yield from on_shared_memory(target)
    for line in () if target.question is None else target.question.model.contradictions:
        yield Finding(
            "checkpoint-contradicts-config",
            "warning",
            line,
            "one of its files is another checkpoint's: download them again, of one revision",
        )
    if sized is None:
        return
    for finding in on_plan(target, sized):
        if not (only_plan and finding.code in _OF_MEMORY):
            yield finding


_TEXTS = (
    *("quantization", "load_format", "device", "task", "runner", "revision"),
    "max_model_len",  # auto: what fits
)
"""Settings that decide nothing and are texts: these are shown, others may be anything."""


def deployed(target: Target, sized: Sized | None, *, figures: bool, show: bool) -> Deployed:
    """Return what is told of a target.

    Args:
        target: what was checked.
        sized: its figures.
        figures: tell them.
        show: tell what was read.
    """
    return Deployed(
        name=target.name,
        file=target.file,
        line=target.line,
        engine=target.engine,
        engine_version=target.engine_version,
        model=_model(target),
        gpu=None if target.gpu is None else target.gpu.name,
        figures=_figures(sized) if figures and sized is not None else {},
        read=_read(target.server) if show and target.server is not None else (),
    )


def _model(target: Target) -> str | None:
    """Return what is served; a name out of a variable as what kvcalc knows it by."""
    named = target.server.model if target.server is not None else None
    if target.model is None:
        return None
    if named is None or named.value != target.model or not named.variables:
        return without_credentials(target.model)
    return str(named.shown) if target.question is None else target.question.model.name


def _figures(sized: Sized) -> dict[str, bool | int | float]:
    try:
        return sized.known()
    except KvcalcError:  # the engine refuses it, which is told
        return {}


def _read(server: Server) -> tuple[ReadSetting, ...]:
    invocation = server.invocation
    found = []

    def add(name: str, value: str | float | bool | None, kind: str, written: str,
            line: int, file: str = "") -> None:  # fmt: skip
        place = file or invocation.file
        value = without_credentials(value) if isinstance(value, str) else value
        found.append(
            ReadSetting(
                name=name,
                value=value,
                kind=kind,  # type: ignore[arg-type]  # as Setting has it
                written=written,
                where=f"{place}:{line}" if place and line else place,
            )
        )

    if server.model is not None:
        model = server.model
        add("model", model.shown, "other", model.written, model.line, model.file)
    for s in server.settings:
        text = isinstance(s.value, str) and s.kind == "other" and s.name not in _TEXTS
        if not text:
            add(s.name, s.shown, s.kind, s.written, s.line, s.file)
    gpu = invocation.gpu
    if gpu.product is not None:
        word = gpu.product
        add("gpu", word.shown, "other", gpu.product_key or "gpu", word.line, word.file)
    if gpu.devices is not None:
        add("num_gpus", gpu.devices, "other", gpu.resource or "gpus", gpu.line, gpu.file)
    if invocation.replicas is not None:
        line = invocation.replicas_line or invocation.line
        add("replicas", invocation.replicas, "other", "replicas", line)
    return tuple(found)


# Why an engine refuses a deployment: the setting that it refuses, and the next one after it.
#
# The setting is found by asking again without each: the one whose absence lifts the refusal is
# told, at its line. What a variable holds is not told to the engine at all when its refusal is
# repeated: the variable's name stands in for it.

_MOST = 6
_BESIDE = ("engine", "engine_version", "gpu", "engine_args")
_TOGETHER = {
    "speculative_method": ("speculative_method", "num_speculative_tokens", "draft_model"),
    "num_speculative_tokens": ("num_speculative_tokens", "speculative_method", "draft_model"),
}
"""Settings that are left out with others, which mean nothing without them."""


class Refused(NamedTuple):
    """A refusal, and the setting that it is about; None where no one setting is."""

    error: KvcalcError
    setting: str | None

    @property
    def code(self) -> str:
        """The finding that it is reported as."""
        return self.error.code if isinstance(self.error, UnsupportedError) else "engine-refuses"


def refusals(target: Target, sized: Sized, error: KvcalcError) -> Iterator[Refused]:
    """Yield what the engine refuses, each without what was refused before.

    Args:
        target: whose settings they are.
        sized: what was refused.
        error: with what.
    """
    question = sized.asked
    server = target.server
    read = {s.name: s for s in server.settings} if server is not None else {}
    for _ in range(_MOST):
        name, less, then = _offender(question, error, read)
        yield Refused(_unsaid(question, name, read, error), name)
        if name is None or then is None:
            return
        question, error = less, then


def _offender(
    question: Question, error: KvcalcError, read: Mapping[str, Setting]
) -> tuple[str | None, Question, KvcalcError | None]:
    """Return the setting, the question without it, and what of that is refused still."""
    lifted, moved = [], []
    for name, less in _without(question):
        then = _refusal(less)
        if then is None:
            lifted.append((name, less, then))
        elif then.message != error.message:
            moved.append((name, less, then))
    said = f"{error.message} {error.hint}".lower()
    found = lifted or moved
    own = error.setting if isinstance(error, UnsupportedError) else ""
    for each in found:
        if each[0] == own:
            return each
    if own:
        return own, question, None
    if not found:
        named = [name for name in _names(question) if name in error.message]
        return (named[0] if named else None), question, None

    def likely(each: tuple[str, Question, KvcalcError | None]) -> tuple[bool, bool, bool]:
        setting = read.get(each[0])
        words = (each[0], each[0].replace("_", " "), setting.written if setting else each[0])
        value = _value(question.deployment, each[0])
        return (
            any(word.lower() in error.message.lower() for word in words),
            isinstance(value, str) and value.lower() in error.message.lower(),
            any(word.lower() in said for word in words),
        )

    return max(found, key=likely)


def _names(question: Question) -> Iterator[str]:
    deployment = question.deployment
    yield from (name for name in deployment.changed() if name not in _BESIDE)
    yield from deployment.engine_args


def _value(deployment: Deployment, name: str) -> Any:
    if name in deployment.engine_args:
        return deployment.engine_args[name]
    return getattr(deployment, name, None)


def _without(question: Question) -> Iterator[tuple[str, Question]]:
    """Yield the question without each of its settings."""
    deployment, default = question.deployment, Deployment()
    for name in _names(question):
        if name in deployment.engine_args:
            args = {key: value for key, value in deployment.engine_args.items() if key != name}
            changes: dict[str, Any] = {"engine_args": args}
        else:
            changes = {each: getattr(default, each) for each in _TOGETHER.get(name, (name,))}
        if name == "kv_cache_memory_bytes" and deployment.gpu is None:
            continue  # without it and a card there is nothing to ask
        try:
            less = msgspec.structs.replace(deployment, **changes)
        except KvcalcError:
            continue
        yield name, question._replace(deployment=less)


def _refusal(question: Question) -> KvcalcError | None:
    try:
        Sized(question).worked  # noqa: B018 - it is worked out here
    except KvcalcError as error:
        return error
    return None


def _unsaid(
    question: Question, name: str | None, read: Mapping[str, Setting], error: KvcalcError
) -> KvcalcError:
    """Return the refusal without the text of a variable: as of a setting of the variable's name."""
    setting = read.get(name or "")
    if setting is None or not setting.variables or not isinstance(setting.value, str):
        return error
    deployment = question.deployment
    given: dict[str, Any] = {setting.name: str(setting.shown)}
    if setting.name in deployment.engine_args:
        given = {"engine_args": {**deployment.engine_args, **given}}
    try:
        stand_in = msgspec.structs.replace(deployment, **given)
    except KvcalcError as refused:
        return refused
    return _refusal(question._replace(deployment=stand_in)) or error
