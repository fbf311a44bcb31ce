"""Processor seconds of one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Processor seconds of one call."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def best(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """The fastest of some calls."""
    runs = [timed(work) for _ in range(repeats)]
    return min(seconds for seconds, _ in runs), runs[-1][1]
