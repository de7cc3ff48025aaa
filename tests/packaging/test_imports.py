"""Who may import whom, read from the source: the rooms of the house stay apart."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import kvcalc

PACKAGE = Path(kvcalc.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = ["/".join(path.relative_to(PACKAGE).parts) for path in FILES]

_INNER = ("core", "weights", "allocator", "answers")
ROOMS = {
    # room: the rooms of kvcalc that it may import
    "core": {"core"},
    "weights": {"weights", "core"},
    "allocator": {"allocator", "core"},
    "answers": {"answers", "allocator", "core"},
    "models": {"models", *_INNER},
    "workload": {"workload", *_INNER},
    "engines": {"engines", *_INNER},
    "sizing": {"sizing", "engines", *_INNER},
    "report": {"report", *_INNER},
    "schema": {"schema", "models", "checks", *_INNER},
    "manifests": {"manifests", "engines", "models", *_INNER},
    "checks": {"checks", "manifests", "sizing", "engines", "models", "workload", *_INNER},
    "measure": {"measure", "sizing", "engines", "models", *_INNER},
    "api": {
        *("api", "models", "workload", "engines", "sizing", "checks", "manifests", "measure"),
        *_INNER,
    },
    "cli": {
        *("cli", "models", "workload", "engines", "sizing", "report", "schema", ""),
        *("checks", "manifests", "measure", *_INNER),
    },
    "__init__": {"api"},
    "__main__": {"cli"},
}
OUTSIDE = {
    # room: the distributions that it may import beside the standard library
    **{name: {"msgspec"} for name in _INNER},
    "models": {"msgspec", "yaml", "huggingface_hub"},  # the last one only where it is installed
    "workload": {"msgspec", "numpy"},
    "engines": {"msgspec"},
    "sizing": {"msgspec"},
    "report": {"msgspec", "rich"},
    "schema": {"msgspec"},
    "manifests": {"msgspec", "yaml"},
    "checks": {"msgspec"},
    # All but msgspec only where they are installed, and only when a probe is asked for; numpy too.
    "measure": {
        *("msgspec", "numpy", "torch", "flashinfer", "flash_attn", "pynvml", "transformers"),
        *("vllm", "llama_cpp", "xllamacpp"),
    },
    "api": {"msgspec"},
    "cli": {"typer", "rich"},
    "__init__": set[str](),
    "__main__": set[str](),
}
NOT_IN_CORE = {"os", "sys", "pathlib", "io", "shutil", "tempfile", "subprocess", "socket"}
NOT_IN_CORE |= {"json", "yaml", "numpy", "rich", "typer", "time", "datetime", "random", "logging"}

each_file = pytest.mark.parametrize("path", FILES, ids=NAMES)


def room(path: Path) -> str:
    """Return the room that a file lies in; its own name for one at the top."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names of all that a file imports, wherever in it, and not by name only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0, f"{path}: imports are absolute"
                for alias in names:
                    yield f"{module}.{alias.name}"
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name))]):
                yield name
            case ast.Call(func=ast.Name(id="__import__")):
                raise AssertionError(f"{path}: __import__ hides an import")


def rooms_of(path: Path) -> set[str]:
    """Return the rooms of kvcalc that a file imports from; "" for kvcalc itself."""
    found = set()
    for name in imported(path):
        head, _, rest = name.partition(".")
        if head == "kvcalc":
            first = rest.split(".")[0]
            inside = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
            found.add(first if rest and inside else "")
    return found


def test_every_room_is_known() -> None:
    """A new room gets its rule here, before it gets its files."""
    assert {room(path) for path in FILES} == set(ROOMS) == set(OUTSIDE)


@each_file
def test_rooms(path: Path) -> None:
    """A file imports only from the rooms that its own may know."""
    assert rooms_of(path) <= ROOMS[room(path)]


@each_file
def test_distributions(path: Path) -> None:
    """What is not the standard library is imported only in the room that it belongs to."""
    heads = {name.split(".")[0] for name in imported(path)} - {"kvcalc"}
    outside = {head for head in heads if head not in sys.stdlib_module_names}

    assert outside <= OUTSIDE[room(path)]


@each_file
def test_core_is_pure(path: Path) -> None:
    """The inner rooms read no file, clock, environment or chance, and print nothing."""
    if room(path) not in _INNER:
        return
    heads = {name.split(".")[0] for name in imported(path)}
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert heads & NOT_IN_CORE == set()
    assert calls & {"open", "print", "input", "eval", "exec"} == set()


@each_file
def test_console_lives_in_cli(path: Path) -> None:
    """Only the command line prints, and only it and the entry point leave the process."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if room(path) != "cli":
        assert "print" not in called
    if room(path) not in ("cli", "__main__"):
        assert called & {"sys.exit", "exit", "quit", "os._exit"} == set()


@each_file
def test_documented(path: Path) -> None:
    """Every module says what it is for."""
    assert (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").strip()


@each_file
def test_exports(path: Path) -> None:
    """A module that others import names from lists them, each once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    command = room(path) == "cli" and "add" in public  # is called by its module's name
    listed = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    if not listed:
        assert not public or path.name == "__main__.py" or command
        return
    exported = ast.literal_eval(listed[0].value)
    name = ".".join(["kvcalc", *path.relative_to(PACKAGE).with_suffix("").parts])
    module = import_module(name.removesuffix(".__init__"))

    assert all(hasattr(module, each) for each in exported)
    assert len(exported) == len(set(exported))


def test_no_private_imports() -> None:
    """No file imports a private name of another."""
    for path in FILES:
        for name in imported(path):
            if name.startswith("kvcalc"):
                assert not any(
                    part.startswith("_") and not part.startswith("__") for part in name.split(".")
                ), f"{path}: {name}"


def test_commands_compute_nothing() -> None:
    """No command does arithmetic on what it shows: the core computes, commands parse and call."""
    for path in FILES:
        if room(path) != "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.BinOp) and isinstance(
                node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Pow
            ):
                pieces = ast.unparse(node)
                assert "[" in pieces or "'" in pieces, f"{path}:{node.lineno}: {pieces}"
