"""kvcalc help: topics, first of all the questions that people ask most, each with its command."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import typer

from kvcalc.cli.options import argument, register
from kvcalc.cli.output import write_out
from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UsageError

__all__ = ["NEEDS", "add"]


_TOPICS = ("needs",)
_THEM = ("it", "them")


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "help",
        run,
        (
            argument("topic", "TOPIC", "needs: the questions that people ask most.", str | None),
            argument("number", "NUMBER", "Run the command of that question.", str | None),
        ),
        help="Topics: `kvcalc help needs` lists the questions that people ask most, each with its"
        " command; with a number it runs that command.",
        epilog="Example: kvcalc help needs 9",
    )


def run(values: Values) -> None:
    """Show a topic, or run one of its commands.

    Raises:
        UsageError: no topic.
        UnknownNameError: no such topic.
        InvalidValueError: no such question.
    """
    topic, number = values["topic"], values["number"]
    if topic is None:
        raise UsageError("which topic?", hint=f"write kvcalc help {_TOPICS[0]}")
    if topic not in _TOPICS:
        raise UnknownNameError("topic", topic, _TOPICS)
    if number is None:
        write_out("".join(_told(need) for need in NEEDS))
        return
    need = _find(number)
    write_out(_told(need) + "\n")
    if need.yours:
        yours = " and ".join(need.yours)
        write_out(f"{yours}: your own; write the command with {_THEM[len(need.yours) > 1]}.\n")
        return
    from kvcalc.cli.app import main  # which imports this module

    code = main(shlex.split(need.command))
    if code:
        raise typer.Exit(code)


def _told(need: Need) -> str:
    return (
        f"{need.number:>2}  {need.question}\n"
        f"    kvcalc {need.command}\n"
        f"    look at: {need.look_at}\n"
    )


def _find(number: str) -> Need:
    for need in NEEDS:
        if str(need.number) == number.strip():
            return need
    raise InvalidValueError(
        f"{number!r:.40} is none of the questions", hint="kvcalc help needs lists them"
    )


# The questions that people who serve models ask most, and the one command that answers each.


class Need(NamedTuple):
    """A question.

    Attributes:
        number: under which `kvcalc help needs` lists it.
        question: as people put it.
        command: what answers it, as one would type it behind `kvcalc`.
        look_at: which part of the output is the answer.
        yours: what of the command is to be replaced by something of one's own (a log, an address).
    """

    number: int
    question: str
    command: str
    look_at: str
    yours: tuple[str, ...] = ()


_LOW = "capacity llama-3.1-8b --kv-memory 10GiB --gpu l40s --max 131072"
NEEDS = (
    Need(1, "The maximum is larger than what fits in the cache: what now?",
         f"{_LOW} --levers --solve max-model-len",
         "the longest that fits, and what each setting buys"),
    Need(2, "It says X GiB are needed and Y available: is that right?",
         "capacity deepseek-v3 --tp 8 --pp 2 --gpu h100-80gb --kv-memory 2GiB --max 131072",
         "one needs, and what is missing, on the GPU that binds"),
    Need(3, "How many requests at once?",
         "capacity llama-3.1-8b --gpu h100-80gb --max 32768 --at 2000 --at 8000"
         " --lengths 50x800,30x3000,5x20000",
         "sequences of the maximum, of other lengths, and requests of your own traffic"),
    Need(4, "The logged tokens and the logged concurrency contradict each other.",
         "plan gemma-3-27b --engine vllm --engine-version 0.16.0 --gpu h100-80gb --max 32768"
         " --kv-memory 20GiB",
         "why: which quantity this version logs"),
    Need(5, "A smaller maximum gives fewer tokens.",
         "capacity qwen3.5-27b --gpu h100-80gb --kv-memory 15GiB --max 4096 --at 8192",
         "one needs: a fixed part and so much a token"),
    Need(6, "A hybrid's figures do not come out by the formula.",
         "plan qwen3.5-27b --engine vllm --gpu h100-80gb --kv-memory 15GiB --max 8192",
         "groups: which layers share blocks, what a state takes, and the notes"),
    Need(7, "Padding layers waste some of the cache: how much, and why?",
         "plan qwen3-next-80b-a3b --engine vllm --gpu h200 --kv-memory 40GiB --max 32768"
         " --speculative-method mtp --num-speculative-tokens 1",
         "padding layers of a group, and group padding among the wastes"),
    Need(8, "The block of tokens became 800 or more: what do short requests lose?",
         "compare qwen3.5-27b --engine vllm --gpu h100-80gb --max 8192 --lengths 50x200,10x4000",
         "the tail of each request in blocks of that size"),
    Need(9, "Eight GPUs, and all hold the same cache?",
         "capacity deepseek-v3 --tp 8 --gpu h200 --max 32768 --kv-memory 40GiB --layouts",
         "each byte is kept so many times; the layouts that keep it once"),
    Need(10, "More ranks than KV heads: is the cache duplicated?",
         "capacity qwen2.5-3b --tp 8 --gpu l40s --kv-memory 10GiB --max 32768",
         "each byte is kept so many times"),
    Need(11, "The memory of two GPUs does not add up.",
         "capacity llama-3.1-70b --tp 2 --gpu h100-80gb --max 8192",
         "the card of each rank, and the tokens on all"),
    Need(12, "Why does a small model take the whole card?",
         "capacity qwen3-1.7b --gpu h100-80gb --max 8192 --sequences 16 --solve kv-memory",
         "the cache takes the rest of the share; the bytes that 16 sequences need"),
    Need(13, "Which flag gives the cache that I want?",
         "capacity llama-3.1-8b --gpu h100-80gb --max 8192 --sequences 32 --solve kv-memory"
         " --suggest",
         "kv-memory, in bytes"),
    Need(14, "Free memory is less than the desired utilisation.",
         "capacity llama-3.1-8b --gpu h100-80gb --max 8192 --gpu-free 66GiB",
         "the largest share that starts"),
    Need(15, "Several servers on one card.",
         "capacity llama-3.1-8b --gpu h100-80gb --max 8192 --instances 2",
         "the share of each, and the order to start them in"),
    Need(16, "Out of memory while graphs are captured, although the check passed.",
         "capacity llama-3.1-8b --engine-version 0.16.0 --gpu rtx-4090 --max 8192"
         " --solve gpu-memory-utilization",
         "graphs beside the share; the largest share that leaves room for them"),
    Need(17, "The estimate of CUDA graphs gives away too much.",
         "capacity llama-3.1-8b --gpu rtx-4090 --max 8192 --levers",
         "what no CUDA graphs, or none estimated, would gain"),
    Need(18, "Another release, another capacity.",
         "log before.log after.log",
         "what changed between two starts, and the tokens that it cost",
         ("before.log", "after.log")),
    Need(19, "SGLang: more or less mem_fraction_static?",
         "capacity llama-3.1-8b --engine sglang --gpu h100-80gb --max 32768"
         " --solve gpu-memory-utilization",
         "from the smallest share that holds one sequence to the largest that leaves room"),
    Need(20, "vLLM and SGLang give different capacity on the same card.",
         "capacity qwen3.5-27b --engine vllm --engine sglang --gpu h100-80gb --max 8192",
         "side by side: what each leaves for the cache, and what a sequence needs"),
    Need(21, "Speculation eats the cache.",
         "capacity qwen3.5-27b --gpu h100-80gb --kv-memory 15GiB --max 8192"
         " --speculative-method mtp --num-speculative-tokens 2 --levers",
         "no speculation: the tokens that it would give back"),
    Need(22, "A model with windows pays for the whole context.",
         "capacity gemma-3-27b --gpu h100-80gb --kv-memory 20GiB --max 65536"
         " --disable-hybrid-kv-cache-manager --levers",
         "windows alone: what the switch would give back"),
    Need(23, "llama.cpp: which cells, how many MiB?",
         "plan gemma-3-27b --engine llama.cpp -c 32768 -np 4",
         "cells of each cache, and the lines of the log"),
    Need(24, "Ollama's estimate is far off.",
         "capacity qwen2.5-7b --engine llama.cpp --gpu rtx-4090 --quantization q4_k_m"
         " --engine-arg num_ctx=32768 --engine-arg ollama_num_parallel=1",
         "weights, cache and compute buffer, layer by layer on the card"),
    Need(25, "An estimate from the number of parameters, or of layers, is off.",
         "per-token gemma-3-27b --explain --tokens 131072",
         "which layer keeps what, and the formula with the numbers put in"),
    Need(26, "What does a cache in fp8 really gain?",
         "capacity qwen3.5-27b --gpu h100-80gb --kv-memory 15GiB --max 8192"
         " --kv-cache-dtype bf16 --kv-cache-dtype fp8",
         "side by side: blocks grow with the change"),
    Need(27, "Is it the cache that runs out of memory?",
         "frag --oom server.log",
         "which buffer was asked for, and what the device had",
         ("server.log",)),
    Need(28, "An out-of-memory text: fragmentation, or too little? Do expandable segments help?",
         "frag --oom oom.txt",
         "the verdict, the sum with its rounding, and what would help",
         ("oom.txt",)),
    Need(29, "TensorRT-LLM: memory is free, but there are few blocks.",
         "capacity llama-3.1-8b --engine tensorrt-llm --gpu h100-80gb --max 8192"
         " --engine-arg free_gpu_memory_fraction=0.8",
         "what is left after weights and buffers, and the part of it that becomes blocks"),
    Need(30, "Blocks x block size of the metrics is not the capacity.",
         "metrics http://localhost:8000 qwen3.5-27b",
         "whether it is the capacity, and what is",
         ("http://localhost:8000",)),
    Need(31, "Uneven pipeline stages: which one decides?",
         "capacity gemma-3-27b --pp 4 --gpu l40s --max 32768 --engine vllm --layouts",
         "the card of each stage, and layers shared out better among the layouts"),
    Need(32, "Capacity falls with the tokens of a step.",
         "capacity llama-3.1-8b --gpu h100-80gb --max 8192 --max-num-batched-tokens 32768 --levers",
         "activation, and steps of 2,048 tokens among the levers"),
    Need(33, "The cache of an encoder-decoder.",
         "per-token llama-3.2-11b-vision --tokens 8192",
         "which layers keep what, and the note on cross-attention"),
    Need(34, "2 x TP4 or 1 x TP8?",
         "capacity llama-3.1-70b --tp 8 --gpu h100-80gb --max 8192 --layouts",
         "the layouts, the one with the most sequences first"),
)  # fmt: skip
"""In the order that people ask them most."""
