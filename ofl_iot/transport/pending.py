"""Messages a link took over and has not yet seen settled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

PACKET_OVERHEAD_BYTES = 9
"""Fixed header, topic length and packet number of a PUBLISH, at most."""


@dataclass(frozen=True)
class Outgoing:
    """A message on its way out."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    urgency: int = 0
    """Lower leaves first."""

    @property
    def size(self) -> int:
        """Upper bound of its PUBLISH packet's size, in bytes."""
        return PACKET_OVERHEAD_BYTES + len(self.topic.encode()) + len(self.payload)


class Pending:
    """Messages by packet number until they are written (QoS 0) or acknowledged (QoS 1)."""

    def __init__(self) -> None:
        self.bytes = 0
        self._messages: dict[int, Outgoing] = {}
        self._settled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, packet: int, message: Outgoing) -> None:
        """It was handed to the client under this packet number."""
        self._messages[packet] = message
        self.bytes += message.size

    def __contains__(self, message: Outgoing) -> bool:
        """Whether the broker has yet to acknowledge this very message."""
        return message in self._messages.values()

    def settle(self, packet: int) -> None:
        """It was written or acknowledged."""
        if (message := self._messages.pop(packet, None)) is not None:
            self.bytes -= message.size
            self._settled.set()

    def take_unacknowledged(self) -> list[Outgoing]:
        """Empty the list for a new connection; the QoS 1 messages, in the order they were taken."""
        messages = [message for message in self._messages.values() if message.qos == 1]
        self._messages.clear()
        self.bytes = 0
        return messages

    async def next_settled(self) -> None:
        """Wait until a message is settled."""
        self._settled.clear()
        await self._settled.wait()
