"""Chunks that came while a leader was full: when there is room, who was turned away first comes first.

    full ─▶ held (one chunk a device, its oldest) ─▶ a part is contributed ─▶ merged in the order of arrival, confirmed

Without this, whoever sends next would take the room that a round makes, and a device sends a chunk the more rarely the
more often it was turned away. What is held here is neither durable nor confirmed: its device has it and goes on sending
it, so a restart loses nothing, and nobody waits for a device that went away.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import Chunk

MOST_HELD = 64
"""Chunks that are held; of others only the order in which their devices were turned away is known."""


class WaitingList:
    """Devices in the order in which they were first turned away, with the chunks of those that wait longest."""

    def __init__(self) -> None:
        self._order: dict[str, None] = {}
        self._held: dict[str, Chunk] = {}

    def hold(self, device: str, chunk: Chunk) -> None:
        """There is no room for this chunk now."""
        self._order.setdefault(device)
        held = self._held.get(device)
        if held is None or chunk.seq < held.seq:
            self._held[device] = chunk
        if len(self._held) > MOST_HELD:
            del self._held[next(each for each in reversed(self._order) if each in self._held)]

    def chunks(self) -> list[tuple[DeviceId, Chunk]]:
        """What is held, that of the device that waits longest first."""
        return [(DeviceId(device), self._held[device]) for device in self._order if device in self._held]

    def remove(self, *devices: str) -> None:
        """Chunks of these were merged: with their next ones they queue up behind the others."""
        for device in devices:
            self._order.pop(device, None)
            self._held.pop(device, None)

    def retain(self, members: Collection[str]) -> None:
        """Only these are in the cluster."""
        self.remove(*(self._order.keys() - set(members)))

    def forget(self) -> None:
        """The leadership has ended, or begins anew."""
        self.retain(())

    def snapshot(self) -> bytes:
        """The order, which survives a restart; the chunks are sent again."""
        return msgspec.msgpack.encode(list(self._order))

    def restore(self, stored: bytes) -> None:
        """Take the order up."""
        self._order = dict.fromkeys(msgspec.msgpack.decode(stored, type=list[str]))
