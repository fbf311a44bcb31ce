"""The device: trains on its own data, releases the most useful of its work, pulls the stalest blocks.

    assigned ─▶ pull the whole model ─▶ train ─▶ prepare a release ─▶ release + pull ─▶ train …

Without a link it goes on training for a while; its work waits in the local model. Algorithm 2, client side.
`phases.py` names what it does about training and says which event leads where.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.privacy.planning import Fleet
from ofl_iot.protocol.fleet_notes import Refusal
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.messages import Assignment, Blocks, Card, ClusterChange, Receipt, Status
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import collect
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import Command, Compute, Measure, Persist, SetTimer, Subscribe, Withdraw
from ofl_iot.roles.device.download import Download
from ofl_iot.roles.device.following import Following
from ofl_iot.roles.device.ledger_watch import LedgerWatch
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import TABLE as MODEL
from ofl_iot.roles.device.model_store import ModelStore
from ofl_iot.roles.device.orders import Orders
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.device.outbox import Outbox
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.phases import HEARTBEAT, PULL, REST, Activity, Phase
from ofl_iot.roles.device.presence import Presence
from ofl_iot.roles.device.privacy_guard import PrivacyGuard
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.device.refusals_heard import RefusalsHeard
from ofl_iot.roles.device.resources import Resources
from ofl_iot.roles.device.self_report import SelfReport
from ofl_iot.roles.device.training import Training
from ofl_iot.roles.device.upload import RESEND, Upload
from ofl_iot.roles.events import (
    Arrived,
    DataLooked,
    Event,
    JobFailed,
    LedgerOpened,
    LinkDown,
    LinkUp,
    Measured,
    OrderJudged,
    ReleasePrepared,
    SealingKeyMade,
    Started,
    Stopping,
    TimerFired,
    Trained,
)
from ofl_iot.roles.reports.device import (
    DeviceAssigned,
    DeviceTrained,
    FormerAssignment,
    OutboxFull,
    StoredModelDropped,
)
from ofl_iot.roles.storage import Delete, DeleteTable, Put, StoreOp
from ofl_iot.roles.store_identity import StoreIdentity

STATE = "device.state"


class DeviceMachine:
    """One device's decisions."""

    def __init__(self, profile: DeviceProfile, rules: DeviceRules, store: StoreIdentity | None = None) -> None:
        self.profile = profile
        self.store = store or StoreIdentity()
        self._upload_rules = rules.upload
        self._resources = Resources(
            profile.size,
            rules.paced_training,
            rules.resources,
            rules.upload.values,
            values_down=rules.leader.values,
            balance=profile.balance if rules.privacy.mode == "off" else 1.0,
        )
        self.guard = PrivacyGuard(
            rules.privacy,
            steps=rules.training.steps,
            accept_new_budget=profile.accept_new_budget,
            parameters=profile.size,
        )
        self.data = OwnData(profile.sample_count, live=profile.live)
        self.model = LocalModel(
            BlockLayout(profile.size, profile.block_size, profile.edges),
            profile.model,
            residual_apart=rules.training.start == "synced",
        )
        self.activity = Activity()
        self.acknowledged = SeqSet()
        """Sequence numbers a leader confirmed in this process's life: what a run's audit checks."""
        self._model_store = ModelStore(self.model)
        self._upload = Upload(profile.device, rules.upload, self.model, self.guard, self.store)
        self.presence = Presence(
            profile, self.activity, data=self.data, guard=self.guard, outbox=self.outbox, store=self.store
        )
        self._ledger = LedgerWatch(
            guard=self.guard,
            data=self.data,
            activity=self.activity,
            presence=self.presence,
            upload=self._upload,
            model=self.model,
            model_store=self._model_store,
        )
        self.following = Following(
            profile.device, rules.leader, self.model, lambda: self._report.contact_plan.gamma_down
        )
        self._download = Download(profile.device, rules.download, self.model, self.activity, self.following)
        self._training = Training(
            rules.training,
            self.activity,
            model=self.model,
            guard=self.guard,
            data=self.data,
            resources=self._resources,
            upload=self._upload,
            ledger=self._ledger,
            presence=self.presence,
        )
        self._report = SelfReport(
            profile,
            rules.resources,
            self.activity,
            resources=self._resources,
            training=self._training,
            upload=self._upload,
            guard=self.guard,
            data=self.data,
            model=self.model,
        )
        self._refusals = RefusalsHeard()
        self._orders = Orders(self.activity)
        self._now = 0.0

    @property
    def outbox(self) -> Outbox:
        """What left the device and is not settled."""
        return self._upload.outbox

    @property
    def assignment(self) -> Assignment | None:
        """Whose cluster the device is in; None before its first assignment."""
        return self.activity.assignment

    @property
    def phase(self) -> Phase:
        """Why the device trains, or the foremost reason why it does not."""
        return self._training.phase

    def status(self, *, online: bool) -> Status:
        """Return the device's announcement; the offline form is its last will."""
        return self.presence.status(self._now, online=online)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        self._now = now
        return [*collect(self._decide(event, now), event), *self._report.what_changed()]

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        match event:
            case Started():
                yield from self._start(event, now)
            case LinkUp():
                yield from self._link_up(now)
            case LinkDown():
                self.activity.linked = False
                self._resources.contact_ended(now)
                yield from self._stop_waiting(now)
            case Stopping():
                yield self.presence.announce(now, online=False)
                if self.model.held.any():
                    yield Persist(tuple(self._model_store.snapshot(self.outbox.next_seq, whole=True)))
            case Arrived():
                yield from self._receive(event, now)
            case TimerFired():
                yield from self._timer(event.name, now)
            case Measured():
                yield from self._report.measured(event, now)
                yield from self.following.tend()
                yield from self._training.advance(now)  # it may have cooled down
            case SealingKeyMade():
                self.presence.sealing_key, self.presence.certificate = event.public, event.certificate
                yield from self.presence.announce_if_linked(now)
            case _:
                yield from self._computed(event, now)

    def _computed(self, event: Event, now: float) -> Iterator[Command]:
        match event:
            case LedgerOpened():
                yield from self._ledger.opened(event, now)
                yield from self._training.advance(now)
            case DataLooked():
                yield from self._training.looked(event.records, now)
            case Trained():
                yield from self._trained(event, now)
            case ReleasePrepared():
                self.activity.job = None
                self._upload.prepared(event.pieces)
                yield from self._release(now)
                yield from self._download.after_release(now)
                yield from self._training.advance(now)
            case OrderJudged():
                yield from self._orders.judged(event)
                yield from self._training.advance(now)
            case JobFailed():
                yield from self._training.failed(event, now)
            case _:
                raise TypeError(f"a device does not expect {type(event).__name__}")

    # --- beginning and presence

    def _start(self, started: Started, now: float) -> Iterator[Command]:
        stored = before = started.stored
        if made := self.store.restore(stored):
            yield Persist(tuple(made))
        next_seq = 1
        try:
            next_seq = self._model_store.restore(stored) or 1
        except (RefusedError, msgspec.DecodeError) as error:
            # Another model is learnt now: chunks of the old one fit nowhere any more.
            yield StoredModelDropped(reason=str(error))
            yield Persist((DeleteTable(STATE), DeleteTable(MODEL), DeleteTable(OUTBOX)))
            stored = {}
        if kept := stored.get(STATE, {}).get("assignment"):
            held = self.activity.assignment = msgspec.msgpack.decode(kept, type=Assignment)
            if held.fleet_records:
                self.guard.fleet = Fleet.announced(held.fleet_records, held.fleet_devices)
        yield from self._upload.restore(stored.get(OUTBOX, {}), next_seq, self._training.rules.steps)
        self._orders.restore(before)
        worked = stored is not before or bool(stored.get(OUTBOX)) or next_seq > 1 or bool(self._upload.trainings)
        if self.guard.begin(before, started.wall - now, worked=worked) and self._upload.trainings:
            yield from self._ledger.drop_work("it was trained in another privacy mode")
        for kind in (Kind.ASSIGNMENT, Kind.RECEIPT, Kind.BLOCKS, Kind.REFUSAL, Kind.ORDER):
            yield Subscribe(kind, receiver=self.profile.device)
        if self.assignment:
            yield from self.following.new_leader(DeviceId(self.assignment.leader))
        if self.profile.card:
            yield Subscribe(Kind.CARD)
        yield SetTimer(HEARTBEAT, now + self.profile.heartbeat_s)
        if self.guard.needs_ledger and not self.data.live and not self.guard.plans:
            yield from self._ledger.open(now)
        yield from self._training.advance(now)

    def _link_up(self, now: float) -> Iterator[Command]:
        """Say who is there, then send: what is overdue, and the best of all unreleased work as it is now."""
        self.activity.linked = True
        self._resources.contact_began(now)
        self._report.tell_anew()
        yield self.presence.announce(now)
        yield Measure()
        yield from self._send_due(now)
        yield from self._offer()
        yield from self._release(now)
        yield from self._download.pull(now)

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == HEARTBEAT:
            yield SetTimer(HEARTBEAT, now + self.profile.heartbeat_s)
            yield Measure()
            yield from self.presence.announce_if_linked(now)
            yield from self._download.pull(now)
        elif name == RESEND:
            yield from self._send_due(now)
        elif name == PULL:
            yield from self._download.unanswered(now)
            yield from self._training.advance(now)
            if not self.model.complete:
                yield from self._download.pull(now)
        elif name == REST:
            yield from self._training.rested(now)

    # --- messages

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Assignment):
            yield from self._assigned(message, now)
        elif isinstance(message, Card):
            yield from self.presence.compare(message, now)
        elif isinstance(message, Order):
            yield from self._orders.take(message)
        elif isinstance(message, Refusal):
            yield from self._refusals.heard(sender, message, self.assignment)
        elif self.assignment is None or sender != self.assignment.leader:
            raise LateError(f"{sender} is not this device's leader")
        elif isinstance(message, Receipt):
            yield from self._receipt(message, now, self.assignment)
        elif isinstance(message, Blocks):
            yield from self._download.blocks(message, now)
            if message.last:
                yield from self._training.advance(now)
        elif isinstance(message, ClusterChange):
            yield from self._download.change(message, now)
            yield from self._training.advance(now)
        else:
            raise RefusedError(f"a {event.topic.kind.name} message is not for a device")

    def _assigned(self, assignment: Assignment, now: float) -> Iterator[Command]:
        if not self.store.is_ours(assignment.store):
            yield FormerAssignment(assignment.term)
            yield from self._ledger.observe(assignment.account, now)
            return  # the coordinator answers this device's announcement with another one
        yield from self._ledger.observe(assignment.account, now)
        if assignment.fleet_records:
            self.guard.fleet = Fleet.announced(assignment.fleet_records, assignment.fleet_devices)
        held = self.assignment
        if held and (assignment.term, assignment.revision) <= (held.term, held.revision):
            return
        behind = self.outbox.skip_to(assignment.settled.highest)
        self.activity.assignment = msgspec.structs.replace(assignment, members=())
        ops: list[StoreOp] = [Put(STATE, "assignment", msgspec.msgpack.encode(self.assignment))]
        ops += self._forget(self.outbox.confirm((), assignment.settled, self._upload_rules.window))
        if behind:
            ops += self._snapshot()
        yield Persist(tuple(ops))
        yield DeviceAssigned(term=assignment.term, leader=assignment.leader)
        if held is None or held.term != assignment.term:
            yield from self._new_leader(held, assignment, now)

    def _new_leader(self, held: Assignment | None, assignment: Assignment, now: float) -> Iterator[Command]:
        """Withdraw what waits for the former leader, send the new one what is unsettled, pull its model."""
        self.model.new_leader()
        yield from self.following.new_leader(DeviceId(assignment.leader))
        self.outbox.readdress()
        if held and held.leader != assignment.leader:
            for kind in (Kind.UPDATE, Kind.PULL):
                yield Withdraw(Topic(kind, self.profile.device, DeviceId(held.leader)))
        yield from self._stop_waiting(now)
        yield from self._send_due(now)
        yield from self._download.pull(now)

    def _receipt(self, receipt: Receipt, now: float, assignment: Assignment) -> Iterator[Command]:
        if receipt.term != assignment.term:
            raise LateError(f"a receipt of term {receipt.term}, this device is in {assignment.term}")
        if not self.store.is_ours(receipt.store):
            raise LateError("a receipt for a former store of this device")
        yield from self._ledger.observe(receipt.account, now)
        told = max(receipt.highest, receipt.settled.highest)
        self.outbox.check_told(told, assignment.settled.highest)
        self.acknowledged = self.acknowledged.union(receipt.stored)
        gone = self.outbox.confirm(receipt.stored, receipt.settled, receipt.credits, now)
        ops = self._forget(gone)
        if self.outbox.skip_to(told):
            ops += self._snapshot()
        if ops:
            yield Persist(tuple(ops))
        yield from self._release(now)
        yield from self._send_due(now)
        yield from self._offer()
        if gone and self.activity.awaiting_round:
            yield from self._download.pull(now)  # there is a new global model
        yield from self._training.advance(now)

    def _forget(self, deletions: list[StoreOp]) -> list[StoreOp]:
        """Chunks may be deleted only when the stored model holds their release: the next training sees to it."""
        stored = all(isinstance(op, Delete) and int(op.key) < self._model_store.next_seq for op in deletions)
        return deletions if stored else [*self._snapshot(), *deletions]

    def _stop_waiting(self, now: float) -> Iterator[Command]:
        yield from self._download.stop()
        yield from self._training.advance(now)

    # --- upload

    def _trained(self, event: Trained, now: float) -> Iterator[Command]:
        refused = list(self._training.keeps(event, now))
        if refused:
            yield from refused
            return
        self._training.kept(event)
        yield Persist(tuple(self._snapshot()))
        yield DeviceTrained(loss=event.loss, steps=event.steps, seconds=event.seconds)
        yield from self._training.pause(event, now)
        if self.outbox.full:
            yield OutboxFull(max_bytes=self._upload_rules.max_outbox_bytes)
        yield from self._offer()
        yield from self._training.advance(now)

    def _offer(self) -> Iterator[Command]:
        """Prepare a release of all unreleased work, if there is any and it may leave."""
        if self.activity.job is not None or not self.activity.linked or self.assignment is None:
            return
        job = self._upload.prepare(self.assignment.term, self._report.contact_plan.gamma_up)
        if job:
            self.activity.job = type(job)
            yield Compute(job)

    def _release(self, now: float) -> Iterator[Command]:
        if self.activity.linked and self.assignment is not None:
            yield from self._upload.release(DeviceId(self.assignment.leader), now)

    def _send_due(self, now: float) -> Iterator[Command]:
        if self.activity.linked and self.assignment is not None:
            yield from self._upload.send_due(DeviceId(self.assignment.leader), now)

    def _snapshot(self) -> list[StoreOp]:
        return self._model_store.snapshot(self.outbox.next_seq)
