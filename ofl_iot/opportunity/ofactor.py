"""The o-factor: how much each parameter deserves the next contact (Eq. 5).

                |theta' - theta0| · DensEst(theta')
    o-factor = -------------------------------------
                log2(1 + |theta0 - theta1|) + floor

theta' is the model after local training, theta0 and theta1 are the states of the last two syncs. The numerator
is the update that was not released yet, so a parameter that waited counts with all it gathered. The floor is the
median of the positive denominators, so that nothing is divided by zero and a parameter that did not change between
the syncs does not outrank all others; before the second sync (theta0 = theta1) the numerator alone decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.blocks import Vector, blocks, strided_sample
from ofl_iot.opportunity.density import is_spread, smooth_histogram

Density = Literal["none", "histogram", "rare", "activation"]
"""How DensEst is read.

none        1: the default, which does no harm
histogram   density of the parameter values, the paper's words; selects worse than the update's size alone
rare        1 - histogram: the paper's motive, unique features must not vanish
activation  given by the workload from its forward pass, the paper's suggestion for cheap devices
"""

_LARGEST = np.float32(np.finfo(np.float32).max)
_LOG2_E = float(np.log2(np.e))
_SMALL_CHANGE = 0.1
_RARE = 1e-4  # Eq. 5 wants a density inside (0, 1)


def o_factor(
    update: Vector,
    theta0: Vector,
    theta1: Vector,
    *,
    density: Density = "none",
    activation: Vector | None = None,
) -> Vector:
    """Score each parameter by Eq. 5; `update` is theta' - theta0, as far as it was not released."""
    if not len(update) == len(theta0) == len(theta1):
        raise ConfigError(f"update and states differ in length: {len(update)}, {len(theta0)}, {len(theta1)}")
    weigh = _density(density, update, theta0, activation)
    floor = _floor(theta0, theta1)
    scores = np.empty(len(update), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in blocks(len(update)):
            score = np.abs(update[part], out=scores[part])
            if weigh is not None:
                score *= weigh(part)
            if floor:
                _divide(score, theta0[part] - theta1[part], floor)
    if len(scores) and not scores.max() <= _LARGEST:
        _mend(scores, update)
    return scores


def magnitude(update: Vector) -> Vector:
    """Score each parameter by |update| alone."""
    scores = np.abs(update)
    if len(scores) and not scores.max() <= _LARGEST:
        _mend(scores, update)
    return scores


def _floor(theta0: Vector, theta1: Vector) -> float:
    """The median of the positive denominators; 0 if there is none in the sample."""
    with np.errstate(over="ignore", invalid="ignore"):
        change = np.abs(strided_sample(theta0) - strided_sample(theta1))
    change = change[change > 0]
    return _LOG2_E * float(np.log1p(np.median(change.astype(np.float64)))) if len(change) else 0.0


def _divide(score: Vector, change: Vector, floor: float) -> None:
    """score ← score / (log2(1 + |change|) + floor); overwrites `change`."""
    d = np.abs(change, out=change)
    if d.max() <= _SMALL_CHANGE:
        # log(1 + d) ≈ 2d / (2 + d), off by less than a thousandth of it and four times as fast; multiplied out,
        # one division remains: score · (2 + d) / ((2 · log2(e) + floor) · d + 2 · floor).
        score *= d + 2
        d *= np.float32(2 * _LOG2_E + floor)
        d += np.float32(2 * floor)
    else:
        d += 1
        np.log(d, out=d)  # unlike log2 and log1p, numpy's log has a vector form for float32
        d *= np.float32(_LOG2_E)
        d += np.float32(floor)
    score /= d


def _mend(scores: Vector, update: Vector) -> None:
    """Cut off scores that overflowed; raise if the input was not finite."""
    if not np.isfinite(update).all():
        raise ConfigError("the update is not finite: training diverged, lower the learning rate")
    if np.isnan(scores).any():
        raise ConfigError("a synced state or an activation is not a number: fetch the model again")
    np.minimum(scores, _LARGEST, out=scores)


def _density(
    density: Density, update: Vector, theta0: Vector, activation: Vector | None
) -> Callable[[slice], Vector] | None:
    """DensEst(theta') of a part of the model, or None where it is 1."""
    if density == "none":
        return None
    if density == "activation":
        if activation is None or len(activation) != len(update):
            raise ConfigError("density 'activation' needs one number a parameter from the workload; or use 'none'")
        return activation.__getitem__
    if density == "histogram":
        common = _value_density(update, theta0)
        return lambda part: common(theta0[part] + update[part])
    if density == "rare":
        common = _value_density(update, theta0)
        return lambda part: 1 - common(theta0[part] + update[part])
    raise ConfigError(f"density {density!r}: use 'none', 'histogram', 'rare' or 'activation'")


def _value_density(update: Vector, theta0: Vector) -> Callable[[Vector], Vector]:
    """DensEst: how common a value is among those of theta', in (0, 1); 0.5 where all are alike."""
    with np.errstate(over="ignore", invalid="ignore"):
        sample = np.clip(strided_sample(theta0) + strided_sample(update), -_LARGEST / 4, _LARGEST / 4)
    low, high = (float(bound) for bound in np.quantile(sample, (0.002, 0.998))) if len(sample) else (0.0, 0.0)
    if not is_spread(low, high):
        return lambda values: np.full(len(values), 0.5, np.float32)
    histogram = smooth_histogram(sample, low, high)
    scaled = np.clip(histogram.heights / histogram.heights.max(), _RARE, 1 - _RARE).astype(np.float32)
    return lambda values: scaled.take(histogram.bins_of(values))
