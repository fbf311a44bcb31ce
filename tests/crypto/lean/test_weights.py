"""Weights under which no contributor's update or mask can be told from the sum."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.crypto.lean.params import ERROR_SIGMA, MAX_WEIGHT
from ofl_iot.crypto.lean.weights import check_weights, integer_weights
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId

positive = st.floats(1e-9, 1e12)


@given(st.lists(positive, min_size=2, max_size=64))
def test_any_weights_become_such_as_leaders_take(raw) -> None:
    whole = integer_weights({DeviceId(f"l-{n}"): weight for n, weight in enumerate(raw)})
    check_weights(list(whole.values()))
    assert len(whole) == len(raw)


@given(st.lists(st.floats(0.2, 1.0), min_size=3, max_size=4))
def test_weights_that_differ_little_are_kept_within_a_step(raw) -> None:
    names = [DeviceId(f"l-{n}") for n in range(len(raw))]
    whole = integer_weights(dict(zip(names, raw, strict=True)))
    capped = [min(weight, math.fsum(raw) - weight) for weight in raw]
    total = sum(whole.values())
    for name, weight in zip(names, capped, strict=True):
        assert abs(whole[name] / total - weight / math.fsum(capped)) < 0.06


def test_who_counts_nothing_is_left_out() -> None:
    weights = {DeviceId("a"): 0.5, DeviceId("b"): 0.0, DeviceId("c"): 0.5}
    assert integer_weights(weights) == {"a": 1, "c": 1}


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([1], "shows an update"),
        ([], "shows an update"),
        ([61, 1, 1, 1], "1 to 16"),
        ([16, 16, 16, 15, 2], "at most 64"),
        ([2, 2, 2], "common divisor"),
        ([1, 0, 1], "at least 1"),
        ([1, -1, 1], "at least 1"),
        ([True, 1], "whole numbers"),
        ([1.0, 1, 1], "whole numbers"),
        ([16, 8, 7], "above half"),
        ([2, 1], "above half"),
    ],
)
def test_other_weights_are_refused(weights, why) -> None:
    with pytest.raises(CryptoError, match=why):
        check_weights(weights)


def test_too_many_contributors_are_refused_with_the_number() -> None:
    with pytest.raises(CryptoError, match="65 contributors count: a lean round sums 2 to 64"):
        integer_weights({DeviceId(f"l-{n}"): 1.0 for n in range(65)})


def test_an_honest_error_keeps_the_deviation_that_the_standard_assumes() -> None:
    """Given w_i·e_i + w_j·e_j, e_i is known modulo w_j/g: its deviation in those steps (attacks/hint.py)."""
    worst = min(
        ERROR_SIGMA * math.gcd(one, two) / math.hypot(one, two)
        for one, two in itertools.product(range(1, MAX_WEIGHT + 1), repeat=2)
    )
    assert worst > 3.2
