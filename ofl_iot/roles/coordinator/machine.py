"""The coordinator: gathers the fleet, assigns it to leaders, sees to lost ones, and lets the rounds run.

    gathering ──enough devices──▶ assigned ──▶ rounds ──every T_rc rounds, or when the fleet changed──▶ assigned anew

Every decision is durable before it is published; a restart goes on from the last one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.errors import RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Books, Card, Manifest, Part, PartReceipt, Status
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import collect
from ofl_iot.roles.commands import CancelTimer, Command, Persist, Publish, SetTimer, Subscribe, Unsubscribe
from ofl_iot.roles.coordinator.claim import CoordinatorClaim, Verdict
from ofl_iot.roles.coordinator.clusters import GRACE, Clusters
from ofl_iot.roles.coordinator.global_model import GlobalModel
from ofl_iot.roles.coordinator.profile import CoordinatorRules, ModelProfile
from ofl_iot.roles.coordinator.progress import RoundCounter
from ofl_iot.roles.coordinator.roster import Roster
from ofl_iot.roles.coordinator.rounds import OPEN, Rounds
from ofl_iot.roles.coordinator.settled_record import books_message, records_from
from ofl_iot.roles.coordinator.takeover import TakeoverReader
from ofl_iot.roles.decryption.remote import answers_of
from ofl_iot.roles.events import (
    Arrived,
    DecryptionRequested,
    Evaluated,
    Event,
    JobFailed,
    KeysMade,
    LeanAsked,
    LinkDown,
    LinkUp,
    RoundAggregated,
    Started,
    Stopping,
    TimerFired,
    Vector,
)
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.refusals import Refusals
from ofl_iot.roles.reports.base import JobFailure
from ofl_iot.roles.reports.coordinator import (
    AllBudgetsSpent,
    DeviceStoreLost,
    ModelEvaluated,
    NothingToTakeOver,
    RivalCoordinator,
    TakeoverBegun,
    TakeoverDone,
)
from ofl_iot.roles.storage import Stored

_GATHER, _INHERIT, _LOOK = "coordinator.gather", "coordinator.inherit", "coordinator.look"
_INHERIT_S = 10.0
"""How long a coordinator that takes over waits for the next piece of what the other left."""
_LOOK_S = 5.0
"""How long a coordinator that resumes waits for the manifest at the broker before it publishes anything."""


class CoordinatorMachine:
    """The coordinator's decisions."""

    def __init__(self, profile: ModelProfile, rules: CoordinatorRules, claim: CoordinatorClaim | None = None) -> None:
        self._rounds_rules = rules.rounds
        self._fleet = rules.fleet
        self._server = rules.protection.server
        self._claim = claim or CoordinatorClaim(b"", take_over=False)
        self.roster = Roster(rules.planning, rules.training, rules.fleet.max_samples_ratio)
        self._card = profile.card
        self._model = GlobalModel(profile.model, profile.initial, lambda: self.roster.highest_term, self._books)
        self._rounds = Rounds(self._model, self.roster, rules.rounds, rules.protection)
        self._clusters = Clusters(self.roster, self._rounds, rules.rounds, rules.fleet)
        self._rounds.notes.version = profile.version
        self._refusals = Refusals(COORDINATOR)
        self._takeover: TakeoverReader | None = None
        """What another coordinator left, while it is read."""
        self._moved_meanwhile: dict[DeviceId, Status] = {}
        """Devices that announced another store before this coordinator knew whether it may go on."""
        self._unverified = False
        """Whether this state may be an old copy: until the broker's manifest was read nothing is published."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        self._rounds.now = now
        return collect(self._decide(event, now), event)

    @property
    def model(self) -> Vector:
        """The present global model."""
        return self._model.values

    @property
    def model_round(self) -> int:
        """The round that made the present global model; 0 for the initial one."""
        return self._model.round_no

    @property
    def model_digest(self) -> bytes:
        """Which model is learnt."""
        return self._model.digest

    @property
    def counter(self) -> RoundCounter:
        """Where the rounds stand."""
        return self._rounds.progress.counter

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
            evaluated = _evaluation(event)
            yield evaluated
            yield from self._rounds.notes.evaluated(evaluated.round_no, evaluated.metrics)
        elif not isinstance(event, LinkDown | Stopping):
            yield from self._computed(event, now)
        if self._rounds.ended:
            self._rounds.ended = False
            yield from self._between_rounds(now)

    def _computed(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, RoundAggregated):
            yield from self._rounds.close(event)
        elif isinstance(event, KeysMade):
            yield from self._rounds.key.made(event)
            yield from self._clusters.key_made(now)
            yield from self._rounds.open_if_overdue(now)
        elif isinstance(event, DecryptionRequested | LeanAsked):
            yield from self._rounds.decryption_requested(event, now)
        elif isinstance(event, JobFailed):
            yield JobFailure(job=event.job.__name__, round_no=event.round_no, reason=event.reason)
            if event.job is not EvaluateModel:
                yield from self._rounds.job_failed(event, now)
        else:
            raise TypeError(f"a coordinator does not expect {type(event).__name__}")

    # --- beginning

    def _start(self, stored: Stored, now: float) -> Iterator[Command]:
        self.roster.restore(stored, now)
        self._rounds.restore(stored)
        self._clusters.restore(stored)
        ops = self._claim.restore(stored)
        self.roster.incarnation = self._model.incarnation = self._claim.incarnation
        if not self._model.restore(stored):
            ops.extend(self._model.stored())
        if ops:
            yield Persist(tuple(ops))
        for kind in (Kind.STATUS, Kind.TELEMETRY, Kind.CONTRIBUTION):
            yield Subscribe(kind)
        yield answers_of(self._server)
        yield Subscribe(Kind.KEYS, receiver=COORDINATOR)
        if self._claim.taking_over and not self._claim.discard_model:
            self._takeover = TakeoverReader(self._model.digest, len(self.model))
            for kind in (Kind.GLOBAL_PART, Kind.BOOKS):
                yield Subscribe(kind)
        elif self.roster.plan:
            self._unverified = True

    def _republish(self, now: float) -> Iterator[Command]:
        """A broker may have forgotten what it retained: say everything again that must be known.

        The manifest is asked for first, and before the first clustering nothing is said: what another coordinator left
        there is read before it is overwritten.
        """
        yield Subscribe(Kind.MANIFEST)
        if self._takeover:
            if self._takeover.waiting:
                yield SetTimer(_INHERIT, now + _INHERIT_S)
            return
        if self._unverified:
            yield SetTimer(_LOOK, now + _LOOK_S)
            return
        if self._card:
            yield Publish(Topic(Kind.CARD, COORDINATOR), Card(self._card), retain=True)
        if self.roster.plan:
            yield from self._model.publish()
            yield from self._clusters.announce(self.roster.devices)
            yield from self._clusters.notes.publish(again=True)
        yield from self._rounds.republish(now)

    def _manifested(self, manifest: Manifest, now: float) -> Iterator[Command]:
        """A manifest is out, ours or of another coordinator."""
        begun = self.roster.plan is not None and self._takeover is None
        verdict = self._claim.judge(manifest, self._model.manifest, begun=begun)
        if self._unverified:
            yield from self._resume(now)
        if verdict is Verdict.BELOW:
            yield RivalCoordinator(term=manifest.term, round_no=manifest.round_no)
            yield from self._republish(now)
        elif verdict is Verdict.TAKE_OVER:
            yield TakeoverBegun(term=manifest.term, round_no=manifest.round_no)
            self.roster.observe_term(manifest.term + 1)
            if self._takeover:
                if self._takeover.take_manifest(manifest):
                    yield CancelTimer(_GATHER)
                    yield from self._inherit(now)
            elif self.roster.plan:
                self._rounds.progress.recluster_soon()
                yield Persist(tuple(self.roster.stored()))
                yield from self._republish(now)

    def _resume(self, now: float) -> Iterator[Command]:
        """Go on from the own state: the broker holds nothing newer, or nothing at all."""
        self._unverified = False
        yield CancelTimer(_LOOK)
        if not self.finished:
            yield from self._rounds.resume(now)
        yield from self._republish(now)
        for device in self.roster.online:
            if self.roster.cluster_of(device) is None:
                yield from self._clusters.join(device)
        yield from self._clusters.watch_absent_leaders(now)
        moved, self._moved_meanwhile = self._moved_meanwhile, {}
        for device, status in moved.items():
            yield from self._status(device, status, now)

    def _inherit(self, now: float) -> Iterator[Command]:
        """Go on from the other's model and books; until the fleet has gathered, a later version may still come."""
        left = self._takeover.complete() if self._takeover else None
        if left is None:
            if self._takeover and self._takeover.waiting:
                yield SetTimer(_INHERIT, now + _INHERIT_S)
            return
        ops = [*self._model.inherit(left), *self.roster.inherit(records_from(left.books))]
        ops.extend(self._rounds.inherit(left.manifest.round_no, left.books.completed))
        yield Persist(tuple(ops))
        yield TakeoverDone(round_no=left.manifest.round_no, devices=len(left.books.settled))
        yield CancelTimer(_INHERIT)
        yield SetTimer(_GATHER, now + self._fleet.gather_s)

    def _nothing_inherited(self, now: float) -> Iterator[Command]:
        if self._takeover:
            self._takeover.check_empty()
            yield NothingToTakeOver(reason="the broker holds nothing: going on from our own")
            yield from self._end_of_reading()
            if self.roster.plan:
                self.roster.observe_claimed_terms()
                self._rounds.progress.recluster_soon()
                yield Persist(tuple(self.roster.stored()))
                yield from self._rounds.resume(now)
                yield from self._republish(now)
                yield from self._clusters.watch_absent_leaders(now)
            else:
                yield SetTimer(_GATHER, now + self._fleet.gather_s)

    def _end_of_reading(self) -> Iterator[Command]:
        self._takeover = None
        yield CancelTimer(_INHERIT)
        for kind in (Kind.GLOBAL_PART, Kind.BOOKS):
            yield Unsubscribe(kind)

    def _books(self) -> Books:
        return books_message(self.counter.completed, self.roster.books)

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == _GATHER:
            yield from self._begin(now)
        elif name == _INHERIT:
            yield from self._nothing_inherited(now)
        elif name == _LOOK:
            yield from self._resume(now)
        elif name.startswith(GRACE):
            yield from self._clusters.grace_over(DeviceId(name.removeprefix(GRACE)), now)
        else:
            yield from self._rounds.timer(name, now)

    def _begin(self, now: float) -> Iterator[Command]:
        """Form the first clusters when enough devices are online."""
        if self.roster.plan or self.finished:
            return
        if self._takeover:
            yield from self._end_of_reading()
        if self.roster.online_count < self._fleet.min_devices:
            yield SetTimer(_GATHER, now + max(1.0, self._fleet.gather_s))
            return
        self.roster.observe_claimed_terms()
        yield from self._clusters.form(now)
        yield from self._model.publish()
        yield from self._rounds.key.prepare(self.roster.highest_term, tuple(self.roster.terms), now)
        yield SetTimer(OPEN, now + self._rounds_rules.interval_s)

    # --- the fleet

    def _between_rounds(self, now: float) -> Iterator[Command]:
        """Note what was learnt of the devices, re-cluster when it is time, replace who failed, and go on."""
        learnt = self.roster.take_stock(now)
        if learnt:
            yield Persist(tuple(learnt))
        yield from self._clusters.between_rounds(now, last=self.finished)
        if self._nothing_left_to_learn():
            yield from self._conclude()
        if not self.finished:
            yield SetTimer(OPEN, now + self._rounds.progress.interval_s)

    def _nothing_left_to_learn(self) -> bool:
        """Return whether a bounded run can stop early: all budgets are spent and recent rounds were empty.

        What a single cluster still holds stays out: alone it would be seen.
        """
        return bool(self._rounds_rules.count) and self._rounds.progress.idle and self.roster.budgets_spent()

    def _conclude(self) -> Iterator[Command]:
        """The present model is the last one."""
        self._model.conclude()
        yield Persist(self._model.stored())
        yield AllBudgetsSpent(completed=self.counter.completed)
        yield from self._model.publish()

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Status):
            yield from self._status(sender, message, now)
        elif isinstance(message, Telemetry):
            self.roster.reported(sender, message)
            if self.roster.should_yield(sender):
                yield from self._clusters.yields(sender, now)
        elif isinstance(message, Manifest):
            yield from self._manifested(message, now)
        elif isinstance(message, Part) and event.topic.kind in (Kind.GLOBAL_PART, Kind.BOOKS):
            if self._takeover and self._takeover.take_part(event.topic.kind, message):
                yield from self._inherit(now)
        elif isinstance(message, Part | PartReceipt):
            yield from self._rounds.receive(event.topic.kind, sender, message, now)
        else:
            raise RefusedError(f"a {event.topic.kind.name} message is not for the coordinator")

    def _status(self, device: DeviceId, status: Status, now: float) -> Iterator[Command]:
        if status.model != self._model.digest or status.size != len(self.model):
            yield from self._another_model(device, status, now)
        if self.roster.plan and not self._takeover and status.term > self.roster.highest_term:
            raise RefusedError(
                f"{device} says that it is in term {status.term}, the highest given is {self.roster.highest_term}: it "
                "lies, or the coordinator's store was lost, then start it with --take-over"
            )
        moved = self.roster.has_another_store(device, status.store)
        if moved and self._unverified:
            # Noted now, the loss would be forgotten before anything could be done about it.
            self._moved_meanwhile[device] = status
            return
        known = self.roster.devices.get(device)
        other_count = known is not None and known.status.sample_count != status.sample_count
        ops = self.roster.heard(device, status, now)
        if ops:
            yield Persist(tuple(ops))
        if self._takeover or self._unverified:
            return
        if not status.online:
            yield from self._clusters.gone(device, now)
            return
        yield from self._clusters.came(device)
        if self.roster.plan is None:
            if self.roster.online_count == 1:
                yield SetTimer(_GATHER, now + self._fleet.gather_s)
        elif self.roster.cluster_of(device) is None:
            yield from self._clusters.join(device)
        elif moved:
            yield DeviceStoreLost(device)
            yield from self._clusters.store_lost(device, now)
        elif status.term < self.roster.assignment(device).term:
            yield from self._clusters.announce((device,))
        elif other_count and self.roster.count_anew():
            yield from self._clusters.announce(self.roster.devices)
        yield from self._clusters.doubt(device)

    def _another_model(self, device: DeviceId, status: Status, now: float) -> Iterator[Command]:
        words = status.difference or f"{status.size} parameters, the federation's has {len(self.model)}"
        answer = self._refusals.refuse(device, "wrong-model", f"it trains another model: {words}", now)
        if answer and status.online:
            yield answer
        raise RefusedError(f"{device} trains another model: {words}", "wrong-model")


def _evaluation(event: Evaluated) -> ModelEvaluated:
    """Return what was measured, by the app's own names."""
    measured = {"accuracy": event.accuracy, "loss": event.loss} if event.metrics is None else event.metrics
    return ModelEvaluated(event.round_no, dict(measured))
