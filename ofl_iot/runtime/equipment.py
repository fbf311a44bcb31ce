"""What a party of the live runtime works with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from ofl_iot.jobs.toolbox import Pace, Toolbox
from ofl_iot.roles.reports.base import Report
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.store import Store
from ofl_iot.runtime.telemetry import TelemetrySource
from ofl_iot.transport import link as transport

STORE_RETRY_S = 10.0
JOB_LIMIT_S = 3600.0
"""A job that takes longer hangs."""


@dataclass(frozen=True)
class Equipment:
    """What a party works with."""

    link: transport.Link
    store: Store
    toolbox: Toolbox
    wire: Wire
    executor: Executor
    """Runs jobs,"""
    store_executor: Executor | None = None
    """and this one the store, so that no write waits for a training; None: the same one."""
    meter: TelemetrySource | None = None
    pace: Pace | None = None
    """Slows jobs down to the speed of a simulated device."""
    listener: Callable[[str, Report, float], None] | None = None
    store_retry_s: float = STORE_RETRY_S
    job_limit_s: float = JOB_LIMIT_S
