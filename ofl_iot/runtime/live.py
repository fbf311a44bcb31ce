"""The live runtime: carries out a machine's commands with a real link, store, clock and executor.

One task per party takes events in order; what takes long runs in an executor and comes back as an event. A message is
acknowledged to the broker only when every command it caused was carried out.

A failing store looks like a crash: the machine is thrown away and what it had under way is void. Messages wait,
unacknowledged, until the store takes writes again and a new machine has started from what is stored. A message whose
handling raises looks the same, once; the second time it is put into quarantine.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from ofl_iot.errors import ConfigError, EncodeError, StoreError, TransportError
from ofl_iot.roles.base import Machine
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Measure,
    Persist,
    Publish,
    RenewSession,
    SetTimer,
    Subscribe,
    Unsubscribe,
    Withdraw,
    one_transaction,
)
from ofl_iot.roles.events import (
    Arrived,
    Event,
    LinkDown,
    LinkUp,
    Measured,
    Started,
    Stopping,
    TimerFired,
    Trained,
)
from ofl_iot.roles.job_kinds.base import Job, failure_of
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.storage import Delete, Put, Stored
from ofl_iot.runtime.addressing import urgency_of
from ofl_iot.runtime.equipment import Equipment
from ofl_iot.runtime.logs import log_report
from ofl_iot.runtime.quarantine import Quarantine, culprit
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.runtime.watchdog import Health, ProgressProbe
from ofl_iot.transport import link as transport
from ofl_iot.transport.backoff import Outage

__all__ = ["Equipment", "LiveParty"]

log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_WAITING = 10_000
"""Events that wait for a party; messages beyond them stay with the broker, unacknowledged."""
_MIN_MBPS = 0.001
"""A link that stands still is reported with this rate."""
_PROBE_BYTES = 64 * 1024
"""A store that takes this much takes a machine's next transaction."""


class _Outcome(enum.Enum):
    """How a step ended."""

    DONE = enum.auto()
    STORE_FAILED = enum.auto()
    RAISED = enum.auto()


@dataclass(frozen=True)
class _Waiting:
    """An event in the queue; None is a pulse."""

    event: Event | None
    still_meant: Callable[[], bool] = lambda: True
    """False when what it comes from was replaced or thrown away while it waited."""
    done: Callable[[], None] = lambda: None
    """Called when all its commands were carried out."""


class LiveParty:
    """A machine that runs until it is stopped."""

    def __init__(self, name: str, make_machine: Callable[[], Machine], equipment: Equipment) -> None:
        self.name = name
        self._make_machine = make_machine
        self._with = equipment
        self.machine = make_machine()
        self._events: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._jobs: dict[asyncio.Task[None], float] = {}
        """What is being computed or measured, and since when."""
        self._life = 0
        """Counts the machines; what an earlier one had under way is void."""
        self._linked = False
        """As far as the machine has been told."""
        self._stopping = asyncio.Event()
        self._store_outage = Outage()
        self._overload = Outage()
        self._quarantine = Quarantine()
        self._pulses = ProgressProbe(lambda: self._put(_Waiting(None)))
        self._last_reported = "started"
        self.store_failures = 0
        self.quarantined: Counter[str] = Counter()
        """Messages that were dropped because handling them raised, by sender."""

    async def run(self) -> None:
        """Start from what is stored, go on until `stop`, then leave in good order."""
        try:
            stored = await self._in_store(self._with.store.load)
            begun = await self._step(Started(stored, wall=time.time()))
            if begun is not _Outcome.DONE and not await self._begin_again():
                return
            self._with.link.start(self._from_link)
            while (waiting := await self._events.get()) is not None:
                if waiting.still_meant() and not await self._take(waiting):
                    return
        finally:
            await self._leave()

    def inform(self, event: Event) -> None:
        """Let the machine know of what did not come by the link; before `run`, as its first event."""
        self._put(_Waiting(event))

    async def copy_store(self) -> bytes:
        """Return a backup of the store, as it stands between two transactions."""
        store = self._with.store
        if not isinstance(store, SqliteStore):
            raise StoreError(f"the store of {self.name} is shared with other parties: stop them and copy the folder")
        return await self._in_store(store.copy)

    def stop(self) -> None:
        """End `run` after the events that are waiting."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._put(_Waiting(Stopping()))
            self._events.put_nowait(None)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping.is_set()

    async def _leave(self) -> None:
        """Staged: no new work, then the link's goodbye, then the store."""
        self._void_what_is_under_way()
        for job in list(self._jobs):
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._with.link.stop()
        self._with.store.close()

    # --- events

    def _from_link(self, event: transport.LinkEvent) -> None:
        if isinstance(event, transport.LinkUp):
            self._put(_Waiting(LinkUp()))
        elif isinstance(event, transport.LinkDown):
            self._put(_Waiting(LinkDown()))
        elif self._events.qsize() >= MAX_WAITING:
            if self._overload.should_complain(time.monotonic()):
                log.warning("messages left with the broker party=%s waiting=%d", self.name, self._events.qsize())
        elif (arrived := self._with.wire.incoming(event.topic, event.payload)) is None:
            event.ack()
        else:
            self._put(_Waiting(arrived, done=event.ack))

    def _put(self, waiting: _Waiting) -> None:
        self._events.put_nowait(waiting)

    async def _take(self, waiting: _Waiting) -> bool:
        """Handle one event, a message again and again until the store holds; False: end here."""
        event = waiting.event
        if event is None:
            await self._pulse_passes()
            return True
        if isinstance(event, LinkUp | LinkDown):
            self._linked = isinstance(event, LinkUp)
        while not self._is_quarantined(event) and (outcome := await self._step(event)) is not _Outcome.DONE:
            pause_s = self._with.store_retry_s if outcome is _Outcome.STORE_FAILED else 0.0
            if not await self._begin_again(pause_s):
                return False
            if not isinstance(event, Arrived) or self._stopping.is_set():
                return True
        waiting.done()
        return True

    async def _step(self, event: Event) -> _Outcome:
        """Let the machine decide and carry its commands out; what raises without a message is a fault of ours."""
        try:
            for command in one_transaction(self.machine.handle(event, time.monotonic())):
                await self._carry_out(command)
        except StoreError as error:
            self._report_store(error)
            return _Outcome.STORE_FAILED
        except ConfigError:
            raise  # the machine must not go on, as when another coordinator has the greater claim
        except Exception as error:
            if not isinstance(event, Arrived):
                raise
            self._quarantine.strike(event)
            sender, kind = event.topic.sender, event.topic.kind.name
            # Neither its text nor a traceback: both may quote what was being handled.
            log.error("handling a message raised party=%s sender=%s kind=%s error=%s",  # noqa: TRY400
                      self.name, sender, kind, culprit(error))  # fmt: skip
            return _Outcome.RAISED
        return _Outcome.DONE

    def _is_quarantined(self, event: Event) -> bool:
        """Whether a message is dropped unhandled, and acknowledged, because handling it raised twice."""
        if not isinstance(event, Arrived) or not self._quarantine.holds(event):
            return False
        sender, kind = event.topic.sender, event.topic.kind.name
        self.quarantined[sender] += 1
        log.error("message in quarantine party=%s sender=%s kind=%s", self.name, sender, kind)
        return True

    # --- progress

    async def pulse(self) -> Health:
        """Pass through the queue behind all that waits, and through the store; then say how the party fares."""
        await self._pulses.next()
        return self.health()

    def health(self) -> Health:
        """Say how the party fares without waiting for anything."""
        return Health(self._with.link.tried, self._overdue(time.monotonic()), self._status(), linked=self._linked)

    async def _pulse_passes(self) -> None:
        """The queue moved up to here; that the store answers counts, whatever it says."""
        try:
            await self._in_store(self._with.store.ping)
        except StoreError as error:
            self._report_store(error)
        self._pulses.came_out()

    def _overdue(self, now: float) -> str:
        """What has been under way beyond its bound."""
        if not self._with.link.alive:
            return "the link died"
        limit_s = self._with.job_limit_s
        late = [task.get_name() for task, began in self._jobs.items() if now - began > limit_s]
        return f"{late[0]} takes longer than {limit_s:g} s" if late else ""

    def _status(self) -> str:
        """One line for people."""
        linked = "linked" if self._linked else "no link"
        waiting, jobs = self._events.qsize(), len(self._jobs)
        store = ", store failed" if self._store_outage.lasted_s(time.monotonic()) else ""
        dropped = f", {sum(self.quarantined.values())} messages in quarantine" if self.quarantined else ""
        return f"{linked}{store}, {jobs} jobs, {waiting} events waiting{dropped}, last: {self._last_reported}"

    # --- a failing store

    def _report_store(self, error: StoreError) -> None:
        self.store_failures += 1
        if self._store_outage.should_complain(time.monotonic()):
            log.error("store failed, nothing is released until it works party=%s reason=%s", self.name, error)

    async def _begin_again(self, pause_s: float | None = None) -> bool:
        """Start a new machine from what is stored once the store takes writes; False: stopped, and it never did."""
        self._void_what_is_under_way()
        while True:
            self.machine = self._make_machine()
            await self._pause(self._with.store_retry_s if pause_s is None else pause_s)
            stored = await self._load_if_writable()
            self._pulses.beat()  # the store answers: a party that waits for room is not stuck
            if stored is not None and await self._restart(stored):
                log.warning("begun again from what is stored party=%s", self.name)
                self._store_outage.over()
                return True
            pause_s = None
            if self._stopping.is_set():
                return False

    async def _restart(self, stored: Stored) -> bool:
        """Tell the new machine what is stored and how the link is."""
        begun = Started(stored, wall=time.time())
        for event in (begun, LinkUp()) if self._linked else (begun,):
            if await self._step(event) is not _Outcome.DONE:
                self._void_what_is_under_way()
                return False
        return True

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when it is time to stop."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return

    async def _load_if_writable(self) -> Stored | None:
        """What is stored, if the store has room again; a party that stops needs to read only."""
        store = self._with.store
        try:
            if not self._stopping.is_set():
                await self._in_store(lambda: store.apply((Put("runtime", "probe", bytes(_PROBE_BYTES)),)))
                await self._in_store(lambda: store.apply((Delete("runtime", "probe"),)))
            return await self._in_store(store.load)
        except StoreError as error:
            self._report_store(error)
            return None

    def _void_what_is_under_way(self) -> None:
        self._life += 1
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # --- commands

    async def _carry_out(self, command: Command) -> None:
        if isinstance(command, Publish):
            self._publish(command)
        elif isinstance(command, Persist):
            await self._in_store(lambda: self._with.store.apply(command.ops))
        elif isinstance(command, SetTimer):
            self._set_timer(command)
        elif isinstance(command, CancelTimer):
            self._cancel_timer(command.name)
        elif isinstance(command, Compute):
            self._spawn(self._compute(command.job, self._life), type(command.job).__name__)
        elif isinstance(command, Subscribe):
            self._with.link.subscribe(self._with.wire.pattern(command), 1)
        elif isinstance(command, Unsubscribe):
            self._with.link.unsubscribe(self._with.wire.pattern(command))
        elif isinstance(command, Withdraw):
            self._with.link.withdraw(self._with.wire.topics.build(command.topic))
        elif isinstance(command, RenewSession):
            self._with.link.renew_session()
        elif isinstance(command, Measure):
            self._spawn(self._measure(self._life), "measure")
        else:
            self._report(command)

    def _publish(self, command: Publish) -> None:
        try:
            topic, payload = self._with.wire.outgoing(command)
            urgency = urgency_of(command.topic.kind)
            self._with.link.publish(topic, payload, qos=command.qos, retain=command.retain, urgency=urgency)
        except (TransportError, EncodeError) as error:
            log.error("message not sent party=%s reason=%s", self.name, error)  # noqa: TRY400  # the reason says all

    def _set_timer(self, command: SetTimer) -> None:
        name = command.name
        self._cancel_timer(name)

        def due() -> bool:
            """Whether the timer that ran out is still the one of that name: others may be handled before it."""
            return self._timers.get(name) is handle and self._timers.pop(name) is handle

        delay = max(0.0, command.at - time.monotonic())
        waiting = _Waiting(TimerFired(name), due)
        handle = self._timers[name] = asyncio.get_running_loop().call_later(delay, self._put, waiting)

    def _cancel_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _spawn(self, work: Coroutine[object, object, None], what: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name} {what}")
        self._jobs[task] = time.monotonic()
        task.add_done_callback(self._jobs.pop)

    async def _compute(self, job: Job, life: int) -> None:
        began = time.monotonic()
        try:
            result = await self._in_executor(lambda: self._with.toolbox.run(job))
        except Exception as error:
            log.exception("a job raised party=%s job=%s", self.name, type(job).__name__)
            result = failure_of(job, error)
        if self._with.pace:
            await asyncio.sleep(max(0.0, began + self._with.pace.seconds(job) - time.monotonic()))
            if isinstance(result, Trained):
                result = replace(result, seconds=time.monotonic() - began)
        self._put(_Waiting(result, lambda: life == self._life))

    async def _measure(self, life: int) -> None:
        if self._with.meter is None:
            return
        try:
            telemetry = await self._in_executor(self._with.meter.read)
        except Exception:
            log.exception("telemetry could not be read party=%s", self.name)
            return
        link = self._with.link
        if telemetry.network_mbps is None and link.rate_bytes_s:
            telemetry = msgspec.structs.replace(telemetry, network_mbps=max(_MIN_MBPS, link.rate_bytes_s * 8e-6))
        measured = Measured(telemetry, link.bytes_sent, link.bytes_received)
        self._put(_Waiting(measured, lambda: life == self._life))

    async def _in_executor(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._with.executor, work)

    async def _in_store(self, work: Callable[[], _T]) -> _T:
        executor = self._with.store_executor or self._with.executor
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def _report(self, report: Report) -> None:
        if report.level > logging.DEBUG:
            self._last_reported = report.phrase
        log_report(log, self.name, report)
        if self._with.listener:
            self._with.listener(self.name, report, time.monotonic())
