"""Blocks of a model as bytes: what rounding takes is small beside what is there. Chunks' tests have the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.protocol.values import MAX_VALUE, Precision, bounded, check_values, decode_values, encode_model


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 2000),
    loud=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    size=st.sampled_from([1e-12, 0.05, 1.0, 1e6]),
    precision=st.sampled_from(["byte", "half", "single"]),
)
def test_a_block_comes_down_with_small_errors_whatever_is_in_it(
    seed: int, count: int, loud: float, size: float, precision: Precision
) -> None:
    values = np.random.default_rng(seed).normal(0, size, count).astype(np.float32)
    values[0] = loud * size
    dtype, coded = encode_model(values, precision)
    check_values(dtype, coded)
    error = decode_values(dtype, coded) - values
    deviation = np.sqrt(np.mean(np.square(values, dtype=np.float64)))
    least_half = 2.0**-25
    assert np.all(np.abs(error) <= 0.051 * deviation + 2.0**-11 * np.abs(values) + least_half)


def test_a_loud_parameter_does_not_blur_its_neighbours() -> None:
    values = np.random.default_rng(0).normal(0, 0.05, 1024).astype(np.float32)
    assert encode_model(values, "byte")[0] == "b"
    values[7] = 10.0
    dtype, coded = encode_model(values, "byte")
    assert dtype == "e"
    np.testing.assert_allclose(decode_values(dtype, coded), values, rtol=2.0**-11, atol=2.0**-25)


@pytest.mark.parametrize(
    "values", [[0.0], [0.0] * 5, [1e-45], [-3.0], [MAX_VALUE, -MAX_VALUE], [MAX_VALUE, *[0.0] * 999]]
)
def test_odd_blocks_have_a_code(values: list[float]) -> None:
    block = np.array(values, np.float32)
    dtype, coded = encode_model(block, "byte")
    check_values(dtype, coded)
    assert bounded(decode_values(dtype, coded))
    np.testing.assert_allclose(decode_values(dtype, coded), block, rtol=0.01, atol=1e-37)
