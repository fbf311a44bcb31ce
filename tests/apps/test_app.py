"""What a user writes is checked when it is written, and is found wherever it may live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofl_iot
from ofl_iot.apps.app import NumpyApp, TorchApp
from ofl_iot.apps.loading import load_app
from ofl_iot.errors import ConfigError

APP = """
from ofl_iot import NumpyApp
import {helper}
app = NumpyApp("from-file", "logistic", 4, 2, samples=lambda where: None)
other = 3
"""


def numpy_app(**changes: Any) -> NumpyApp:
    return NumpyApp(**({"name": "trial", "network": "logistic", "inputs": 4, "outputs": 2, "samples": print} | changes))


def torch_app(**changes: Any) -> TorchApp:
    return TorchApp(**({"name": "trial", "model": dict, "loss": print, "samples": print} | changes))


def test_every_public_name_is_there_and_importing_the_package_loads_nothing() -> None:
    for name in ofl_iot.__all__:
        assert getattr(ofl_iot, name) is not None
    code = "import ofl_iot, sys; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"numpy", "torch", "msgspec"} & set(done.stdout.split())
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ofl_iot.Nothing


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Has Spaces"}, "lower-case"),
        ({"network": "forest"}, "use one of dense, logistic, linear"),
        ({"inputs": 0}, "at least 1"),
        ({"outputs": 1}, "at least 2 classes"),
        ({"hidden": [8]}, "have none"),
        ({"network": "dense"}, "has hidden layers"),
        ({"samples": None}, "samples must be a function"),
        ({"judge": 3}, "judge must be a function"),
        ({"version": 2}, "version must be a text"),
        ({"metrics": {"accuracy": 0.5}}, "name of a function"),
    ],
)
def test_a_numpy_app_that_cannot_work_is_refused_where_it_is_written(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        numpy_app(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": 3}, "model must be a module"),
        ({"loss": "mse"}, "loss must be a function"),
        ({"personal": "head.*"}, r'such as \["head'),
        ({"optimiser": "lion"}, "use one of sgd, adam"),
    ],
)
def test_a_torch_app_that_cannot_work_is_refused_where_it_is_written(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        torch_app(**changes)


def test_an_app_is_loaded_from_a_file_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "helper_of_file.py").write_text("")
    (tmp_path / "mine.py").write_text(APP.format(helper="helper_of_file"))
    app = load_app(f"{tmp_path}/mine.py:app")
    assert app.name == "from-file"
    assert load_app(f"{tmp_path}/mine.py") is app
    with pytest.raises(ConfigError, match="it has app"):
        load_app(f"{tmp_path}/mine.py:missing")
    with pytest.raises(ConfigError, match="is a int"):
        load_app(f"{tmp_path}/mine.py:other")


def test_an_app_is_loaded_from_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_mine.py").write_text(APP.format(helper="sys"))
    monkeypatch.chdir(tmp_path)
    assert load_app("module_of_mine:app").name == "from-file"
    with pytest.raises(ConfigError, match="no module 'absent_module'"):
        load_app("absent_module:app")


def test_what_is_missing_inside_a_module_is_not_taken_for_the_module(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import surely_not_installed")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load_app(f"{tmp_path}/broken.py:app")


def test_names_that_lead_nowhere_say_what_may_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no app 'nowhere': give FILE.py:NAME"):
        load_app("nowhere")
    with pytest.raises(ConfigError, match="there is no file"):
        load_app(f"{tmp_path}/none.py:app")


def test_an_entry_point_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plant_apps.py").write_text(APP.format(helper="sys"))
    info = tmp_path / "plant_apps-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plant-apps\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ofl_iot.apps]\npump = plant_apps:app\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_app("pump").name == "from-file"


def test_metrics_have_a_direction_and_take_arrays() -> None:
    assert ofl_iot.accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])) == 0.5
    assert ofl_iot.accuracy(np.array([2.0, -1.0]), np.array([1, 0])) == 1.0
    assert ofl_iot.mse(np.array([[1.0], [3.0]]), np.array([1.0, 1.0])) == 2.0
    assert ofl_iot.mae(np.array([1.0, 3.0]), np.array([1.0, 1.0])) == 1.0
    assert ofl_iot.r2(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1.0
    assert ofl_iot.r2(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0.0
    assert ofl_iot.auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])) == 0.75
    assert ofl_iot.auc(np.array([0.5, 0.5]), np.array([0, 1])) == 0.5
    assert ofl_iot.auc(np.array([0.5, 0.6]), np.array([1, 1])) == 0.5
    assert (ofl_iot.accuracy.better, ofl_iot.mse.better) == ("higher", "lower")
    with pytest.raises(ConfigError, match="cannot be compared"):
        ofl_iot.mse(np.zeros((2, 3)), np.zeros(2))
