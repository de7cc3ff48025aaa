"""Configs changed in a thousand ways: the same model where nothing changes, else one of our errors.

The run of 10,000, which also says what the slowest took and the most memory that one needed:

    KVCALC_MUTANTS=10000 uv run pytest -s tests/models/hf_config/test_mutants.py
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from kvcalc.core.errors import InvalidValueError, KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config
from kvcalc.models.hf_config.class_defaults import class_defaults
from kvcalc.models.hf_config.registry import ARCHITECTURES, NESTED, model_type_of
from kvcalc.models.json_documents import read_json
from tests.guards import HANG

from .oracles import ABSENT, SHARED

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

SEED = 20_261_203
COUNT = int(os.environ.get("KVCALC_MUTANTS", "2000"))
BYTES = 200 * 2**20

Config = dict[str, Any]

# ---------------------------------------------------------------------- small configs of our own

MHA: Config = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6}
GQA: Config = MHA | {"num_key_value_heads": 3}
WIDE: Config = GQA | {"head_dim": 24}
WINDOW: Config = WIDE | {"sliding_window": 32}
FLAGGED: Config = WINDOW | {"use_sliding_window": True, "max_window_layers": 2}
MLA: Config = GQA | {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
GPT: Config = {"n_embd": 96, "n_layer": 4, "n_head": 6}
MIXED = ["full_attention", "sliding_attention"] * 2
NAMED_MAMBA2: Config = {
    "mamba_n_heads": 8,
    "mamba_d_head": 24,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
DELTA: Config = WIDE | {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
}
STATE: Config = {"hidden_size": 96, "num_hidden_layers": 4, "state_size": 8, "conv_kernel": 4}

SMALL: dict[str, Config] = {
    "bailing_linear": WIDE | {"layer_group_size": 2, "num_nextn_predict_layers": 1},
    "bamba": GQA | NAMED_MAMBA2 | {"attn_layer_indices": [1, 3]},
    "chatglm": {
        "hidden_size": 96,
        "num_layers": 4,
        "num_attention_heads": 6,
        "kv_channels": 16,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "seq_length": 256,
    },
    "cohere2": WINDOW | {"sliding_window_pattern": 4},
    "dbrx": {"d_model": 96, "n_layers": 4, "n_heads": 6, "attn_config": {"kv_n_heads": 3}},
    "deci": MHA
    | {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2, "no_op": False}},
            {"attention": {"n_heads_in_group": None, "no_op": True}},
            {"attention": {"n_heads_in_group": 3}},
            {"attention": {"replace_with_linear": True}},
        ]
    },
    "deepseek": MLA | {"num_nextn_predict_layers": 1},
    "deepseek_dsa": MLA
    | {"index_head_dim": 128, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    "deepseek_v4": MHA
    | {"head_dim": 64, "qk_rope_head_dim": 8, "sliding_window": 32, "index_head_dim": 128}
    | {"compress_ratios": [0, 4, 128, 4, 0], "num_nextn_predict_layers": 1},
    "dense": WINDOW | {"layer_types": MIXED, "num_mtp_layers": 1},
    "dflash": WINDOW | {"layer_types": MIXED, "dflash_config": {"swa_window_size": 16}},
    "encoder_decoder": {
        "d_model": 96,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
        "max_source_positions": 100,
        "max_target_positions": 64,
    },
    "exaone4": WINDOW | {"sliding_window_pattern": "LLLG", "num_nextn_predict_layers": 1},
    "falcon": MHA | {"multi_query": True, "new_decoder_architecture": False},
    "falcon_h1": WIDE | NAMED_MAMBA2 | {"mamba_d_ssm": 192},
    "gemma2": WINDOW,
    "gemma3": WINDOW | {"sliding_window_pattern": 3},
    "gemma3n": WINDOW | {"num_hidden_layers": 12, "num_kv_shared_layers": 5},
    "gemma4": WINDOW
    | {"num_hidden_layers": 12, "global_head_dim": 32, "attention_k_eq_v": True}
    | {"num_global_key_value_heads": 1, "num_kv_shared_layers": 4},
    "gpt_bigcode": GPT | {"multi_query": True, "n_positions": 64},
    "gpt_neo": {
        "hidden_size": 96,
        "num_layers": 4,
        "num_heads": 6,
        "window_size": 32,
        "attention_types": [[["global", "local"], 2]],
    },
    "gpt_oss": WINDOW | {"layer_types": MIXED},
    "granite_hybrid": GQA | NAMED_MAMBA2 | {"layer_types": ["mamba", "attention"] * 2},
    "grok": WIDE | {"sliding_window_size": -1},
    "hunyuan": WIDE | {"use_cla": True, "cla_share_factor": 2},
    "jamba": GQA
    | {"attn_layer_period": 4, "attn_layer_offset": 1}
    | {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2},
    "kimi_linear": MLA
    | {
        "linear_attn_config": {
            "num_heads": 4,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4],
        }
    },
    "lfm2": GQA | {"conv_L_cache": 3, "full_attn_idxs": [1, 3]},
    "llama4": WIDE | {"attention_chunk_size": 32, "no_rope_layers": [1, 0, 1, 0]},
    "longcat_flash": {"num_layers": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8},
    "mamba": STATE | {"expand": 2, "time_step_limit": [0.0, float("inf")]},
    "mamba2": STATE | {"expand": 2, "num_heads": 8, "head_dim": 24, "n_groups": 2},
    "mimo_v2": WINDOW
    | {"hybrid_layer_pattern": [0, 1, 1, 0], "v_head_dim": 16, "swa_v_head_dim": 8}
    | {"swa_num_key_value_heads": 6, "swa_head_dim": 12},
    "minicpmv4_6": DELTA,
    "minimax_m3": WIDE
    | {
        "sparse_attention_config": {
            "sparse_index_dim": 16,
            "sparse_attention_freq": [0, 1, 1, 1],
        },
        "num_mtp_modules": 1,
    },
    "minimax_text": WIDE | {"attn_type_list": [0, 0, 0, 1]},
    "mllama": GQA | {"cross_attention_layers": [1, 3]},
    "mpt": {
        "d_model": 96,
        "n_layers": 4,
        "n_heads": 6,
        "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 3},
    },
    "multi_head": GPT,
    "nemotron_h": WIDE
    | {"hybrid_override_pattern": "M-M*E", "mamba_num_heads": 8, "mamba_head_dim": 16}
    | {"ssm_state_size": 32, "n_groups": 2, "conv_kernel": 4, "num_nextn_predict_layers": 1}
    | {"mtp_hybrid_override_pattern": "*E", "num_hidden_layers": 5},
    "nested": {"text_config": WIDE | {"model_type": "llama"}, "vision_config": {"hidden_size": 7}},
    "olmo3": WINDOW,
    "openelm": {"num_transformer_layers": 3, "num_kv_heads": [2, 2, 4], "head_dim": 24},
    "qwen2": FLAGGED,
    "qwen2_moe": FLAGGED,
    "qwen3_5": DELTA | {"mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1},
    "qwen3_moe": FLAGGED,
    "qwen3_next": DELTA,
    "recurrent_gemma": GQA
    | {"attention_window_size": 32, "lru_width": 48, "conv1d_width": 4}
    | {"block_types": ["recurrent", "attention"]},
    "rwkv": {
        "model_type": "rwkv6",
        "hidden_size": 96,
        "num_hidden_layers": 4,
        "head_size": 16,
        "attention_hidden_size": 96,
    },
    "smollm3": WINDOW | {"use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0]},
    "stablelm": GQA,
    "step3p5": WINDOW | {"layer_types": [*MIXED, "full_attention"], "num_nextn_predict_layers": 1},
    "t5": {"d_model": 96, "d_kv": 24, "num_layers": 4, "num_decoder_layers": 3, "num_heads": 6},
    "yuan": GQA,
    "zamba2": GQA
    | {"layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 32}
    | {"mamba_ngroups": 2, "mamba_d_conv": 4, "mamba_expand": 2},
}
"""Module of `families` -> a small config that it reads."""

NOT_SIZED = {"xlstm": "is always refused"}
"""Module -> why there is no small config of it."""


def whole(architecture: str) -> Config:
    """Return the small config of an architecture as a file would have it."""
    small = copy.deepcopy(SMALL[ARCHITECTURES[architecture]])
    model_type = model_type_of(architecture)
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    quantization = {"quant_method": "modelopt", "kv_cache_scheme": scheme}
    return {
        "architectures": [architecture],
        **({"model_type": model_type} if model_type else {}),
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 128,
        "quantization_config": quantization,
        **small,
    }


OWN = {a: whole(a) for a in ARCHITECTURES if ARCHITECTURES[a] not in NOT_SIZED}


def corpus() -> dict[str, Config]:
    """Return every config of the corpus by its name; none where it is absent."""
    paths = sorted((SHARED / "corpus").glob("configs/*.json"))
    paths += sorted((SHARED / "corpus").glob("reconstructed/*.json"))
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in paths}


def read(config: Config) -> ModelSpec:
    return read_config(config, "config.json", "x")


# ---------------------------------------------------------------------- changes that change nothing


def shuffled(value: Any, rng: random.Random) -> Any:
    """Return the value with the keys of every object in another order."""
    if isinstance(value, list):
        return [shuffled(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: shuffled(value[key], rng) for key in keys}


def with_unknown_keys(value: Any) -> Any:
    """Return the value with keys that nobody knows in every object."""
    if isinstance(value, list):
        return [with_unknown_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    more: Config = {
        "zz_number": 7,
        "zz_null": None,
        "zz_list": [1, {"num_hidden_layers": 9}],
        "zz_config": {"num_key_value_heads": 9, "head_dim": 9, "sliding_window": 9},
        "Num_Hidden_Layers": 9,
        "num_hidden_layers ": 9,
    }
    return {**more, **{key: with_unknown_keys(item) for key, item in value.items()}}


OTHERS = {key for small in SMALL.values() for key in small} - {"model_type"}
"""Sizing keys of all families."""


def nulls(config: Config) -> Config:
    """Return the config with null under every key of other families that it leaves out.

    Not for keys where the class has a default and takes a null at its word.
    """
    model_type = config.get("model_type") or model_type_of((config.get("architectures") or [""])[0])
    own = class_defaults(model_type).nullable
    inner = {k: nulls(v) if k in NESTED and isinstance(v, dict) else v for k, v in config.items()}
    return {**dict.fromkeys(sorted(OTHERS - own)), **inner}


def neutral(config: Config, seed: int) -> Iterator[tuple[str, Config]]:
    """Yield (what was changed, the config) for each change that must not matter."""
    yield "keys in another order", shuffled(config, random.Random(seed))
    yield "unknown keys", with_unknown_keys(config)
    yield "null for absent keys", nulls(config)
    yield "null for absent nested parts", {**dict.fromkeys(NESTED), **config}
    yield "written and read back", read_json(json.dumps(config, indent=1), "config.json")
    yield "all of it", shuffled(with_unknown_keys(nulls(config)), random.Random(seed))


def differences(configs: dict[str, Config]) -> list[str]:
    """Return where a neutral change gives something other than the config itself."""
    found = []
    for seed, (name, config) in enumerate(configs.items()):
        model = outcome(config)
        for what, changed in neutral(config, seed):
            after = outcome(changed)
            if after != model:
                found.append(f"{name}: {what}: {after} instead of {model}")
    return found


def outcome(config: Config) -> ModelSpec | str:
    """Return the model, or what was said to refuse it."""
    try:
        return read(config)
    except KvcalcError as error:
        return f"{type(error).__name__}: {error}"


def test_every_architecture_has_a_small_config() -> None:
    """Each family is tried, and reads its small config."""
    modules = set(ARCHITECTURES.values())
    assert modules - SMALL.keys() - NOT_SIZED.keys() == set()
    assert len(OWN) >= len(ARCHITECTURES) - 1

    refused = {a: said for a, c in OWN.items() if isinstance(said := outcome(c), str)}
    assert refused == {}


def test_neutral_changes_change_nothing() -> None:
    """Key order, unknown keys at every level, null for other families' keys: the same model."""
    assert not differences(OWN)


@needs_shared
def test_neutral_changes_to_published_configs_change_nothing() -> None:
    """The same for every config of the corpus, refused ones too."""
    configs = corpus()

    assert len(configs) >= 300
    assert not differences(configs)


# ---------------------------------------------------------------------- changes that break things

ODD: list[Any] = [
    *(0, -1, 1, 2, 3, 7, 2**31, 2**53, 2**63, 2**64 - 1, 10**19, -(2**63), 10_000, 10_001, 10**6),
    *(0.0, -0.5, 2.5, 1e300, float("inf"), float("-inf"), float("nan")),
    *(True, False, None, "", "8", "auto", "full_attention", "x" * 5000, "\x00\x1b[31m", "\u202e"),
    *([], [None], [[]], [0], [1, 2, 3], [-1] * 4, ["full_attention"], [True], [2**63], [{}]),
    *({}, {"a": 1}, {"head_dim": 2}, {"model_type": "llama"}, {"text_config": {}}),
]
LONG: list[Callable[[], Any]] = [
    lambda: ["full_attention"] * 10_000,
    lambda: ["sliding_attention", "full_attention"] * 5_000,
    lambda: ["full_attention"] * 10_001,
    lambda: [1] * 200_000,
    lambda: [[["global", "local"], 10_000]] * 9,
    lambda: [[["global"] * 90, 10_000]] * 90,
    lambda: [{"attention": {"n_heads_in_group": 2}} for _ in range(4_000)],
    lambda: "M-M*" * 5_000,
    lambda: {str(n): n for n in range(5_000)},
    lambda: "9" * 100_000,
]


def _objects(value: Any) -> Iterator[Config]:
    """Yield every object in a value, itself first."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _objects(item)


def _some(rng: random.Random, config: Config) -> tuple[Config, str]:
    """Return an object of the config that is not empty, and one of its keys."""
    part = rng.choice([part for part in _objects(config) if part] or [config])
    return part, rng.choice(list(part) or ["model_type"])


def odd_value(rng: random.Random, config: Config) -> None:
    part, key = _some(rng, config)
    part[key] = copy.deepcopy(rng.choice(ODD))


def odd_values(rng: random.Random, config: Config) -> None:
    for _ in range(rng.randint(2, 12)):
        odd_value(rng, config)


def without(rng: random.Random, config: Config) -> None:
    for _ in range(rng.randint(1, 4)):
        part, key = _some(rng, config)
        part.pop(key, None)


def long_value(rng: random.Random, config: Config) -> None:
    part, key = _some(rng, config)
    part[key] = rng.choice(LONG)()
    if rng.random() < 0.5:
        config["num_hidden_layers"] = config["n_layer"] = config["num_layers"] = 10_000


def odd_item(rng: random.Random, config: Config) -> None:
    """Change one entry of a list, or its length."""
    lists = [v for part in _objects(config) for v in part.values() if isinstance(v, list) and v]
    chosen = rng.choice(lists or [[0]])
    at = rng.randrange(len(chosen))
    match rng.randrange(4):
        case 0:
            chosen[at] = copy.deepcopy(rng.choice(ODD))
        case 1:
            del chosen[at]
        case 2:
            chosen.append(copy.deepcopy(chosen[at]))
        case _:
            if len(json.dumps(chosen)) < 200:
                chosen *= rng.choice((2, 3, 100, 3000))


def other_keys(rng: random.Random, config: Config) -> None:
    """Lay another family's keys over the config, or the config over them."""
    other = copy.deepcopy(rng.choice(list(OWN.values())))
    for key in rng.sample(list(other), rng.randint(1, len(other))):
        config[key] = other[key]


def other_class(rng: random.Random, config: Config) -> None:
    config["architectures"] = [rng.choice(list(ARCHITECTURES))]
    if rng.random() < 0.5:
        config.pop("model_type", None)


def nested(rng: random.Random, config: Config) -> None:
    """Put the config inside itself, some levels deep."""
    levels = rng.choice((1, 2, 3, 4, 20, 58, 64, 100))
    bare = levels > 4 or rng.random() < 0.3
    for _ in range(levels):
        inner = dict(config)
        for key in inner if bare else ("architectures", *NESTED):
            config.pop(key, None)
        config |= {"architectures": inner.get("architectures"), rng.choice(NESTED): inner}


def deep(rng: random.Random, config: Config) -> None:
    """Wrap a value into lists and objects."""
    part, key = _some(rng, config)
    value: Any = part.get(key, 1)
    for _ in range(rng.choice((1, 2, 50, 65, 100))):
        value = [value] if rng.random() < 0.5 else {key: value}
    part[key] = value


CHANGES: list[Callable[[random.Random, Config], None]] = [
    *(odd_value, odd_values, without, long_value, odd_item, other_keys, other_class, nested, deep)
]


def cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text))]


def twice(rng: random.Random, text: str) -> str:
    """Write one key of the config twice."""
    key = rng.choice(['"num_hidden_layers"', '"head_dim"', '"architectures"', '"text_config"'])
    return text.replace("{", "{" + f"{key}: {rng.choice(['1', 'null', '[]', '{}'])}, ", 1)


def spliced(rng: random.Random, text: str) -> str:
    a, b, at = (rng.randrange(len(text)) for _ in range(3))
    return text[:at] + text[min(a, b) : max(a, b)] + text[at:]


def scribbled(rng: random.Random, text: str) -> str:
    signs = list(text)
    for _ in range(rng.randint(1, 6)):
        signs[rng.randrange(len(signs))] = rng.choice('{}[]:,"\\-+.eE0189tfn \t\n\r\0\x7f\ufeffé')
    return "".join(signs)


def literal(rng: random.Random, text: str) -> str:
    """Put a number where json allows odd ones, or a text with odd escapes."""
    odd = ["Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1" * 5000, "-0", "0.1e1", "1E5"]
    odd += ['"\\ud800"', '"\\u0000"', '"\\ud83d\\ude00"', "[" * 5000, "{" * 70, "[" * 70 + "]" * 70]
    digits = [n for n, sign in enumerate(text) if sign.isdigit()]
    at = rng.choice(digits or [0])
    return text[:at] + rng.choice(odd) + text[at + 1 :]


DAMAGE: list[Callable[[random.Random, str], str]] = [cut, twice, spliced, scribbled, literal]


def mutant(rng: random.Random, configs: list[Config]) -> str:
    """Return the text of a damaged config."""
    config = copy.deepcopy(rng.choice(configs))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(CHANGES)(rng, config)
    text = json.dumps(config)
    return rng.choice(DAMAGE)(rng, text) if rng.random() < 0.25 else text


def measured(text: str, name: str) -> tuple[str, float, int]:
    """Return what a text gave, the seconds and the bytes that it took; both within the limits."""
    before = time.process_time()
    try:
        said = kind(text)
    except Exception as error:
        raise AssertionError(f"{name}: {text[:2000]}") from error
    took = time.process_time() - before
    tracemalloc.start()  # a second time: tracing makes reading four times as slow
    kind(text)
    needed = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < HANG, f"{name}: {took} s: {text[:500]}"
    assert needed < BYTES, f"{name}: {needed} bytes: {text[:500]}"
    return said, took, needed


def kind(text: str) -> str:
    """Return ModelSpec, or the kind of the error, which is one line with a place and a hint."""
    try:
        model = read(read_json(text, "config.json"))
    except KvcalcError as error:
        said = f"{error}{error.hint}"
        assert error.where == "config.json" or error.where.startswith("config.json:"), said
        assert said.isprintable(), said
        assert len(said) < 1500, said
        # What core refuses itself has no hint: the message gives the range.
        assert error.hint or isinstance(error, InvalidValueError), said
        return type(error).__name__
    assert isinstance(model, ModelSpec)
    for note in model.notes:
        assert note.isprintable(), note
        assert len(note) < 500, note
    return "ModelSpec"


def run(configs: Iterable[Config], count: int, seed: int) -> None:
    """Read mutants: a ModelSpec or a KvcalcError that says where, and none slow or large."""
    rng = random.Random(seed)
    chosen = list(configs)
    kinds: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    for number in range(count):
        text = mutant(rng, chosen)
        kind, took, needed = measured(text, f"mutant {number} of seed {seed}")
        kinds[kind] += 1
        slowest, largest = max(slowest, took), max(largest, needed)
    print(
        f"{count} mutants: {dict(kinds.most_common())}; the slowest took {slowest * 1000:.0f} ms,"
        f" the largest {largest / 2**20:.1f} MiB"
    )
    assert kinds["ModelSpec"] > count // 20
    assert kinds["ModelSpec"] < count // 2


def test_mutants_give_a_model_or_an_error() -> None:
    """Types, sizes, nesting, recursion, other classes, damaged text: never a traceback."""
    run(OWN.values(), COUNT, SEED)


@needs_shared
def test_mutants_of_published_configs_give_a_model_or_an_error() -> None:
    """The same from the corpus, a fifth as many."""
    run(corpus().values(), COUNT // 5, SEED + 1)


def test_a_mutant_that_is_read_is_a_model_like_any_other() -> None:
    """What was read can be written, read back and asked for its bytes."""
    rng = random.Random(SEED + 2)
    read_so_far = 0
    for _ in range(COUNT // 10):
        try:
            model = read(read_json(mutant(rng, list(OWN.values())), "config.json"))
        except KvcalcError:
            continue
        read_so_far += 1
        assert msgspec.json.decode(msgspec.json.encode(model), type=ModelSpec) == model
        try:
            assert model.sequence_bytes(4096) >= model.sequence_bytes(0) >= 0
        except KvcalcError as error:  # an index key that no whole number of fp8 blocks holds
            assert "packs 128 elements" in str(error)

    assert read_so_far > 10
