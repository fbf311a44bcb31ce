"""A device obeys an operator's order once, keeps it over a restart, and is never fooled by an old or a forged one."""

from __future__ import annotations

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.fleet_notes import Vitals
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, Persist
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.orders import ORDERS
from ofl_iot.roles.events import LinkUp, OrderJudged, Started
from ofl_iot.roles.job_kinds.device import JudgeOrder, TrainLocally
from ofl_iot.roles.reports.device import OrderObeyed, OrderRefused
from ofl_iot.roles.storage import Put
from tests.roles.parties import A, B, arrived, assigned, assignment, device_machine, jobs, published, told, whole_model

OPERATOR = "operator-2a"


def order(number: int, action: str = "pause") -> Order:
    return Order("depot", A, number, 1.8e9, action)  # type: ignore[arg-type]


def given(machine: DeviceMachine, each: Order, refusal: str = "") -> list[Command]:
    """The order arrives and is judged."""
    commands = machine.handle(arrived(Kind.ORDER, COORDINATOR, each, A), 1.0)
    for job in jobs(commands, JudgeOrder):
        commands += machine.handle(OrderJudged(job.order, "" if refusal else OPERATOR, refusal), 1.0)
    return commands


def ready() -> DeviceMachine:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    return machine


def begin(machine: DeviceMachine) -> list[Command]:
    commands = machine.handle(assigned(assignment(1, B)), 2.0)
    return commands + machine.handle(arrived(Kind.BLOCKS, B, whole_model(), A), 3.0)


def test_a_paused_device_does_not_train_says_by_whom_and_goes_on_when_resumed() -> None:
    machine = ready()
    commands = given(machine, order(5))
    assert OrderObeyed in told(commands)
    (vitals,) = published(commands, Kind.VITALS)
    assert isinstance(vitals, Vitals)
    assert (vitals.held_back, vitals.paused_by) == ("paused", OPERATOR)
    assert jobs(begin(machine), TrainLocally) == []
    commands = given(machine, order(6, "resume"))
    assert jobs(commands, TrainLocally)
    assert [each.held_back for each in published(commands, Kind.VITALS)] == [""]  # type: ignore[union-attr]


def test_an_order_is_durable_before_it_is_spoken_of_and_survives_a_restart() -> None:
    machine = ready()
    commands = given(machine, order(5))
    ops = [op for each in commands if isinstance(each, Persist) for op in each.ops]
    (put,) = [op for op in ops if isinstance(op, Put) and op.table == ORDERS]
    kinds = [type(each) for each in commands]
    assert kinds.index(Persist) < kinds.index(OrderObeyed)
    again = device_machine()
    again.handle(Started({ORDERS: {"last": put.value}}), 0.0)
    again.handle(LinkUp(), 0.0)
    assert jobs(begin(again), TrainLocally) == []
    assert jobs(given(again, order(5)), JudgeOrder) == [], "the retained order comes again and is over"


def test_an_older_order_is_not_even_judged() -> None:
    machine = ready()
    given(machine, order(6, "resume"))
    assert jobs(machine.handle(arrived(Kind.ORDER, COORDINATOR, order(5), A), 1.0), JudgeOrder) == []
    assert jobs(begin(machine), TrainLocally)


def test_a_refused_order_changes_nothing_and_does_not_use_its_number_up() -> None:
    machine = ready()
    commands = given(machine, order(2**52), refusal="no operator signed it")
    assert told(commands) == [OrderRefused]
    assert OrderObeyed in told(given(machine, order(5)))


def test_of_two_orders_that_are_judged_at_a_time_the_later_one_holds() -> None:
    machine = ready()
    machine.handle(arrived(Kind.ORDER, COORDINATOR, order(5), A), 1.0)
    machine.handle(arrived(Kind.ORDER, COORDINATOR, order(6, "resume"), A), 1.0)
    machine.handle(OrderJudged(order(6, "resume"), OPERATOR), 1.0)
    assert told(machine.handle(OrderJudged(order(5), OPERATOR), 1.0)) == []
    assert jobs(begin(machine), TrainLocally)
