from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.clustering import (
    NEWCOMER,
    ClusteringSettings,
    capacity,
    cluster,
    cluster_count,
    place,
)
from ofl_iot.fleet.report import FloatArray, IntArray


def blobs(per_blob: int, seed: int = 0, spread: float = 0.1) -> tuple[FloatArray, IntArray]:
    """Four clouds of points around the corners of a square, and which cloud each belongs to."""
    rng = np.random.default_rng(seed)
    corners = np.array([[0.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 4.0]])
    truth = np.repeat(np.arange(4), per_blob)
    return corners[truth] + rng.normal(0, spread, (4 * per_blob, 2)), truth


@given(
    n=st.integers(1, 60),
    clusters=st.none() | st.integers(1, 12),
    min_size=st.integers(1, 4),
    balance=st.none() | st.floats(1, 3),
    max_size=st.none() | st.integers(8, 20),
    known=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_sizes_stay_within_their_bounds(
    *,
    n: int,
    clusters: int | None,
    min_size: int,
    balance: float | None,
    max_size: int | None,
    known: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct places, so that ties and points on top of each other are common.
    points = rng.integers(0, 3, (n, 3)).astype(np.float64)
    bounds = ClusteringSettings(clusters=clusters, min_size=min_size, balance=balance, max_size=max_size)
    k = cluster_count(n, bounds)
    previous = rng.integers(NEWCOMER, 15, n) if known else None
    result = cluster(points, k, bounds, rng, previous)
    sizes = np.bincount(result.labels, minlength=k)
    assert len(sizes) == len(result.centres) == k
    assert sizes.sum() == n
    assert sizes.min() >= min(min_size, n)
    assert sizes.max() <= capacity(n, k, bounds)
    assert 0 <= result.churn <= 1


@given(n=st.integers(1, 10**6), previous=st.none() | st.integers(1, 25))
def test_the_number_of_clusters_is_near_log2(n: int, previous: int | None) -> None:
    k = cluster_count(n, ClusteringSettings(), previous)
    assert 1 <= k <= max(1, n // 2)
    if n >= 8:
        assert abs(k - math.log2(n)) <= 0.75


def test_a_fleet_at_the_edge_keeps_its_number_of_clusters() -> None:
    assert cluster_count(11, ClusteringSettings()) == 3
    assert cluster_count(12, ClusteringSettings()) == 4
    assert [cluster_count(n, ClusteringSettings(), 4) for n in (11, 12, 13)] == [4, 4, 4]
    assert cluster_count(100, ClusteringSettings(max_size=10)) == 10


def test_clear_clouds_are_found() -> None:
    points, truth = blobs(25)
    labels = cluster(points, 4, ClusteringSettings(), np.random.default_rng(1)).labels
    assert len(set(zip(labels.tolist(), truth.tolist(), strict=True))) == 4


def test_the_same_seed_gives_the_same_clusters() -> None:
    points = np.random.default_rng(7).normal(size=(200, 5))
    first, second = (cluster(points, 8, ClusteringSettings(), np.random.default_rng(2)) for _ in range(2))
    assert np.array_equal(first.labels, second.labels)


def test_small_drift_moves_nobody_and_a_real_move_moves_one() -> None:
    points, _ = blobs(25)
    rng = np.random.default_rng(3)
    first = cluster(points, 4, ClusteringSettings(), rng)
    drifted = points + rng.normal(0, 0.1, points.shape)
    second = cluster(drifted, 4, ClusteringSettings(), rng, first.labels)
    assert second.churn == 0
    drifted[0] = [4.0, 4.0]
    third = cluster(drifted, 4, ClusteringSettings(), rng, second.labels)
    assert third.churn == pytest.approx(0.01)
    assert np.array_equal(third.labels[1:], first.labels[1:])


def test_hysteresis_lessens_churn_in_a_shapeless_fleet() -> None:
    def churn(hysteresis: float) -> float:
        rng, settings = np.random.default_rng(4), ClusteringSettings(hysteresis=hysteresis)
        points = rng.normal(size=(2000, 4))
        labels, total = None, 0.0
        for _ in range(5):
            result = cluster(points + rng.normal(0, 0.1, points.shape), 11, settings, rng, labels)
            labels, total = result.labels, total + result.churn
        return total

    assert churn(0.3) < 0.7 * churn(0.0)


def test_a_cluster_that_is_added_or_dissolved_leaves_the_others_alone() -> None:
    points, truth = blobs(20)
    settings, rng = ClusteringSettings(balance=None), np.random.default_rng(5)
    merged = np.where(truth == 3, 2, truth)
    grown = cluster(points, 4, settings, rng, merged)
    assert grown.churn == pytest.approx(0.25)
    assert np.array_equal(grown.labels[truth < 2], truth[truth < 2])
    shrunk = cluster(points[:61], 3, settings, rng, truth[:61])
    assert shrunk.churn == pytest.approx(1 / 61)


def test_equal_sizes_on_request() -> None:
    points = np.random.default_rng(6).lognormal(size=(103, 3))
    labels = cluster(points, 7, ClusteringSettings(balance=1.0), np.random.default_rng(0)).labels
    assert set(np.bincount(labels)) <= {13, 14, 15}


def test_newcomers_do_not_count_as_churn() -> None:
    points, truth = blobs(10)
    previous = np.where(np.arange(40) % 2 == 0, truth, NEWCOMER)
    assert cluster(points, 4, ClusteringSettings(), np.random.default_rng(0), previous).churn == 0


def test_a_joiner_goes_to_the_nearest_cluster_with_room() -> None:
    centres = np.array([[0.0], [1.0], [5.0]])
    sizes = np.array([4, 2, 2])
    assert place(np.array([[0.2]]), centres, sizes, 5).tolist() == [0]
    assert place(np.array([[0.2]]), centres, sizes, 4).tolist() == [1]
    assert place(np.array([[0.2]]), centres, sizes, 2).tolist() == [0]


@given(st.integers(0, 40), st.integers(0, 12), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_many_joiners_fill_the_room_there_is(count: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 10, 4)
    labels = place(rng.normal(size=(count, 2)), rng.normal(size=(4, 2)), sizes, limit)
    total = sizes + np.bincount(labels, minlength=4)
    if np.maximum(limit - sizes, 0).sum() >= count:
        assert np.all((total <= limit) | (total == sizes))
    assert len(labels) == count


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": 0},
        {"min_size": 0},
        {"balance": 0.5},
        {"hysteresis": 1.0},
        {"min_size": 4, "max_size": 7},
        {"iterations": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="clustering"):
        ClusteringSettings(**wrong)


def test_more_clusters_than_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 clusters of 2"):
        cluster(np.zeros((2, 1)), 3, ClusteringSettings(), np.random.default_rng(0))
