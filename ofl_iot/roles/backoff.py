"""One backoff for all that machines try again."""

from __future__ import annotations

SLOWEST_RESEND = 16
"""The longest wait between two tries to send a message, in units of the first."""


def backoff_s(first_s: float, doublings: int, longest_s: float) -> float:
    """Return min(longest_s, first_s · 2^doublings) seconds: each try waits twice as long as the one before."""
    return min(longest_s, first_s * 2.0 ** min(max(0, doublings), 64))


def resend_after_s(resend_s: float, tries: int) -> float:
    """Return how long a message sent `tries` times waits: a slow link is not filled with copies."""
    return backoff_s(resend_s, tries - 1, SLOWEST_RESEND * resend_s)
