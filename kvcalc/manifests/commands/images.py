"""What a container's image says: whose server it is, which release, what it starts by itself."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Image", "image_of"]


class Image(NamedTuple):
    """An image.

    Attributes:
        program: a name of programs.PROGRAMS; None where the image is not known.
        version: of the engine, by the tag: a release, or the word for what is not released yet
            ("nightly"); None where the tag does not say it.
        starts: the command that the image runs by itself, before the words that are given; ()
            where it starts nothing.
        fork: of the engine, with flags of its own: "ik_llama.cpp"; "" for none.
        maps: its variables become flags of the same name (RunPod's worker).
    """

    program: str | None = None
    version: str | None = None
    starts: tuple[str, ...] = ()
    fork: str = ""
    maps: bool = False


_VLLM_BEFORE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
_KNOWN = (
    # a part of the name -> program, what it starts, what parts it from others
    (r"runpod/worker-v1-vllm|runpod/worker-vllm", "vllm", (), "maps"),
    (r"vllm-ascend", "vllm-ascend", (), ""),
    (r"vllm/vllm-tpu|vllm-tpu", "vllm-tpu", (), ""),
    (r"lmcache/vllm", "vllm", ("vllm", "serve"), "in tag"),  # the tag counts LMCache's releases
    (r"vllm-openai", "vllm", ("vllm", "serve"), "tag"),
    (r"rocm/vllm", "vllm", (), "tag"),
    (r"kserve/huggingfaceserver", "huggingfaceserver", ("python", "-m", "huggingfaceserver"), ""),
    (r"ai-dynamo/vllm-runtime", "vllm", (), ""),
    (r"ai-dynamo/sglang-runtime", "sglang", (), ""),
    (r"ai-dynamo/tensorrtllm-runtime", "trtllm", (), ""),
    (r"tensorrt-llm", "trtllm", (), "tag"),
    (r"sglang", "sglang", (), "tag"),
    (r"text-generation-inference|(?:^|/)tgi(?:$|-)", "tgi", ("text-generation-launcher",), "tag"),
    (r"lmdeploy", "lmdeploy", (), "tag"),
    (r"ollama", "ollama", ("ollama",), ""),
    (r"ik[-_]llama", "llama-server", ("llama-server",), "ik_llama.cpp"),
    (r"koboldcpp|koboldai", "koboldcpp", (), ""),
    (r"llama\.cpp|llama-cpp|llama-server|llamacpp", "llama-server", ("llama-server",), "build"),
    (r"vllm", "vllm", (), "tag"),
)
_RELEASE = re.compile(
    r"(?:^|[^0-9.])v?(\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)*)(?![0-9.])", re.ASCII
)
_BUILD = re.compile(r"(?:^|-)(b\d{4,6})(?=$|[^0-9])", re.ASCII)
_VLLM_IN_TAG = re.compile(r"vllm[-_]?v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)*)", re.ASCII)
_UNRELEASED = re.compile(r"(?:^|[-_.])(nightly|main|master|dev|edge)(?=$|[-_.])", re.ASCII)
_SERVE_SINCE = (0, 11)
_LONGEST = 500


def image_of(text: str | None) -> Image:
    """Return what an image's name says.

    >>> image_of("vllm/vllm-openai:v0.6.3").version
    '0.6.3'
    >>> image_of("ghcr.io/ggml-org/llama.cpp:server-cuda-b6341").version
    'b6341'
    """
    if not text or len(text) > _LONGEST:
        return Image()
    name, _, tag = text.split("@", 1)[0].rpartition(":")
    if not name or "/" in tag:  # no tag: the colon belongs to a port, or there is none
        name, tag = text.split("@", 1)[0], ""
    for part, program, starts, kind in _KNOWN:
        if re.search(part, name.lower()):
            fork = kind if kind == "ik_llama.cpp" else ""
            version = _version(name.lower(), tag, kind)
            own = _starts(program, starts, version, tag)
            return Image(program, version, own, fork, kind == "maps")
    return Image()


def _starts(
    program: str, starts: tuple[str, ...], version: str | None, tag: str
) -> tuple[str, ...]:
    """Return what an image runs by itself."""
    if program == "llama-server" and not tag.startswith("server"):
        return ()  # full: a script that wants --server; light: llama-cli
    if program == "vllm" and starts and version is not None and version[0].isdigit():
        major, minor = (int(part) for part in version.split(".")[:2])
        return starts if (major, minor) >= _SERVE_SINCE else _VLLM_BEFORE
    return starts


def _version(name: str, tag: str, kind: str) -> str | None:
    if kind in ("build", "ik_llama.cpp"):
        match = _BUILD.search(tag)
        return match[1] if match and kind == "build" else None
    if kind == "in tag":
        match = _VLLM_IN_TAG.search(tag)
        return match[1] if match else None
    if kind != "tag" or "nvcr.io/nvidia/vllm" in name:  # NVIDIA counts months
        return None
    match = _VLLM_IN_TAG.search(tag) or _RELEASE.search(tag) or _UNRELEASED.search(tag)
    return match[1] if match else None
