"""The wheel and the source archive: whole, and of use anywhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import kvcalc
from kvcalc.models.presets import preset_folder
from kvcalc.schema import names
from tests.cli.harness import ROOT, python

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="no source tree here to build from"
)


def _with_uv(folder: Path) -> str | None:
    """Build both with uv; return why not."""
    uv = shutil.which("uv")
    if uv is None:
        return "uv is not here"
    command = [uv, "build", "--offline", "--no-build-isolation", "--python", sys.executable]
    done = subprocess.run(
        [*command, "--wheel", "--sdist", "--out-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return None if done.returncode == 0 else f"uv build: {done.stderr[-300:]}"


def _with_hatchling(folder: Path) -> str | None:
    """Build both with hatchling itself; return why not."""
    if find_spec("hatchling") is None:
        return "hatchling is not here"
    code = (
        "import hatchling.build as b, sys\nb.build_wheel(sys.argv[1])\nb.build_sdist(sys.argv[1])\n"
    )
    outcome = python("-c", code, str(folder), cwd=ROOT)
    return None if outcome.code == 0 else f"hatchling: {outcome.err[-300:]}"


BUILDERS: tuple[Callable[[Path], str | None], ...] = (_with_hatchling, _with_uv)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a fresh wheel and source archive."""
    reasons = []
    for build in BUILDERS:
        folder = tmp_path_factory.mktemp("dist")
        reason = build(folder)
        if reason is None:
            return folder
        reasons.append(reason)
    pytest.skip("; ".join(reasons))


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an installer would lay them out."""
    folder = tmp_path_factory.mktemp("site")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # noqa: S202  # built here a moment ago
    return folder


def installed(site: Path, cwd: Path, *arguments: str) -> str:
    """Run the unpacked wheel's command from another folder and return what it prints."""
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv.pop(1))\n"
        "from kvcalc.cli import app\n"
        "print(app.__file__, file=sys.stderr)\n"
        "sys.exit(app.main(sys.argv[1:]))\n"
    )
    outcome = python("-P", "-c", code, str(site), *arguments, cwd=cwd)
    assert outcome.code == 0, outcome.err
    assert outcome.err.splitlines()[0].startswith(str(site))
    return outcome.out


def test_name(built: Path) -> None:
    """One wheel for every platform, of this version."""
    (wheel,) = built.glob("*.whl")

    assert wheel.name == f"kvcalc-{kvcalc.__version__}-py3-none-any.whl"


def test_contents(unpacked: Path) -> None:
    """The wheel has the presets, the schemas, the licence and the mark of a typed package."""
    package = unpacked / "kvcalc"
    shipped = {p.relative_to(preset_folder()) for p in preset_folder().rglob("*.yaml")}
    packed = {p.relative_to(package / "_presets") for p in package.rglob("_presets/*/*.yaml")}

    assert packed == shipped
    assert {f"{name}.schema.json" for name in names()} == {
        p.name for p in (package / "schema").glob("*.json")
    }
    assert (package / "py.typed").is_file()
    assert list(unpacked.glob("*.dist-info/licenses/LICENSE"))
    sources = {p.relative_to(ROOT) for p in (ROOT / "kvcalc").rglob("*.py")}
    assert {p.relative_to(unpacked) for p in package.rglob("*.py")} == sources


def test_nothing_else(unpacked: Path) -> None:
    """Nothing lies outside the one package, and no cache or test in it."""
    assert {p.name.split("-")[0] for p in unpacked.iterdir()} == {"kvcalc"}
    assert not list(unpacked.rglob("__pycache__"))
    assert not list(unpacked.rglob("test*"))


def test_runs(unpacked: Path, tmp_path: Path) -> None:
    """The wheel's own presets and schemas are used, from any folder."""
    assert "llama-3.1-8b" in installed(unpacked, tmp_path, "presets", "list")
    assert "131,072" in installed(unpacked, tmp_path, "per-token", "llama-3.1-8b")
    assert "h100-80gb" in installed(unpacked, tmp_path, "gpus")
    assert installed(unpacked, tmp_path, "schema").split() == names()
    assert "sound" in installed(unpacked, tmp_path, "presets", "validate")


def test_runs_as_a_module(unpacked: Path, tmp_path: Path) -> None:
    """So it is with PYTHONPATH and `python -m kvcalc`."""
    outcome = python("-m", "kvcalc", "presets", "list", cwd=tmp_path, PYTHONPATH=str(unpacked))

    assert outcome.code == 0, outcome.err
    assert "qwen3.5-27b-attention" in outcome.out


def test_source_archive(built: Path) -> None:
    """The source archive has what a wheel is built from, and the tests."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        inside = {name.partition("/")[2] for name in found.getnames()}

    for path in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "kvcalc/py.typed",
        "kvcalc/schema/compare.schema.json",
        "presets/models/llama-3.1-8b.yaml",
        "presets/gpus/h100-80gb.yaml",
        "tests/cli/test_figures.py",
    ):
        assert path in inside
    assert not any("__pycache__" in path or path.endswith(".pyc") for path in inside)
