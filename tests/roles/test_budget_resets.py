"""A spent budget does not come back: not by another model, a lost folder, an older copy or another mode."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.errors import PrivacyError
from ofl_iot.privacy.events import Budget, DpSgdSteps, Unprotected
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.lives import Account
from ofl_iot.protocol.messages import Receipt
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.privacy_guard import TABLE, PrivacyRules
from ofl_iot.roles.device.profile import DeviceRules
from ofl_iot.roles.events import JobFailed, LedgerOpened, LinkUp, Started, Trained
from ofl_iot.roles.job_kinds.base import failure_of
from ofl_iot.roles.job_kinds.device import OpenLedger, TrainLocally
from ofl_iot.roles.reports.device import LedgerLost, TrainingDiscarded, WorkDropped
from ofl_iot.roles.settings import DownloadRules, TrainingRules, UploadRules
from ofl_iot.roles.store_identity import StoreIdentity
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    A,
    B,
    arrived,
    assigned,
    assignment,
    device_machine,
    jobs,
    persist,
    prepared,
    published,
    whole_model,
)

STEPS = 4
RIGOROUS = PrivacyRules(mode="rigorous", planned_steps=100)


class Bench:
    """A device with its store; the accountant is played by `allow`."""

    def __init__(self, privacy: PrivacyRules = RIGOROUS, *, accept: bool = False, store: bytes = b"one") -> None:
        self.store = MemoryStore()
        self.privacy = privacy
        self.begin(accept=accept, store=store)

    def begin(
        self, privacy: PrivacyRules | None = None, *, accept: bool = False, store: bytes = b"one", model: bytes = b""
    ) -> list[Command]:
        self.privacy = privacy or self.privacy
        rules = DeviceRules(
            training=TrainingRules(steps=STEPS),
            upload=UploadRules(gamma=1.0, values="single"),
            download=DownloadRules(gamma=1.0),
            privacy=self.privacy,
        )
        profile = replace(device_machine().profile, accept_new_budget=accept)
        profile = replace(profile, model=model or profile.model)
        self.machine = DeviceMachine(profile, rules, StoreIdentity(store))
        commands = self.give(Started(self.store.load(), wall=1000.0))
        return commands + self.give(LinkUp())

    def give(self, event: object, now: float = 1.0) -> list[Command]:
        commands = self.machine.handle(event, now)  # type: ignore[arg-type]
        persist(self.store, commands)
        return commands

    def allow(self, stored: bytes | None, steps: int = 20) -> list[Command]:
        """Open the ledger: `steps` in all, less what was spent."""
        ledger = Ledger.from_plain(msgspec.msgpack.decode(stored)) if stored else Ledger(Budget(8.0))
        ledger = ledger.under(mode=self.privacy.mode, source="data", budget=self.privacy.budget, at=1000.0)
        unprotected = any(isinstance(event, Unprotected) for event in ledger.events)
        left = 0 if unprotected else max(0, steps - ledger.steps_spent)
        return self.give(LedgerOpened(replace(ledger, allowance=DpSgdSteps(1.1, 0.1, left))))

    def reach_training(self, account: Account | None = None, store: bytes = b"one") -> list[Command]:
        """An assignment that names a store and a ledger, then the whole model."""
        office = msgspec.structs.replace(assignment(leader=B), store=store, account=account or Account())
        return self.give(assigned(office)) + self.give(arrived(Kind.BLOCKS, B, whole_model(), A))

    def trained(self, job: TrainLocally) -> list[Command]:
        return self.give(Trained(job.params, job.params + 1, 0.0, job.steps, 0.1, 0.1))

    @property
    def ledger(self) -> Ledger:
        return Ledger.from_plain(msgspec.msgpack.decode(self.store.load()[TABLE]["ledger"]))


def worked() -> Bench:
    """A device that has trained once and released it."""
    bench = Bench()
    bench.allow(None)
    (job,) = jobs(bench.reach_training(), TrainLocally)
    bench.trained(job)
    assert published(bench.give(prepared({0: 1.0})), Kind.UPDATE)
    return bench


def test_another_model_in_the_same_folder_goes_on_with_the_ledger() -> None:
    bench = worked()
    (job,) = jobs(bench.begin(model=b"anothers"), OpenLedger)
    assert job.stored is not None
    bench.allow(job.stored)
    assert bench.machine.guard.ledger is not None
    assert bench.machine.guard.ledger.steps_spent == STEPS


def test_a_lost_folder_is_noticed_by_what_others_know_and_the_device_goes_on_serving() -> None:
    bench = worked()
    account = bench.machine.guard.account
    assert account == Account(1, STEPS)
    fresh = Bench(store=b"two")
    fresh.allow(None)
    commands = fresh.reach_training(account, store=b"two")
    assert not jobs(commands, TrainLocally)
    (report,) = [each for each in commands if isinstance(each, LedgerLost)]
    assert "--accept-new-budget" in report.reason
    (told,) = published(commands, Kind.STATUS)
    assert "lost" in told.privacy  # type: ignore[union-attr]
    assert fresh.machine.guard.left == 0.0
    assert published(fresh.give(LinkUp()), Kind.STATUS), "it still announces itself, pulls and serves"


def test_the_assignment_of_the_lost_store_is_passed_over_until_the_coordinator_knows_the_new_one() -> None:
    fresh = Bench(store=b"two")
    fresh.allow(None)
    assert not jobs(fresh.reach_training(store=b"one"), TrainLocally), "its numbers are those of another store"
    assert jobs(fresh.reach_training(store=b"two"), TrainLocally)


def test_an_older_copy_of_the_folder_is_noticed_by_a_receipt_and_its_work_does_not_leave() -> None:
    bench = worked()
    older = MemoryStore()
    older._tables = {name: dict(table) for name, table in bench.store._tables.items()}
    (job,) = jobs(bench.give(arrived(Kind.BLOCKS, B, whole_model(), A)), TrainLocally)
    bench.trained(job)
    furthest = bench.machine.guard.account
    bench.store = older
    (opening,) = jobs(bench.begin(), OpenLedger)
    bench.allow(opening.stored)
    assert bench.machine.guard.account.behind(furthest)
    commands = bench.give(arrived(Kind.RECEIPT, B, Receipt(1, (), SeqSet(), 8, 1, b"one", furthest), A))
    assert [each for each in commands if isinstance(each, LedgerLost)]
    np.testing.assert_array_equal(bench.machine.model.unreleased, 0)
    assert not jobs(bench.give(arrived(Kind.BLOCKS, B, whole_model(), A)), TrainLocally)


def test_work_trained_without_protection_does_not_leave_after_a_restart_with_it() -> None:
    bench = Bench(PrivacyRules(mode="off"))
    (job,) = jobs(bench.reach_training(), TrainLocally)
    bench.trained(job)
    assert bench.ledger.events == (Unprotected(1),)
    assert np.any(bench.machine.model.unreleased)
    commands = bench.begin(RIGOROUS)
    assert [each for each in commands if isinstance(each, WorkDropped)]
    np.testing.assert_array_equal(bench.machine.model.unreleased, 0)
    (opening,) = jobs(commands, OpenLedger)
    bench.allow(opening.stored)
    assert bench.machine.guard.ledger is not None
    assert bench.machine.guard.ledger.spent_epsilon() == np.inf
    assert not jobs(bench.give(arrived(Kind.BLOCKS, B, whole_model(), A)), TrainLocally)


def test_work_of_the_version_before_without_a_ledger_counts_as_unprotected() -> None:
    bench = Bench(PrivacyRules(mode="off"))
    (job,) = jobs(bench.reach_training(), TrainLocally)
    bench.trained(job)
    del bench.store._tables[TABLE]
    (opening,) = jobs(bench.begin(RIGOROUS), OpenLedger)
    assert opening.stored is not None
    assert Unprotected(1) in Ledger.from_plain(msgspec.msgpack.decode(opening.stored)).events


def test_a_new_budget_is_accepted_by_the_operator_and_entered() -> None:
    fresh = Bench(store=b"two", accept=True)
    fresh.allow(None)
    (opening,) = jobs(fresh.reach_training(Account(7, 70), store=b"two"), OpenLedger)
    commands = fresh.allow(opening.stored)
    assert jobs(commands, TrainLocally)
    assert fresh.ledger.accepted == 1
    assert fresh.ledger.version > 7
    assert fresh.ledger.paid_steps == 70 + STEPS
    (again,) = jobs(fresh.begin(), OpenLedger)
    fresh.allow(again.stored)
    assert not fresh.machine.guard.refusal


def test_a_spent_budget_is_renewed_once_a_start() -> None:
    bench = Bench(accept=True)
    (opening,) = jobs(bench.allow(None, steps=0), OpenLedger)
    assert not jobs(bench.allow(opening.stored, steps=0), OpenLedger), "once"
    assert bench.ledger.accepted == 1


# --- paid as used


def test_a_failed_training_is_paid_back_a_few_times_and_then_charged() -> None:
    bench = Bench()
    bench.allow(None, steps=100)
    commands, left = bench.reach_training(), []
    for turn in range(6):
        assert jobs(commands, TrainLocally)
        bench.give(JobFailed(TrainLocally, "RuntimeError: out of memory"))
        left.append(bench.ledger.steps_left)
        bench.machine.activity.resting = False
        commands = bench.give(arrived(Kind.BLOCKS, B, whole_model(), A), 10.0 + turn)
    assert left == [100, 100, 100, 96, 92, 88]


def test_data_that_shrink_are_planned_anew_before_anything_is_trained() -> None:
    bench = Bench()
    bench.allow(None, steps=100)
    (job,) = jobs(bench.reach_training(), TrainLocally)
    assert job.sampling_rate == 0.1
    refusal = PrivacyError("5 records are fewer than were planned for")
    commands = bench.give(failure_of(TrainLocally(np.zeros(1, np.float32), 1), refusal))
    (opening,) = jobs(commands, OpenLedger)
    assert bench.ledger.steps_spent == 0, "nothing ran, nothing is paid"
    assert bench.machine.guard.needs_ledger
    assert opening.stored is not None


def test_a_training_that_sampled_more_than_was_paid_for_is_void_and_stays_paid() -> None:
    bench = Bench()
    bench.allow(None, steps=100)
    (job,) = jobs(bench.reach_training(), TrainLocally)
    commands = bench.give(Trained(job.params, job.params + 1, 0.0, job.steps, 0.1, 0.2))
    assert [each for each in commands if isinstance(each, TrainingDiscarded)]
    np.testing.assert_array_equal(bench.machine.model.unreleased, 0)
    assert bench.ledger.steps_spent == STEPS


# --- pace


def test_a_device_trains_once_for_each_model_it_receives() -> None:
    bench = Bench(PrivacyRules(mode="rigorous", lifetime="5 rounds"))
    bench.allow(None, steps=5 * STEPS)
    commands = bench.reach_training()
    for round_no in range(4):
        (job,) = jobs(commands, TrainLocally)
        assert job.steps == STEPS
        bench.trained(job)
        bench.give(prepared({0: 1.0}))
        same = whole_model(round_no=round_no)
        assert not jobs(bench.give(arrived(Kind.BLOCKS, B, same, A)), TrainLocally)
        seq = bench.machine.outbox.next_seq - 1
        receipt = Receipt(1, (seq,), SeqSet(seq), 8, seq, b"one")
        assert published(bench.give(arrived(Kind.RECEIPT, B, receipt, A)), Kind.PULL), (
            "what is settled is in a new model"
        )
        assert f"{4 - round_no} rounds left" in bench.machine.guard.words(1.0)
        commands = bench.give(arrived(Kind.BLOCKS, B, whole_model(round_no=round_no + 1), A))
    assert jobs(commands, TrainLocally), "the fifth and last"
    assert "nothing left" in bench.machine.guard.words(1.0)


def test_by_the_calendar_a_timer_waits_for_the_next_training() -> None:
    bench = Bench(PrivacyRules(mode="rigorous", lifetime="10 h"))
    bench.allow(None, steps=10)
    commands = bench.reach_training()
    assert not jobs(commands, TrainLocally)
    resting = [c for c in commands if getattr(c, "name", "") == "device.rest"]
    assert resting
    assert resting[0].at == pytest.approx(3600.0, abs=2.0)  # type: ignore[union-attr]
