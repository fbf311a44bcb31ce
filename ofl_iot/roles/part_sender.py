"""Sends the parts of one body until the receiver has confirmed each: a window at a time, again after a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ofl_iot.protocol.messages import Part

MAX_BACKOFF = 16


class PartSender:
    """The parts under way and those still to come."""

    def __init__(self, parts: Sequence[Part], *, window: int = 16, resend_s: float = 6.0) -> None:
        self._waiting: dict[int, float | None] = dict.fromkeys(range(len(parts)))
        self._tries: Counter[int] = Counter()
        self._parts = parts
        self._window = window
        self._resend_s = resend_s

    @property
    def digest(self) -> bytes:
        """Of the whole body."""
        return self._parts[0].digest

    @property
    def done(self) -> bool:
        """Whether every part is confirmed."""
        return not self._waiting

    def due(self, now: float) -> list[Part]:
        """Parts to send now; they count as sent."""
        ready = [number for number in self._waiting if self._due_at(number) <= now]
        under_way = len(self._waiting) - len(ready)
        ready = ready[: max(0, self._window - under_way)]
        for number in ready:
            self._waiting[number] = now
            self._tries[number] += 1
        return [self._parts[number] for number in ready]

    def _due_at(self, number: int) -> float:
        """Each try waits twice as long, so that a slow link is not filled with copies."""
        sent = self._waiting[number]
        return 0.0 if sent is None else sent + self._resend_s * min(1 << max(0, self._tries[number] - 1), MAX_BACKOFF)

    def confirm(self, numbers: Iterable[int]) -> None:
        """The receiver holds these."""
        for number in numbers:
            self._waiting.pop(number, None)

    def restart(self) -> None:
        """The receiver lost what it had, or the link broke: everything is sent again."""
        self._waiting = dict.fromkeys(range(len(self._parts)))
        self._tries.clear()

    def link_lost(self) -> None:
        """What was under way may be lost."""
        self._waiting = dict.fromkeys(self._waiting)
