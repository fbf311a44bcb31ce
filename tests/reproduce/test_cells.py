"""Cells: their digests, and results that are kept whole or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_research.reproduction.cells import Cell, CellStore, Finished, write_atomically

names = st.text("abcdefghij-", min_size=1, max_size=6)
values = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | names
settings = st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=4)
cells = st.builds(Cell, work=names, dataset=names, system=names, seed=st.integers(0, 9), settings=settings)


def finished(cell: Cell, accuracy: float = 0.9) -> Finished:
    return Finished(cell=cell, result={"accuracy": accuracy}, wall_s=1.0, commit="abc")


@given(cells)
def test_a_cell_keeps_its_digest_on_its_way_through_json(cell: Cell) -> None:
    assert msgspec.json.decode(msgspec.json.encode(cell), type=Cell).digest == cell.digest


@given(cells)
def test_the_digest_does_not_depend_on_the_order_of_settings(cell: Cell) -> None:
    turned = msgspec.structs.replace(cell, settings=dict(reversed(cell.settings.items())))
    assert turned.digest == cell.digest


@given(cells, st.sampled_from(["work", "dataset", "system", "seed", "settings"]))
def test_whatever_determines_a_result_is_in_the_digest(cell: Cell, field: str) -> None:
    changed = {"seed": cell.seed + 1, "settings": {**cell.settings, "one more": 1}}.get(field, "something else")
    assert msgspec.structs.replace(cell, **{field: changed}).digest != cell.digest


def test_results_of_another_format_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(work="w", dataset="d", system="s", seed=1)
    before = cell.digest
    monkeypatch.setattr("ofl_research.reproduction.cells.FORMAT", 2)
    assert cell.digest != before


@pytest.fixture
def cell() -> Cell:
    return Cell(work="w", dataset="digits", system="ofl", seed=1, settings={"gamma": 0.1})


def test_a_result_comes_back_as_it_was_kept(cell: Cell, tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    assert store.get(cell) is None
    store.put(finished(cell))
    assert CellStore(tmp_path).get(cell) == finished(cell)
    assert store.get(msgspec.structs.replace(cell, seed=2)) is None


def test_a_damaged_file_is_reported_and_counts_as_missing(
    cell: Cell, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CellStore(tmp_path)
    store.put(finished(cell))
    path = store.path(cell)
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING):
        assert store.get(cell) is None
    assert path.name in caplog.text


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_atomically(file, b"old")
    with pytest.raises(TypeError):
        write_atomically(file, "not bytes")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_bytes() == b"old"


def test_a_folder_that_cannot_be_made_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name another folder"):
        CellStore(tmp_path / "file")
