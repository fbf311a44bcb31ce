"""How a device's work leaves it: prepared for release, paid for, durable, sent, and sent again until it is confirmed.

    trained ─▶ prepared (selected, perturbed, cut) ─▶ queued ─▶ released chunk by chunk ─▶ sent again

Nothing of it is subtracted from the unreleased work before its release is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ofl_iot.errors import PrivacyError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import ChunkHead, Piece
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Persist, Publish, SetTimer
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.outbox import TABLE, Outbox
from ofl_iot.roles.device.privacy_guard import PrivacyGuard
from ofl_iot.roles.job_kinds.device import PrepareRelease
from ofl_iot.roles.reports.base import RowsSetAside
from ofl_iot.roles.reports.device import BudgetSpent
from ofl_iot.roles.settings import UploadRules
from ofl_iot.roles.storage import Key, set_aside
from ofl_iot.roles.store_identity import StoreIdentity

RESEND = "device.resend"


class Upload:
    """The work of one device that no leader has confirmed."""

    def __init__(
        self,
        me: DeviceId,
        rules: UploadRules,
        model: LocalModel,
        guard: PrivacyGuard,
        store: StoreIdentity,
    ) -> None:
        self._me = me
        self._store = store
        self._gamma = rules.gamma
        self._model = model
        self._guard = guard
        self.outbox = Outbox(max_bytes=rules.max_outbox_bytes, window=rules.window, resend_s=rules.resend_s)
        self.trainings = 0
        """Trainings since a release was last prepared,"""
        self.steps = 0
        """and their steps."""
        self.trainings_since_release = 0
        """Trainings since a chunk was last released, whether one was prepared or not."""

    def restore(self, rows: Mapping[Key, bytes], next_seq: int, steps: int) -> Iterator[Command]:
        """Take up what an earlier process left; chunks that the stored base lacks are added to it.

        How many trainings are behind the unreleased work is not known any more: it counts as one of `steps`.
        """
        unreadable = self.outbox.restore(rows, next_seq)
        if unreadable:
            yield RowsSetAside(TABLE, len(unreadable))
            yield Persist(set_aside(TABLE, unreadable))
        for chunk in self.outbox.chunks_from(next_seq):
            self._model.released(chunk, perturbed=self._guard.perturbs)
        self.trainings = self.trainings_since_release = int(np.any(self._model.unreleased))
        self.steps = self.trainings * steps

    def trained(self, steps: int) -> None:
        """There is more to be released."""
        self.trainings += 1
        self.trainings_since_release += 1
        self.steps += steps

    def discard_work(self) -> None:
        """Nothing of what was trained may leave any more."""
        self.outbox.queue(())
        self.trainings = self.steps = self.trainings_since_release = 0

    def prepare(self, term: int, gamma: float) -> PrepareRelease | None:
        """The job that selects from all unreleased work; None if there is none or it may not leave."""
        gamma = min(self._gamma, gamma)
        if not self.trainings or self.outbox.full or gamma <= 0:
            return None
        self.outbox.queue(())  # what waits there is part of the work that is now selected anew
        model = self._model
        head = ChunkHead(
            term=term,
            model=model.digest,
            size=model.layout.size,
            base_round=model.round_no,
            weight=float(max(1, self.steps)),
            update_no=self.outbox.next_seq,
        )
        return PrepareRelease(head, model.unreleased, model.synced, model.synced_before, gamma)

    def prepared(self, pieces: Iterable[Piece]) -> None:
        """The selection is made; it waits for its release."""
        self.trainings = self.steps = 0
        self.outbox.queue(pieces)
        if not self.outbox.queued:
            self.trainings_since_release = 0  # there is nothing to release

    def release(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """Let queued chunks go while the window has room: first durable, then sent."""
        while self.outbox.may_release():
            try:
                paid = self._guard.pay_release(self.outbox.next_count)
            except PrivacyError as error:
                self.outbox.queue(())
                yield BudgetSpent(reason=str(error))
                break
            chunk, payload, op = self.outbox.release(now, self._store.id, self._guard.account)
            self.trainings_since_release = 0
            self._model.released(chunk, perturbed=self._guard.perturbs)
            yield Persist((*paid, op))
            yield self._to(leader, payload)
        yield from self._schedule_resend(now)

    def send_due(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """Send again what was not confirmed."""
        for payload in self.outbox.due(now):
            yield self._to(leader, payload)
        yield from self._schedule_resend(now)

    def _schedule_resend(self, now: float) -> Iterator[Command]:
        due = self.outbox.next_due()
        if due is None:
            yield CancelTimer(RESEND)
        else:
            yield SetTimer(RESEND, max(due, now + 1.0))

    def _to(self, leader: DeviceId, payload: bytes) -> Publish:
        return Publish(Topic(Kind.UPDATE, self._me, leader), payload)
