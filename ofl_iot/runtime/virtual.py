"""The virtual runtime: the very machines of production under a virtual clock, with seeded faults.

Nothing here waits: time jumps to the next thing that happens. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ofl_iot.ids import FederationId
from ofl_iot.jobs.toolbox import Pace, Toolbox
from ofl_iot.roles.base import Machine
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Measure,
    Persist,
    Publish,
    RenewSession,
    SetTimer,
    Subscribe,
    Unsubscribe,
    Withdraw,
    one_transaction,
)
from ofl_iot.roles.events import Event, LinkDown, LinkUp, Measured, Started, TimerFired, Trained
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.reports.base import Report
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.store import MemoryStore
from ofl_iot.runtime.telemetry import TelemetrySource
from ofl_iot.runtime.virtual_broker import UNLIMITED, Faults, LinkRates, Session, VirtualBroker

Listener = Callable[[str, Report, float], None]
"""Called with a party's name, what it reports, and the time."""


class PartyWire(Protocol):
    """Between one party's commands and the broker's topics and bytes, and back."""

    def outgoing(self, command: Publish) -> tuple[str, bytes]:
        """Topic and bytes of a message."""
        ...

    def pattern(self, command: Subscribe | Unsubscribe) -> str:
        """The subscription's pattern."""
        ...

    def incoming(self, topic: str, payload: bytes) -> Any:
        """The event that a delivery is to the party's machine; None when it cannot be read."""
        ...


@dataclass
class Party:
    """A machine with what carries out its commands. Its store survives crashes, the machine does not."""

    name: str
    make_machine: Callable[[], Machine]
    toolbox: Toolbox
    pace: Pace
    will: tuple[str, bytes] | None = None
    meter: TelemetrySource | None = None
    faults: Faults | None = None
    """None: never crashes, never loses its link."""
    rates: LinkRates = UNLIMITED
    wire: PartyWire | None = None
    """None: the production's; a machine that speaks otherwise brings its own."""
    store: MemoryStore = field(default_factory=MemoryStore)
    machine: Machine | None = None
    life: int = 0
    """Counts the processes; what an earlier one had under way is void."""
    linked: bool = False
    timers: dict[str, int] = field(default_factory=dict)
    crashes: int = 0


class VirtualWorld:
    """Clock, broker and parties."""

    def __init__(self, federation: FederationId, faults: Faults, seed: int, listener: Listener | None = None) -> None:
        self.now = 0.0
        self._rng = random.Random(seed)  # noqa: S311  # a simulation repeats itself
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._federation = federation
        self._faults = faults
        self.broker = VirtualBroker(faults, self._rng, self.at)
        self.parties: dict[str, Party] = {}
        self._wires: dict[str, PartyWire] = {}
        self._listener = listener
        self.told: Counter[type[Report]] = Counter()
        self._timer_ids = itertools.count(1)

    def add(self, party: Party, *, at: float = 0.0) -> None:
        """Let a party begin at a time."""
        self.parties[party.name] = party
        self._wires[party.name] = party.wire or Wire(self._federation)
        self.broker.register(
            Session(party.name, lambda topic, payload: self._deliver(party, topic, payload), party.will, party.rates)
        )
        self.at(at, lambda: self._boot(party))

    def run(self, until: Callable[[], bool], *, limit_s: float) -> bool:
        """Let things happen until a condition holds; False when the time limit came first."""
        while self._heap and not until():
            if self._heap[0][0] > limit_s:
                return False
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
        return until()

    def crash(self, party: Party, *, for_s: float) -> None:
        """Kill a party's process; a new one starts from its store after a while."""
        if party.machine is None:
            return
        party.crashes += 1
        party.machine = None
        party.life += 1
        party.timers.clear()
        self._unlink(party)
        self.at(self.now + for_s, lambda: self._boot(party))

    def cut(self, party: Party, *, for_s: float) -> None:
        """Break a party's connection for a while."""
        if not party.linked:
            return
        self._unlink(party)
        life = party.life
        self._give(party, LinkDown())
        self.at(self.now + for_s, lambda: self._link(party, life))

    # --- lives and links

    def _boot(self, party: Party) -> None:
        party.machine = party.make_machine()
        life = party.life
        self._give(party, Started(party.store.load(), wall=self.now))
        self.at(self.now + 0.01, lambda: self._link(party, life))
        if party.faults and party.faults.mean_alive_s and party.life == life:
            self.at(self.now + self._exponential(party.faults.mean_alive_s), lambda: self._fate(party, life))

    def _fate(self, party: Party, life: int) -> None:
        if party.life == life and party.faults:
            self.crash(party, for_s=self._exponential(party.faults.mean_dead_s))

    def _link(self, party: Party, life: int) -> None:
        if party.life != life or party.linked:
            return
        party.linked = True
        self.broker.connect(party.name, self.now)
        if party.faults and party.faults.mean_connected_s:
            connection = self.broker.session(party.name).connection
            self.at(
                self.now + self._exponential(party.faults.mean_connected_s), lambda: self._lose_link(party, connection)
            )
        self._give(party, LinkUp())

    def _lose_link(self, party: Party, connection: int) -> None:
        if party.faults and self.broker.session(party.name).connection == connection:
            self.cut(party, for_s=self._exponential(party.faults.mean_away_s))

    def _unlink(self, party: Party) -> None:
        if party.linked:
            party.linked = False
            self.broker.disconnect(party.name, self.now)

    # --- events and commands

    def _deliver(self, party: Party, topic: str, payload: bytes) -> None:
        arrived = self._wires[party.name].incoming(topic, payload)
        if arrived:
            self._give(party, arrived)

    def _give(self, party: Party, event: Event) -> None:
        if party.machine is None:
            return
        life = party.life
        for command in one_transaction(party.machine.handle(event, self.now)):
            self._carry_out(party, command)
            if party.life != life:
                return
            chance = party.faults.crash_between_commands if party.faults else 0.0
            if chance and self._rng.random() < chance and party.faults:
                self.crash(party, for_s=self._exponential(party.faults.mean_dead_s))
                return

    def _carry_out(self, party: Party, command: Command) -> None:
        wire, name = self._wires[party.name], party.name
        if isinstance(command, Publish):
            topic, payload = wire.outgoing(command)
            self.broker.publish(name, topic, payload, self.now, retain=command.retain)
        elif isinstance(command, Persist):
            party.store.apply(command.ops)
        elif isinstance(command, SetTimer):
            self._set_timer(party, command)
        elif isinstance(command, CancelTimer):
            party.timers.pop(command.name, None)
        elif isinstance(command, Compute):
            self._compute(party, command.job)
        elif isinstance(command, Subscribe):
            self.broker.subscribe(name, wire.pattern(command), self.now)
        elif isinstance(command, Unsubscribe):
            self.broker.unsubscribe(name, wire.pattern(command))
        elif isinstance(command, Measure):
            self._measure(party)
        elif isinstance(command, Withdraw | RenewSession):
            pass  # a virtual link has let go of everything it was handed, and nothing waits at its broker for long
        else:
            self.told[type(command)] += 1
            if self._listener:
                self._listener(name, command, self.now)

    def _set_timer(self, party: Party, command: SetTimer) -> None:
        number = party.timers[command.name] = next(self._timer_ids)

        def fire() -> None:
            if party.timers.get(command.name) == number:
                del party.timers[command.name]
                self._give(party, TimerFired(command.name))

        self.at(max(command.at, self.now), fire)

    def _compute(self, party: Party, job: Job) -> None:
        life, seconds = party.life, party.pace.seconds(job)

        def finish() -> None:
            if party.life == life:
                result = party.toolbox.run(job)
                # What this machine took is neither the device's time nor the same in the next run.
                self._give(party, replace(result, seconds=seconds) if isinstance(result, Trained) else result)

        self.at(self.now + seconds, finish)

    def _measure(self, party: Party) -> None:
        life = party.life

        def finish() -> None:
            if party.life == life and party.meter:
                self._give(party, Measured(party.meter.read()))

        self.at(self.now, finish)

    def at(self, when: float, happen: Callable[[], None]) -> None:
        """Let something happen at a virtual time."""
        heapq.heappush(self._heap, (when, next(self._order), happen))

    def _exponential(self, mean: float) -> float:
        return self._rng.expovariate(1.0 / mean)
