"""Sends the parts of one body until the receiver has confirmed each: a window at a time, again after a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ofl_iot.protocol.messages import Part


class PartSender:
    """The parts under way and those still to come."""

    def __init__(self, parts: Sequence[Part], *, window: int = 16, resend_s: float = 6.0) -> None:
        self._waiting: dict[int, float | None] = dict.fromkeys(range(len(parts)))
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
        under_way = sum(1 for sent in self._waiting.values() if sent is not None and sent + self._resend_s > now)
        room = max(0, self._window - under_way)
        ready = [n for n, sent in self._waiting.items() if sent is None or sent + self._resend_s <= now][:room]
        for number in ready:
            self._waiting[number] = now
        return [self._parts[number] for number in ready]

    def confirm(self, numbers: Iterable[int]) -> None:
        """The receiver holds these."""
        for number in numbers:
            self._waiting.pop(number, None)

    def restart(self) -> None:
        """The receiver lost what it had, or the link broke: everything is sent again."""
        self._waiting = dict.fromkeys(range(len(self._parts)))

    def link_lost(self) -> None:
        """What was under way may be lost."""
        self._waiting = dict.fromkeys(self._waiting)
