"""Ask mlx-lm itself: PYTHON tests/engines/mlx_lm/oracle.py CONFIGS ANSWERS.

It runs where `mlx[cpu]` and `mlx-lm` are installed, apart from kvcalc. Every model is built by its
own class in its full size and called as `generate_step` does; arrays are never computed (MLX is
lazy and knows shapes and dtypes at once), so that the caches report their real `nbytes`.

CONFIGS is a folder of config.json files; a line of ANSWERS is one question:
  model, prompt, later   a prompt of so many tokens in steps of 2,048, then so many single tokens
  kv_bits, group, start  --kv-bits, --kv-group-size, --quantized-kv-start, where they were given
  max_kv_size            --max-kv-size, where it was given
  classes                cache classes with their number of layers
  most                   bytes of each class of caches at their most, added up
  bytes                  bytes of all caches at the end
  error                  the start of a refusal; of the config itself where nothing was asked
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

STEP = 2048
QUESTIONS: tuple[dict[str, int], ...] = (
    {"prompt": 1, "later": 0},
    {"prompt": 2, "later": 0},
    {"prompt": 3, "later": 1},
    {"prompt": 300, "later": 0},
    {"prompt": 1024, "later": 2},
    {"prompt": 2050, "later": 1},
    {"prompt": 9000, "later": 2},
    {"prompt": 300, "later": 0, "kv_bits": 8, "group": 64, "start": 0},
    {"prompt": 3000, "later": 1, "kv_bits": 4, "group": 32, "start": 2500},
    {"prompt": 300, "later": 1, "kv_bits": 6, "group": 64, "start": 5000},
    {"prompt": 300, "later": 1, "max_kv_size": 1024},
    {"prompt": 3000, "later": 2, "max_kv_size": 1024},
)
_SECONDS = 120
_FILLED = {
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
}
"""What published configs leave out and mlx-lm has no default for; none of it decides a cache."""


def _stop(*_: Any) -> None:
    raise TimeoutError("took too long")


def _leaves(cache: Any) -> list[Any]:
    return (
        [leaf for part in cache.caches for leaf in _leaves(part)]
        if hasattr(cache, "caches")
        else [cache]
    )


def _bytes(caches: list[Any]) -> Counter[str]:
    """Return the bytes that the caches report, by class."""
    found: Counter[str] = Counter()
    for leaf in (leaf for cache in caches for leaf in _leaves(cache)):
        if getattr(leaf, "keys", 0) is not None:
            found[type(leaf).__name__] += leaf.nbytes
    return found


def build(config: dict[str, Any]) -> Any:
    """Return the model in its full size, its weights in the dtype that a conversion gives them."""
    mx, nn = import_module("mlx.core"), import_module("mlx.utils")
    config = _FILLED | config
    if "text_config" in config:
        config["text_config"] = _FILLED | config["text_config"]
    classes = import_module("mlx_lm.utils")._get_classes(config)
    model = classes[0](classes[1].from_dict(config))
    told = config.get("text_config", config)
    name = config.get("torch_dtype") or config.get("dtype")
    name = name or told.get("torch_dtype") or told.get("dtype") or "float16"
    dtype = getattr(mx, name)
    wanted = getattr(model, "cast_predicate", lambda _: True)

    def cast(key: str, value: Any) -> Any:
        floating = mx.issubdtype(value.dtype, mx.floating)
        return value.astype(dtype) if floating and wanted(key) else value

    model.update(nn.tree_map_with_path(cast, model.parameters()))
    return model


def ask(model: Any, question: dict[str, int]) -> dict[str, Any]:
    """Return what the caches hold, as `generate_step` (mlx_lm/generate.py) makes them."""
    mx, generate = import_module("mlx.core"), import_module("mlx_lm.generate")
    make = import_module("mlx_lm.models.cache").make_prompt_cache
    caches = make(model, max_kv_size=question.get("max_kv_size"))
    classes = Counter(type(leaf).__name__ for cache in caches for leaf in _leaves(cache))
    most: Counter[str] = Counter()

    def step(tokens: int) -> None:
        model(mx.zeros((1, tokens), dtype=mx.int32), cache=caches)
        most.update(_bytes(caches) - most)
        generate.maybe_quantize_kv_cache(
            caches, question.get("start", 0), question.get("group", 64), question.get("kv_bits")
        )
        most.update(_bytes(caches) - most)

    left = question["prompt"]
    while left > 1:
        tokens = min(STEP, left - 1)
        step(tokens)
        left -= tokens
    for _ in range(1 + question["later"]):
        step(1)
    held = _bytes(caches).total()
    return {"classes": dict(classes), "most": most.total(), "bytes": held}


def _answer(model: Any, question: dict[str, int]) -> dict[str, Any]:
    try:
        signal.alarm(_SECONDS)
        try:
            return ask(model, question)
        finally:
            signal.alarm(0)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> int:
    """Ask all questions about all configs, apart from those that the answers have already."""
    import_module("mlx.core").set_default_device(import_module("mlx.core").cpu)
    signal.signal(signal.SIGALRM, _stop)
    folder, answers = map(Path, sys.argv[1:3])
    text = answers.read_text(encoding="utf-8") if answers.exists() else ""
    done = {json.loads(line)["model"] for line in text.splitlines()}
    with answers.open("a", encoding="utf-8") as out:
        for path in sorted(folder.glob("*.json")):
            if path.stem in done:
                continue
            try:
                model = build(json.loads(path.read_text(encoding="utf-8")))
            except Exception as error:
                rows: list[dict[str, Any]] = [{"error": f"{type(error).__name__}: {error}"}]
            else:
                rows = [question | _answer(model, question) for question in QUESTIONS]
            for row in rows:
                out.write(json.dumps({"model": path.stem, **row}) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
