"""Messages that a link took over and has not handed to its client yet.

A thin link must not be filled with copies or with what nobody wants any more. So messages wait here, where they can
still be reordered and withdrawn, and the client gets a few kilobytes at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ofl_iot.transport.pending import Outgoing

_Key = tuple[str, bytes, bool]


class SendQueue:
    """Waiting messages: the most urgent first, equals in the order they came, no message twice."""

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[_Key, Outgoing]] = {}
        self._count = 0
        self.bytes = 0
        """Size of all waiting packets."""

    def __len__(self) -> int:
        return self._count

    def put(self, message: Outgoing) -> None:
        """Append a message; a repetition of one that still waits adds nothing."""
        lane = self._lanes.setdefault(message.urgency, OrderedDict())
        if (key := _key(message)) not in lane:
            lane[key] = message
            self._grow(1, message.size)

    def put_back(self, messages: Sequence[Outgoing]) -> None:
        """Return messages that were taken, ahead of all others of their urgency, in their order."""
        for message in reversed(messages):
            lane = self._lanes.setdefault(message.urgency, OrderedDict())
            key = _key(message)
            if key not in lane:
                self._grow(1, message.size)
            lane[key] = message
            lane.move_to_end(key, last=False)

    def pop(self) -> Outgoing:
        """Take the next message; raises IndexError if none waits."""
        for urgency in sorted(self._lanes):
            if lane := self._lanes[urgency]:
                _, message = lane.popitem(last=False)
                self._grow(-1, -message.size)
                return message
        raise IndexError("no message waits")

    def withdraw(self, topic: str) -> int:
        """Drop every waiting message to `topic`; return how many there were."""
        dropped = 0
        for lane in self._lanes.values():
            for key in [key for key in lane if key[0] == topic]:
                self._grow(-1, -lane.pop(key).size)
                dropped += 1
        return dropped

    def _grow(self, count: int, size: int) -> None:
        self._count += count
        self.bytes += size


def _key(message: Outgoing) -> _Key:
    return message.topic, message.payload, message.retain
