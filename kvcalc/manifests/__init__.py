"""Where deployments come from: the files that people deploy, and the commands in them."""

from __future__ import annotations

from kvcalc.manifests.reading import read_source
from kvcalc.manifests.sources import Folder, Source, find

__all__ = ["Folder", "Source", "find", "read_source"]
