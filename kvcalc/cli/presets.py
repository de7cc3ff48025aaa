"""kvcalc presets: the models that come with kvcalc, and files of one's own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer

from kvcalc import __version__
from kvcalc.answers.per_token import layer_groups
from kvcalc.answers.results import FileFault, PresetDetail, PresetSummary, PresetVariant
from kvcalc.cli.inputs import echo, preset_folders
from kvcalc.cli.options import OUTPUT, Group, argument, register, text
from kvcalc.cli.output import emit, say, write_out
from kvcalc.cli.values import Values
from kvcalc.core.errors import InputError, InvalidValueError, UnknownNameError
from kvcalc.core.units import format_number_of
from kvcalc.models import load_model
from kvcalc.models.documents import Document, Plain, read_document
from kvcalc.models.preset_files import check_model
from kvcalc.models.preset_writer import preset_name, preset_text
from kvcalc.models.presets import (
    ModelPreset,
    all_models,
    load_model_preset,
    model_from_document,
    model_names,
    preset_folder,
    validate_file,
)
from kvcalc.models.text import printable, read_text

_FAULTY = 2
_ALL = "kvcalc presets list shows all"
_SOURCE = (
    argument("source", "SOURCE", "Where the model is.", str, default=...),
    text("name", "--name", help="The preset's name; the model's own by default.", panel="Model",
         metavar="NAME", env=False),
)  # fmt: skip


def add(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, invoke_without_command=True, rich_markup_mode=None)

    @group.callback()
    def options(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            write_out(ctx.get_help() + "\n")

    app.add_typer(group, name="presets", help="The models that come with kvcalc.")
    register(
        group,
        "list",
        show_list,
        (argument("parts", "TEXT", "Only presets whose names or aliases hold one of these."),),
        OUTPUT,
        help="Every model preset, or those with a text in the name: its layers and bytes a token.",
        epilog="Example: kvcalc presets list qwen3",
    )
    register(
        group,
        "show",
        show,
        (argument("names", "NAME", "Names, aliases or preset files."),),
        OUTPUT,
        help="One preset resolved: what its layers keep, its sources, what confirms it.",
        epilog="Example: kvcalc presets show qwen3.5-27b",
    )
    register(
        group,
        "validate",
        validate,
        (
            argument(
                "files",
                "FILE",
                "Preset files or folders of them; all that come with kvcalc when none is named.",
            ),
        ),
        OUTPUT,
        help="Check preset files; every fault with its line. Exit code 2 when there is one.",
        epilog="Example: kvcalc presets validate my-model.yaml",
    )
    register(
        group,
        "add",
        add_preset,
        _SOURCE,
        help="Print a preset file of a model (config.json, a folder, GGUF, hf:ORG/NAME), to be"
        " kept as NAME.yaml.",
        epilog="Example: kvcalc presets add ./config.json --name my-model > my-model.yaml",
    )


def show_list(values: Values) -> None:
    """List the model presets whose names or aliases hold one of the texts; all without a text."""
    parts = [part.lower() for part in values["parts"] or [""]]
    presets = [
        preset
        for preset in all_models(preset_folders())
        if any(part in name.lower() for part in parts for name in preset.names)
    ]
    if not presets:
        raise UnknownNameError(
            "preset", printable(" ".join(parts)), model_names(preset_folders()), hint=_ALL
        )
    emit("presets-list", values, echo(values), [_summary(p) for p in presets], [])


def show(values: Values) -> None:
    """Show presets in full."""
    names = values["names"]
    if not names:
        raise typer.BadParameter(f"name a preset; {_ALL}")
    presets = [_named(name) for name in names]
    emit("presets-show", values, echo(values), [_detail(p) for p in presets], [])


def _named(name: str) -> ModelPreset:
    """Return a preset by its name or alias, or from its file."""
    if name.lower().endswith((".yaml", ".yml")):
        return model_from_document(read_document(read_text(name), printable(name)))
    return load_model_preset(name, preset_folders())


def _files(paths: Sequence[str]) -> list[str]:
    """Return preset files, those in a folder (and in folders of it) for the folder.

    Raises:
        InputError: a folder without any.
    """
    files: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(path)
            continue
        found = (p for pattern in ("*.yaml", "*.yml") for p in Path(path).rglob(pattern))
        inside = sorted(str(p) for p in found if p.is_file())
        if not inside:
            raise InputError(
                "no preset file is in it", hint="presets are *.yaml", where=printable(path)
            )
        files += inside
    return files


def validate(values: Values) -> None:
    """Check files and leave with 2 when one has a fault."""
    files = _files(values["files"] or [str(preset_folder())])
    results: list[FileFault] = []
    for file in files:
        short = file if values["files"] else "/".join(file.replace("\\", "/").split("/")[-2:])
        shown = printable(short)
        faults = validate_file(file)
        results += [FileFault(file=shown, line=f.line, message=f.message) for f in faults]
        if not faults:
            results.append(FileFault(file=shown, line=None, message=None))
    emit("presets-validate", values, echo(values), results, [])
    count = sum(r.message is not None for r in results)
    if count:
        faulty, among = format_number_of(count, "fault"), format_number_of(len(files), "file")
        say("error", f"{faulty} in {among}")
        raise typer.Exit(_FAULTY)


def add_preset(values: Values) -> None:
    """Print the preset file of a model."""
    spec = load_model(values["source"], folders=preset_folders())
    name = preset_name(spec.name) if values["name"] is None else values["name"]
    _check_name(name)
    dtype = spec.resolve("auto").name
    grown = spec.bytes_per_token(dtype)
    write_out(
        preset_text(
            spec,
            name=name,
            title=spec.name,
            source={
                "repository": spec.name,
                "file": printable(values["source"].rsplit("/", 1)[-1]),
            },
            bytes_per_token={dtype: grown} if grown is not None else {},
            state_bytes=spec.state_bytes(),
            confirmed_by=[f"kvcalc {__version__}, when it was added; not yet by an engine"],
        )
    )


def _check_name(name: str) -> None:
    """Refuse a name that a preset file may not have.

    Raises:
        InvalidValueError: says what is wrong with it.
    """
    faults = _name_faults(name)
    # A name that is in order stands in the file without quotes, where `7` is a number.
    faults = faults or _name_faults(read_document(name, "--name").value)
    if faults:
        raise InvalidValueError(
            faults[0], hint="give a name such as my-model-7b (--name)", where="--name"
        )


def _name_faults(name: Plain) -> list[str]:
    document = Document({"kind": "model", "name": name}, "--name", {(): 1})
    return [f.message for f in check_model(document)[1] if f.path == ("name",)]


def _summary(preset: ModelPreset) -> PresetSummary:
    spec = preset.spec
    kinds: Counter[str] = Counter()  # in the order in which they first appear
    for run in spec.layers:
        kinds[run.label] += run.count
    return PresetSummary(
        name=spec.name,
        title=preset.title,
        num_hidden_layers=spec.num_hidden_layers,
        kinds=", ".join(f"{count} {kind.replace('+', ' + ')}" for kind, count in kinds.items()),
        bytes_per_token=spec.bytes_per_token(),
        state_bytes=spec.state_bytes(),
        max_position_embeddings=spec.max_position_embeddings,
    )


def _detail(preset: ModelPreset) -> PresetDetail:
    spec, source = preset.spec, preset.source
    return PresetDetail(
        name=spec.name,
        title=preset.title,
        aliases=preset.aliases,
        variants=tuple(
            PresetVariant(names=one.names, differs=one.differences(), source=one.source)
            for one in preset.variants
        ),
        architecture=spec.architecture,
        dtype=spec.dtype,
        num_hidden_layers=spec.num_hidden_layers,
        max_position_embeddings=spec.max_position_embeddings,
        layers=layer_groups(spec),
        draft_layers=sum(run.count for run in spec.draft_layers),
        size=spec.size,
        notes=spec.notes,
        source={
            "repository": source.repository,
            "file": source.file,
            "note": source.note,
            "maximum": source.maximum,
        },
        expect_bytes_per_token=preset.expect.bytes_per_token,
        expect_state_bytes=preset.expect.state_bytes,
        confirmed_by=preset.expect.confirmed_by,
        file=preset.file,
    )
