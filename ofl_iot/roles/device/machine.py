"""The device: trains on its own data, releases the most useful of its work, pulls the stalest blocks.

    assigned ─▶ pull the whole model ─▶ train ─▶ prepare a release ─▶ release + pull ─▶ train …

Without a link it goes on training for a while; its work waits in the local model. Algorithm 2, client side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from ofl_iot.errors import LateError, PrivacyError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.lives import Account
from ofl_iot.protocol.messages import MAX_TEXT, Assignment, Blocks, Card, Pull, Receipt, Status
from ofl_iot.protocol.model_card import decode_card, difference
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.protocol.values import bounded
from ofl_iot.roles.base import collect
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Job,
    LookAtData,
    Measure,
    OpenLedger,
    Persist,
    Publish,
    SetTimer,
    Subscribe,
    TrainLocally,
    Withdraw,
)
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import TABLE as MODEL
from ofl_iot.roles.device.model_store import ModelStore
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.device.outbox import Outbox
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.privacy_guard import PrivacyGuard, PrivacyRules
from ofl_iot.roles.device.resources import ResourceRules, Resources
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
    ReleasePrepared,
    SealingKeyMade,
    Started,
    Stopping,
    TimerFired,
    Trained,
)
from ofl_iot.roles.reports import (
    BudgetSpent,
    DataFound,
    DeviceAssigned,
    DeviceTrained,
    ExchangeLimited,
    FormerAssignment,
    JobFailure,
    LedgerLost,
    ModelDiffers,
    ModelDownloaded,
    OutboxFull,
    PullUnanswered,
    StoredModelDropped,
    TrainingDiscarded,
    TrainingDiverged,
    WaitingForData,
    WorkDropped,
)
from ofl_iot.roles.settings import DownloadRules, LeaderRules, TrainingRules, UploadRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, StoreOp
from ofl_iot.roles.store_identity import StoreIdentity

STATE = "device.state"
_HEARTBEAT, _PULL, _REST = "device.heartbeat", "device.pull", "device.rest"
_RETRY_S = 5.0
_LONGEST_RETRY_S = 600.0


@dataclass(frozen=True)
class DeviceProfile:
    """What a device is, whatever it learns."""

    device: DeviceId
    model: bytes
    size: int
    block_size: int
    sample_count: int
    device_type: str = ""
    heartbeat_s: float = 60.0
    card: bytes = b""
    """What its model is (`protocol/model_card.py`), to compare with the federation's; empty: nothing is compared."""
    live: bool = False
    """Whether records may come and go while the device runs: then it looks before each training."""
    balance: float = 1.0
    """How even the labels of its samples are (`label_balance`): a resource of its plan where privacy is off."""
    accept_new_budget: bool = False
    """Whether the operator accepts a new privacy budget where the old one is lost or spent."""


class DeviceRules(msgspec.Struct, frozen=True):
    """The sections of the settings that concern a device."""

    training: TrainingRules = TrainingRules()
    upload: UploadRules = UploadRules()
    download: DownloadRules = DownloadRules()
    privacy: PrivacyRules = PrivacyRules()
    resources: ResourceRules = ResourceRules()
    leader: LeaderRules = LeaderRules()
    """What leaders do, and with it what a download takes."""


class DeviceMachine:
    """One device's decisions."""

    def __init__(self, profile: DeviceProfile, rules: DeviceRules, store: StoreIdentity | None = None) -> None:
        self.profile = profile
        self.store = store or StoreIdentity()
        self._training = rules.training
        self._upload_rules = rules.upload
        self._download = rules.download
        self._resources = Resources(
            profile.size,
            rules.training,
            rules.resources,
            rules.upload.values,
            values_down=rules.leader.values,
            balance=profile.balance if rules.privacy.mode == "off" else 1.0,
        )
        self.guard = PrivacyGuard(
            rules.privacy, steps=rules.training.steps, accept_new_budget=profile.accept_new_budget
        )
        self.data = OwnData(profile.sample_count, live=profile.live)
        self._now = 0.0
        self._awaiting_version = False
        """Whether training waits for the next global model."""
        self._refused = False
        self.model = LocalModel(BlockLayout(profile.size, profile.block_size), profile.model)
        self._model_store = ModelStore(self.model)
        self._upload = Upload(profile.device, rules.upload, self.model, self.guard, self.store)
        self.assignment: Assignment | None = None
        self.sealing_key = b""
        """The public key that the device's keeper made,"""
        self.certificate = b""
        """and what shows that it is this device's."""
        self.acknowledged = SeqSet()
        """Sequence numbers a leader confirmed in this process's life: what a run's audit checks."""
        self._linked = False
        self._busy = False
        self._pulling = False
        self._resting = False
        self._difference = ""
        self._opening = False
        self._failure: tuple[type[Job], str] | None = None
        """The last job that failed and why, until one succeeds,"""
        self._failures = 0
        """and how often it did so again."""
        self._step_s: float | None = None

    @property
    def outbox(self) -> Outbox:
        """What left the device and is not settled."""
        return self._upload.outbox

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        self._now = now
        return collect(self._decide(event, now), event)

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event, now)
        elif isinstance(event, LinkUp):
            self._linked = True
            yield self._announce()
            yield Measure()
            yield from self._send_due(now)
            yield from self._release(now)
            yield from self._pull(now)
            yield from self._offer()
        elif isinstance(event, LinkDown):
            self._linked = False
            self.outbox.link_lost()
            yield from self._stop_waiting()
        elif isinstance(event, Stopping):
            yield Publish(Topic(Kind.STATUS, self.profile.device), self.status(online=False), retain=True)
            if self.model.held.any():
                yield Persist(tuple(self._model_store.snapshot(self.outbox.next_seq, whole=True)))
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, TimerFired):
            yield from self._timer(event.name, now)
        elif isinstance(event, Measured):
            yield from self._measured(event.telemetry, now)
        elif isinstance(event, SealingKeyMade):
            self.sealing_key, self.certificate = event.public, event.certificate
            if self._linked:
                yield self._announce()
        elif isinstance(event, LedgerOpened):
            self._opening = False
            yield Persist(tuple(self.guard.open(event.ledger, now)))
            yield from self._heed_ledger()
            yield from self._train()
        else:
            yield from self._computed(event, now)

    def _computed(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Trained):
            yield from self._trained(event, now)
        elif isinstance(event, ReleasePrepared):
            yield from self._prepared(event, now)
        elif isinstance(event, DataLooked):
            yield from self._looked(event.records, now)
        elif isinstance(event, JobFailed):
            yield from self._failed(event, now)
        else:
            raise TypeError(f"a device does not expect {type(event).__name__}")

    def _failed(self, event: JobFailed, now: float) -> Iterator[Command]:
        """Try again later; the same failure is told once, and each time the pause is twice as long."""
        if event.job is OpenLedger:
            self._opening = False
        else:
            self._busy = False
            yield from self._discarded(event)
        failure = (event.job, event.reason)
        self._failures = self._failures + 1 if failure == self._failure else 0
        if failure != self._failure:
            yield JobFailure(job=event.job.__name__, reason=event.reason)
        self._failure = failure
        yield from self._rest(min(_LONGEST_RETRY_S, _RETRY_S * 2**self._failures), now)

    # --- beginning and presence

    def _start(self, started: Started, now: float) -> Iterator[Command]:
        stored = before = started.stored
        if made := self.store.restore(stored):
            yield Persist(tuple(made))
        state = stored.get(STATE, {})
        next_seq = 1
        try:
            next_seq = self._model_store.restore(stored) or 1
        except (RefusedError, msgspec.DecodeError) as error:
            # Another model is learnt now: chunks of the old one fit nowhere any more.
            yield StoredModelDropped(reason=str(error))
            yield Persist((DeleteTable(STATE), DeleteTable(MODEL), DeleteTable(OUTBOX)))
            stored = {}
        if "assignment" in stored.get(STATE, {}):
            self.assignment = msgspec.msgpack.decode(state["assignment"], type=Assignment)
        yield from self._upload.restore(stored.get(OUTBOX, {}), next_seq, self._training.steps)
        worked = stored is not before or bool(stored.get(OUTBOX)) or next_seq > 1 or bool(self._upload.trainings)
        if self.guard.begin(before, started.wall - now, worked=worked) and self._upload.trainings:
            yield from self._drop_work("it was trained in another privacy mode")
        me = self.profile.device
        yield Subscribe(Kind.ASSIGNMENT, receiver=me)
        yield Subscribe(Kind.RECEIPT, receiver=me)
        yield Subscribe(Kind.BLOCKS, receiver=me)
        if self.profile.card:
            yield Subscribe(Kind.CARD)
        yield SetTimer(_HEARTBEAT, now + self.profile.heartbeat_s)
        if self.guard.needs_ledger and not self.data.live:
            yield from self._open_ledger()
        yield from self._train()

    def _announce(self) -> Publish:
        return Publish(Topic(Kind.STATUS, self.profile.device), self.status(online=True), retain=True)

    def status(self, *, online: bool) -> Status:
        """The device's announcement; the offline form is its last will."""
        return Status(
            online=online,
            term=self.assignment.term if self.assignment else 0,
            sample_count=self.data.announced,
            model=self.profile.model,
            size=self.profile.size,
            device_type=self.profile.device_type,
            sealing_key=self.sealing_key,
            certificate=self.certificate,
            store=self.store.id,
            next_seq=self.outbox.next_seq,
            difference=self._difference,
            privacy=self.guard.words(self._now),
        )

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == _HEARTBEAT:
            yield SetTimer(_HEARTBEAT, now + self.profile.heartbeat_s)
            yield Measure()
            if self._linked:
                yield self._announce()
                yield from self._pull(now)
        elif name == RESEND:
            yield from self._send_due(now)
        elif name == _PULL:
            self._pulling = False
            yield PullUnanswered(leader=self.assignment.leader if self.assignment else "")
            yield from self._train()
            if not self.model.complete:
                yield from self._pull(now)
        elif name == _REST:
            self._resting = False
            yield from self._train()

    def _measured(self, telemetry: Telemetry, now: float) -> Iterator[Command]:
        """Report resources when they changed enough to be worth the bytes."""
        known = msgspec.structs.replace(
            telemetry,
            samples=self.data.announced,
            device_type=telemetry.device_type or self.profile.device_type,
            step_s=telemetry.step_s or self.guard.coarse(self._step_s),
            model_distance=0.0 if self.guard.perturbs else self.model.distance(),
            budget_left=self.guard.left,
        )
        report, plan = self._resources.measured(known, self._payable())
        if plan:
            up, down = round(plan.gamma_up, 4), round(plan.gamma_down, 4)
            yield ExchangeLimited(binding=plan.binding, gamma_up=up, gamma_down=down)
        if self._linked and self._resources.worth_sending(report, now):
            yield Publish(Topic(Kind.TELEMETRY, self.profile.device), report, qos=0)
        yield from self._train()  # it may have cooled down

    def _payable(self) -> float:
        """Steps already paid for may leave even when the budget is spent."""
        return self.guard.steps_left + self._upload.steps

    # --- messages

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Assignment):
            yield from self._assigned(message, now)
        elif isinstance(message, Card):
            yield from self._compare(message)
        elif self.assignment is None or sender != self.assignment.leader:
            raise LateError(f"{sender} is not this device's leader")
        elif isinstance(message, Receipt):
            yield from self._receipt(message, now)
        elif isinstance(message, Blocks):
            yield from self._blocks(message, now)
        else:
            raise RefusedError(f"a {event.topic.kind.name} message is not for a device")

    def _compare(self, card: Card) -> Iterator[Command]:
        """Tell here and, with the next announcement, there, how this device's model differs from the federation's."""
        before, self._difference = self._difference, ""
        if card.model != self.profile.card:
            self._difference = difference(decode_card(self.profile.card), decode_card(card.model))[:MAX_TEXT]
        if self._difference != before:
            if self._difference:
                yield ModelDiffers(difference=self._difference)
            if self._linked:
                yield self._announce()

    def _assigned(self, assignment: Assignment, now: float) -> Iterator[Command]:
        if not self.store.is_ours(assignment.store):
            yield FormerAssignment(assignment.term)
            yield from self._observe(assignment.account)
            return  # the coordinator answers this device's announcement with another one
        yield from self._observe(assignment.account)
        held = self.assignment
        if held and (assignment.term, assignment.revision) <= (held.term, held.revision):
            return
        behind = self.outbox.skip_to(assignment.settled.highest)
        self.assignment = msgspec.structs.replace(assignment, members=())
        ops: list[StoreOp] = [Put(STATE, "assignment", msgspec.msgpack.encode(self.assignment))]
        ops += self._forget(self.outbox.confirm((), assignment.settled, self._upload_rules.window))
        if behind:
            ops += self._snapshot()
        yield Persist(tuple(ops))
        yield DeviceAssigned(term=assignment.term, leader=assignment.leader)
        if held is None or held.term != assignment.term:
            self.model.new_leader()
            self.outbox.readdress()
            if held and held.leader != assignment.leader:
                for kind in (Kind.UPDATE, Kind.PULL):
                    yield Withdraw(Topic(kind, self.profile.device, DeviceId(held.leader)))
            yield from self._stop_waiting()
            yield from self._send_due(now)
            yield from self._pull(now)

    def _receipt(self, receipt: Receipt, now: float) -> Iterator[Command]:
        assert self.assignment is not None  # noqa: S101  # checked by _receive
        if receipt.term != self.assignment.term:
            raise LateError(f"a receipt of term {receipt.term}, this device is in {self.assignment.term}")
        if not self.store.is_ours(receipt.store):
            raise LateError("a receipt for a former store of this device")
        yield from self._observe(receipt.account)
        told = max(receipt.highest, receipt.settled.highest)
        self.outbox.check_told(told, self.assignment.settled.highest)
        self.acknowledged = self.acknowledged.union(receipt.stored)
        gone = self.outbox.confirm(receipt.stored, receipt.settled, receipt.credits)
        ops = self._forget(gone)
        if self.outbox.skip_to(told):
            ops += self._snapshot()
        if ops:
            yield Persist(tuple(ops))
        yield from self._release(now)
        yield from self._send_due(now)
        yield from self._offer()
        if gone and self._awaiting_version:
            yield from self._pull(now)  # there is a new global model
        yield from self._train()

    def _forget(self, deletions: list[StoreOp]) -> list[StoreOp]:
        """Chunks may be deleted only when the stored model holds their release: the next training sees to it."""
        stored = all(isinstance(op, Delete) and int(op.key) < self._model_store.next_seq for op in deletions)
        return deletions if stored else [*self._snapshot(), *deletions]

    def _blocks(self, message: Blocks, now: float) -> Iterator[Command]:
        assert self.assignment is not None  # noqa: S101  # checked by _receive
        if message.term != self.assignment.term:
            raise LateError(f"blocks of term {message.term}, this device is in {self.assignment.term}")
        for batch in message.read_batches():
            self.model.downloaded(batch, message.round_no)
        if message.last:
            if self.model.complete:
                yield ModelDownloaded(message.round_no)
            yield from self._stop_waiting()
        elif self._pulling:
            yield SetTimer(_PULL, now + self._download.timeout_s)  # more is coming in

    # --- upload

    def _trained(self, event: Trained, now: float) -> Iterator[Command]:
        self._busy, self._failure = False, None
        if not bounded(event.params):
            yield TrainingDiverged(loss=event.loss)
            yield from self._paid_back()
            yield from self._rest(_RETRY_S, now)
            return
        if not self.guard.keeps(event.sampling_rate):
            yield TrainingDiscarded(sampling_rate=event.sampling_rate)
            yield from self._rest(_RETRY_S, now)
            return
        self.model.trained(event.start, event.params)
        self._upload.trained(event.steps)
        self._step_s = max(1e-9, event.seconds / max(1, event.steps))
        yield Persist(tuple(self._snapshot()))
        yield DeviceTrained(loss=event.loss, steps=event.steps, seconds=event.seconds)
        if rest_s := self._training.pause_s + self._resources.throttle.rest_s(event.seconds):
            yield from self._rest(rest_s, now)
        if self.outbox.full:
            yield OutboxFull(max_bytes=self._upload_rules.max_outbox_bytes)
        yield from self._offer()
        yield from self._train()

    def _offer(self) -> Iterator[Command]:
        """Prepare a release of all unreleased work, if there is any and it may leave."""
        if self._busy or not self._linked or self.assignment is None:
            return
        job = self._upload.prepare(self.assignment.term, self._resources.plan(self._payable()).gamma_up)
        if job:
            self._busy = True
            yield Compute(job)

    def _prepared(self, event: ReleasePrepared, now: float) -> Iterator[Command]:
        self._busy = False
        self._upload.prepared(event.pieces)
        yield from self._release(now)
        yield from self._pull(now)
        yield from self._train()

    def _release(self, now: float) -> Iterator[Command]:
        if self._linked and self.assignment is not None:
            yield from self._upload.release(DeviceId(self.assignment.leader), now)

    def _send_due(self, now: float) -> Iterator[Command]:
        if self._linked and self.assignment is not None:
            yield from self._upload.send_due(DeviceId(self.assignment.leader), now)

    # --- download and training

    def _pull(self, now: float) -> Iterator[Command]:
        if not self._linked or self.assignment is None or self._pulling:
            return
        blocks = self.model.layout.count
        share = min(self._download.gamma, self._resources.plan(self._payable()).gamma_down)
        most = blocks if not self.model.complete else int(np.ceil(share * blocks))
        if most:
            self._pulling = True
            pull = Pull(self.assignment.term, self.model.seen.astype("<f8").tobytes(), most, packed=True)
            yield Publish(Topic(Kind.PULL, self.profile.device, DeviceId(self.assignment.leader)), pull)
            yield SetTimer(_PULL, now + self._download.timeout_s)

    def _stop_waiting(self) -> Iterator[Command]:
        """The answer came, or will not come: go on."""
        if self._pulling:
            self._pulling = False
            yield CancelTimer(_PULL)
        yield from self._train()

    def _rest(self, seconds: float, now: float) -> Iterator[Command]:
        self._resting = True
        yield SetTimer(_REST, now + seconds)

    def _train(self) -> Iterator[Command]:
        """Train again unless there is a reason to wait; whatever ends that reason calls here again."""
        waiting = (
            self._busy
            or self._pulling
            or self._resting
            or self._upload.trainings_since_release >= self._training.max_unreleased
        )
        guard = self.guard
        stopped = guard.exhausted or guard.refusal or self._resources.throttle.paused
        if waiting or stopped or self.assignment is None or not self.model.complete:
            return
        steps = guard.due(self._resources.steps, self.model.round_no, self._now)
        self._awaiting_version = not steps
        if not steps:
            if (at := guard.next_due(self._now)) is not None:
                yield from self._rest(at - self._now, self._now)
            return
        if self.data.must_look:
            self._busy = True
            yield Compute(LookAtData())
            return
        if guard.needs_plan(self.data, self._training.batch_size):
            yield from self._open_ledger()
            return
        try:
            paid = guard.pay_training(steps)
        except PrivacyError as error:
            yield BudgetSpent(reason=str(error))
            return
        self._busy = True
        self.data.used()
        if paid:
            yield Persist(tuple(paid))
        yield Compute(TrainLocally(self.model.local.copy(), steps, guard.noise_multiplier, guard.sampling_rate))

    # --- the privacy ledger

    def _observe(self, seen: Account) -> Iterator[Command]:
        """Others know how far this device's ledger had come; if that is further than here, it was lost."""
        if ops := self.guard.observe(seen, self._now):
            yield Persist(tuple(ops))
        yield from self._heed_ledger()

    def _heed_ledger(self) -> Iterator[Command]:
        """Work an accepted budget out; say once that training stops because the ledger is lost."""
        if self.guard.wants_renewal:
            yield from self._open_ledger()
        elif self.guard.refusal and not self._refused:
            self._refused = True
            yield LedgerLost(reason=self.guard.refusal)
            if self._upload.trainings:
                yield from self._drop_work("it was paid from a ledger that is out of date")
            if self._linked:
                yield self._announce()

    def _drop_work(self, reason: str) -> Iterator[Command]:
        """Unreleased work must not leave."""
        self.model.discard_work()
        self._upload.discard_work()
        yield WorkDropped(reason=reason)
        yield Persist(tuple(self._snapshot()))

    def _discarded(self, failed: JobFailed) -> Iterator[Command]:
        """A training that failed left nothing: what it paid comes back, and if the data changed so does the plan."""
        if failed.job is TrainLocally:
            yield from self._paid_back()
            if failed.reason.startswith(PrivacyError.__name__) and not self.guard.needs_ledger:
                self.guard.reopen()
                yield from self._open_ledger()

    def _paid_back(self) -> Iterator[Command]:
        if ops := self.guard.discarded():
            yield Persist(tuple(ops))

    def _looked(self, records: int, now: float) -> Iterator[Command]:
        """Go on with what there is to train on; without anything, look again later."""
        self._busy = False
        self.data.found(records)
        if self.data.begins_waiting():
            yield WaitingForData()
        if self.data.must_announce():
            yield DataFound(records=records)
            if self._linked:
                yield self._announce()
        if not records:
            yield from self._rest(_RETRY_S, now)
        yield from self._train()

    def _open_ledger(self) -> Iterator[Command]:
        """Have the ledger opened, or planned anew for another number of records."""
        if not self._opening:
            self._opening = True
            stored = self.guard.encoded() or self.guard.stored_ledger
            at = self.guard.wall(self._now)
            yield Compute(OpenLedger(stored, self.data.records if self.data.live else 0, at))

    def _snapshot(self) -> list[StoreOp]:
        return self._model_store.snapshot(self.outbox.next_seq)
