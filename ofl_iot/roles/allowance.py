"""How much one sender may cause: a bucket that fills at a steady rate (a token bucket)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Allowance:
    """What is left of a sender's allowance; the clock may be any that does not go back."""

    burst: float
    rate: float
    """Units a second."""
    _left: float = -1.0
    _at: float = 0.0

    def spend(self, amount: float, now: float) -> bool:
        """Take `amount`, or nothing and return False if there is not so much. More than a burst takes the whole."""
        amount = min(amount, self.burst)
        left = self.burst if self._left < 0 else min(self.burst, self._left + self.rate * max(0.0, now - self._at))
        self._at = now
        self._left = left - amount if left >= amount else left
        return left >= amount
