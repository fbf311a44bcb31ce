"""How much of the model should move: sweeps of gamma_up and gamma_down."""

from __future__ import annotations

from typing import Any, TypeAlias

from ofl_research.reproduction import paper
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.document import Block, Figure, Section, Sheet, Table, sheet, table
from ofl_research.reproduction.experiments.base import Experiment, Found
from ofl_research.reproduction.plan import Result
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.trials import Variant, results, trial, variant_chart

DATA = ("mnist", "cora")
GAMMAS, QUICK_GAMMAS = (0.01, 0.05, 0.1, 0.3, 1.0), (0.05, 0.1, 1.0)
FIXED = 0.1
DIRECTIONS = ("gamma_up", "gamma_down")
Swept: TypeAlias = dict[tuple[str, str, float], Result]
"""By data set, direction and value."""


def sweep(options: Options, dataset: str, direction: str, gamma: float) -> list[Cell]:
    """One value of one direction, the other at 0.1; links have a rate, so that what is sent takes its time."""
    changes: dict[str, Any] = {**dict.fromkeys(DIRECTIONS, FIXED), direction: gamma, "limited_links": True}
    return [trial(options, dataset, "ofl", options.seeds[0], **changes)]


def gammas(options: Options) -> tuple[float, ...]:
    """The values of a sweep."""
    return QUICK_GAMMAS if options.quick else GAMMAS


def cells(options: Options) -> list[Cell]:
    """Both sweeps on each data set."""
    return [
        cell
        for dataset in _data(options)
        for direction in DIRECTIONS
        for gamma in gammas(options)
        for cell in sweep(options, dataset, direction, gamma)
    ]


def section(options: Options, found: Found) -> Section:
    """Curves and a table for each direction."""
    swept: Swept = {
        (dataset, direction, gamma): each[0]
        for dataset in _data(options)
        for direction in DIRECTIONS
        for gamma in gammas(options)
        if (each := results(found, sweep(options, dataset, direction, gamma)))
    }
    blocks: list[Block] = [*_figures(options, swept), _table(swept)]
    return Section("fig-gamma", EXPERIMENT.title, EXPERIMENT.paper, tuple(blocks), {"fig-gamma": _sheet(swept)})


def _figures(options: Options, swept: Swept) -> list[Figure]:
    """Accuracy over time and over bytes, a curve for each value."""
    legend = tuple((str(place), f"γ = {gamma:g}") for place, gamma in enumerate(gammas(options), 1))
    figures = []
    for direction in DIRECTIONS:
        other = next(name for name in DIRECTIONS if name != direction)
        for by_bytes in (False, True):
            drawings = [_drawing(options, swept, dataset, direction, by_bytes=by_bytes) for dataset in _data(options)]
            if shown := tuple(filter(None, drawings)):
                figures.append(Figure(shown, f"{direction} varies, {other} is {FIXED}; one seed.", legend))
    return figures


def _drawing(options: Options, swept: Swept, dataset: str, direction: str, *, by_bytes: bool) -> str:
    variants = [
        Variant(str(place), f"γ = {gamma:g}", [result] if (result := swept.get((dataset, direction, gamma))) else [])
        for place, gamma in enumerate(gammas(options), 1)
    ]
    return variant_chart(f"{paper.title(dataset)}: {direction}", variants, by_bytes=by_bytes)


def _table(swept: Swept) -> Table:
    return table(
        ("data", "direction", "γ", "accuracy %", "best %", "MB up per device", "MB down per device"),
        [
            (
                paper.title(dataset),
                direction,
                f"{gamma:g}",
                f"{100 * result.accuracy:.2f}",
                f"{100 * result.best_accuracy:.2f}",
                f"{result.bytes_up_per_device / 1e6:.2f}",
                f"{result.bytes_down_per_device / 1e6:.2f}",
            )
            for (dataset, direction, gamma), result in swept.items()
        ],
    )


def _sheet(swept: Swept) -> Sheet:
    return sheet(
        ("dataset", "direction", "gamma", "accuracy", "bytes_up_per_device", "bytes_down_per_device"),
        [
            (*key, 100 * result.accuracy, round(result.bytes_up_per_device), round(result.bytes_down_per_device))
            for key, result in swept.items()
        ],
    )


def _data(options: Options) -> list[str]:
    return options.datasets(DATA[:1] if options.quick else DATA)


EXPERIMENT = Experiment(
    name="fig-gamma",
    title="How much of the model moves",
    paper="The paper: figures “Impact of γ_up when N=16, γ_down=0.1” and “Impact of γ_down when N=16, γ_up=0.1”. "
    "Larger is not always better, because more parameters keep devices and leaders busy. Its numbers are not printed.",
    cells=cells,
    section=section,
)
