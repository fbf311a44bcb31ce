"""Reads what a party sends through a proxy: how many bytes for which kind of message, and how many of them again."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from ofl_agents.chaos.counting import FEDERATION
from ofl_iot.errors import TopicError
from ofl_iot.protocol.topics import Topics

_PUBLISH = 3
_NAMES = {1: "connect", 4: "puback", 8: "subscribe", 10: "unsubscribe", 12: "ping", 14: "disconnect"}
AGAIN = " again"
"""Ends the name of a kind whose messages were sent before, byte for byte."""
_ONCE = ("update", "contribution", "keys", "share")
"""Kinds of which no two messages are alike unless one is a repetition."""


@dataclass(eq=False)
class Tally:
    """Bytes that a party sent, by kind of message; a repeated message counts as "KIND again"."""

    by_kind: Counter[str] = field(default_factory=Counter)
    _known: set[bytes] = field(default_factory=set)
    _topics: Topics = field(default_factory=lambda: Topics(FEDERATION))

    def note(self, packet: bytes, body_at: int) -> None:
        """Count one MQTT packet whose body begins at `body_at`."""
        kind = packet[0] >> 4
        if kind != _PUBLISH:
            self.by_kind[_NAMES.get(kind, "other")] += len(packet)
            return
        end = body_at + 2 + int.from_bytes(packet[body_at : body_at + 2], "big")
        topic = packet[body_at + 2 : end].decode(errors="replace")
        payload = packet[end + 2 * bool(packet[0] & 6) :]
        name = self._name(topic)
        digest = hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=8).digest()
        again = AGAIN if digest in self._known and name in _ONCE else ""
        self._known.add(digest)
        self.by_kind[name + again] += len(packet)

    def _name(self, topic: str) -> str:
        try:
            return self._topics.parse(topic).kind.name.lower()
        except TopicError:
            return "other"


class PacketReader:
    """Cuts one connection's bytes into MQTT packets; what a connection ends within is counted as far as it came."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes as they pass."""
        self._held += data
        while (size := _packet_size(self._held)) is not None and len(self._held) >= size[1]:
            self._tally.note(bytes(self._held[: size[1]]), size[0])
            del self._held[: size[1]]

    def close(self) -> None:
        """Count what is left of a packet that was cut."""
        self._tally.by_kind["cut off"] += len(self._held)
        self._held.clear()


def _packet_size(held: bytearray) -> tuple[int, int] | None:
    """Return where the first packet's body begins and where it ends; None while its header is not complete."""
    length = shift = 0
    for at, byte in enumerate(held[1:5], 1):
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return at + 1, at + 1 + length
    return None
