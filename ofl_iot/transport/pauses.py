"""How long a link pauses between attempts: ever longer for a broker, never long for this machine's own network."""

from __future__ import annotations

import asyncio
import contextlib

from ofl_iot.transport.backoff import Backoff

NO_NETWORK_PAUSE_S = 2.0
"""The longest pause while this machine has no network: a contact may last seconds only."""

CALM_S = 0.2
"""The shortest pause, however often the network changes."""


class Pauses:
    """The pauses of one link; a change of the network ends one."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.network_changed = asyncio.Event()
        self.no_network = False
        """Whether the last attempt failed on this machine, not at the broker."""

    async def pause(self) -> None:
        """Wait before the next attempt, or until the network changes."""
        pause_s = self.next_s()
        await asyncio.sleep(min(pause_s, CALM_S))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.network_changed.wait(), pause_s - CALM_S)

    def next_s(self) -> float:
        """How long to pause now."""
        if not self.no_network:
            return self.backoff.next_s()
        self.backoff.reset()
        return min(self.backoff.next_s(), NO_NETWORK_PAUSE_S)
