"""`ofl sim` as a user starts it: what it writes, what it says, its exit code."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import DEADLINE_S, OFL

PROMISED = {
    "accuracy",
    "rounds",
    "wall_s",
    "bytes_up_per_device",
    "bytes_down_per_device",
    "clusters",
    "lost_chunks",
    "doubled_chunks",
    "leader_changes",
    "reclusterings",
    "coordinator_restarts",
    "service_by_type",
}
FILES = {"summary.json", "settings.json", "metrics.csv", "service.csv", "reclusterings.csv", "fleet.svg"}

TINY = ["--runtime", "virtual", "--devices", "4", "--rounds", "1"]


def ofl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # our own program
        [OFL, *arguments], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.parametrize("runtime", ["live", "virtual"])
def test_it_runs_a_federation_and_writes_what_came_of_it(runtime: str, tmp_path: Path) -> None:
    small = ("--devices", "6", "--rounds", "3", "--set", "round.interval_s=1.2", "--set", "privacy.mode=off")
    done = ofl(tmp_path, "sim", "--runtime", runtime, *small, "--json", "summary.json")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
    assert summary.keys() >= PROMISED
    assert (summary["rounds"], summary["lost_chunks"], summary["doubled_chunks"]) == (3, 0, 0)
    assert summary["accuracy"] > 0.2
    assert min(summary["bytes_up_per_device"], summary["bytes_down_per_device"], summary["clusters"]) > 0
    (results,) = (tmp_path / "ofl-results").iterdir()
    assert {file.name for file in results.iterdir()} == FILES
    assert json.loads((results / "summary.json").read_text()) == summary
    assert json.loads((results / "settings.json").read_text())["simulation"]["devices"] == 6
    assert len((results / "metrics.csv").read_text().splitlines()) == 4
    assert f"results: ofl-results/{results.name}" in done.stdout
    assert done.stdout.count("device-0") >= 6


def test_it_runs_a_fleet_that_comes_and_goes(tmp_path: Path) -> None:
    clear = ("--set", "protection.mode=clear", "--set", "privacy.mode=off", "--set", "round.recluster_every=4")
    fleet = ("--runtime", "virtual", "--churn", "--devices", "10", "--rounds", "12")
    done = ofl(tmp_path, "sim", *fleet, *clear, "--json", "summary.json")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["rounds"], summary["lost_chunks"], summary["doubled_chunks"]) == (12, 0, 0)
    assert summary["coordinator_restarts"] == 1
    assert summary["reclusterings"] >= 2
    assert summary["leader_changes"] > 0
    assert summary["service_by_type"].keys() == set("ABCD")
    assert sum(summary["service_by_type"].values()) >= summary["clusters"] + summary["leader_changes"]
    assert "1 coordinator restarts" in done.stdout


def test_it_runs_encrypted_and_private_without_being_told(tmp_path: Path) -> None:
    done = ofl(tmp_path, "sim", "--devices", "6", "--rounds", "4", "--json", "summary.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text()).keys() >= PROMISED
    (results,) = (tmp_path / "ofl-results").iterdir()
    settings = json.loads((results / "settings.json").read_text())
    assert (settings["protection"]["mode"], settings["privacy"]["mode"]) == ("threshold", "rigorous")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--devices", "1"], 2, "a federation needs at least 2"),
        (["--app", "digits", "--devices", "3000", "--runtime", "virtual"], 2, "too few for 3000 devices"),
        (["--set", "round.deadlin_s=3"], 2, "did you mean 'round.deadline_s'"),
        ([*TINY, "--set", "training.learning_rate=1e-9"], 1, "no better than guessing"),
        (["--out", "/dev/null/x"], 2, "choose one with --out"),
        (["--churn"], 2, "add --runtime virtual"),
    ],
)
def test_what_it_cannot_do_it_says_with_an_exit_code(
    arguments: list[str], code: int, says: str, tmp_path: Path
) -> None:
    done = ofl(tmp_path, "sim", *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("ofl: ")
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_without_a_traceback_and_leaves_nothing_behind(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with subprocess.Popen(  # noqa: S603  # our own program
        [OFL, "--log-level", "info", "sim", "--devices", "4", "--rounds", "500"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(work)},
    ) as process:
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        assert process.stderr is not None
        # Until every device has its place, and so a store of its own; the end of the output comes before the deadline.
        assigned = (line for line in process.stderr if ": assigned party=device-" in line)
        assert len(list(itertools.islice(assigned, 4))) == 4
        assert len(list(work.glob("*/device-*.sqlite-wal"))) == 4
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        deadline.cancel()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not list(work.iterdir())
