"""The gradients are right, clipping bounds every sample, and bad input is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.dense import DenseNet, Samples, _sum_gradients

NETS = st.sampled_from([(5, 3), (5, 4, 3), (5, 6, 4, 3)]).map(DenseNet)
SEEDS = st.integers(0, 10_000)


def samples(count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    return Samples.of(rng.normal(size=(count, 5)).astype(np.float32), rng.integers(0, 3, count))


def gradient_of(net: DenseNet, params: np.ndarray, data: Samples, clip_norm: float | None = None) -> np.ndarray:
    gradient = np.empty_like(params)
    _sum_gradients(net.layers(params), net.layers(gradient), data.features, data.labels, clip_norm)
    return gradient


def one_by_one(data: Samples) -> list[Samples]:
    return [Samples(data.features[i : i + 1], data.labels[i : i + 1]) for i in range(len(data.labels))]


@settings(max_examples=25, deadline=None)
@given(net=NETS, seed=SEEDS)
def test_a_step_along_the_gradient_changes_the_loss_as_it_says(net: DenseNet, seed: int) -> None:
    data, params = samples(7, seed), net.initial(seed)
    gradient = gradient_of(net, params, data) / 7
    step = np.float32(1e-3 / max(1e-3, float(np.linalg.norm(gradient)))) * gradient
    up, down = (net.evaluate(params + sign * step, data.features, data.labels).loss for sign in (1, -1))
    assert up - down == pytest.approx(2 * float(step @ gradient), rel=0.1, abs=2e-5)


@settings(max_examples=50, deadline=None)
@given(net=NETS, seed=SEEDS, clip_norm=st.floats(0.01, 10))
def test_the_clipped_sum_is_the_sum_of_clipped_gradients(net: DenseNet, seed: int, clip_norm: float) -> None:
    data, params = samples(6, seed), net.initial(seed)
    wanted = np.zeros_like(params)
    for sample in one_by_one(data):
        own = gradient_of(net, params, sample)
        wanted += own * min(1.0, clip_norm / float(np.linalg.norm(own)))
        assert np.linalg.norm(gradient_of(net, params, sample, clip_norm)) <= clip_norm * (1 + 1e-5)
    assert np.allclose(gradient_of(net, params, data, clip_norm), wanted, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(net=NETS, seed=SEEDS, private=st.booleans())
def test_training_repeats_for_a_seed_and_leaves_its_input_alone(net: DenseNet, seed: int, private: bool) -> None:
    data, rows = samples(20, seed), np.arange(3, 18)
    job = TrainJob(
        steps=4,
        batch_size=6,
        learning_rate=0.1,
        momentum=0.5,
        clip_norm=1.0 if private else None,
        noise_multiplier=1.0 if private else 0.0,
    )
    start = net.initial(seed)
    before = start.copy()
    one, other = (net.train(start, data, rows, job, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(start, before)
    assert np.array_equal(one.params, other.params)
    assert not np.array_equal(one.params, start)
    assert one.sampling_rate == 6 / 15


def test_only_the_named_rows_are_trained_on() -> None:
    net, rows = DenseNet((5, 4, 3)), np.arange(10)
    data = samples(20, 1)
    changed = Samples(np.vstack([data.features[:10], -data.features[10:]]), data.labels)
    job = TrainJob(steps=5, batch_size=4, learning_rate=0.1)
    one, other = (net.train(net.initial(0), d, rows, job, np.random.default_rng(2)) for d in (data, changed))
    assert np.array_equal(one.params, other.params)


def test_momentum_is_the_running_sum_of_gradients() -> None:
    net, data = DenseNet((5, 3)), samples(8, 4)
    job = TrainJob(steps=3, batch_size=8, learning_rate=0.2, momentum=0.9)
    params, velocity = net.initial(1), np.zeros(net.size, dtype=np.float32)
    for _ in range(3):
        velocity = np.float32(0.9) * velocity + gradient_of(net, params, data) / 8
        params = params - np.float32(0.2) * velocity
    trained = net.train(net.initial(1), data, np.arange(8), job, np.random.default_rng(0))
    assert np.allclose(trained.params, params, atol=1e-5)


def test_noise_has_the_promised_scale_whatever_the_draw() -> None:
    net, data = DenseNet((5, 40, 3)), samples(50, 4)
    job = TrainJob(steps=1, batch_size=10, learning_rate=1.0, clip_norm=1e-6, noise_multiplier=2e6)
    steps = [
        net.train(net.initial(0), data, np.arange(50), job, np.random.default_rng(seed)).params - net.initial(0)
        for seed in range(20)
    ]
    assert np.std(steps) == pytest.approx(2.0 / 10, rel=0.03)


def test_a_private_step_is_divided_by_the_batch_size_asked_for_even_where_records_are_fewer() -> None:
    net, data = DenseNet((5, 3)), samples(1, 4)
    job = TrainJob(steps=1, batch_size=8, learning_rate=1.0, clip_norm=1e-3)
    step = net.train(net.initial(0), data, np.arange(1), job, np.random.default_rng(0)).params - net.initial(0)
    assert np.linalg.norm(step) == pytest.approx(1e-3 / 8, rel=1e-2)


def test_a_poisson_batch_may_be_empty_and_the_step_is_then_only_noise() -> None:
    net, data = DenseNet((5, 3)), samples(2, 4)
    job = TrainJob(steps=1, batch_size=1, learning_rate=0.1, clip_norm=1.0)
    results = [net.train(net.initial(0), data, np.arange(2), job, np.random.default_rng(seed)) for seed in range(20)]
    empty = [result for result in results if np.array_equal(result.params, net.initial(0))]
    assert 0 < len(empty) < 20
    assert all(result.loss == 0.0 for result in empty)


def test_the_digest_tells_architectures_apart() -> None:
    nets = [DenseNet(widths) for widths in [(5, 3), (5, 4, 3), (5, 5, 3), (5, 4, 4, 3)]]
    assert len({net.digest for net in nets}) == len(nets)
    assert all(len(net.digest) == 8 for net in nets)
    assert DenseNet((5, 4, 3)).digest == DenseNet((5, 4, 3)).digest


def test_layers_are_views_that_cover_the_vector() -> None:
    net = DenseNet((5, 4, 3))
    vector = np.arange(net.size, dtype=np.float32)
    assert net.size == 6 * 4 + 5 * 3
    assert list(itertools.chain(*(layer.ravel() for layer in net.layers(vector)))) == vector.tolist()


def test_samples_cannot_be_changed() -> None:
    data = samples(3, 0)
    for array in (data.features, data.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (np.zeros(7, dtype=np.float32), "same model"),
        (np.zeros(18, dtype=np.float64), "float64"),
        (np.full(18, np.nan, dtype=np.float32), "not all finite"),
    ],
)
def test_parameters_of_another_model_are_refused(params: np.ndarray, words: str) -> None:
    net, data = DenseNet((5, 3)), samples(4, 0)
    job = TrainJob(steps=1, batch_size=4, learning_rate=0.1)
    with pytest.raises(ConfigError, match=words):
        net.evaluate(params, data.features, data.labels)
    with pytest.raises(ConfigError, match=words):
        net.train(params, data, np.arange(4), job, np.random.default_rng(0))


def test_training_that_diverges_is_an_error_not_a_result() -> None:
    net, data = DenseNet((5, 8, 8, 3)), samples(40, 0)
    job = TrainJob(steps=60, batch_size=8, learning_rate=1e30, momentum=0.9)
    with pytest.raises(ConfigError, match=r"diverged \(learning rate 1e\+30.*lower"):
        net.train(net.initial(0), data, np.arange(40), job, np.random.default_rng(0))


def test_a_party_without_samples_is_told_so() -> None:
    net, data, none = DenseNet((5, 3)), samples(4, 0), np.arange(0)
    with pytest.raises(ConfigError, match="no samples to train on"):
        net.train(
            net.initial(0),
            data,
            none,
            TrainJob(steps=1, batch_size=1, learning_rate=1),
            np.random.default_rng(0),
        )
    with pytest.raises(ConfigError, match="no samples to evaluate on"):
        net.evaluate(net.initial(0), data.features[none], data.labels[none])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"learning_rate": float("nan")}, "learning_rate must be"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be 0 or positive"),
        ({"noise_multiplier": 1.0}, "noise_multiplier needs clip_norm"),
    ],
)
def test_an_impossible_train_job_says_what_to_change(change: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainJob(**{"steps": 1, "batch_size": 1, "learning_rate": 0.1, **change})  # type: ignore[arg-type]
