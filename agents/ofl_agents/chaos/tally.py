"""The counting federation in virtual time, under seeded faults, with a record of what was durably released."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ofl_agents.chaos.counting import FEDERATION, CountingPlan, TallyToolbox
from ofl_iot.ids import DeviceId, device_id
from ofl_iot.jobs.toolbox import Toolbox
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.settings import DownloadRules, FleetRules, LeaderRules, ProtectionRules, RoundRules, TrainingRules
from ofl_iot.roles.storage import Put, StoreOp
from ofl_iot.roles.store_identity import TABLE as STORE
from ofl_iot.runtime.store import MemoryStore
from ofl_iot.runtime.telemetry import TelemetrySource
from ofl_iot.runtime.virtual import Listener, Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import UNLIMITED, Faults, LinkRates

DEFAULTS = CountingPlan(devices=1)


class AuditedStore(MemoryStore):
    """Notes every chunk that was durably released, apart from the machine's own books."""

    def __init__(self) -> None:
        super().__init__()
        self.released: dict[int, float] = {}
        self.released_bytes: dict[int, int] = {}
        self.reused: list[int] = []
        """Sequence numbers that were used twice; there must be none."""

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations and note the chunks among them."""
        super().apply(ops)
        for op in ops:
            if isinstance(op, Put) and op.table == OUTBOX:
                chunk, seq = decode(Kind.UPDATE, op.value), int(op.key)
                if seq in self.released:
                    self.reused.append(seq)
                if isinstance(chunk, Chunk):
                    self.released[seq] = float(chunk.read_values().sum())
                    self.released_bytes[seq] = len(op.value)

    @property
    def id(self) -> bytes:
        """The store's identity; empty while nothing was stored."""
        return self.load().get(STORE, {}).get("id", b"")


@dataclass
class EvenPace:
    """Training takes a fixed time, everything else nearly none."""

    train_s: float

    def seconds(self, job: Job) -> float:
        """Seconds from the command to its result."""
        return self.train_s if isinstance(job, TrainLocally) else 0.01


@dataclass
class TallyWorld:
    """Devices, leaders and a coordinator under faults."""

    devices: int
    seed: int
    faults: Faults
    rounds: RoundRules = DEFAULTS.rounds
    fleet: FleetRules = DEFAULTS.fleet
    training: TrainingRules = DEFAULTS.training
    download: DownloadRules = DEFAULTS.download
    leader: LeaderRules = DEFAULTS.leader
    coordinator_faults: Faults | None = None
    """None: the same as all others."""
    meter: Callable[[int], TelemetrySource] | None = None
    """Makes the telemetry of the device at a slot."""
    rates: Callable[[int], LinkRates] = lambda _slot: UNLIMITED
    """The link of the device at a slot."""
    between_arrivals_s: float = 0.1
    width: int = 1
    busy: bool = True
    step: float = 1.0
    """What training adds."""
    protection: ProtectionRules = DEFAULTS.protection
    listener: Listener | None = None
    coordinator: CoordinatorMachine | None = None
    coordinators_lost: int = 0
    """How often the coordinator's folder was wiped; each successor takes over."""
    agents: dict[DeviceId, AgentMachine] = field(default_factory=dict)
    lost: dict[DeviceId, list[AuditedStore]] = field(default_factory=dict)
    """The stores that a device had before its present one."""

    def __post_init__(self) -> None:
        self.plan = CountingPlan(
            devices=self.devices,
            width=self.width,
            rounds=self.rounds,
            fleet=self.fleet,
            training=self.training,
            download=self.download,
            leader=self.leader,
            protection=self.protection,
        )
        self.plan = self.make_plan(self.plan)
        self.world = self.make_world()
        self.names = [device_id(f"d{number}") for number in range(self.devices)]
        self.world.add(
            Party(
                "coordinator",
                self._make_coordinator,
                self.coordinator_toolbox(),
                EvenPace(0.01),
                faults=self.coordinator_faults or self.faults,
            )
        )
        for slot, name in enumerate(self.names):
            self._add_device(slot, name)

    def make_plan(self, plan: CountingPlan) -> CountingPlan:
        """Return the rules of the federation."""
        return plan

    def make_world(self) -> VirtualWorld:
        """Return the empty world."""
        return VirtualWorld(FEDERATION, self.faults, self.seed, self.listener)

    def coordinator_toolbox(self) -> Toolbox:
        """Return what runs the coordinator's jobs."""
        return TallyToolbox(self.plan.size, None, self, self.width)

    def device_toolbox(self, slot: int) -> Toolbox:
        """Return what runs a device's jobs."""
        return TallyToolbox(self.plan.size, slot, self, self.width)

    def _make_coordinator(self) -> CoordinatorMachine:
        suffix = str(self.coordinators_lost).encode() if self.coordinators_lost else b""
        self.coordinator = self.new_coordinator(b"tally" + suffix, take_over=self.coordinators_lost > 0)
        return self.coordinator

    def new_coordinator(self, incarnation: bytes, *, take_over: bool = False) -> CoordinatorMachine:
        """Return a coordinator that adds up."""
        return self.plan.coordinator(incarnation, take_over=take_over)

    def _add_device(self, slot: int, name: DeviceId) -> None:
        draws = itertools.count(1)

        def make() -> AgentMachine:
            agent = self.agents[name] = self.plan.agent(name, f"{name}.{next(draws)}".encode())
            return agent

        will = make().device.status(online=False)
        topic = Topics(FEDERATION).build(Topic(Kind.STATUS, name))
        self.world.add(
            Party(
                name,
                make,
                self.device_toolbox(slot),
                EvenPace(0.3 + 0.2 * slot),
                will=(topic, encode(will)),
                meter=self.meter(slot) if self.meter else None,
                faults=self.faults,
                rates=self.rates(slot),
                store=AuditedStore(),
            ),
            at=self.between_arrivals_s * slot,
        )

    def store_of(self, name: DeviceId) -> AuditedStore:
        """Return a device's present store."""
        store = self.world.parties[name].store
        if not isinstance(store, AuditedStore):
            raise TypeError(f"the store of {name} is not audited")
        return store

    def released(self, name: DeviceId) -> dict[int, float]:
        """Return the sums of the chunks that a device's present store released, by number."""
        return self.store_of(name).released

    def lose_store(self, name: DeviceId, *, for_s: float = 1.0) -> AuditedStore:
        """Kill a device and empty its folder; returns what it had stored."""
        party, lost = self.world.parties[name], self.store_of(name)
        self.world.crash(party, for_s=for_s)
        party.store = AuditedStore()
        self.lost.setdefault(name, []).append(lost)
        return lost

    def lose_coordinator(self, *, for_s: float) -> None:
        """Kill the coordinator and empty its folder; its successor takes over what is left at the broker."""
        party = self.world.parties["coordinator"]
        self.world.crash(party, for_s=for_s)
        party.store = MemoryStore()
        self.coordinators_lost += 1

    def settle(self, *, limit_s: float) -> bool:
        """Stop training and faults; let everything that was released reach the global model."""
        self.busy = False
        for party in self.world.parties.values():
            party.faults = None
        return self.world.run(self._quiet, limit_s=self.world.now + limit_s)

    def _quiet(self) -> bool:
        running = all(party.machine for party in self.world.parties.values())
        known = self.coordinator is not None and self.coordinator.roster.devices.keys() >= set(self.names)
        return (running and known) and all(
            not agent.device.outbox.unsettled and not np.any(agent.device.model.unreleased)
            for agent in self.agents.values()
        )
