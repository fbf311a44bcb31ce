"""Patient waiting for what other tasks and processes do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 20.0


async def eventually(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds, or fail at the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"not within {deadline_s:g} s"
        await asyncio.sleep(0.005)
