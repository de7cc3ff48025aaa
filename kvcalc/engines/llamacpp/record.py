"""What the other rooms ask of llama.cpp: see `engines.engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes, format_count
from kvcalc.engines.changes import Change, at_once, of_tokens
from kvcalc.engines.command import Words
from kvcalc.engines.engine import Engine

__all__ = ["ENGINE"]

_CONTEXTS = ("ctx_size", "kv_unified_per_slot", "num_ctx", "ollama_context_length")
"""llama.cpp's and ollama's settings that say how long a context is."""

_FLAGS = {
    "max_num_seqs": "--parallel",
    "speculative_method": "--spec-type",
    "num_speculative_tokens": "--spec-draft-n-max",
}


class _LlamaCpp(Engine):
    running = "parallel"
    flags = _FLAGS
    values = {"draft": "draft-simple", "draft_model": "draft-simple", "mtp": "draft-mtp"}
    machine = ("device_memory", "compute_mib")
    loads_gguf = True
    weight_formats = ("q8_0", "q4_k_m")
    plans_by_weights = True
    tensor_parallel = False
    settings_fix_cache = True
    sizes_context = ("ctx_size", "kv_unified_per_slot", "num_ctx", "ollama_num_parallel")
    eight_bit_cache = "q8_0"
    own_flags = True
    logs_devices = True
    counts_tokens = True
    fewest_tokens = 256  # as many cells as llama.cpp has sequences at most
    free_setting = "device_memory"

    def length_change(self, deployment: Deployment, n: int) -> Change:
        from kvcalc.engines.llamacpp.args import OLLAMA, full_name

        name = of_tokens(n)
        given = {full_name(key): key for key in deployment.engine_args}
        contexts = [name for name in _CONTEXTS if name in given]
        if not contexts:
            return Change(name, {"max_model_len": n})
        others: dict[str, Any] = {given[name]: None for name in contexts}
        if any(name in given for name in OLLAMA):
            return Change(name, {"max_model_len": None}, {**others, "num_ctx": n})
        args = deployment.engine_args
        slots = args.get(given.get("parallel", ""), deployment.max_num_seqs)
        alone = isinstance(slots, int) and slots > 0 and not args.get(given.get("kv_unified", ""))
        size = n * slots if alone and isinstance(slots, int) else n
        return Change(name, {"max_model_len": None}, {**others, "ctx_size": size})

    def sequences_change(
        self, model: ModelSpec, deployment: Deployment, longest: Callable[[], int]
    ) -> Callable[[int], Change]:
        """Return the settings for n slots: a context is all of theirs together."""
        from kvcalc.engines.llamacpp.args import OLLAMA, full_name
        from kvcalc.engines.llamacpp.settings import resolve

        own = {key: full_name(key) for key in deployment.engine_args}
        if any(name in OLLAMA for name in own.values()):
            before: dict[str, Any] = {
                key: None for key, name in own.items() if "num_parallel" in name
            }
            return lambda n: Change(
                at_once(n), {"max_num_seqs": None}, {**before, "ollama_num_parallel": n}
            )
        settings = resolve(model, deployment, [])
        given = {full_name(key): key for key in deployment.engine_args}
        told = "parallel" in given or deployment.max_num_seqs is not None
        length, shared = longest(), settings.cells.unified and told
        others: dict[str, Any] = {given[name]: None for name in _CONTEXTS if name in given}
        if "parallel" in given:
            others[given["parallel"]] = None

        def of(n: int) -> Change:
            args = {**others, "parallel": n, "ctx_size": n * length}
            if shared:  # one pool for all of them, of which each has no more than before
                args["kv_unified_per_slot"] = length
            return Change(at_once(n), {"max_model_len": None, "max_num_seqs": None}, args)

        return of

    def cache_levers(self, now: str) -> Iterator[Change]:
        for kind in ("q8_0", "q4_0"):
            if now != kind:
                yield Change(
                    f"cache in {kind}",
                    {"kv_cache_dtype": kind},
                    caution="needs flash attention; quality changes",
                )

    def levers(self, deployment: Deployment, plan: CachePlan, *, on_gpu: bool) -> Iterator[Change]:
        del plan, on_gpu
        args = deployment.engine_args
        if args.get("swa_full"):
            yield Change("windows alone (no --swa-full)", {}, {"swa_full": False})
        yield Change("steps of 128 tokens", {}, {"ubatch_size": 128}, caution="slower prompts")
        yield Change(
            "cache in host memory", {}, {"no_kv_offload": True}, caution="much slower decoding"
        )
        if args.get("parallel") != 1:
            yield Change(
                "one sequence", {}, {"parallel": 1}, caution="requests wait for one another"
            )

    def context_for(self, model: ModelSpec, deployment: Deployment, length: int) -> int:
        from kvcalc.engines.llamacpp.settings import resolve

        cells = resolve(model, deployment, []).cells
        return length * (1 if cells.unified else cells.sequences)

    def spelled(self, name: str, value: object) -> str | None:
        """Return a setting as its own flag; a cache's dtype is that of K and of V."""
        if name == "kv_cache_dtype":
            return f"--cache-type-k {value} --cache-type-v {value}"
        return super().spelled(name, value)

    def to_host(
        self, model: ModelSpec, deployment: Deployment
    ) -> Sequence[tuple[Callable[[int], Change], int]]:
        """Return experts, then whole layers."""
        layers = model.num_hidden_layers
        of_layers, every = self.gpu_layers(model, deployment)

        def experts(n: int) -> Change:
            return _own(deployment, f"experts of {n} layers on the host", "n_cpu_moe", n)

        return ((experts, layers), (lambda n: of_layers(every - n), every))

    def gpu_layers(
        self, model: ModelSpec, deployment: Deployment
    ) -> tuple[Callable[[int], Change], int]:
        """Return --n-gpu-layers, of which the output counts as one."""

        def of(n: int) -> Change:
            return _own(deployment, f"{n} layers on the GPU", "n_gpu_layers", n)

        return of, model.num_hidden_layers + len(model.draft_layers) + 1

    def barred(
        self, model: ModelSpec, deployment: Deployment, plan: CachePlan, free: int, **weights: Any
    ) -> tuple[str, int] | None:
        gpu = deployment.gpu
        if not isinstance(gpu, GpuSpec):
            return None
        if plan.moved_bytes:
            from kvcalc.engines.llamacpp.terms import driver_term

            least = driver_term(gpu).low_bytes
            why = (
                f"the driver's context alone takes at least {format_bytes(least)}, and"
                f" {format_bytes(free)} of {gpu.name} are free"
            )
            return (why, least - free) if least > free else None
        from kvcalc.engines.llamacpp.settings import resolve
        from kvcalc.weights.on_rank import weights_on_rank

        placing = resolve(model, deployment, []).placing
        layers, count = model.num_hidden_layers, placing.n_gpu_layers
        on_gpus = layers if count is None else min(count - 1, layers)  # the output counts as one
        if on_gpus < 0:
            return None
        sizes = (layers - on_gpus, on_gpus)
        least = weights_on_rank(model, pp=2, stage=1, sizes=sizes, **weights).low_bytes
        seen = free * len(placing.shares)
        why = (
            f"the weights of {format_count(on_gpus)} layers and the output take at least"
            f" {format_bytes(least)} of the {format_bytes(seen)} of {gpu.name}"
        )
        return (why, least - seen) if least > seen else None

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        from kvcalc.engines.llamacpp.args import OLLAMA
        from kvcalc.engines.llamacpp.settings import resolve

        deployment = words.deployment
        words.start("llama-server", "-m", source)
        kind = words.fields.pop("kv_cache_dtype", None)
        if kind is not None:
            key, _, value = str(kind).partition(":")
            words.start("--cache-type-k", key, "--cache-type-v", value or key)
        longest = words.fields.pop("max_model_len", None)
        if isinstance(longest, int) and "ctx_size" not in words.args:
            cells = resolve(model, deployment, []).cells
            streams = 1 if cells.unified else cells.sequences
            words.start("--ctx-size", str(longest * streams))
        if words.fields.pop("draft_model", None) is not None:
            draft = deployment.draft_model
            found = draft if isinstance(draft, str) or draft is None else draft.origin or draft.name
            words.start("--model-draft", _gguf(str(found)))
            words.fields.setdefault("speculative_method", "draft")
        words.say_fields()
        pages = words.fields.pop("pipeline_parallel_size", None)
        if isinstance(pages, int):
            words.variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(pages)))
        for name in [name for name in words.args if name in OLLAMA or name == "rs_seq"]:
            words.told.append(f"{name} {words.args.pop(name)} is no flag of llama-server")
        words.say_args()
        return True


def _gguf(name: str) -> str:
    return name if name.lower().endswith(".gguf") else f"{name.rsplit('/', 1)[-1]}.gguf"


def _own(deployment: Deployment, name: str, setting: str, value: int) -> Change:
    """Return a setting changed, however the deployment spells it."""
    from kvcalc.engines.llamacpp.args import full_name

    spelled = (key for key in deployment.engine_args if full_name(key) == setting)
    given: dict[str, Any] = dict.fromkeys(spelled)
    return Change(name, {}, {**given, setting: value})


ENGINE = _LlamaCpp("llama.cpp")
