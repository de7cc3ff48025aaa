"""The rows of public.tsv: what public deployment files say, read by people.

A row holds facts only; the files themselves stay in their repositories. Columns:

- `id`; `repository`, `path`, `commit` of a public file; `beside`: another that is read with it;
- `carrier`: the kind of file; `engine`: kvcalc's name, `-` where the file starts nothing that can
  be named; `server`: the one entry of a catalogue that the row is about (the others are not
  looked at), empty where it is about all that the file starts;
- `model`, `settings`, `devices`, `product`: one value a server, ` | ` between them. A model `?` is
  named by a variable without a value, `-` is not in the file. A setting is NAME=VALUE in the words
  of kvcalc's Deployment or of the engine; the value `?` comes from a variable without a value, `~`
  in front of the name says that it may be read or not (a chart's default, a setting that depends on
  the release). `devices` are cards a node, `4x2` on two nodes, `all`, `0.5`, `-` where the file
  says nothing, `1|-` where either is right. `product` is the preset of the card, several where any
  of them may be given, the file's own word where no preset or more than one fits, `-` for none;
- `findings`: codes that are expected among the file's findings; `note`: what is worth knowing.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["NAMES", "TABLE", "Expected", "Row", "rows"]

TABLE = Path(__file__).with_name("public.tsv")
_BETWEEN = " | "

_NAMES = """
    dtype quantization kv_cache_dtype block_size max_model_len max_num_seqs max_num_batched_tokens
    tensor_parallel_size pipeline_parallel_size data_parallel_size decode_context_parallel_size
    gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override enable_prefix_caching
    async_scheduling enforce_eager disable_hybrid_kv_cache_manager enable_expert_parallel
    mamba_cache_dtype mamba_ssm_cache_dtype num_speculative_tokens speculative_method draft_model
    max_loras max_lora_rank
    mem_fraction_static max_total_tokens max_mamba_cache_size enable_dp_attention
    speculative_num_steps speculative_eagle_topk mamba_radix_cache_strategy disaggregation_mode
    ctx_size parallel batch_size ubatch_size n_gpu_layers n_gpu_layers_draft cache_type_k
    cache_type_v flash_attn split_mode tensor_split fit kv_unified
    num_ctx ollama_context_length ollama_num_parallel ollama_kv_cache_type ollama_flash_attention
    free_gpu_memory_fraction max_tokens enable_attention_dp
    max_input_tokens cuda_memory_fraction cache_max_entry_count quant_policy
"""
NAMES = frozenset(_NAMES.split())
"""Settings that decide how large a cache is: only these are compared, and all of them are."""


class Expected(NamedTuple):
    """What one server of a file is to be read as."""

    model: str
    settings: dict[str, str]
    optional: dict[str, str]
    devices: tuple[str, ...]
    products: tuple[str, ...]


class Row(NamedTuple):
    """A line of the table."""

    id: str
    repository: str
    path: str
    beside: str
    commit: str
    carrier: str
    engine: str
    server: str
    model: str
    settings: str
    devices: str
    product: str
    findings: str
    note: str

    @property
    def servers(self) -> list[Expected]:
        """The servers that the file starts; none where no engine is expected."""
        if self.engine == "-":
            return []
        models = self.model.split(_BETWEEN)
        columns = [_spread(each, len(models)) for each in self[9:12]]
        return [_expected(*each) for each in zip(models, *columns, strict=True)]

    def lies(self, path: str) -> str:
        """Return where a file of the row lies in its folder: as deep as the two need it."""
        if not self.beside:
            return Path(path).name
        tops = list(zip(Path(self.path).parts, Path(self.beside).parts, strict=False))
        same = next(i for i, (one, other) in enumerate(tops) if one != other)
        return "/".join(Path(path).parts[same:])


def rows() -> list[Row]:
    """Return all rows."""
    head, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    if head.split("\t") != list(Row._fields):
        raise ValueError(f"{TABLE.name} has the columns {head}")
    return [Row(*line.split("\t")) for line in lines]


def _spread(cell: str, count: int) -> list[str]:
    """Return a cell's values, one a server: a single one counts for all."""
    values = [value.strip() for value in f"{cell} ".split(_BETWEEN)]
    return values * count if len(values) == 1 else values


def _expected(model: str, settings: str, devices: str, product: str) -> Expected:
    given = dict(word.split("=", 1) for word in settings.split())
    sure = {name: value for name, value in given.items() if not name.startswith("~")}
    optional = {name[1:]: value for name, value in given.items() if name.startswith("~")}
    return Expected(model, sure, optional, tuple(devices.split("|")), tuple(product.split(",")))
