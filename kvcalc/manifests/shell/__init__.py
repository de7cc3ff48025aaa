"""Reading shell scripts: what they would start, without running anything."""

from __future__ import annotations

from kvcalc.manifests.shell.runner import Ran, Script, parse

__all__ = ["Ran", "Script", "parse"]
