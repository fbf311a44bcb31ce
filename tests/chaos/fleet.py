"""A churning fleet: devices come and go, leaders and the coordinator are killed, and every step is watched."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ofl_iot.fleet.devices import deal_types
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Assignment
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.events import Event
from ofl_iot.roles.leader.cluster_model import device_of
from ofl_iot.roles.settings import FleetRules, RoundRules
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.tally import TallyWorld

COMING_AND_GOING = Faults(
    latency_s=(0.005, 0.1), lose_under_way=0.5, forget_queue=0.2, mean_connected_s=18.0, mean_away_s=2.0
)
"""A tenth of the devices is away at any time."""
DEVICES = 8
ROUNDS = RoundRules(interval_s=1.0, deadline_s=6.0, recluster_every=4)
FLEET = FleetRules(min_devices=4, gather_s=1.0, clusters=2, leader_grace_s=3.0, heartbeat_s=4.0)
KILL_LEADER = 0.3
"""Chance, per round, that some leader is killed."""
COORDINATOR_DIES_EVERY = 10


def every_device_has_one_leader_a_term(machine: CoordinatorMachine, told: dict[tuple[str, int], str]) -> None:
    """Wraps a coordinator so that each assignment it gives is held against those given before."""
    decide = machine.handle

    def handle(event: Event, now: float) -> list[Command]:
        commands = decide(event, now)
        for command in commands:
            if isinstance(command, Publish) and command.topic.kind is Kind.ASSIGNMENT:
                assignment, device = command.message, str(command.topic.receiver)
                assert isinstance(assignment, Assignment)
                leader = told.setdefault((device, assignment.term), assignment.leader)
                assert leader == assignment.leader, f"{device} has two leaders in term {assignment.term}"
        return commands

    machine.handle = handle  # type: ignore[method-assign]


Change = Callable[[Telemetry], Telemetry]


def honest(report: Telemetry) -> Telemetry:
    """The device measures its own pace, which is not that of its type here."""
    return msgspec.structs.replace(report, step_s=None)


@dataclass
class Claimed:
    """A source of telemetry whose reports are changed on their way."""

    source: SimulatedSource
    change: Change

    def read(self) -> Telemetry:
        return self.change(self.source.read())

    def close(self) -> None:
        self.source.close()


@dataclass
class ChurningFleet(TallyWorld):
    """The tally's devices with telemetry, under churn."""

    devices: int = DEVICES
    seed: int = 0
    faults: Faults = COMING_AND_GOING
    rounds: RoundRules = ROUNDS
    fleet: FleetRules = FLEET
    claims: Mapping[int, Change] = field(default_factory=dict)
    """What the device at a slot makes of its telemetry; `honest` where nothing is said."""
    told: dict[tuple[str, int], str] = field(default_factory=dict)
    coordinator_kills: int = 0
    leader_kills: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.meter = self._simulated
        self.coordinator_faults = Faults()
        super().__post_init__()

    def _simulated(self, slot: int) -> Claimed:
        kind, rng = deal_types(self.devices)[slot], np.random.default_rng([self.seed, slot])
        return Claimed(SimulatedSource(kind, rng, lambda: self.world.now), self.claims.get(slot, honest))

    def new_coordinator(self, incarnation: bytes, *, take_over: bool = False) -> CoordinatorMachine:
        machine = super().new_coordinator(incarnation, take_over=take_over)
        every_device_has_one_leader_a_term(machine, self.told)
        return machine

    @property
    def completed(self) -> int:
        return self.coordinator.counter.completed if self.coordinator else 0

    def churn(self, rounds: int, *, limit_s: float = 400.0) -> None:
        """Complete so many rounds while leaders and the coordinator are killed; the invariants hold after each."""
        while self.completed < rounds:
            before = self.completed
            assert self.world.run(lambda before=before: self.completed > before, limit_s=self.world.now + limit_s), (
                f"seed {self.seed} is stuck after {before} rounds"
            )
            self.check_fleet()
            self.world.run(lambda: False, limit_s=self.world.now + self.chance.uniform(0.0, 2.0))
            if self.completed // COORDINATOR_DIES_EVERY > self.coordinator_kills:
                self.coordinator_kills += 1
                self.world.crash(self.world.parties["coordinator"], for_s=self.chance.uniform(0.1, 4.0))
            elif self.chance.random() < KILL_LEADER:
                self._kill_a_leader()

    def _kill_a_leader(self) -> None:
        leading = [name for name, agent in self.agents.items() if agent.leader.leading]
        if leading:
            self.leader_kills += 1
            self.world.crash(self.world.parties[self.chance.choice(leading)], for_s=self.chance.uniform(0.5, 8.0))

    def check_fleet(self) -> None:
        """One leader per cluster and term; every live device has a place."""
        assert self.coordinator is not None
        roster = self.coordinator.roster
        led: set[tuple[int, str]] = set()
        for name, agent in self.agents.items():
            cluster = agent.leader.cluster
            if cluster is None or self.world.parties[name].machine is not agent:
                continue
            members = {(cluster.term, device_of(owner)) for owner in cluster.settled}
            assert not led & members, f"seed {self.seed}: two leaders for {led & members}"
            led |= members
        for device in roster.online:
            assert roster.cluster_of(device) is not None, f"seed {self.seed}: {device} has no place"
        seats = roster.terms
        clusters = {cluster.leader for device in roster.devices if (cluster := roster.cluster_of(device))}
        assert clusters == set(seats), f"seed {self.seed}: {clusters} lead, {set(seats)} have a seat"

    def everyone_is_where_it_belongs(self) -> bool:
        """Whether all devices hold their assignments and all leaders theirs."""
        assert self.coordinator is not None
        roster = self.coordinator.roster
        for name, agent in self.agents.items():
            held = agent.device.assignment
            if held is None or roster.cluster_of(name) is None:
                return False
            wanted = roster.assignment(name)
            leader = self.agents[DeviceId(wanted.leader)].leader.cluster
            if (held.term, held.leader) != (wanted.term, wanted.leader):
                return False
            if leader is None or leader.term != wanted.term or name not in map(device_of, leader.settled):
                return False
        return True
