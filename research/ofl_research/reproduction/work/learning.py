"""One case of the learning bench: privacy, or poisoned devices behind the leader's gate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ofl_iot.errors import ConfigError
from ofl_research.benches.learning_cases import Case, Laboratory, Scale
from ofl_research.benches.learning_data import MNIST, Corpus, load_corpus, load_mnist
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.selection import DIGITS
from ofl_research.reproduction.worker import Tell

BENCH_DATA = (MNIST, DIGITS)
"""Data sets that the bench deals."""


class LearningTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's settings: sections that differ from the bench's, the attack, the size."""

    sections: dict[str, dict[str, Any]] = {}
    attack: str = "none"
    private: bool = False
    linear: bool = False
    """No hidden layer."""
    devices: int = 16
    train: int = 12_000
    rounds: int = 12
    malicious: int = 3


def bench_corpus(dataset: str, data: Path | None, train: int) -> Corpus:
    """The images of a cell: what its name says, or ConfigError."""
    if dataset not in BENCH_DATA:
        raise ConfigError(f"the learning bench deals {' or '.join(BENCH_DATA)}, not {dataset}")
    return load_corpus(None, train) if dataset == DIGITS else load_mnist(data, train)


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:
    """The bench's `Outcome`."""
    trial = msgspec.convert(cell.settings, LearningTrial)
    scale = Scale(
        devices=trial.devices,
        train=trial.train,
        train_private=trial.train,
        rounds=trial.rounds,
        rounds_private=trial.rounds,
        malicious=trial.malicious,
    )
    tell(0.05, cell.system)
    corpus = bench_corpus(cell.dataset, data, trial.train)
    case = Case(
        cell.system, trial.sections, attack=trial.attack, private=trial.private, widths=() if trial.linear else None
    )
    return asdict(Laboratory(corpus, scale).run(case, cell.seed))
