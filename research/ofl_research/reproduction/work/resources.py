"""What OFL's devices spend by type, and what Eq. 4 lets them send and fetch when something is scarce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ofl_iot.fleet.devices import DEVICE_TYPES, DeviceType
from ofl_iot.roles.device.resources import ResourceRules, plan_contact
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.federations import watch_system
from ofl_research.reproduction.systems import types_of
from ofl_research.reproduction.work.federation import Trial, deal_task
from ofl_research.reproduction.worker import Tell

IDLE, FULL = 0.3, 1.0
"""Shares of a type's power that an idle and a training device draws, as in `SimulatedSource`."""


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:
    """Means of a device of each type over a whole run."""
    trial = msgspec.convert(cell.settings, Trial)
    dealing, plan = trial.dealing, trial.plan
    task = deal_task(cell.dataset, data, cell.seed, dealing)
    watch = watch_system("ofl", task, plan, lambda share, accuracy: tell(share, f"accuracy {accuracy:.3f}"))
    world = watch.running
    spent: dict[str, list[dict[str, float]]] = {}
    for name, kind in zip(watch.names, types_of(plan, dealing.devices), strict=True):
        traffic, steps = world.broker.session(name).traffic, watch.steps[name]
        spent.setdefault(kind.name, []).append(
            _spent(kind, steps * plan.step_s, world.now)
            | {"bytes_up": traffic.up, "bytes_down": traffic.down, "steps": steps}
        )
    types = {
        kind: {figure: float(np.mean([each[figure] for each in devices])) for figure in devices[0]}
        for kind, devices in sorted(spent.items())
    }
    return {"types": types, "virtual_s": world.now, "parameters": task.test.size, "plans": plans(task.test.size)}


def _spent(kind: DeviceType, reference_s: float, total_s: float) -> dict[str, float]:
    """Busy share and mean power of a device that computed what takes type D `reference_s`."""
    busy = min(1.0, reference_s / kind.relative_speed / max(total_s, 1e-9))
    return {"busy": busy, "power_w": kind.power_w * (IDLE + (FULL - IDLE) * busy)}


def plans(size: int) -> list[dict[str, Any]]:
    """Eq. 4 for each type under some scarcities, by both objectives."""
    scarcities: dict[str, tuple[dict[str, Any], float]] = {
        "plenty": ({}, np.inf),
        "slow link": ({"link_share": 0.5 * size * 2.1 / 60 / (20e6 / 8)}, np.inf),
        "little battery": ({"battery_wh": 0.02}, np.inf),
        "budget nearly spent": ({}, 3.0),
    }
    training = TrainingRules()
    rows = []
    for scarcity, (changes, steps_left) in scarcities.items():
        for kind in DEVICE_TYPES.values():
            source = SimulatedSource(kind, np.random.default_rng(1), lambda: 0.0, battery_wh=changes.get("battery_wh"))
            report = msgspec.structs.replace(source.read(), samples=2000)
            for objective in ("fair", "linear"):
                rules = ResourceRules(objective=objective, **changes)
                made = plan_contact(size, report, training, rules, steps_left)
                rows.append(
                    {
                        "scarcity": scarcity,
                        "type": kind.name,
                        "objective": objective,
                        "gamma_up": made.gamma_up,
                        "gamma_down": made.gamma_down,
                        "binding": made.binding,
                    }
                )
    return rows
