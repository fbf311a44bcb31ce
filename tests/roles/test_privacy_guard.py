"""Nothing is trained or released that was not paid for, durably, first."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ofl_iot.errors import PrivacyError
from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, Compute, Persist
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.device.privacy_guard import TABLE, PrivacyGuard, PrivacyRules
from ofl_iot.roles.device.profile import DeviceRules
from ofl_iot.roles.events import LedgerOpened, LinkUp, Started, Trained
from ofl_iot.roles.job_kinds.device import OpenLedger, PrepareRelease, TrainLocally
from ofl_iot.roles.reports.device import BudgetSpent, ModelDownloaded
from ofl_iot.roles.settings import DownloadRules, TrainingRules, UploadRules
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    SIZE,
    A,
    B,
    arrived,
    assigned,
    assignment,
    device_machine,
    jobs,
    kinds,
    persist,
    prepared,
    published,
    told,
    whole_model,
)

PAPER = PrivacyRules(mode="paper", epsilon=10.0)
RIGOROUS = PrivacyRules(mode="rigorous", planned_steps=100)
PACED = PrivacyRules(mode="rigorous", lifetime="3 rounds")


def private_device(privacy: PrivacyRules) -> DeviceMachine:
    rules = DeviceRules(
        training=TrainingRules(steps=4),
        upload=UploadRules(gamma=1.0, values="single"),
        download=DownloadRules(gamma=1.0),
        privacy=privacy,
    )
    return DeviceMachine(device_machine().profile, rules)


def ledger_of(steps: int) -> Ledger:
    """A ledger that allows so many steps; computing the allowance is the accountant's business."""
    return Ledger(Budget(8.0), (), DpSgdSteps(1.1, 0.1, steps))


def begin(machine: DeviceMachine, ledger: Ledger) -> list[Command]:
    """Up to the first training; returns the commands that began it."""
    for event in (Started(), LinkUp(), assigned(assignment(leader=B)), arrived(Kind.BLOCKS, B, whole_model(), A)):
        assert not jobs(machine.handle(event, 0.0), TrainLocally), "it must wait for the ledger"
    return machine.handle(LedgerOpened(ledger), 1.0)


def stored_ledger(commands: list[Command]) -> list[Ledger]:
    ops = [op for c in commands if isinstance(c, Persist) for op in c.ops if op.table == TABLE]
    return [Ledger.from_plain(msgspec.msgpack.decode(op.value)) for op in ops]  # type: ignore[union-attr]


def test_the_ledger_is_opened_outside_the_machine_with_what_was_stored() -> None:
    commands = private_device(RIGOROUS).handle(Started(), 0.0)
    assert jobs(commands, OpenLedger) == [OpenLedger(None)]
    stored = msgspec.msgpack.encode(ledger_of(7).to_plain())
    commands = private_device(RIGOROUS).handle(Started({TABLE: {"ledger": stored}}), 0.0)
    assert jobs(commands, OpenLedger) == [OpenLedger(stored)]
    assert not jobs(device_machine().handle(Started(), 0.0), OpenLedger), "off needs none"


def test_steps_are_paid_for_durably_before_they_are_trained() -> None:
    machine = private_device(RIGOROUS)
    commands = begin(machine, ledger_of(10))
    assert kinds(commands) == ["Persist", "Persist", "Compute"]
    assert [ledger.steps_left for ledger in stored_ledger(commands)] == [10, 6]
    (job,) = jobs(commands, TrainLocally)
    assert (job.steps, job.noise_multiplier) == (4, 1.1)
    assert machine.guard.left == pytest.approx(0.6)


def test_an_exhausted_budget_stops_training_but_lets_out_what_was_paid_for() -> None:
    machine = private_device(RIGOROUS)
    (job,) = jobs(begin(machine, ledger_of(4)), TrainLocally)
    commands = machine.handle(Trained(job.params, job.params + 1, 0.0, 4, 0.1), 2.0)
    assert jobs(commands, PrepareRelease)
    commands = machine.handle(prepared({0: 1.0}), 3.0)
    assert published(commands, Kind.UPDATE)
    commands = machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 4.0)
    assert told(commands) == [ModelDownloaded, BudgetSpent]
    assert not jobs(commands, TrainLocally)
    assert not jobs(machine.handle(LinkUp(), 5.0), TrainLocally)
    assert told(machine.handle(LinkUp(), 6.0)) == [], "said once"


def test_in_the_papers_mode_chunk_and_price_are_one_transaction_and_a_resend_is_free() -> None:
    machine = private_device(PAPER)
    (job,) = jobs(begin(machine, Ledger(Budget(10.0))), TrainLocally)
    machine.handle(Trained(job.params, job.params + 1, 0.0, 4, 0.1), 2.0)
    commands = machine.handle(prepared({0: 1.0, 1: 1.0}), 3.0)
    (paid,) = (c for c in commands if isinstance(c, Persist))
    assert [op.table for op in paid.ops] == [TABLE, OUTBOX]
    assert [ledger.events for ledger in stored_ledger(commands)] == [(PaperRelease(1.0, 1.0, 2),)]
    assert stored_ledger(machine.handle(LinkUp(), 9.0)) == []


def test_in_the_papers_mode_a_chunk_beyond_the_budget_does_not_leave() -> None:
    machine, store = private_device(PAPER), MemoryStore()
    (job,) = jobs(begin(machine, Ledger(Budget(10.0))), TrainLocally)
    machine.handle(Trained(job.params, job.params + 1, 0.0, 4, 0.1), 2.0)
    commands = machine.handle(prepared(dict.fromkeys(range(SIZE), 1.0)), 3.0)
    persist(store, commands)
    assert BudgetSpent in told(commands)
    assert not published(commands, Kind.UPDATE)
    assert OUTBOX not in store.load()
    assert machine.outbox.queued == 0
    np.testing.assert_array_equal(machine.model.unreleased, np.ones(SIZE))


def test_a_guard_without_its_ledger_pays_nothing() -> None:
    with pytest.raises(PrivacyError, match="not open"):
        PrivacyGuard(RIGOROUS).pay_training(1)
    with pytest.raises(PrivacyError, match="not open"):
        PrivacyGuard(PAPER).pay_release(1)
    assert PrivacyGuard(RIGOROUS).steps_left == 0.0
    assert PrivacyGuard(PAPER).pay_training(1) == []
    assert PrivacyGuard(RIGOROUS).left == 1.0
    assert Compute(OpenLedger(None)).job == OpenLedger(None)
