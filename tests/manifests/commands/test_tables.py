"""Every flag of the newest release is known, and takes as many words as it does there.

`vllm_serve_flags.txt` has the options of `vllm serve` 0.33.0, taken off its parser's source with
the number of words that each takes; SGLang's and llama-server's lists lie with their engines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import NotModelledError, UnknownNameError, UnsupportedError
from kvcalc.engines.llamacpp import args as llama_args
from kvcalc.engines.sglang.arguments import Arguments
from kvcalc.engines.sglang.flags import ON_HOST as SGLANG_ON_HOST
from kvcalc.engines.tensorrt_llm.arguments import arguments as trtllm_arguments
from kvcalc.engines.vllm.arguments import ENGINE_ARGS as VLLM_ARGS
from kvcalc.engines.vllm.arguments import NOT_MODELLED as VLLM_NOT_MODELLED
from kvcalc.engines.vllm.arguments import check_arguments
from kvcalc.engines.vllm.version import release
from kvcalc.manifests.commands import (
    llama_server,
    lmdeploy,
    sglang,
    tgi,
    trtllm,
    vllm,
    vllm_flags,
)
from kvcalc.manifests.commands.flags import Grammar
from tests.manifests.commands.harness import codes, read_command

HERE = Path(__file__).parent
ENGINES = HERE.parents[1] / "engines"
VLLM = (HERE / "vllm_serve_flags.txt").read_text(encoding="utf-8").splitlines()
GRAMMARS = {
    "vllm": vllm_flags.GRAMMAR,
    "sglang": sglang.GRAMMAR,
    "llama.cpp": llama_server.GRAMMAR,
    "tensorrt-llm": trtllm.GRAMMAR,
    "tgi": tgi.GRAMMAR,
    "lmdeploy": lmdeploy.GRAMMAR,
}
ON_HOST = {"vllm": vllm.ON_HOST, "sglang": SGLANG_ON_HOST}
STARTS = {
    "vllm": "vllm serve a/b",
    "sglang": "python -m sglang.launch_server --model-path a/b",
    "llama.cpp": "llama-server -m x.gguf",
    "tensorrt-llm": "trtllm-serve a/b",
    "tgi": "text-generation-launcher --model-id a/b",
    "lmdeploy": "lmdeploy serve api_server a/b",
}


def _listed(engine: str) -> set[str]:
    return set((ENGINES / engine / "server_flags.txt").read_text(encoding="utf-8").split())


def test_every_option_of_vllm_serve() -> None:
    assert len(VLLM) >= 320
    known = {}
    for line in VLLM:
        takes, *spellings = line.split()
        for spelling in spellings:
            known[spelling] = takes
    table = vllm_flags.GRAMMAR.flags
    positive = {spelling for spelling, (_, on) in table.items() if on}
    assert positive == set(known)
    assert {spelling: table[spelling][0].takes for spelling in known} == known


def test_every_option_of_sglang_s_server() -> None:
    table = sglang.GRAMMAR.flags
    assert {spelling for spelling, (_, on) in table.items() if on} == _listed("sglang")


def test_every_option_of_llama_server() -> None:
    assert set(llama_server.GRAMMAR.flags) == _listed("llamacpp")


def _value(grammar: Grammar, spelling: str) -> str:
    takes = grammar.flags[spelling][0].takes
    return "" if takes in ("switch", "pair") else " 1"


@pytest.mark.parametrize("engine", GRAMMARS)
def test_no_option_of_the_newest_release_is_unknown(engine: str) -> None:
    """Each is read, and what it says is no finding but of its value or its weight."""
    grammar = GRAMMARS[engine]
    allowed = {"bad-value", "not-modelled", "dummy-weights", "config-not-read", "ambiguous-flag"}
    allowed |= {"contradiction", "blocks-not-share"}
    for spelling in grammar.flags:
        if spelling in grammar.gone:
            continue
        server = read_command(f"{STARTS[engine]} {spelling}{_value(grammar, spelling)}")
        assert set(codes(server)) <= allowed | {"repeated-flag"}, spelling
        assert server.model is not None, spelling


@pytest.mark.parametrize("engine", GRAMMARS)
def test_what_becomes_engine_args_is_known_to_the_engine(engine: str) -> None:
    """No argument that is read is one that the engine does not know, or refuses by name.

    But for those that move unknown weights to the host: the engine has to refuse them, so that no
    figure is given without them.
    """
    grammar = GRAMMARS[engine]
    for spelling in grammar.flags:
        server = read_command(f"{STARTS[engine]} {spelling}{_value(grammar, spelling)}")
        for setting in server.settings:
            if setting.kind == "field":
                assert setting.name in Deployment.__struct_fields__, spelling
            elif setting.kind == "arg":
                if setting.name in ON_HOST.get(engine, ()):
                    with pytest.raises(NotModelledError, match=setting.name):
                        _known(engine, setting.name, setting.value)
                else:
                    _known(engine, setting.name, setting.value)


def _known(engine: str, name: str, value: str | float | None) -> None:
    deployment = Deployment(engine=engine, engine_args={name: value})
    if engine == "sglang":
        Arguments(deployment)
    elif engine == "llama.cpp":
        assert name in llama_args.read(deployment.engine_args) or name == "no_kv_unified"
    elif engine == "tensorrt-llm":
        trtllm_arguments(deployment.engine_args)
    elif engine == "vllm":
        if name in VLLM_NOT_MODELLED:
            check_arguments(deployment, release(None))
        assert name in VLLM_ARGS
    elif engine in ("lmdeploy", "tgi"):
        _planned(deployment, name)


def _planned(deployment: Deployment, name: str) -> None:
    from kvcalc.api import load_model
    from kvcalc.engines import plan

    try:
        plan(load_model("llama-3.1-8b"), deployment)
    except UnknownNameError as fault:
        assert fault.name != name
    except (UnsupportedError, ValueError):
        pass


@pytest.mark.parametrize("engine", GRAMMARS)
def test_no_gone_option_is_there_as_well(engine: str) -> None:
    grammar = GRAMMARS[engine]
    both = set(grammar.gone) & set(grammar.flags)
    # llama-server still takes these words, to say that they are gone.
    assert both == {name for name in both if name.startswith(("--draft", "--spec-ngram"))}
