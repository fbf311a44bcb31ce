"""Guesses how long cells take from those that are finished or well under way."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ofl_research.reproduction.cells import Cell, Finished

if TYPE_CHECKING:
    from ofl_research.reproduction.runner import Board

TELLING = 0.05
"""Share of a cell after which its pace says how long it will take."""


class Pace:
    """The time that is left."""

    def __init__(self, kept: Mapping[str, Finished]) -> None:
        self._kept = list(kept.values())

    def left(self, waiting: Sequence[Cell], board: Board, jobs: int) -> float | None:
        """Seconds until all are done; None while nothing is known."""
        now = time.monotonic()
        running = [(each.cell, now - each.began, each.share) for each in board.running.values()]
        known = [(each.cell, each.wall_s) for each in (*self._kept, *board.done)]
        known += [(cell, elapsed / share) for cell, elapsed, share in running if share > TELLING]
        if not known:
            return None
        under_way = [
            max(0.0, (elapsed / share if share > TELLING else expected_s(cell, known)) - elapsed)
            for cell, elapsed, share in running
        ]
        to_come = [expected_s(cell, known) for cell in waiting]
        return max([*under_way, (sum(under_way) + sum(to_come)) / jobs])


def expected_s(cell: Cell, known: Sequence[tuple[Cell, float]]) -> float:
    """Seconds of a cell: in proportion to `work_of`, after what is most alike; the mean of all if nothing is.

    Most alike are the same data and system, then the same data, then the same work, always of the same module.
    """
    same = [(other, seconds) for other, seconds in known if other.work == cell.work]
    for alike in (
        [each for each in same if each[0].name == cell.name],
        [each for each in same if each[0].dataset == cell.dataset],
        same,
    ):
        if alike:
            return work_of(cell) * sum(seconds / work_of(other) for other, seconds in alike) / len(alike)
    return sum(seconds for _, seconds in known) / len(known)


def work_of(cell: Cell) -> float:
    """Steps that all devices train, about, as far as the settings say; cells of one module can be compared by it.

    OFL's devices train until its rounds are over, the others' a number of steps in each round.
    """
    settings = cell.settings
    plan, dealing = settings.get("plan", settings), settings.get("dealing", settings)
    devices = _number(dealing, "devices", _number(dealing, "leaders", 1.0))
    rounds = _number(plan, "rounds", 1.0)
    if cell.system == "ofl":
        return devices * rounds * _number(plan, "round_s", 1.0) / _number(plan, "step_s", 1.0)
    return devices * rounds * _number(plan, "steps", 1.0)


def _number(settings: Mapping[str, Any], name: str, otherwise: float) -> float:
    """A setting above zero."""
    value = settings.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else otherwise
