"""Waiting for one of several things."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait for one of the futures or the deadline; cancels none."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def unless_ended(waiting: Coroutine[Any, Any, object], ended: asyncio.Future[Any]) -> None:
    """Wait for something, but no longer than until `ended` is done."""
    task = asyncio.ensure_future(waiting)
    try:
        await first_of(task, ended)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
