"""What lets a server take sequences beyond the model's own length."""

from __future__ import annotations

from kvcalc.manifests.found import Server

__all__ = ["is_stretched", "lets_longer"]

_STRETCHES = ("hf_overrides", "rope_scaling", "rope_factor", "rope_scaling_factor")
"""Settings that change how positions are counted: how far is not worked out."""

_OFF = ("", "0", "1", "1.0", "0.0", "false", "no", "none")


def is_stretched(server: Server | None) -> bool:
    """Whether positions are stretched by a setting, or the model's config is changed."""
    settings = server.settings if server is not None else ()
    return any(
        s.name in _STRETCHES
        and s.kind != "arg"  # the architecture alone
        and str(s.value).strip().lower() not in _OFF
        for s in settings
        if s.value is not None
    )


def lets_longer(server: Server | None, switch: str) -> bool:
    """Whether the variable is set that lets an engine take more than the model's own length."""
    env = server.invocation.env if server is not None else {}
    return switch in env and env[switch].text.strip().lower() in ("1", "true")
