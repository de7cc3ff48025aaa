"""kvcalc beside five other calculators on 25 models: python -m tests.bench.peers [--write].

Every cell is one question: how many bytes does one sequence of 131,072 tokens keep, in the model's
16-bit dtype? The expected bytes are worked out here from rows of ../shared/oracle, what real
engines said of each layer, and from nothing of kvcalc's. A hybrid's fixed state stands apart.

A peer is `right` within 0.1 %, and a hybrid's may lie anywhere from no state to 2.2 times the
expected one (states are kept in 16 or 32 bits). kvcalc is `right` only to the byte. Otherwise a
cell says `wrong x` and the ratio to the expected bytes, `refused` (a refusal or a crash), `zero`,
or `not run` (the peer needs files that are not here).

Each peer is called in a virtual environment of its own, made on first use, without a network: its
own KV function on a config.json. Three of them are handed what they would have read elsewhere:
modelinfo-cli the shapes of the K projections where config.json nests the sizes it looks for,
ridgepoint the file in place of the Hub's, llm-d-planner transformers' class where the published
config names one of its own repository.

What each said is printed on stderr, the table on stdout. Leaves with 3 where ../shared is absent.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import KvcalcError
from kvcalc.models.hf_config import read_config

SHARED = Path(__file__).parents[3] / "shared"
OUTPUT = Path(__file__).with_suffix(".tsv")
TOKENS = 131_072
TOLERANCE = 1000  # a peer may be off by one part of this
STATE_ROOM = 2.2  # states that a peer may count, as a multiple of the expected
NO_ORACLE = 3  # exit code

Config = dict[str, Any]
Row = dict[str, Any]


class Truth(NamedTuple):
    """What a sequence keeps: bytes that grow with it, bytes that do not, and who says so."""

    growing: int
    state: int
    source: str


# --- the oracles' rows


@functools.cache
def rows(engine: str) -> list[Row]:
    path = SHARED / "oracle" / f"{engine}_results.jsonl"
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def width(dtype: str) -> int:
    return {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]


NEUTRAL = {"tp", "max_model_len"}  # what a case may ask for and leave the layers as they are


def plain_vllm_rows(model: str) -> Iterator[Row]:
    """Yield vLLM 0.33's rows of a model on one H100 with nothing else asked for."""
    for row in rows("vllm"):
        if (
            row["model"] == model
            and row["vllm_version"].startswith("0.33.")
            and row["gpu"] == "h100"
            and row["case"].keys() <= NEUTRAL
            and row.get("tp") == 1
            and row.get("kv_cache_dtype") == "auto"
            and "layer_specs" in row
            and width(row["model_dtype"]) == width("bfloat16")
        ):
            yield row


def held(spec: Row) -> int:
    """Return the tokens that a layer of this spec can still read at the end."""
    match spec["class"]:
        case "FullAttentionSpec" | "MLAAttentionSpec":
            return TOKENS
        case "SlidingWindowSpec":
            return min(TOKENS, int(spec["sliding_window"]))
        case "ChunkedLocalAttentionSpec":
            return min(TOKENS, int(spec["attention_chunk_size"]))
        case other:
            raise ValueError(f"no rule for vLLM's {other}")


def vllm_sizes(row: Row) -> tuple[int, int]:
    """Return the growing bytes and the state bytes of a row's layers, pages unrounded."""
    growing = state = 0
    for spec in row["layer_specs"]:
        if spec["class"] == "MambaSpec":
            shapes = zip(spec["shapes"], spec["dtypes"], strict=True)
            each = sum(math.prod(shape) * width(dtype) for shape, dtype in shapes)
            state += each * spec["num_layers"]
            continue
        page = spec.get("unpadded_page_size_bytes", spec["page_size_bytes"])
        token, left = divmod(page, spec["block_size"])
        if left or spec.get("tokens_per_state", 1) != 1:
            raise ValueError(f"no rule for {spec}")
        growing += token * held(spec) * spec["num_layers"]
    return growing, state


def from_vllm(model: str) -> Truth:
    """Return what vLLM's plain rows say of a model; they must all say the same."""
    found = sorted(
        plain_vllm_rows(model), key=lambda row: (row["max_model_len"], row["available_bytes"])
    )
    sizes = {vllm_sizes(row) for row in found}
    if len(sizes) != 1:
        raise ValueError(f"{len(found)} rows of {model} say {len(sizes)} sizes")
    row = found[0]
    key = f"{model}, {row['gpu']}, tp 1, max_model_len {row['max_model_len']}"
    source = f"vLLM {row['vllm_version']}: {key}, {row['available_bytes']} bytes available"
    return Truth(*sizes.pop(), source)


def from_transformers(name: str) -> Truth:
    """Return what a prefilled DynamicCache of transformers says; no layer of it has a window."""
    (row,) = (
        row
        for row in rows("transformers")
        if row["name"] == name
        and row.get("cache") == "DynamicCache"
        and row["steps"] == f"prefill {row['tokens']}"
    )
    if row["window"] is not None:
        raise ValueError(f"{name} has a window")
    growing = 0
    for layer in row["layers"]:
        if any(tensor.startswith("keys[") for tensor in layer["tensors"]):
            token, left = divmod(layer["bytes_each"], row["tokens"])
            if left:
                raise ValueError(f"{layer} keeps no whole number of bytes a token")
            growing += token * layer["n"]
    source = f"transformers {row['transformers']}: {name}, DynamicCache, {row['steps']}"
    return Truth(growing * TOKENS, row["bytes"] - growing * row["tokens"], source)


def from_llamacpp(name: str) -> Truth:
    """Return what the cells of llama.cpp's f16 caches say, their recurrent states left out."""
    (row,) = (row for row in rows("llamacpp") if row["name"] == name)
    growing = 0
    for cache in row["caches"]:
        if cache["kind"] != "kv":
            continue
        cells = cache["cells"] * cache["streams"]
        cell, left = divmod(cache["k_bytes"] + cache["v_bytes"], cells)
        if left:
            raise ValueError(f"{name}: cells of no whole number of bytes")
        window = row["hp"]["attention.sliding_window"] if cache["cache"] == "swa" else TOKENS
        growing += cell * min(TOKENS, window)
    version = row["lib"]["xllamacpp"]
    return Truth(growing, 0, f"llama.cpp (xllamacpp {version}): {name}")


def nemotron_h_8b() -> Truth:
    """Return two models' rows put together: no engine was asked of this one.

    Nemotron-Nano-9B-v2 has the same four attention layers (8 KV heads of 128), Mamba-Codestral-7B
    the same Mamba-2 layers (128 heads of 64, state 128, 8 groups), 64 of them instead of 24.
    """
    attention = from_llamacpp("nemotron-nano-9b-v2/seqs=2")
    mamba = from_vllm("mistralai--Mamba-Codestral-7B-v0.1")
    return Truth(
        attention.growing,
        mamba.state // 64 * 24,
        f"{attention.source} (the same attention); {mamba.source} (24 of its 64 states)",
    )


# --- the models


class Model(NamedTuple):
    """A model of the comparison.

    Attributes:
        name: as ../shared/facts/peers.md calls it.
        config: its file in ../shared/corpus, without the ending.
        truth: what is expected of it; None = vLLM's rows of the file's name.
        changes: keys laid over the file.
    """

    name: str
    config: str
    truth: Callable[[], Truth] | None = None
    changes: Config = {}

    def expected(self) -> Truth:
        return self.truth() if self.truth else from_vllm(Path(self.config).name)

    def read(self) -> Config:
        path = SHARED / "corpus" / f"{self.config}.json"
        return {**json.loads(path.read_text(encoding="utf-8")), **self.changes}


GEMMA_2_9B = "gemma2-9b/seqs=1,unified=False,swa_full=False"

MODELS = (
    Model("llama2-7b", "configs/meta-llama--Llama-2-7b-hf"),
    Model("llama31-8b", "configs/meta-llama--Meta-Llama-3.1-8B"),
    Model("llama31-70b", "configs/meta-llama--Meta-Llama-3.1-70B"),
    Model("qwen3-30b-a3b", "configs/Qwen--Qwen3-30B-A3B-Instruct-2507"),
    Model("qwen3-next-80b", "configs/Qwen--Qwen3-Next-80B-A3B-Instruct"),
    Model("qwen35-27b", "configs/Qwen--Qwen3.5-27B"),
    Model(
        "gemma2-9b",
        "configs/google--gemma-2-2b-jpn-it",  # its smaller sister, with the sizes of the row
        functools.partial(from_llamacpp, GEMMA_2_9B),
        {
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_attention_heads": 16,
            "num_hidden_layers": 42,
            "num_key_value_heads": 8,
        },
    ),
    Model("gemma3-27b", "configs/google--gemma-3-27b-it"),
    Model("gpt-oss-120b", "configs/openai--gpt-oss-120b"),
    Model("deepseek-v3", "configs/deepseek-ai--DeepSeek-V3"),
    Model("deepseek-v32", "configs/deepseek-ai--DeepSeek-V3.2"),
    Model("kimi-k2", "configs/moonshotai--Kimi-K2-Instruct"),
    Model("mistral-7b-v01", "configs/mistralai--Mistral-7B-v0.1"),
    Model("llama4-scout", "configs/meta-llama--Llama-4-Scout-17B-16E-Instruct"),
    Model(
        "nemotron-h-8b",
        "reconstructed/nvidia--NVIDIA-Nemotron-Nano-9B-v2",  # its successor, with its own sizes
        nemotron_h_8b,
        {
            "hidden_size": 4096,
            "hybrid_override_pattern": "M-M-M-M*-" + 3 * "M-M-M-M-M*-" + "M-M-M-M-M-",
            "intermediate_size": 21504,
            "mamba_head_dim": 64,
            "max_position_embeddings": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 52,
        },
    ),
    Model("nemotron3-nano", "configs/nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    Model("granite4-h-small", "configs/ibm-granite--granite-4.0-h-small"),
    Model("jamba-v01", "configs/ai21labs--Jamba-v0.1"),
    Model("gemma3n-e4b", "reconstructed/google--gemma-3n-E4B-it"),
    Model("gemma4-31b", "configs/nvidia--Gemma-4-31B-IT-NVFP4"),
    Model("command-r7b", "reconstructed/CohereForAI--c4ai-command-r7b-12-2024"),
    Model(
        "minimax-text-01",
        "reconstructed/MiniMaxAI--MiniMax-Text-01",
        functools.partial(from_transformers, "minimax-text-01-shape"),
    ),
    Model("kimi-linear", "reconstructed/moonshotai--Kimi-Linear-48B-A3B-Instruct"),
    Model("nemotron-super-49b", "configs/nvidia--Llama-3_3-Nemotron-Super-49B-v1"),
    Model("mimo-v2-flash", "configs/XiaomiMiMo--MiMo-V2-Flash"),
)


# --- the peers


class Peer(NamedTuple):
    """Another calculator: what to install, and `size(config, folder, tokens)` to call it."""

    requirements: tuple[str, ...]
    size: str


class NotRun(NamedTuple):
    """A peer, or one model of it, could not be asked."""

    reason: str


Answer = int | str | NotRun  # bytes, or the words of a refusal

BEFORE = """
import json, os, socket, sys, warnings

warnings.simplefilter("ignore")

def closed(*args, **kwargs):
    raise OSError("there is no network here")

socket.socket.connect = socket.getaddrinfo = closed

class NotRun(Exception):
    pass
"""

AFTER = """
question = json.load(sys.stdin)
answers = {}
for name, folder in question["folders"].items():
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    try:
        answers[name] = {"bytes": round(size(config, folder, question["tokens"]))}
    except NotRun as error:
        answers[name] = {"not_run": str(error)}
    except Exception as error:
        answers[name] = {"refused": f"{type(error).__name__}: {error}"}
print("\\n" + json.dumps(answers))
"""

KVFIT = """
from kvfit.architectures import estimate_cache

def size(config, folder, tokens):
    return estimate_cache(config, context_tokens=tokens, kv_bytes=2.0).total_bytes
"""

HF_MEM = """
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size, resolve_kv_cache_dtype

def size(config, folder, tokens):
    if "ForConditionalGeneration" in str(config["architectures"]) and "text_config" in config:
        config = config["text_config"]
    missing = {"hidden_size", "num_hidden_layers", "num_attention_heads"} - config.keys()
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    dtype = resolve_kv_cache_dtype(config, "bfloat16", None, "local")
    return compute_safetensors_kv_cache_size(config, dtype, tokens)
"""

RIDGEPOINT = """
import ridgepoint, ridgepoint.hf

def size(config, folder, tokens):
    def local(repo_id, filename, revision):
        return os.path.join(folder, filename)

    ridgepoint.hf.hf_hub_download = local
    answer = ridgepoint.fit(
        "local/model",
        "h100-80gb",
        count=8,
        dtype="bf16",
        kv_cache_dtype="bf16",
        ctx=tokens,
        as_json=True,
    )
    return json.loads(answer)["capacity"]["bytes_per_seq"]
"""

MODELINFO = """
from modelinfo.calculator import calculate_footprint

def size(config, folder, tokens):
    tensors = {}
    text = config.get("text_config")
    if text and "num_hidden_layers" not in config:
        rows = text["num_key_value_heads"] * text["head_dim"]
        for layer in range(text["num_hidden_layers"]):
            name = f"model.layers.{layer}.self_attn.k_proj.weight"
            tensors[name] = {"shape": [rows, text["hidden_size"]], "dtype": "BF16"}
    return calculate_footprint(tensors, tokens, config=config)["kv_cache_bytes"]
"""

LLM_D_PLANNER = """
from transformers import CONFIG_MAPPING
from planner.capacity_planner import KVCacheDetail, get_model_config_from_hf

def size(config, folder, tokens):
    if config["model_type"] not in CONFIG_MAPPING:
        raise NotRun("its config class lives in the model's repository")
    if config.pop("auto_map", None):
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
    read = get_model_config_from_hf(folder)
    return KVCacheDetail("local", read, tokens).per_request_kv_cache_bytes
"""

PEERS = {
    "kvfit": Peer(("kvfit==0.3.0",), KVFIT),
    "hf-mem": Peer(("hf-mem==0.5.6",), HF_MEM),
    "ridgepoint": Peer(("ridgepoint==0.1.2",), RIDGEPOINT),
    "modelinfo-cli": Peer(("modelinfo-cli==1.4.4",), MODELINFO),
    "llm-d-planner": Peer(
        ("llm-d-planner[estimation]==0.3.3", "transformers==5.20.2"), LLM_D_PLANNER
    ),
}


def environment(name: str, root: Path) -> Path:
    """Return the Python of a peer's virtual environment, which is made where it is missing.

    Raises:
        OSError: there is no uv.
        subprocess.CalledProcessError: uv could not make or fill it.
    """
    folder, wanted = root / name, " ".join(PEERS[name].requirements)
    python, mark = folder / "bin" / "python", folder / "holds.txt"
    if not (mark.is_file() and mark.read_text(encoding="utf-8") == wanted):
        for command in (
            ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            ["uv", "pip", "install", "--quiet", "--python", str(python), *wanted.split()],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        mark.write_text(wanted, encoding="utf-8")
    return python


def ask(name: str, root: Path) -> dict[str, Answer]:
    """Return a peer's answer for every model."""
    try:
        python = environment(name, root)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"cannot be installed: {getattr(error, 'stderr', None) or error}"
        return {model.name: NotRun(reason) for model in MODELS}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for model in MODELS:
            folder = Path(scratch, model.name)
            folder.mkdir()
            config = json.dumps(model.read())
            (folder / "config.json").write_text(config, encoding="utf-8")
            folders[model.name] = str(folder)
        done = subprocess.run(
            [str(python), "-I", "-c", BEFORE + PEERS[name].size + AFTER],
            input=json.dumps({"tokens": TOKENS, "folders": folders}),
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": scratch},
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        reason = f"its own functions have moved: {done.stderr[-500:]}"
        return {model.name: NotRun(reason) for model in MODELS}
    answers: dict[str, Answer] = {}
    for model, said in json.loads(done.stdout.splitlines()[-1]).items():
        not_run = said.get("not_run")
        answers[model] = NotRun(not_run) if not_run else said.get("bytes", said.get("refused"))
    return answers


def ask_kvcalc(model: Model) -> Answer:
    """Return the bytes that kvcalc says grow, in the model's 16-bit dtype."""
    try:
        spec = read_config(model.read(), f"{model.config}.json", model.name)
    except KvcalcError as error:
        return str(error)
    is_16_bit = element_bytes(spec.dtype) == width("bfloat16")
    growing = spec.growing_bytes(TOKENS, spec.dtype if is_16_bit else "bfloat16")
    expected = model.expected()
    if spec.state_bytes() != expected.state:
        differs = f"{spec.state_bytes()} bytes of state, {expected.state} expected"
        print(f"kvcalc: {model.name}: {differs}", file=sys.stderr)
    return growing


# --- the table


def verdict(answer: Answer, truth: Truth, *, to_the_byte: bool) -> str:
    if isinstance(answer, NotRun):
        return "not run"
    if isinstance(answer, str):
        return "refused"
    if answer == 0:
        return "zero"
    if to_the_byte:
        right = answer == truth.growing
    else:
        near = abs(answer - truth.growing) * TOLERANCE <= truth.growing
        right = near or truth.growing <= answer <= truth.growing + STATE_ROOM * truth.state
    return "right" if right else f"wrong x {answer / truth.growing:#.3g}".rstrip(".")


def table(peers: Sequence[str], root: Path) -> str:
    """Return the whole comparison as tab-separated lines."""
    columns: dict[str, list[str]] = {}
    truths = [model.expected() for model in MODELS]
    for name in ("kvcalc", *peers):
        ours = name == "kvcalc"
        said = {m.name: ask_kvcalc(m) for m in MODELS} if ours else ask(name, root)
        columns[name] = []
        for model, truth in zip(MODELS, truths, strict=True):
            answer = said[model.name]
            columns[name].append(verdict(answer, truth, to_the_byte=ours))
            shown = answer.reason if isinstance(answer, NotRun) else answer
            print(f"{name}: {model.name}: {columns[name][-1]}: {shown}", file=sys.stderr)
    lines = [["model", "expected_bytes", "expected_state_bytes", "source", *columns]]
    for model, truth, *cells in zip(MODELS, truths, *columns.values(), strict=True):
        lines.append([model.name, str(truth.growing), str(truth.state), truth.source, *cells])
    totals = [str(cells.count("right")) for cells in columns.values()]
    lines.append(["right", "", "", f"of {len(MODELS)}", *totals])
    return "".join("\t".join(line) + "\n" for line in lines)


def write(text: str, path: Path) -> None:
    """Put a text in a file's place in one step."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison, or write it beside this file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers")
    parser.add_argument("--peers", default=",".join(PEERS), help="which of them, by commas")
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name} instead")
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(tempfile.gettempdir()) / "peers",
        help="where the peers are installed",
    )
    chosen = parser.parse_args(arguments)
    peers = [name for name in chosen.peers.split(",") if name]
    if unknown := set(peers) - PEERS.keys():
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    if chosen.write and peers != list(PEERS):
        parser.error("--write needs all peers, in their order")
    if not SHARED.is_dir():
        print("../shared is absent: no oracle to compare with", file=sys.stderr)
        return NO_ORACLE
    text = table(peers, chosen.environments)
    if chosen.write:
        write(text, OUTPUT)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
