"""`ofl new`: every project it writes passes its own test and runs in `ofl sim`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_agents.new.project import KINDS, write_project
from ofl_iot.errors import ConfigError
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings

QUICK = ["--set=privacy.mode=off", "--set=protection.mode=clear", "--set=training.pause_s=1", "--runtime=virtual"]


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _each() -> list[object]:
    """Every kind of project; torch takes seconds to load, so one with it is enough for every day."""
    slow = {("regress", "torch"), ("anomaly", "torch")}
    return [pytest.param(*kind, marks=[pytest.mark.slow] if kind in slow else []) for kind in KINDS]


@pytest.mark.parametrize(("task", "library"), _each())
def test_a_project_passes_its_own_test_and_learns_in_a_simulation(task: str, library: str, tmp_path: Path) -> None:
    folder = tmp_path / "pump-monitor"
    assert main(["new", str(folder), "--task", task, f"--{library}"]) == 0
    run(folder, "-m", "pytest", "-q", "--rootdir", str(folder), "-c", os.devnull)
    run(folder, "make_data.py", "data")
    summary = folder / "summary.json"
    sim = [
        "--app=app.py:app",
        "--data=data",
        "--devices=8",
        "--rounds=2",
        f"--json={summary}",
        f"--out={folder / 'out'}",
    ]
    run(folder, "-m", "ofl_agents", "sim", *sim, *QUICK)
    assert KINDS[task, library].metric in json.loads(summary.read_text())["metrics"]  # type: ignore[index]


def test_settings_of_a_project_are_those_of_production(tmp_path: Path) -> None:
    write_project(tmp_path / "pump-monitor", "classify", "numpy")
    settings = load_settings(Settings, [tmp_path / "pump-monitor" / "ofl.toml"], {}, {}).settings
    assert (settings.federation.id, settings.federation.app) == ("pump-monitor", "app.py:app")
    assert (settings.privacy.mode, settings.protection.mode) == ("rigorous", "threshold")


def test_no_folder_is_written_over_and_names_are_ids(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "app.py").write_text("precious")
    with pytest.raises(ConfigError, match="not empty"):
        write_project(tmp_path / "mine", "classify", "torch")
    assert (tmp_path / "mine" / "app.py").read_text() == "precious"
    with pytest.raises(ConfigError, match="lower-case"):
        write_project(tmp_path / "My Project", "classify", "torch")
