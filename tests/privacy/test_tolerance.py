"""The learning rate of a plan follows from what an untrained model bears, and from no record."""

from __future__ import annotations

import numpy as np
import pytest

from ofl_iot.apps.app import NumpyApp, TorchApp
from ofl_iot.apps.data import Records
from ofl_iot.apps.numpy_model import NumpyModel
from ofl_iot.privacy.tolerance import DEEP, HEAD, LARGEST_RATE, Tolerance, curvature_of, deviation_borne
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.training import at_rate_of, for_head


def test_what_is_borne_is_where_outputs_have_changed_by_one() -> None:
    assert deviation_borne(lambda s: np.array([4 * s, -4 * s])) == pytest.approx(0.25, rel=0.06)


def test_outputs_that_overflow_are_not_borne() -> None:
    with np.errstate(all="ignore"):
        assert deviation_borne(lambda s: np.array([np.exp(np.float64(1e4) * s)])) < 1e-3


def test_the_curvature_is_that_of_the_longest_common_direction() -> None:
    assert curvature_of(np.array([[3.0, 0.0], [0.0, 1.0]])) == pytest.approx(4.5)


def test_the_rate_is_the_least_of_three_bounds() -> None:
    assert HEAD.rate(1e-9) == LARGEST_RATE
    assert HEAD.rate(0.5) == pytest.approx(2.0)
    assert Tolerance(deviation=1.0, curvature=40.0).rate(1e-9) == pytest.approx(0.1)


def test_a_rate_that_is_given_stays() -> None:
    job = TrainJob(steps=1, batch_size=10, learning_rate=0.7, clip_norm=1.0)
    assert at_rate_of(job, DEEP) is job
    assert for_head(job, 10.0) is job


def test_longer_inputs_are_clipped_later_and_move_parameters_less() -> None:
    job = TrainJob(steps=1, batch_size=10, learning_rate=9.0, clip_norm=0.5, noise_a_rate=0.05)
    head = for_head(job, 10.0)
    assert head.clip_norm == 5.0
    assert head.learning_rate == pytest.approx(HEAD.rate(0.05) / 100)


def test_a_hidden_layer_bears_less_than_a_head_on_short_inputs() -> None:
    deep = NumpyModel(NumpyApp("deep", "dense", 50, 5, samples=lambda _: None, hidden=[30]))
    assert deep._tolerance.rate(0.01) < HEAD.rate(0.01) / 3


def test_three_networks_get_the_rates_they_learn_with() -> None:
    torch = pytest.importorskip("torch")
    from ofl_iot.apps.torch_model import TorchModel

    nn = torch.nn
    networks = {
        "one hidden layer": (lambda: nn.Sequential(nn.Linear(60, 16), nn.ReLU(), nn.Linear(16, 4)), (60,)),
        "one dimension": (
            lambda: nn.Sequential(
                nn.Conv1d(3, 16, 7, 2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 47, 4)
            ),
            (3, 100),
        ),
        "two dimensions": (
            lambda: nn.Sequential(
                nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.Flatten(),
                nn.Linear(16 * 64, 64), nn.ReLU(), nn.Linear(64, 4),
            ),
            (1, 28, 28),
        ),
    }  # fmt: skip
    rates = {}
    for name, (make, shape) in networks.items():
        model = TorchModel(TorchApp("net", make, nn.functional.cross_entropy, samples=lambda _: None))
        vector = np.zeros(model.size, np.float32)
        model.bind(vector)
        before = vector.copy()
        records = Records((np.zeros((4, *shape), np.float32),), np.zeros(4, np.int64))
        tolerance = model._tolerance(records)
        assert np.array_equal(vector, before), "the model is as it was"
        assert tolerance is not DEEP
        rates[name] = tolerance.rate(0.02)
    assert 0.02 < min(rates.values()) <= max(rates.values()) < 10
    assert rates["two dimensions"] < rates["one hidden layer"]
