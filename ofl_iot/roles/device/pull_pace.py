"""How much a device asks its leader for at once, and how often: so that answers leave a thin link room for receipts.

Learnt from answers: the next pull asks for what comes in half of the time that a pull waits. While nothing comes, each
pull asks for half as many blocks and, after the second, waits twice as long: an answer may still be on its way, and
another would come on top of it.
"""

from __future__ import annotations

_LINK_SHARE = 0.5
_MOST_HALVINGS = 4


class PullPace:
    """The pace of one device's pulls."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._asked_at = 0.0
        self._came = 0
        """Blocks that came since the leader was last asked."""
        self._block_s: float | None = None
        """Seconds that a block takes to come, learnt from answers."""
        self._unanswered = 0
        """Pulls in a row to which nothing came."""
        self.not_before = 0.0
        """When the next pull may leave."""

    def limit(self, blocks: int) -> int:
        """Return how many of these blocks to ask for now; at least one if there is any."""
        most = -(-blocks >> min(self._unanswered, _MOST_HALVINGS))
        if self._block_s:
            most = min(most, max(1, int(_LINK_SHARE * self._timeout_s / self._block_s)))
        return most

    def asked(self, now: float) -> None:
        """A pull leaves."""
        self._asked_at, self._came = now, 0

    def came(self, blocks: int) -> None:
        """Blocks of an answer came."""
        self._came += blocks

    def answered(self, now: float) -> None:
        """The last block of an answer came."""
        self.begin_anew()
        if self._came:
            seconds = (now - self._asked_at) / self._came
            self._block_s = seconds if self._block_s is None else (self._block_s + seconds) / 2

    def unanswered(self, now: float) -> None:
        """The deadline of a pull passed."""
        self._unanswered += 1
        slower = (1 << min(self._unanswered - 1, _MOST_HALVINGS)) - 1
        self.not_before = now + slower * self._timeout_s

    def begin_anew(self) -> None:
        """There is another leader, or another link: ask at once."""
        self._unanswered, self.not_before = 0, 0.0
