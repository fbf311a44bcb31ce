"""What a link asks its broker for: SUBSCRIBE and UNSUBSCRIBE packets, until they are answered."""

from __future__ import annotations

import logging
from typing import Any

from ofl_iot.transport.connection import Client
from ofl_iot.transport.subscriptions import Subscriptions

logger = logging.getLogger(__name__)


class Requests:
    """Patterns asked for or taken back, by the number of the packet that waits for its answer."""

    def __init__(self, subscriptions: Subscriptions, client_id: str) -> None:
        self._subscriptions = subscriptions
        self._client_id = client_id
        self._patterns: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def begin_anew(self, client: Client) -> None:
        """Another connection: ask for all that the broker does not know."""
        self._patterns.clear()
        self.subscribe(client, self._subscriptions.to_request())
        self.cancel_unwanted(client)

    def subscribe(self, client: Client, patterns: list[tuple[str, int]]) -> None:
        """Ask for patterns, each with its QoS."""
        if patterns:
            _, packet = client.subscribe(patterns)
            if packet is not None:
                self._patterns[packet] = [pattern for pattern, _ in patterns]

    def cancel_unwanted(self, client: Client) -> None:
        """Take back what is no longer wanted."""
        if patterns := self._subscriptions.to_cancel():
            _, packet = client.unsubscribe(patterns)
            if packet is not None:
                self._patterns[packet] = patterns

    def answered(self, packet: int, reasons: Any, now: float) -> None:
        """SUBACK: granted or refused, pattern by pattern."""
        for pattern, reason in zip(self._patterns.pop(packet, ()), reasons, strict=False):
            self._subscriptions.answered(pattern, now, granted=not reason.is_failure)
            if reason.is_failure:
                logger.warning("subscription refused client=%s pattern=%s", self._client_id, pattern)

    def cancelled(self, packet: int) -> None:
        """UNSUBACK."""
        for pattern in self._patterns.pop(packet, ()):
            self._subscriptions.forgotten(pattern)
