"""What `--only` and `--seeds` choose."""

from __future__ import annotations

import pytest

from ofl_iot.errors import ConfigError
from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.selection import Options, parse_only, parse_seeds


def test_the_papers_data_and_systems_unless_others_are_named() -> None:
    assert Options().datasets() == list(paper.DATASETS)
    assert Options().systems() == list(paper.COMPARED)
    assert Options(only=("*/ofl",)).datasets() == list(paper.DATASETS)


@pytest.mark.parametrize(
    ("only", "datasets", "systems"),
    [
        (("digits",), ["digits"], list(paper.COMPARED)),
        (("mnist/ifca",), ["mnist"], ["ifca"]),
        (("*mnist/*",), ["mnist", "fashion-mnist"], list(paper.COMPARED)),
        (("cora/ofl", "digits/fedavg"), ["cora", "digits"], ["fedavg", "ofl"]),
    ],
)
def test_patterns_name_data_and_systems(only: tuple[str, ...], datasets: list[str], systems: list[str]) -> None:
    options = Options(only=only)
    assert options.datasets() == datasets
    assert options.systems() == systems


def test_only_cells_that_a_pattern_fits_are_chosen() -> None:
    cells = [Cell(work="w", dataset=d, system=s, seed=1) for d in ("cora", "digits") for s in ("ofl", "fedavg")]
    chosen = Options(only=("cora/ofl", "digits/fedavg")).chosen(cells)
    assert [cell.name for cell in chosen] == ["cora/ofl", "digits/fedavg"]
    assert Options().chosen(cells) == cells


def test_seeds_as_a_list_or_a_range() -> None:
    assert parse_seeds("1,5,2") == (1, 5, 2)
    assert parse_seeds("3-5") == (3, 4, 5)


@pytest.mark.parametrize("text", ["", "a", "1,1", "5-3", "-1", "1-2-3"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize("pattern", ["", "a/b/c"])
def test_patterns_that_fit_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="--only"):
        parse_only([pattern])


def test_every_figure_of_the_papers_table_is_there() -> None:
    assert set(paper.ACCURACY) == {(d, s) for d in paper.DATASETS for s in paper.COMPARED}
