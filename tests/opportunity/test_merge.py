"""The leader merges updates by data, not by speed, and knows which blocks a device lacks."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, RefusedError
from ofl_iot.ids import device_id
from ofl_iot.opportunity.merge import (
    ArrivalRates,
    MergeSettings,
    merge_update,
    merge_weight,
    new_cumulative_change,
    replace_model,
    stalest_blocks,
)

FAST, SLOW, NEW = device_id("fast"), device_id("slow"), device_id("new")
observations = st.lists(st.tuples(st.sampled_from([FAST, SLOW, NEW]), st.floats(0, 1e9)), max_size=40)


def rates_of(heard) -> ArrivalRates:
    rates = ArrivalRates()
    for device, now in heard:
        rates = rates.observe(device, now)
    return rates


@given(observations)
def test_rates_survive_storage_and_replay(heard):
    rates = rates_of(heard)
    assert ArrivalRates.from_plain(msgpack.unpackb(msgpack.packb(rates.to_plain()))) == rates
    assert rates_of(heard) == rates


@given(observations)
def test_compensation_is_positive_and_finite_whatever_the_clock_does(heard):
    rates = rates_of(heard)
    for device in (FAST, SLOW, NEW):
        assert 0 < rates.compensation(device) < float("inf")


def test_compensation_is_never_above_its_bound_and_a_bound_raises_nobody():
    rates = ArrivalRates()
    for second in range(20):
        rates.observe(FAST, float(second))
    for second in (0.0, 10.0, 20.0):
        rates.observe(SLOW, second)
    assert rates.compensation(SLOW, most=1.0) == 1.0
    assert rates.compensation(FAST, most=1.0) == rates.compensation(FAST) < 1.0


def test_a_device_ten_times_slower_weighs_ten_times_more():
    rates = rates_of([(FAST, float(t)) for t in range(101)] + [(SLOW, float(t)) for t in range(0, 101, 10)])
    assert rates.compensation(SLOW) == pytest.approx(10 * rates.compensation(FAST))
    assert rates.compensation(SLOW) == pytest.approx(5.5)
    # each device's weight times its rate is the same: over time both are heard alike
    assert rates.compensation(FAST) * 1.0 == pytest.approx(rates.compensation(SLOW) * 0.1)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20), st.integers(1, 50))
def test_what_a_device_releases_in_small_pieces_counts_as_much_as_in_large_ones(gaps, steps):
    """The same work in the same time has the same rate, however many updates carry it."""
    whole, pieces, now = ArrivalRates().observe(FAST, 0.0, steps), ArrivalRates().observe(FAST, 0.0, 1), 0.0
    for gap in gaps:
        whole = whole.observe(FAST, now + gap, steps)
        for piece in range(1, steps + 1):
            pieces = pieces.observe(FAST, now + gap * piece / steps, 1)
        now += gap
    paces = [gap / steps for gap in gaps]
    for rates in (whole, pieces):
        step_s = rates.devices[FAST].step_s
        assert min(paces) * 0.999 <= step_s <= max(paces) * 1.001


def test_a_device_heard_once_is_taken_as_average():
    rates = rates_of([(FAST, 0.0), (FAST, 1.0), (NEW, 1.0)])
    assert rates.compensation(NEW) == 1
    assert rates.compensation(SLOW) == 1
    assert rates.forget(FAST) == ArrivalRates(devices={NEW: rates.devices[NEW]})


def test_weights_follow_data_are_bounded_and_discount_only_beyond_the_bound():
    settings = MergeSettings(staleness_bound=3)
    assert merge_weight(25, 100, 1.0, 0, settings) == 0.25
    assert merge_weight(25, 100, 9.0, 0, settings) == 1.0
    assert merge_weight(25, 100, 1.0, 3, settings) == 0.25
    assert merge_weight(25, 100, 1.0, 6, settings) == pytest.approx(0.125)
    assert merge_weight(25, 100, 1.0, 600, MergeSettings()) == 0.25
    with pytest.raises(RefusedError):
        merge_weight(101, 100, 1.0, 0, settings)
    with pytest.raises(RefusedError):
        merge_weight(float("nan"), 100, 1.0, 0, settings)


@given(st.integers(1, 300), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32))
def test_a_merge_adds_the_weighted_update_and_counts_the_way(size, block_size, weight, seed):
    rng = np.random.default_rng(seed)
    model = rng.standard_normal(size).astype(np.float32)
    dense = np.where(rng.random(size) < 0.3, rng.standard_normal(size), 0).astype(np.float32)
    indices = np.flatnonzero(dense)
    cumulative_change, before = new_cumulative_change(size, block_size), model.copy()
    merge_update(model, cumulative_change, indices, dense[indices], weight, block_size=block_size)
    np.testing.assert_allclose(model, before + np.float32(weight) * dense, rtol=1e-6)
    blocks = np.arange(size) // block_size
    np.testing.assert_allclose(cumulative_change, np.bincount(blocks, np.abs(weight * dense)), rtol=1e-5, atol=1e-6)


def test_an_update_that_does_not_fit_leaves_the_model_alone():
    model, cumulative_change = np.zeros(4, np.float32), new_cumulative_change(4)
    for indices, values in (([4], [1]), ([-1], [1]), ([0, 1], [1]), ([0], [np.nan]), ([0], [np.inf])):
        with pytest.raises(RefusedError):
            merge_update(model, cumulative_change, np.array(indices), np.array(values, np.float32), 1.0)
    merge_update(model, cumulative_change, np.array([], int), np.array([], np.float32), 1.0)
    assert not model.any()
    assert not cumulative_change.any()


def test_a_new_global_model_counts_as_way_too():
    model, cumulative_change = np.zeros(10, np.float32), new_cumulative_change(10, 4)
    replace_model(model, cumulative_change, np.arange(10, dtype=np.float32), block_size=4)
    assert cumulative_change.tolist() == [6, 22, 17]
    assert model.tolist() == list(range(10))
    with pytest.raises(RefusedError):
        replace_model(model, cumulative_change, np.zeros(9, np.float32))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.integers(-1, 31))
def test_the_stalest_blocks_lag_most_and_none_without_lag_is_sent(pairs, count):
    seen = np.array([min(pair) for pair in pairs], float)
    cumulative_change = np.array([max(pair) for pair in pairs], float)
    chosen = stalest_blocks(cumulative_change, seen, count).tolist()
    lag = cumulative_change - seen
    expected = sorted((b for b in range(len(pairs)) if lag[b] > 0), key=lambda b: (-lag[b], b))
    assert chosen == expected[: max(0, count)]


def test_versions_of_another_model_are_refused():
    with pytest.raises(RefusedError):
        stalest_blocks(np.zeros(3), np.zeros(2), 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ArrivalRates(smoothing=0),
        lambda: ArrivalRates.from_plain(["x"]),
        lambda: MergeSettings(max_weight=0),
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()
