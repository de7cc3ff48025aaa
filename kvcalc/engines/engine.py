"""What the rest of kvcalc asks of an engine: one record each, `record.py` in the engine's folder.

Outside this folder no engine is named: what differs from engine to engine is an attribute or a
method here, with what most engines do as its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kvcalc.core.deployment import Deployment
    from kvcalc.core.memory import Term
    from kvcalc.core.model import ModelSpec
    from kvcalc.core.plan import CachePlan
    from kvcalc.engines.changes import Change
    from kvcalc.engines.command import Words
    from kvcalc.weights.loading import Loading

__all__ = ["Engine", "Sizes"]

_WIDE = ("bfloat16", "float16", "float32")


class Sizes(NamedTuple):
    """Ranks and replicas.

    Attributes:
        tp, pp: tensor and pipeline parallel size.
        replicas: servers that each hold requests of their own.
        groups: groups of ranks within a server that hold requests of their own (DP attention).
    """

    tp: int
    pp: int
    replicas: int
    groups: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.tp * self.pp * self.replicas

    @property
    def holders(self) -> int:
        """Replicas and groups: how many times the figures of a plan are there."""
        return self.replicas * self.groups


class Engine:
    """An engine as the other rooms see it.

    Attributes:
        share: its setting for the share of a GPU's memory: a field of Deployment or an engine_arg.
        running: what it calls the sequences that it runs at once.
        sequences: its setting for them, which a change sets; None where it has none.
        divides_gpu: that share is one of the whole GPU: several servers divide it.
        longer: the variable that lets a maximum beyond the model's own pass.
        counts_stretched: a maximum that a scaled rotary embedding stretches counts as the model's
            own.
        flags: field of Deployment -> its flag.
        values: kvcalc's word for a value -> its own.
        variables: setting -> the variable that says it, where no flag does.
        machine: engine_args that describe the machine to kvcalc, and are none of the engine's.
        on_loading: weights' format -> flags with which it brings a checkpoint into that format.
        loads_gguf: it is given a GGUF file, whose weights are in one format or another.
        weight_formats: formats of weights that are worth a try where more memory is wanted.
        plans_by_weights: what it plans depends on the weights' bytes (llama.cpp's fit).
        tensor_parallel: it splits a layer over GPUs; else layers are shared out over them.
        two_nodes_of_ranks: of two nodes, its documents prefer tensor ranks over all of them.
        settings_fix_cache: its sequences share one context, which the settings size.
        sizes_context: engine_args that give that context a length; it cuts one that has none.
        cache_in_bytes: the cache can be given in bytes; else it takes what the GPU has.
        takes_all_gpus: without a number of ranks it takes every GPU that it sees.
        share_to_try: a share of a GPU that is worth a try before others.
        steps_in_share: a smaller step leaves more of the share to the cache.
        eight_bit_cache: what it calls a cache of eight bits.
        may_drop_speculation: leaving speculation out is offered where memory is short.
        assumes_draft: a draft that is not known is taken to be one layer of its target's.
        runs_replicas: replicas of fewer ranks are a way to keep each byte once.
        queues_for_cache: requests wait, or are preempted, where the cache holds fewer sequences
            than it may run.
        own_flags: its engine_args are flags of their names.
        config_keys: engine_arg or field -> the key of its configuration, or its flag.
        fewest_tokens: a context has no fewer.
        free_setting: engine_arg by which it plans with what is free of a GPU.
        layer_partition: the variable that shares layers out over pipeline stages.
        unnamed_drafts: a number of draft tokens without a method means the model's own layers.
        prints_as: the engine whose log lines it prints; None for its own.
        logs_devices: lines of its log are of one device each, and show the settings that it chose.
        logs_parts: its log has a line for each part of a term of memory: model, draft and states.
        logs_memory: its log has enough of a GPU's memory to try other settings by its figures.
        page_block_size: the block size on its metrics page is the one that is set.
        counts_tokens: the tokens in use on its metrics page are what is held: it has no blocks.
        kernels_set_blocks: the attention kernels decide on its block size.
    """

    share: str | None = None
    divides_gpu = False
    running: str = "max_num_seqs"
    sequences: str | None = "max_num_seqs"
    longer: str | None = None
    counts_stretched = True
    flags: Mapping[str, str] = {}
    values: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    machine: Sequence[str] = ()
    on_loading: Mapping[str, tuple[str, ...]] = {}
    loads_gguf = False
    weight_formats: Sequence[str] = ("fp8", "int4")
    plans_by_weights = False
    tensor_parallel = True
    two_nodes_of_ranks = False
    settings_fix_cache = False
    sizes_context: Sequence[str] = ()
    cache_in_bytes = True
    takes_all_gpus = False
    share_to_try: float | None = None
    steps_in_share = False
    eight_bit_cache = "fp8"
    may_drop_speculation = False
    assumes_draft = False
    runs_replicas = False
    queues_for_cache = False
    own_flags = False
    config_keys: Mapping[str, str] = {}
    fewest_tokens = 1
    free_setting: str | None = None
    layer_partition: str | None = None
    unnamed_drafts = False
    prints_as: str | None = None
    logs_devices = False
    logs_parts = False
    logs_memory = False
    page_block_size = False
    counts_tokens = False
    kernels_set_blocks = False

    def __init__(self, name: str) -> None:
        self.name = name

    def sizes(self, deployment: Deployment) -> Sizes:
        """Return how many GPUs share what, as the engine reads its settings.

        Raises:
            InvalidValueError, UnsupportedError, UnknownNameError: settings that it has not.
        """
        return Sizes(
            deployment.tensor_parallel_size,
            deployment.pipeline_parallel_size,
            deployment.data_parallel_size,
        )

    def default_share(self, version: str | None) -> float:
        """Return the share of a GPU that a release takes unasked: of those with such a setting."""
        raise NotImplementedError

    def length_change(self, deployment: Deployment, n: int) -> Change:
        """Return the setting for sequences of n tokens."""
        from kvcalc.engines.changes import Change, of_tokens

        return Change(of_tokens(n), {"max_model_len": n})

    def sequences_change(
        self, model: ModelSpec, deployment: Deployment, longest: Callable[[], int]
    ) -> Callable[[int], Change]:
        """Return what gives the setting for n sequences at once, each as long as before.

        Args:
            model: that is served.
            deployment: as it is.
            longest: returns the longest sequence of its plan.
        """
        from kvcalc.core.deployment import Deployment as Fields
        from kvcalc.engines.changes import Change, at_once

        setting = self.sequences
        if setting is None:
            return lambda n: Change(at_once(n))
        if setting in Fields.__struct_fields__:
            return lambda n: Change(at_once(n), {setting: n})
        instead = {} if deployment.max_num_seqs is None else {"max_num_seqs": None}
        return lambda n: Change(at_once(n), instead, {setting: n})

    def cache_levers(self, now: str) -> Iterator[Change]:
        """Yield smaller dtypes of the cache that are worth a try instead of the present one."""
        from kvcalc.engines.changes import Change

        if now in _WIDE:
            yield Change("cache in fp8", {"kv_cache_dtype": "fp8"}, caution="quality may change")

    def levers(self, deployment: Deployment, plan: CachePlan, *, on_gpu: bool) -> Iterator[Change]:
        """Yield further settings of its own that are worth a try where more is wanted.

        Args:
            deployment: as it is.
            plan: of it.
            on_gpu: a GPU's memory is shared out, not the cache's bytes given.
        """
        yield from ()

    def layouts(self, layout: Change, sizes: Sizes) -> Iterator[Change]:
        """Yield further ways to lay the same ranks, stages and replicas out."""
        yield from ()

    def keeping_once(self, times: int) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
        """Return fields and engine_args with which ranks that keep the same keep parts of it.

        Args:
            times: ranks that keep the same bytes now.
        """
        return ()

    def context_for(self, model: ModelSpec, deployment: Deployment, length: int) -> int | None:
        """Return the context that gives every sequence a length; None: it has no such setting."""
        return None

    def to_host(
        self, model: ModelSpec, deployment: Deployment
    ) -> Sequence[tuple[Callable[[int], Change], int]]:
        """Return what may be left to the host in steps, the cheapest first, and the most steps."""
        return ()

    def gpu_layers(
        self, model: ModelSpec, deployment: Deployment
    ) -> tuple[Callable[[int], Change], int] | None:
        """Return the setting for n layers on the GPUs, and the most; None: it has none."""
        return None

    def barred(
        self, model: ModelSpec, deployment: Deployment, plan: CachePlan, free: int, **weights: Any
    ) -> tuple[str, int] | None:
        """Return why a GPU without cache cannot be used, and the bytes it lacks; None: it can.

        Args:
            model: with its sizes.
            deployment: on a named GPU.
            plan: of both, with no cache on a GPU.
            free: bytes of a GPU that may be free at most.
            weights: quantization and total_bytes, as in weights_on_rank.
        """
        return None

    def loading(self, model: ModelSpec, deployment: Deployment, plan: CachePlan) -> Loading:
        """Return what the engine makes of a checkpoint as it loads it.

        Args:
            model: as published.
            deployment: as asked for.
            plan: of both.
        """
        from kvcalc.weights.loading import Loading

        return Loading(dtype=plan.model_dtype)

    def left_on_gpu(
        self, term: Term, model: ModelSpec, deployment: Deployment, plan: CachePlan, **asked: Any
    ) -> Term:
        """Return the weights that stay on a GPU beside those that its settings move to the host.

        Args:
            term: all weights of the GPU.
            model: with its sizes.
            deployment: as asked for.
            plan: of both.
            asked: layers: of the GPU; quantization: instead of the checkpoint's own.
        """
        return term

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        """Put the words of its command together; False for a library that no command starts.

        Args:
            words: takes them, and the settings that are to be said.
            model: that is served.
            source: what it is to load.
        """
        return False

    def spelled(self, name: str, value: object) -> str | None:
        """Return a setting as its own flag; None where that is not known."""
        flag = self.flags.get(name)
        if flag is None:
            return None
        if isinstance(value, bool):
            return flag if value else f"--no-{flag[2:]}"
        return f"{flag} {self.values.get(str(value), value)}"
