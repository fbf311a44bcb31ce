"""Between machines and links: commands to topics and bytes, deliveries to events; what cannot be read is counted."""

from __future__ import annotations

import functools
import logging
from collections import Counter

from ofl_iot.errors import ProtocolError
from ofl_iot.ids import FederationId
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind, Topics
from ofl_iot.roles.commands import Publish, Subscribe, Unsubscribe
from ofl_iot.roles.events import Arrived

log = logging.getLogger(__name__)


_URGENCY = {
    Kind.UPDATE: 1,
    **dict.fromkeys((Kind.KEYS, Kind.DECRYPT, Kind.SHARE, Kind.SERVERDEC), 2),
    Kind.CLUSTER_CHANGE: 1,
    **dict.fromkeys((Kind.CONTRIBUTION, Kind.BLOCKS, Kind.GLOBAL_PART, Kind.BOOKS, Kind.MANIFEST), 3),
}
"""Receipts and control leave a thin link first, then chunks, keys and shares, and models last.

A manifest stays behind the parts of its model.
"""


def urgency_of(kind: Kind) -> int:
    """Lower leaves first."""
    return _URGENCY.get(kind, 0)


class Wire:
    """One party's view of the federation's topics."""

    def __init__(self, federation: FederationId) -> None:
        self.topics = Topics(federation)
        self._parse = functools.lru_cache(maxsize=1024)(self.topics.parse)
        self.dropped: Counter[str] = Counter()
        """Messages that could not be read, by sender."""

    def outgoing(self, command: Publish) -> tuple[str, bytes]:
        """Topic and bytes of a message."""
        message = command.message
        return self.topics.build(command.topic), message if isinstance(message, bytes) else encode(message)

    def pattern(self, command: Subscribe | Unsubscribe) -> str:
        """The subscription's pattern."""
        return self.topics.pattern(command.kind, command.sender or "+", command.receiver or "+")

    def incoming(self, topic: str, payload: bytes) -> Arrived | None:
        """The event of a delivery; None when it is not a valid message, which is counted and logged."""
        sender = "unknown"
        try:
            parsed = self._parse(topic)
            sender = parsed.sender
            return Arrived(parsed, decode(parsed.kind, payload))
        except ProtocolError as error:
            self.dropped[sender] += 1
            log.warning("message dropped sender=%s bytes=%d reason=%s", sender, len(payload), error)
            return None
