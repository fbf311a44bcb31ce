"""The statistics of a round in the clear, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import RoundError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.scores import BLOCK, RoundScores, high_band_energy, plain_scores

seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None, max_examples=40)


def leaders(n: int) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(f"leader-{i}") for i in range(n))


@quick
@given(seeds, st.integers(1, 200))
def test_high_band_energy_is_between_nothing_and_all(seed: int, size: int) -> None:
    values = np.random.default_rng(seed).normal(size=size)
    energy = high_band_energy(values, block=64)
    assert -1e-9 <= energy <= float(values @ values) * (1 + 1e-9)


@quick
@given(seeds)
def test_low_and_high_band_make_up_the_energy(seed: int) -> None:
    """Multiplying by (-1)^j turns the spectrum round, so the high band of one is the low band of the other."""
    values = np.random.default_rng(seed).normal(size=128)
    turned = values * np.where(np.arange(128) % 2 == 0, 1.0, -1.0)
    both = high_band_energy(values, block=64) + high_band_energy(turned, block=64)
    assert both == pytest.approx(float(values @ values))


def test_energy_is_that_of_the_rings_evaluation_points() -> None:
    block = 16
    values = np.random.default_rng(1).normal(size=block)
    expected = 0.0
    for k in range(block):
        root = np.exp(-1j * np.pi * (2 * k + 1) / block)
        frequency = (2 * k + 1) / block
        if min(frequency, 2 - frequency) >= 0.5:
            expected += abs(np.polyval(values[::-1], root)) ** 2 / block
    assert high_band_energy(values, block) == pytest.approx(expected)


def test_an_alternating_pattern_is_all_high_and_a_constant_all_low() -> None:
    alternating = np.where(np.arange(BLOCK) % 2 == 0, 1.0, -1.0)
    assert high_band_energy(alternating) > 0.99 * BLOCK
    assert high_band_energy(np.ones(BLOCK)) < 0.01 * BLOCK


def test_plain_scores_are_distances_and_inner_products() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(4, 50)).astype(np.float32)
    base = rng.normal(size=50).astype(np.float32)
    scores = plain_scores(dict(zip(leaders(4), rows, strict=True)), base)
    np.testing.assert_allclose(scores.gram, rows.astype(float) @ rows.astype(float).T)
    np.testing.assert_allclose(scores.distance2, np.diag(scores.gram))
    np.testing.assert_allclose(np.diag(scores.cosines), 1.0)
    assert scores.model_band is not None
    assert scores.model_band[0] == pytest.approx(high_band_energy(base.astype(float) + rows[0]))


def test_a_leader_without_an_update_has_no_direction() -> None:
    scores = plain_scores({DeviceId("a"): np.zeros(8), DeviceId("b"): np.ones(8)})
    assert scores.cosines[0, 1] == 0.0
    assert scores.norms[0] == 0.0


def test_noise_below_zero_counts_as_no_distance() -> None:
    scores = RoundScores(leaders(1), np.array([-1e-7]), np.zeros(1), np.array([[-1e-7]]))
    assert scores.norms.tolist() == [0.0]


@pytest.mark.parametrize(
    ("names", "distance2", "gram", "phrase"),
    [
        ((), [], np.zeros((0, 0)), "no leader"),
        (("a", "a"), [1.0, 1.0], np.eye(2), "twice"),
        (("a", "b"), [1.0], np.eye(2), "shape"),
        (("a", "b"), [1.0, 1.0], np.eye(3), "shape"),
        (("a", "b"), [1.0, np.nan], np.eye(2), "not finite"),
    ],
)
def test_scores_that_cannot_be_are_refused(
    names: tuple[str, ...], distance2: list[float], gram: np.ndarray, phrase: str
) -> None:
    with pytest.raises(RoundError, match=phrase):
        RoundScores(tuple(map(DeviceId, names)), np.array(distance2), np.zeros(len(names)), gram)


def test_updates_of_different_models_are_refused() -> None:
    with pytest.raises(RoundError, match="different lengths"):
        plain_scores({DeviceId("a"): np.zeros(3), DeviceId("b"): np.zeros(4)})
    with pytest.raises(RoundError, match="no leader"):
        plain_scores({})
