"""Clipping and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.dpsgd import DenseFactors, clipped_sum, clipped_sum_of_layers, noisy_mean, sample_batch

reals = st.floats(-(2.0**60), 2.0**60, width=32)
batches = st.tuples(st.integers(0, 6), st.integers(1, 5)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=reals)
)


def factors(batch: int, inputs: int, outputs: int, seed: int) -> DenseFactors:
    rng = np.random.default_rng(seed)
    return DenseFactors(
        rng.standard_normal((batch, inputs)).astype(np.float32),
        rng.standard_normal((batch, outputs)).astype(np.float32),
    )


@given(batches, st.floats(1e-3, 1e3))
def test_one_example_more_moves_the_sum_by_at_most_the_clipping_norm(gradients, clip_norm):
    whole = clipped_sum(gradients, clip_norm).astype(float)
    for row in range(len(gradients)):
        without = clipped_sum(np.delete(gradients, row, axis=0), clip_norm)
        assert np.linalg.norm(whole - without) <= clip_norm * (1 + 1e-4 * len(gradients))


@given(batches)
def test_small_gradients_are_only_summed(gradients):
    np.testing.assert_allclose(
        clipped_sum(gradients, 1e30), gradients.sum(axis=0, dtype=np.float64), rtol=1e-4, atol=1e13
    )


@given(st.integers(0, 5), st.integers(0, 2**32), st.floats(0.01, 100))
def test_factors_give_what_whole_gradients_give(batch, seed, clip_norm):
    layers = [factors(batch, 3, 4, seed), factors(batch, 4, 2, seed + 1)]
    whole = np.concatenate(
        [
            part
            for layer in layers
            for part in (
                np.einsum("bi,bo->bio", layer.inputs, layer.errors).reshape(
                    batch, layer.inputs.shape[1] * layer.errors.shape[1]
                ),
                layer.errors,
            )
        ],
        axis=1,
    )
    flat = clipped_sum_of_layers(layers, clip_norm)
    assert flat.dtype == np.float32
    np.testing.assert_allclose(flat, clipped_sum(whole, clip_norm), rtol=1e-4, atol=1e-5)


def test_the_noise_has_the_deviation_sigma_times_clip_over_batch():
    mean = noisy_mean(np.full(100_000, 50.0, np.float32), 2.0, 3.0, 10.0, np.random.default_rng(1))
    assert mean.mean() == pytest.approx(5.0, abs=0.01)
    assert mean.std() == pytest.approx(0.6, rel=0.02)


def test_zero_gradients_and_empty_batches_give_noise_alone():
    assert not clipped_sum(np.zeros((3, 4), np.float32), 1.0).any()
    assert clipped_sum(np.zeros((0, 4), np.float32), 1.0).tolist() == [0, 0, 0, 0]
    assert not len(clipped_sum_of_layers([], 1.0))
    assert noisy_mean(np.zeros(4, np.float32), 1.0, 1.0, 8.0, np.random.default_rng(0)).all()


def test_a_poisson_sample_has_its_rate_and_may_be_empty():
    rng = np.random.default_rng(2)
    assert len(sample_batch(100_000, 0.02, rng)) == pytest.approx(2000, abs=200)
    assert len(sample_batch(0, 0.5, rng)) == 0
    assert len(sample_batch(10, 1.0, rng)) == 10


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: clipped_sum(np.array([[np.nan]], np.float32), 1.0),
        lambda: clipped_sum(np.array([[np.inf]], np.float32), 1.0),
        lambda: clipped_sum(np.ones((1, 1), np.float32), 0.0),
        lambda: clipped_sum(np.ones((1, 1), np.float32), float("inf")),
        lambda: noisy_mean(np.ones(1, np.float32), 1.0, -1.0, 1.0, np.random.default_rng(0)),
        lambda: noisy_mean(np.ones(1, np.float32), 1.0, 1.0, 0.0, np.random.default_rng(0)),
        lambda: noisy_mean(np.ones(1, np.float32), float("nan"), 1.0, 1.0, np.random.default_rng(0)),
        lambda: sample_batch(10, 0.0, np.random.default_rng(0)),
    ],
)
def test_what_would_break_the_guarantee_is_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()
