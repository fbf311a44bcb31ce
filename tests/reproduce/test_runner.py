"""A run of cells in real worker processes: kept, killed, gone on with, failed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_research.reproduction.cells import Cell, CellStore, Finished
from ofl_research.reproduction.pace import Pace
from ofl_research.reproduction.runner import Board, Failure, Runner, Running
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.settings import Dealing, plan_for
from ofl_research.reproduction.trials import trial

ROOT = Path(__file__).parents[2]
WORK = """
import os, pathlib, sys, threading
from ofl_iot.errors import ConfigError

def run(cell, data, tell):
    place = pathlib.Path(cell.settings["place"])
    with (place / "log").open("a") as log:
        log.write(f"{cell.seed}\\n")
    tell(0.5, "half")
    print("what a library prints is no news")
    if cell.settings.get("error") == "explained":
        raise ConfigError("the data set is not there: fetch it")
    if cell.settings.get("error") == "unexpected":
        raise ZeroDivisionError("a bug")
    if cell.settings.get("error") == "killed":
        os.kill(os.getpid(), 9)
    if cell.settings.get("blocks") and (place / "blocked").exists():
        (place / "pid").write_text(str(os.getpid()))
        sys.stderr.write("waiting\\n")
        threading.Event().wait()
    return {"accuracy": cell.seed / 10, "threads": os.environ["OMP_NUM_THREADS"], "data": str(data)}
"""
RUN = """
import sys
from pathlib import Path
import msgspec
from ofl_research.reproduction.cells import Cell, CellStore
from ofl_research.reproduction.runner import Runner

class Lines:
    def moved(self, board):
        for each in board.running.values():
            if each.share:
                print("under way", each.cell.seed, flush=True)
    def finished(self, board, finished):
        print("finished", finished.cell.seed, flush=True)
    def failed(self, board, failure):
        print("failed", failure.reason, flush=True)

out = Path(sys.argv[1])
Runner(CellStore(out), out, None, 1, Lines()).run(msgspec.json.decode(sys.argv[2], type=list[Cell]))
"""


class Quiet:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def moved(self, board: Board) -> None:
        pass

    def finished(self, board: Board, finished: Finished) -> None:
        self.told.append(f"finished {finished.cell.seed}")

    def failed(self, board: Board, failure: Failure) -> None:
        self.told.append(f"failed {failure.cell.seed}")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the workers' module in it."""
    (tmp_path / "work_of_the_test.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path


def cell(place: Path, seed: int, **settings: object) -> Cell:
    return Cell(work="work_of_the_test", dataset="d", system="s", seed=seed, settings={"place": str(place), **settings})


def computed(place: Path) -> list[int]:
    return [int(line) for line in (place / "log").read_text().split()]


def run(place: Path, cells: list[Cell], jobs: int = 2) -> Board:
    out = place / "out"
    return Runner(CellStore(out), out, Path("data-folder"), jobs, Quiet()).run(cells)


def test_every_cell_is_computed_once_on_one_thread_and_kept(place: Path) -> None:
    cells = [cell(place, 1), cell(place, 2), cell(place, 1)]
    board = run(place, cells)
    assert sorted(computed(place)) == [1, 2]
    assert (board.total, board.kept, len(board.done), board.failures) == (2, 0, 2, [])
    result = CellStore(place / "out").get(cells[0])
    assert result is not None
    assert result.result == {"accuracy": 0.1, "threads": "1", "data": "data-folder"}
    assert result.commit
    assert result.versions["numpy"]
    again = run(place, [*cells, cell(place, 3)])
    assert (again.kept, [each.cell.seed for each in again.done]) == (2, [3])
    assert sorted(computed(place)) == [1, 2, 3]


def test_cells_of_other_data_files_are_not_mixed(place: Path) -> None:
    def folder(name: str, content: bytes) -> Path:
        for file in DATA_SETS["svhn"].files:
            path = DATA_SETS["svhn"].path(place / name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return place / name

    out = place / "out"
    cells = [msgspec.structs.replace(cell(place, seed), dataset="svhn") for seed in (1, 2)]
    first, other = folder("first", b"a"), folder("other", b"b")
    assert len(Runner(CellStore(out), out, first, 1, Quiet()).run(cells[:1]).done) == 1
    with pytest.raises(ConfigError, match="other data files"):
        Runner(CellStore(out), out, other, 1, Quiet()).run(cells)
    assert computed(place) == [1]
    assert Runner(CellStore(out), out, first, 1, Quiet()).run(cells).kept == 1


def test_a_run_killed_in_the_middle_goes_on_with_what_is_missing(place: Path) -> None:
    (place / "blocked").touch()
    cells = [cell(place, 1), cell(place, 2), cell(place, 3, blocks=True), cell(place, 4)]
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    text = msgspec.json.encode(cells).decode()
    process = subprocess.Popen(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", RUN, str(place / "out"), text],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    with process:
        assert process.stdout
        for line in process.stdout:
            if line.split() == ["under", "way", "3"] and (place / "pid").exists():
                break
        worker = psutil.Process(int((place / "pid").read_text()))
        process.kill()
    worker.wait(timeout=20)  # it ends by itself: nobody waits for it any more
    assert computed(place) == [1, 2, 3]
    assert not list((place / "out" / "cells").glob(".unfinished*"))
    (place / "blocked").unlink()
    board = run(place, cells, jobs=1)
    assert (board.kept, [each.cell.seed for each in board.done]) == (2, [3, 4])
    assert computed(place) == [1, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("explained", "the data set is not there: fetch it"),
        ("unexpected", "ZeroDivisionError: a bug"),
        ("killed", "ended by SIGKILL"),
    ],
)
def test_a_cell_that_fails_is_reported_with_its_reason_and_the_rest_goes_on(
    place: Path, error: str, reason: str
) -> None:
    cells = [cell(place, 1, error=error), cell(place, 2)]
    board = run(place, cells, jobs=1)
    assert [each.cell.seed for each in board.failures] == [1]
    assert reason in board.failures[0].reason
    assert [each.cell.seed for each in board.done] == [2]
    assert board.settled == board.total == 2
    assert CellStore(place / "out").get(cells[0]) is None


def test_what_was_explained_is_told_without_a_trace(place: Path) -> None:
    board = run(place, [cell(place, 1, error="explained")])
    assert board.failures[0].reason == "the data set is not there: fetch it"


def test_the_time_left_is_guessed_from_cells_that_are_alike(place: Path) -> None:
    slow = Cell(work="w", dataset="svhn", system="ofl", seed=1)
    fast = Cell(work="w", dataset="cora", system="ofl", seed=1)
    kept = {
        each.digest: Finished(cell=each, result={}, wall_s=seconds, commit="c")
        for each, seconds in ((slow, 100.0), (fast, 10.0))
    }
    board = Board(total=4, kept=2)
    waiting = [
        Cell(work="w", dataset="svhn", system="ofl", seed=2),
        Cell(work="w", dataset="cora", system="cfl", seed=2),
    ]
    assert Pace(kept).left(waiting, board, jobs=1) == pytest.approx(110)
    assert Pace(kept).left(waiting, board, jobs=2) == pytest.approx(55)
    assert Pace({}).left(waiting, board, jobs=1) is None
    board.running["x"] = Running(slow, began=-1e9, share=1.0)
    assert Pace(kept).left([], board, jobs=1) == pytest.approx(0)


def test_the_time_left_grows_with_devices_and_rounds() -> None:
    def seconds(devices: int, **plan: object) -> float | None:
        options = Options(seeds=(1,))
        known = trial(options, "mnist", "ofl", 1)
        larger = trial(options, "mnist", "ofl", 1, dealing=Dealing(devices=devices), **plan)
        kept = {known.digest: Finished(cell=known, result={}, wall_s=100.0, commit="c")}
        return Pace(kept).left([larger], Board(total=2, kept=1), jobs=1)

    rounds = plan_for("mnist", "ofl").rounds
    assert seconds(16) == pytest.approx(100)
    assert seconds(1000) == pytest.approx(6250)
    assert seconds(32, rounds=3 * rounds) == pytest.approx(600)


def test_a_cell_under_way_tells_of_those_of_its_kind_alone() -> None:
    cells = [Cell(work="w", dataset="d", system="s", seed=1, settings={"devices": n}) for n in (1, 10)]
    other = Cell(work="another", dataset="d", system="s", seed=1, settings={"devices": 7})
    board = Board(total=3, kept=0, running={"x": Running(cells[0], began=time.monotonic() - 50, share=0.5)})
    left = Pace({}).left([cells[1], other], board, jobs=1)
    assert left == pytest.approx(50 + 1000 + 100, abs=20)
