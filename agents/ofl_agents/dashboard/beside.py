"""A dashboard beside a simulation: it observes the embedded broker like any observer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

from ofl_agents.dashboard.server import Place, serving
from ofl_iot.runtime.fleet_watch import watch_fleet
from ofl_iot.runtime.settings import Settings


@contextlib.asynccontextmanager
async def shown(settings: Settings, place: Place, *, stay: bool) -> AsyncIterator[None]:
    """Show the fleet at the settings' broker while the block runs; with `stay` until Ctrl-C after it."""
    async with watch_fleet(settings) as fleet, serving(fleet, place) as served:
        sys.stdout.write(served.invitation() + "\n")
        sys.stdout.flush()
        yield
        if stay:
            sys.stdout.write("the run is over; the page stays until Ctrl-C\n")
            sys.stdout.flush()
            await _interrupted()


async def _interrupted() -> None:
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    try:
        await interrupted.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
