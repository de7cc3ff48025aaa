"""From the lines of a start to the model and deployment that it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from kvcalc.answers.logs import Fact, Named
from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import KvcalcError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.engines import release_warning
from kvcalc.measure.logs.engine_settings import settings_from, stated_by
from kvcalc.measure.logs.errors import shortened
from kvcalc.measure.logs.release_guess import release_of
from kvcalc.measure.logs.starts import NO_ENGINE, Start
from kvcalc.models.gguf import model_of_entries
from kvcalc.models.presets import alias_index, load_gpu, load_model_preset
from kvcalc.models.shape import shape_model

__all__ = [
    "NOTHING",
    "Given",
    "Override",
    "Resolved",
    "foreign",
    "model_of",
    "overrides",
    "preset_of",
    "resolved",
    "undone",
]

_KEY = re.compile(r"(?P<type>\w+)(?:\[(?P<of>\w+),\s?(?P<length>\d+)\])? (?P<key>[\w.-]+)")
_WHOLE = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})


def model_of(start: Start, notes: list[str]) -> ModelSpec | None:
    """Return the model of a start of llama.cpp; None where its lines do not tell enough."""
    entries = _entries(start)
    if "general.architecture" in entries:
        try:
            return model_of_entries(entries, "the log's key-values")
        except KvcalcError as error:
            told = f"the log's key-values are not enough for the model: {error.message}"
            found = _by_shape(start)
            if found is None:
                notes.append(told)
            return found
    return _by_shape(start)


def _by_shape(start: Start) -> ModelSpec | None:
    try:
        return _shape(start.facts())
    except KvcalcError:
        return None


def _entries(start: Start) -> dict[str, bool | int | float | str | tuple[int, ...]]:
    found: dict[str, bool | int | float | str | tuple[int, ...]] = {}
    for name, setting in start.settings.items():
        match = _KEY.fullmatch(name)
        if match is None:
            continue
        value = _value(match["of"] or match["type"], setting.value, listed=match["of"] is not None)
        if value is None:
            continue
        if isinstance(value, tuple) and len(value) != int(match["length"]):
            continue  # printed with "..." in it
        found[match["key"]] = value
    return found


def _value(kind: str, text: str, *, listed: bool) -> bool | int | str | tuple[int, ...] | None:
    if listed:
        inside = text.strip("[] ")
        parts = [part.strip() for part in inside.split(",")]
        if kind == "bool" and all(part in ("true", "false") for part in parts):
            return tuple(int(part == "true") for part in parts)
        if kind in _WHOLE and all(re.fullmatch(r"-?\d{1,18}", part) for part in parts):
            return tuple(int(part) for part in parts)
        return None
    if kind == "bool":
        return {"true": True, "false": False}.get(text)
    if kind in _WHOLE:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None
    return text if kind == "str" else None


def _shape(facts: dict[str, Fact]) -> ModelSpec | None:
    """Return a model of equal layers, or of some with a window, where the lines say so."""

    def whole(name: str) -> int | None:
        low = facts[name].low if name in facts else None
        return low if isinstance(low, int) else None

    layers, heads = whole("n_layer"), whole("n_head_kv")
    width, v_width = whole("n_embd_head_k"), whole("n_embd_head_v")
    keys, window = whole("n_embd_k_gqa"), whole("n_swa")
    if not layers or not heads or not width or "state_size" in facts:
        return None
    if keys is not None and keys != heads * width:
        return None
    longest = whole("n_ctx_train")
    if not window:
        return shape_model(layers, heads, width, v_width, max_position_embeddings=longest)
    full, windows = whole("cache_layers"), whole("cache_layers_2")
    if not full or not windows or full + windows != layers or "cells_window" not in facts:
        return None
    # One cache is of the layers that keep every token, the other of those with a window.
    every = FullAttention(num_kv_heads=heads, head_dim=width, v_head_dim=v_width)
    sliding = SlidingWindow(
        num_kv_heads=heads, head_dim=width, v_head_dim=v_width, sliding_window=window
    )
    return ModelSpec(
        name=f"{full} layers and {windows} windows of {window}, {heads} KV heads x {width}",
        num_hidden_layers=layers,
        dtype="bfloat16",
        layers=(
            LayerRun(count=full, caches=(every,)),
            LayerRun(count=windows, caches=(sliding,)),
        ),
        max_position_embeddings=longest,
    )


# --------------------------------------------------------------------- overrides
#
# What was given against what the log itself says: each is told, and can be undone.


class Override(NamedTuple):
    """Something given that stands for another thing that the log says.

    Attributes:
        kind: of what.
        name: of the setting; `model`.
        given: as given.
        logged: what the log says instead.
        value: the same, as kvcalc takes it.
    """

    kind: Literal["setting", "argument", "model"]
    name: str
    given: str
    logged: str
    value: Any

    @property
    def told(self) -> str:
        """The contradiction in a sentence."""
        return f"{self.name} {self.given} is given, where the log says {self.logged}"


def overrides(
    fields: Mapping[str, tuple[Any, str]],
    args: Mapping[str, Any],
    settings: Mapping[str, Any],
    given_args: Mapping[str, Any],
) -> Iterator[Override]:
    """Yield the settings and arguments that are given as something else than the log says."""
    for name, (logged, _) in fields.items():
        if logged is not None and name in settings and not _same(logged, settings[name]):
            yield Override("setting", name, _shown(settings[name]), _shown(logged), logged)
    for name, logged in args.items():
        if name in given_args and not _same(logged, given_args[name]):
            yield Override("argument", name, _shown(given_args[name]), _shown(logged), logged)


def undone(
    model: ModelSpec, deployment: Deployment, some: Sequence[Override]
) -> tuple[ModelSpec, Deployment]:
    """Return a model and deployment with what the log says for what was given."""
    args = dict(deployment.engine_args)
    settings = {}
    for one in some:
        if one.kind == "model":
            model = one.value
        elif one.kind == "argument":
            args[one.name] = one.value
        else:
            settings[one.name] = one.value
    try:
        return model, msgspec.structs.replace(deployment, **settings, engine_args=args)
    except KvcalcError:
        return model, deployment


def foreign(architecture: str, model: ModelSpec) -> str:
    """Return what speaks against a model where the log names another architecture; "" if nothing.

    >>> from kvcalc.models.presets import load_model_preset
    >>> foreign("GptOssForCausalLM", load_model_preset("opt-13b").spec)
    "the log's architecture is GptOssForCausalLM, and opt-13b is a OPTForCausalLM"
    """
    mine = model.architecture
    if mine is None or _family(mine) == _family(architecture):
        return ""
    return f"the log's architecture is {architecture:.80}, and {model.name} is a {mine}"


def _family(architecture: str) -> str:
    """Return an architecture without what it is for, and without a text or picture part's name."""
    return architecture.partition("For")[0].replace("_", "").lower().removesuffix("text")


def _same(logged: Any, given: Any) -> bool:
    if logged == given or _shown(logged) == _shown(given):
        return True
    try:
        return cache_dtype(str(logged)).name == cache_dtype(str(given)).name
    except KvcalcError:
        return False


def _shown(value: Any) -> str:
    return value.name if isinstance(value, (ModelSpec, GpuSpec)) else f"{value!s:.60}"


# --------------------------------------------------------------------- resolve
#
# From a start's lines to the model and deployment that it was: what is given comes first.
#
# A log's model is looked up among the presets by its name; a path in a log is of another machine
# and is never opened.


class Given(NamedTuple):
    """What a user says of the server, whatever its log says.

    Attributes:
        model: instead of the log's.
        settings: fields of Deployment by name.
        args: engine_args.
        weights_bytes, quantization: of the model's weights.
        folders: folders of presets that come before kvcalc's.
        engine: whose log it is said to be; None for whatever it is.
    """

    model: ModelSpec | None = None
    settings: Mapping[str, Any] = {}
    args: Mapping[str, Any] = {}
    weights_bytes: int | None = None
    quantization: str | None = None
    folders: Sequence[Path] = ()
    engine: str | None = None


NOTHING = Given()
"""Nothing given: the log alone."""


class Resolved(NamedTuple):
    """A start's model and deployment.

    Attributes:
        model: None where neither the log nor the user names one that kvcalc has.
        deployment: as far as it is known.
        named: what it was made of, each with its source.
        version_told: the log or the user says which release it is.
        notes: what was assumed or could not be read.
        stated: settings that the log or the user says: no other value of theirs is a cause.
        overrides: what was given against what the log says.
        foreign: what speaks against a model that was given; "" for nothing.
        releases: whose rules the log may be of, where it does not say its own.
    """

    model: ModelSpec | None
    deployment: Deployment
    named: tuple[Named, ...]
    version_told: bool
    notes: tuple[str, ...]
    stated: frozenset[str] = frozenset()
    overrides: tuple[Override, ...] = ()
    foreign: str = ""
    releases: tuple[str, ...] = ()


_WEIGHTS_ONLY = re.compile(
    r"[-_.](?:awq|gptq|int4|int8|w4a16|w8a8|w8a16|w4a8|autoround|auto[-_]round|bnb|4bit|8bit|gguf"
    r"|fp8|fp8[-_]dynamic|quantized|mxfp4|marlin|q\d(?:_\w{1,4}){0,3}|iq\d\w{0,6}|unsloth|dynamic"
    r"|bf16|f16|fp16|exl2|exl3|hqq|nvfp4)$"
)
"""Endings of a repository's name that tell how its weights are kept, which its cache is not."""


def resolved(start: Start, facts: Mapping[str, Fact], given: Given) -> Resolved:
    """Return what a start was of, as its log and the user say."""
    named: list[Named] = []
    notes: list[str] = []
    model = _model(start, given, named, notes)
    fields, args = settings_from(start, facts)
    dated = release_of(start, dict(facts))
    told = dated.told or "engine_version" in given.settings
    if dated.version is not None and (dated.told or "engine_version" not in given.settings):
        fields["engine_version"] = (dated.version, dated.source)
        if not told:
            notes.append(
                f"the log does not say its version: taken as {dated.version}"
                f" ({dated.source}); --engine-version says another"
            )
    fields |= _gpu_named(facts, given, notes)
    against = [*overrides(fields, args, given.settings, given.args)]
    logged = _logged_model(start, given)
    if model is not None and logged is not None and logged.layers != model.layers:
        against.insert(0, Override("model", "model", model.name, logged.name, logged))
    notes += [f"{one.told}: what is given is taken" for one in against]
    strange = ""
    if given.model is not None and "architecture" in facts and logged is None:
        strange = foreign(facts["architecture"].printed, given.model)
        notes += [strange] if strange else []
    bare = Deployment(engine=given.engine or _engine(start))
    deployment = _deployed(bare, fields, given, named, notes)
    own = {name: value for name, value in args.items() if name not in given.args}
    named += [Named(name=n, value=str(v), source="the log") for n, v in own.items()]
    for name, value in {**given.settings, **given.args}.items():
        shown = value.name if isinstance(value, (ModelSpec, GpuSpec)) else str(value)
        named.append(Named(name=name, value=shown, source="given"))
    own.update(given.args)
    if start.record.logs_devices:
        _as_it_came_out(own)
    deployment = msgspec.structs.replace(deployment, **{**given.settings, "engine_args": own})
    if isinstance(deployment.gpu, str):
        deployment = msgspec.structs.replace(
            deployment, gpu=load_gpu(deployment.gpu, given.folders)
        )
    with suppress(KvcalcError):  # the plan is refused for it
        newer = release_warning(deployment.engine, deployment.engine_version)
        notes += [newer] if newer else []
    return Resolved(
        model=model,
        deployment=deployment,
        named=tuple(named),
        version_told=told,
        notes=tuple(notes),
        stated=stated_by(start, fields) | frozenset(given.settings),
        overrides=tuple(against),
        foreign=strange,
        releases=() if told else dated.others,
    )


def _gpu_named(
    facts: Mapping[str, Fact], given: Given, notes: list[str]
) -> dict[str, tuple[Any, str]]:
    """Return the GPU that a log names, if it names one."""
    if "card" not in facts:
        return {}
    name = shortened(facts["card"].printed, 60)
    found = _card(facts["card"].printed, given.folders)
    if found is None and "gpu" not in given.settings:
        notes.append(f"the log's GPU {name!r} is none that kvcalc knows: --gpu")
    return {"gpu": (found, f"the log: {name}")}


def _as_it_came_out(args: dict[str, Any]) -> None:
    """Let a plan change nothing anew: the log shows what the engine chose."""
    args.setdefault("fit", "off")
    if args.get("parallel") == 1:
        args.setdefault("kv_unified", True)  # some builds make four slots of one


def _deployed(
    deployment: Deployment,
    fields: Mapping[str, tuple[Any, str]],
    given: Given,
    named: list[Named],
    notes: list[str],
) -> Deployment:
    """Return a deployment with what the log says of it, as far as it makes sense."""
    for name, (value, source) in fields.items():
        if name in given.settings or value is None:
            continue
        try:
            deployment = msgspec.structs.replace(deployment, **{name: value})
        except KvcalcError as error:
            notes.append(f"{source} says {name} {value!r:.40}, which is left out: {error.message}")
            continue
        shown = value.name if isinstance(value, GpuSpec) else str(value)
        named.append(Named(name=name, value=shown, source=source))
    return deployment


_BRANDS = re.compile(r"nvidia|geforce|amd|instinct|radeon|apple|graphics|\((?:r|tm)\)|tesla")


def _card(text: str, folders: Sequence[Path]) -> GpuSpec | None:
    """Return the card that a driver's name for it means; None where no preset is it."""
    words = re.split(r"[\s_-]+", _BRANDS.sub(" ", text.lower()).strip())
    words = [word for word in words if word not in ("sxm", "sxm2", "sxm4", "sxm5", "hbm3", "hbm2e")]
    sized = [word for word in words if not re.fullmatch(r"\d+gb", word)]
    for name in (text, "-".join(words), "-".join(sized)):
        try:
            return load_gpu(name, folders)
        except KvcalcError:
            continue
    return None


def _engine(start: Start) -> str:
    for flag, engine in (("ascend", "vllm-ascend"), ("tpu", "vllm-tpu")):
        if flag in start.flags:
            return engine
    return "none" if start.engine in NO_ENGINE else start.engine


# ------------------------------------------------------------------------- the model


_NAMES = (
    *("model", "model_path", "model_id", "general.name", "str general.name"),
    "served_model_name",
)
"""What a log may call its model by, the best first."""


def _logged_model(start: Start, given: Given) -> ModelSpec | None:
    """Return the model that the log itself tells where another is given; None for none."""
    if given.model is None:
        return None
    found = model_of(start, []) if start.record.loads_gguf else None
    name = start.settings.text(*_NAMES)
    return found or (None if name is None else _preset(name, given.folders)[0])


def _model(start: Start, given: Given, named: list[Named], notes: list[str]) -> ModelSpec | None:
    if given.model is not None:
        named.append(Named(name="model", value=given.model.name, source="given"))
        return given.model
    if start.record.loads_gguf:
        found = model_of(start, notes)
        if found is not None:
            named.append(Named(name="model", value=found.name, source="the log's key-values"))
            return found
    name = start.settings.text(*_NAMES)
    if name is None:
        notes.append("the log names no model: --model NAME says which it is")
        return None
    preset, why = _preset(name, given.folders)
    if preset is None:
        notes.append(
            f"the log's model {shortened(name, 80)!r} is no preset: --model NAME or --config FILE"
            " says what it is"
        )
        return None
    if why:
        notes.append(why)
    named.append(Named(name="model", value=preset.name, source=f"the log: {shortened(name, 80)}"))
    return preset


def _preset(name: str, folders: Sequence[Path]) -> tuple[ModelSpec | None, str]:
    return preset_of(name, tuple(folders))


@lru_cache(maxsize=8)
def preset_of(name: str, folders: tuple[Path, ...]) -> tuple[ModelSpec | None, str]:
    """Return the preset of a repository or path, and what was assumed to find it.

    Kept for one start, whose settings are resolved more than once: each look reads all presets.
    """
    short = name.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1]
    short = re.sub(r"\.gguf$", "", short, flags=re.IGNORECASE)
    short = re.sub(r"-\d{5}-of-\d{5}$", "", short)
    if short.startswith("models--"):
        short = short.split("--")[-1]
    tries = [name, short, short.replace(" ", "-"), short.replace("_", "-")]
    if "/snapshots/" in name and "models--" in name:
        inside = name.split("models--", 1)[1].split("/", 1)[0]
        tries += [inside.replace("--", "/", 1), inside.split("--")[-1]]
    cut, bare = "", short.lower()
    for _ in range(5):
        match = _WEIGHTS_ONLY.search(bare)
        if match is None:
            break
        bare = bare[: match.start()]
        cut = short[len(bare) :]
        tries.append(bare)
    try:
        index = alias_index(folders)  # one reading of all of them, whatever is tried
    except KvcalcError:
        return None, ""
    for text in dict.fromkeys(tries):
        named = index.get(text.strip().lower())
        if named is None:
            continue
        try:
            found = load_model_preset(named, folders).spec
        except KvcalcError:
            continue
        shorter = text == bare and bare != short.lower()
        why = (
            f"{shortened(short, 60)} is taken as {found.name}: {shortened(cut, 40)} is about"
            " weights"
            if shorter
            else ""
        )
        return found, why
    return None, ""
