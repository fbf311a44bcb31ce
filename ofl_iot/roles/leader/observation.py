"""What can be seen of a device without asking it: how fast it trains, how fast its chunks come, when it has a link.

A leader times what arrives and tells the coordinator with its contribution; the coordinator watches the links.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.messages import Observation

MAX_INTERVALS = 32
"""Per device and contribution; enough for a median."""
MIN_ARRIVAL_BYTES = 64 * 1024
"""Less than this arrives in the time of the latencies: it tells nothing of the rate."""


@dataclass
class _Sighting:
    """One device between two contributions."""

    update_no: int = -1
    began: float = 0.0
    """When the update's first chunk came,"""
    latest: float = 0.0
    """and the last one so far,"""
    followed_bytes: int = 0
    """with the bytes since the first."""
    intervals: list[float] = field(default_factory=list)
    size_bytes: int = 0
    arrival_s: float = 0.0


class Observer:
    """A leader's stop watch.

    The time from one update's first chunk to the next one's holds a whole training, whatever else it holds: waiting
    makes a device look slower than it is. The median keeps out what a queue delivers at once.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Sighting] = {}

    def chunk_arrived(self, device: str, chunk: Chunk, now: float) -> None:
        """A chunk came for the first time; one of an older term was sent again and tells nothing."""
        seen = self._seen.setdefault(device, _Sighting())
        if chunk.update_no == seen.update_no:
            seen.followed_bytes += len(chunk.values) + len(chunk.index)
            seen.latest = now
            return
        self._end_update(seen)
        if seen.update_no >= 0 and chunk.update_no > seen.update_no and len(seen.intervals) < MAX_INTERVALS:
            seen.intervals.append(now - seen.began)
        seen.update_no, seen.began, seen.latest = chunk.update_no, now, now

    def link_lost(self) -> None:
        """What comes next may have waited: it is not timed against what came before."""
        for seen in self._seen.values():
            seen.update_no, seen.followed_bytes = -1, 0

    def report(self) -> tuple[Observation, ...]:
        """What was seen since the last report."""
        told = []
        for device, seen in sorted(self._seen.items()):
            self._end_update(seen)
            if seen.intervals or seen.size_bytes:
                interval = statistics.median(seen.intervals) if seen.intervals else 0.0
                told.append(Observation(device, len(seen.intervals), interval, seen.size_bytes, seen.arrival_s))
            seen.intervals, seen.size_bytes, seen.arrival_s = [], 0, 0.0
        return tuple(told)

    def _end_update(self, seen: _Sighting) -> None:
        if seen.followed_bytes >= MIN_ARRIVAL_BYTES and seen.latest > seen.began:
            seen.size_bytes += seen.followed_bytes
            seen.arrival_s += seen.latest - seen.began
        seen.followed_bytes = 0


@dataclass
class ContactWindow:
    """How long a device had a link since the window opened."""

    opened: float
    counted: float
    """Up to when `online_s` counts."""
    online_s: float = 0.0

    @classmethod
    def open(cls, now: float) -> ContactWindow:
        """A window that begins now."""
        return cls(now, now)

    def count(self, now: float, *, online: bool) -> None:
        """The device was online, or was not, since the last count."""
        if online:
            self.online_s += now - self.counted
        self.counted = now

    @property
    def length_s(self) -> float:
        """From opening to the last count."""
        return self.counted - self.opened
