"""Self-ping: notices a session that can speak but no longer hears."""

from __future__ import annotations

import asyncio
import secrets

from ofl_iot.transport.connection import Client
from ofl_iot.transport.settings import MqttSettings

_FAREWELL = b"farewell"
"""Begins the payload of the echo that precedes a goodbye."""

_PUBACK_BYTES = 4
_PART_BYTES = 64
"""So many bytes at once are no acknowledgement and no answer to a ping: a message is coming in."""


class Echo:
    """When to send ourselves a message, and whether it came back. Times are seconds of one clock."""

    def __init__(self, interval_s: float, timeout_s: float, now: float) -> None:
        self.payload = secrets.token_bytes(8)
        """Fresh for every connection, so that no late echo of another one counts."""
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._due_at = now
        self._waiting = False
        self._written_bytes: int | None = None
        self._left_at: float | None = None

    def due(self, now: float) -> bool:
        """Whether to send one now."""
        return not self._waiting and now >= self._due_at

    def handed_over(self) -> None:
        """One waits to be written."""
        self._waiting = True

    def written(self, bytes_before: int) -> None:
        """The kernel has it, behind so many bytes of this connection."""
        self._written_bytes = bytes_before

    def delivered(self, bytes_delivered: int, now: float) -> None:
        """The peer has so many bytes; until the echo is among them a slow link, not a deaf one, is to blame."""
        if self._written_bytes is not None and bytes_delivered >= self._written_bytes:
            self._written_bytes, self._left_at = None, now

    def hearing(self, now: float) -> None:
        """Part of a message arrived: the answer may be behind it on a thin link."""
        if self._left_at is not None:
            self._left_at = now

    def heard(self, now: float) -> None:
        """A message arrived, this one or any other: we are not deaf."""
        if self._left_at is not None or self._written_bytes is not None:
            self._waiting, self._written_bytes, self._left_at = False, None, None
            self._due_at = now + self._interval_s

    def deaf(self, now: float) -> bool:
        """Whether the answer is overdue."""
        return self._left_at is not None and now - self._left_at >= self._timeout_s


class SelfPing:
    """A link's echoes, from connection to connection."""

    def __init__(self, topic: str | None, settings: MqttSettings, now: float) -> None:
        self.topic = topic
        """None: this link sends itself nothing."""
        self._interval_s = settings.echo_interval_s
        self._timeout_s = settings.echo_timeout_s
        self._packet: int | None = None
        self._received_bytes = self._acknowledgements = 0
        self._completed = False
        """Whether a message arrived whole since bytes were last counted."""
        self._farewell_heard = asyncio.Event()
        self.connected(now)

    def connected(self, now: float) -> None:
        """Another connection: what was sent on the one before does not count."""
        self._echo = Echo(self._interval_s, self._timeout_s, now)
        self._packet = None
        self._received_bytes = self._acknowledgements = 0

    def send_if_due(self, client: Client, now: float) -> None:
        """Send ourselves a message, if it is time."""
        if self.topic is not None and self._echo.due(now):
            self._packet = client.publish(self.topic, self._echo.payload, 0).mid
            self._echo.handed_over()

    def written(self, packet: int, bytes_before: int) -> bool:
        """Whether this packet was an echo; the kernel has it, behind so many bytes."""
        if packet != self._packet:
            return False
        self._packet = None
        self._echo.written(bytes_before)
        return True

    def delivered(self, bytes_delivered: int, now: float) -> None:
        """The peer has so many bytes of this connection."""
        self._echo.delivered(bytes_delivered, now)

    def acknowledged(self) -> None:
        """The broker acknowledged a message: a deaf session gets that too."""
        self._acknowledgements += 1

    def received(self, total_bytes: int, now: float) -> int:
        """Note how many bytes this connection received in all; what is not an acknowledgement is of messages.

        Returns how many bytes came, since the last call, of one message that is not complete yet.
        """
        message_bytes = total_bytes - _PUBACK_BYTES * self._acknowledgements
        came, complete = message_bytes - self._received_bytes, self._completed
        self._received_bytes, self._completed = message_bytes, False
        if came < _PART_BYTES:
            return 0
        self._echo.hearing(now)
        return 0 if complete else came

    def heard(self, now: float) -> None:
        """A message arrived."""
        self._completed = True
        self._echo.heard(now)

    def takes(self, topic: str, payload: bytes | bytearray) -> bool:
        """Whether a message is an echo."""
        if topic != self.topic:
            return False
        if payload == _FAREWELL + self._echo.payload:
            self._farewell_heard.set()
        return True

    def deaf(self, now: float) -> bool:
        """Whether an answer is overdue."""
        return self._echo.deaf(now)

    async def farewell(self, client: Client) -> None:
        """Send a last echo and wait until it is back: what was sent before it has been passed on by then."""
        if self.topic is not None:
            self._farewell_heard.clear()
            client.publish(self.topic, _FAREWELL + self._echo.payload, 0)
            await asyncio.wait_for(self._farewell_heard.wait(), self._timeout_s)
