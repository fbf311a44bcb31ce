"""The Gaussian mechanism, exactly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.gaussian import delta_at, epsilon_of, gaussian_multiplier


@given(st.floats(0.01, 30), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_an_epsilon_holds_and_hardly_less_does_not(mu, delta):
    eps = epsilon_of(mu, delta)
    assert delta_at(eps, mu) <= delta
    assert not eps or delta_at(0.999 * eps, mu) > delta


@given(st.floats(0.01, 60), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_the_noise_of_one_release_is_enough_and_hardly_more(eps, delta):
    noise = gaussian_multiplier(eps, delta)
    assert epsilon_of(1 / noise, delta) <= eps
    assert epsilon_of(1 / (0.999 * noise), delta) > eps


def test_published_figures():
    assert gaussian_multiplier(8.0, 1e-5) == pytest.approx(0.6, abs=0.002)
    assert gaussian_multiplier(1.0, 1e-5) == pytest.approx(3.7304, abs=0.001)  # Balle and Wang 2018
    assert epsilon_of(0.0, 1e-5) == 0
    assert epsilon_of(1e5, 1e-5) == math.inf


def test_far_tails_do_not_overflow():
    assert delta_at(700.0, 10.0) == pytest.approx(0.0, abs=1e-200)
    assert delta_at(2000.0, 50.0) < delta_at(1500.0, 50.0) < 1e-5


@pytest.mark.parametrize("eps", [0.0, math.inf])
def test_a_budget_of_nothing_or_without_end_has_no_noise(eps):
    with pytest.raises(ConfigError):
        gaussian_multiplier(eps, 1e-5)
