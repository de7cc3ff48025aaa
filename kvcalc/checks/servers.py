"""From a server that a file starts to what is checked of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvcalc.answers.assertions import Assertion
from kvcalc.checks.cards import memory_only
from kvcalc.checks.context import Context
from kvcalc.checks.file import Entry, Given
from kvcalc.checks.lengths import is_stretched, lets_longer
from kvcalc.checks.models import Found
from kvcalc.checks.sized import Load
from kvcalc.checks.targets import Fault, Target
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnknownNameError, printable
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines import engine_asked
from kvcalc.engines import known as known_engine
from kvcalc.manifests.found import Finding, Server, Setting
from kvcalc.manifests.gpus import find_card, other_device
from kvcalc.models.hf_config.weight_formats import format_of_section
from kvcalc.sizing import Question
from kvcalc.weights.formats import UNKNOWN_FORMAT, WIDTHS, weight_width

__all__ = ["Said", "format_of_weights", "of_alternatives", "of_entry", "of_server"]


_NOTHING = Entry("", 0)
_HEADS = ("eagle", "eagle3")
"""Methods whose draft is one layer of its target's shape where nothing else is known."""
_NO_CARD = (
    "nothing says which card it runs on",
    "name it: --gpu h100-80gb, or gpu: h100-80gb in kvcalc.yaml",
)
_DECISIVE = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len"),
    *("kv_cache_dtype", "gpu_memory_utilization", "kv_cache_memory_bytes", "ctx_size", "parallel"),
    *("mem_fraction_static", "context_length", "max_seq_len", "free_gpu_memory_fraction"),
)
"""Settings without which no figure means anything."""


def of_server(
    server: Server,
    context: Context,
    entry: Entry = _NOTHING,
    *,
    name: str = "",
    loads: tuple[Load, ...] = (),
) -> Target:
    """Return what is checked of a server.

    Args:
        server: as it was read.
        context: of the run.
        entry: what kvcalc.yaml says of it beside its file.
        name: what to call it; its own name otherwise.
        loads: its workloads.
    """
    return _Build(server, context, entry, loads).target(name or server.invocation.name)


def of_alternatives(
    server: Server,
    context: Context,
    entry: Entry = _NOTHING,
    *,
    name: str = "",
    loads: tuple[Load, ...] = (),
) -> list[Target]:
    """Return what is checked of a server, once on each of the cards that its file lets it have."""
    gpu = server.invocation.gpu
    cards = [gpu.product, *gpu.choices] if gpu.product is not None and gpu.choices else []
    apart = {find_card(word.text).name or word.text: word for word in cards if word}
    if len(apart) < 2 or context.gpu is not None or "gpu" in entry.settings:  # noqa: PLR2004
        return [of_server(server, context, entry, name=name, loads=loads)]
    called = name or server.invocation.name
    found: list[Target] = []
    for card, word in apart.items():
        asked = server.invocation._replace(gpu=gpu._replace(product=word, choices=()))
        one = server._replace(invocation=asked, findings=() if found else server.findings)
        label = word.shown if word.variables else card
        found.append(of_server(one, context, entry, name=f"{called}/{label}", loads=loads))
    return found


def of_entry(
    entry: Entry, context: Context, file: str, loads: tuple[Load, ...], defaults: Entry
) -> Target:
    """Return what is checked of a deployment whose settings stand in kvcalc.yaml itself."""
    settings = {**defaults.settings, **entry.settings}
    args = {**defaults.args, **entry.args}
    beside = {**defaults.beside, **entry.beside}
    named = _text(beside.get("model"))
    made = Target(
        entry.name,
        file,
        entry.line,
        model=named,
        price=_price(beside, context),
        copies=_count(beside, "replicas", 1),
        assertions=_assertions(context, entry),
        levels={**context.levels, **entry.levels},
        loads=loads,
        figures=context.figures,
        lines={name: given.line for name, given in {**settings, **args}.items()},
        settings_file=file,
        asked_release=context.engine_version is not None,
    )
    fields: dict[str, Any] = {key: given.value for key, given in settings.items()}
    names = _Names(made, context, {**settings, **{k: g for k, g in beside.items() if k == "model"}})
    engine = names.engine(fields.pop("engine", None), named)
    card = names.card(beside.get("gpu_memory"))
    fields.pop("gpu", None)
    found = names.model(named)
    draft = names.draft(fields.get("draft_model"))
    made = names.made._replace(engine=engine, gpu=card)
    if engine is None:
        return made
    if draft is not None:
        fields["draft_model"] = draft
    try:
        deployment = _deployment(
            engine, fields, {key: given.value for key, given in args.items()}, card, context
        )
    except KvcalcError as error:
        return _stopped(made, "bad-setting", error, made.line)
    made = made._replace(engine_version=deployment.engine_version)
    if found is None or made.faults:
        return made
    return _asked(made, deployment, found, beside, context)


class _Names:
    """Looks up what a deployment of kvcalc.yaml names; each name that is not known is a fault."""

    def __init__(self, made: Target, context: Context, given: Mapping[str, Given]) -> None:
        self.made = made
        self.context = context
        self.given = given

    def fault(self, code: str, key: str, error: KvcalcError) -> None:
        line = self.given[key].line if key in self.given else self.made.line
        told = Fault(code, str(error), error.hint, line)
        self.made = self.made._replace(faults=(*self.made.faults, told))

    def engine(self, given: Any, model: str | None) -> str | None:
        try:
            return known_engine(str(given or _engine_for(model or "")))
        except KvcalcError as error:
            self.fault("unknown-engine", "engine", error)
            return None

    def card(self, memory: Given | None) -> GpuSpec | None:
        try:
            card = self.context.card(_text(self.given.get("gpu")))
        except KvcalcError as error:
            self.fault("unknown-gpu", "gpu", error)
            return None
        return card if memory is None else _with_memory(card, int(memory.value))

    def model(self, named: str | None) -> Found | None:
        if named is None:
            error = InvalidValueError("no model is named", hint="write model: llama-3.1-8b")
            self.fault("unknown-model", "model", error)
            return None
        try:
            return self.context.models.find(named)
        except KvcalcError as error:
            self.fault("unknown-model", "model", error)
            return None

    def draft(self, named: Any) -> ModelSpec | None:
        if not isinstance(named, str):
            return None
        try:
            return self.context.models.find(named).model
        except KvcalcError as error:
            self.fault("unknown-model", "draft_model", error)
            return None


def _engine_for(model: str) -> str:
    return "llama.cpp" if model.lower().endswith(".gguf") else "vllm"


class _Build:
    def __init__(
        self, server: Server, context: Context, entry: Entry, loads: tuple[Load, ...]
    ) -> None:
        self.server = server
        self.context = context
        self.entry = entry
        self.loads = loads

    def target(self, name: str) -> Target:
        server, entry, context = self.server, self.entry, self.context
        invocation = server.invocation
        beside = entry.beside
        model = _text(beside.get("model"))
        if model is None and server.model is not None and server.model.value is not None:
            model = str(server.model.value)
        version = _text(entry.settings.get("engine_version")) or server.engine_version
        made = Target(
            name,
            invocation.file,
            invocation.line,
            engine=_text(entry.settings.get("engine")) or server.engine,
            engine_version=context.engine_version or version,
            model=model,
            copies=_count(beside, "replicas", invocation.replicas or 1),
            price=_price(beside, context),
            flags=True,
            findings=server.findings,
            assertions=_assertions(context, entry),
            levels={**context.levels, **entry.levels},
            loads=self.loads,
            figures=context.figures,
            server=server,
            lines={name: given.line for name, given in {**entry.settings, **entry.args}.items()},
            settings_file=entry.file,
            asked_release=context.engine_version is not None,
        )
        if made.engine is None:
            return made._replace(
                reason="no engine was recognised",
                hint="kvcalc check -- vllm serve ... reads a command as it is",
            )
        try:
            made = made._replace(gpu=self._card())
        except UnknownNameError as error:
            typed = entry.settings.get("gpu")
            if typed is None or context.gpu is not None:
                made = made._replace(no_card=(str(error), error.hint))
            else:
                made = _faulty(made, "unknown-gpu", error, typed.line, entry.file)
        other = other_device(invocation.gpu)
        if made.gpu is None and made.no_card is None and other is not None:
            why = f"{printable(other)} counts devices that are no GPUs, which kvcalc does not size"
            made = made._replace(no_card=(why, "give --gpu-memory, and mind that it is a guess"))
        return self._completed(made)

    def _card(self) -> GpuSpec | None:
        gpu = self.server.invocation.gpu
        word = _text(self.entry.settings.get("gpu"))
        product, key = (word, None) if word is not None else (None, gpu.product_key)
        if product is None and gpu.product is not None:
            product = gpu.product.text
        card = self.context.card(product, key)
        if self.context.gpu_memory is None and gpu.memory_bytes is not None:
            card = _with_memory(card, gpu.memory_bytes)
        elif card is not None and gpu.memory_percent:
            card = card.with_memory(card.memory_bytes * gpu.memory_percent // 100)
        memory = self.entry.beside.get("gpu_memory")
        return card if memory is None else _with_memory(card, int(memory.value))

    def _completed(self, made: Target) -> Target:
        read = {s.name: s for s in self.server.settings}
        open_ = [
            s.written
            for s in read.values()
            if s.value is None and s.name in _DECISIVE and s.name not in self.entry.settings
        ]
        if open_ and not made.reason:
            made = made._replace(
                reason=f"nothing gives {', '.join(open_)} a value",
                hint="give the variable a value where the file is read, or a default in the file",
            )
        fields: dict[str, Any] = {
            s.name: s.value for s in read.values() if s.kind == "field" and s.value is not None
        }
        args = {s.name: s.value for s in read.values() if s.kind == "arg" and s.value is not None}
        fields |= {
            key: given.value
            for key, given in self.entry.settings.items()
            if key not in ("gpu", "engine")
        }
        args |= {key: given.value for key, given in self.entry.args.items()}
        args |= _longer(str(made.engine), self.server)
        if made.engine_version is not None:
            fields["engine_version"] = made.engine_version
        try:
            engine = known_engine(str(made.engine))
        except KvcalcError as error:
            typed = self.entry.settings.get("engine")
            if typed is None:
                return _stopped(made, "bad-setting", error, made.line)
            return _faulty(made, "unknown-engine", error, typed.line, self.entry.file)
        try:
            deployment = _deployment(engine, fields, args, made.gpu, self.context)
        except KvcalcError as error:
            return _stopped(made, "bad-setting", error, made.line)
        made, found = self._model(made)
        if made.reason and found is None:
            return made
        made, deployment = self._drafted(made, deployment)
        if made.faults or found is None:
            return made
        auto = read.get("max_model_len")
        made = made._replace(
            auto_length=auto is not None and auto.value == "auto" and auto.kind == "other"
        )
        beside = {**self.context.beside, **self.entry.beside}
        return _asked(made, deployment, found, beside, self.context)

    def _drafted(self, made: Target, deployment: Deployment) -> tuple[Target, Deployment]:
        """Look the draft model up as the model is; one that is not known is no fault."""
        import msgspec

        draft = deployment.draft_model
        if not isinstance(draft, str):
            return made, deployment
        at = next((s for s in self.server.settings if s.name == "draft_model"), None)
        try:
            found = self.context.models.find(draft, at.variables if at is not None else ())
        except UnknownNameError as error:
            shown = printable(str(at.shown) if at is not None else draft)[:80]
            assumed = engine_asked(made.engine).assumes_draft
            if not assumed and not _ignores_draft(deployment):
                why = f"the draft model {shown} is not known, and keeps a cache, too"
                made = made._replace(reason=made.reason or why, hint=made.hint or error.hint)
                return made, deployment
            if not assumed:
                return made, msgspec.structs.replace(deployment, draft_model=None)
            method = deployment.speculative_method or "draft_model"
            note = Finding(
                "assumed-draft",
                "note",
                f"the draft {shown} is not known: it is taken to be one layer of its target's"
                " shape, without its weights",
                error.hint,
                *((at.line, at.file) if at is not None else ()),
            )
            heads = (note,) if method in _HEADS else ()
            made = made._replace(findings=(*made.findings, *heads))
            return made, msgspec.structs.replace(
                deployment, draft_model=None, speculative_method=method
            )
        except KvcalcError as error:
            place = (at.line, at.file) if at is not None else (0, "")
            return _faulty(made, "unknown-model", error, *place), deployment
        return made, msgspec.structs.replace(deployment, draft_model=found.model)

    def _model(self, made: Target) -> tuple[Target, Found | None]:
        """Return what is served."""
        at = self.server.model
        if made.model is None:
            made = made._replace(model=self.context.models.fallback)
        if made.model is None:
            what = "a variable without a value names the model" if at else "no model is named"
            hint = "give the variable a value, or name the model with --model"
            return made._replace(reason=what, hint=hint), None
        variables = at.variables if at is not None and at.value == made.model else ()
        try:
            return made, self.context.models.find(made.model, variables)
        except KvcalcError as error:
            place = (at.line, at.file) if at is not None else (0, "")
            return _faulty(made, "unknown-model", error, *place), None


def _ignores_draft(deployment: Deployment) -> bool:
    """Whether the algorithm keeps no draft, is not modelled, or is the model's own layers."""
    algorithm = str(deployment.engine_args.get("speculative_algorithm", "")).upper()
    return algorithm in ("NGRAM", "DSPARK", "FROZEN_KV_MTP", "UNO")


def _longer(engine: str, server: Server) -> dict[str, int]:
    """Return the variable that lets a maximum beyond the config's pass, where that is its server's.

    What a rope scaling or an override makes of the config's own maximum is not known here.
    """
    switch = engine_asked(engine).longer
    if switch and (lets_longer(server, switch) or is_stretched(server)):
        return {switch: 1}
    return {}


def _deployment(
    engine: str,
    fields: Mapping[str, Any],
    args: Mapping[str, Any],
    card: GpuSpec | None,
    context: Context,
) -> Deployment:
    given = dict(fields)
    if context.engine_version is not None:
        given["engine_version"] = context.engine_version
    if engine == "none":
        given.pop("engine_version", None)
    known = Deployment.__struct_fields__
    for name in given:
        if name not in known:
            raise InvalidValueError(f"{name} is no setting of a deployment", hint="leave it out")
    return Deployment(engine=engine, gpu=card, engine_args=dict(args), **given)


def _with_memory(card: GpuSpec | None, memory_bytes: int) -> GpuSpec:
    return memory_only(memory_bytes) if card is None else card.with_memory(memory_bytes)


def _asked(
    made: Target,
    deployment: Deployment,
    found: Found,
    beside: Mapping[str, Given],
    context: Context,
) -> Target:
    """Return a target with its question."""
    if made.reason:
        return made
    if deployment.gpu is None and deployment.kv_cache_memory_bytes is None:
        made = made._replace(no_card=made.no_card or _NO_CARD)
    free = beside.get("gpu_free")
    weights = beside.get("weights")
    given = Said(
        entry=_text(own) if (own := _own(beside, context)) is not None else None,
        option=context.quantization,
        default=_text(beside.get("quantization")),
        sized=weights is not None,
    )
    made, quantization = format_of_weights(made, found, given)
    question = Question(
        model=found.model,
        deployment=deployment,
        weights_bytes=None if weights is None else int(weights.value),
        quantization=quantization,
        sequences=context.sequences or _count(beside, "sequences", 1),
        instances=_count(beside, "instances", 1),
        free_bytes=context.gpu_free if free is None else int(free.value),
        host_bytes=_host_memory(made, beside, context),
    )
    return made._replace(question=question, findings=(*made.findings, *_over(made, question)))


def _host_memory(made: Target, beside: Mapping[str, Given], context: Context) -> int | None:
    """Return the host memory that a server may have: as asked for, else its container's limit."""
    given = beside.get("host_memory")
    limit = None if made.server is None else made.server.invocation.memory_limit
    if context.host_memory is not None or given is not None:
        return context.host_memory if given is None else int(given.value)
    return None if limit is None else limit.bytes


def _own(beside: Mapping[str, Given], context: Context) -> Given | None:
    """Return the format that a deployment's own entry gives, and not the file's top."""
    given = beside.get("quantization")
    return None if given is context.beside.get("quantization") else given


def _over(made: Target, question: Question) -> Iterator[Finding]:
    """Yield findings on workloads with requests that the server would refuse."""
    longest = question.deployment.max_model_len or question.model.longest
    for load in made.loads:
        if load.over is not None or longest is None:
            continue
        over = load.lengths.requests_over(longest)
        if over:
            yield Finding(
                "requests-over-maximum",
                "error",
                f"{format_count(over)} of {format_number_of(load.lengths.requests, 'request')} of"
                f" {load.name} are longer than the maximum of {format_count(longest)} tokens",
                f"max_model_len {load.lengths.longest} takes all; or say what becomes of them:"
                " over: clip",
                amount=over,
            )


def _stopped(made: Target, code: str, error: KvcalcError, line: int) -> Target:
    """Return a target that an error ends: it is a finding, and there is no question."""
    finding = Finding(code, "error", error.message, error.hint, line)
    return made._replace(
        findings=(*made.findings, finding), reason="a setting cannot be", hint=error.hint
    )


def _faulty(made: Target, code: str, error: KvcalcError, line: int, file: str) -> Target:
    """Return a target with one fault more."""
    return made._replace(faults=(*made.faults, Fault(code, str(error), error.hint, line, file)))


def _assertions(context: Context, entry: Entry) -> dict[str, Assertion]:
    return {**context.assertions, **entry.assertions}


def _text(given: Given | None) -> str | None:
    return None if given is None else str(given.value)


def _count(beside: Mapping[str, Given], name: str, default: int) -> int:
    given = beside.get(name)
    return default if given is None else int(given.value)


def _price(beside: Mapping[str, Given], context: Context) -> float | None:
    given = beside.get("price_per_gpu_hour")
    return context.price if given is None else float(given.value)


# Which format the weights of a target are in: by whoever says it most plainly.
#
# In this order: the deployment's own entry, one's map of models, `--quantization` or its variable,
# the server's flags, what the checkpoint itself says, the top of kvcalc.yaml, and last what the
# model is called, which is an assumption and is printed as one.


class Said(NamedTuple):
    """What a user says of the weights.

    Attributes:
        entry: of the deployment itself.
        option: of the run: `--quantization`, or its variable.
        default: at the top of kvcalc.yaml, for what nothing else says.
        sized: their bytes are given, so that no format matters.
    """

    entry: str | None = None
    option: str | None = None
    default: str | None = None
    sized: bool = False


_ON_LOADING = (
    *("fp8", "ptpc_fp8", "fp8_per_tensor", "fp8_per_block", "mxfp8", "mxfp4", "int8_per_channel"),
    *("experts_int8", "bitsandbytes", "eetq", "bitsandbytes-nf4", "bitsandbytes-fp4", "w8a8_fp8"),
)
"""Words with which an engine brings plain weights into a format; all others only say what the
checkpoint is in (vLLM layers/quantization/__init__.py, SGLang layers/quantization)."""


def format_of_weights(made: Target, found: Found, said: Said) -> tuple[Target, str | None]:
    """Return the format of a target's weights; None: as published. Assumptions become findings."""
    told = said.entry or found.quantization or said.option
    if told is not None:
        return made, told
    stored = None if found.model.size is None else found.model.size.weights_dtype
    plain = stored in (None, UNKNOWN_FORMAT, *WIDTHS)
    setting = _flag(made)
    if setting is not None and (plain or str(setting.value) in _ON_LOADING):
        return _by_flag(made, found, setting)
    if not plain:
        return made, None
    if said.default is not None:
        return made, said.default
    return _by_name(made, found, sized=said.sized)


def _flag(made: Target) -> Setting | None:
    """Return the setting that says what the weights are in, or are brought into."""
    settings = () if made.server is None else made.server.settings
    read = {setting.name: setting for setting in settings if setting.value is not None}
    overrides = read.get("hf_overrides")
    if overrides is not None:
        inner = format_of_section(_section(overrides.value))
        if inner is not None:
            return overrides._replace(value=inner)
    word = read.get("quantization")
    if word is not None and str(word.value).lower() not in ("", "none", "null"):
        return word
    load = read.get("load_format")
    return load if load is not None and load.value == "bitsandbytes" else None


def _section(value: object) -> dict[str, Any]:
    try:
        found = json.loads(str(value))
    except ValueError:
        return {}
    inner = found.get("quantization_config") if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else {}


def _by_flag(made: Target, found: Found, setting: Setting) -> tuple[Target, str | None]:
    """Return the format that a flag says; what only declares a kind is refined by the name."""
    word = str(setting.value)
    if found.by_name is not None and word not in _ON_LOADING:
        return _by_name(made, found, sized=False)
    try:
        weight_width(word)
    except KvcalcError:
        note = Finding(
            "weights-format",
            "note",
            f"{setting.written} names a format of weights whose size is not known: they are"
            " counted as published",
            "give their size: weights: 40GiB in kvcalc.yaml",
            setting.line,
            setting.file,
        )
        return made._replace(findings=(*made.findings, note)), None
    return made, word


def _by_name(made: Target, found: Found, *, sized: bool) -> tuple[Target, str | None]:
    """Return what the served name says, and a note that it was taken for granted."""
    if found.by_name is None or sized:
        return made, None
    at = None if made.server is None else made.server.model
    note = Finding(
        "weights-format-by-name",
        "note",
        found.by_name.assumption(),
        "say what it is: quantization: of the model in kvcalc.yaml, or name its config.json",
        *((0, "") if at is None else (at.line, at.file)),
    )
    return made._replace(findings=(*made.findings, note)), found.by_name.format
