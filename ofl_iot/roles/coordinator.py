"""The coordinator: gathers the fleet, assigns it to leaders, sees to lost ones, and lets the rounds run.

    gathering ──enough devices──▶ assigned ──▶ rounds ──every T_rc rounds──▶ assigned anew

Every decision is durable before it is published; a restart goes on from the last one. Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ofl_iot.errors import RefusedError
from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Part, PartReceipt, Status
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, EvaluateModel, Persist, Publish, SetTimer, Subscribe, tell
from ofl_iot.roles.events import (
    Arrived,
    DecryptionRequested,
    Evaluated,
    Event,
    JobFailed,
    KeysMade,
    LinkDown,
    LinkUp,
    RoundAggregated,
    Started,
    Stopping,
    TimerFired,
    Vector,
)
from ofl_iot.roles.global_model import GlobalModel
from ofl_iot.roles.machine import collect
from ofl_iot.roles.roster import Roster
from ofl_iot.roles.rounds import OPEN, RoundCounter, Rounds
from ofl_iot.roles.rules import FleetRules, ProtectionRules, RoundRules
from ofl_iot.roles.storage import Stored

_GATHER, _GRACE = "coordinator.gather", "coordinator.grace."


@dataclass(frozen=True)
class ModelProfile:
    """Which model the federation learns, and from where it starts."""

    model: bytes
    initial: Vector


@dataclass(frozen=True)
class CoordinatorRules:
    """The sections of the settings that concern the coordinator."""

    rounds: RoundRules
    fleet: FleetRules
    protection: ProtectionRules
    planning: FleetSettings


class CoordinatorMachine:
    """The coordinator's decisions."""

    def __init__(self, profile: ModelProfile, rules: CoordinatorRules) -> None:
        self._rounds_rules = rules.rounds
        self._fleet = rules.fleet
        self.roster = Roster(rules.planning)
        self._model = GlobalModel(profile.model, profile.initial)
        self._rounds = Rounds(self._model, self.roster, rules.rounds, rules.protection)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    @property
    def model(self) -> Vector:
        """The present global model."""
        return self._model.values

    @property
    def counter(self) -> RoundCounter:
        """Where the rounds stand."""
        return self._rounds.counter

    @property
    def doubled_chunks(self) -> int:
        """Chunks that were settled twice; must be none."""
        return self._rounds.doubled_chunks

    @property
    def finished(self) -> bool:
        """Whether the last round is closed."""
        return self._model.final

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event.stored, now)
        elif isinstance(event, LinkUp):
            yield from self._republish(now)
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, TimerFired):
            yield from self._timer(event.name, now)
        elif isinstance(event, Evaluated):
            yield tell("evaluated", round_no=event.round_no, accuracy=event.accuracy, loss=event.loss)
        elif not isinstance(event, LinkDown | Stopping):
            yield from self._computed(event, now)
        if self._rounds.ended:
            self._rounds.ended = False
            yield from self._between_rounds(now)

    def _computed(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, RoundAggregated):
            yield from self._rounds.close(event)
        elif isinstance(event, KeysMade):
            yield from self._rounds.keys_made(event, now)
        elif isinstance(event, DecryptionRequested):
            yield from self._rounds.decryption_requested(event, now)
        elif isinstance(event, JobFailed):
            yield tell("job failed", "error", job=event.job, reason=event.reason)
            if event.job != EvaluateModel.__name__:
                yield from self._rounds.job_failed(event)
        else:
            raise TypeError(f"a coordinator does not expect {type(event).__name__}")

    # --- beginning

    def _start(self, stored: Stored, now: float) -> Iterator[Command]:
        self.roster.restore(stored)
        self._rounds.restore(stored)
        if not self._model.restore(stored):
            yield Persist(self._model.stored())
        for kind in (Kind.STATUS, Kind.TELEMETRY, Kind.CONTRIBUTION, Kind.SHARE):
            yield Subscribe(kind)
        yield Subscribe(Kind.KEYS, receiver=COORDINATOR)
        if self.roster.plan and not self.finished:
            yield from self._rounds.resume(now)

    def _republish(self, now: float) -> Iterator[Command]:
        """A broker may have forgotten what it retained: say everything again that must be known."""
        yield from self._model.publish()
        if self.roster.plan:
            yield from self._publish_assignments(self.roster.devices)
        yield from self._rounds.say_again(now)

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == _GATHER:
            yield from self._begin(now)
        elif name.startswith(_GRACE):
            yield from self._grace_over(DeviceId(name.removeprefix(_GRACE)), now)
        else:
            yield from self._rounds.timer(name, now)

    def _begin(self, now: float) -> Iterator[Command]:
        """Form the first clusters when enough devices are online."""
        if self.roster.plan:
            return
        if len(self.roster.online) < self._fleet.min_devices:
            yield SetTimer(_GATHER, now + max(1.0, self._fleet.gather_s))
            return
        yield from self._recluster()
        yield SetTimer(OPEN, now + self._rounds_rules.interval_s)

    # --- the fleet

    def _between_rounds(self, now: float) -> Iterator[Command]:
        """Re-cluster when it is time, replace who failed, and let the next round come."""
        every = self._rounds_rules.recluster_every
        if every and self.counter.since_reclustering >= every and not self.finished:
            yield from self._recluster()
        for leader in sorted(self._rounds.lost):
            yield from self._replace(leader, now)
        self._rounds.lost.clear()
        if not self.finished:
            yield SetTimer(OPEN, now + self._rounds_rules.interval_s)

    def _recluster(self) -> Iterator[Command]:
        ops = self.roster.recluster()
        self._rounds.reclustered()
        yield Persist(tuple(ops))
        plan = self.roster.plan
        if plan is not None:
            leaders = [cluster.leader for cluster in plan.clusters]
            yield tell("clustered", term=plan.term, clusters=len(leaders), leaders=leaders, churn=plan.churn)
        yield from self._publish_assignments(self.roster.devices)

    def _publish_assignments(self, devices: Iterable[DeviceId]) -> Iterator[Command]:
        for device in list(devices):
            if self.roster.cluster_of(device):
                yield Publish(Topic(Kind.ASSIGNMENT, COORDINATOR, device), self.roster.assignment(device), retain=True)

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Status):
            yield from self._status(sender, message, now)
        elif isinstance(message, Telemetry):
            if sender in self.roster.devices:
                self.roster.devices[sender].telemetry = message
        elif isinstance(message, Part | PartReceipt):
            yield from self._rounds.receive(event.topic.kind, sender, message, now)
        else:
            raise RefusedError(f"a {event.topic.kind.name} message is not for the coordinator")

    def _status(self, device: DeviceId, status: Status, now: float) -> Iterator[Command]:
        if status.model != self._model.digest or status.size != len(self.model):
            raise RefusedError(f"{device} trains another model ({status.size} parameters)")
        ops = self.roster.heard(device, status, now)
        if ops:
            yield Persist(tuple(ops))
        if self.roster.heed_term(status.term) and self.roster.plan:
            self._rounds.recluster_soon()
        if not status.online:
            if self.roster.leads(device):
                yield SetTimer(_GRACE + device, now + self._fleet.leader_grace_s)
            return
        yield CancelTimer(_GRACE + device)
        if self.roster.plan is None:
            if len(self.roster.online) == 1:
                yield SetTimer(_GATHER, now + self._fleet.gather_s)
        elif self.roster.cluster_of(device) is None:
            yield from self._join(device)
        elif status.term < self.roster.assignment(device).term:
            yield from self._publish_assignments((device,))

    def _join(self, device: DeviceId) -> Iterator[Command]:
        """A late joiner is placed at once; its leader learns of it by a revised assignment."""
        yield Persist(tuple(self.roster.join(device)))
        cluster = self.roster.cluster_of(device)
        if cluster is not None:
            yield tell("joined", device=device, leader=cluster.leader)
            yield from self._publish_assignments({cluster.leader, device})

    # --- lost leaders

    def _grace_over(self, leader: DeviceId, now: float) -> Iterator[Command]:
        record = self.roster.devices.get(leader)
        if record is None or record.online or not self.roster.leads(leader):
            return
        if self._rounds.aggregating:
            self._rounds.lost.add(leader)  # its contribution may be about to be settled: wait for the books
        else:
            yield from self._replace(leader, now)

    def _replace(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """A deputy takes over under a new term; what the lost leader had merged is sent to it again."""
        if not self.roster.leads(leader):
            return
        heir, ops = self.roster.replace_leader(leader)
        if heir is None:
            yield tell("cluster without a live device", "warning", leader=leader)
            return
        yield Persist(tuple(ops))
        yield tell("leader replaced", "warning", lost=leader, leader=heir, term=self.roster.terms[heir])
        yield from self._rounds.seat_lost(leader, now)
        cluster = self.roster.cluster_of(heir)
        if cluster is not None:
            yield from self._publish_assignments(cluster.members)
