"""`privacy.auto`: a device trains by a plan that it makes of the fleet's published records, and of nothing private."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.jobs.ledger import LedgerRequest, open_ledger
from ofl_iot.jobs.toolbox import Momentum
from ofl_iot.privacy.accountant import epsilon
from ofl_iot.privacy.planning import CLIP_NORM, ROUNDED_UP, Fleet
from ofl_iot.protocol.messages import Assignment
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.privacy_guard import PrivacyGuard, PrivacyRules
from ofl_iot.roles.device.profile import DeviceRules
from ofl_iot.roles.events import LedgerOpened, LinkUp, Started, Trained
from ofl_iot.roles.job_kinds.device import OpenLedger, TrainLocally
from ofl_iot.roles.settings import DownloadRules, TrainingRules, UploadRules
from tests.roles.parties import A, B, arrived, assigned, assignment, device_machine, jobs, whole_model

AUTO = PrivacyRules(auto=True, lifetime="40 rounds")


def planning_device() -> DeviceMachine:
    rules = DeviceRules(
        training=TrainingRules(steps=1), upload=UploadRules(gamma=1.0), download=DownloadRules(gamma=1.0), privacy=AUTO
    )
    return DeviceMachine(device_machine().profile, rules)


def told_of(records: int, devices: int) -> Assignment:
    return msgspec.structs.replace(assignment(leader=B), fleet_records=records, fleet_devices=devices)


def test_a_device_plans_when_it_knows_the_fleet_and_not_before() -> None:
    machine = planning_device()
    assert not jobs(machine.handle(Started(), 0.0), OpenLedger)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(told_of(4096, 16)), 0.0)
    (asked,) = jobs(machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 0.1), OpenLedger)
    assert asked.fleet == Fleet(round(4096 * ROUNDED_UP), 16)


def test_every_training_is_as_the_plan_says_and_divided_by_a_public_number() -> None:
    machine = planning_device()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(told_of(4096, 16)), 0.0)
    (asked,) = jobs(machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 0.1), OpenLedger)
    request = LedgerRequest(AUTO, 0.1, asked.stored, 1, "data", asked.at, asked.fleet, machine.profile.size)
    (job,) = jobs(machine.handle(LedgerOpened(open_ledger(request)), 0.2), TrainLocally)
    assert job.plan is not None
    assert (job.plan.clip_norm, job.plan.sampling_rate) == (CLIP_NORM, 1.0)
    assert job.batch_size == round(ROUNDED_UP * machine.data.announced)


def test_the_whole_plan_spends_the_budget_and_no_more() -> None:
    ledger = open_ledger(LedgerRequest(AUTO, 0.1, None, 1, "data", 0.0, Fleet(20_000, 16), 10_000))
    assert ledger.allowance is not None
    assert ledger.allowance.steps == 100
    assert 7.5 < epsilon([ledger.allowance], 1e-5) <= 8.0


def test_a_model_that_is_too_large_is_refused_with_the_largest_that_is_not() -> None:
    with pytest.raises(ConfigError, match=r"At most \d+ parameters"):
        open_ledger(LedgerRequest(AUTO, 0.1, None, 1, "data", 0.0, Fleet(1200, 16), 132_807))


def test_a_fleet_that_doubles_is_planned_for_anew() -> None:
    machine = planning_device()
    machine.guard.fleet = Fleet(3000, 16)
    machine.guard.open(open_ledger(LedgerRequest(AUTO, 0.1, None, 1, "", 0.0, Fleet(3000, 16), 100)), 0.0)
    assert not machine.guard.needs_plan(machine.data, 16)
    machine.guard.fleet = Fleet(5900, 30)
    assert not machine.guard.needs_plan(machine.data, 16)
    machine.guard.fleet = Fleet(6000, 30)
    assert machine.guard.needs_plan(machine.data, 16)


def test_momentum_is_carried_from_one_single_step_to_the_next() -> None:
    ledger = open_ledger(LedgerRequest(AUTO, 0.1, None, 1, "", 0.0, Fleet(3000, 16), 100))
    machine = planning_device()
    machine.guard.open(ledger, 0.0)
    plan, carrier, start = machine.guard.plan(512), Momentum(), np.zeros(2, np.float32)
    assert plan is not None

    def step(*values: float) -> np.ndarray:
        return carrier.carried(Trained(start, np.array(values, np.float32), 0.0, 1, 0.1), plan)

    assert step(1, 0) == pytest.approx([1, 0])
    assert step(0, 1) == pytest.approx([0.9, 1])
    assert step(0, 0) == pytest.approx([0.81, 0.9])
    assert np.isnan(step(np.nan, 0)).any()
    assert step(0, 0) == pytest.approx([0, 0]), "what diverged is forgotten"


def test_a_short_life_has_several_steps_a_round_and_a_long_one_a_step_in_each() -> None:
    for lifetime, each in (("8 rounds", 12), ("40 rounds", 2), ("100 rounds", 1), ("300 rounds", 1)):
        rules = PrivacyRules(auto=True, lifetime=lifetime)
        guard = PrivacyGuard(rules, parameters=100)
        guard.open(open_ledger(LedgerRequest(rules, 0.1, None, 1, "", 0.0, Fleet(30_000, 16), 100)), 0.0)
        assert guard.due(1, 0, 0.0) == each


def test_a_plan_of_few_steps_makes_one_in_each_round_until_it_ends() -> None:
    rules = PrivacyRules(auto=True, lifetime="100 rounds")
    guard = PrivacyGuard(rules, parameters=2000)
    guard.open(open_ledger(LedgerRequest(rules, 0.1, None, 1, "", 0.0, Fleet(1208, 16), 2000)), 0.0)
    assert guard.ledger is not None
    assert guard.ledger.steps_left == 20
    for round_no in range(20):
        assert guard.due(1, round_no, 0.0) == 1
        guard.pay_training(1)
    assert guard.ledger.steps_left == 0
