"""Table 3's results by data set and system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ofl_research.reproduction.experiments.base import Found
from ofl_research.reproduction.plan import Result
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.trials import accuracy, results, trial
from ofl_research.reproduction.verdicts import (
    Spread,
)

Rows: TypeAlias = Sequence[tuple[str, str, Spread, list[Result]]]
"""Data set, system, accuracy in percent, results of the seeds."""


class Board:
    """The results by data set and system."""

    def __init__(self, options: Options, found: Found) -> None:
        self.datasets, self.systems = options.datasets(), options.systems()
        self._options, self._found = options, found

    def results(self, dataset: str, system: str) -> list[Result]:
        """One for each seed that is finished."""
        wanted = [trial(self._options, dataset, system, seed) for seed in self._options.seeds]
        return results(self._found, self._options.chosen(wanted))

    def accuracy(self, dataset: str, system: str) -> Spread | None:
        """In percent."""
        return accuracy(self.results(dataset, system))

    def by_seed(self, dataset: str, system: str) -> dict[int, float]:
        """Accuracies in percent of the seeds that are finished."""
        return {each.seed: 100 * each.accuracy for each in self.results(dataset, system)}

    def rows(self) -> Rows:
        """Data set, system, accuracy and results wherever there are any."""
        return [
            (dataset, system, Spread.of([100 * each.accuracy for each in found]), found)
            for dataset in self.datasets
            for system in self.systems
            if (found := self.results(dataset, system))
        ]
