"""Malicious leaders among production machines, judged by one form of the s-factor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ofl_research.benches.detection import DetectionTrials, Size
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.work.learning import bench_corpus
from ofl_research.reproduction.worker import Tell


class DetectionTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's settings; the cell's system is the form of the s-factor."""

    attack: str
    malicious: int
    leaders: int = 10
    rounds: int = 15
    train: int = 4_000


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:
    """Accuracy, the trigger's success, and who was excluded."""
    trial = msgspec.convert(cell.settings, DetectionTrial)
    size = Size(leaders=trial.leaders, rounds=trial.rounds, train=trial.train)
    trials = DetectionTrials(bench_corpus(cell.dataset, data, size.train), size)
    tell(0.05, f"{trial.attack}, {trial.malicious} of {trial.leaders}")
    return asdict(trials.run(trial.attack, trial.malicious, cell.system, cell.seed))
