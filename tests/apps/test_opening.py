"""`--app` and `--data`: built-in apps and a user's own go through the same door."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ofl_iot.apps.builtin import BUILT_IN, Dealing, Part
from ofl_iot.apps.opening import AppChoice, OpenedApp
from ofl_iot.errors import ConfigError
from ofl_iot.workloads import machines
from ofl_iot.workloads.base import TrainJob

OWN = """
import numpy as np
from ofl_iot import Folder, NumpyApp, mse, r2

app = NumpyApp("own", "linear", 3, 1, samples=Folder(), judge={judge}, metrics={{"r2": r2, "mse": mse}})
"""


def opened(app: str = "machines", data: str = "") -> OpenedApp:
    return OpenedApp(AppChoice(app, data, dealing=Dealing(seed=3)))


def test_each_machine_is_its_own_and_the_same_in_every_process() -> None:
    first, again, other = machines.machine(4, 1), machines.machine(4, 1), machines.machine(5, 1)
    assert np.array_equal(first.features, again.features)
    assert not np.array_equal(first.features, other.features)
    assert first.features.shape == (machines.RECORDS, machines.LINES + 1)
    assert np.isfinite(first.features).all()
    assert machines.net().size >= 20_000


def test_the_states_of_machines_can_be_told_apart() -> None:
    devices = opened().fleet(8, repeats=True).devices
    judge = opened().judge()
    params, rng = judge.initial(0), np.random.default_rng(0)
    job = TrainJob(steps=10, batch_size=64, learning_rate=0.3)
    for _ in range(12):
        params = np.mean([device.train(params, job, rng).params for device in devices], axis=0, dtype=np.float32)
    assert judge.evaluate(params).accuracy > 0.7
    assert judge.label_histogram().min() > 200


def test_a_device_without_a_part_sits_on_a_machine_that_its_name_picks() -> None:
    app = opened()
    assert app.device("truck-1").train is not None
    one, same, other = (app.device(name).label_histogram() for name in ("truck-1", "truck-1", "truck-2"))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    part = app.device("truck-1", Part(2, 4)).label_histogram()
    assert np.array_equal(part, app.fleet(4, repeats=True).devices[1].label_histogram())


def test_the_digits_are_dealt() -> None:
    app = opened("digits")
    fleet = app.fleet(4, repeats=True)
    assert sum(device.sample_count for device in fleet.devices) > 1200
    assert app.device("truck-1", Part(3, 4)).sample_count == fleet.devices[2].sample_count
    assert {device.digest for device in fleet.devices} == {fleet.judge.digest} == {app.judge().digest}
    with pytest.raises(ConfigError, match="say which part truck-1 has"):
        app.device("truck-1")


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in {"machines", "digits"}])
def test_a_public_data_set_without_its_files_says_where_they_belong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    fetched = name.removesuffix("-wavelet").removesuffix("-node")
    with pytest.raises(ConfigError, match=f"ofl data fetch {fetched}"):
        opened(name, str(tmp_path)).judge()
    with pytest.raises(ConfigError, match="--data DIR"):
        opened(name).judge()


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", ""])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as K/N"):
        Part.parse(text)


def own(folder: Path, *, judge: str = "None") -> str:
    path = folder / "own_app.py"
    path.write_text(OWN.format(judge=judge))
    return f"{path}:app"


def write(path: Path, count: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)).astype(np.float32)
    np.savez(path, x=x, y=x @ np.array([1, -2, 0.5], np.float32) + 0.1)


def test_ones_own_app_is_dealt_to_a_fleet_and_judged_on_what_is_held_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "all.npz", 300)
    app = opened(own(tmp_path), str(data))
    try:
        fleet = app.fleet(3, repeats=True)
        assert "dealt to 3 devices" in fleet.dealt
        assert sum(device.sample_count for device in fleet.devices) == 300 - fleet.judge.sample_count
        params, rng = fleet.judge.initial(0), np.random.default_rng(0)
        for device in fleet.devices:
            device.look()
            params = device.train(params, TrainJob(steps=60, batch_size=20, learning_rate=0.05), rng).params
        measured = fleet.judge.evaluate(params).measured
        assert set(measured) == {"r2", "mse", "loss"}
        assert measured["r2"] > 0.9
    finally:
        app.close()


def test_each_device_of_a_simulation_has_its_own_file_where_there_are_as_many(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        write(data / f"{number}.npz", 20 * (number + 1), number)
    write(data / "holdout.npz", 50, 9)
    app = opened(own(tmp_path), str(data))
    try:
        fleet = app.fleet(3, repeats=True)
        assert [device.sample_count for device in fleet.devices] == [20, 40, 60]
        assert fleet.judge.sample_count == 50
    finally:
        app.close()


def test_a_coordinator_without_held_out_data_measures_nothing(tmp_path: Path) -> None:
    app = opened(own(tmp_path))
    try:
        judge = app.judge()
        assert judge.evaluate(judge.initial(0)).measured == {}
        assert (judge.size, judge.sample_count) == (4, 0)
    finally:
        app.close()


def test_a_device_waits_for_data_and_uses_what_comes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    app = opened(own(tmp_path, judge="Folder()"), str(data))
    try:
        device = app.device("truck-1")
        assert device.sample_count == 0
        with pytest.raises(ConfigError, match="no samples to train on yet"):
            device.train(device.initial(0), TrainJob(steps=1, batch_size=5, learning_rate=0.1), np.random.default_rng())
        write(data / "first.npz", 25)
        assert device.sample_count == 25
        with pytest.raises(ConfigError, match="--part deals out a built-in app"):
            app.device("truck-1", Part(1, 2))
        assert app.judge().sample_count == 25
    finally:
        app.close()
