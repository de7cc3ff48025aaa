"""public.tsv holds facts in one form: what `python -m tests.manifests.public` relies on."""

from __future__ import annotations

import re

import pytest

from kvcalc.engines import ENGINES
from kvcalc.models.presets import gpu_names
from tests.manifests.public_rows import NAMES, Row, rows

ROWS = rows()
each_row = pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])


def test_the_table_is_large_enough_and_every_row_has_a_name() -> None:
    """At least 60 files, no two rows of one name."""
    assert len({(row.repository, row.path) for row in ROWS}) >= 60
    assert len({row.id for row in ROWS}) == len(ROWS)


@each_row
def test_a_row_names_a_file_at_a_commit(row: Row) -> None:
    """Repository, path and commit are enough to get the file."""
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", row.repository)
    assert row.path and not row.path.startswith("/")
    assert re.fullmatch(r"[0-9a-f]{40}", row.commit)


@each_row
def test_a_row_says_what_kvcalc_can_say(row: Row) -> None:
    """Engines, settings, cards and codes are in kvcalc's words, one of each for every server."""
    assert row.engine in (*ENGINES, "-")
    for server in row.servers:
        assert server.model
        assert (server.settings.keys() | server.optional.keys()) <= NAMES
        for devices in server.devices:
            assert re.fullmatch(r"(-|all|\d+(\.\d+)?)(x\d+)?", devices)
        if len(server.products) > 1:
            assert set(server.products) <= set(gpu_names())
    for code in row.findings.split():
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", code)


def test_the_files_of_a_row_keep_their_places_to_one_another() -> None:
    """A chart's values lie beside its templates, without the folders above both."""
    row = next(row for row in ROWS if row.beside)
    assert row.lies(row.path) == "templates/deployment.yaml"
    assert row.lies(row.beside) == "values.yaml"
