"""ExLlama's two engines: `exllamav2` (kvcalc.engines.exllama.v2) and `exllamav3` (v3).

They are two programs with caches of their own; what they share is how settings are read (settings)
and pages of 256 tokens (pages).
"""

from __future__ import annotations

__all__: list[str] = []
