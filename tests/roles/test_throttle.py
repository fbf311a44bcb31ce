"""A hot device pauses, one on battery rests, neither flaps; what binds is named."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Publish, SetTimer
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.resources import ResourceRules, Resources
from ofl_iot.roles.device.throttle import Throttle, throttle
from ofl_iot.roles.events import LinkUp, Measured, Started, TimerFired, Trained
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.roles.reports.device import ExchangeLimited
from ofl_iot.roles.settings import TrainingRules
from tests.roles.parties import (
    A,
    B,
    arrived,
    assigned,
    assignment,
    device_machine,
    jobs,
    prepared,
    published,
    told,
    whole_model,
)

COOL = Telemetry(cpu_count=4, cpu_ghz=1.4, cpu_load=0.2, memory_total_mib=4096, memory_free_mib=2048)
RULES = ResourceRules()
temperatures = st.none() | st.floats(-40, 150)
charges = st.none() | st.floats(0, 1)
throttles = st.sampled_from([Throttle(), Throttle(0.0, "heat"), Throttle(0.0, "battery"), Throttle(0.5, "battery")])


def measured(temperature_c: float | None = None, battery: float | None = None) -> Telemetry:
    return msgspec.structs.replace(COOL, temperature_c=temperature_c, battery=battery)


@given(temperatures, temperatures, charges, throttles)
def test_more_heat_never_lets_a_device_train_more(
    one: float | None, other: float | None, charge: float | None, before: Throttle
) -> None:
    cooler, hotter = sorted((-math.inf if one is None else one, -math.inf if other is None else other))
    paces = [throttle(measured(None if t == -math.inf else t, charge), RULES, before).pace for t in (cooler, hotter)]
    assert paces[0] >= paces[1]


@given(temperatures, st.floats(0, 1), st.floats(0, 1), throttles)
def test_less_charge_never_lets_a_device_train_more(
    temperature: float | None, one: float, other: float, before: Throttle
) -> None:
    low, high = sorted((one, other))
    assert (
        throttle(measured(temperature, low), RULES, before).pace
        <= throttle(measured(temperature, high), RULES, before).pace
    )


@given(temperatures, charges, throttles)
def test_the_same_reading_again_changes_nothing_and_less_than_full_pace_has_a_reason(
    temperature: float | None, charge: float | None, before: Throttle
) -> None:
    once = throttle(measured(temperature, charge), RULES, before)
    assert throttle(measured(temperature, charge), RULES, once) == once
    assert (once.pace < 1) == bool(once.reason)


@given(st.floats(0.01, 1), st.floats(0, 1e4))
def test_training_takes_its_share_of_the_time(pace: float, trained_s: float) -> None:
    rest_s = Throttle(pace, "battery").rest_s(trained_s)
    assert math.isclose(trained_s, pace * (trained_s + rest_s), abs_tol=1e-6)


def test_a_pause_ends_only_beyond_a_margin() -> None:
    hot = throttle(measured(90.5), RULES, Throttle())
    assert hot == Throttle(0.0, "heat")
    assert throttle(measured(86.0), RULES, hot).paused
    assert not throttle(measured(86.0), RULES, Throttle()).paused
    assert throttle(measured(85.0), RULES, hot) == Throttle()
    low = throttle(measured(battery=0.2), RULES, Throttle())
    assert low == Throttle(0.0, "battery")
    assert throttle(measured(battery=0.24), RULES, low).paused
    assert throttle(measured(battery=0.26), RULES, low) == Throttle(0.5, "battery")


def test_a_throttle_is_named_in_the_report_before_what_limits_the_exchange() -> None:
    resources = Resources(1000, TrainingRules(), RULES)
    report, plan = resources.measured(measured(95.0), 0.0)
    assert report.binding == "heat"
    assert plan is not None
    assert plan.binding == "heat"
    assert resources.measured(measured(40.0), 0.0)[0].binding == "privacy"


# --- in the device


def training_device() -> tuple[DeviceMachine, TrainLocally]:
    machine = device_machine()
    for event in (Started(), LinkUp(), assigned(assignment(leader=B))):
        machine.handle(event, 0.0)
    (job,) = jobs(machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 0.0), TrainLocally)
    return machine, job


def finished(job: TrainLocally, seconds: float) -> Trained:
    return Trained(job.params, job.params + 1, 0.5, 1, seconds)


def test_a_hot_device_finishes_its_training_sends_its_work_and_goes_on_when_it_is_cool() -> None:
    machine, job = training_device()
    hot = machine.handle(Measured(measured(95.0)), 1.0)
    reports = [command.message for command in hot if isinstance(command, Publish)]
    assert [report.binding for report in reports if isinstance(report, Telemetry)] == ["heat"]
    assert told(hot) == [ExchangeLimited]
    assert jobs(machine.handle(finished(job, 1.0), 2.0), PrepareRelease)
    assert published(machine.handle(prepared({0: 1.0}), 2.0), Kind.UPDATE)
    machine.handle(TimerFired("device.pull"), 7.0)
    assert not jobs(machine.handle(Measured(measured(88.0)), 8.0), TrainLocally)
    assert jobs(machine.handle(Measured(measured(60.0)), 9.0), TrainLocally)


def test_on_battery_a_device_rests_as_long_as_it_trained() -> None:
    machine, job = training_device()
    machine.handle(Measured(measured(battery=0.9)), 1.0)
    after = machine.handle(finished(job, 7.0), 10.0)
    assert SetTimer("device.rest", 17.0) in after
    assert not jobs(after, TrainLocally)
