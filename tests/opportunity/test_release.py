"""From an update to what leaves the device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.release import ReleaseSettings, count_of, prepare_release

MODES = ["rigorous", "paper", "off"]
DENSITIES = ["none", "histogram", "rare"]
updates = hnp.arrays(np.float32, st.integers(0, 100), elements=st.floats(-(2.0**127), 2.0**127, width=32))


def release(update, gamma, mode="rigorous", **settings):
    zeros = np.zeros(len(update), np.float32)
    return prepare_release(
        update, zeros, zeros, gamma, ReleaseSettings(mode=mode, **settings), np.random.default_rng(1)
    )


@given(updates, st.floats(0, 1), st.sampled_from(MODES), st.sampled_from(DENSITIES))
def test_what_leaves_is_sparse_ascending_finite_and_no_more_than_planned(update, gamma, mode, density):
    selected = release(update, gamma, mode, density=density)
    assert len(selected) == len(selected.values) == len(selected.utility) <= count_of(gamma, len(update))
    assert selected.indices.dtype == np.int32
    assert selected.values.dtype == selected.utility.dtype == np.float32
    assert (np.diff(selected.indices) > 0).all()
    assert np.isfinite(selected.values).all()
    assert np.isfinite(selected.utility).all()


@given(updates, st.floats(0, 1))
def test_in_the_rigorous_mode_the_values_leave_as_they_are(update, gamma):
    selected = release(update, gamma)
    np.testing.assert_array_equal(selected.values, update[selected.indices])


@given(updates, st.floats(0, 1))
def test_in_the_paper_mode_the_count_tells_nothing(update, gamma):
    assert len(release(update, gamma, "paper")) == count_of(gamma, len(update))


def test_a_share_is_rounded_down_but_not_by_floating_point():
    assert count_of(0.1, 1_000_000) == 100_000
    assert count_of(0.29, 100) == 29
    assert count_of(0.999, 1) == count_of(0.01, 9) == 1
    assert count_of(0.0, 9) == count_of(0.5, 0) == 0
    assert count_of(1, 1) == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_update_releases_nothing(mode):
    assert len(release(np.empty(0, np.float32), 1.0, mode)) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("gamma", "count"), [(0, 0), (1, 1)])
def test_one_parameter_leaves_or_stays(mode, gamma, count):
    selected = release(np.array([0.25], np.float32), gamma, mode)
    assert len(selected) == count
    assert selected.values.tolist() == [0.25] * count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_equal_parameters_release_exactly_the_share(mode, gamma):
    assert len(release(np.full(1000, -2.0, np.float32), gamma, mode)) == 1000 * gamma


def test_parameters_that_did_not_change_stay_at_home():
    update = np.zeros(1000, np.float32)
    update[[3, 700]] = 1, -2
    selected = release(update, 0.5)
    assert selected.indices.tolist() == [3, 700]
    assert selected.utility.tolist() == [1, 2]


def test_the_paper_mode_orders_by_what_everybody_may_see():
    update = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    selected = release(update, 0.1, "paper", eps2=0.5)
    np.testing.assert_array_equal(selected.utility, np.abs(selected.values))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_diverged_update_never_leaves(mode, bad):
    with pytest.raises(ConfigError, match="diverged"):
        release(np.array([1, bad], np.float32), 1.0, mode)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ReleaseSettings(mode="none"),
        lambda: ReleaseSettings(eps1=0),
        lambda: ReleaseSettings(eps2=float("nan")),
        lambda: ReleaseSettings(utility_quantile=0),
        lambda: count_of(1.1, 10),
        lambda: count_of(float("nan"), 10),
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


def test_a_model_too_large_for_its_index_is_refused():
    huge = np.broadcast_to(np.float32(0), 2**31)
    with pytest.raises(ConfigError, match="too large"):
        prepare_release(huge, huge, huge, 0.1, ReleaseSettings(), np.random.default_rng(0))


@given(updates, st.floats(0, 1))
def test_by_magnitude_nothing_that_stays_is_larger_than_what_leaves(update, gamma):
    moved = np.linspace(0, 3, len(update), dtype=np.float32)
    settings = ReleaseSettings(mode="off", score="magnitude", density="rare")
    selected = prepare_release(update, moved, 0 * moved, gamma, settings, np.random.default_rng(1))
    stays = np.abs(np.delete(update, selected.indices))
    assert len(selected) == min(count_of(gamma, len(update)), np.count_nonzero(update))
    if len(selected) and len(stays):
        assert stays.max() <= np.abs(selected.values).min()


def test_the_o_factor_prefers_what_stood_still_and_magnitude_does_not():
    update = np.array([1, 2, 0.1, 0.1], np.float32)
    moved = np.array([0, 8, 1, 1], np.float32)
    chosen = {}
    for score in ("o-factor", "magnitude"):
        settings = ReleaseSettings(mode="off", score=score)
        selected = prepare_release(update, moved, 0 * moved, 0.25, settings, np.random.default_rng(1))
        chosen[score] = selected.indices.tolist()
    assert chosen == {"o-factor": [0], "magnitude": [1]}


def test_the_paper_mode_selects_by_the_o_factor_whatever_the_score():
    rng = np.random.default_rng(2)
    update, theta0, theta1 = rng.normal(size=(3, 2000)).astype(np.float32)
    drawn = [
        prepare_release(
            update, theta0, theta1, 0.1, ReleaseSettings(mode="paper", score=score), np.random.default_rng(3)
        )
        for score in ("o-factor", "magnitude")
    ]
    np.testing.assert_array_equal(drawn[0].indices, drawn[1].indices)
    np.testing.assert_array_equal(drawn[0].values, drawn[1].values)


def test_by_magnitude_a_training_that_diverged_is_refused():
    with pytest.raises(ConfigError, match="diverged"):
        release(np.array([1, np.nan], np.float32), 0.5, "off", score="magnitude")


def test_an_unknown_score_is_refused():
    with pytest.raises(ConfigError, match="use 'o-factor' or 'magnitude'"):
        ReleaseSettings(score="size")
