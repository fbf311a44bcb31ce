"""The device's side of Algorithm 2, lines 9 to 12: from an update to the part of it that leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.blocks import Vector
from ofl_iot.opportunity.ofactor import Density, magnitude, o_factor
from ofl_iot.opportunity.perturbation import MAX_CLUSTERS, perturb
from ofl_iot.opportunity.selection import (
    UTILITY_QUANTILE,
    Indices,
    select_private,
    select_top,
    utility_levels,
)

Mode = Literal["rigorous", "paper", "off"]
"""Where privacy comes from.

rigorous  the update was trained with noise (DP-SGD): what follows is post-processing, the best values leave as are
paper     as the paper writes it: the exponential mechanism selects with eps1, Laplace noise perturbs with eps2
off       nowhere
"""


Score = Literal["o-factor", "magnitude"]
"""What selects the parameters of a release.

o-factor   Eq. 5: the update over how much the parameter moved between the last two syncs
magnitude  |update| alone
"""


@dataclass(frozen=True)
class ReleaseSettings:
    """How a device chooses and perturbs what it releases."""

    mode: Mode = "rigorous"
    score: Score = "o-factor"
    """Modes rigorous and off; the paper's mode always selects by Eq. 5."""
    density: Density = "none"
    eps1: float = 1.0
    """Paper mode: budget of one pick."""
    eps2: float = 1.0
    """Paper mode: budget of one value."""
    utility_quantile: float = UTILITY_QUANTILE
    max_clusters: int = MAX_CLUSTERS

    def __post_init__(self) -> None:
        if self.mode not in ("rigorous", "paper", "off"):
            raise ConfigError(f"privacy mode {self.mode!r}: use 'rigorous', 'paper' or 'off'")
        if self.score not in ("o-factor", "magnitude"):
            raise ConfigError(f"upload score {self.score!r}: use 'o-factor' or 'magnitude'")
        if not (self.eps1 > 0 and self.eps2 > 0):
            raise ConfigError(f"eps1 = {self.eps1}, eps2 = {self.eps2}: both must be positive")
        if not 0 < self.utility_quantile <= 1:
            raise ConfigError(f"utility_quantile is {self.utility_quantile}: choose it above 0 and at most 1")


@dataclass(frozen=True)
class Selected:
    """A sparse update: what leaves the device."""

    indices: Indices
    """Places in the model, ascending."""
    values: Vector
    utility: Vector
    """How much each value matters; it orders the chunks and does not leave the device."""

    def __len__(self) -> int:
        return len(self.indices)


def count_of(gamma: float, parameters: int) -> int:
    """How many parameters a share `gamma` of the model is, rounded down so that the plan's limits hold.

    One at least if anything may leave: a model of a few parameters would never learn.
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma is {gamma}: a share of the model lies between 0 and 1")
    return min(parameters, max(int(gamma > 0), int(gamma * parameters + 1e-6)))


def prepare_release(  # noqa: PLR0917  the six inputs of Algorithm 2 in its order
    update: Vector,
    theta0: Vector,
    theta1: Vector,
    gamma: float,
    settings: ReleaseSettings,
    rng: np.random.Generator,
    *,
    activation: Vector | None = None,
) -> Selected:
    """Choose `gamma` of the unreleased update theta' - theta0 and make it fit to leave the device.

    The budget must have been spent before. In the paper's mode exactly gamma · |theta| values leave, because how
    many of them are not zero is private too; in the other modes parameters that did not change stay at home.
    """
    if len(update) > np.iinfo(np.int32).max:
        raise ConfigError(f"a model of {len(update)} parameters is too large: at most 2^31 - 1")
    count = count_of(gamma, len(update))
    if settings.score == "magnitude" and settings.mode != "paper":
        scores = magnitude(update)
    else:
        scores = o_factor(update, theta0, theta1, density=settings.density, activation=activation)
    if settings.mode == "paper":
        levels = utility_levels(scores, settings.utility_quantile)
        indices = select_private(levels, count, settings.eps1, rng)
        values = perturb(update[indices], settings.eps2, rng, max_clusters=settings.max_clusters)
        return Selected(indices, values, np.abs(values))  # an order by true utility would tell more than was paid for
    indices = select_top(scores, count)
    utility = scores[indices]
    if len(utility) and not utility.all():
        indices, utility = indices[utility > 0], utility[utility > 0]
    return Selected(indices, update[indices], utility)
