"""The device's privacy ledger at work: opened outside the machine, compared with what others have seen of it."""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.privacy.planning import Fleet
from ofl_iot.protocol.lives import Account
from ofl_iot.roles.commands import Command, Compute, Persist
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import ModelStore
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.phases import Activity
from ofl_iot.roles.device.presence import Presence
from ofl_iot.roles.device.privacy_guard import PrivacyGuard
from ofl_iot.roles.device.upload import Upload
from ofl_iot.roles.events import LedgerOpened
from ofl_iot.roles.job_kinds.device import OpenLedger
from ofl_iot.roles.reports.device import LedgerLost, WorkDropped


class LedgerWatch:
    """Has the ledger opened when it is needed, and stops a device whose ledger was lost."""

    def __init__(
        self,
        *,
        guard: PrivacyGuard,
        data: OwnData,
        activity: Activity,
        presence: Presence,
        upload: Upload,
        model: LocalModel,
        model_store: ModelStore,
    ) -> None:
        self._guard, self._data, self._activity, self._presence = guard, data, activity, presence
        self._upload, self._model, self._model_store = upload, model, model_store
        self._told = False

    def open(self, now: float) -> Iterator[Command]:
        """Have the ledger opened, or planned anew for another number of records."""
        if not self._activity.opening:
            self._activity.opening = True
            stored = self._guard.encoded() or self._guard.stored_ledger
            at = self._guard.wall(now)
            guard = self._guard
            fleet = (guard.fleet or Fleet.announced(self._data.announced, 1)) if guard.plans else None
            yield Compute(OpenLedger(stored, self._data.records if self._data.live else 0, at, fleet))

    def opened(self, event: LedgerOpened, now: float) -> Iterator[Command]:
        """Take the opened ledger over."""
        self._activity.opening = False
        yield Persist(tuple(self._guard.open(event.ledger, now)))
        yield from self._heed(now)

    def observe(self, seen: Account, now: float) -> Iterator[Command]:
        """Compare with how far others saw the ledger come: if that is further than here, it was lost."""
        if ops := self._guard.observe(seen, now):
            yield Persist(tuple(ops))
        yield from self._heed(now)

    def drop_work(self, reason: str) -> Iterator[Command]:
        """Discard unreleased work that must not leave."""
        self._model.discard_work()
        self._upload.discard_work()
        yield WorkDropped(reason=reason)
        yield Persist(tuple(self._model_store.snapshot(self._upload.outbox.next_seq)))

    def _heed(self, now: float) -> Iterator[Command]:
        """Work an accepted budget out; say once that training stops because the ledger is lost."""
        if self._guard.wants_renewal:
            yield from self.open(now)
        elif self._guard.refusal and not self._told:
            self._told = True
            yield LedgerLost(reason=self._guard.refusal)
            if self._upload.trainings:
                yield from self.drop_work("it was paid from a ledger that is out of date")
            yield from self._presence.announce_if_linked(now)
