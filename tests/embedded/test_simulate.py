"""`ofl_iot.simulate`: a federation in one call, whose model comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofl_iot
from ofl_iot.errors import ConfigError
from ofl_iot.models.files import read_tensors

QUICK = {"privacy.mode": "off", "protection.mode": "clear", "round.interval_s": 1}


def records(where: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Three separable clouds."""
    del where
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=480)
    return (rng.normal(size=(480, 6)) + 3 * np.eye(3, 6)[y]).astype(np.float32), y


APP = ofl_iot.NumpyApp(
    name="clouds",
    network="dense",
    inputs=6,
    outputs=3,
    hidden=[8],
    samples=records,
    metrics={"accuracy": ofl_iot.accuracy},
)


@pytest.fixture(name="run", scope="module")
def a_run() -> Any:
    return ofl_iot.simulate(APP, devices=4, rounds=5, settings=QUICK)


def test_a_run_has_a_history_metrics_and_a_model(run: Any, tmp_path: Path) -> None:
    assert [each.round_no for each in run.history][-1] >= 5
    assert run.metrics["accuracy"] > 0.6
    assert run.metrics == run.history[-1].metrics
    assert list(run.model.tensors) == ["layer1", "layer2"]
    assert run.model.vector.size == run.summary.parameters
    run.model.save(tmp_path / "net.safetensors")
    held = read_tensors(tmp_path / "net.safetensors")
    assert np.array_equal(held.tensors["layer1"], run.model.tensors["layer1"])
    assert held.about["app"] == "clouds"


def test_a_run_can_be_drawn(run: Any) -> None:
    figure = run.plot()
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [each.metrics["accuracy"] for each in run.history]
    assert run.plot("loss").axes[0].get_ylabel() == "loss"
    with pytest.raises(ConfigError, match="there is no metric 'f1': accuracy, loss"):
        run.plot("f1")


def test_the_same_seed_gives_the_same_model() -> None:
    first, second = (ofl_iot.simulate(APP, devices=3, rounds=2, seed=4, settings=QUICK) for _ in range(2))
    assert np.array_equal(first.model.vector, second.model.vector)


def test_a_model_without_a_torch_network_says_so(run: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no torch network"):
        run.model.network()
    with pytest.raises(ConfigError, match="is no torch network"):
        run.model.save(tmp_path / "net.onnx")


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="privcy"):
        ofl_iot.simulate(APP, devices=3, rounds=1, settings={"privcy.mode": "off"})
