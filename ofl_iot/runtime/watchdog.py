"""Tells the service manager how a process fares: systemd's notification protocol, a datagram of KEY=VALUE lines.

The watchdog is fed by progress, not by a clock. A pulse goes through the party's own queue, behind every event that
waits, and through its store; only when it comes out and nothing under way is overdue does `WATCHDOG=1` leave. A
machine stuck in `handle`, a queue that does not move, a store that hangs, a job beyond its bound or a dead link
withhold it, and the manager restarts the process. An idle party passes pulses; so does one whose broker is away or
whose disk is full, because a restart would not help those.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ofl_iot.errors import ConfigError

log = logging.getLogger(__name__)

PULSES_A_PERIOD = 3
"""Pulses within one watchdog period: one may come late without harm."""
UNWATCHED_S = 30.0
"""Between two status lines where no watchdog is set."""
_SETTLING_S = 0.1
"""Between two looks at whether the party is ready."""


@dataclass(frozen=True)
class Health:
    """What a pulse found out."""

    ready: bool
    """The machine runs and the link was tried at least once, in vain or not."""
    overdue: str = ""
    """What has been under way for too long; empty when nothing is."""
    status: str = ""
    """One line for people."""
    linked: bool = False
    """Whether there is a link to the broker, as far as the machine has been told."""


class Watched(Protocol):
    """Whoever has a pulse."""

    async def pulse(self) -> Health:
        """Come back once everything that waited before was handled."""
        ...


class ProgressProbe:
    """Those who wait for a sign of progress; at most one pulse is in the queue for all of them."""

    def __init__(self, enqueue: Callable[[], None]) -> None:
        self._enqueue = enqueue
        self._queued = False
        self._waiting: list[asyncio.Future[None]] = []

    async def next(self) -> None:
        """Wait for the next sign."""
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(passed)
        if not self._queued:
            self._queued = True
            self._enqueue()
        await passed

    def came_out(self) -> None:
        """The pulse passed the queue."""
        self._queued = False
        self.beat()

    def beat(self) -> None:
        """There is progress, wherever the pulse is."""
        for passed in self._waiting:
            if not passed.done():
                passed.set_result(None)
        self._waiting.clear()


class Notifier:
    """One end of the manager's socket; without one every call does nothing."""

    def __init__(self, address: str | None) -> None:
        if address is not None and address[:1] not in ("/", "@"):
            raise ConfigError(f"NOTIFY_SOCKET={address!r}: only unix sockets are known, '/path' or '@name'")
        self._address = None if address is None else "\0" + address[1:] if address[0] == "@" else address

    @property
    def listening(self) -> bool:
        """Whether there is anyone to tell."""
        return self._address is not None

    def tell(self, *lines: str) -> None:
        """Send lines in one datagram; a manager that does not take it is not waited for."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # noqa: FBT003  # the form of the socket module
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("the service manager was not told reason=%s", error.strerror)


@dataclass(frozen=True)
class Service:
    """The manager's side of this process: whom to tell, and how often it wants to hear."""

    notifier: Notifier
    watchdog_s: float | None = None
    """Silence after which the manager restarts the process; None: it does not watch."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Service:
        """From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which the manager sets."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = meant and microseconds.isdecimal() and int(microseconds) > 0
        return cls(Notifier(environment.get("NOTIFY_SOCKET")), int(microseconds) / 1e6 if watched else None)

    async def attend(self, watched: Watched) -> None:
        """Report a party until cancelled: READY=1 once, then a status line and, if it made progress, WATCHDOG=1."""
        if not self.notifier.listening:
            return
        interval_s = self.watchdog_s / PULSES_A_PERIOD if self.watchdog_s else UNWATCHED_S
        ready, last_overdue = False, ""
        while True:
            health = await watched.pulse()
            lines = [f"STATUS={_on_one_line(health.status)}"]
            if health.ready and not ready:
                ready = True
                lines.append("READY=1")
            if not health.overdue:
                lines.append("WATCHDOG=1")
            elif health.overdue != last_overdue:
                log.error("no progress, the watchdog is not fed any more reason=%s", health.overdue)
            last_overdue = health.overdue
            self.notifier.tell(*lines)
            await asyncio.sleep(interval_s if ready else min(interval_s, _SETTLING_S))

    def stopping(self) -> None:
        """The process begins its goodbye."""
        self.notifier.tell("STOPPING=1", "STATUS=stopping")


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
