"""kvcalc presets: the models that come with kvcalc."""

import typer


def add(app: typer.Typer) -> None: ...
