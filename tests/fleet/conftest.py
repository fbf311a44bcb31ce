"""Fleets to plan with: reports of the paper's device types, and evidence that agrees with them or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from ofl_iot.fleet.assignment import DeviceView
from ofl_iot.fleet.devices import DEVICE_TYPES, deal_types
from ofl_iot.fleet.trust import Evidence, Observed
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.telemetry import Telemetry

ReportMaker = Callable[..., Telemetry]
EvidenceMaker = Callable[..., Evidence]
FleetMaker = Callable[..., dict[DeviceId, DeviceView]]

PACE, RATE = 10.0, 20.0
"""Steps and megabit per second of a type D device."""


def make_report(kind: str = "C", **changes: Any) -> Telemetry:
    chosen = DEVICE_TYPES[kind]
    report = Telemetry(
        device_type=kind,
        cpu_count=chosen.cpu_cores,
        cpu_ghz=chosen.cpu_ghz,
        cpu_load=0.3,
        memory_total_mib=8192,
        memory_free_mib=5000,
        temperature_c=50.0,
        network_mbps=RATE,
        round_trip_s=0.02,
        availability=0.95,
        samples=500,
        step_s=1 / (PACE * chosen.relative_speed),
    )
    return msgspec.structs.replace(report, **changes)


def make_evidence(kind: str = "C", count: int = 10) -> Evidence:
    return Evidence(
        steps_per_s=Observed(PACE * DEVICE_TYPES[kind].relative_speed, count),
        network_mbps=Observed(RATE, count),
        availability=Observed(0.95, count),
    )


def make_fleet(size: int, seed: int = 0, *, observed: int = 10) -> dict[DeviceId, DeviceView]:
    """Honest devices of the four types, with small differences and observed `observed` times each."""
    rng = np.random.default_rng(seed)
    fleet = {}
    for i, kind in enumerate(deal_types(size)):
        report = make_report(
            kind.name,
            cpu_load=float(rng.uniform(0.1, 0.6)),
            network_mbps=RATE * float(rng.uniform(0.9, 1.0)),
            samples=int(rng.integers(100, 900)),
        )
        fleet[DeviceId(f"device-{i:05d}")] = DeviceView(report, make_evidence(kind.name, observed))
    return fleet


@pytest.fixture(scope="session")
def report() -> ReportMaker:
    return make_report


@pytest.fixture(scope="session")
def evidence() -> EvidenceMaker:
    return make_evidence


@pytest.fixture(scope="session")
def fleet() -> FleetMaker:
    return make_fleet
