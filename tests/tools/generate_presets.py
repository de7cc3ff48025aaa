"""Make the model presets from published configs: python -m tests.tools.generate_presets --write.

Every config.json of the reference corpus (published files only) is read by kvcalc's own reader, and
what the model must come to is taken from an engine's answer about the same file where there is
one. Of presets that a person wrote (`HAND_WRITTEN`) the sizes alone are made. Without --write the
names are printed; with it files are written and stale ones removed.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.models.hf_config import read_config
from kvcalc.models.json_documents import read_json
from kvcalc.models.preset_files import Variant
from kvcalc.models.preset_writer import preset_name, preset_text, size_lines
from kvcalc.models.presets import load_model_preset
from tests.tools.preset_sizes import with_size

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
PRESETS = ROOT / "presets" / "models"
HAND_WRITTEN = (
    "llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "opt-13b", "qwen2.5-72b",
    "deepseek-v3", "deepseek-v2-lite", "gemma-3-27b", "gpt-oss-20b", "qwen3-next-80b-a3b",
    "qwen3.5-27b", "qwen3.5-27b-attention", "jamba-v0.1", "nemotron-3-nano-30b-a3b",
    "llama-4-scout",
)  # fmt: skip
LENGTHS = Path(__file__).with_name("preset_lengths.tsv")
"""The longest sequence from a second source: the corpus has configs that were packed anew for
another runtime. A row with a repository is of an alias whose own config says something else."""
_EXCERPT = "sizing facts only"  # in the note of the corpus's index
_EXCERPTS = ("qwen3.5-27b-attention",)  # some layers of a model, whose sizes are not theirs
_SUFFIXES = ("-instruct", "-it", "-hf", "-base")


class Published(NamedTuple):
    """A published config: the model's id, the file's name in the corpus, and what kvcalc reads.

    Of some that are not `whole` the corpus has the keys alone that a cache's size depends on. One
    of them is another name of a preset that has the same caches, but makes none of its own: it
    says nothing of vocabulary and quantisation (DeepSeek-R1's weights, which are fp8, would be
    those of a bfloat16 model).
    """

    model_id: str
    file: str
    spec: ModelSpec
    whole: bool


class Expected(NamedTuple):
    """What a model must come to, and who says so."""

    bytes_per_token: dict[str, int]
    state_bytes: int
    confirmed_by: str


def published() -> Iterator[Published]:
    """Yield every published config that kvcalc reads."""
    index = SHARED / "corpus" / "index.tsv"
    with index.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if row["kind"] != "verbatim":
                continue
            path = SHARED / "corpus" / row["file"]
            where = f"{row['model_id']} config.json"
            try:
                config = read_json(path.read_text(encoding="utf-8"), where)
                spec = read_config(config, where, row["model_id"].rsplit("/", 1)[-1])
            except KvcalcError:
                continue  # test_corpus lists what is refused, and why
            whole = _EXCERPT not in row["note"]
            yield Published(row["model_id"], path.stem, spec, whole)


@cache
def _rows(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return an oracle's rows by file name of the config."""
    found: dict[str, list[dict[str, Any]]] = {}
    path = SHARED / "oracle" / f"{name}_results.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row.get("model") or row.get("name") or "", []).append(row)
    return found


_PLAIN = {"max_model_len", "tp", "block_size", "enable_prefix_caching", "async_scheduling",
          "max_num_batched_tokens", "max_num_seqs"}  # fmt: skip


def _of_vllm(file: str) -> Expected | None:
    """Return vLLM's figures: bytes of a page over its tokens, and of a state."""
    for row in _rows("vllm").get(file, []):
        plain = row["vllm_version"].startswith("0.33") and set(row["case"]) <= _PLAIN
        if not plain or row.get("tp") != 1 or row.get("kv_cache_dtype", "auto") != "auto":
            continue
        specs = row.get("layer_specs", [])
        if not specs or any("tokens_per_state" in s and s["tokens_per_state"] > 1 for s in specs):
            continue  # compressed caches round their pages up
        grown = state = 0
        for s in specs:
            page = s.get("unpadded_page_size_bytes", s["page_size_bytes"])
            if s["class"] == "MambaSpec":
                sizes = (element_bytes(dtype) for dtype in s["dtypes"])
                one = sum(
                    prod(shape) * size for shape, size in zip(s["shapes"], sizes, strict=True)
                )
                state += s["num_layers"] * one
            elif s["class"] != "CrossAttentionSpec":
                grown += s["num_layers"] * page // s["block_size"]
        return Expected(
            {row["model_dtype"]: grown}, state, "vLLM 0.33.0: pages and states of every layer"
        )
    return None


def _of_transformers(file: str) -> Expected | None:
    """Return transformers' figures: elements a token of every growing layer."""
    for row in _rows("transformers").get(file, []):
        layers = row.get("layers", [])
        dynamic = row.get("cache") == "DynamicCache" and layers
        if not dynamic or any("Dynamic" not in layer["cls"] for layer in layers):
            continue
        grown = 0
        for layer in layers:
            for tensor in layer["tensors"]:
                shape, dtype = tensor.split("[", 1)[1].split("]:")
                _, heads, _, width = (int(n) for n in shape.split(","))
                grown += layer["n"] * heads * width * element_bytes(dtype)
        return Expected({row["dtype"]: grown}, 0, "transformers 5.24.0: tensors of every layer")
    return None


def expected(item: Published) -> Expected:
    """Return what an engine says of the same file, else what kvcalc reads from it."""
    for oracle in (_of_vllm, _of_transformers):
        found = oracle(item.file)
        if found is not None:
            return found
    dtype = item.spec.dtype
    grown = item.spec.bytes_per_token(dtype)
    return Expected(
        {dtype: grown} if grown is not None else {},
        item.spec.state_bytes(),
        "kvcalc's reading of config.json; no engine was asked yet",
    )


def _stripped(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def groups() -> Iterator[tuple[str, list[Published]]]:
    """Yield preset names and the configs that they stand for.

    Configs whose names differ by a suffix such as -instruct share a preset where their layers and
    dtypes are the same; otherwise each keeps its full name.
    """
    taken = {load_model_preset(name).spec.name for name in HAND_WRITTEN}
    known = {a.lower() for name in HAND_WRITTEN for a in load_model_preset(name).aliases}
    found: dict[str, list[Published]] = {}
    for item in published():
        if item.model_id.lower() not in known:
            found.setdefault(_stripped(preset_name(item.model_id)), []).append(item)
    for short, items in sorted(found.items()):
        kept = {(i.spec.layers, i.spec.dtype, i.spec.kv_cache_dtype) for i in items}
        if len(kept) == 1 and short not in taken:
            if any(i.whole for i in items):
                yield short, sorted(items, key=lambda i: (not i.whole, len(i.model_id)))
            continue
        full: dict[str, list[Published]] = {}
        for item in items:
            full.setdefault(preset_name(item.model_id), []).append(item)
        for name, same in full.items():
            if name not in taken and len(same) == 1 and same[0].whole:
                yield name, same


class Length(NamedTuple):
    """A longest sequence, with its rope scaling where that is more, and who says so."""

    longest: int | None
    stretched: int | None
    source: str

    def of(self, spec: ModelSpec) -> tuple[int | None, int | None]:
        """Return what a model has to say to agree; its own where nothing is said here."""
        longest = self.longest or spec.max_position_embeddings
        return longest, self.stretched or longest


def lengths(name: str, aliases: Sequence[str]) -> tuple[Length | None, list[Variant]]:
    """Return a preset's length from a second source, and the aliases that have their own."""
    own, variants = None, []
    with LENGTHS.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        for row in rows:
            if row["preset"] != name:
                continue
            longest, stretched = (
                int(row[key]) if row[key] else None
                for key in ("max_position_embeddings", "stretched_position_embeddings")
            )
            if not row["repository"]:
                own = Length(longest, stretched, row["source"])
                continue
            spelled = (row["repository"].lower(), preset_name(row["repository"]))
            variants.append(
                Variant(
                    names=tuple(a for a in aliases if a.lower() in spelled),
                    max_position_embeddings=longest,
                    stretched_position_embeddings=stretched,
                    source=row["source"],
                )
            )
    return own, variants


def files() -> dict[str, str]:
    """Return the text of every generated preset by name."""
    made: dict[str, str] = {}
    for name, items in groups():
        first = items[0]
        figures = expected(first)
        keeps = first.spec.bytes_per_token() or first.spec.state_bytes()
        if not figures.bytes_per_token or not keeps:
            continue  # nothing that one token adds could be checked, or nothing is kept (encoders)
        aliases = sorted({i.model_id for i in items} | {preset_name(i.model_id) for i in items})
        ids = [first.model_id, *(i.model_id for i in items)]
        size = with_size(first.spec, ids)
        spec = msgspec.structs.replace(first.spec, size=size)
        own, variants = lengths(name, aliases)
        if own is not None and own.of(spec) != (spec.max_position_embeddings, spec.longest):
            spec = msgspec.structs.replace(
                spec,
                max_position_embeddings=own.longest,
                stretched_position_embeddings=own.stretched,
                notes=tuple(note for note in spec.notes if "rope scaling" not in note),
            )
        taken = {name for variant in variants for name in variant.names}
        made[name] = preset_text(
            spec,
            name=name,
            title=first.spec.name,
            aliases=[a for a in aliases if a != name and a not in taken],
            variants=variants,
            source={
                "repository": first.model_id,
                "file": "config.json",
                "maximum": "" if own is None else own.source,
            },
            bytes_per_token=figures.bytes_per_token,
            state_bytes=figures.state_bytes,
            confirmed_by=[figures.confirmed_by],
        )
    return made


def sizes_of_hand_written() -> dict[str, ModelSize | None]:
    """Return what the published configs give for the presets that a person wrote."""
    configs = {item.model_id.lower(): item for item in published() if item.whole}
    found: dict[str, ModelSize | None] = {}
    for name in HAND_WRITTEN:
        preset = load_model_preset(name)
        ids = [preset.source.repository, *preset.aliases]
        items = [configs[i.lower()] for i in ids if i.lower() in configs]
        if items and name not in _EXCERPTS:
            # One of several published files may leave the towers out (Llama-4-Scout's).
            best = next((i for i in items if i.spec.size and i.spec.size.towers), items[0])
            found[name] = with_size(best.spec, [best.model_id, *ids])
    return found


def resized(text: str, size: ModelSize | None) -> str:
    """Return the text of a preset with its `size:` written anew, before notes and sources."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        inside = line == "size:" or (inside and line.startswith(" "))
        if not inside:
            kept.append(line)
    at = min(kept.index(key) for key in ("notes:", "source:") if key in kept)
    return "\n".join([*kept[:at], *size_lines(size), *kept[at:]]) + "\n"


def main() -> int:
    """Write the presets, or print their names."""
    made = files()
    if "--write" not in sys.argv:
        print(*made, sep="\n")
        return 0
    for path in PRESETS.glob("*.yaml"):
        if path.stem not in made and path.stem not in HAND_WRITTEN:
            path.unlink()
    for name, text in made.items():
        (PRESETS / f"{name}.yaml").write_text(text, encoding="utf-8", newline="\n")
    for name, size in sizes_of_hand_written().items():
        path = PRESETS / f"{name}.yaml"
        path.write_text(
            resized(path.read_text(encoding="utf-8"), size), encoding="utf-8", newline="\n"
        )
    print(f"{len(made)} presets written, of {len(HAND_WRITTEN)} the sizes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
