"""Reads at the broker what a coordinator publishes: model, books, assignments, as a successor would read them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ofl_agents.chaos.counting import MODEL
from ofl_agents.chaos.party import LivePlan, Released, read_journal
from ofl_iot.protocol.messages import Assignment, Books, Manifest, Part
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.coordinator.takeover import TakeoverReader
from ofl_iot.runtime.addressing import Wire
from ofl_iot.transport.link import Delivery, LinkEvent
from ofl_iot.transport.mqtt import MqttLink

_KINDS = (Kind.MANIFEST, Kind.GLOBAL_PART, Kind.BOOKS, Kind.ASSIGNMENT)


@dataclass(eq=False)
class Observer:
    """What was seen at the broker."""

    wire: Wire
    size: int
    values: npt.NDArray[np.float32] | None = None
    books: Books | None = None
    round_no: int = 0
    new_rounds: list[float] = field(default_factory=list)
    """When a round number above all before was seen."""
    settled: dict[tuple[str, bytes], SeqSet] = field(default_factory=dict)
    """Everything ever seen settled, by device and store."""
    first_settled: dict[str, float] = field(default_factory=dict)
    settled_at: dict[str, list[float]] = field(default_factory=dict)
    """When each device's settled chunks were seen to grow."""
    assigned: dict[str, float] = field(default_factory=dict)
    """When each device was assigned first."""
    leaders_of: dict[str, str] = field(default_factory=dict)
    led: set[str] = field(default_factory=set)
    """Devices that led at any time."""

    def __post_init__(self) -> None:
        self._reader = TakeoverReader(MODEL, self.size)

    @property
    def leaders(self) -> set[str]:
        """The present leaders."""
        return set(self.leaders_of.values())

    async def watch(self, link: MqttLink) -> None:
        """Watch until cancelled."""
        for kind in _KINDS:
            link.subscribe(self.wire.topics.pattern(kind), qos=1)
        link.start(self._take)
        try:
            await asyncio.Event().wait()
        finally:
            await link.stop()

    def _take(self, event: LinkEvent) -> None:
        if not isinstance(event, Delivery):
            return
        event.ack()
        arrived = self.wire.incoming(event.topic, event.payload)
        if arrived is None:
            return
        message = arrived.message
        if isinstance(message, Assignment):
            device = str(arrived.topic.receiver)
            self.assigned.setdefault(device, time.time())
            self.leaders_of[device] = message.leader
            self.led.add(message.leader)
        elif isinstance(message, Manifest):
            self._reader.take_manifest(message)
        elif isinstance(message, Part):
            self._reader.take_part(arrived.topic.kind, message)
        self._read()

    def _read(self) -> None:
        state = self._reader.complete()
        if state is None:
            return
        self.values, self.books = state.values, state.books
        if state.manifest.round_no > self.round_no:
            self.round_no = state.manifest.round_no
            self.new_rounds.append(time.time())
        for device, settled in state.books.settled.items():
            key = (device, state.books.stores.get(device, b""))
            before = self.settled.get(key, SeqSet())
            if settled != before:
                self.settled[key] = before.merged(settled)
                self.first_settled.setdefault(device, time.time())
                self.settled_at.setdefault(device, []).append(time.time())

    def unsettled(self, plan: LivePlan, until: float = math.inf) -> Mapping[str, list[Released]]:
        """Return, by device, what its last store released until then and no global model was seen to hold."""
        waiting = {}
        for name in plan.names:
            released = [each for each in read_journal(plan.journal(name)) if each.at <= until]
            if not released:
                continue
            last = released[-1].store
            settled = self.settled.get((name, last), SeqSet())
            missing = [each for each in released if each.store == last and each.seq not in settled]
            if missing:
                waiting[name] = missing
        return waiting
