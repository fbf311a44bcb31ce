"""A federation whose arithmetic shows every chunk that is lost or counted twice.

Each device owns one parameter and training adds 1 to it. Leaders and the coordinator add without weights, and the
numbers are small integers, exact in float32. So when all is quiet the global model holds, for each device, exactly the
sum of what that device durably released: one less and a chunk was lost, one more and it was merged twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.fleet.clustering import ClusteringSettings
from ofl_iot.ids import DeviceId, FederationId, device_id
from ofl_iot.jobs.toolbox import Toolbox
from ofl_iot.protocol.chunks import Chunk, split_update
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.commands import (
    AggregateRound,
    EvaluateModel,
    Job,
    MakeSealingKey,
    PrepareRelease,
    ProtectContribution,
    TrainLocally,
)
from ofl_iot.roles.coordinator.claim import CoordinatorClaim
from ofl_iot.roles.coordinator.machine import CoordinatorMachine, CoordinatorRules, ModelProfile
from ofl_iot.roles.device.machine import DeviceMachine, DeviceProfile, DeviceRules
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.events import (
    ContributionProtected,
    Evaluated,
    Event,
    ReleasePrepared,
    RoundAggregated,
    SealingKeyMade,
    Trained,
)
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.leader.machine import LeaderMachine, LeaderProfile
from ofl_iot.roles.settings import (
    DownloadRules,
    FleetRules,
    LeaderRules,
    ProtectionRules,
    RoundRules,
    TrainingRules,
    UploadRules,
)
from ofl_iot.roles.storage import Put, StoreOp
from ofl_iot.roles.store_identity import StoreIdentity
from ofl_iot.runtime.store import MemoryStore
from ofl_iot.runtime.telemetry import TelemetrySource
from ofl_iot.runtime.virtual import Listener, Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults
from tests.roles.laws import LawfulWorld

MODEL = b"tally---"
FEDERATION = FederationId("tally")
ROUNDS = RoundRules(interval_s=2.0, deadline_s=8.0, recluster_every=3)
FLEET = FleetRules(min_devices=2, gather_s=1.0, leader_grace_s=4.0, heartbeat_s=5.0)
TRAINING = TrainingRules(pause_s=0.5)
DOWNLOAD = DownloadRules(gamma=1.0, timeout_s=2.0)


class AuditedStore(MemoryStore):
    """Notes every chunk that was durably released, apart from the machine's own books."""

    def __init__(self) -> None:
        super().__init__()
        self.released: dict[int, float] = {}

    def apply(self, ops: Sequence[StoreOp]) -> None:
        super().apply(ops)
        for op in ops:
            if isinstance(op, Put) and op.table == OUTBOX:
                chunk = decode(Kind.UPDATE, op.value)
                assert isinstance(chunk, Chunk)
                assert op.key not in self.released, "a sequence number was used twice"
                self.released[int(op.key)] = float(chunk.read_values().sum())


@dataclass
class TallyToolbox:
    """Adds 1 per training while the federation is busy; sums without weights."""

    size: int
    slot: int | None
    world: TallyWorld

    def run(self, job: Job) -> Event:
        if isinstance(job, TrainLocally):
            params = job.params.copy()
            if self.world.busy and self.slot is not None:
                params[self.slot] += self.world.step
            return Trained(job.params, params, 0.0, 1, 0.01)
        if isinstance(job, PrepareRelease):
            places = np.flatnonzero(job.update)
            values = job.update[places]
            return ReleasePrepared(tuple(split_update(job.head, places, values, np.abs(values), precision="single")))
        if isinstance(job, ProtectContribution):
            return ContributionProtected(job.round_no, job.update.tobytes())
        if isinstance(job, AggregateRound):
            total = np.zeros(self.size, np.float32)
            for each in job.contributions:
                total += np.frombuffer(each.payload, np.float32)
            return RoundAggregated(job.round_no, total, {each.leader: 1.0 for each in job.contributions}, {})
        if isinstance(job, MakeSealingKey):
            return SealingKeyMade(bytes(32), bytes([1]) * 32)
        assert isinstance(job, EvaluateModel)
        return Evaluated(job.round_no, 0.0, 0.0)


class Unweighted:
    """Every chunk counts in full."""

    def step(self, device: str, chunk: Chunk, now: float, members: Mapping[str, int], round_no: int) -> float:
        return 1.0

    def effort(self, chunk: Chunk) -> float:
        return 0.0

    def snapshot(self) -> bytes:
        return b""

    def restore(self, stored: bytes) -> None:
        assert stored == b""


@dataclass
class EvenPace:
    train_s: float

    def seconds(self, job: Job) -> float:
        return self.train_s if isinstance(job, TrainLocally) else 0.01


@dataclass
class TallyWorld:
    """Devices, leaders and a coordinator under faults."""

    devices: int
    seed: int
    faults: Faults
    rounds: RoundRules = ROUNDS
    fleet: FleetRules = FLEET
    training: TrainingRules = TRAINING
    download: DownloadRules = DOWNLOAD
    coordinator_faults: Faults | None = None
    """None: the same as all others."""
    meter: Callable[[int], TelemetrySource] | None = None
    """Makes the telemetry of the device at a slot."""
    between_arrivals_s: float = 0.1
    busy: bool = True
    step: float = 1.0
    """What training adds."""
    protection: ProtectionRules = field(default_factory=lambda: ProtectionRules(mode="clear"))
    listener: Listener | None = None
    coordinator: CoordinatorMachine | None = None
    agents: dict[DeviceId, AgentMachine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world: VirtualWorld = LawfulWorld(FEDERATION, self.faults, self.seed, self.listener)
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

    def coordinator_toolbox(self) -> Toolbox:
        return TallyToolbox(self.devices, None, self)

    def device_toolbox(self, slot: int) -> Toolbox:
        return TallyToolbox(self.devices, slot, self)

    def _make_coordinator(self) -> CoordinatorMachine:
        self.coordinator = self.new_coordinator(b"tally")
        return self.coordinator

    def new_coordinator(self, incarnation: bytes, *, take_over: bool = False) -> CoordinatorMachine:
        return CoordinatorMachine(
            ModelProfile(MODEL, np.zeros(self.devices, np.float32)),
            CoordinatorRules(
                rounds=self.rounds,
                fleet=self.fleet,
                protection=self.protection,
                planning=FleetSettings(clustering=ClusteringSettings(clusters=self.fleet.clusters or None)),
                training=msgspec.structs.replace(self.training, steps=1),
            ),
            CoordinatorClaim(incarnation, take_over=take_over),
        )

    def _add_device(self, slot: int, name: DeviceId) -> None:
        draws = itertools.count(1)

        def make() -> AgentMachine:
            identity = StoreIdentity(f"{name}.{next(draws)}".encode())
            device = DeviceMachine(
                DeviceProfile(name, MODEL, self.devices, 2, 10, heartbeat_s=self.fleet.heartbeat_s),
                DeviceRules(
                    training=self.training,
                    upload=UploadRules(gamma=1.0, values="single", window=2, resend_s=2.0),
                    download=self.download,
                    privacy=PrivacyRules(mode="off"),
                ),
                identity,
            )
            keeper = KeyHolder(name, 2.0, self.protection.server)
            leader = LeaderMachine(
                LeaderProfile(
                    name,
                    MODEL,
                    device.model.layout,
                    encrypted=self.protection.mode == "threshold",
                    max_energy=self.protection.largest_update,
                ),
                LeaderRules(block_size=2, snapshot_chunks=4, resend_s=2.0, values="single"),
                Unweighted(),
                keeper,
                identity,
            )
            agent = self.agents[name] = AgentMachine(device, leader, keeper)
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
                store=AuditedStore(),
            ),
            at=self.between_arrivals_s * slot,
        )

    def released(self, name: DeviceId) -> dict[int, float]:
        store = self.world.parties[name].store
        assert isinstance(store, AuditedStore)
        return store.released

    def lose_store(self, name: DeviceId, *, for_s: float = 1.0) -> AuditedStore:
        """Kill a device and empty its folder; returns what it had stored."""
        party = self.world.parties[name]
        self.world.crash(party, for_s=for_s)
        lost, party.store = party.store, AuditedStore()
        assert isinstance(lost, AuditedStore)
        return lost

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
