"""The distinguishing game finds what a mechanism gives away, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.audit import judge, play, upper_rate
from ofl_iot.privacy.gaussian import epsilon_of


def game(mu: float, runs: int = 4000, seed: int = 3):
    rng = np.random.default_rng(seed)
    return play(lambda present: float(rng.normal(mu if present else 0.0)), runs)


def test_a_gaussian_that_keeps_its_promise_is_not_accused_and_the_bound_is_near():
    claimed = epsilon_of(1.5, 1e-5)
    result = judge(*game(1.5), claimed, 1e-5)
    assert not result.violated
    assert 0.5 < result.lower < result.lower_gaussian < claimed
    assert result.lower_gaussian > 0.75 * claimed


def test_noise_that_was_forgotten_is_found():
    result = judge(*game(8.0), claimed=2.0, delta=1e-5)
    assert result.violated
    assert result.lower > 5


def test_a_mechanism_that_says_nothing_gives_nothing_away():
    result = judge(*game(0.0), claimed=1.0, delta=1e-5)
    assert result.lower < 0.5
    assert result.lower_gaussian < 0.5


@pytest.mark.parametrize(("hits", "trials", "bound"), [(0, 100, 0.0362), (5, 100, 0.1128), (50, 100, 0.6017)])
def test_rates_are_bounded_as_in_the_tables(hits, trials, bound):
    assert upper_rate(hits, trials, 0.025) == pytest.approx(bound, abs=2e-4)


def test_the_bound_is_one_when_all_hit_and_too_few_runs_are_refused():
    assert upper_rate(7, 7, 0.05) == 1.0
    with pytest.raises(ConfigError, match="runs"):
        play(lambda _: 0.0, 3)
