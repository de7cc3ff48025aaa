"""Tables of the package itself: tab-separated files beside the code that reads them."""

from __future__ import annotations

from importlib import import_module

__all__ = ["read_table"]


def read_table(package: str, name: str) -> list[list[str]]:
    """Return the rows of a table, its heads first.

    Neither csv, importlib.resources nor pkgutil is asked: a start would wait for each.

    Args:
        package: that the table lies in.
        name: of its file.

    Raises:
        OSError: the package has no such table.
    """
    module = import_module(package)
    data = module.__loader__.get_data(f"{module.__path__[0]}/{name}")  # type: ignore[union-attr]
    return [line.split("\t") for line in data.decode("utf-8").splitlines()]
