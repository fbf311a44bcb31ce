"""Eq. 5: the o-factor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.ofactor import o_factor

DENSITIES = ["none", "histogram", "rare", "activation"]
values = st.floats(-(2.0**127), 2.0**127, width=32)
triples = st.integers(0, 60).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float32, n, elements=values)] * 3))


def model(seed: int, size: int = 5000, spread: float = 1.0) -> np.ndarray:
    return (spread * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


@given(triples, st.sampled_from(DENSITIES))
def test_scores_of_finite_input_are_finite_and_not_negative(states, density):
    update, theta0, theta1 = states
    activation = np.full(len(update), 0.25, np.float32)
    scores = o_factor(update, theta0, theta1, density=density, activation=activation)
    assert scores.dtype == np.float32
    assert scores.shape == update.shape
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


@given(triples)
def test_the_input_is_left_as_it_is(states):
    copies = [state.copy() for state in states]
    o_factor(*states, density="rare")
    for state, copy in zip(states, copies, strict=True):
        np.testing.assert_array_equal(state, copy)


@pytest.mark.parametrize("spread", [1e-6, 1e-2, 0.02, 10.0])
def test_it_is_equation_5_with_the_median_as_floor(spread):
    update, theta0 = model(1), model(2)
    theta1 = theta0 + model(3, spread=spread)
    change = np.log2(1 + np.abs(theta0.astype(float) - theta1))
    expected = np.abs(update) / (change + np.median(change))
    np.testing.assert_allclose(o_factor(update, theta0, theta1), expected, rtol=2e-3)


def test_before_the_second_sync_the_size_of_the_update_decides():
    update, zeros = model(1), np.zeros(5000, np.float32)
    np.testing.assert_array_equal(o_factor(update, zeros, zeros), np.abs(update))


def test_a_parameter_that_moved_much_between_syncs_comes_later():
    update = np.ones(4, np.float32)
    theta1 = np.zeros(4, np.float32)
    scores = o_factor(update, np.array([0, 0.1, 1, 10], np.float32), theta1)
    assert list(np.argsort(-scores)) == [0, 1, 2, 3]


def test_histogram_prefers_common_values_and_rare_prefers_unusual_ones():
    theta0 = model(1)
    theta0[7] = 4.5
    common = int(np.argmin(np.abs(theta0)))
    update, theta1 = np.full(5000, 1e-3, np.float32), theta0.copy()
    histogram = o_factor(update, theta0, theta1, density="histogram")
    rare = o_factor(update, theta0, theta1, density="rare")
    assert histogram[common] > 30 * histogram[7]
    assert rare[7] > 10 * rare[common]


def test_equal_parameters_all_score_the_same():
    ones = np.ones(300, np.float32)
    for density in ("none", "histogram", "rare"):
        scores = o_factor(ones, ones, 2 * ones, density=density)
        assert len(set(scores.tolist())) == 1


def test_activation_weighs_with_what_the_workload_gives():
    update, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    activation = np.array([0.1, 0.5, 0.9], np.float32)
    np.testing.assert_array_equal(
        o_factor(update, zeros, zeros, density="activation", activation=activation), activation
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(bad):
    update, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    update[1] = bad
    with pytest.raises(ConfigError, match="diverged"):
        o_factor(update, zeros, zeros)


def test_a_state_that_is_not_a_number_is_refused():
    ones = np.ones(3, np.float32)
    with pytest.raises(ConfigError, match="fetch"):
        o_factor(ones, np.array([0, 1, np.nan], np.float32), ones * 0)


def test_scores_beyond_float32_are_cut_off():
    update = np.array([2.0**126, 1, 1, 1], np.float32)
    scores = o_factor(update, np.array([0, 1e-30, 1e-30, 1e-30], np.float32), np.zeros(4, np.float32))
    assert np.isfinite(scores).all()
    assert scores.argmax() == 0


def test_settings_that_do_not_fit_are_refused():
    ones = np.ones(3, np.float32)
    with pytest.raises(ConfigError, match="length"):
        o_factor(ones, ones, ones[:2])
    with pytest.raises(ConfigError, match="activation"):
        o_factor(ones, ones, ones, density="activation")
    with pytest.raises(ConfigError, match="density"):
        o_factor(ones, ones, ones, density="guess")
