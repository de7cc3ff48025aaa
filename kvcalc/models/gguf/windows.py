"""Which layers slide, and over how many tokens.

llama.cpp b11434: llama_model_base::load_swa_pattern (`src/llama-model.cpp`) and
llama_hparams::set_swa_pattern (`src/llama-hparams.cpp`).
"""

from __future__ import annotations

from kvcalc.models.gguf.fields import Fields

__all__ = ["listed", "optional_window", "periodic", "required_window"]

_WINDOW = "attention.sliding_window"
_PATTERN = "attention.sliding_window_pattern"


def required_window(fields: Fields, default: int | None = None) -> int:
    """Return the window of an architecture that always slides.

    Raises:
        InputError: the key is missing (without a default), or 0.
    """
    return fields.number(_WINDOW, default=default)


def optional_window(fields: Fields) -> int:
    """Return the window; 0, for no sliding layer, where the key is 0 or absent."""
    return fields.number(_WINDOW, low=0, default=0)


def periodic(
    fields: Fields, window: int, period: int, *, dense_first: bool = False
) -> tuple[int, ...]:
    """Return the window of each layer; 0 where it keeps every token.

    One layer of each `period` keeps every token: the last, or the first with `dense_first`. The
    file may give the period, or a list with an entry a layer. Draft layers slide only where such
    a list says so.
    """
    if fields.is_list(_PATTERN):
        return listed(fields, window)
    period = fields.number(_PATTERN, low=0, default=period)
    full = 0 if dense_first else period - 1
    main = (0 if period and i % period == full else window for i in range(fields.main))
    return (*main, *(0,) * fields.drafts)


def listed(fields: Fields, window: int) -> tuple[int, ...]:
    """Return the window of each layer where the file must list which ones slide.

    Raises:
        InputError: it does not, or for too few layers.
    """
    return tuple(window if slides else 0 for slides in fields.flags(_PATTERN, fields.blocks))
