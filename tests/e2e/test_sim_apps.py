"""`ofl sim --app` runs every built-in app and every example: a few devices, a few rounds, on small files."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ofl_agents.cli import main
from ofl_iot.apps.builtin import DATA_SETS, DEFAULT, PRIVATE
from ofl_iot.workloads import catalogue
from tests.examples.test_examples import EXAMPLES, example, hours
from tests.workloads.datafiles import know, write_idx_set, write_planetoid, write_svhn

EVERY_TIME = {"mnist", "cora", "svhn-wavelet", "pubmed-node"}
"""One app of each kind; the others differ in their files only and run with the slow tests."""
QUICK = ["--runtime=virtual", "--set=privacy.mode=off", "--set=protection.mode=clear", "--set=training.pause_s=0.3"]


def sim(app: str, data: Path | None, out: Path, *more: str) -> dict[str, Any]:
    """The summary of a short run; it must have learnt something, or the command fails."""
    where = [f"--data={data}"] if data else []
    told = out / "told.json"
    assert main(["sim", f"--app={app}", *where, *QUICK, *more, f"--json={told}", f"--out={out / 'results'}"]) == 0
    summary: dict[str, Any] = json.loads(told.read_text())
    assert summary["app"] == app
    assert summary["parameters"] > 0
    assert summary["lost_chunks"] == summary["doubled_chunks"] == 0
    return summary


def public_files(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Write small files where the published ones of a data set belong."""
    where = catalogue.DATA_SETS[name].path(folder, catalogue.DATA_SETS[name].files[0]).parent
    if name == "svhn":
        write_svhn(where, train=240, test=60)
    elif name.endswith("mnist"):
        write_idx_set(where)
    else:
        write_planetoid(where, name)
    know(monkeypatch, folder, name)


@pytest.mark.parametrize("app", [DEFAULT, "digits"])
def test_an_app_that_brings_its_data(app: str, tmp_path: Path) -> None:
    summary = sim(app, None, tmp_path, "--devices=4", "--rounds=4")
    assert summary["metrics"]["accuracy"] > 0.4


@pytest.mark.parametrize(
    "app",
    [
        pytest.param(name, marks=[] if name in EVERY_TIME else pytest.mark.slow)
        for name in (*DATA_SETS, *PRIVATE)
        if name != "digits"
    ],
)
def test_an_app_of_a_public_data_set(app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric")
    public_files(tmp_path, monkeypatch, app.removesuffix("-wavelet").removesuffix("-node"))
    summary = sim(app, tmp_path, tmp_path, "--devices=3", "--rounds=4")
    assert "accuracy" in summary["metrics"]


EXAMPLE_DATA: dict[str, Callable[[Any, Path], object]] = {
    "buildings": lambda module, folder: [
        (folder / f"building-{number:02}.csv").write_text(hours(number)) for number in range(1, 4)
    ],
    "wrist_motion": lambda module, folder: module.make(folder, people=3),
    "machine_vibration": lambda module, folder: module.record(folder, 0),
    "private_head": lambda module, folder: module.make(folder, devices=3),
    "sensor_graphs": lambda module, folder: module.make(folder, devices=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLE_DATA)
def test_an_app_of_the_examples(name: str, tmp_path: Path) -> None:
    """Each in a process of its own, as a user runs it; with torch that takes seconds."""
    if name == "wrist_motion" and importlib.util.find_spec("seglearn") is None:
        pytest.skip("seglearn ships the recordings")
    data = tmp_path / "data"
    data.mkdir()
    EXAMPLE_DATA[name](example(name), data)
    devices = len([path for path in data.iterdir() if path.stem != "holdout"])
    summary = sim(f"{EXAMPLES / name}.py:app", data, tmp_path, f"--devices={devices}", "--rounds=3")
    assert set(summary["metrics"]) > {"loss"}
