"""A device's history in bins of a quarter of an hour, and small words about what happens to it."""

from __future__ import annotations

from collections import deque

from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.records import BIN_S, DAY_BINS, Bin, DeviceRecord
from ofl_iot.fleet_view.view import DeviceView
from ofl_iot.protocol.fleet_notes import Vitals

REFUSED_S = 300.0
"""A refusal counts for this long: whoever is still refused hears it again within a heartbeat."""
RATE_S = 10.0
MAX_TEXT = 300
_HELD_BACK = {
    "spent": "{name} has spent its privacy budget and stopped training",
    "ledger-lost": "{name} lost its privacy ledger and stopped training",
    "heat": "{name} rests because it is hot",
    "battery": "{name} rests because its battery is low",
    "no-data": "{name} has no data to train on",
    "user-code": "{name}'s own code fails",
    "outbox": "{name} stopped training: its outbox is full",
    "paused": "{name} was paused by an operator",
}


def plain(text: str) -> str:
    """Return a text for an event: one line, bounded."""
    return wording.plain(text, MAX_TEXT)


def held_back_words(name: str, vitals: Vitals) -> str:
    """Say what keeps a device from training."""
    return _HELD_BACK.get(vitals.held_back, "{name} does not train ({code})").format(name=name, code=vitals.held_back)


def forget_refusals(record: DeviceRecord, now: float) -> bool:
    """Drop refusals that were not repeated; whether there were any."""
    kept = {by: each for by, each in record.refusals.items() if now - each.at_s < REFUSED_S}
    changed, record.refusals = len(kept) != len(record.refusals), kept
    return changed


def fill(bins: list[Bin], record: DeviceRecord, view: DeviceView, since: float, now: float) -> list[Bin]:
    """Enter the time from `since` to `now`; return the bins that changed."""
    touched = []
    while since < now:
        entry = bin_at(bins, since)
        until = min(now, float(entry.start_s + BIN_S))
        entry.watched_s += until - since
        entry.contact_s += (until - since) if record.online else 0.0
        entry.budget = view.budget_left
        entry.leader, entry.term = view.leader or "", record.term
        entry.stop = "" if view.state in ("contributing", "waiting") else view.why.code
        touched.append(entry)
        since = until
    return touched


def uploaded(bins: list[Bin], before: Vitals, after: Vitals, now: float) -> Bin:
    """Enter chunks that a device has sent since its last vitals."""
    entry = bin_at(bins, now)
    entry.uploads += after.sent_chunks - before.sent_chunks
    entry.uploaded_bytes += max(0, after.bytes_up - before.bytes_up)
    return entry


def bin_at(bins: list[Bin], at_s: float) -> Bin:
    """Return the bin that holds a time, made if need be; more than a day old ones go."""
    start = int(at_s // BIN_S) * BIN_S
    for entry in reversed(bins):
        if entry.start_s == start:
            return entry
        if entry.start_s < start:
            break
    entry = Bin(start_s=start)
    bins.append(entry)
    bins.sort(key=lambda each: each.start_s)
    while bins[0].start_s <= bins[-1].start_s - (DAY_BINS + 1) * BIN_S:
        del bins[0]
    return entry


class Rates:
    """Messages and bytes a second, over the last ten seconds."""

    def __init__(self, now: float) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._began = now
        self.messages_s = 0.0
        self.bytes_s = 0.0

    def count(self, size: int, now: float) -> None:
        """Note a message."""
        self._seen.append((now, size))

    def roll(self, now: float) -> bool:
        """Compute the rates anew; whether they moved visibly."""
        while self._seen and self._seen[0][0] < now - RATE_S:
            self._seen.popleft()
        length = min(RATE_S, max(1.0, now - self._began))
        before = (self.messages_s, self.bytes_s)
        self.messages_s = round(len(self._seen) / length, 1)
        self.bytes_s = round(sum(size for _, size in self._seen) / length)
        return before != (self.messages_s, self.bytes_s)
