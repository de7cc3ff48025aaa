"""Read which architectures an engine serves by release from its unpacked sources.

    python -m tests.tools.served_architectures vllm SOURCES TRANSFORMERS [--write]

SOURCES holds a folder a release with the engine's Python package, TRANSFORMERS the same of that
library. The tables lie beside the engines (`served.tsv`; kvcalc.engines.served reads them). With
--write the table is written, without it only compared. A release that is not there has what the one
before it has.

What no release has (any more) and transformers' own code runs in its place is told for the
architectures that kvcalc reads: vLLM's models/registry.py, _try_resolve_transformers; SGLang's
model_loader/utils.py, resolve_transformers_arch: classes with _supports_attention_backend.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kvcalc.engines.served import HOW
from kvcalc.models.hf_config.registry import ARCHITECTURES

ENGINES = Path(__file__).parents[2] / "kvcalc" / "engines"

Number = tuple[int, int, int]


class Source(NamedTuple):
    """How an engine's registry is read.

    Attributes:
        read: its package -> architecture -> how it is served.
        first: the oldest release of the table.
        libraries: (release, transformers that is installed with it and later ones); empty where
            the engine does not fall back on it.
    """

    read: Callable[[Path], dict[str, str]]
    first: Number = (0, 0, 0)
    libraries: tuple[tuple[Number, str], ...] = ()


_POOLING = ("EMBEDDING", "CROSS_ENCODER", "LATE_INTERACTION", "REWARD", "CLASSIFICATION")
_FILES = ("model_executor/models/registry.py", "model_executor/models/__init__.py",
          "model_executor/model_loader.py")  # fmt: skip
_TABLES = re.compile(
    r"_(?:MODEL_REGISTRY|MODELS|GENERATION_MODELS|CONDITIONAL_GENERATION_MODELS"
    r"|TEXT_GENERATION_MODELS|MULTIMODAL_MODELS|EMBEDDING_MODELS|CROSS_ENCODER_MODELS"
    r"|LATE_INTERACTION_MODELS|REWARD_MODELS|TOKEN_CLASSIFICATION_MODELS"
    r"|SEQUENCE_CLASSIFICATION_MODELS|SPECULATIVE_DECODING_MODELS|TRANSFORMERS_MODELS"
    r"|TRANSFORMERS_SUPPORTED_MODELS|TRANSFORMERS_BACKEND_MODELS)"
)
_CONVERTED = (("ForSequenceClassification", (0, 10, 0)), ("Model", (0, 10, 2)))
"""Endings of what is made of the ForCausalLM of the same name, and since which release of vLLM
(_normalize_archs, _normalize_arch)."""


def of_vllm(package: Path) -> dict[str, str]:
    """Read the dictionaries of models/registry.py, or where they were before."""
    found: dict[str, str] = {}
    for file in _FILES:
        path = package / file
        for name, keys in _dicts(path) if path.is_file() else ():
            if not _TABLES.fullmatch(name):
                continue
            how = "own"
            if any(word in name for word in _POOLING):
                how = "pooling"
            elif name == "_SPECULATIVE_DECODING_MODELS":
                how = "draft"
            elif name.startswith("_TRANSFORMERS"):
                how = "transformers"
            for key in keys:
                found.setdefault(key, how)
    return found


def of_sglang(package: Path) -> dict[str, str]:
    """Read EntryClass of every module in srt/models."""
    found: dict[str, str] = {}
    for path in sorted((package / "srt" / "models").glob("*.py")):
        for node in _body(path):
            if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "EntryClass":
                continue
            names = [n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)]
            how = "transformers" if path.stem.startswith("transformers") else "own"
            found.update(dict.fromkeys(names, how))
    return found


def of_lmdeploy(package: Path) -> dict[str, str]:
    """Read MODULE_MAP of the PyTorch engine and SUPPORTED_ARCHS of TurboMind."""
    text = (package / "pytorch" / "models" / "module_map.py").read_text(encoding="utf-8")
    updates = re.findall(r"^MODULE_MAP\.update\((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    pytorch = {name for part in updates for name in re.findall(r"'(\w+)'\s*:", part)}
    for name, keys in _dicts(package / "pytorch" / "models" / "module_map.py"):
        pytorch.update(keys if name == "MODULE_MAP" else ())
    (call,) = (
        node.value
        for node in _body(package / "turbomind" / "supported_models.py")
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        and ast.unparse(node.targets[0]) == "SUPPORTED_ARCHS"
    )  # fmt: skip
    turbomind = {str(word.arg) for word in call.keywords}
    found = dict.fromkeys(pytorch | turbomind, "own")
    found.update(dict.fromkeys(pytorch - turbomind, "pytorch"))
    found.update(dict.fromkeys(turbomind - pytorch, "turbomind"))
    return found


def of_tensorrt_llm(package: Path) -> dict[str, str]:
    """Read the PyTorch backend's index; of others a built engine or AutoDeploy may have rules."""
    names: dict[str, str] = {}
    exec((package / "_torch" / "models" / "_arch_index.py").read_text(encoding="utf-8"), names)
    found = dict.fromkeys(ARCHITECTURES, "elsewhere")
    found.update(dict.fromkeys(names["MODEL_ARCH_TO_MODULE"], "own"))
    return found


def of_transformers(package: Path) -> dict[str, str]:
    """Look for the classes in the library; others come with their checkpoint's own code."""
    found = dict.fromkeys(ARCHITECTURES, "remote")
    for path in package.glob("models/*/modeling_*.py"):
        names = re.findall(r"^class (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        found.update(dict.fromkeys(set(names) & found.keys(), "own"))
    return found


SOURCES = {
    "vllm": Source(
        of_vllm,
        (0, 2, 0),
        (((0, 7, 2), "4.51.3"), ((0, 11, 0), "4.57.6"), ((0, 24, 0), "5.20.0")),
    ),
    "sglang": Source(
        of_sglang,
        (0, 4, 7),
        (((0, 4, 7), "4.51.3"), ((0, 5, 3), "4.57.6"), ((0, 5, 10), "5.20.0")),
    ),
    "lmdeploy": Source(of_lmdeploy),
    "tensorrt_llm": Source(of_tensorrt_llm),
    "transformers": Source(of_transformers, (5, 24, 0)),
}


def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8-sig")).body


def _dicts(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in _body(path):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Dict):
            yield target.id, [str(k.value) for k in value.keys if isinstance(k, ast.Constant)]


def _compatible(library: Path) -> set[str]:
    """Return the classes of a release of transformers whose attention an engine can replace."""
    found: set[str] = set()
    for path in library.glob("transformers/models/*/modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        if "_supports_attention_backend = True" in text:
            found.update(re.findall(r"^class (\w+)\(", text, re.MULTILINE))
    return found


def rows(engine: str, sources: Path, libraries: Path) -> list[str]:
    """Return the lines of an engine's table."""
    source = SOURCES[engine]
    served: dict[Number, dict[str, str]] = {}
    for folder in sorted(sources.iterdir(), key=lambda path: _order(path.name)):
        places = (folder / engine, folder / "python" / engine)
        package = next((place for place in places if place.is_dir()), None)
        major, minor, patch = _order(folder.name)[:3]
        if package is not None and (major, minor, patch) >= source.first:
            served[major, minor, patch] = source.read(
                package
            )  # of a release and its posts the last
    compatible = {name: _compatible(libraries / name) for _, name in source.libraries}
    later: set[str] = set()
    for number, has in reversed(served.items()):
        library = [name for first, name in source.libraries if first <= number]
        for name in ARCHITECTURES:
            if name in has:
                continue
            if engine == "vllm" and _converted(name, number, has):
                has[name] = "pooling"
            elif name not in later and library and name in compatible[library[-1]]:
                has[name] = "fallback"
        later.update(name for name, how in has.items() if how != "fallback")
    names = {*ARCHITECTURES, *(name for has in served.values() for name in has)}
    return [line for name in sorted(names) for line in _lines(name, served)]


def _converted(name: str, number: Number, has: dict[str, str]) -> bool:
    return any(
        name.endswith(ending) and name.removesuffix(ending) + "ForCausalLM" in has
        for ending, since in _CONVERTED
        if number >= since
    )


def _lines(name: str, served: dict[Number, dict[str, str]]) -> Iterator[str]:
    numbers = list(served)
    spans: list[tuple[str, int, int]] = []
    for at, number in enumerate(numbers):
        how = served[number].get(name)
        if how is None:
            continue
        if spans and spans[-1][0] == how and spans[-1][2] == at - 1:
            spans[-1] = (how, spans[-1][1], at)
        else:
            spans.append((how, at, at))
    for how, first, last in spans:
        since = ".".join(map(str, numbers[first])) if first else ""
        until = ".".join(map(str, numbers[last])) if last + 1 < len(numbers) else ""
        yield f"{name}\t{since}\t{until}\t{how}"
    if not spans:
        yield f"{name}\t\t\tnever"


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))


def text(engine: str, sources: Path, libraries: Path) -> str:
    """Return an engine's table."""
    head = "architecture\tsince\tuntil\thow"
    lines = rows(engine, sources, libraries)
    assert {line.rsplit("\t", 1)[1] for line in lines} <= set(HOW)
    return "\n".join((head, *lines)) + "\n"


def main(engine: str, sources: str, libraries: str, *switches: str) -> int:
    """Compare the table with the sources, or write it."""
    table = ENGINES / engine / "served.tsv"
    made = text(engine, Path(sources), Path(libraries))
    if "--write" in switches:
        table.write_text(made, encoding="utf-8")
        return 0
    return int(table.read_text(encoding="utf-8") != made)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
