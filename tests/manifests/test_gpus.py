"""Products, accelerators and instance types -> kvcalc's cards; unknown ones name the nearest."""

from __future__ import annotations

import pytest

from kvcalc.manifests.found import GpuRequest, Word
from kvcalc.manifests.gpu_tables import INSTANCES, PRODUCTS
from kvcalc.manifests.gpus import card_of, find_card
from kvcalc.models.presets import gpu_names


@pytest.mark.parametrize(
    ("product", "name", "devices"),
    [
        ("nvidia-l4", "l4", None),
        ("nvidia-tesla-t4", "t4", None),
        ("nvidia-h100-80gb", "h100-80gb", None),
        ("nvidia-h100-mega-80gb", "h100-80gb", None),
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb", None),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb", None),
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb", None),
        ("NVIDIA-A100-PCIE-40GB", "a100-40gb", None),
        ("Tesla-A100-80G", "a100-80gb", None),
        ("NVIDIA-H200", "h200", None),
        ("NVIDIA-L40S-SHARED", "l40s", None),
        ("AMD_Instinct_MI300X_OAM", "mi300x", None),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090", None),
        ("H200:8", "h200", 8),
        ("A100-80GB", "a100-80gb", None),
        ("p5.48xlarge", "h100-80gb", 8),
        ("g6.xlarge", "l4", 1),
        ("g6.24xlarge", "l4", 4),
        ("ml.g5.12xlarge", "a10g", 4),
        ("Standard_NC24ads_A100_v4", "a100-80gb-pcie", 1),
        ("Standard_NC80adis_H100_v5", "h100-nvl", 2),
        ("a3-highgpu-8g", "h100-80gb", 8),
        ("g2-standard-48", "l4", 4),
        ("accelerator_type:A10G", "a10g", None),
        ("A100", None, None),
        ("V100", None, None),
        ("RTX4070", None, None),
        ("tpu-v6e-slice", None, None),
        ("x" * 500, None, None),
    ],
)
def test_products(product: str, name: str | None, devices: int | None) -> None:
    """As the clouds, Kubernetes, SkyPilot and Ray write them."""
    card = find_card(product)

    assert (card.name, card.devices) == (name, devices)


def test_the_tables_name_presets_that_are_there() -> None:
    """No table promises a card that kvcalc does not have."""
    names = set(gpu_names())

    assert {name for name, _ in INSTANCES.values()} <= names
    assert set(PRODUCTS.values()) - {""} <= names


@pytest.mark.parametrize(
    ("product", "code", "cure"),
    [
        ("NVIDIA-RTX-4091", "unknown-gpu", "rtx-4090"),
        ("A100", "unknown-gpu", "a100-40gb"),
        ("google-tpu-v5", "not-a-gpu", "--gpu-memory"),
    ],
)
def test_an_unknown_card_names_the_nearest(product: str, code: str, cure: str) -> None:
    """Or says what it is not."""
    card, (finding,) = card_of(GpuRequest(product=Word(product, 7)))

    assert card.name is None
    assert (finding.code, finding.line) == (code, 7)
    assert cure in finding.cure


def test_several_products() -> None:
    """Any of two cards: the first is taken, and said; the same card twice is one."""
    both = GpuRequest(product=Word("H100"), choices=(Word("H200"),))
    same = GpuRequest(product=Word("H100"), choices=(Word("nvidia-h100-80gb"),))

    assert card_of(both)[0].name == "h100-80gb"
    assert [finding.code for finding in card_of(both)[1]] == ["several-products"]
    assert card_of(same)[1] == []
