"""What the config classes of transformers supply for a key that a file leaves out.

A published config.json leaves keys out in two ways: its nested parts hold only what differs from
their class, and files older than a key lack it. The table beside this module was read from the
classes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["NO_DEFAULTS", "ClassDefaults", "class_defaults"]

_WRITTEN_ALWAYS = frozenset(
    {
        "hidden_size", "n_embd", "d_model",
        "num_hidden_layers", "n_layer", "n_layers", "num_layers",
        "decoder_layers", "num_decoder_layers",
        "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
    }
)  # fmt: skip
"""Every published file says these at its top level: without them it is not whole."""


class ClassDefaults(NamedTuple):
    """The sizing defaults of one config class.

    Attributes:
        of: the class's name, for notes.
        values: key -> default.
        nullable: keys whose explicit null says something else than the default (no window).
    """

    of: str
    values: Mapping[str, int]
    nullable: frozenset[str]

    def of_whole_file(self) -> ClassDefaults:
        """Return what may be missing at the top level of a file, where the sizes are written."""
        rest = {k: v for k, v in self.values.items() if k not in _WRITTEN_ALWAYS}
        return self._replace(values=rest)


NO_DEFAULTS = ClassDefaults("", {}, frozenset())


@cache
def _table() -> dict[str, ClassDefaults]:
    found = {}
    text = files(__package__).joinpath("class_defaults.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        model_type, of, entries = line.split("\t")
        pairs = [entry.split("=") for entry in entries.split()]
        found[model_type] = ClassDefaults(
            of,
            {key: int(value.rstrip("?")) for key, value in pairs},
            frozenset(key for key, value in pairs if value.endswith("?")),
        )
    return found


def class_defaults(model_type: str | None) -> ClassDefaults:
    """Return the defaults of a model type's class; none where its class is not transformers' own.

    >>> class_defaults("mistral").values["num_key_value_heads"]
    8
    """
    return _table().get(model_type or "", NO_DEFAULTS)
