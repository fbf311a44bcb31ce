"""What a training takes of links and disks, counted in a fixed virtual run, beside the bounds of earlier counts.

Counts are the same on every machine, busy or not, so they can guard against a return of waste where seconds cannot.
The run: 12 devices, 4 rounds, seed 0, all at its default (privacy and encryption on). A figure more than a quarter
above its bound fails. One that is meant to be higher: write what is measured into `costs.json`, and say why.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from ofl_agents.cli import main
from ofl_iot.errors import OflError

RUN = ("sim", "--runtime", "virtual", "--devices", "12", "--rounds", "4", "--seed", "0")
BOUNDS = Path(__file__).with_suffix(".json")
TOLERANCE = 1.25


class CostError(OflError):
    """A training takes more than it did."""


def run() -> dict[str, float]:
    """Counts a training; CostError if one is more than a quarter above its bound."""
    figures = per_training(_summary())
    check(figures, json.loads(BOUNDS.read_text()))
    return figures


def per_training(summary: dict[str, Any]) -> dict[str, float]:
    """What all parties together took, by the trainings of all devices."""
    costs, devices = summary["costs"], summary["devices"]
    totals = {
        "messages": costs["messages"],
        "bytes_up": devices * summary["bytes_up_per_device"],
        "bytes_down": devices * summary["bytes_down_per_device"],
        "commits": costs["commits"],
        "stored_bytes": costs["stored_bytes"],
    }
    return {f"{name}_per_training": round(total / costs["trainings"], 2) for name, total in totals.items()}


def check(figures: dict[str, float], bounds: dict[str, float]) -> None:
    """Raise CostError that names each figure above its bound."""
    above = [
        f"{name} is {figures[name]:g}, a quarter above {bound:g} or more"
        for name, bound in bounds.items()
        if figures[name] > TOLERANCE * bound
    ]
    if above:
        raise CostError(f"{'; '.join(above)}: mend it, or write the new figure into {BOUNDS.name} and say why")


def _summary() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ofl-costs-") as folder, contextlib.redirect_stdout(io.StringIO()):
        written = Path(folder) / "summary.json"
        status = main([*RUN, "--out", folder, "--json", str(written)])
        if status:
            raise CostError(f"the run that is counted ended with status {status}")
        summary: dict[str, Any] = json.loads(written.read_text())
    return summary
