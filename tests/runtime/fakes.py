"""A machine that follows a script, a link whose every moment the test decides, and a party made of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ofl_iot.errors import StoreError
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.messages import Pull, Status
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.events import Evaluated, Event
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.storage import StoreOp
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.store import MemoryStore, Store
from ofl_iot.transport.link import Delivery, LinkDown, LinkEvent, LinkHandler, LinkUp

FEDERATION = FederationId("lab")
TOPICS = Topics(FEDERATION)
ME = DeviceId("me")
Rule = Callable[[Event, float], Sequence[Command]]


def pull_topic(sender: str) -> str:
    return TOPICS.build(Topic(Kind.PULL, DeviceId(sender), ME))


def pull(number: int) -> bytes:
    return encode(Pull(number, b"", 1))


def status(number: int) -> Publish:
    """A publication that a test recognises by its number."""
    return Publish(Topic(Kind.STATUS, ME), Status(True, number, 0, b"12345678", 1))


class Script:
    """A machine whose decisions are a function of the test; it notes what it is told."""

    def __init__(self, rule: Rule, told: list[Event]) -> None:
        self._rule = rule
        self.told = told
        self.events: list[Event] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        self.told.append(event)
        self.events.append(event)
        return list(self._rule(event, now))


@dataclass
class FakeLink:
    """Implements `Link`; nothing happens unless the test says so."""

    connected: bool = False
    tried: bool = False
    alive: bool = True
    published: list[tuple[str, bytes]] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    urgencies: list[int] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    rate_bytes_s: float | None = None
    patterns: set[str] = field(default_factory=set)
    acknowledged: list[bytes] = field(default_factory=list)
    handler: LinkHandler | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    publishes: int = 0
    deliveries: int = 0
    dropped: int = 0

    def start(self, handler: LinkHandler) -> None:
        self.journal.append("start")
        self.handler = handler

    async def stop(self) -> None:
        self.journal.append("stop")

    def subscribe(self, pattern: str, qos: int) -> None:
        self.patterns.add(pattern)

    def unsubscribe(self, pattern: str) -> None:
        self.patterns.discard(pattern)

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool = False, urgency: int = 0) -> bool:
        self.published.append((topic, payload))
        self.urgencies.append(urgency)
        return self.connected

    def renew_session(self) -> None:
        """It keeps no session."""

    def withdraw(self, topic: str) -> None:
        self.withdrawn.append(topic)

    def up(self) -> None:
        self.connected = self.tried = True
        self.tell(LinkUp(session_present=False))

    def down(self) -> None:
        self.connected = False
        self.tell(LinkDown("the test said so"))

    def deliver(self, topic: str, payload: bytes) -> None:
        self.tell(Delivery(topic, payload, retained=False, ack=lambda: self.acknowledged.append(payload)))

    def tell(self, event: LinkEvent) -> None:
        assert self.handler is not None
        self.handler(event)


class BreakableStore(MemoryStore):
    """A disk that is full, or unreadable, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.unreadable = False
        self.closed = False

    def apply(self, ops: Sequence[StoreOp]) -> None:
        if self.full:
            raise StoreError("no space")
        super().apply(ops)

    def load(self) -> Any:
        if self.unreadable:
            raise StoreError("cannot be read")
        return super().load()

    def close(self) -> None:
        self.closed = True


class Workshop:
    """Runs every job as the test says."""

    def __init__(self, work: Callable[[Job], Event] | None = None) -> None:
        self._work = work or (lambda _: Evaluated(0, 0.0, 0.0))

    def run(self, job: Job) -> Event:
        return self._work(job)


@dataclass
class Bench:
    """A party on the bench, with handles on all it touches."""

    party: LiveParty
    link: FakeLink
    store: Any
    told: list[Event]
    wire: Wire


@contextlib.asynccontextmanager
async def running(
    rule: Rule, *, store: Store | None = None, link: Any = None, work: Callable[[Job], Event] | None = None, **more: Any
) -> AsyncIterator[Bench]:
    """A party whose link has been started; stopped at the end."""
    told: list[Event] = []
    store, link, wire = store or BreakableStore(), link or FakeLink(), Wire(FEDERATION)
    with ThreadPoolExecutor(2) as executor:
        equipment = Equipment(
            link=link,
            store=store,
            toolbox=Workshop(work),
            wire=wire,
            executor=executor,
            **{"store_retry_s": 0.02, **more},
        )
        party = LiveParty(ME, lambda: Script(rule, told), equipment)
        task = asyncio.create_task(party.run())
        try:
            yield Bench(party, link, store, told, wire)
        finally:
            party.stop()
            await asyncio.wait_for(task, 10)
