"""Count what each family is checked against: python -m tests.tools.support --write.

The counts go to `tests/docs/support.tsv`, from which the README's table is made. A case is one
answer of an engine (or of a config class) that a test of this project compares layer by layer.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.models.gguf import ARCHITECTURES as GGUF_ARCHITECTURES
from kvcalc.models.hf_config.registry import ARCHITECTURES
from tests.models.gguf import test_oracle as llama_cpp
from tests.models.hf_config import oracles, test_transformers

TABLE = Path(__file__).parents[1] / "docs" / "support.tsv"
COLUMNS = ("family", "architectures", "kinds", "configs", "vLLM", "transformers", "llama.cpp")


def _family(spec: ModelSpec) -> str:
    return ARCHITECTURES[spec.architecture or ""]


def _kinds(spec: ModelSpec) -> set[str]:
    return {cache.kind for _, cache in spec.caches()}


def rows() -> list[tuple[str, ...]]:
    """Return the table's rows: one a family, and one for GGUF files."""
    architectures = Counter(ARCHITECTURES.values())
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    configs: Counter[str] = Counter()
    vllm: Counter[str] = Counter()
    transformers: Counter[str] = Counter()
    for folder in ("configs", "reconstructed"):
        for path in sorted((oracles.SHARED / "corpus" / folder).glob("*.json")):
            try:
                spec = oracles.spec(path.stem)
            except KvcalcError:
                continue
            family = _family(spec)
            configs[family] += 1
            kinds[family] |= _kinds(spec)
    for model, count in Counter(row["model"] for row in oracles.vllm_rows()).items():
        vllm[_family(oracles.spec(model))] += count
    for row in test_transformers.compared_rows():
        spec = test_transformers.model_of(row["name"], row["source"], row["model_cls"])
        transformers[_family(spec)] += 1
        kinds[_family(spec)] |= _kinds(spec)
    table: list[tuple[str, ...]] = [
        (
            family,
            str(architectures[family]),
            " ".join(sorted(kinds[family])),
            str(configs[family]),
            str(vllm[family]),
            str(transformers[family]),
            "0",
        )
        for family in sorted(architectures)
    ]
    compared = [row for row in llama_cpp.MORE if row["name"] not in llama_cpp.NOT_COMPARED]
    answers = len(llama_cpp.WRITTEN) + len(llama_cpp.FILES) + len(compared)
    table.append(
        (
            "GGUF files",
            str(len(GGUF_ARCHITECTURES)),
            "",
            str(len(llama_cpp.FILES)),
            "0",
            "0",
            str(answers),
        )
    )
    return table


def text() -> str:
    """Return the table as TSV, with its columns' names first."""
    return "".join("\t".join(row) + "\n" for row in (COLUMNS, *rows()))


if __name__ == "__main__":
    found = text()
    if "--write" in sys.argv:
        TABLE.write_text(found, encoding="utf-8")
    else:
        print(found, end="")
