"""Read public deployment files and compare with public.tsv: python -m tests.manifests.public.

    python -m tests.manifests.public [FOLDER] [--fetch] [--only ID]

The files are not part of this repository. They are looked for as FOLDER/ID/NAME; FOLDER is the
first argument, else the variable KVCALC_PUBLIC_FILES, else `kvcalc-public` in the folder for
temporary files. `--fetch` gets those that are missing, at the commit of their row, with git from
the public repository. Each row prints `ID ok`, `ID different WHAT` or `ID missing WHY`, then the
total. A row is right when engine, model, every setting of `public_rows.NAMES`, cards, nodes and
product agree and no further server is found. Findings are told, but do not count.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvcalc.checks.cards import card_of
from kvcalc.core.errors import KvcalcError
from kvcalc.manifests import read_paths
from kvcalc.manifests.found import GpuRequest, Server, Setting
from tests.manifests.public_rows import NAMES, Expected, Row, rows

__all__ = ["differences", "main"]

_SAME = {
    # an engine's own word -> the same setting in the table's words
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "context_length": "max_model_len",
    "max_seq_len": "max_model_len",
    "session_len": "max_model_len",
    "max_total_tokens": "max_total_tokens",
    "max_running_requests": "max_num_seqs",
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "max_batch_prefill_tokens": "max_num_batched_tokens",
    "page_size": "block_size",
    "tokens_per_block": "block_size",
    "speculative_num_draft_tokens": "num_speculative_tokens",
    "speculative_algorithm": "speculative_method",
    "speculative_draft_model_path": "draft_model",
    "enable_block_reuse": "enable_prefix_caching",
    "num_shard": "tensor_parallel_size",
}
_OPPOSITE = {"disable_radix_cache": "enable_prefix_caching"}
_WORDS = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp8_e4m3": "fp8"}
_SCHEMES = re.compile(r"^(hf|huggingface)://")
_PLUGINS = ("vllm-ascend", "vllm-tpu")  # vLLM on other devices


def main() -> int:
    """Compare all rows that can be had; return 1 where fewer than 95 % of them are right."""
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
    return 0 if right >= 0.95 * read else 1


def differences(row: Row, file: Path) -> Iterator[str]:
    """Yield what kvcalc reads of a row's file otherwise than the row says."""
    try:
        servers = list(read_paths([str(file)]).servers)
    except KvcalcError as error:
        if row.engine != "-":
            yield f"refused: {error}"
        return
    if row.server:
        servers = [each for each in servers if row.server in each.invocation.name]
    expected = row.servers
    if len(servers) != len(expected):
        names = ", ".join(f"{each.invocation.name} ({each.engine})" for each in servers)
        yield f"{len(servers)} servers, not {len(expected)}: {names}"
        return
    for found, one in zip(servers, expected, strict=True):
        name = f"{found.invocation.name}: " if len(expected) > 1 else ""
        for difference in _of_server(row, found, one):
            yield name + difference


def _of_server(row: Row, found: Server, expected: Expected) -> Iterator[str]:
    engine = "vllm" if found.engine in _PLUGINS else found.engine
    if engine != row.engine:
        yield f"engine {found.engine}, not {row.engine}"
    model = "-" if found.model is None else _text(found.model.value)
    if _plain(model) != _plain(expected.model):
        yield f"model {model}, not {expected.model}"
    settings = dict(_settings(found.settings))
    for name, value in expected.settings.items():
        is_said = settings.get(name, "nothing")
        if _folded(is_said) != _folded(value) and not (value == "?" and name not in settings):
            yield f"{name} {is_said}, not {value}"
    for name, value in settings.items():
        allowed = expected.settings.keys() | {
            key for key, said in expected.optional.items() if said in ("*", value)
        }
        if name in NAMES and name not in allowed:
            yield f"{name} {value}, which is not there"
    cards = _cards(found)
    if cards not in expected.devices:
        yield f"{cards} cards, not {' or '.join(expected.devices)}"
    products = tuple(_products(found.invocation.gpu))
    if products != expected.products:
        yield f"product {','.join(products)}, not {','.join(expected.products)}"


def _settings(settings: tuple[Setting, ...]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        if setting.name in _OPPOSITE:
            yield _OPPOSITE[setting.name], _text(not setting.value)
        else:
            yield _SAME.get(setting.name, setting.name), _text(setting.value)


def _cards(found: Server) -> str:
    gpu, nodes = found.invocation.gpu, found.invocation.nodes
    if gpu.visible is not None:
        cards = str(len(gpu.visible))
    elif gpu.devices is not None:
        cards = str(gpu.devices)
    else:
        cards = "all" if gpu.every else gpu.fraction or "-"
    return cards if nodes == 1 else f"{cards}x{nodes}"


def _products(gpu: GpuRequest) -> Iterator[str]:
    words = [*([] if gpu.product is None else [gpu.product]), *gpu.choices]
    for word in words:
        try:
            yield card_of(word.text, gpu.product_key).name
        except KvcalcError:
            yield word.text
    if not words:
        yield "-"


def _text(value: object) -> str:
    """Return a value as the table writes it."""
    if value is None:
        return "?"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(model: str) -> str:
    return _SCHEMES.sub("", model).rstrip("/")


def _folded(value: str) -> object:
    """Return a value so that two spellings of one are equal."""
    word = value.casefold().replace("_", "-") if "/" not in value else value
    word = _WORDS.get(value, word)
    try:
        return float(value)
    except ValueError:
        return word


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
            git("fetch", "--quiet", "--depth=1", "--filter=blob:none", url, row.commit)
            git("remote", "add", "origin", url)
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
