"""From telemetry to a plan: which resource limits a device, and when it is worth telling."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.opportunity.plan import Plan
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.values import BlockPrecision, Precision
from ofl_iot.roles.device.resources import ResourceRules, Resources, plan_contact
from ofl_iot.roles.settings import TrainingRules, UploadRules

SIZE = 1_000_000
TRAINING = TrainingRules()
IDLE = Telemetry(cpu_count=4, cpu_ghz=1.4, cpu_load=0.2, memory_total_mib=4096, memory_free_mib=2048, samples=10_000)


def plan(telemetry: Telemetry | None, rules: ResourceRules | None = None, steps_left: float = math.inf):
    return plan_contact(SIZE, telemetry, TRAINING, rules or ResourceRules(), steps_left)


def test_a_device_that_knows_nothing_of_itself_exchanges_everything() -> None:
    assert (plan(None).gamma_up, plan(None).gamma_down) == (1.0, 1.0)


def test_a_slow_link_limits_both_directions_and_stays_within_its_bytes() -> None:
    slow = msgspec.structs.replace(IDLE, network_mbps=0.1, step_s=0.001)
    limited = plan(slow)
    assert limited.binding == "communication"
    budget = 0.1e6 / 8 * 60.0 * 0.5
    assert SIZE * (2.1 * limited.gamma_up + 1.1 * limited.gamma_down) <= budget * 1.001
    assert limited.gamma_up > 0
    assert limited.gamma_down > 0


def test_on_a_slow_link_values_of_more_bytes_leave_room_for_fewer() -> None:
    slow = msgspec.structs.replace(IDLE, network_mbps=0.1, step_s=0.001)
    nibble, byte, half, single = (
        plan_contact(SIZE, slow, TRAINING, ResourceRules(), math.inf, values=values).gamma_up
        for values in get_args(Precision)
    )
    assert nibble > byte > half > single > 0
    resources = Resources(SIZE, TRAINING, ResourceRules(), "single")
    resources.measured(slow, math.inf)
    assert resources.plan(math.inf).gamma_up == single


def test_what_leaders_send_is_planned_with_the_precision_they_send_in() -> None:
    slow = msgspec.structs.replace(IDLE, network_mbps=0.1, step_s=0.001)
    resources = [Resources(SIZE, TRAINING, ResourceRules(), values_down=values) for values in get_args(BlockPrecision)]
    for each in resources:
        each.measured(slow, math.inf)
    byte, half, single = (each.plan(math.inf).gamma_down for each in resources)
    assert byte > half > single > 0


def test_skewed_labels_limit_a_device_with_few_samples_and_nobody_else_by_default() -> None:
    def planned(samples: int, passes: float = ResourceRules().passes) -> Plan:
        resources = Resources(SIZE, TRAINING, ResourceRules(passes=passes), balance=0.1)
        resources.measured(msgspec.structs.replace(IDLE, samples=samples), math.inf)
        return resources.plan(math.inf)

    assert planned(samples=20).gamma_up == 1.0
    assert planned(samples=2).gamma_up > UploadRules().gamma
    scarce = planned(samples=20, passes=10.0)
    assert scarce.binding == "data"
    assert scarce.gamma_up == pytest.approx(0.1 * 20 * 10.0 / (TRAINING.steps * TRAINING.batch_size))


def test_a_slow_processor_limits_what_can_be_trained_and_sent() -> None:
    assert plan(msgspec.structs.replace(IDLE, step_s=60.0)).binding == "computing"


def test_a_low_battery_limits_the_exchange_and_an_empty_one_ends_it() -> None:
    rules = ResourceRules(battery_wh=10.0)
    weak = msgspec.structs.replace(IDLE, battery=0.205, power_w=20.0, step_s=10.0)
    assert 0 < plan(weak, rules).gamma_up < 1
    assert plan(weak, rules).binding == "availability"
    assert plan(msgspec.structs.replace(weak, battery=0.2), rules).gamma_up == 0


def test_a_budget_that_ends_limits_uploads_but_not_downloads() -> None:
    ending = plan(IDLE, steps_left=TRAINING.steps / 2)
    assert ending.binding == "privacy"
    assert ending.gamma_up == pytest.approx(0.5)
    assert ending.gamma_down == 1.0
    assert plan(IDLE, steps_left=0.0).gamma_up == 0


def test_the_plan_follows_the_telemetry_and_tells_a_new_limit_once() -> None:
    resources = Resources(SIZE, TRAINING, ResourceRules())
    report, told = resources.measured(IDLE, math.inf)
    assert told is not None
    assert report.binding == told.binding
    assert resources.measured(IDLE, math.inf)[1] is None
    slow = msgspec.structs.replace(IDLE, network_mbps=0.1)
    report, told = resources.measured(slow, math.inf)
    assert told is not None
    assert report.binding == "communication"
    assert resources.plan(math.inf) == told


def test_the_end_of_the_budget_is_planned_for_without_new_telemetry() -> None:
    resources = Resources(SIZE, TRAINING, ResourceRules())
    resources.measured(IDLE, 1e9)
    assert resources.plan(1e9).gamma_up == 1.0
    assert resources.plan(TRAINING.steps / 4).gamma_up == pytest.approx(0.25)


def test_a_report_without_news_is_not_worth_its_bytes() -> None:
    resources = Resources(SIZE, TRAINING, ResourceRules())
    report, _ = resources.measured(IDLE, math.inf)
    assert resources.worth_sending(report, 0.0)
    assert not resources.worth_sending(report, 20.0)
    assert resources.worth_sending(msgspec.structs.replace(report, cpu_load=0.9), 40.0)


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.integers(1, 50))
def test_a_training_is_about_as_long_as_allowed_and_never_empty(step_s: float, longest_s: float, steps: int) -> None:
    resources = Resources(SIZE, TrainingRules(steps=steps, longest_s=longest_s), ResourceRules())
    assert resources.steps() == steps, "nothing is known of its pace"
    resources.measured(msgspec.structs.replace(IDLE, step_s=step_s), math.inf)
    assert 1 <= resources.steps() <= steps
    assert resources.steps() == 1 or (resources.steps() - 0.01) * step_s <= longest_s
    assert resources.steps() == steps or (resources.steps() + 1.01) * step_s >= longest_s
    assert resources.steps(longest_s / 2.5) == min(steps, 2), "the pace of the last training counts for more"


def test_a_device_whose_contacts_are_short_plans_for_what_fits_into_one() -> None:
    resources = Resources(SIZE, TRAINING, ResourceRules())
    resources.measured(msgspec.structs.replace(IDLE, network_mbps=0.1, step_s=0.001), math.inf)
    before = resources.plan(math.inf).gamma_up
    for start in range(0, 2400, 120):
        resources.contact_began(float(start))
        resources.contact_ended(start + 20.0)
    assert resources.plan(math.inf).gamma_up == pytest.approx(before / 3, rel=0.05)
    for start in range(2000, 9000, 700):
        resources.contact_began(float(start))
        resources.contact_ended(start + 600.0)
    assert resources.plan(math.inf).gamma_up == pytest.approx(before, rel=0.05), "no longer than the settings say"
