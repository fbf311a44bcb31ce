"""Rules by which a measured figure is compared with the paper's or with a target.

A figure is *reproduced* if it is within one point of the paper's, whatever our own seeds scatter by; *better* if it is
beyond that on the good side; else *not reproduced*. Targets are judged without any tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["reproduced", "not reproduced", "better"]

TOLERANCE_POINTS = 1.0
RULE = (
    "reproduced: within one point of the paper's mean, whatever the deviation; better: above that; not reproduced: "
    "below it"
)
_SAME = 1e-9
"""Two ways to the same number differ by less."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of some seeds; the deviation of a single one is 0."""

    mean: float
    deviation: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        mean = math.fsum(values) / len(values)
        square = math.fsum((value - mean) ** 2 for value in values)
        return Spread(mean, math.sqrt(square / (len(values) - 1)) if len(values) > 1 else 0.0, len(values))

    def text(self, digits: int = 2) -> str:
        """As "94.17 ± 0.19"; without a deviation if there was one seed alone."""
        return f"{self.mean:.{digits}f}" + (f" ± {self.deviation:.{digits}f}" if self.count > 1 else "")


def compare(ours: Spread, paper_mean: float) -> Verdict:
    """The verdict on an accuracy in percent: more is better."""
    tolerance = TOLERANCE_POINTS + _SAME
    if ours.mean > paper_mean + tolerance:
        return "better"
    return "reproduced" if ours.mean >= paper_mean - tolerance else "not reproduced"


@dataclass(frozen=True)
class Target:
    """A promise: the figure, its bound, and whether it holds; None if either was not measured."""

    what: str
    value: float | None
    bound: float | None
    at_most: bool = False
    beyond: bool = False
    """Whether the bound itself does not do."""
    unit: str = ""
    detail: str = ""
    """Detail of the value, in brackets after it."""

    @property
    def met(self) -> bool | None:
        """Without tolerance."""
        if self.value is None or self.bound is None:
            return None
        if self.beyond and self.value == self.bound:
            return False
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def text(self) -> str:
        """In words."""
        if self.bound is None:
            return f"{self.what}; not measured in this run"
        side = {(False, False): "at least", (False, True): "more than", (True, False): "at most", (True, True): "below"}
        promise = f"{self.what}: {side[self.at_most, self.beyond]} {self.bound:.4g}{self.unit}"
        if self.value is None:
            return f"{promise}; not measured in this run"
        reached = f"{self.value:.4g}{self.unit}" + (f" ({self.detail})" if self.detail else "")
        if self.met:
            return f"{promise}; met with {reached}"
        gap = f"{abs(self.value - self.bound):.3g}{' points' if self.unit == ' %' else self.unit}"
        return f"{promise}; missed with {reached}, by {gap}"


def ahead(what: str, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Target:
    """That we are ahead: the mean over the seeds that both have of our accuracy minus theirs is above zero."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return Target(what, None, 0.0, beyond=True, unit=" points")
    gap = Spread.of([ours[seed] - theirs[seed] for seed in seeds])
    if gap.count == 1:
        detail = f"seed {seeds[0]} alone"
    else:
        detail = f"deviation {gap.deviation:.2g} over seeds {', '.join(map(str, seeds))}"
    return Target(what, gap.mean, 0.0, beyond=True, unit=" points", detail=detail)


def fitted_exponent(sizes: Sequence[float], figures: Sequence[float]) -> float | None:
    """b of the least-squares fit figure = a · size^b; None where there are not two sizes or a figure is not positive.

    b = cov(log size, log figure) / var(log size).
    """
    if len(set(sizes)) < 2 or any(value <= 0 for value in (*sizes, *figures)):
        return None
    xs, ys = [math.log(size) for size in sizes], [math.log(figure) for figure in figures]
    x_mean, y_mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - x_mean) ** 2 for x in xs)
    return math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


Curve = Sequence[tuple[float, float]]
"""(cost, accuracy) in the order of time."""


def smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Each accuracy as the mean of a tenth of the curve up to it, at least itself: one model's is noisy."""
    window = max(1, round(len(curve) / 10))
    accuracies = [accuracy for _, accuracy in curve]
    return [
        (cost, math.fsum(accuracies[max(0, place - window + 1) : place + 1]) / min(window, place + 1))
        for place, (cost, _) in enumerate(curve)
    ]


def cost_to_reach(curve: Curve, accuracy: float) -> float | None:
    """The first cost at which a curve has that accuracy; None if it never has."""
    return next((cost for cost, reached in curve if reached >= accuracy - _SAME), None)


def common_level(first: Curve, second: Curve) -> float:
    """The highest accuracy that both curves reach."""
    return min(max(accuracy for _, accuracy in curve) for curve in (first, second))
