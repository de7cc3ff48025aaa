"""The engines' own command lines: an Invocation becomes a Server, one module for an engine."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from kvcalc.manifests.commands.images import Image, image_of
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.commands.programs import Start, start_of
from kvcalc.manifests.commands.reading import ReadFile, Reading
from kvcalc.manifests.found import Attached, Invocation, Server, Word

__all__ = ["ENGINES", "read"]

_HERE = "kvcalc.manifests.commands"
_READERS = {
    # program -> kvcalc's engine, and the module that reads its words
    "vllm": ("vllm", f"{_HERE}.vllm"),
    "vllm-ascend": ("vllm-ascend", f"{_HERE}.vllm"),
    "vllm-tpu": ("vllm-tpu", f"{_HERE}.vllm"),
    "huggingfaceserver": ("vllm", f"{_HERE}.vllm"),
    "sglang": ("sglang", f"{_HERE}.sglang"),
    "llama-server": ("llama.cpp", f"{_HERE}.llama_server"),
    "llama_cpp.server": ("llama.cpp", f"{_HERE}.llama_python"),
    "trtllm": ("tensorrt-llm", f"{_HERE}.trtllm"),
    "tgi": ("tgi", f"{_HERE}.tgi"),
    "lmdeploy": ("lmdeploy", f"{_HERE}.lmdeploy"),
    "ollama": ("llama.cpp", f"{_HERE}.ollama"),
}
ENGINES = tuple(dict.fromkeys(engine for engine, _ in _READERS.values()))
"""Engines, by kvcalc's name, whose commands are read."""

_PROGRAMS = {
    **{program: program for program in _READERS},
    "llama.cpp": "llama-server",
    "llamacpp": "llama-server",
    "tensorrt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
    "trt-llm": "trtllm",
    "text-generation-inference": "tgi",
    "nim": "nim",
}
"""Engine, as a carrier may call it -> program."""

_REFUSED = {
    # program -> why it is not read, and what to do instead
    "koboldcpp": (
        "koboldcpp is a llama.cpp with flags of its own, which kvcalc does not read",
        "start llama-server, or ask kvcalc capacity with llama.cpp's settings",
    ),
    "nim": (
        "a NIM chooses its engine and profile by the GPU that it finds: not modelled",
        "check what it starts: kvcalc check -- vllm serve MODEL",
    ),
}
_VISIBLE = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "ASCEND_RT_VISIBLE_DEVICES",
)


class _Reader(Protocol):
    def read(self, reading: Reading, start: Start) -> None: ...


def _nothing(_path: str) -> Attached | None:
    return None


def read(invocation: Invocation, read_file: ReadFile = _nothing) -> Server:
    """Return the server that an invocation starts, its command read as its engine reads it.

    Nothing is raised, whatever stands in the command: what is wrong is a finding. The engine is
    None where none is recognised, and where the command starts no server (`vllm bench`).

    Args:
        invocation: what a file starts.
        read_file: returns a file that a command names and that is not attached (`--config`); None
            where it is not to be had.
    """
    image = image_of(invocation.image.text if invocation.image is not None else None)
    given = _PROGRAMS.get(invocation.engine or "")
    start = start_of(invocation.words, given or image.program)
    program = start.program
    if program is None or program not in _READERS or start.other:
        return _not_read(invocation, program, start)
    if program == "vllm" and image.program in ("vllm-ascend", "vllm-tpu"):
        program = image.program
    engine, module = _READERS[program]
    same = image.program is not None and _READERS.get(image.program, ("",))[0] == engine
    version = invocation.installed.get(engine) or (image.version if same else None)
    fork = image.fork or ("ik_llama.cpp" if _forked(invocation.words) else "")
    reading = Reading(
        invocation,
        engine,
        None if program == "ollama" else version,
        read_file,
        fork=fork if same or program == "llama-server" else "",
        variables=image.variables if same else "",
        own_releases=same and image.own_releases and version is None,
    )
    reading.env = {**invocation.env, **start.env}
    _devices(reading)
    if same and image.device and invocation.gpu.product is None:
        reading.counts(image.device)
    if invocation.under_entry_point:
        _entry_point(reading, image, start)
    reader: _Reader = import_module(module)
    reader.read(reading, start)
    for name, word in invocation.given.items():
        if name not in reading.settings:
            reading.text(name, "other", Given(name, name, (word,)))
    return reading.server()


def _not_read(invocation: Invocation, program: str | None, start: Start) -> Server:
    reading = Reading(invocation, None, None, _nothing)
    if program in _REFUSED and not start.other:
        reading.find(
            "unknown-engine",
            "warning",
            *_REFUSED[program],
            start.words[0] if start.words else None,
        )
    return reading.server()


def _forked(words: tuple[Word, ...]) -> bool:
    return any("ik_llama" in word.text or "ik-llama" in word.text for word in words[:8])


def _devices(reading: Reading) -> None:
    """Set the cards that the command is shown, where a variable names them."""
    gpu = reading.invocation.gpu
    for name in _VISIBLE:
        word = reading.env.get(name)
        if word is None or word.unresolved or gpu.visible is not None:
            continue
        parts = tuple(part.strip() for part in word.text.strip("\"'").split(",") if part.strip())
        shown = parts[: parts.index("-1")] if "-1" in parts else parts
        gpu = gpu._replace(visible=shown)
        reading.invocation = reading.invocation._replace(gpu=gpu)


def _entry_point(reading: Reading, image: Image, start: Start) -> None:
    """Tell a program that is given to an image that starts it by itself."""
    if not image.starts or not start.spelled:
        return
    reading.find(
        "entrypoint-repeated",
        "error",
        f"the image starts {' '.join(image.starts)} by itself, and is given {start.how} once more",
        "leave the program out, or set it as the entry point",
        reading.invocation.words[0] if reading.invocation.words else None,
    )
