"""Which of kvcalc's cards a file's GPU request means."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import nearest, printable
from kvcalc.manifests.found import Finding, GpuRequest, Word
from kvcalc.manifests.gpu_tables import INSTANCES, NOT_GPUS, PRODUCTS
from kvcalc.models.presets import gpu_names

__all__ = ["Card", "card_of", "find_card", "other_device"]

_MAKERS = re.compile(r"(nvidia|amd|tesla|geforce|quadro|instinct(?=mi))")
_COUNTED = re.compile(r"(.+?)[:x](\d{1,3})")
_SUFFIX = re.compile(r"-?shared$|-?mig-?.*$", re.IGNORECASE)


class Card(NamedTuple):
    """The card that a product's name means.

    Attributes:
        name: of the preset; None where none has it.
        devices: that the name itself counts: an instance type, `H200:8`.
        known: it is a product that is known, though no preset has it, or two have.
        memory_bytes: of each device where the file says it.
    """

    name: str | None
    devices: int | None = None
    known: bool = False
    memory_bytes: int | None = None


def find_card(product: str) -> Card:
    """Return the card of a label, an accelerator's name or an instance type.

    >>> find_card("nvidia-h100-mega-80gb").name
    'h100-80gb'
    >>> find_card("g6.24xlarge")
    Card(name='l4', devices=4, known=True, memory_bytes=None)
    """
    text = product.strip().lower()
    if len(text) > 200:  # noqa: PLR2004 - no label is
        return Card(None)
    text = text.removeprefix("ml.").removeprefix("accelerator_type:")
    if text in INSTANCES:
        return Card(*INSTANCES[text], known=True)
    devices = None
    if counted := _COUNTED.fullmatch(text):
        text, devices = counted[1], int(counted[2])
    letters = re.sub(r"[^a-z0-9]", "", _SUFFIX.sub("", text))
    letters = _MAKERS.sub("", letters).removeprefix("gpu")
    if letters in PRODUCTS:
        return Card(PRODUCTS[letters] or None, devices, known=True)
    if text in gpu_names():
        return Card(text, devices, known=True)
    return Card(None, devices)


def other_device(request: GpuRequest) -> str | None:
    """Return what a request counts where it is no GPU: a TPU, a Gaudi, a Neuron device.

    >>> other_device(GpuRequest(devices=8, resource="google.com/tpu"))
    'google.com/tpu'
    """
    product = "" if request.product is None else request.product.text.lower()
    for word in (request.resource or "", request.product_key or ""):
        if any(part in word.lower() for part in NOT_GPUS):
            return word
    return product[:80] if any(part in product for part in NOT_GPUS) else None


def card_of(request: GpuRequest) -> tuple[Card, list[Finding]]:
    """Return the card that a request means, and what to say where that is not sure.

    Args:
        request: of a container. Of several products that may be given the first is taken, where
            all are the same card; none where they differ.
    """
    product = request.product
    if product is None:
        other = other_device(request)
        found = [] if other is None else [_no_gpu(other, request.line, request.file)]
        return Card(None, memory_bytes=request.memory_bytes), found
    if product.unresolved:
        return Card(None, memory_bytes=request.memory_bytes), []
    card = find_card(product.text)._replace(memory_bytes=request.memory_bytes)
    others = {find_card(each.text).name for each in request.choices}
    if card.name is not None and others - {card.name}:
        names = ", ".join(sorted(name for name in {card.name, *others} if name))
        finding = Finding(
            "several-products",
            "note",
            f"any of several cards may be given: {names}",
            "give --gpu for the one to be checked",
            product.line,
            product.file,
        )
        return card, [finding]
    if card.name is not None:
        return card, []
    return card, [_unknown(product, card)]


def _no_gpu(name: str, line: int, file: str) -> Finding:
    message = f"{name} is no GPU that kvcalc knows"
    cure = "kvcalc sizes GPUs; say with --gpu-memory what the device has"
    return Finding("not-a-gpu", "note", message, cure, line, file)


def _unknown(product: Word, card: Card) -> Finding:
    shown = printable(product.shown)[:80]
    text = product.text.lower()
    line, file = product.line, product.file
    if any(part in text for part in NOT_GPUS):
        return _no_gpu(shown, line, file)
    close = nearest(text, gpu_names())
    if card.known:
        letters = re.sub(r"[^a-z0-9]", "", text)
        close = [name for name in gpu_names() if name.split("-")[0] in letters]
        message = f"{shown} does not say which of the cards it is"
    else:
        message = f"{shown} is a card that kvcalc does not know"
    cure = f"give --gpu: {' or '.join(close)}?" if close else "give --gpu, or --gpu-memory"
    return Finding("unknown-gpu", "warning", message, cure, line, file)
