"""How fast chunks may follow one another, learnt from receipts as TCP learns it from acknowledgements.

The resend time is the smoothed time to a receipt plus four deviations (RFC 6298), never below `resend_s`; chunks that
were sent more than once tell nothing (Karn). The window halves when a chunk is overdue and grows by one chunk for each
window that is confirmed.
"""

from __future__ import annotations

MAX_SLOWER = 16.0
"""The resend time grows to at most so many times `resend_s`."""


class SendPace:
    """Window and resend time of one device's chunks."""

    def __init__(self, *, window: int, resend_s: float) -> None:
        self._most, self._least_s = window, resend_s
        self._window = float(window)
        self._smooth_s: float | None = None
        self._deviation_s = 0.0
        self._halved_at: float | None = None

    @property
    def window(self) -> int:
        """Chunks that may be under way without a receipt."""
        return int(self._window)

    @property
    def resend_s(self) -> float:
        """Seconds without a receipt after which a chunk that was sent once is sent again."""
        if self._smooth_s is None:
            return self._least_s
        return min(max(self._least_s, self._smooth_s + 4 * self._deviation_s), MAX_SLOWER * self._least_s)

    def confirmed(self, seconds: float | None) -> None:
        """A chunk was confirmed, so long after it was sent; None if it was sent more than once."""
        self._window = min(float(self._most), self._window + 1.0 / self._window)
        if seconds is None:
            return
        if self._smooth_s is None:
            self._smooth_s, self._deviation_s = seconds, seconds / 2
        else:
            self._deviation_s += 0.25 * (abs(seconds - self._smooth_s) - self._deviation_s)
            self._smooth_s += 0.125 * (seconds - self._smooth_s)

    def overdue(self, now: float) -> None:
        """A chunk has to be sent again: take half as many at once, not oftener than each resend time."""
        if self._halved_at is None or now - self._halved_at >= self.resend_s:
            self._halved_at = now
            self._window = max(1.0, self._window / 2)
