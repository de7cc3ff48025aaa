"""Read public deployment files and compare with public.tsv: python -m tests.manifests.public.

    python -m tests.manifests.public [FOLDER] [--fetch] [--only ID]

The files are not part of this repository. They are looked for as FOLDER/ID/NAME; FOLDER is the
first argument, else the variable KVCALC_PUBLIC_FILES, else `kvcalc-public` in the folder for
temporary files. `--fetch` gets those that are missing, at the commit of their row, with git from
the public repository. Each row prints `ID ok`, `ID different WHAT` or `ID missing WHY`, then the
total. A row is right when engine, model, every setting of `public_rows.NAMES`, cards, nodes and
product agree and no further server is found; findings do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvcalc.core.errors import KvcalcError
from kvcalc.manifests import read_paths
from tests.manifests.compared import of_server
from tests.manifests.public_rows import Row, rows

__all__ = ["differences", "main"]


def main() -> int:
    """Compare all rows that can be had; return 1 where none can, or under 95 % are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=_default_folder())
    parser.add_argument("--fetch", action="store_true", help="get missing files with git")
    parser.add_argument("--only", help="this row alone")
    given = parser.parse_args()
    read, right = 0, 0
    for row in rows():
        if given.only not in (None, row.id):
            continue
        file = given.folder / row.id / row.lies(row.path)
        why = _fetched(row, given.folder / row.id) if given.fetch and not file.exists() else ""
        if not file.exists():
            print(f"{row.id} missing {why or file.name}")
            continue
        found = list(differences(row, file))
        read += 1
        right += not found
        print(f"{row.id} different {'; '.join(found)}" if found else f"{row.id} ok")
    print(f"read right {right} of {read} ({100 * right / max(read, 1):.1f} %)")
    return 0 if read and right >= 0.95 * read else 1


def differences(row: Row, file: Path) -> Iterator[str]:
    """Yield what kvcalc reads of a row's file otherwise than the row says."""
    try:
        servers = list(read_paths([str(file)]).servers)
    except KvcalcError as error:
        if row.engine != "-":
            yield f"refused: {error}"
        return
    if row.server:
        servers = [each for each in servers if row.server in each.invocation.name.split("/")]
    expected = row.servers
    if len(servers) != len(expected):
        names = ", ".join(f"{each.invocation.name} ({each.engine})" for each in servers)
        yield f"{len(servers)} servers, not {len(expected)}: {names}"
        return
    for found, one in zip(servers, expected, strict=True):
        name = f"{found.invocation.name}: " if len(expected) > 1 else ""
        for difference in of_server(row.engine, found, one):
            yield name + difference


def _default_folder() -> Path:
    named = os.environ.get("KVCALC_PUBLIC_FILES")
    return Path(named) if named else Path(tempfile.gettempdir()) / "kvcalc-public"


def _fetched(row: Row, folder: Path) -> str:
    """Get a row's files; return why they cannot be had, "" where they were."""
    url = f"https://github.com/{row.repository}"
    wanted = [path for path in (row.path, row.beside) if path]
    with tempfile.TemporaryDirectory() as clone:

        def git(*words: str) -> bytes:
            done = subprocess.run(
                ["git", "-C", clone, *words], capture_output=True, check=True, timeout=300
            )
            return done.stdout

        try:
            git("init", "--quiet")
            git("remote", "add", "origin", url)
            git("fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", row.commit)
            texts = [git("show", f"{row.commit}:{path}") for path in wanted]
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            return f"git: {said[-1]}" if said else "git failed"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"git: {type(error).__name__}"
    for path, text in zip(wanted, texts, strict=True):
        file = folder / row.lies(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    return ""


if __name__ == "__main__":
    sys.exit(main())
