"""Cells of federations, and how results of several seeds become one curve or figure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.charts import Series, line_chart
from ofl_research.reproduction.experiments.base import Found
from ofl_research.reproduction.plan import Result
from ofl_research.reproduction.selection import Options
from ofl_research.reproduction.settings import Dealing, dealing_for, plan_for
from ofl_research.reproduction.verdicts import Curve, Spread

WORK = "agents.reproduce.work.federation"
GRID = 60
"""Points of a mean curve."""


def trial(
    options: Options, dataset: str, system: str, seed: int, /, *, dealing: Dealing | None = None, **changes: Any
) -> Cell:
    """A cell with the chosen plan of the system on the data set; `dealing` and `changes` differ from it.

    The devices of OFL are always judged, so that its cells serve every experiment.
    """
    plan = plan_for(dataset, system, quick=options.quick)
    reported = {"judge": "test", "seed": seed, "judge_devices": system == "ofl"}
    plan = msgspec.structs.replace(plan, **{**reported, **changes})
    dealing = dealing or dealing_for(dataset, quick=options.quick)
    settings = {"plan": msgspec.to_builtins(plan), "dealing": msgspec.to_builtins(dealing)}
    return Cell(work=WORK, dataset=dataset, system=system, seed=seed, settings=settings)


def results(found: Found, cells: Iterable[Cell]) -> list[Result]:
    """Results of the finished ones."""
    return [msgspec.convert(result, Result) for result in found.results(cells)]


def accuracy(found: Sequence[Result]) -> Spread | None:
    """In percent."""
    return spread([100 * result.accuracy for result in found])


def spread(values: Sequence[float]) -> Spread | None:
    """None where nothing is known."""
    return Spread.of(values) if values else None


def over_time(result: Result) -> Curve:
    """Accuracy in percent over virtual seconds."""
    return [(point.virtual_s, 100 * point.accuracy) for point in result.curve]


def over_bytes(result: Result) -> Curve:
    """Accuracy in percent over megabytes up per device."""
    return [(point.bytes_up_per_device / 1e6, 100 * point.accuracy) for point in result.curve]


def mean_curve(
    found: Sequence[Result], curve_of: Callable[[Result], Curve]
) -> tuple[list[tuple[float, float]], list[float]]:
    """The mean of the seeds' curves and the deviation, where all of them have begun and none has ended."""
    curves = [curve for result in found if (curve := curve_of(result))]
    if not curves:
        return [], []
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if len(curves) == 1 or last <= first:
        return list(curves[0]), [0.0] * len(curves[0])
    places = [first + (last - first) * number / (GRID - 1) for number in range(GRID)]
    spreads = [Spread.of([_at(curve, place) for curve in curves]) for place in places]
    points = [(place, each.mean) for place, each in zip(places, spreads, strict=True)]
    return points, [each.deviation for each in spreads]


@dataclass(frozen=True)
class Variant:
    """Results that are shown as one line."""

    key: str
    label: str
    results: Sequence[Result]


def variant_chart(title: str, variants: Sequence[Variant], *, by_bytes: bool = False) -> str:
    """Learning curves of some variants over virtual time or over bytes; empty where nothing is known."""
    series = []
    for variant in variants:
        points, deviations = mean_curve(variant.results, over_bytes if by_bytes else over_time)
        known = [(point, room) for point, room in zip(points, deviations, strict=True) if point[0] > 0 or not by_bytes]
        if known:
            series.append(Series(variant.key, variant.label, [p for p, _ in known], [room for _, room in known]))
    if not series:
        return ""
    x = "MB up per device" if by_bytes else "virtual seconds"
    return line_chart(title, series, x=x, y="accuracy %", x_log=by_bytes)


def _at(curve: Curve, place: float) -> float:
    """The value there, on a straight line between the points beside it."""
    number = bisect.bisect_left([x for x, _ in curve], place)
    if number in (0, len(curve)):
        return curve[min(number, len(curve) - 1)][1]
    (x0, y0), (x1, y1) = curve[number - 1], curve[number]
    return y0 + (y1 - y0) * (place - x0) / (x1 - x0) if x1 > x0 else y1
