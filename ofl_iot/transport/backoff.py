"""When to try again, and when to complain about it."""

from __future__ import annotations

import random

COMPLAIN_EVERY_S = 60.0


class Backoff:
    """Jittered exponential waits: the n-th is uniform in [c/2, c], c = min(max_s, min_s * 2^n) seconds."""

    def __init__(self, min_s: float, max_s: float, rng: random.Random) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._rng = rng
        self._ceiling_s = min_s

    def next_s(self) -> float:
        """How long to wait now; the next wait is about twice as long."""
        ceiling_s = self._ceiling_s
        self._ceiling_s = min(self._max_s, ceiling_s * 2)
        return self._rng.uniform(ceiling_s / 2, ceiling_s)

    def reset(self) -> None:
        """Begin with short waits again."""
        self._ceiling_s = self._min_s


class Outage:
    """Speaks up when an outage begins and once a minute while it lasts."""

    def __init__(self, every_s: float = COMPLAIN_EVERY_S) -> None:
        self._every_s = every_s
        self._since: float | None = None
        self._spoke_at = 0.0

    def should_complain(self, now: float) -> bool:
        """Record a failure at `now` seconds; whether it is time to say so."""
        if self._since is None:
            self._since = self._spoke_at = now
            return True
        if now - self._spoke_at < self._every_s:
            return False
        self._spoke_at = now
        return True

    def lasted_s(self, now: float) -> float:
        """Seconds since the first failure, 0 without one."""
        return 0.0 if self._since is None else now - self._since

    def over(self) -> None:
        """Record that it works again."""
        self._since = None
