"""Self-ping: notices a session that can speak but no longer hears."""

from __future__ import annotations

import secrets


class Echo:
    """When to send ourselves a message, and whether it came back. Times are seconds of one clock."""

    def __init__(self, interval_s: float, timeout_s: float, now: float) -> None:
        self.payload = secrets.token_bytes(8)
        """Fresh for every connection, so that no late echo of another one counts."""
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._due_at = now
        self._waiting = False
        self._left_at: float | None = None

    def due(self, now: float) -> bool:
        """Whether to send one now."""
        return not self._waiting and now >= self._due_at

    def handed_over(self) -> None:
        """One waits to be written."""
        self._waiting = True

    def left(self, now: float) -> None:
        """It was written; before that a slow link, not a deaf one, is to blame."""
        self._left_at = now

    def heard(self, now: float) -> None:
        """A message arrived, this one or any other: we are not deaf."""
        if self._left_at is not None:
            self._waiting, self._left_at, self._due_at = False, None, now + self._interval_s

    def deaf(self, now: float) -> bool:
        """Whether the answer is overdue."""
        return self._left_at is not None and now - self._left_at >= self._timeout_s
