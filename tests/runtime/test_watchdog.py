"""The watchdog is fed by progress: of an idle party, without a broker, with a full disk, but of no stuck one."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.roles.commands import Command, Compute, Persist
from ofl_iot.roles.events import Arrived, Evaluated, Event, LinkUp
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.reports.device import DeviceAssigned
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.watchdog import Health, Notifier, Service
from tests.runtime.fakes import BreakableStore, pull, pull_topic, running
from tests.waiting import eventually

WATCHDOG_S = 0.06
Manager = socket.socket


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A service manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def service(manager: Manager) -> Service:
    return Service(Notifier(manager.getsockname()), WATCHDOG_S)


def heard(manager: Manager) -> list[str]:
    """All lines that have arrived."""
    lines: list[str] = []
    manager.setblocking(False)
    try:
        while True:
            lines += manager.recv(4096).decode().split("\n")
    except BlockingIOError:
        return lines


def nothing(event: Event, now: float) -> Sequence[Command]:
    return ()


async def fed(manager: Manager) -> list[str]:
    """What was said until the watchdog was fed three times more."""
    heard(manager)
    lines: list[str] = []

    def thrice() -> bool:
        lines.extend(heard(manager))
        return lines.count("WATCHDOG=1") >= 3

    await eventually(thrice)
    return lines


# --- the protocol


def test_lines_travel_in_one_datagram(manager: Manager) -> None:
    Notifier(manager.getsockname()).tell("READY=1", "STATUS=fine")
    assert manager.recv(4096) == b"READY=1\nSTATUS=fine"


def test_an_abstract_socket_is_reached_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"ofl-test-{os.getpid()}"
        manager.bind(f"\0{name}")
        Notifier(f"@{name}").tell("READY=1")
        assert manager.recv(4096) == b"READY=1"


async def test_without_a_manager_nothing_is_sent_and_nothing_is_waited_for() -> None:
    alone = Service.of({})
    assert not alone.notifier.listening
    alone.stopping()
    await alone.attend(Sick())


def test_a_manager_that_went_away_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(str(tmp_path / "nobody")).tell("READY=1")
    assert "the service manager was not told" in caplog.text


def test_a_socket_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="only unix sockets"):
        Notifier("vsock:2:1234")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_of_another_process_does_not_concern_us(
    environment: dict[str, str], expected: float | None
) -> None:
    assert Service.of(environment).watchdog_s == expected


class Sick:
    """Has a pulse, and something that takes too long."""

    async def pulse(self) -> Health:
        return Health(ready=True, overdue="a job takes longer than 1 s", status="two\nlines")


async def test_what_is_overdue_withholds_the_watchdog_and_is_said_once(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> list[str]:
        reporting = asyncio.create_task(service(manager).attend(Sick()))
        lines: list[str] = []

        def enough() -> bool:
            lines.extend(heard(manager))
            return lines.count("STATUS=two lines") >= 3

        await eventually(enough)
        reporting.cancel()
        return lines

    lines = await story()
    assert lines.count("READY=1") == 1
    assert "WATCHDOG=1" not in lines
    assert caplog.text.count("no progress, the watchdog is not fed any more reason=a job takes longer") == 1


# --- a party's pulse


async def test_an_idle_party_is_ready_once_its_link_was_tried_and_feeds_the_watchdog(manager: Manager) -> None:
    async with running(lambda event, now: (DeviceAssigned(1, "d1"),) if isinstance(event, LinkUp) else ()) as bench:
        reporting = asyncio.create_task(service(manager).attend(bench.party))
        await eventually(lambda: bench.link.handler)
        assert "READY=1" not in await fed(manager)
        bench.link.tried = True  # in vain
        lines = await fed(manager)
        assert lines.count("READY=1") == 1
        assert "STATUS=no link, 0 jobs, 0 events waiting, last: started" in lines
        bench.link.up()
        await eventually(lambda: "STATUS=linked, 0 jobs, 0 events waiting, last: assigned" in heard(manager))
        reporting.cancel()


async def test_a_party_that_waits_for_room_on_its_disk_feeds_the_watchdog(manager: Manager) -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Persist((Put("a", 1, b"x"),)),) if isinstance(event, Arrived) else ()

    async with running(rule) as bench:
        reporting = asyncio.create_task(service(manager).attend(bench.party))
        await eventually(lambda: bench.link.handler)
        bench.store.full = True
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(lambda: bench.party.store_failures)
        assert any("store failed" in line for line in await fed(manager))
        assert bench.party._events.qsize() <= 2
        reporting.cancel()


async def test_a_store_that_answers_with_an_error_answers(manager: Manager) -> None:
    class Unreadable(BreakableStore):
        def ping(self) -> None:
            self.load()

    async with running(nothing, store=Unreadable()) as bench:
        await eventually(lambda: bench.link.handler)
        bench.store.unreadable = True
        assert (await bench.party.pulse()).overdue == ""
        assert bench.party.store_failures == 1


async def test_no_pulse_passes_a_store_that_hangs() -> None:
    hanging, let_go = threading.Event(), threading.Event()

    class Hung(BreakableStore):
        def apply(self, ops: Any) -> None:
            hanging.set()
            assert let_go.wait(10)

    rule = lambda event, now: (Persist((Put("a", 1, b"x"),)),) if isinstance(event, Arrived) else ()  # noqa: E731
    async with running(rule, store=Hung()) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.deliver(pull_topic("d1"), pull(1))
        await eventually(hanging.is_set)
        pulse = asyncio.create_task(bench.party.pulse())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not pulse.done()
        let_go.set()
        assert (await pulse).overdue == ""


async def test_a_job_beyond_its_bound_is_overdue_until_it_ends() -> None:
    let_go = threading.Event()

    def work(job: Any) -> Event:
        assert let_go.wait(10)
        return Evaluated(1, 0.5, 0.5)

    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Compute(EvaluateModel(1, np.zeros(1, np.float32))),) if isinstance(event, LinkUp) else ()

    async with running(rule, work=work, job_limit_s=0.05) as bench:
        await eventually(lambda: bench.link.handler)
        assert (await bench.party.pulse()).overdue == ""
        bench.link.up()
        for _ in range(1000):
            if overdue := (await bench.party.pulse()).overdue:
                break
            await asyncio.sleep(0.01)
        assert overdue == "me EvaluateModel takes longer than 0.05 s"
        let_go.set()
        await eventually(lambda: any(isinstance(event, Evaluated) for event in bench.told))
        assert (await bench.party.pulse()).overdue == ""


async def test_a_dead_link_is_no_progress() -> None:
    async with running(nothing) as bench:
        await eventually(lambda: bench.link.handler)
        bench.link.alive = False
        assert (await bench.party.pulse()).overdue == "the link died"
