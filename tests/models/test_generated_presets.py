"""Presets are what the published configs say: the generated ones anew, the hand-written checked."""

from __future__ import annotations

import pytest

from kvcalc.core.model import ModelSpec
from kvcalc.models.presets import load_model_preset, model_names
from tests.tools.generate_presets import (
    HAND_WRITTEN,
    PRESETS,
    SHARED,
    files,
    published,
    sizes_of_hand_written,
)

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is absent")

OTHERWISE = {
    "qwen3.5-27b-attention": "an excerpt of qwen3.5-27b, which no config says",
}
"""Hand-written preset -> why no published config is compared with it."""


def _kept(spec: ModelSpec) -> tuple[object, ...]:
    """Return what decides the bytes: caches by layer and the model dtype; notes are left out."""
    runs = [
        (place, run.count, run.caches)
        for place, part in (("layers", spec.layers), ("draft", spec.draft_layers))
        for run in part
    ]
    return (spec.dtype, spec.kv_cache_dtype, *runs)


def test_generated_presets_are_current() -> None:
    """`python -m tests.tools.generate_presets --write` would change nothing."""
    made = files()

    assert set(made) == set(model_names()) - set(HAND_WRITTEN)
    stale = [n for n, text in made.items() if (PRESETS / f"{n}.yaml").read_text("utf-8") != text]
    assert stale == []


def test_hand_written_presets_keep_what_their_configs_say() -> None:
    """Layers, dtype and longest sequence of each are those of a config under one of its names."""
    configs = {item.model_id.lower(): item.spec for item in published()}
    compared = set()
    different = {}
    for name in HAND_WRITTEN:
        preset = load_model_preset(name)
        for alias in preset.aliases:
            spec = configs.get(alias.lower())
            if spec is None:
                continue
            compared.add(name)
            if _kept(preset.spec) != _kept(spec):
                different[name, alias] = f"{_kept(preset.spec)} != {_kept(spec)}"

    assert different == {}
    assert set(HAND_WRITTEN) - compared == set(OTHERWISE)


def test_hand_written_presets_have_the_sizes_of_their_configs() -> None:
    """`python -m tests.tools.generate_presets --write` would change none of their sizes."""
    made = sizes_of_hand_written()

    assert set(HAND_WRITTEN) - set(made) == set(OTHERWISE)
    assert {name: load_model_preset(name).spec.size for name in made} == made
