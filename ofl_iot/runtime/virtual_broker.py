"""An MQTT broker in memory, in virtual time, with the faults that real links and brokers have.

It keeps MQTT's promises and no more: messages of one sender reach one receiver in order while both stay connected;
QoS 1 is delivered at least once to a connected session; what is under way when a connection breaks may be lost or come
twice; a session that is away keeps its queue unless the broker forgets it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ofl_iot.runtime.topic_tree import TopicTree


class LinkRates(msgspec.Struct, frozen=True):
    """Bytes a second that a client's link carries; messages wait for those before them."""

    up: float = math.inf
    down: float = math.inf


UNLIMITED = LinkRates()


class Faults(msgspec.Struct, frozen=True):
    """What may go wrong; the default is a perfect network with a little latency."""

    latency_s: tuple[float, float] = (0.002, 0.02)
    duplicate: float = 0.0
    """Chance that a QoS 1 message is delivered twice."""
    lose_under_way: float = 0.0
    """Chance that a message on a connection that breaks is gone."""
    forget_queue: float = 0.0
    """Chance that a broker has lost the queue of a session that comes back."""
    mean_connected_s: float = 0.0
    """Mean time between losses of a party's connection; 0 = never."""
    mean_away_s: float = 5.0
    mean_alive_s: float = 0.0
    """Mean time between crashes of a party; 0 = never."""
    mean_dead_s: float = 5.0
    crash_between_commands: float = 0.0
    """Chance, per command, that the process dies right behind it."""
    will_delay_s: float = 3.0
    """How long the broker takes to notice a lost connection."""


Schedule = Callable[[float, Callable[[], None]], None]
"""Calls a function at a virtual time."""


@dataclass
class Traffic:
    """Bytes of topics and payloads."""

    up: int = 0
    down: int = 0
    up_by_topic: Counter[str] = field(default_factory=Counter)


@dataclass
class Lane:
    """One direction of a link."""

    rate: float
    free_at: float = 0.0
    """When all that was handed over has gone through."""

    def pass_at(self, size: int, now: float) -> float:
        """When the last of `size` bytes, handed over now, has gone through."""
        self.free_at = max(self.free_at, now) + size / self.rate
        return self.free_at


@dataclass
class Session:
    """A client's side of the broker: who it is survives its connection."""

    client: str
    deliver: Callable[[str, bytes], None]
    will: tuple[str, bytes] | None = None
    rates: LinkRates = UNLIMITED
    patterns: set[str] = field(default_factory=set)
    connection: int = 0
    """Number of the present connection; 0 while away. Messages of an older one are dropped on arrival."""
    queue: list[tuple[str, bytes]] = field(default_factory=list)
    busy_until: float = 0.0
    """Keeps deliveries in order."""
    sending_until: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        self.up, self.down = Lane(self.rates.up), Lane(self.rates.down)


class VirtualBroker:
    """Topics, retained messages and sessions."""

    def __init__(self, faults: Faults, rng: random.Random, schedule: Schedule) -> None:
        self._faults = faults
        self._rng = rng
        self._schedule = schedule
        self._sessions: dict[str, Session] = {}
        self._retained: TopicTree[bytes] = TopicTree()
        self._subscribers: TopicTree[dict[str, Session]] = TopicTree()
        """By pattern, then client."""
        self._connections = 0
        self.messages = 0

    def register(self, session: Session) -> None:
        """Make a client known; it is away at first."""
        self._sessions[session.client] = session

    def session(self, client: str) -> Session:
        """A client's session."""
        return self._sessions[client]

    def connect(self, client: str, now: float) -> None:
        """A client is back: it gets what its session kept."""
        session = self._sessions[client]
        self._connections += 1
        session.connection = self._connections
        session.busy_until = session.sending_until = now
        session.up.free_at = session.down.free_at = now
        waiting, session.queue = session.queue, []
        if self._rng.random() >= self._faults.forget_queue:
            for topic, payload in waiting:
                self._send(session, topic, payload, now)

    def disconnect(self, client: str, now: float) -> None:
        """A client's connection broke; its will follows unless it returns in time."""
        session = self._sessions[client]
        session.connection = 0
        if session.will:
            topic, payload = session.will
            at = now + self._faults.will_delay_s

            def publish_will() -> None:
                if session.connection == 0:
                    self._route(topic, payload, at, retain=True)

            self._schedule(at, publish_will)

    def subscribe(self, client: str, pattern: str, now: float) -> None:
        """Add a subscription; retained messages follow, each time."""
        session = self._sessions[client]
        if pattern not in session.patterns:
            session.patterns.add(pattern)
            self._subscribers.setdefault(pattern, {})[client] = session
        for topic, payload in self._retained.matched_by(pattern):
            self._send(session, topic, payload, now)

    def unsubscribe(self, client: str, pattern: str) -> None:
        """Remove a subscription."""
        self._sessions[client].patterns.discard(pattern)
        self._subscribers.setdefault(pattern, {}).pop(client, None)

    def publish(self, client: str, topic: str, payload: bytes, now: float, *, retain: bool) -> None:
        """A client hands a message over; it reaches the broker a little later, if the connection holds."""
        session = self._sessions[client]
        if not session.connection:
            return
        size = len(topic) + len(payload)
        session.traffic.up += size
        session.traffic.up_by_topic[topic] += size
        connection = session.connection
        passed = session.up.pass_at(size, now)
        at = session.sending_until = max(session.sending_until, passed + self._latency())

        def arrive() -> None:
            if session.connection == connection or self._rng.random() >= self._faults.lose_under_way:
                self._route(topic, payload, at, retain=retain)
                if self._rng.random() < self._faults.duplicate:
                    self._route(topic, payload, at, retain=retain)

        self._schedule(at, arrive)

    def _route(self, topic: str, payload: bytes, now: float, *, retain: bool) -> None:
        self.messages += 1
        if retain:
            self._retained.put(topic, payload)
        receivers: dict[str, Session] = {}
        for sessions in self._subscribers.matching(topic):
            receivers.update(sessions)
        for session in receivers.values():
            self._send(session, topic, payload, now)

    def _send(self, session: Session, topic: str, payload: bytes, now: float) -> None:
        if not session.connection:
            session.queue.append((topic, payload))
            return
        connection = session.connection
        passed = session.down.pass_at(len(topic) + len(payload), now)
        at = session.busy_until = max(session.busy_until, passed + self._latency())

        def arrive() -> None:
            if session.connection == connection:
                session.traffic.down += len(topic) + len(payload)
                session.deliver(topic, payload)
            elif self._rng.random() >= self._faults.lose_under_way:
                self._send(session, topic, payload, at)  # unacknowledged: the session keeps it

        self._schedule(at, arrive)

    def _latency(self) -> float:
        return self._rng.uniform(*self._faults.latency_s)
