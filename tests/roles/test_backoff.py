"""One backoff: it doubles, it ends, and no number of failures is too large for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.roles.backoff import SLOWEST_RESEND, backoff_s, resend_after_s


@given(st.floats(0.001, 1e3), st.integers(0, 10**9), st.floats(0.001, 1e6))
def test_each_wait_is_twice_the_one_before_until_the_longest(first_s: float, doublings: int, longest_s: float) -> None:
    wait = backoff_s(first_s, doublings, longest_s)
    assert wait <= longest_s
    assert backoff_s(first_s, doublings + 1, longest_s) == min(longest_s, 2 * wait) or doublings >= 64
    assert wait == longest_s or wait == first_s * 2**doublings


def test_a_message_waits_once_after_its_first_try_and_sixteen_times_at_most() -> None:
    assert [resend_after_s(3.0, tries) for tries in (0, 1, 2, 3, 9)] == [3.0, 3.0, 6.0, 12.0, 3.0 * SLOWEST_RESEND]
