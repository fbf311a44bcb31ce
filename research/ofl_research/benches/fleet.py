"""How long planning takes as the fleet grows, and how many devices it moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ofl_iot.fleet.assignment import DeviceView, FleetPlan, FleetSettings, plan_assignments
from ofl_iot.fleet.devices import deal_types
from ofl_iot.fleet.trust import Evidence, Observed
from ofl_iot.ids import DeviceId, Term
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.runtime.telemetry import SimulatedSource

SIZES = (100, 1_000, 10_000, 100_000)
AWAY = 0.1
"""Share of the devices that is away in each term."""


def run(
    sizes: Sequence[int] = SIZES, terms: int = 3, seed: int = 1, *, progress: Callable[[str], None] = print
) -> dict[str, dict[str, float]]:
    """Plan a drifting fleet of each size anew for `terms` terms, a tenth of it away each time.

    Of each size: seconds of the first plan and of the later ones (mean), churn (mean of the later ones).
    """
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        figures[str(size)] = _measure(size, terms, np.random.default_rng(seed))
        line = "  ".join(f"{name} {value:.4g}" for name, value in figures[str(size)].items())
        progress(f"{size:>7} devices  {line}")
    return figures


def _measure(size: int, terms: int, rng: np.random.Generator) -> dict[str, float]:
    settings = FleetSettings()
    hour = [0.0]
    sources = [
        SimulatedSource(kind, rng, lambda: 3600 * hour[0], network_mbps=float(rng.lognormal(3, 0.5)))
        for kind in deal_types(size)
    ]
    samples = rng.integers(100, 1000, size).tolist()
    plan: FleetPlan | None = None
    seconds, churn = [], []
    for term in range(1, terms + 2):
        hour[0] = float(term)
        devices = {
            DeviceId(f"device-{i}"): _view(source.read(), samples[i])
            for i, source in enumerate(sources)
            if rng.random() > AWAY
        }
        begun = time.perf_counter()
        plan = plan_assignments(devices, plan, Term(term), settings, rng)
        seconds.append(time.perf_counter() - begun)
        churn.append(plan.churn)
    return {
        "clusters": len(plan.clusters) if plan else 0,
        "first_s": seconds[0],
        "later_s": float(np.mean(seconds[1:])),
        "churn": float(np.mean(churn[1:])),
    }


def _view(report: Telemetry, samples: int) -> DeviceView:
    """An honest device, observed often enough to be believed."""
    report = msgspec.structs.replace(report, samples=samples)
    pace = 0.0 if report.step_s is None else 1 / report.step_s
    evidence = Evidence(
        steps_per_s=Observed(pace, 10),
        network_mbps=Observed(report.network_mbps or 0.0, 10),
        availability=Observed(report.availability, 10),
    )
    return DeviceView(report, evidence)
