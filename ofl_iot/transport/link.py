"""The Link protocol: what every transport offers, and the three events it reports.

A link promises little on purpose: what it took may be lost or come twice. Promises are made end to end by
the layers above, with receipts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class LinkUp:
    """The broker accepted us; `session_present` when it still knew our subscriptions."""

    session_present: bool


@dataclass(frozen=True)
class LinkDown:
    """The connection is gone; the link goes on trying unless it was stopped."""

    reason: str


@dataclass(frozen=True)
class Delivery:
    """A message that arrived.

    Call `ack` once it is durably handled: until then the broker keeps it and delivers it again after a
    reconnect. Calling it twice, or after a reconnect, does nothing.
    """

    topic: str
    payload: bytes
    retained: bool
    """As the broker flagged it: amqtt also flags what it kept while we were away."""
    ack: Callable[[], None] = field(compare=False, repr=False)


LinkEvent = LinkUp | LinkDown | Delivery
LinkHandler = Callable[[LinkEvent], None]


class Link(Protocol):
    """A connection to a broker that mends itself. Every call and every event happens on the loop's thread."""

    def start(self, handler: LinkHandler) -> None:
        """Connect in the background and report events to `handler`, one at a time and in order."""
        ...

    async def stop(self) -> None:
        """Flush what was handed over, say goodbye and close, all within a deadline."""
        ...

    def subscribe(self, pattern: str, qos: int) -> None:
        """Ask for every message whose topic matches; remembered over reconnects, allowed while down."""
        ...

    def unsubscribe(self, pattern: str) -> None:
        """Take `subscribe` back; remembered likewise."""
        ...

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool = False, urgency: int = 0) -> bool:
        """Hand a message over; False if it was not taken because the link is down or clogged.

        While messages wait, lower `urgency` leaves first. Raises TransportError for a message larger than the link
        carries.
        """
        ...

    def withdraw(self, topic: str) -> None:
        """Drop messages to `topic` that have not left yet: nobody wants them any more."""
        ...

    def renew_session(self) -> None:
        """Have the broker forget what waits there for us, if the link is so thin that it would stand in the way."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the last event was LinkUp rather than LinkDown."""
        ...

    @property
    def tried(self) -> bool:
        """Whether a first attempt to connect came to an end, well or not."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it connects, or will: false when it can never do so again although nobody stopped it."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes written to the network since the start, protocol overhead included."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes read from the network since the start, protocol overhead included."""
        ...

    @property
    def rate_bytes_s(self) -> float | None:
        """Bytes a second that leave or come in while data wait; None as long as none had to."""
        ...

    @property
    def publishes(self) -> int:
        """Messages taken over by `publish`."""
        ...

    @property
    def deliveries(self) -> int:
        """Messages passed to the handler."""
        ...

    @property
    def dropped(self) -> int:
        """Messages that arrived but were not passed on: too large, unreadable or never asked for."""
        ...
