"""Which leaders miss rounds, and which of them are to be replaced."""

from __future__ import annotations

from collections.abc import Iterable

from ofl_iot.ids import DeviceId
from ofl_iot.roles.coordinator.open_round import OpenRound

_MISSES_BEFORE_REPLACEMENT = 2


class Attendance:
    """The leaders in office: how often each missed rounds in a row."""

    def __init__(self) -> None:
        self.misses: dict[str, int] = {}
        self.lost: set[DeviceId] = set()
        """Leaders that did not do their part and are to be replaced between rounds."""

    def missed(self, leaders: Iterable[str]) -> None:
        """Count leaders that did not contribute, or did not decrypt; twice in a row, and they are replaced."""
        for leader in sorted(leaders):
            self.misses[leader] = self.misses.get(leader, 0) + 1
            if self.misses[leader] >= _MISSES_BEFORE_REPLACEMENT:
                self.lost.add(DeviceId(leader))

    def forgive(self, leader: str) -> None:
        """A leader did its part, or leads no more: it has missed nothing."""
        self.misses.pop(leader, None)

    def clear(self) -> None:
        """Begin a new record, for new leaders."""
        self.misses.clear()
        self.lost.clear()

    def replaceable(self, current: OpenRound) -> list[str]:
        """Return the leaders that count as missing; if most are late, all are slow, and at most one is replaced."""
        missing = sorted(current.missing, key=lambda leader: (-self.misses.get(leader, 0), leader))
        return missing if 2 * len(missing) <= len(current.opened.seats) else missing[:1]
