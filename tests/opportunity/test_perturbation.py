"""Density centroids and Laplace noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.perturbation import density_clusters, laplace, perturb

vectors = hnp.arrays(np.float32, st.integers(0, 80), elements=st.floats(-(2.0**127), 2.0**127, width=32))


def two_hills(size: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(8)
    return np.concatenate([rng.normal(-1, 0.1, size), rng.normal(2, 0.2, size)]).astype(np.float32)


@given(vectors, st.floats(1e-3, 1e6), st.integers(1, 5))
def test_what_comes_out_is_finite_and_as_long_as_what_went_in(values, eps2, max_clusters):
    noisy = perturb(values, eps2, np.random.default_rng(0), max_clusters=max_clusters)
    assert noisy.dtype == np.float32
    assert noisy.shape == values.shape
    assert np.isfinite(noisy).all()


@given(vectors.filter(len), st.integers(1, 5))
def test_no_value_is_farther_from_its_centroid_than_half_the_sensitivity(values, max_clusters):
    clusters = density_clusters(values, max_clusters)
    labels = clusters.labels(values)
    assert len(clusters.centroids) == len(clusters.cuts) + 1 <= max_clusters
    distance = np.abs(values.astype(float) - clusters.centroids[labels])
    assert (2 * distance <= clusters.sensitivities[labels] * (1 + 1e-5) + 1e-30).all()


def test_two_hills_are_two_clusters_with_their_centres():
    clusters = density_clusters(two_hills())
    assert len(clusters.cuts) == 1
    assert -0.5 < clusters.cuts[0] < 1.5
    np.testing.assert_allclose(clusters.centroids, [-1, 2], atol=0.02)


def test_the_noise_of_each_cluster_has_the_scale_k_delta_over_eps2():
    values, eps2 = two_hills(), 5.0
    clusters = density_clusters(values)
    noise = perturb(values, eps2, np.random.default_rng(9)).astype(float) - values
    for label, sensitivity in enumerate(clusters.sensitivities):
        part = noise[clusters.labels(values) == label]
        assert np.abs(part).mean() == pytest.approx(2 * sensitivity / eps2, rel=0.03)


def test_laplace_draws_have_the_moments_of_lap_1():
    draws = laplace(200_001, np.random.default_rng(10)).astype(float)
    assert draws.mean() == pytest.approx(0, abs=0.02)
    assert np.abs(draws).mean() == pytest.approx(1, abs=0.01)
    assert draws.var() == pytest.approx(2, abs=0.05)
    assert np.mean(draws > 0) == pytest.approx(0.5, abs=0.01)


def test_values_that_are_all_alike_leave_as_they_are():
    np.testing.assert_array_equal(perturb(np.full(50, 0.5, np.float32), 1.0, np.random.default_rng(0)), 0.5)


def test_the_value_is_not_touched_in_place():
    values = two_hills()
    copy = values.copy()
    perturb(values, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(values, copy)


def test_an_infinite_budget_adds_nothing():
    values = two_hills()
    np.testing.assert_array_equal(perturb(values, float("inf"), np.random.default_rng(0)), values)


def test_wrong_settings_are_refused():
    ones = np.ones(3, np.float32)
    for wrong in (
        lambda: perturb(ones, 0.0, np.random.default_rng(0)),
        lambda: perturb(ones, float("nan"), np.random.default_rng(0)),
        lambda: density_clusters(ones, 0),
    ):
        with pytest.raises(ConfigError):
            wrong()
