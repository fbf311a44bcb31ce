"""The live runtime: commands in order, nothing behind a failed store, acknowledgement last, an end in good order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofl_iot.errors import StoreError
from ofl_iot.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from ofl_iot.protocol.messages import Echo, Pull, Status
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Measure, Persist, SetTimer, Subscribe, Unsubscribe
from ofl_iot.roles.events import (
    Arrived,
    Evaluated,
    Event,
    JobFailed,
    LinkDown,
    LinkUp,
    Measured,
    Started,
    Stopping,
    TimerFired,
    Trained,
)
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.reports.coordinator import LeaderReplaced
from ofl_iot.roles.storage import DeleteTable, Put
from ofl_iot.runtime import live
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.transport.mqtt import MqttLink
from tests.links import impatient, linked
from tests.runtime.fakes import ME, TOPICS, BreakableStore, FakeLink, pull, pull_topic, running, status
from tests.waiting import eventually

REPORT = Telemetry(cpu_count=1, cpu_ghz=1.25, cpu_load=0.5, memory_total_mib=100, memory_free_mib=50)
EVALUATE = EvaluateModel(1, np.zeros(1, np.float32))


def nothing(event: Event, now: float) -> Sequence[Command]:
    return ()


def numbers(link: FakeLink) -> list[int]:
    """Which of `status(number)` were published."""
    messages = [decode(Kind.STATUS, payload) for _, payload in link.published]
    return [message.term for message in messages if isinstance(message, Status)]


def arrivals(told: list[Event]) -> list[int]:
    return [event.message.term for event in told if isinstance(event, Arrived) and isinstance(event.message, Pull)]


def keep_then_answer(event: Event, now: float) -> Sequence[Command]:
    """Stores a message, then publishes its number: like a leader's merge and receipt."""
    if isinstance(event, Arrived) and isinstance(event.message, Pull):
        number = event.message.term
        return Persist((Put("kept", number, b"x" * 1000),)), status(number)
    return ()


# --- order and acknowledgement


async def test_messages_are_handled_and_answered_in_order_and_acknowledged() -> None:
    async with running(keep_then_answer) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.up()
        for number in range(50):
            bench.link.deliver(pull_topic(f"d{number % 3}"), pull(number))
        await eventually(lambda: len(bench.link.acknowledged) == 50)
        assert numbers(bench.link) == list(range(50))
        assert bench.link.acknowledged == [pull(number) for number in range(50)]
        assert sorted(bench.store.load()["kept"]) == list(range(50))


async def test_a_message_is_acknowledged_only_when_its_commands_were_carried_out() -> None:
    class SlowStore(BreakableStore):
        writing, may_finish = threading.Event(), threading.Event()

        def apply(self, ops: Any) -> None:
            self.writing.set()
            assert self.may_finish.wait(10)
            super().apply(ops)

    async with running(keep_then_answer, store=SlowStore()) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.deliver(pull_topic("d1"), pull(7))
        await eventually(SlowStore.writing.is_set)
        assert not bench.link.acknowledged
        assert not bench.link.published
        SlowStore.may_finish.set()
        await eventually(lambda: bench.link.acknowledged)
        assert numbers(bench.link) == [7]


async def test_a_party_starts_from_what_is_stored_before_its_link() -> None:
    store = BreakableStore()
    store.apply((Put("kept", 1, b"old"),))
    async with running(nothing, store=store) as bench:
        await eventually(lambda: bench.link.handler)
        assert bench.told == [Started({"kept": {1: b"old"}})]


async def test_subscriptions_follow_commands() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Started):
            return Subscribe(Kind.PULL, receiver=ME), Subscribe(Kind.STATUS)
        return (Unsubscribe(Kind.STATUS),) if isinstance(event, LinkUp) else ()

    async with running(rule) as bench:
        await eventually(lambda: bench.link.handler)
        assert bench.link.patterns == {pull_topic("x").replace("/x", "/+"), "ofl/v1/lab/device/+/status"}
        bench.link.up()
        await eventually(lambda: len(bench.link.patterns) == 1)


async def test_a_message_too_large_for_the_link_is_logged_and_the_party_goes_on(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        big = status(1)
        return (type(big)(big.topic, b"x" * 5000), status(2)) if isinstance(event, LinkUp) else ()

    async with open_broker() as port:
        link = MqttLink(impatient(port, max_packet_bytes=2048), ME)
        async with running(rule, link=link) as bench:
            await eventually(lambda: bench.link.publishes == 1)
    assert "message not sent party=me" in caplog.text


async def test_a_message_that_no_reader_would_accept_is_logged_and_the_party_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (status(2**53), status(2)) if isinstance(event, LinkUp) else ()

    async with running(rule) as bench:
        await eventually(lambda: bench.link.handler is not None)
        bench.link.up()
        await eventually(lambda: bool(bench.link.published))
        assert numbers(bench.link) == [2]
    assert "message not sent party=me" in caplog.text


# --- a store that fails


async def test_nothing_behind_a_failed_store_is_carried_out_until_there_is_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(keep_then_answer) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.up()
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.link.acknowledged)
        bench.store.full = True
        bench.link.deliver(pull_topic("d1"), pull(2))
        bench.link.deliver(pull_topic("d2"), pull(3))
        await eventually(lambda: bench.party.store_failures >= 3)
        assert numbers(bench.link) == [1]
        assert bench.link.acknowledged == [pull(1)]
        assert sorted(bench.store.load()["kept"]) == [1]
        bench.store.full = False
        await eventually(lambda: len(bench.link.acknowledged) == 3)
        assert numbers(bench.link) == [1, 2, 3]
        assert sorted(bench.store.load()) == ["kept"]
    assert caplog.text.count("store failed, nothing is released until it works party=me reason=no space") == 1


async def test_after_a_failure_the_new_machine_hears_of_the_store_and_the_link_first() -> None:
    async with running(keep_then_answer) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.up()
        bench.store.full = True
        bench.link.deliver(pull_topic("d1"), pull(1))
        bench.link.deliver(pull_topic("d1"), pull(2))
        await eventually(lambda: bench.party.store_failures >= 2)
        first = bench.party.machine
        bench.store.full = False
        await eventually(lambda: len(bench.link.acknowledged) == 2)
        kinds = [type(event) for event in bench.told]
        assert kinds == [Started, LinkUp, Arrived, Started, LinkUp, Arrived, Arrived]
        assert first is bench.party.machine


async def test_what_was_under_way_before_the_failure_is_void() -> None:
    """A timer, a job and a measurement of the old machine must not reach the new one."""
    release = threading.Event()

    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, LinkUp):
            return (SetTimer("old", now + 0.05), Compute(EVALUATE)) if not release.is_set() else ()
        return keep_then_answer(event, now)

    def work(job: Any) -> Event:
        assert release.wait(10)
        return Evaluated(1, 0.5, 0.5)

    async with running(rule, work=work, store_retry_s=0.1) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.up()
        bench.store.full = True
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.party.store_failures)
        release.set()
        bench.store.full = False
        await eventually(lambda: bench.link.acknowledged)
        bench.link.deliver(pull_topic("d1"), pull(2))
        await eventually(lambda: len(bench.link.acknowledged) == 2)
        assert not [event for event in bench.told if isinstance(event, TimerFired | Evaluated)]


async def test_a_store_that_cannot_be_read_for_a_while_is_tried_again() -> None:
    async with running(keep_then_answer) as bench:
        await eventually(lambda: bench.link.handler)
        bench.store.full = bench.store.unreadable = True
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.party.store_failures >= 2)
        bench.store.full = False
        await eventually(lambda: bench.party.store_failures >= 4)
        bench.store.unreadable = False
        await eventually(lambda: bench.link.acknowledged)


async def test_a_disk_that_is_full_at_the_start_keeps_the_party_offline() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Persist((Put("a", 1, b"x"),)),) if isinstance(event, Started) else ()

    store = BreakableStore()
    store.full = True
    async with running(rule, store=store) as bench:
        await eventually(lambda: bench.party.store_failures >= 2)
        assert bench.link.handler is None
        store.full = False
        await eventually(lambda: bench.link.handler)


async def test_a_full_sqlite_file_stops_the_party_and_room_lets_it_go_on(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "me.sqlite", max_bytes=200_000)
    store.apply((Put("ballast", 1, bytes(90_000)),))
    async with running(keep_then_answer, store=store) as bench:
        await eventually(lambda: bench.link.handler)
        for number in range(120):
            bench.link.deliver(pull_topic("d1"), pull(number))
        await eventually(lambda: bench.party.store_failures)
        answered = numbers(bench.link)
        assert 0 < len(answered) < 120
        assert sorted(bench.store.load()["kept"]) == answered
        assert len(bench.link.acknowledged) == len(answered)
        store.apply((DeleteTable("ballast"),))
        bench.store._connection.execute("PRAGMA max_page_count = 100000")
        await eventually(lambda: len(bench.link.acknowledged) == 120)
        assert numbers(bench.link) == list(range(120))
    with pytest.raises(StoreError):
        store.load()
    reopened = SqliteStore(tmp_path / "me.sqlite")
    assert sorted(reopened.load()["kept"]) == list(range(120))
    reopened.close()


async def test_a_party_with_a_full_disk_can_be_stopped_and_says_goodbye() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (status(99),) if isinstance(event, Stopping) else keep_then_answer(event, now)

    async with running(rule, store_retry_s=600.0) as bench:
        await eventually(lambda: bench.link.handler)
        bench.store.full = True
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.party.store_failures)
    assert numbers(bench.link) == [99]
    assert not bench.link.acknowledged
    assert bench.store.closed


async def test_a_party_whose_store_is_gone_for_good_can_be_stopped() -> None:
    async with running(keep_then_answer, store_retry_s=600.0) as bench:
        await eventually(lambda: bench.link.handler)
        bench.store.full = bench.store.unreadable = True
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.party.store_failures)
    assert bench.link.journal == ["start", "stop"]


async def test_messages_that_pile_up_stay_with_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "MAX_WAITING", 5)

    async with running(keep_then_answer) as bench:
        await eventually(lambda: bench.link.handler)
        for number in range(20):
            bench.link.deliver(pull_topic("d1"), pull(number))
        await eventually(lambda: len(bench.link.acknowledged) == 5)
        assert arrivals(bench.told) == [0, 1, 2, 3, 4]
    assert caplog.text.count("messages left with the broker party=me") == 1


# --- timers


async def test_a_timer_is_replaced_by_one_of_the_same_name_and_forgotten_when_cancelled() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Started):
            return (
                SetTimer("replaced", now + 0.01),
                SetTimer("cancelled", now + 0.01),
                SetTimer("replaced", now + 0.03),
                CancelTimer("cancelled"),
                CancelTimer("never set"),
                SetTimer("last", now + 0.06),
                SetTimer("past", now - 5),
            )
        return ()

    async with running(rule) as bench:
        await eventually(lambda: TimerFired("last") in bench.told)
        assert bench.told[1:] == [TimerFired("past"), TimerFired("replaced"), TimerFired("last")]


@pytest.mark.parametrize("command", [CancelTimer("t"), SetTimer("t", 1e12)])
async def test_a_timer_that_ran_out_while_it_is_cancelled_or_replaced_does_not_fire(command: Command) -> None:
    """Its event waits behind the message that takes it back."""
    busy, go_on = threading.Event(), threading.Event()

    class HeldStore(BreakableStore):
        def apply(self, ops: Any) -> None:
            busy.set()
            assert go_on.wait(10)

    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, LinkUp):
            return SetTimer("t", now + 0.01), SetTimer("later", now + 0.02), Persist((Put("a", 1, b""),))
        return (command,) if isinstance(event, Arrived) else ()

    async with running(rule, store=HeldStore()) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.up()
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(busy.is_set)
        await eventually(lambda: bench.party._events.qsize() == 3)
        go_on.set()
        await eventually(lambda: TimerFired("later") in bench.told)
        assert TimerFired("t") not in bench.told


# --- jobs and measurements


async def test_a_job_comes_back_as_an_event() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Compute(EVALUATE),) if isinstance(event, Started) else ()

    async with running(rule, work=lambda _: Evaluated(1, 0.5, 0.7)) as bench:
        await eventually(lambda: Evaluated(1, 0.5, 0.7) in bench.told)


async def test_a_job_that_raises_comes_back_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Compute(EVALUATE),) if isinstance(event, Started) else ()

    def work(job: Any) -> Event:
        raise MemoryError("too large")

    async with running(rule, work=work) as bench:
        await eventually(lambda: JobFailed(EvaluateModel, "MemoryError: too large", round_no=1) in bench.told)
    assert "a job raised party=me job=EvaluateModel" in caplog.text


async def test_a_paced_training_takes_and_reports_the_pace_of_its_device() -> None:
    vector = np.zeros(1, np.float32)

    class Slow:
        def seconds(self, job: Any) -> float:
            return 0.1

    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Compute(TrainLocally(vector, 5)),) if isinstance(event, Started) else ()

    async with running(rule, work=lambda _: Trained(vector, vector, 0.0, 5, 0.001), pace=Slow()) as bench:
        await eventually(lambda: len(bench.told) == 2)
        trained = bench.told[1]
        assert isinstance(trained, Trained)
        assert trained.seconds >= 0.1


async def test_a_sensor_that_fails_is_logged_and_the_next_reading_counts(caplog: pytest.LogCaptureFixture) -> None:
    class Meter:
        calls = 0

        def read(self) -> Telemetry:
            self.calls += 1
            if self.calls == 1:
                raise OSError("sensor unplugged")
            return REPORT

        def close(self) -> None: ...

    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Measure(),) if isinstance(event, Started | LinkUp) else ()

    async with running(rule, meter=Meter()) as bench:
        await eventually(lambda: "telemetry could not be read party=me" in caplog.text)
        bench.link.up()
        await eventually(lambda: Measured(REPORT) in bench.told)


async def test_a_party_without_sensors_measures_nothing() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Measure(), SetTimer("next", now)) if isinstance(event, Started) else ()

    async with running(rule) as bench:
        await eventually(lambda: TimerFired("next") in bench.told)
        assert len(bench.told) == 2


# --- telling and stopping


async def test_what_a_machine_tells_goes_to_the_log_and_to_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def rule(event: Event, now: float) -> Sequence[Command]:
        return (LeaderReplaced(lost="d1", leader="d2", term=3),) if isinstance(event, Started) else ()

    with caplog.at_level(logging.WARNING):
        async with running(rule, listener=lambda name, told, _: heard.append(f"{name} {told.phrase}")) as bench:
            await eventually(lambda: bench.link.handler)
    assert heard == ["me leader replaced"]
    assert "leader replaced party=me lost=d1 leader=d2 term=3" in caplog.text


async def test_stopping_handles_what_waits_then_says_goodbye_then_closes() -> None:
    order: list[str] = []

    class NotedLink(FakeLink):
        async def stop(self) -> None:
            order.append("link stopped")

        def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool = False, urgency: int = 0) -> bool:
            order.append("published")
            return True

    class NotedStore(BreakableStore):
        def close(self) -> None:
            order.append("store closed")

    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Started):
            return (SetTimer("never", now + 600),)
        return (status(1),) if isinstance(event, Arrived | Stopping) else ()

    async with running(rule, link=NotedLink(), store=NotedStore()) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.deliver(pull_topic("d1"), pull(1))
        bench.party.stop()
        bench.party.stop()
    assert [type(event) for event in bench.told] == [Started, Arrived, Stopping]
    assert order == ["published", "published", "link stopped", "store closed"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_party_that_dies_of_its_machine_still_closes_link_and_store() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, LinkUp):
            raise ZeroDivisionError
        return ()

    link, store = FakeLink(), BreakableStore()

    async def story() -> None:
        async with running(rule, link=link, store=store):
            await eventually(lambda: link.handler)
            link.up()

    with pytest.raises(ZeroDivisionError):
        await story()
    assert link.journal == ["start", "stop"]
    assert store.closed


# --- what must not come in


def garbage() -> dict[str, tuple[str, bytes]]:
    good = encode(Pull(1, b"", 1))
    telemetry_topic = TOPICS.build(Topic(Kind.TELEMETRY, ME))
    report = encode(REPORT)
    not_a_number = report.replace(np.array(1.25, ">f8").tobytes(), np.array(np.nan, ">f8").tobytes())
    assert not_a_number != report
    return {
        "garbage": (pull_topic("d1"), b"\x00garbage"),
        "nothing": (pull_topic("d1"), b""),
        "cut short": (pull_topic("d1"), good[:-1]),
        "too large": (pull_topic("d1"), good + bytes(MAX_MESSAGE_BYTES)),
        "wrong version": (pull_topic("d1"), good[:1] + b"\x02" + good[2:]),
        "another kind of message": (pull_topic("d1"), encode(Echo(1))),
        "not a number": (telemetry_topic.replace("/me/", "/d1/"), not_a_number),
    }


@pytest.mark.parametrize("what", garbage())
async def test_what_cannot_be_read_is_dropped_counted_and_logged_with_its_sender(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, payload = garbage()[what]

    async with running(nothing) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.deliver(topic, payload)
        bench.link.deliver(pull_topic("d2"), pull(5))
        await eventually(lambda: len(bench.link.acknowledged) == 2)
        assert arrivals(bench.told) == [5]
        assert bench.wire.dropped == {"d1": 1}
    assert "message dropped sender=d1" in caplog.text


# --- with a real broker


async def test_a_party_over_a_real_broker_answers_and_survives_its_absence(open_broker: Any, free_port: int) -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        subscribe = (Subscribe(Kind.PULL, receiver=ME),) if isinstance(event, Started) else ()
        return subscribe or keep_then_answer(event, now)

    async with running(rule, link=MqttLink(impatient(free_port), ME)) as bench:
        answers = TOPICS.build(Topic(Kind.STATUS, ME))
        for number in (1, 2):
            async with open_broker(free_port), linked(free_port, f"peer{number}", answers) as (peer, heard):
                await eventually(lambda: bench.link.connected and bench.link.granted)
                peer.publish(pull_topic("peer"), pull(number), qos=1)
                await eventually(lambda heard=heard: heard.payloads)
            await eventually(lambda: isinstance(bench.told[-1], LinkDown))
        assert arrivals(bench.told) == [1, 2]
