"""Read sizing defaults from transformers' config classes: python -m tests.tools.class_defaults.

The table lies beside `kvcalc/models/hf_config/class_defaults.py`, whose reader it feeds. It needs
transformers in the version that the table names; kvcalc itself never imports it. With --write the
table is written, without it only compared.
"""

from __future__ import annotations

import dataclasses
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "kvcalc" / "models" / "hf_config" / "class_defaults.tsv"
VERSION = "5.24.0"
_KEYS = """
    hidden_size n_embd d_model num_hidden_layers n_layer n_layers num_layers num_decoder_layers
    decoder_layers num_attention_heads n_head n_heads num_heads decoder_attention_heads
    num_key_value_heads head_dim v_head_dim d_kv sliding_window sliding_window_pattern
    max_window_layers attention_chunk_size no_rope_layer_interval window_size
    max_position_embeddings n_positions max_seq_len max_source_positions max_target_positions
    num_kv_shared_layers global_attn_every_n_layers
"""
KEYS = frozenset(_KEYS.split())
"""Keys that decide what layers keep, in every spelling that a class uses."""


def model_types() -> list[str]:
    """Return the model types of the table as it is; add a line with a new one to have it filled."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return sorted(line.split("\t")[0] for line in lines if not line.startswith("#"))


def row(mapping: Any, model_type: str) -> str:
    """Return the line of one model type: of its text part, where its class has one.

    Args:
        mapping: transformers' CONFIG_MAPPING.
        model_type: a key of it.
    """
    config = mapping[model_type]
    part: Any = (config.sub_configs or {}).get("text_config")
    # Where the text model is any model at all, its class is AutoConfig, which has no fields.
    if part is not None and dataclasses.is_dataclass(part):
        config = part
    items = [
        f"{field.name}={field.default}" + ("?" if "None" in str(field.type) else "")
        for field in dataclasses.fields(config)
        if field.name in KEYS and type(field.default) is int
    ]
    return "\t".join([model_type, config.__name__, " ".join(items)])


def text() -> str:
    """Return the table.

    Raises:
        SystemExit: another version of transformers, whose defaults may be others.
    """
    found = import_module("transformers").__version__
    if found != VERSION:
        raise SystemExit(f"transformers {found} is here, the table is of {VERSION}")
    mapping = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    head = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] == "#"]
    return "\n".join([*head, *(row(mapping, name) for name in model_types())]) + "\n"


if __name__ == "__main__":
    made = text()
    if "--write" in sys.argv:
        TABLE.write_text(made, encoding="utf-8")
    elif made != TABLE.read_text(encoding="utf-8"):
        raise SystemExit("the table is not what transformers says; --write writes it anew")
