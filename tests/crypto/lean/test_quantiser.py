"""Quantising: bounded values, nothing lost but late, bounds that neither collapse nor jump."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.lean import quantiser
from ofl_iot.crypto.lean.params import PRECISIONS, value_bits, value_limit
from ofl_iot.crypto.lean.quantiser import BLOCK, CEILING, FLOOR, START
from ofl_iot.errors import CryptoError

exponents = st.lists(st.integers(FLOOR, CEILING), min_size=1, max_size=3)


def update_of(seed: int, size: int, scale: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_t(3, size) * scale).astype(np.float32)


@settings(max_examples=30)
@given(st.sampled_from(PRECISIONS), exponents, st.integers(0, 2**32), st.sampled_from([1e-4, 0.01, 1.0, 100.0]))
def test_values_stay_within_the_rail_and_the_rest_is_returned(precision, chosen, seed, scale) -> None:
    bounds = np.array(chosen, np.int8).tobytes()
    update = update_of(seed, (len(chosen) - 1) * BLOCK + 100, scale)
    values = quantiser.quantise(update, bounds, precision)
    assert np.abs(values).max() <= value_limit(precision)
    kept = quantiser.residue(update, bounds, precision)
    assert np.allclose(quantiser.dequantise(values, bounds, precision) + kept, update, rtol=1e-6, atol=1e-9)
    steps = np.repeat(np.ldexp(1.0, np.array(chosen) - value_bits(precision) + 1), BLOCK)[: update.size]
    inside = np.abs(update) < value_limit(precision) * steps
    assert (np.abs(kept[inside]) <= steps[inside] * 0.5000001).all()


def test_what_was_clipped_leaves_in_later_rounds() -> None:
    bounds = quantiser.first_bounds(1)
    waiting, sent = np.array([3.25], np.float32), np.float32(0)
    for _ in range(10):
        sent += quantiser.dequantise(quantiser.quantise(waiting, bounds, 20), bounds, 20)[0]
        waiting = quantiser.residue(waiting, bounds, 20)
    assert abs(sent - 3.25) < 1e-4


@settings(max_examples=30)
@given(exponents, st.integers(0, 2**32), st.sampled_from([0.0, 1e-6, 0.01, 1.0, 1e6]))
def test_bounds_move_by_one_doubling_at_most_and_stay_in_range(chosen, seed, scale) -> None:
    bounds = np.array(chosen, np.int8).tobytes()
    change = update_of(seed, len(chosen) * BLOCK, scale)
    after = quantiser.read_bounds(quantiser.next_bounds(bounds, change), change.size).astype(int)
    assert (np.abs(after - np.array(chosen)) <= 1).all()
    assert FLOOR <= after.min() <= after.max() <= CEILING


def test_bounds_follow_a_quantile_and_not_the_largest_value() -> None:
    change = np.full(BLOCK, 2.0**-8, np.float32)
    bounds = quantiser.first_bounds(BLOCK)
    for _ in range(8):
        bounds = quantiser.next_bounds(bounds, change)
    assert quantiser.read_bounds(bounds, BLOCK).tolist() == [-5]
    change[3] = 1000.0
    assert quantiser.next_bounds(bounds, change) == bounds


def test_bounds_that_do_not_fit_are_refused() -> None:
    assert quantiser.first_bounds(BLOCK + 1) == bytes([START % 256] * 2)
    with pytest.raises(CryptoError, match="1 quantisation bounds: 2049 parameters have 2 blocks"):
        quantiser.read_bounds(b"\0", 2049)
    for bad in (FLOOR - 1, CEILING + 1):
        with pytest.raises(CryptoError, match="outside of"):
            quantiser.read_bounds(np.array([bad], np.int8).tobytes(), 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad) -> None:
    with pytest.raises(CryptoError, match="finite"):
        quantiser.quantise(np.array([0.0, bad], np.float32), quantiser.first_bounds(2), 20)
