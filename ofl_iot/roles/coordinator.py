"""The coordinator: gathers the fleet, assigns it to leaders, runs rounds, publishes global models.

    gathering ──enough devices──▶ assigned ──▶ round open ⇄ pause ──every T_rc rounds──▶ assigned anew

Every decision is durable before it is published; a restart goes on from the last one. Algorithm 1 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from ofl_iot.errors import RefusedError
from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Inclusion, Manifest, Part, RoundOpen, Status
from ofl_iot.protocol.parts import digest_of, split_body
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    EvaluateModel,
    Persist,
    Publish,
    SetTimer,
    Subscribe,
    tell,
)
from ofl_iot.roles.events import (
    Arrived,
    Evaluated,
    Event,
    JobFailed,
    LinkDown,
    LinkUp,
    RoundAggregated,
    Started,
    Stopping,
    TimerFired,
    Vector,
)
from ofl_iot.roles.machine import collect
from ofl_iot.roles.roster import Roster
from ofl_iot.roles.round import OpenRound
from ofl_iot.roles.rules import FleetRules, RoundRules
from ofl_iot.roles.storage import Put, Stored, StoreOp

STATE = "coordinator.state"
GLOBAL_STAGE = "global"
_GATHER, _OPEN, _REMIND, _DEADLINE, _GRACE = (
    "coordinator.gather",
    "coordinator.open",
    "coordinator.remind",
    "coordinator.deadline",
    "coordinator.grace.",
)
_REMIND_S = 5.0
_MISSES_BEFORE_REPLACEMENT = 2


@dataclass(frozen=True)
class ModelProfile:
    """Which model the federation learns, and from where it starts."""

    model: bytes
    initial: Vector


class RoundCounter(msgspec.Struct, frozen=True, array_like=True):
    """Where the rounds stand."""

    closed: int = 0
    """Number of the last closed round: the version of the global model."""
    opened: int = 0
    """Number of the last opened round."""
    attempt: int = 0
    """Grows when an open round's contributions were lost with the process."""
    completed: int = 0
    """Rounds closed, abandoned ones not counted."""
    since_reclustering: int = 0


class CoordinatorMachine:
    """The coordinator's decisions."""

    def __init__(self, profile: ModelProfile, rounds: RoundRules, fleet: FleetRules, settings: FleetSettings) -> None:
        self._profile = profile
        self._rules = rounds
        self._fleet = fleet
        self.roster = Roster(settings)
        self.model: Vector = profile.initial.astype(np.float32)
        self.counter = RoundCounter()
        self.manifest: Manifest | None = None
        self.doubled_chunks = 0
        self.finished = False
        self._round: OpenRound | None = None
        self._misses: dict[str, int] = {}
        self._lost: set[DeviceId] = set()
        """Leaders to be replaced as soon as no aggregation is under way."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event.stored, now)
        elif isinstance(event, LinkUp):
            yield from self._republish(now)
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, TimerFired):
            yield from self._timer(event.name, now)
        elif isinstance(event, RoundAggregated):
            yield from self._close(event, now)
        elif isinstance(event, Evaluated):
            yield tell("evaluated", round_no=event.round_no, accuracy=event.accuracy, loss=event.loss)
        elif isinstance(event, JobFailed):
            yield tell("job failed", "error", job=event.job, reason=event.reason)
            if event.job != EvaluateModel.__name__:
                yield from self._abandon("the aggregation failed", now)
        elif not isinstance(event, LinkDown | Stopping):
            raise TypeError(f"a coordinator does not expect {type(event).__name__}")

    # --- beginning

    def _start(self, stored: Stored, now: float) -> Iterator[Command]:
        state = stored.get(STATE, {})
        self.roster.restore(stored)
        if "counter" in state:
            self.counter = msgspec.msgpack.decode(state["counter"], type=RoundCounter)
            self.manifest = msgspec.msgpack.decode(state["manifest"], type=Manifest)
            self.model = np.frombuffer(state["model"], np.float32).copy()
            self.finished = self.manifest.final
        else:
            self.manifest = self._manifest_of(())
            yield Persist(self._stored_model())
        yield Subscribe(Kind.STATUS)
        yield Subscribe(Kind.TELEMETRY)
        yield Subscribe(Kind.CONTRIBUTION)
        if self.finished:
            return
        if self.counter.opened > self.counter.closed and self.roster.seats():
            self.counter = msgspec.structs.replace(self.counter, attempt=self.counter.attempt + 1)
            yield Persist((self._stored_counter(),))
            yield from self._open(now)
        elif self.roster.plan:
            yield SetTimer(_OPEN, now + self._rules.interval_s)

    def _republish(self, now: float) -> Iterator[Command]:
        """A broker may have forgotten what it retained: say everything again that must be known."""
        yield from self._publish_model()
        if self.roster.plan:
            yield from self._publish_assignments(self.roster.devices)
        if self._round:
            yield from self._remind(now)

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == _GATHER:
            yield from self._begin(now)
        elif name == _OPEN:
            yield from self._open_next(now)
        elif name == _REMIND:
            yield from self._remind(now)
        elif name == _DEADLINE:
            yield from self._deadline(now)
        elif name.startswith(_GRACE):
            yield from self._grace_over(DeviceId(name.removeprefix(_GRACE)), now)

    def _begin(self, now: float) -> Iterator[Command]:
        """Form the first clusters when enough devices are online."""
        if self.roster.plan:
            return
        if len(self.roster.online) < self._fleet.min_devices:
            yield SetTimer(_GATHER, now + max(1.0, self._fleet.gather_s))
            return
        yield from self._recluster()
        yield SetTimer(_OPEN, now + self._rules.interval_s)

    def _recluster(self) -> Iterator[Command]:
        yield Persist(tuple(self.roster.recluster()))
        self._misses.clear()
        self._lost.clear()
        plan = self.roster.plan
        assert plan is not None  # noqa: S101  # just made
        yield tell(
            "clustered",
            term=plan.term,
            clusters=len(plan.clusters),
            leaders=[cluster.leader for cluster in plan.clusters],
            churn=plan.churn,
        )
        yield from self._publish_assignments(self.roster.devices)

    def _publish_assignments(self, devices: Iterable[DeviceId]) -> Iterator[Command]:
        for device in list(devices):
            if self.roster.cluster_of(device):
                yield Publish(Topic(Kind.ASSIGNMENT, COORDINATOR, device), self.roster.assignment(device), retain=True)

    # --- messages

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Status):
            yield from self._status(sender, message, now)
        elif isinstance(message, Telemetry):
            if sender in self.roster.devices:
                self.roster.devices[sender].telemetry = message
        elif isinstance(message, Part):
            yield from self._part(sender, message, now)
        else:
            raise RefusedError(f"a {event.topic.kind.name} message is not for the coordinator")

    def _status(self, device: DeviceId, status: Status, now: float) -> Iterator[Command]:
        if status.model != self._profile.model or status.size != len(self.model):
            raise RefusedError(f"{device} trains another model ({status.size} parameters)")
        ops = self.roster.heard(device, status, now)
        if ops:
            yield Persist(tuple(ops))
        if not status.online:
            if self.roster.leads(device):
                yield SetTimer(_GRACE + device, now + self._fleet.leader_grace_s)
            return
        yield CancelTimer(_GRACE + device)
        self._lost.discard(device)
        if self.roster.plan is None:
            if len(self.roster.online) == 1:
                yield SetTimer(_GATHER, now + self._fleet.gather_s)
        elif self.roster.cluster_of(device) is None:
            yield Persist(tuple(self.roster.join(device)))
            cluster = self.roster.cluster_of(device)
            assert cluster is not None  # noqa: S101  # it has just joined
            yield tell("joined", device=device, leader=cluster.leader)
            yield from self._publish_assignments({cluster.leader, device})
        elif status.term < self.roster.assignment(device).term:
            yield from self._publish_assignments((device,))

    # --- rounds

    def _open_next(self, now: float) -> Iterator[Command]:
        if self._round or self.finished or not self.roster.seats():
            return
        opened = max(self.counter.opened, self.counter.closed) + 1
        self.counter = msgspec.structs.replace(self.counter, opened=opened, attempt=0)
        yield Persist((self._stored_counter(),))
        yield from self._open(now)

    def _open(self, now: float) -> Iterator[Command]:
        opened = RoundOpen(
            round_no=self.counter.opened,
            attempt=self.counter.attempt,
            seats=self.roster.seats(),
            base_round=self.counter.closed,
            deadline_s=self._rules.deadline_s,
        )
        self._round = OpenRound(opened, now + self._rules.deadline_s)
        yield tell("round open", round_no=opened.round_no, leaders=len(opened.seats))
        yield SetTimer(_DEADLINE, self._round.deadline)
        yield from self._remind(now)

    def _remind(self, now: float) -> Iterator[Command]:
        """The opening is retained, but a leader whose session lost it must not miss the round."""
        if self._round and not self._round.aggregating:
            yield Publish(Topic(Kind.ROUND_OPEN, COORDINATOR), self._round.opened, retain=True)
            yield SetTimer(_REMIND, now + _REMIND_S)

    def _part(self, leader: DeviceId, part: Part, now: float) -> Iterator[Command]:
        current = self._round
        if current is None or current.aggregating:
            raise RefusedError("no round is open")
        settled = self.roster.settled_in(leader)
        max_bytes = 64 * len(self.model) + 64 * 1024 * (len(settled) + 1)
        receipt = current.take(leader, part, settled, max_bytes)
        yield Publish(Topic(Kind.RECEIPT, COORDINATOR, leader), receipt)
        if current.complete():
            yield from self._aggregate(current, now)

    def _deadline(self, now: float) -> Iterator[Command]:
        current = self._round
        if current is None or current.aggregating:
            return
        for leader in sorted(current.missing):
            self._misses[leader] = self._misses.get(leader, 0) + 1
            if self._misses[leader] >= _MISSES_BEFORE_REPLACEMENT:
                self._lost.add(DeviceId(leader))
        if current.has_quorum(self._rules.quorum):
            yield from self._aggregate(current, now)
        else:
            came, asked = len(current.contributions), len(current.opened.seats)
            yield from self._abandon(f"{came} of {asked} leaders contributed", now)

    def _aggregate(self, current: OpenRound, now: float) -> Iterator[Command]:
        if not current.has_news():
            yield from self._abandon("no leader has merged anything", now)
            return
        yield CancelTimer(_DEADLINE)
        yield CancelTimer(_REMIND)
        yield Compute(current.job())

    def _abandon(self, reason: str, now: float) -> Iterator[Command]:
        """Give the round up; its contributions are part of the next one."""
        if self._round:
            yield tell("round abandoned", "warning", round_no=self._round.opened.round_no, reason=reason)
            yield from self._pause(now)

    def _pause(self, now: float) -> Iterator[Command]:
        self._round = None
        yield CancelTimer(_DEADLINE)
        yield CancelTimer(_REMIND)
        due = self._rules.recluster_every and self.counter.since_reclustering >= self._rules.recluster_every
        if due and not self.finished:
            self.counter = msgspec.structs.replace(self.counter, since_reclustering=0)
            yield Persist((self._stored_counter(),))
            yield from self._recluster()
        for leader in sorted(self._lost):
            yield from self._replace(leader)
        if not self.finished:
            yield SetTimer(_OPEN, now + self._rules.interval_s)

    def _close(self, event: RoundAggregated, now: float) -> Iterator[Command]:
        """Enter the new model and what it settles into the books, then publish it."""
        current = self._round
        if current is None or event.round_no != current.opened.round_no:
            return
        for leader, reason in event.refused.items():
            yield tell("contribution refused", "warning", leader=leader, reason=reason)
        model = self.model + event.update
        if not event.weights or not np.isfinite(model).all():
            yield from self._abandon("no usable contribution", now)
            return
        self.model = model
        ops: list[StoreOp] = []
        for leader in sorted(event.weights):
            for settlement in current.contributions[leader].merged:
                doubled, op = self.roster.settle(DeviceId(settlement.device), settlement.seqs)
                self.doubled_chunks += doubled
                ops.append(op)
            self._misses.pop(leader, None)
        completed = self.counter.completed + 1
        self.counter = RoundCounter(
            closed=event.round_no,
            opened=event.round_no,
            completed=completed,
            since_reclustering=self.counter.since_reclustering + 1,
        )
        self.finished = self._rules.count > 0 and completed >= self._rules.count
        self.manifest = self._manifest_of(self._inclusions(current.inclusions(set(event.weights))))
        yield Persist((*ops, *self._stored_model()))
        yield tell("round closed", round_no=event.round_no, completed=completed, weights=event.weights)
        yield from self._publish_model()
        yield Compute(EvaluateModel(event.round_no, self.model.copy()))
        yield from self._pause(now)

    def _inclusions(self, new: tuple[Inclusion, ...]) -> tuple[Inclusion, ...]:
        """The last one of every leader in office."""
        latest = {i.leader: i for i in (*(self.manifest.included if self.manifest else ()), *new)}
        return tuple(each for leader, each in sorted(latest.items()) if self.roster.leads(DeviceId(leader)))

    def _manifest_of(self, included: tuple[Inclusion, ...]) -> Manifest:
        return Manifest(
            round_no=self.counter.closed,
            model=self._profile.model,
            size=len(self.model),
            digest=digest_of(self._body()),
            included=included,
            final=self.finished,
        )

    def _body(self) -> bytes:
        return self.model.astype("<f4").tobytes()

    def _publish_model(self) -> Iterator[Command]:
        """The parts first, the manifest last: who has read the manifest finds all parts."""
        assert self.manifest is not None  # noqa: S101  # made at the start
        for part in split_body(self._body(), 0, self.counter.closed, GLOBAL_STAGE):
            yield Publish(Topic(Kind.GLOBAL_PART, COORDINATOR, index=part.part), part, retain=True)
        yield Publish(Topic(Kind.MANIFEST, COORDINATOR), self.manifest, retain=True)

    def _stored_model(self) -> tuple[StoreOp, ...]:
        return (
            Put(STATE, "model", self.model.tobytes()),
            Put(STATE, "manifest", msgspec.msgpack.encode(self.manifest)),
            self._stored_counter(),
        )

    def _stored_counter(self) -> Put:
        return Put(STATE, "counter", msgspec.msgpack.encode(self.counter))

    # --- lost leaders

    def _grace_over(self, leader: DeviceId, now: float) -> Iterator[Command]:
        record = self.roster.devices.get(leader)
        if record is None or record.online or not self.roster.leads(leader):
            return
        if self._round and self._round.aggregating:
            self._lost.add(leader)  # its contribution may be about to be settled: wait for the books
            return
        yield from self._replace(leader)
        if self._round and self._round.complete():
            yield from self._aggregate(self._round, now)

    def _replace(self, leader: DeviceId) -> Iterator[Command]:
        """A deputy takes over under a new term; what the lost leader had merged is sent to it again."""
        self._lost.discard(leader)
        self._misses.pop(leader, None)
        if not self.roster.leads(leader):
            return
        heir, ops = self.roster.replace_leader(leader)
        if heir is None:
            yield tell("cluster without a live device", "warning", leader=leader)
            return
        if self._round:
            self._round.drop(leader)
        yield Persist(tuple(ops))
        yield tell("leader replaced", "warning", lost=leader, leader=heir, term=self.roster.terms[heir])
        cluster = self.roster.cluster_of(heir)
        assert cluster is not None  # noqa: S101  # the heir leads it
        yield from self._publish_assignments(cluster.members)
