"""How much of a federation's time rounds were due and had no joint key to open under."""

from __future__ import annotations

from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import Clustered
from ofl_iot.roles.reports.keys import RoundsWithKey, RoundsWithoutKey


class KeyCoverage:
    """Takes the reports of one coordinator with their times; `without_key_share` sums them up.

    A coordinator that restarts while rounds wait reports the wait anew; the time between counts.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._waits_since: float | None = None
        self._without_s = 0.0

    def take(self, report: Report, now: float) -> None:
        """Take note of a report made at `now`, in seconds of any clock."""
        if isinstance(report, Clustered) and self._began is None:
            self._began = now
        elif isinstance(report, RoundsWithoutKey) and self._waits_since is None:
            self._waits_since = now
        elif isinstance(report, RoundsWithKey) and self._waits_since is not None:
            self._without_s += now - self._waits_since
            self._waits_since = None

    def without_key_share(self, now: float) -> float:
        """Share, 0 to 1, of the time since the first clustering in which a round was due and had no key."""
        if self._began is None or now <= self._began:
            return 0.0
        waiting_s = now - self._waits_since if self._waits_since is not None else 0.0
        return (self._without_s + waiting_s) / (now - self._began)
