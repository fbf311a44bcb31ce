"""What an experiment is, and what its summary may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ofl_research.reproduction.cells import Cell, Finished
from ofl_research.reproduction.document import Section, Toned
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.verdicts import Target


class Found:
    """Results of cells, as far as there are any."""

    def __init__(self, get: Callable[[Cell], Finished | None]) -> None:
        self._get = get
        self._known: dict[str, Finished | None] = {}

    def finished(self, cell: Cell) -> Finished | None:
        """The finished cell, read once."""
        digest = cell.digest
        if digest not in self._known:
            self._known[digest] = self._get(cell)
        return self._known[digest]

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """Its result."""
        finished = self.finished(cell)
        return finished.result if finished else None

    def results(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """Results of those that are finished."""
        return [result for cell in cells if (result := self.result(cell)) is not None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper: the cells it needs, and what is shown of them."""

    name: str
    title: str
    paper: str
    """What the paper shows, and where."""
    cells: Callable[[Options], list[Cell]]
    section: Callable[[Options, Found], Section]
    targets: Callable[[Options, Found], list[Target]] = lambda _options, _found: []


def toned(target: Target) -> Toned:
    """A target in words, coloured by whether it is met."""
    return Toned(target.text, "open" if target.met is None else "good" if target.met else "bad")
