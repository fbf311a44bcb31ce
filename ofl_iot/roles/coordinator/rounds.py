"""The rounds at the coordinator: a joint key, contributions, their aggregation, the next global model.

    key ─▶ open ─▶ collecting ─▶ aggregating (on ciphertext: scores, weights, model) ─▶ closed
                       └──────────────┴──────────────▶ abandoned: what was contributed is part of the next round

Algorithm 4. Every step is durable before it is published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from ofl_iot.crypto.params import LEAN
from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Part, PartReceipt, RoundOpen
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Persist, Publish, SetTimer
from ofl_iot.roles.coordinator.attendance import Attendance
from ofl_iot.roles.coordinator.global_model import GlobalModel
from ofl_iot.roles.coordinator.joint_key import JointKey
from ofl_iot.roles.coordinator.notes import RoundNotes
from ofl_iot.roles.coordinator.open_round import OpenRound
from ofl_iot.roles.coordinator.progress import RoundProgress
from ofl_iot.roles.coordinator.roster import Roster
from ofl_iot.roles.coordinator.sealed_rounds import decryption_of
from ofl_iot.roles.decryption import requester as decryption
from ofl_iot.roles.decryption.remote import confirm
from ofl_iot.roles.decryption.requester import RoundDecryption, SealedRound
from ofl_iot.roles.events import DecryptionRequested, JobFailed, LeanAsked, RoundAggregated
from ofl_iot.roles.job_kinds.keys import MakeKeys
from ofl_iot.roles.job_kinds.rounds import AggregateRound, EvaluateModel
from ofl_iot.roles.keys import ceremony as key_maker
from ofl_iot.roles.reports.coordinator import (
    ContributionRefused,
    LeaderSuspected,
    RoundAbandoned,
    RoundClosed,
    RoundOpened,
)
from ofl_iot.roles.settings import ProtectionRules, RoundRules
from ofl_iot.roles.storage import Stored, StoreOp

OPEN = "coordinator.open"
_REMIND, _DEADLINE = "coordinator.remind", "coordinator.deadline"
_REMIND_S = 5.0
_TEND = "coordinator.keys.tend"
_KEY_RETRY_S = 1.0


class Rounds:
    """The present round and all that outlives it."""

    def __init__(self, model: GlobalModel, roster: Roster, rules: RoundRules, protection: ProtectionRules) -> None:
        self._model = model
        self._roster = roster
        self._rules = rules
        self._protection = protection
        self.key = JointKey(model, roster, protection)
        self.progress = RoundProgress(rules)
        self.notes = RoundNotes()
        self.now = 0.0
        """Time of the step under way."""
        self.doubled_chunks = 0
        self.ended = False
        """Set when a round ended; the coordinator then does what is done between rounds."""
        self._round: OpenRound | None = None
        self._decryption: RoundDecryption | None = None
        self._attendance = Attendance()
        self._blamed: set[str] = set()
        """Leaders that answered wrongly in the round that closes."""

    # --- life

    def restore(self, stored: Stored) -> None:
        """Take up what an earlier process left."""
        self.key.maker.restore(stored)
        self.progress.restore(stored)

    def resume(self, now: float) -> Iterator[Command]:
        """After a restart: the round that was open is opened again, its contributions are asked for again."""
        yield from self.key.maker.resume(now)
        if self.progress.interrupted and self.key.at_hand:
            self.progress.open_again()
            yield Persist(self.progress.stored())
            yield from self._open(now)
        else:
            yield SetTimer(OPEN, now + self._rules.interval_s)

    def inherit(self, round_no: int, completed: int) -> tuple[StoreOp, ...]:
        """Count on from where another coordinator stood."""
        self.progress.inherit(round_no, completed)
        return self.progress.stored()

    def republish(self, now: float) -> Iterator[Command]:
        """The link is back: the open round and everything unconfirmed is said again."""
        yield from self._remind(now)
        yield from self.notes.again()
        self.key.maker.link_lost()
        yield from self.key.maker.send_due(now)
        if self._decryption:
            self._decryption.link_lost()
            yield from self._decryption.send_due(now)

    @property
    def lost(self) -> set[DeviceId]:
        """Leaders that did not do their part and are to be replaced between rounds."""
        return self._attendance.lost

    @property
    def making_key(self) -> bool:
        """Whether leaders, present or to come, make their key."""
        return self.key.maker.under_way

    @property
    def under_way(self) -> bool:
        """Whether a round is open or aggregates."""
        return self._round is not None

    def failing(self, now: float) -> set[DeviceId]:
        """Devices that should not be elected now."""
        return self.lost | self.key.failing(now)

    @property
    def aggregating(self) -> bool:
        """Whether contributions are being summed: the books must not change under them."""
        return self._round is not None and self._round.aggregating

    def reclustered(self) -> None:
        """New leaders, new record."""
        self._attendance.clear()
        self.progress.reclustered()

    def seat_lost(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """A leader was replaced: its contribution to the open round does not count, its key generation is void."""
        self._attendance.forgive(leader)
        if self.making_key:
            yield from self.key.maker.stop()
        if self.key.needed:
            yield SetTimer(OPEN if self.key.awaited else _TEND, now + _KEY_RETRY_S)
        if self._round and not self._round.aggregating:
            self._round.drop(leader)
            if self._round.complete():
                yield from self._aggregate(self._round, now)

    # --- events

    def timer(self, name: str, now: float) -> Iterator[Command]:
        """A timer of a round, a key generation or a decryption."""
        timers = {
            OPEN: self._open_next,
            _REMIND: self._remind,
            _DEADLINE: self._deadline,
            _TEND: self._tend,
            key_maker.RESEND: self.key.maker.send_due,
            key_maker.DEADLINE: self._key_overdue,
        }
        if name in timers:
            yield from timers[name](now)
        elif name == decryption.RESEND and self._decryption:
            yield from self._decryption.send_due(now)
        elif name == decryption.DEADLINE and self._decryption:
            yield from self._decryption.deadline(now)
            yield from self._abandon_if_given_up()

    def job_failed(self, event: JobFailed, now: float) -> Iterator[Command]:
        """A decryption goes on without those whose shares made it fail; otherwise key generation or round is over.

        The failure of a job whose round or key generation is over already concerns nobody.
        """
        if event.job is MakeKeys:
            if self.key.maker.is_making(event.term, event.attempt):
                self.key.maker.blame(event.culprits)
                yield from self._key_failed(self.key.maker.missing(), now)
        elif self._round is None or event.round_no != self._round.opened.round_no:
            return
        elif self._decryption and (event.culprits or event.suspects):
            yield from self._decryption.failed(event)
            if self._decryption.given_up:
                yield from self.abandon(event.reason)
        else:
            yield from self.abandon(event.reason)

    def _key_overdue(self, now: float) -> Iterator[Command]:
        """Remind leaders, or give up; if most of them are late, they are slow, and replacing them would not help."""
        maker = self.key.maker
        if not maker.under_way:
            return
        if not maker.expired(now):
            yield from maker.overdue(now)
        elif maker.slow:
            yield from maker.go_on(now)
        else:
            yield from self._key_failed(self.key.late(), now)

    def _key_failed(self, missing: Collection[str], now: float) -> Iterator[Command]:
        """Who did not do its part is replaced, then a key is made anew; a round that is open ends first."""
        self.lost.update(map(DeviceId, missing))
        yield from self.key.give_up(missing, now)
        if self._round is None:
            self.ended = True
        yield SetTimer(_TEND, now + _KEY_RETRY_S)

    def member_gone(self, device: DeviceId, now: float) -> Iterator[Command]:
        """A device went: a key that it should make before it takes office is given up at once.

        A leader in office has its grace to come back and resume; when that is over it is replaced, and so is the key.
        """
        if self.key.maker.waits_for(device) and not self._roster.leads(device):
            yield from self._key_failed((device,), now)

    def receive(self, kind: Kind, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt from a leader."""
        if kind == Kind.KEYS:
            yield from self.key.maker.receive(sender, message, now)
        elif kind in (Kind.SHARE, Kind.SERVERDEC):
            if self._decryption is None:
                if isinstance(message, Part):
                    yield confirm(kind, sender, message)
                raise LateError("nothing is being decrypted")
            yield from self._decryption.receive(sender, message, now)
            yield from self._abandon_if_given_up()
        elif isinstance(message, Part):
            yield from self._contribution(sender, message, now)

    def open_if_overdue(self, now: float) -> Iterator[Command]:
        """The round that waited for its key can open."""
        if self.key.awaited:
            yield from self._open_next(now)

    def decryption_requested(self, event: DecryptionRequested | LeanAsked, now: float) -> Iterator[Command]:
        """A ciphertext, or a stage of a lean round, is ready for the leaders."""
        if self._decryption:
            yield from self.key.asked(event)
            yield from self._decryption.requested(event, now)
            yield from self._abandon_if_given_up()

    # --- opening

    def _open_next(self, now: float) -> Iterator[Command]:
        if self._round or self._model.final or not self._roster.seats():
            return
        yield from self.key.renew()
        yield from self._tend(now)
        if not self.key.at_hand:
            yield from self.key.lacking(self.progress.counter.opened + 1, now)
            return
        yield from self.key.found(self.progress.counter.opened + 1, now)
        self.progress.open_next()
        yield Persist(self.progress.stored())
        yield from self._open(now)

    def _tend(self, now: float) -> Iterator[Command]:
        """See to the next key; without one at hand, and nobody to make it yet, look again soon."""
        yield from self.key.tend(now)
        if not self.key.at_hand and not self.making_key:
            yield SetTimer(OPEN, now + _KEY_RETRY_S)

    def _open(self, now: float) -> Iterator[Command]:
        key = self.key.maker.key if self.key.needed else None
        opened = RoundOpen(
            round_no=self.progress.counter.opened,
            attempt=self.progress.counter.attempt,
            seats=self.key.seats(),
            base_round=self.progress.counter.closed,
            deadline_s=self._rules.deadline_s,
            key_id=key.key_id if key else b"",
            bounds=self.progress.bounds_for(len(self._model.values)) if key and key.opened.params == LEAN.name else b"",
        )
        self._round = OpenRound(opened, now + self._rules.deadline_s)
        self.notes.opened(now)
        yield RoundOpened(round_no=opened.round_no, leaders=len(opened.seats), encrypted=key is not None)
        yield SetTimer(_DEADLINE, self._round.deadline)
        yield from self._remind(now)

    def _remind(self, now: float) -> Iterator[Command]:
        """The opening is retained, but a leader whose session lost it must not miss the round."""
        if self._round and not self._round.aggregating:
            yield Publish(Topic(Kind.ROUND_OPEN, COORDINATOR), self._round.opened, retain=True)
            yield SetTimer(_REMIND, now + _REMIND_S)

    # --- collecting

    def _contribution(self, leader: DeviceId, part: Part, now: float) -> Iterator[Command]:
        current = self._round
        if current is None or current.aggregating:
            raise RefusedError("no round is open")
        books = self._roster.books_of(leader)
        max_bytes = 64 * len(self._model.values) + (1 << 20) + 64 * 1024 * (len(books) + 1)
        receipt = current.take(leader, part, books, self._roster.seq_limit, max_bytes)
        if leader in current.contributions:
            self.notes.arrived(leader, now)
        yield Publish(Topic(Kind.RECEIPT, COORDINATOR, leader), receipt)
        if current.complete():
            yield from self._aggregate(current, now)

    def _deadline(self, now: float) -> Iterator[Command]:
        current = self._round
        if current is None:
            return
        if current.aggregating:
            yield from self.abandon("the aggregation did not end in time")
            return
        self._attendance.missed(self._attendance.replaceable(current))
        if current.has_quorum(self._rules.quorum):
            yield from self._aggregate(current, now)
        else:
            came, asked = len(current.contributions), len(current.opened.seats)
            yield from self.abandon(f"{came} of {asked} leaders contributed")

    # --- aggregating

    def _aggregate(self, current: OpenRound, now: float) -> Iterator[Command]:
        members = {seat.leader: len(self._roster.books_of(DeviceId(seat.leader))) for seat in current.opened.seats}
        contributions = current.contributed(members, self._roster.samples_of(members))
        speaking = [each for each in contributions if each.updates]
        if not speaking:
            yield from self._rest("no leader has merged anything")
            return
        key = self.key.maker.key
        if current.opened.key_id and (key is None or key.key_id != current.opened.key_id):
            yield from self.abandon("the joint key is gone")
            return
        current.aggregating = True
        self.notes.aggregating_at = now
        yield SetTimer(_DEADLINE, now + self._rules.aggregation_deadline_s)
        yield CancelTimer(_REMIND)
        if not current.opened.key_id or key is None:
            yield Compute(AggregateRound(current.opened.round_no, contributions, dict(self.progress.evidence)))
            return
        started = self._decryption = decryption_of(
            SealedRound(
                key,
                current.opened.round_no,
                contributions,
                size=len(self._model.values),
                evidence=dict(self.progress.evidence),
                misses=dict(self._attendance.misses),
                attempt=current.opened.attempt,
            ),
            current.opened,
            self._model.values,
            self._protection,
        )
        if len(speaking) < 2:
            yield from self._rest("a single cluster has merged anything: its update would be seen")
        elif started.given_up:
            yield from self.abandon("too few leaders contributed to decrypt")
        else:
            yield from started.begin()

    def _abandon_if_given_up(self) -> Iterator[Command]:
        if self._decryption and self._decryption.given_up:
            yield from self.abandon(self._decryption.given_up)

    def abandon(self, reason: str) -> Iterator[Command]:
        """Give the round up; its contributions are part of the next one."""
        if self._round:
            yield RoundAbandoned(round_no=self._round.opened.round_no, reason=reason)
            yield from self.notes.abandoned(self._round, reason, self.now)
            yield from self._end()

    def _rest(self, reason: str) -> Iterator[Command]:
        """Too little was merged since the last model: what there is waits, and the next round may come later."""
        self.progress.rested()
        yield from self.abandon(reason)

    def _end(self) -> Iterator[Command]:
        if self._decryption:
            self._attendance.missed(self._decryption.failing | self._blamed)
        self._blamed = set()
        self._round = self._decryption = None
        self.ended = True
        yield CancelTimer(_DEADLINE)
        yield CancelTimer(_REMIND)
        yield from decryption.REQUESTER.stop()

    def close(self, event: RoundAggregated) -> Iterator[Command]:
        """Enter the new model and what it settles into the books, then publish it."""
        current = self._round
        if current is None or event.round_no != current.opened.round_no:
            return
        for leader, reason in event.refused.items():
            yield ContributionRefused(leader=leader, reason=reason)
        for leader, reason in event.reasons.items():
            yield LeaderSuspected(leader=leader, reason=reason, evidence=event.evidence.get(leader, 0.0))
        values = self._model.values + event.update
        if not event.weights or not np.isfinite(values).all():
            yield from self.abandon("no usable contribution")
            return
        self._blamed = set(event.failing)
        ops = self._settle(current, set(event.weights))
        self.progress.close(event.round_no, event.evidence, event.bounds)
        completed = self.progress.counter.completed
        final = 0 < self._rules.count <= completed
        inclusions = current.inclusions(set(event.weights))
        self._model.advance(
            values, event.round_no, inclusions, lambda leader: self._roster.leads(DeviceId(leader)), final=final
        )
        yield Persist((*ops, *self._model.stored(), *self.progress.stored()))
        yield RoundClosed(
            round_no=event.round_no,
            completed=completed,
            weights=event.weights,
            excluded=event.excluded,
        )
        yield from self._model.publish()
        failing = set(self._blamed) | (self._decryption.failing if self._decryption else set())
        yield from self.notes.closed(current, event, self.key.maker.key, failing, self.now)
        yield Compute(EvaluateModel(event.round_no, self._model.values.copy()))
        yield from self._end()

    def _settle(self, current: OpenRound, leaders: set[str]) -> list[StoreOp]:
        ops: list[StoreOp] = []
        for leader in sorted(leaders):
            if self._decryption is None or leader not in self._decryption.failing | self._blamed:
                self._attendance.forgive(leader)
            self._roster.observed(DeviceId(leader), current.contributions[leader].observed)
            for settlement in current.contributions[leader].merged:
                doubled, op = self._roster.settle(settlement)
                self.doubled_chunks += doubled
                ops.append(op)
        return ops
