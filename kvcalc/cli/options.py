"""Options that commands share, as data; a command names the groups it takes.

Every value reaches a command as it was typed and is read by `inputs`, so that each fault is told
in kvcalc's own words. Precedence: flag, KVCALC_* variable, settings file, default.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from kvcalc.cli.commands import COMMANDS
from kvcalc.cli.given import keep_repeated, one_variable, read_all
from kvcalc.cli.settings import LISTED, PLACES, load_settings
from kvcalc.cli.values import Origin, Values

__all__ = [
    "CARD",
    "COMPARED",
    "DEPLOYMENT",
    "ENGINE",
    "KV_MEMORY",
    "MODEL",
    "OUTPUT",
    "WORKLOAD",
    "Command",
    "Group",
    "Option",
    "OptionGroup",
    "argument",
    "flag",
    "register",
    "switch",
    "text",
]


class Option(NamedTuple):
    """One option or argument: its parameter name, type, and how typer shows it."""

    name: str
    type: Any
    info: Any
    default: Any = None


OptionGroup = Sequence[Option]
_TEXT = str | None
_TEXTS = list[str] | None


def text(
    name: str,
    *flags: str,
    help: str,
    panel: str,
    metavar: str = "TEXT",
    env: bool = True,
    many: bool = False,
) -> Option:
    """Return an option that takes text, once or (`many`) repeatedly.

    With `env` it is also read from the variable of each of its flags: KVCALC_MAX and
    KVCALC_MAX_MODEL_LEN.
    """
    variables = [f"KVCALC_{f[2:].upper().replace('-', '_')}" for f in flags if f[:2] == "--"]
    info = typer.Option(
        *flags,
        help=help,
        rich_help_panel=panel,
        metavar=metavar,
        envvar=variables if env else None,
        show_envvar=False,
        show_default=False,
    )
    return Option(name, _TEXTS if many else _TEXT, info)


def argument(
    name: str, metavar: str, help: str, type_: Any = _TEXTS, *, default: Any = None
) -> Option:
    """Return an argument: any number of texts, unless the type says otherwise."""
    info = typer.Argument(help=help, metavar=metavar, show_default=False)
    return Option(name, type_, info, default)


def flag(name: str, *flags: str, help: str, panel: str) -> Option:
    """Return an option that is on or off."""
    info = typer.Option(*flags, help=help, rich_help_panel=panel, show_default=False)
    return Option(name, bool, info, default=False)


def switch(name: str, flag_name: str, *, help: str, panel: str) -> Option:
    """Return an option that is on, off (`--no-...`), or left to the engine."""
    variable = f"KVCALC_{flag_name.upper().replace('-', '_')}"
    info = typer.Option(
        f"--{flag_name}/--no-{flag_name}",
        help=help,
        rich_help_panel=panel,
        show_default=False,
        envvar=variable,
        show_envvar=False,
    )
    return Option(name, bool | None, info)


_M, _D, _E, _R, _O = "Model", "Deployment", "Engine", "Requests", "Output"

MODEL: OptionGroup = (
    argument("models", "MODEL",
             "A preset, config.json, folder, GGUF file or hf:ORG/NAME (several: side by side)."),
    text("preset", "--preset", "--model", help="The same as MODEL; repeatable.", panel=_M,
         metavar="MODEL", many=True),
    text("config", "--config", help="A model's config.json; repeatable.", panel=_M,
         metavar="PATH", env=False, many=True),
    text("gguf", "--gguf", help="A GGUF file; repeatable.", panel=_M, metavar="PATH", env=False,
         many=True),
    text("hf", "--hf", help="A model of the Hub; repeatable.", panel=_M,
         metavar="ORG/NAME[@REVISION]", env=False, many=True),
    text("layers", "--layers", help="A shape instead of a model: number of layers.", panel=_M,
         metavar="N", env=False),
    text("kv_heads", "--kv-heads", help="KV heads of the shape.", panel=_M, metavar="N", env=False),
    text("head_dim", "--head-dim", help="Elements of a K head.", panel=_M, metavar="N", env=False),
    text("v_head_dim", "--v-head-dim", help="Elements of a V head, where K's differ.", panel=_M,
         metavar="N", env=False),
    text("dtype", "--dtype", help="Model dtype, instead of the model's own.", panel=_M,
         metavar="DTYPE"),
)  # fmt: skip

DEPLOYMENT: OptionGroup = (
    text("engine", "--engine", panel=_D, metavar="NAME", many=True,
         help="Whose rules: none (the model's own arithmetic), vllm, sglang, llama.cpp, ...;"
         " several with plan."),
    text("engine_version", "--engine-version", help="Which version's rules.", panel=_D,
         metavar="VERSION"),
    text("kv_cache_dtype", "--kv-cache-dtype",
         help="auto (the model's), bf16, fp8, fp8_ds_mla, nvfp4, q8_0, 6bit, ...; or K:V."
         " Repeatable.",
         panel=_D, metavar="DTYPE", many=True),
    text("block", "--block", "--block-size", help="Tokens a block; repeatable. Default 16.",
         panel=_D, metavar="N", many=True),
    text("max", "--max", "--max-model-len", help="Longest sequence, prompt and output together.",
         panel=_D, metavar="TOKENS"),
    text("tp", "--tp", "--tensor-parallel-size", help="Tensor-parallel ranks.", panel=_D,
         metavar="N"),
    text("pp", "--pp", "--pipeline-parallel-size", help="Pipeline stages.", panel=_D, metavar="N"),
    text("dp", "--dp", "--data-parallel-size", help="Replicas.", panel=_D, metavar="N"),
    text("dcp", "--dcp", "--decode-context-parallel-size",
         help="Ranks that share a sequence's tokens (of those that keep the same rows).",
         panel=_D, metavar="N"),
    text("gpu", "--gpu", help="The card, for engines whose rules depend on it.", panel=_D,
         metavar="NAME"),
)  # fmt: skip

ENGINE: OptionGroup = (
    text("max_num_batched_tokens", "--max-num-batched-tokens", panel=_E, metavar="TOKENS",
         help="Tokens of one step; the card's default otherwise."),
    text("max_num_seqs", "--max-num-seqs", panel=_E, metavar="N",
         help="Sequences of one step; the card's default otherwise."),
    switch("enable_prefix_caching", "enable-prefix-caching", panel=_E,
           help="Whether requests share blocks of a common beginning."),
    switch("async_scheduling", "async-scheduling", panel=_E,
           help="Whether a step is scheduled while another runs."),
    switch("disable_hybrid_kv_cache_manager", "disable-hybrid-kv-cache-manager", panel=_E,
           help="Whether windows are given blocks for every token."),
    text("num_gpu_blocks_override", "--num-gpu-blocks-override", panel=_E, metavar="N",
         help="Blocks of the pool, whatever the memory."),
    text("attention_backend", "--attention-backend", panel=_E, metavar="NAME",
         help="Attention kernels, instead of the engine's choice."),
    text("mamba_cache_dtype", "--mamba-cache-dtype", panel=_E, metavar="DTYPE",
         help="Dtype of convolution states; the model's otherwise."),
    text("mamba_ssm_cache_dtype", "--mamba-ssm-cache-dtype", panel=_E, metavar="DTYPE",
         help="Dtype of recurrent states; the model's or the config's otherwise."),
    text("speculative_method", "--speculative-method", panel=_E, metavar="NAME",
         help="How tokens are proposed: mtp, ngram, eagle, eagle3 or draft_model; none for not."),
    text("num_speculative_tokens", "--num-speculative-tokens", panel=_E, metavar="N",
         help="Tokens proposed ahead."),
    text("ctx_size", "--ctx-size", "-c", panel=_E, metavar="TOKENS",
         help="llama.cpp: cells of all sequences together."),
    text("parallel", "--parallel", "-np", panel=_E, metavar="N",
         help="llama.cpp: sequences at once."),
    text("n_gpu_layers", "--n-gpu-layers", "-ngl", panel=_E, metavar="N",
         help="llama.cpp: layers that leave the host, the output counted as one; all or auto."),
    text("engine_arg", "--engine-arg", panel=_E, metavar="KEY=VALUE", env=False, many=True,
         help="A setting in the engine's own spelling, such as mem_fraction_static=0.8, or vLLM's"
         " enable_lora=true, cpu_offload_gb=10; repeatable. With several engines: NAME:KEY=VALUE."),
    text("draft_model", "--draft-model", panel=_E, metavar="MODEL",
         help="The model that proposes them: a preset, config.json, folder or hf:ORG/NAME."),
)  # fmt: skip

KV_MEMORY: OptionGroup = (
    text("kv_memory", "--kv-memory", "--kv-cache-memory-bytes", metavar="SIZE", panel=_D,
         help="Cache of each rank: what the engine makes of it."),
)  # fmt: skip

WORKLOAD: OptionGroup = (
    text("lengths", "--lengths", metavar="N,N,...", panel=_R,
         help="Tokens of each request, prompt and output together; 50x200 for fifty of 200."),
    text("trace", "--trace", metavar="FILE", panel=_R, env=False,
         help="Request lengths from CSV, TSV or JSONL, gzip too; - for stdin."),
    text("prompt_column", "--prompt-column", metavar="NAME", panel=_R, env=False,
         help="The trace's column of prompt tokens."),
    text("output_column", "--output-column", metavar="NAME", panel=_R, env=False,
         help="The trace's column of output tokens."),
    text("over", "--over", metavar="POLICY", panel=_R,
         help="Requests over the maximum: clip (default), exclude or keep."),
)  # fmt: skip

CARD: OptionGroup = (
    text("gpu_memory", "--gpu-memory", metavar="SIZE", panel=_D,
         help="Memory of the whole card (a MIG slice, a card of your own), instead of --gpu's."),
    text("gpu_free", "--gpu-free", metavar="SIZE", panel=_D,
         help="What is free of the card before this server starts, where others hold some of it."),
    text("host_memory", "--host-memory", metavar="SIZE", panel=_D,
         help="Host memory that the server may have: its container's limit, or the machine's."),
    text("gpu_memory_utilization", "--gpu-memory-utilization", metavar="SHARE", panel=_D,
         help="vLLM: what it may have of the card; other engines' shares go into --engine-arg."),
    switch("enforce_eager", "enforce-eager", panel=_E,
           help="Whether vLLM runs without CUDA graphs."),
    switch("enable_expert_parallel", "enable-expert-parallel", panel=_E,
           help="Whether experts are shared out instead of cut up."),
    text("weights", "--weights", metavar="SIZE", panel=_M,
         help="Weights of the whole model, instead of what is known of it."),
    text("quantization", "--quantization", metavar="NAME", panel=_M,
         help="What the weights are kept in: fp8, int8, int4, nvfp4, mxfp4, q4_k_m, ...;"
         " the checkpoint's own otherwise."),
)  # fmt: skip

COMPARED = (
    *("engine_version", "gpu", "gpu_memory", "gpu_free", "gpu_memory_utilization", "kv_memory"),
    *("dtype", "quantization", "weights"),
    *(
        option.name
        for option in (*DEPLOYMENT, *ENGINE)
        if option.type is _TEXT and option.name not in ("engine_version", "gpu")
    ),
)
"""Options that take one value, and of which several are compared where a deployment is sized."""

_SETTINGS_INFO = typer.Option(
    "--settings",
    help='Settings file; ./kvcalc.yaml where there is one, "" for none.',
    metavar="FILE",
    rich_help_panel=_O,
    envvar="KVCALC_SETTINGS",
    show_envvar=False,
    show_default=False,
    is_eager=True,
    callback=load_settings,
)

OUTPUT: OptionGroup = (
    text("format", "--format", "-f", help="table, json, csv or markdown.", panel=_O,
         metavar="FORMAT"),
    text("report", "--report", help="Also write FORMAT to PATH; repeatable.", panel=_O,
         metavar="FORMAT:PATH", env=False, many=True),
    text("units", "--units", help="binary (KiB, MiB, GiB) or decimal (kB, MB, GB).", panel=_O,
         metavar="SYSTEM"),
    Option("settings", _TEXT, _SETTINGS_INFO),
)  # fmt: skip

EXPLAIN: OptionGroup = (
    flag("explain", "--explain", help="Show the formula with the numbers put in.", panel=_O),
)


class _AsTyped:
    """Hands a parameter's text on as it was typed."""

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value


def _no_type(ctx: Any = None) -> str:
    del ctx
    return ""


_EVERY = "kvcalc.every"
"""Key of the parsing context under which every value of each option is kept."""


class _TextParameters:
    """A command or group whose parameters are text or flags, handed on as they are.

    typer 0.29 converts values through pydantic, whose import costs more than all the rest of a
    start (0.13 of 0.32 s CPU); text needs no conversion. Where a version of typer has no such
    attribute, setting it changes nothing but the time.
    """

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, the help option among them."""
        params = super().get_params(ctx)  # type: ignore[misc]  # of the class it is mixed into
        for param in params:
            param._runtime_param = _AsTyped()  # noqa: SLF001 - there is no public switch
            if param.param_type_name == "argument":  # help needs no Python type behind MODEL
                param.display_type_rich = _no_type
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words, and keep every value of an option of which the parser keeps the last."""
        options = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        single = [option for option in options if not option.multiple]
        for option in single:
            option.multiple = True
        try:
            parser = self.make_parser(ctx)  # type: ignore[attr-defined]  # of the class it is mixed into
        finally:
            for option in single:
                option.multiple = False
        with suppress(Exception):  # what cannot be parsed is reported by the run that counts
            ctx.meta[_EVERY] = parser.parse_args(args=list(args))[0]
        found: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # as above
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the table; typer puts groups last."""
        del ctx
        names = list(self.commands)  # type: ignore[attr-defined]  # of groups, which alone list
        order = [*COMMANDS, *names]
        return sorted(names, key=order.index)


class Command(_TextParameters, TyperCommand):
    """A command of text parameters."""


class Group(_TextParameters, TyperGroup):
    """A group of commands with text parameters."""


def register(
    app: typer.Typer,
    name: str,
    run: Callable[[Values], None],
    *groups: OptionGroup,
    help: str,
    epilog: str,
    compared: Sequence[str] = (),
) -> None:
    """Add a command that takes the options of `groups` and hands their values to `run`.

    `compared` names options that take one value and for each of whose values it answers.
    """
    options = [option for group in groups for option in group]

    flags = {o.name: _flag(o) for o in options}

    def command(ctx: typer.Context, **values: Any) -> None:
        origins = {o.name: _origin(ctx, o.name) for o in options}
        given = Values(values, origins, _places(ctx, flags, origins), ctx.obj or ())
        one_variable(given, _variables(ctx))
        keep_repeated(given, _every(ctx, origins), compared)
        read_all(given, planned=name in _PLANNED)
        run(given)

    parameters = [
        inspect.Parameter(
            o.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=o.default,
            annotation=Annotated[o.type, o.info],
        )
        for o in options
    ]
    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {
        "ctx": typer.Context,
        **{o.name: Annotated[o.type, o.info] for o in options},
    }
    app.command(name, cls=Command, help=help, epilog=epilog)(command)


_PLANNED = ("per-token", "compare", "plan", "capacity", "frag", "probe")
"""Commands that plan with what they are given, as a rule."""

_ORIGINS = {
    "COMMANDLINE": Origin.TYPED,
    "ENVIRONMENT": Origin.VARIABLE,
    "DEFAULT_MAP": Origin.SETTINGS,
}


def _every(ctx: typer.Context, origins: dict[str, Origin]) -> dict[str, Sequence[Any]]:
    """Return all values of each option that was typed, or that a settings file lists."""
    typed, listed = ctx.meta.get(_EVERY, {}), ctx.meta.get(LISTED, {})
    found = {name: given for name, given in typed.items() if origins.get(name) is Origin.TYPED}
    found |= {name: given for name, given in listed.items() if origins.get(name) is Origin.SETTINGS}
    return {
        name: found[name]
        for name in origins
        if name in found and isinstance(found[name], (list, tuple))
    }


def _variables(ctx: typer.Context) -> dict[str, Sequence[str]]:
    """Return the variables of each option."""
    params = [(param.name or "", param.envvar) for param in ctx.command.params]
    return {name: names for name, names in params if isinstance(names, list)}


def _origin(ctx: typer.Context, name: str) -> Origin:
    source = ctx.get_parameter_source(name)
    return _ORIGINS.get(source.name if source else "", Origin.DEFAULT)


def _flag(option: Option) -> str:
    """Return how errors name an option: its first flag, or an argument's metavar."""
    declared = [getattr(option.info, "default", None), *(option.info.param_decls or ())]
    flags = [d for d in declared if isinstance(d, str) and d.startswith("--")]
    return flags[0] if flags else str(option.info.metavar or option.name).rstrip(".")


def _places(
    ctx: typer.Context, flags: dict[str, str], origins: dict[str, Origin]
) -> dict[str, str]:
    """Return how errors name each value's place."""
    places = dict(flags)
    for name, origin in origins.items():
        if origin is Origin.VARIABLE:
            param = next(p for p in ctx.command.params if p.name == name)
            # click takes the first of them that is set; a switch has one.
            named = [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
            places[name] = next(v for v in named if os.environ.get(v))
        elif origin is Origin.SETTINGS:
            places[name] = ctx.meta.get(PLACES, {}).get(name, flags[name])
    return places
