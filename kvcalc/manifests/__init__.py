"""Where deployments come from: the files that people deploy, and the commands in them."""

from __future__ import annotations

from kvcalc.manifests.paths import Found, read_paths, servers_of
from kvcalc.manifests.reading import read_source
from kvcalc.manifests.sources import Folder, Source, find

__all__ = ["Folder", "Found", "Source", "find", "read_paths", "read_source", "servers_of"]
