"""The live runtime: carries out a machine's commands with a real link, store, clock and executor.

One task per party takes events in order; what takes long runs in an executor and comes back as an event. A message is
acknowledged to the broker only when every command it caused was carried out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from ofl_iot.errors import StoreError, TransportError
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Job,
    Measure,
    Persist,
    Publish,
    SetTimer,
    Subscribe,
    Tell,
    Unsubscribe,
)
from ofl_iot.roles.events import Event, LinkDown, LinkUp, Measured, Started, Stopping, TimerFired
from ofl_iot.roles.machine import Machine
from ofl_iot.runtime.store import Store
from ofl_iot.runtime.telemetry import TelemetrySource
from ofl_iot.runtime.toolbox import Pace, Toolbox
from ofl_iot.runtime.wire import Wire
from ofl_iot.transport import link as transport

log = logging.getLogger(__name__)

STORE_RETRY_S = 10.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class Equipment:
    """What a party works with."""

    link: transport.Link
    store: Store
    toolbox: Toolbox
    wire: Wire
    executor: Executor
    meter: TelemetrySource | None = None
    pace: Pace | None = None
    """Slows jobs down to the speed of a simulated device."""
    listener: Callable[[str, Tell, float], None] | None = None
    store_retry_s: float = STORE_RETRY_S


class LiveParty:
    """A machine that runs until it is stopped."""

    def __init__(self, name: str, make_machine: Callable[[], Machine], equipment: Equipment) -> None:
        self.name = name
        self._make_machine = make_machine
        self._with = equipment
        self.machine = make_machine()
        self._events: asyncio.Queue[tuple[Event | None, Callable[[], None] | None]] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._life = 0
        self.store_failures = 0

    async def run(self) -> None:
        """Start from what is stored, go on until `stop`, then leave in good order."""
        loop = asyncio.get_running_loop()
        stored = await loop.run_in_executor(self._with.executor, self._with.store.load)
        await self._step(Started(stored))
        self._with.link.start(self._from_link)
        try:
            while True:
                event, done = await self._events.get()
                if event is None:
                    break
                await self._step(event)
                if done:
                    done()
        finally:
            await self._leave()

    def stop(self) -> None:
        """End `run` after the events that are waiting."""
        self._events.put_nowait((Stopping(), None))
        self._events.put_nowait((None, None))

    async def _leave(self) -> None:
        """Staged: no new work, then the link's goodbye, then the store."""
        for timer in self._timers.values():
            timer.cancel()
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._with.link.stop()
        self._with.store.close()

    # --- events

    def _from_link(self, event: transport.LinkEvent) -> None:
        if isinstance(event, transport.Delivery):
            arrived = self._with.wire.incoming(event.topic, event.payload)
            if arrived is None:
                event.ack()
            else:
                self._events.put_nowait((arrived, event.ack))
        elif isinstance(event, transport.LinkUp):
            self._events.put_nowait((LinkUp(), None))
        else:
            self._events.put_nowait((LinkDown(), None))

    async def _step(self, event: Event) -> None:
        """One event; a failing store throws the machine away and begins again from what is stored."""
        now = time.monotonic()
        try:
            for command in self.machine.handle(event, now):
                await self._carry_out(command)
        except StoreError as error:
            self.store_failures += 1
            log.error("store failed, nothing is released until it works party=%s reason=%s", self.name, error)  # noqa: TRY400  # the reason says all
            self._begin_again()

    def _begin_again(self) -> None:
        self._life += 1
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.machine = self._make_machine()
        self._timers[""] = asyncio.get_running_loop().call_later(self._with.store_retry_s, self._retry, self._life)

    def _retry(self, life: int) -> None:
        if life == self._life:
            self._events.put_nowait((Started(self._with.store.load()), None))
            if self._with.link.connected:
                self._events.put_nowait((LinkUp(), None))

    # --- commands

    async def _carry_out(self, command: Command) -> None:
        if isinstance(command, Publish):
            self._publish(command)
        elif isinstance(command, Persist):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._with.executor, self._with.store.apply, command.ops)
        elif isinstance(command, SetTimer):
            self._set_timer(command)
        elif isinstance(command, CancelTimer):
            timer = self._timers.pop(command.name, None)
            if timer:
                timer.cancel()
        elif isinstance(command, Compute):
            self._spawn(self._compute(command.job, self._life), type(command.job).__name__)
        elif isinstance(command, Subscribe):
            self._with.link.subscribe(self._with.wire.pattern(command), 1)
        elif isinstance(command, Unsubscribe):
            self._with.link.unsubscribe(self._with.wire.pattern(command))
        elif isinstance(command, Measure):
            self._spawn(self._measure(), "measure")
        else:
            self._tell(command)

    def _publish(self, command: Publish) -> None:
        topic, payload = self._with.wire.outgoing(command)
        try:
            self._with.link.publish(topic, payload, qos=command.qos, retain=command.retain)
        except TransportError as error:
            log.error("message not sent party=%s reason=%s", self.name, error)  # noqa: TRY400  # the reason says all

    def _set_timer(self, command: SetTimer) -> None:
        old = self._timers.pop(command.name, None)
        if old:
            old.cancel()

        def fire() -> None:
            if self._timers.pop(command.name, None) is handle:
                self._events.put_nowait((TimerFired(command.name), None))

        delay = max(0.0, command.at - time.monotonic())
        handle = self._timers[command.name] = asyncio.get_running_loop().call_later(delay, fire)

    def _spawn(self, work: object, what: str) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=f"{self.name} {what}")  # type: ignore[arg-type]
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _compute(self, job: Job, life: int) -> None:
        began = time.monotonic()
        result = await asyncio.get_running_loop().run_in_executor(self._with.executor, self._with.toolbox.run, job)
        if self._with.pace:
            await asyncio.sleep(max(0.0, began + self._with.pace.seconds(job) - time.monotonic()))
        if life == self._life:
            self._events.put_nowait((result, None))

    async def _measure(self) -> None:
        if self._with.meter:
            loop = asyncio.get_running_loop()
            telemetry = await loop.run_in_executor(self._with.executor, self._with.meter.read)
            self._events.put_nowait((Measured(telemetry), None))

    def _tell(self, told: Tell) -> None:
        level = _LEVELS[told.level]
        if log.isEnabledFor(level):
            fields = " ".join(f"{key}={value}" for key, value in told.fields.items())
            log.log(level, "%s party=%s %s", told.what, self.name, fields)
        if self._with.listener:
            self._with.listener(self.name, told, time.monotonic())
