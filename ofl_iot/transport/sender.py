"""What a link sends: messages wait where they can still be withdrawn, and are kept until the broker has them."""

from __future__ import annotations

from ofl_iot.transport.connection import Client
from ofl_iot.transport.pending import Outgoing, Pending
from ofl_iot.transport.send_queue import SendQueue
from ofl_iot.transport.settings import MqttSettings

FEED_BYTES = 16 * 1024
"""What the client has to write at most, give or take a message; the rest waits where it can be withdrawn."""

MAX_WAITING = 10_000
"""Messages that wait for the client at most."""


class Sender:
    """Messages that were taken over and are not known to have reached the broker."""

    def __init__(self, settings: MqttSettings) -> None:
        self._settings = settings
        self._queue = SendQueue()
        self._pending = Pending()
        self._handed_bytes = 0
        """What the client got since it last had nothing to write."""

    @property
    def unsettled(self) -> int:
        """Messages that the client has and the broker did not acknowledge."""
        return len(self._pending)

    def has_room(self, message: Outgoing) -> bool:
        """Whether to take one more; an empty queue takes any."""
        taken = self._queue.bytes + self._pending.bytes
        fits = taken + message.size <= self._settings.max_pending_bytes and len(self._queue) < MAX_WAITING
        return fits or not (len(self._queue) or len(self._pending))

    def take(self, message: Outgoing) -> None:
        """Take a message over; a repetition of one that the broker has not acknowledged adds nothing."""
        if message not in self._pending:
            self._queue.put(message)

    def withdraw(self, topic: str) -> None:
        """Drop messages to `topic` that the client does not have yet."""
        self._queue.withdraw(topic)

    def feed(self, client: Client) -> None:
        """Give the client a little at a time: what it has can be neither reordered nor withdrawn."""
        if not client.want_write():
            self._handed_bytes = 0
        while len(self._queue) and self._handed_bytes < FEED_BYTES and len(self._pending) < self._settings.max_inflight:
            message = self._queue.pop()
            packet = client.send(message)
            if packet is None:
                self._queue.put_back([message])
                return
            self._pending.add(packet, message)
            self._handed_bytes += message.size

    def settle(self, packet: int) -> None:
        """A message was written (QoS 0) or acknowledged (QoS 1)."""
        self._pending.settle(packet)

    def begin_anew(self) -> None:
        """Another connection: what was never acknowledged goes first."""
        self._handed_bytes = 0
        self._queue.put_back(self._pending.take_unacknowledged())

    async def drained(self) -> None:
        """Wait until nothing is queued or unacknowledged."""
        while len(self._queue) or len(self._pending):
            await self._pending.next_settled()
