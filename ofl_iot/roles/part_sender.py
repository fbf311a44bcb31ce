"""Sends the parts of one body until the receiver has confirmed each: a window at a time, again after a while.

    to send ──due──▶ under way ──confirmed──▶ gone
       ▲                 └──its time passes──▶ due again

A confirmation and a look for what is due cost the same however many parts the body has.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ofl_iot.protocol.messages import Part
from ofl_iot.roles.backoff import resend_after_s


class PartSender:
    """The parts under way and those still to come."""

    def __init__(self, parts: Sequence[Part], *, window: int = 16, resend_s: float = 6.0) -> None:
        self._parts = parts
        self._window = window
        self._resend_s = resend_s
        self.restart()

    @property
    def digest(self) -> bytes:
        """Digest of the whole body."""
        return self._parts[0].digest

    @property
    def done(self) -> bool:
        """Whether every part is confirmed."""
        return not self._unconfirmed

    def due(self, now: float) -> list[Part]:
        """Parts to send now; they count as sent."""
        overdue = self._take_overdue(now)
        room = max(0, self._window - len(self._due_at))
        for number in overdue[room:]:
            self._send_again(number, now)
        ready = overdue[:room]
        ready += islice((number for number in self._unsent if number in self._unconfirmed), room - len(ready))
        for number in ready:
            self._tries[number] += 1
            self._send_again(number, now + resend_after_s(self._resend_s, self._tries[number]))
        return [self._parts[number] for number in ready]

    def _take_overdue(self, now: float) -> list[int]:
        """Numbers whose time has passed, in order; they are no longer under way."""
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now:
            at, number = heapq.heappop(self._deadlines)
            if self._due_at.get(number) == at:  # else it was confirmed
                del self._due_at[number]
                overdue.append(number)
        return sorted(overdue)

    def _send_again(self, number: int, at: float) -> None:
        self._due_at[number] = at
        heapq.heappush(self._deadlines, (at, number))

    def confirm(self, numbers: Iterable[int]) -> None:
        """The receiver holds these."""
        for number in numbers:
            self._unconfirmed.discard(number)
            self._due_at.pop(number, None)

    def restart(self) -> None:
        """The receiver lost what it had, or the link broke: everything is sent again."""
        self._unconfirmed = set(range(len(self._parts)))
        self._tries: Counter[int] = Counter()
        self.link_lost()

    def link_lost(self) -> None:
        """What was under way may be lost."""
        self._due_at: dict[int, float] = {}
        """By parts under way, when to send them again."""
        self._deadlines: list[tuple[float, int]] = []
        """The same as a heap; what is confirmed stays in it until its time."""
        self._unsent: Iterator[int] = iter(range(len(self._parts)))
