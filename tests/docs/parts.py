"""The generated parts of the README, each from what it describes."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from kvcalc.answers.metrics import METRICS
from kvcalc.cli.app import build
from kvcalc.cli.commands import COMMANDS
from kvcalc.cli.settings import SETTINGS
from kvcalc.core.dtypes import DTYPES, Row, cache_dtype
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import CACHE_KINDS
from kvcalc.core.waste import WASTE_NAMES
from kvcalc.engines.none import CONVENTION
from kvcalc.models.hf_config.registry import ARCHITECTURES
from kvcalc.models.presets import all_models
from tests.engines.tally import Tally, total

_HERE = Path(__file__).parent
_CHECKED = ("configs", "vLLM", "transformers")
_NOT_PEERS = ("model", "expected_bytes", "expected_state_bytes", "source")
_VERDICTS = ("right", "wrong", "refused", "not run")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, [":---"] * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def wastes() -> str:
    """Return the named wastes."""
    return table(("waste", "what it is"), ((f"`{k}`", v) for k, v in WASTE_NAMES.items()))


def metrics() -> str:
    """Return the figures that a check can hold a deployment to."""
    waste = [name for name in METRICS if name.startswith(("paged_", "contiguous_"))]
    rows = [
        (f"`{name}`", metric.meaning, metric.needs or "")
        for name, metric in METRICS.items()
        if name not in waste
    ]
    named = ", ".join(f"`{name}`" for name in WASTE_NAMES)
    rows.append(
        (
            "`paged_waste_ratio`, `contiguous_waste_ratio`",
            f"wasted of what is reserved; of one waste ({named}) `paged_tail_ratio` and alike",
            "workload",
        )
    )
    return table(("figure", "what it is", "needs a"), rows)


def kinds() -> str:
    """Return the cache kinds, what each is, and a preset that has it."""
    presets = all_models()

    def example(kind: str) -> str:
        names = [
            f"`{p.spec.name}`"
            for p in presets
            if any(cache.kind == kind for _, cache in p.spec.caches())
        ]
        return min(names, key=len) if names else ""

    rows = (
        (f"`{name}`", (kind.__doc__ or "").strip().split("\n")[0].rstrip("."), example(name))
        for name, kind in CACHE_KINDS.items()
    )
    return table(("kind", "what it keeps", "in preset"), rows)


def dtypes() -> str:
    """Return the dtypes with the bytes of a head of 128."""

    def size(name: str) -> str:
        try:
            return str(DTYPES[name].row_bytes(Row(role="k", width=128)))
        except UnsupportedError:
            rows = (Row(role="latent", width=512), Row(role="rope", width=64))
            return f"{sum(DTYPES[name].row_bytes(r) for r in rows)} for MLA's 512 + 64"

    rows = [(f"`{name}`", size(name), dtype.source) for name, dtype in DTYPES.items()]
    for names, follows in (
        (("int8_asym_g64", "int4_asym_g32"), "groups with a 16-bit scale and a 16-bit zero"),
        (("6bit", "3bit"), "so many bits an element, no scales"),
    ):
        sizes = ", ".join(str(cache_dtype(n).row_bytes(Row(role="k", width=128))) for n in names)
        rows.append((", ".join(f"`{n}`" for n in names) + ", ...", sizes, follows))
    return table(("dtype", "bytes of a head of 128", "follows"), rows)


def settings() -> str:
    """Return the keys of a settings file and the options that they set."""
    flags = {
        param.name: [flag for flag in param.opts if flag.startswith("--")]
        for _, command in _commands()
        for param in command.params
    }
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for key, name in SETTINGS.items():
        keys[name].append(f"`{key}`")
    rows = (
        (
            ", ".join(named),
            ", ".join(f"`{flag}`" for flag in flags[name]),
            ", ".join(f"`KVCALC_{flag[2:].upper().replace('-', '_')}`" for flag in flags[name]),
        )
        for name, named in keys.items()
    )
    return table(("key", "option", "variable"), rows)


def _tsv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


def support() -> str:
    """Return what reads each architecture and how many answers of engines it is checked against."""
    of_family: defaultdict[str, list[str]] = defaultdict(list)
    for architecture, module in ARCHITECTURES.items():
        of_family[module].append(architecture)
    presets = Counter(preset.spec.architecture for preset in all_models())
    rows = []
    for row in _tsv(_HERE / "support.tsv"):
        if row["family"] not in of_family:
            continue
        names = sorted(of_family[row["family"]], key=lambda name: -presets[name])
        shown = ", ".join(f"`{name}`" for name in names[:2])
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        kinds = ", ".join(f"`{kind}`" for kind in row["kinds"].split())
        rows.append((shown + more, kinds or "refused", *(row[key] for key in _CHECKED)))
    total = [str(sum(int(row[i + 2]) for row in rows)) for i in range(len(_CHECKED))]
    rows.append((f"all {len(ARCHITECTURES)}", "", *total))
    heads = ("configs", "answers of vLLM 0.33", "of transformers 5.24")
    return table(("architecture", "what its layers keep", *heads), rows)


def peers() -> str:
    """Return how many of 25 models each calculator gets right."""
    tsv = _tsv(_HERE.parent / "bench" / "peers.tsv")
    names = [name for name in tsv[0] if name not in _NOT_PEERS]

    def count(name: str, verdict: str) -> str:
        return str(sum(row[name].startswith(verdict) for row in tsv if row["model"] != "right"))

    rows = [(f"`{name}`", *(count(name, verdict) for verdict in _VERDICTS)) for name in names]
    return table(("calculator", *_VERDICTS), rows)


def vllm_rows() -> str:
    """Return how many answers of vLLM are equal, by release and card."""
    from tests.engines.vllm.tally import FILES, tallies

    found: defaultdict[tuple[str, str], list[Tally]] = defaultdict(list)
    for name in FILES:
        for key, tally in tallies(name).items():
            found[key].append(tally)

    def row(release: str, card: str, t: Tally) -> tuple[str, ...]:
        counts = (t.questions, t.answers, t.refusals, len(t.wrong), t.left_out.total())
        return release, card, *(f"{n:,}" for n in counts)

    summed = {key: total(each) for key, each in sorted(found.items(), reverse=True)}
    rows = [row(*key, tally) for key, tally in summed.items()]
    heads = ("questions", "sized, equal", "refused by both", "different", "left out")
    everything = row("all", "", total(summed.values()))
    return table(("vLLM", "card", *heads), [*rows, everything])


def _engines() -> dict[str, Tally]:
    """Return the tally of every engine but vLLM."""
    from tests.engines.llamacpp.tally import FILES as CONTEXTS
    from tests.engines.llamacpp.tally import tally as of_llamacpp
    from tests.engines.lmdeploy.tally import tallies as of_lmdeploy
    from tests.engines.mlx_lm.tally import tally as of_mlx_lm
    from tests.engines.sglang.tally import tallies as of_sglang
    from tests.engines.transformers.tally import tallies as of_transformers

    return {
        "llama.cpp": total(of_llamacpp(name) for name in CONTEXTS),
        "lmdeploy": total(of_lmdeploy().values()),
        "mlx-lm": of_mlx_lm(),
        "sglang": total(of_sglang().values()),
        "transformers": total(of_transformers().values()),
    }


def engine_rows() -> str:
    """Return how many answers of the other engines are equal."""
    rows = []
    for engine, tally in _engines().items():
        counts = (tally.answers, tally.refusals, len(tally.wrong), tally.left_out.total())
        rows.append((engine, *(f"{n:,}" for n in counts)))
    return table(("engine", "equal", "refused by both", "different", "left out"), rows)


def engine_left_out() -> str:
    """Return why answers of the other engines are left out, and how many."""
    rows = [
        (engine, why, str(count))
        for engine, tally in _engines().items()
        for why, count in sorted(tally.left_out.items())
    ]
    return table(("engine", "why", "answers"), rows)


def engine_logs() -> str:
    """Return the published logs and figures of the other engines: reproduced, or why not."""
    from tests.engines.exllama.test_logs import LEFT_OUT as NO_EXLLAMA
    from tests.engines.exllama.test_logs import REPRODUCED as EXLLAMA
    from tests.engines.llamacpp.log_cases import CASES as LLAMACPP
    from tests.engines.llamacpp.log_cases import LISTED as NO_LLAMACPP
    from tests.engines.mlc_llm.test_mlc_llm import LISTED as NO_MLC
    from tests.engines.sglang.log_cases import CASES as SGLANG
    from tests.engines.sglang.log_cases import ELSEWHERE
    from tests.engines.tensorrt_llm.log_cases import CASES as TENSORRT
    from tests.engines.tensorrt_llm.log_cases import LISTED as NO_TENSORRT
    from tests.engines.vllm_ascend.test_vllm_ascend import LISTED as NO_ASCEND
    from tests.engines.vllm_ascend.test_vllm_ascend import REPRODUCED as ASCEND

    done = {
        "sglang": [case.case for case in SGLANG],
        "llama.cpp": [case.case for case in LLAMACPP],
        "tensorrt-llm": [case.case for case in TENSORRT],
        "transformers": ["hf-214"],
        "lmdeploy": ["lmdeploy-064"],
        "vllm-ascend": list(ASCEND),
        "exllamav2": list(EXLLAMA),
    }
    not_done = {
        "sglang": ELSEWHERE,
        "llama.cpp": NO_LLAMACPP,
        "tensorrt-llm": NO_TENSORRT,
        "mlc-llm": NO_MLC,
        "vllm-ascend": NO_ASCEND,
        "exllamav3": NO_EXLLAMA,
    }
    rows = [(engine, ", ".join(dict.fromkeys(cases)), "yes") for engine, cases in done.items()]
    rows += [
        (engine, case, f"no: {why}")
        for engine, listed in not_done.items()
        for case, why in listed.items()
    ]
    return table(("engine", "case", "reproduced"), rows)


def starts() -> str:
    """Return public starts against what is predicted to be left for the cache."""
    from tests.engines.sglang import starts as sglang
    from tests.engines.starts import COLUMNS
    from tests.engines.vllm import starts as vllm

    rows = [
        (engine, *row)
        for engine, made in (("vllm", vllm.rows()), ("sglang", sglang.rows()))
        for row in made
    ]
    return table(("engine", *COLUMNS), rows)


def vllm_left_out() -> str:
    """Return why answers are left out, and how many."""
    from tests.engines.vllm.tally import FILES, tallies

    counts: Counter[str] = Counter()
    for name in FILES:
        for tally in tallies(name).values():
            counts.update(tally.left_out)
    rows = sorted(((reason, str(count)) for reason, count in counts.items()))
    return table(("why", "questions"), rows)


def vllm_logs() -> str:
    """Return the real logs that are reproduced, and those that are not."""
    from tests.engines.vllm.log_cases import CASES, LISTED

    def figures(case: Any) -> str:
        told = (
            case.memory and f"{case.memory} GiB",
            case.blocks and f"{case.blocks:,} blocks",
            case.tokens and f"{case.tokens:,} tokens",
            case.concurrency and f"{case.concurrency:.2f}x",
            case.needed and f"{case.needed} GiB needed",
            case.length and f"{case.length:,} would fit",
            case.block and f"block {case.block:,}",
            case.padding and f"padding layers: {case.padding}",
            "refused" if case.refused else None,
        )
        return ", ".join(text for text in told if text)

    rows = [(case.release, case.model().name, figures(case), "yes") for case in CASES]
    rows += [("", name, why, "no") for name, why in LISTED.items()]
    return table(("vLLM", "model, or case", "what the log says", "reproduced"), rows)


def convention() -> str:
    """Return engine none's convention."""
    return "".join(f"- {sentence}\n" for sentence in CONVENTION.values())


def _commands() -> Iterable[tuple[str, Any]]:
    root: Any = typer.main.get_command(build())
    for name in COMMANDS:
        command = root.commands[name]
        if hasattr(command, "commands"):
            yield from ((f"{name} {sub}", c) for sub, c in command.commands.items())
        else:
            yield name, command


def reference() -> str:
    """Return every command with its options."""
    text = ""
    for name, command in _commands():
        rows = []
        for param in command.params:
            flags = ", ".join(f"`{flag}`" for flag in param.opts)
            if param.param_type_name == "argument":
                flags = f"`{param.metavar}`"
            elif param.metavar:
                flags += f" {param.metavar}"
            rows.append((flags, (param.help or "").replace("|", "\\|")))
        text += f"### kvcalc {name}\n\n{command.help}\n\n{table(('option', ''), rows)}\n"
    return text.rstrip("\n") + "\n"
