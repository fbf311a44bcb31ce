"""Cluster weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, RoundError
from ofl_iot.robust.weights import cluster_weights, rarity

amounts = st.floats(0.0, 1e6, allow_nan=False)
sizes = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=20)
quick = settings(deadline=None, max_examples=40)


@quick
@given(st.data(), sizes)
def test_weights_are_shares(data: st.DataObject, held: list[float]) -> None:
    factors = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(held), max_size=len(held)))
    merges = data.draw(st.lists(st.floats(0.1, 50.0), min_size=len(held), max_size=len(held)))
    weights = cluster_weights(held, factors, merges)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights > 0.0).all()


@quick
@given(sizes)
def test_without_rarity_or_suspicion_weights_follow_the_data(held: list[float]) -> None:
    np.testing.assert_allclose(cluster_weights(held, np.ones(len(held))), np.array(held) / sum(held))


@quick
@given(sizes, st.floats(1.0, 10.0))
def test_rarity_never_exceeds_its_cap(held: list[float], cap: float) -> None:
    merges = np.arange(1, len(held) + 1, dtype=float) ** 2
    assert (rarity(held, merges, cap) <= cap).all()


def test_a_rare_cluster_counts_up_to_four_times_its_data() -> None:
    weights = cluster_weights([100, 100, 100], [1, 1, 1], merges=[50, 50, 1])
    assert weights[2] / weights[0] == pytest.approx(4.0 / (rarity([1, 1, 1], [50, 50, 1])[0]))
    assert rarity([1, 1, 1], [50, 50, 1])[2] == 4.0


def test_a_cluster_that_merged_nothing_says_nothing() -> None:
    assert cluster_weights([100, 100], [1, 1], merges=[3, 0]).tolist() == [1.0, 0.0]


def test_without_renormalisation_suspicion_shrinks_the_sum() -> None:
    weights = cluster_weights([100, 100], [1.0, 0.0], renormalise=False)
    assert weights.tolist() == [0.5, 0.0]


@pytest.mark.parametrize("factors", [[0.0, 0.0], [1.0], [1.0, -0.1], [1.0, float("nan")], []])
def test_weights_that_cannot_be_are_refused(factors: list[float]) -> None:
    with pytest.raises(RoundError):
        cluster_weights([1.0, 1.0], factors)


def test_bounds_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match="rarity cap"):
        rarity([1.0], [1.0], cap=0.5)
    with pytest.raises(RoundError, match="merge rates"):
        rarity([1.0], [1.0, 2.0])
