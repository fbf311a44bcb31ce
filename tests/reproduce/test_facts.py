"""What a report says of how it was made, and which experiments are in it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_research.reproduction.cells import Cell, CellStore, Finished
from ofl_research.reproduction.experiments.registry import EXPERIMENTS
from ofl_research.reproduction.facts import command, facts, several_commits, several_files
from ofl_research.reproduction.reproduction import Reproduction
from ofl_research.reproduction.selection import Options, parse_seeds, seeds_text

CORA = Cell(work="w", dataset="cora", system="ofl", seed=1)
DIGITS = Cell(work="w", dataset="digits", system="ofl", seed=1)


def finished(system: str = "ofl", seed: int = 1, commit: str = "abc", data_files: str = "") -> Finished:
    cell = Cell(work="w", dataset="cora", system=system, seed=seed)
    return Finished(cell=cell, result={}, wall_s=1.0, commit=commit, data_files=data_files)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True))
def test_seeds_are_written_as_they_are_read(seeds: list[int]) -> None:
    assert parse_seeds(seeds_text(seeds)) == tuple(seeds)


@pytest.mark.parametrize(
    ("out", "shown"),
    [("/home/somebody/results", "results"), ("results", "results"), ("../there/results", "results"), (".", ".")],
)
def test_the_command_names_no_folder_of_the_machine(out: str, shown: str) -> None:
    typed = command(["table3"], Options(), Path(out), [CORA])
    assert typed == f"ofl reproduce table3 --data DIR --out {shown}"


def test_the_command_has_what_was_asked_for_and_nothing_usual() -> None:
    options = Options(quick=True, seeds=(1, 2), only=("digits/*",))
    typed = shlex.split(command(["table3", "table1"], options, Path("a b"), [DIGITS]))
    assert typed == [
        "ofl", "reproduce", "table3", "table1", "--quick", "--out", "a b", "--seeds", "1-2", "--only", "digits/*"
    ]  # fmt: skip


def test_one_commit_is_stated_and_several_are_warned_of_by_name() -> None:
    one = [finished(seed=seed) for seed in (1, 2)]
    assert several_commits(one) == ""
    assert facts("ofl", Options(), one)["Commits"] == "abc"
    two = [finished("rfl-ha", commit="def+"), *one]
    assert several_commits(two) == (
        "The cells come from 2 commits: abc (2 cells), def+ (1 cell: cora/rfl-ha). A + stands for changed code."
    )
    assert facts("ofl", Options(), two)["Commits"] == "abc (2 cells), def+ (1 cell)"


def test_seeds_are_those_that_are_there() -> None:
    def seeds(there: Sequence[int]) -> str:
        return facts("ofl", Options(seeds=(1, 2, 3)), [finished(seed=seed) for seed in there])["Seeds"]

    assert seeds([3, 1, 2]) == "1, 2, 3"
    assert seeds([2, 1]) == "1, 2 (not there: 3)"
    assert seeds([]) == "none yet (not there: 1, 2, 3)"


def test_different_data_files_are_warned_of_but_not_those_that_nobody_recorded() -> None:
    cells = [finished(data_files="aa"), finished("cfl")]
    assert several_files(cells) == []
    assert facts("ofl", Options(), cells)["Data files"] == "Cora aa (1 cell), not recorded (1 cell)"
    (warning,) = several_files([*cells, finished("fedavg", data_files="bb")])
    assert "Cora" in warning
    assert "aa (1 cell)" in warning
    assert "bb (1 cell)" in warning


def test_an_experiment_that_was_not_asked_for_is_shown_if_a_cell_of_its_own_is_finished(tmp_path: Path) -> None:
    options = Options(seeds=(1,), only=("digits/ofl",), quick=True)
    store = CellStore(tmp_path)
    resources, gamma = EXPERIMENTS["fig-resources"], EXPERIMENTS["fig-gamma"]

    def shown() -> list[str]:
        Reproduction((gamma,), options, tmp_path).write()
        return sorted(path.stem for path in tmp_path.glob("fig-*.csv"))

    assert shown() == ["fig-gamma"]
    cell = options.chosen(resources.cells(options))[0]
    types = {"A": dict.fromkeys(("busy", "power_w", "bytes_up", "bytes_down", "steps"), 1.0)}
    store.put(Finished(cell=cell, result={"types": types, "plans": []}, wall_s=1.0, commit="abc"))
    assert shown() == ["fig-gamma", "fig-resources"]
    assert "ofl reproduce fig-gamma fig-resources --quick" in (tmp_path / "report.html").read_text()
