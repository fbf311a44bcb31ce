"""What a link is subscribed to, and what it still has to tell the broker about it."""

from __future__ import annotations

from ofl_iot.errors import TopicError
from ofl_iot.transport.backoff import Backoff

MAX_TOPIC_BYTES = 65_535


class Subscriptions:
    """The patterns a link wants, against those the broker's session is known to hold.

    A refused one is asked for again after a pause: a cluster that has just lost a node refuses what it grants later.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._wanted: dict[str, int] = {}
        self._granted: set[str] = set()
        self._cancelled: set[str] = set()
        self._refused: set[str] = set()
        self._backoff = backoff
        self._ask_again_at = 0.0

    @property
    def granted(self) -> frozenset[str]:
        """Patterns in force."""
        return frozenset(self._granted)

    def want(self, pattern: str, qos: int) -> None:
        """Add a pattern; asking again makes the broker send the retained messages again."""
        self._wanted[checked_pattern(pattern)] = qos
        self._granted.discard(pattern)
        self._cancelled.discard(pattern)

    def cancel(self, pattern: str) -> None:
        """Remove a pattern."""
        if self._wanted.pop(pattern, None) is not None:
            self._granted.discard(pattern)
            self._cancelled.add(pattern)

    def session_lost(self) -> None:
        """The broker remembers nothing of ours."""
        self._granted.clear()
        self._cancelled.clear()
        self._refused.clear()

    def distrust(self) -> None:
        """The broker's session may be broken: ask for everything again."""
        self._granted.clear()

    def to_request(self) -> list[tuple[str, int]]:
        """Patterns the broker has not granted, with their QoS."""
        return [(pattern, qos) for pattern, qos in self._wanted.items() if pattern not in self._granted]

    def to_cancel(self) -> list[str]:
        """Patterns the broker may still hold although we no longer want them."""
        return sorted(self._cancelled)

    def answered(self, pattern: str, now: float, *, granted: bool) -> None:
        """The broker granted or refused a pattern."""
        if pattern not in self._wanted:
            return
        if granted:
            self._granted.add(pattern)
            if not self._refused:
                self._backoff.reset()
        else:
            if not self._refused:
                self._ask_again_at = now + self._backoff.next_s()
            self._refused.add(pattern)

    def to_ask_again(self, now: float) -> list[tuple[str, int]]:
        """Refused patterns whose pause is over, with their QoS; they count as asked for."""
        if now < self._ask_again_at or not self._refused:
            return []
        again, self._refused = self._refused, set()
        return [(pattern, qos) for pattern, qos in self._wanted.items() if pattern in again]

    def forgotten(self, pattern: str) -> None:
        """The broker confirmed a cancellation."""
        self._cancelled.discard(pattern)

    def covers(self, topic: str) -> bool:
        """Whether some wanted pattern matches the topic."""
        return any(matches(pattern, topic) for pattern in self._wanted)


def matches(pattern: str, topic: str) -> bool:
    """Whether an MQTT pattern (`+` one level, `#` the rest) matches a topic."""
    levels = topic.split("/")
    if topic.startswith("$") and pattern[0] in "+#":
        return False
    for depth, wanted in enumerate(pattern.split("/")):
        if wanted == "#":
            return True
        if depth >= len(levels) or wanted not in ("+", levels[depth]):
            return False
    return pattern.count("/") == topic.count("/")


def checked_topic(topic: str) -> str:
    """A topic one can publish to, or TopicError."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic or len(topic.encode()) > MAX_TOPIC_BYTES:
        raise TopicError(f"cannot publish to {topic!r}: a topic has 1 to {MAX_TOPIC_BYTES} bytes and no wildcard")
    return topic


def checked_pattern(pattern: str) -> str:
    """A pattern one can subscribe to, or TopicError."""
    levels = pattern.split("/")
    misplaced = any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
    if not pattern or misplaced or "\0" in pattern or len(pattern.encode()) > MAX_TOPIC_BYTES:
        raise TopicError(f"cannot subscribe to {pattern!r}: '+' stands for one whole level, '#' for the last ones")
    return pattern
