"""One system learns one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ofl_iot.workloads.tasks import Task, load_task
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.federations import run_system
from ofl_research.reproduction.plan import Plan
from ofl_research.reproduction.settings import Dealing
from ofl_research.reproduction.worker import Tell


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's settings: how the data is dealt, and how the system learns."""

    plan: Plan
    dealing: Dealing


def deal_task(dataset: str, data: Path | None, seed: int, dealing: Dealing) -> Task:
    """The task as it is dealt."""
    return load_task(
        dataset,
        data,
        devices=dealing.devices,
        seed=seed,
        split=dealing.split,
        samples=dealing.samples,
        hidden=dealing.hidden,
        graph_split=dealing.graph_split,
    )


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:
    """The system's `Result`."""
    trial = msgspec.convert(cell.settings, Trial)
    task = deal_task(cell.dataset, data, cell.seed, trial.dealing)
    result = run_system(cell.system, task, trial.plan, lambda share, accuracy: tell(share, f"accuracy {accuracy:.3f}"))
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain
