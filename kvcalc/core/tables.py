"""Tables of the package itself: tab-separated files beside the code that reads them."""

from __future__ import annotations

from pkgutil import get_data

__all__ = ["read_table"]


def read_table(package: str, name: str) -> list[list[str]]:
    """Return the rows of a table, its heads first.

    Neither csv nor importlib.resources is asked: a start would wait for both.

    Args:
        package: that the table lies in.
        name: of its file.

    Raises:
        FileNotFoundError: the package has no such table.
    """
    data = get_data(package, name)
    if data is None:
        raise FileNotFoundError(name)
    return [line.split("\t") for line in data.decode("utf-8").splitlines()]
