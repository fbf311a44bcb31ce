"""Data that live: a device looks before it trains, waits when there is nothing, and pays the rate that is used."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.privacy.events import Budget, DpSgdSteps
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.messages import Card, Status
from ofl_iot.protocol.model_card import ModelCard, TensorCard, encode_card
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, SetTimer, Subscribe
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.own_data import OwnData
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.events import DataLooked, Event, JobFailed, LedgerOpened, LinkUp, Started, TimerFired, Trained
from ofl_iot.roles.job_kinds.device import LookAtData, OpenLedger, TrainLocally
from ofl_iot.roles.reports.base import JobFailure, MessageDropped
from ofl_iot.roles.reports.device import DataFound, ModelDiffers, WaitingForData
from ofl_iot.roles.settings import TrainingRules
from tests.roles.parties import (
    MODEL,
    SIZE,
    A,
    B,
    arrived,
    assigned,
    assignment,
    jobs,
    prepared,
    published,
    told,
    whole_model,
)

RULES = DeviceRules(
    training=TrainingRules(steps=1, batch_size=16), privacy=PrivacyRules(mode="rigorous", planned_steps=1000)
)


def live_machine(mode: str = "rigorous") -> DeviceMachine:
    profile = DeviceProfile(DeviceId(A), MODEL, SIZE, 4, 0, live=True)
    return DeviceMachine(profile, msgspec.structs.replace(RULES, privacy=PrivacyRules(mode=mode, planned_steps=1000)))  # type: ignore[arg-type]


def begin(machine: DeviceMachine) -> list[Command]:
    """Started, linked and assigned; the leader's model has arrived."""
    for event in (Started({}), LinkUp(), assigned(assignment(leader=B))):
        assert not jobs(machine.handle(event, 0.0), OpenLedger), "nothing is known of the data yet"
    return machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 0.0)


def finish(machine: DeviceMachine, training: TrainLocally) -> list[Command]:
    """End a training whose release the leader answers."""
    machine.handle(Trained(training.params, training.params + 1, 0.5, 1, 0.01), 1.0)
    machine.handle(prepared({0: 1.0}), 1.0)
    return machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 1.0)


def ledger(records: int, steps: int = 100) -> Ledger:
    return Ledger(Budget(8.0, 1e-5), (), DpSgdSteps(1.0, min(1.0, 16 / records), steps))


def test_a_device_looks_opens_its_ledger_for_what_it_found_and_trains() -> None:
    machine = live_machine()
    assert jobs(begin(machine), LookAtData)
    commands = machine.handle(DataLooked(64), 0.0)
    (opening,) = jobs(commands, OpenLedger)
    assert (opening.stored, opening.records) == (None, 64)
    assert not jobs(commands, TrainLocally)
    (training,) = jobs(machine.handle(LedgerOpened(ledger(64)), 0.0), TrainLocally)
    assert training.noise_multiplier == 1.0
    assert jobs(finish(machine, training), LookAtData), "before the next training it looks again"


def test_without_data_the_device_waits_says_so_once_and_goes_on_when_they_come() -> None:
    machine = live_machine("off")
    begin(machine)
    commands = machine.handle(DataLooked(0), 0.0)
    assert WaitingForData in told(commands)
    assert [c.at for c in commands if isinstance(c, SetTimer) and c.name == "device.rest"] == [5.0]
    assert jobs(machine.handle(TimerFired("device.rest"), 5.0), LookAtData)
    assert WaitingForData not in told(machine.handle(DataLooked(0), 5.0))
    machine.handle(TimerFired("device.rest"), 10.0)
    commands = machine.handle(DataLooked(40), 10.0)
    assert DataFound in told(commands)
    (status,) = published(commands, Kind.STATUS)
    assert isinstance(status, Status)
    assert status.sample_count == 64, "rounded up to a power of two"
    assert jobs(commands, TrainLocally)


@pytest.mark.parametrize(("records", "anew"), [(64, False), (63, True), (70, False), (100, True), (10, True)])
def test_fewer_records_than_were_planned_for_are_not_trained_on_before_the_plan_follows(
    records: int, anew: bool
) -> None:
    machine = live_machine()
    begin(machine)
    machine.handle(DataLooked(64), 0.0)
    (training,) = jobs(machine.handle(LedgerOpened(ledger(64)), 0.0), TrainLocally)
    assert jobs(finish(machine, training), LookAtData)
    commands = machine.handle(DataLooked(records), 1.0)
    opened = jobs(commands, OpenLedger)
    assert bool(opened) == anew
    assert bool(jobs(commands, TrainLocally)) != anew
    if anew:
        (opening,) = opened
        assert opening.records == records
        spent = Ledger.from_plain(msgspec.msgpack.decode(opening.stored or b""))
        assert spent.events == (DpSgdSteps(1.0, 0.25, 1),), "what was spent is never forgotten"
        assert jobs(machine.handle(LedgerOpened(ledger(records)), 1.0), TrainLocally)


def test_a_failure_is_told_once_and_tried_again_ever_more_seldom() -> None:
    machine = live_machine("off")
    begin(machine)
    waits, now = [], 0.0
    for attempt in range(10):
        commands = machine.handle(JobFailed(LookAtData, "ValueError: sensor 7 has no calibration"), now)
        assert bool(JobFailure in told(commands)) == (attempt == 0)
        (rest,) = [c.at - now for c in commands if isinstance(c, SetTimer) and c.name == "device.rest"]
        waits.append(rest)
        now += rest
        assert jobs(machine.handle(TimerFired("device.rest"), now), LookAtData)
    assert waits[:4] == [5.0, 10.0, 20.0, 40.0]
    assert waits[-1] == 600.0
    assert JobFailure in told(machine.handle(JobFailed(LookAtData, "another"), now))


def test_a_ledger_that_could_not_be_opened_is_opened_again() -> None:
    machine = live_machine()
    begin(machine)
    machine.handle(DataLooked(64), 0.0)
    machine.handle(JobFailed(OpenLedger, "ConfigError: no"), 0.0)
    assert jobs(machine.handle(TimerFired("device.rest"), 5.0), OpenLedger)


@given(st.lists(st.integers(0, 10_000), max_size=20), st.integers(1, 512))
def test_no_training_uses_a_higher_rate_than_was_planned(counts: list[int], batch: int) -> None:
    data, planned = OwnData(0, live=True), 0.0
    for count in counts:
        data.found(count)
        if data.needs_other_plan(planned, batch):
            planned = data.rate(batch)
        assert data.rate(batch) <= planned * (1 + 1e-9)
        assert data.must_look == (count == 0)
        data.used()
        assert data.must_look


# --- the model's card

MINE = ModelCard(app="eyes", tensors=(TensorCard("conv1.weight", (32, 1, 5, 5)),), loss="nll", version="1")
THEIRS = msgspec.structs.replace(MINE, tensors=(TensorCard("conv1.weight", (16, 1, 5, 5)),))
WORDS = "this device's conv1.weight is 32x1x5x5, the federation's 16x1x5x5"


def carded() -> DeviceMachine:
    return DeviceMachine(DeviceProfile(DeviceId(A), MODEL, SIZE, 4, 10, card=encode_card(MINE)), RULES)


def card(of: ModelCard) -> Event:
    return arrived(Kind.CARD, COORDINATOR, Card(encode_card(of)))


def test_a_model_that_differs_is_told_at_both_ends_in_words() -> None:
    machine = carded()
    assert Subscribe(Kind.CARD) in machine.handle(Started({}), 0.0)
    machine.handle(LinkUp(), 0.0)
    commands = machine.handle(card(THEIRS), 0.0)
    assert ModelDiffers(difference=WORDS) in commands
    (status,) = published(commands, Kind.STATUS)
    assert isinstance(status, Status)
    assert status.difference == WORDS
    assert not machine.handle(card(THEIRS), 1.0), "it is told once"
    (status,) = published(machine.handle(card(MINE), 2.0), Kind.STATUS)
    assert isinstance(status, Status)
    assert status.difference == ""


def test_equal_models_and_what_is_no_card_are_passed_over() -> None:
    machine = carded()
    machine.handle(Started({}), 0.0)
    assert machine.handle(card(MINE), 0.0) == []
    assert told(machine.handle(arrived(Kind.CARD, COORDINATOR, Card(b"nonsense")), 0.0)) == [MessageDropped]


def test_a_difference_of_any_length_fits_the_announcement() -> None:
    machine = carded()
    machine.handle(Started({}), 0.0)
    machine.handle(card(msgspec.structs.replace(MINE, tensors=(TensorCard("x" * 5000, (1,)),))), 0.0)
    assert len(encode(machine.status(online=True))) < 600
