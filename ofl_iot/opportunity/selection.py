"""Which parameters leave the device: the best ones, or an exponential mechanism's draw.

In the rigorous privacy mode the update is private already and selection is post-processing: `select_top` takes the
best. In the paper's mode selection is itself the mechanism (Algorithm 2, line 9): parameters are picked one after
the other without replacement, each with probability proportional to exp(eps1 · u / (2 · Delta_u)) among those left.

Adding Gumbel noise to eps1 · u / 2 and taking the `count` largest draws the same sets in one pass, and so does a
race in which a parameter arrives after an exponential time of rate exp(eps1 · u / 2) and the first `count` win: the
time is exp(-noisy score). `select_private` runs the race, because whether a parameter arrives before a given time
takes one random byte instead of a logarithm, and only the last few arrivals need their order.

The utility u is the o-factor over its 0.99 quantile, cut off at 1, in whole 255ths: Delta_u = 1. The quantile is
read off this device's data, which the paper's accounting does not cover.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.blocks import BLOCK, SAMPLE, Vector, blocks, strided_sample

Indices = npt.NDArray[np.int32]
Levels = npt.NDArray[np.uint8]
"""Utilities in 255ths."""
_Places = npt.NDArray[np.int64]
_PerLevel = npt.NDArray[np.float64]

UTILITY_QUANTILE = 0.99
"""Public constant: o-factors above this quantile are worth 1. With max-min scaling one outlier sets the scale."""

_TOP = 255


def utility_levels(scores: Vector, quantile: float = UTILITY_QUANTILE) -> Levels:
    """u = min(1, score / quantile of the scores) in whole 255ths, rounded down."""
    levels = np.empty(len(scores), np.uint8)
    if not len(scores):
        return levels
    unit = float(np.quantile(strided_sample(scores), quantile)) or float(scores.max()) or 1.0
    factor = np.float32(min(_TOP / unit, 1e38))
    cap = np.full(min(BLOCK, len(scores)), _TOP, np.float32)  # numpy has no vector form for a minimum with a scalar
    with np.errstate(over="ignore"):
        for part in blocks(len(scores)):
            scaled = scores[part] * factor
            levels[part] = np.minimum(scaled, cap[: len(scaled)], out=scaled)
    return levels


def select_top(scores: Vector, count: int) -> Indices:
    """The places of the `count` largest scores, ascending; among equals the first ones. O(n)."""
    _check_count(count, len(scores))
    if count in (0, len(scores)):
        return np.arange(count, dtype=np.int32)
    enough = _safe_threshold(scores, count)
    candidates = _places(scores[part] >= enough for part in blocks(len(scores)))
    if len(candidates) < count:
        candidates = np.arange(len(scores))
    return candidates[_largest(scores[candidates], count)].astype(np.int32)


def select_private(levels: Levels, count: int, eps1: float, rng: np.random.Generator) -> Indices:
    """Draw `count` places by the exponential mechanism without replacement, ascending. O(n)."""
    if not 0 < eps1 < inf:
        raise ConfigError(f"eps1 is {eps1}: give a positive number; to select without noise use another mode")
    _check_count(count, len(levels))
    if count in (0, len(levels)):
        return np.arange(count, dtype=np.int32)
    winners = _race(levels, count, eps1, rng)
    if len(winners) == count:
        return winners
    # Exponential times have no memory: those who did not arrive start anew, with the same odds among them.
    rest = np.delete(np.arange(len(levels), dtype=np.int32), winners)
    late = rest[select_private(levels[rest], count - len(winners), eps1, rng)]
    return np.sort(np.concatenate([winners, late]))


def _race(levels: Levels, count: int, eps1: float, rng: np.random.Generator) -> Indices:
    """The first arrivals, at most `count`; seldom fewer.

    The race has two stretches. Nearly all who are wanted arrive in the first one, and of them nobody has to ask when.
    """
    rates = np.exp(eps1 / 2 * np.minimum(np.arange(_TOP + 1) - int(levels.max()), 0) / _TOP)
    interim, end = _deadlines(levels, count, rates)
    early, ever = -np.expm1(-rates * interim), -np.expm1(-rates * end)
    coins = _Coins.of(ever)
    arrived = _places(coins.flip(levels[part], rng) for part in blocks(len(levels)))
    if len(arrived) > count:
        level = levels.take(arrived)
        chosen = _Coins.of(np.divide(early, ever, out=np.zeros_like(ever), where=ever > 0)).flip(level, rng)
        left = count - int(np.count_nonzero(chosen))
        # Exponential times have no memory: the second stretch is a race of its own.
        rivals, stretch = (np.flatnonzero(~chosen), end - interim) if left > 0 else (np.flatnonzero(chosen), interim)
        chosen[rivals] = False
        chosen[rivals[_earliest(level.take(rivals), left if left > 0 else count, stretch, rates, rng)]] = True
        arrived = arrived.take(np.flatnonzero(chosen))
    return arrived.astype(np.int32)


def _earliest(levels: Levels, count: int, stretch: float, rates: _PerLevel, rng: np.random.Generator) -> _Places:
    """The first `count` of those who all arrive within the stretch."""
    chances = -np.expm1(-rates * stretch)
    # log(1 - p·U) / rate is minus the arrival time, given that it is within the stretch
    return _largest(np.log1p(-chances.take(levels) * rng.random(len(levels))) / rates.take(levels), count)


def _deadlines(levels: Levels, count: int, rates: _PerLevel) -> tuple[float, float]:
    """Times by which a few less and a few more than `count` are expected; any give the same draw, only slower."""
    sample = strided_sample(levels)
    counts = np.bincount(sample, minlength=_TOP + 1) * (len(levels) / len(sample))
    slack = 4 * sqrt(count) + (4 * count / sqrt(SAMPLE) if len(levels) > SAMPLE else 0)

    def when(wanted: float) -> float:
        low, high = 0.0, 1.0
        while counts @ -np.expm1(-rates * high) < wanted and high < 1e9:
            low, high = high, 4 * high
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if counts @ -np.expm1(-rates * middle) < wanted else (low, middle)
        return high

    return when(max(count - slack, count / 2)), when(min(count + slack, (count + len(levels)) / 2))


@dataclass(frozen=True)
class _Coins:
    """A coin for each level."""

    scaled: _PerLevel
    """Chances in 256ths."""
    pairs: npt.NDArray[np.uint16]
    """Whole 256ths for every two neighbouring levels, so that one look-up serves both."""

    @staticmethod
    def of(chances: _PerLevel) -> _Coins:
        scaled = chances * 256
        whole = np.minimum(scaled, 255).astype(np.uint16)
        return _Coins(scaled, (whole[:, None] * np.uint16(256) + whole).ravel())

    def flip(self, levels: Levels, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """A toss for each level: one random byte decides, and a tie draws more."""
        even = levels if len(levels) % 2 == 0 else np.append(levels, np.uint8(0))
        bound = self.pairs.take(even.view(np.uint16)).view(np.uint8)[: len(levels)]
        words = rng.integers(0, 2**64, size=len(levels) // 8 + 1, dtype=np.uint64)
        drawn = words.view(np.uint8)[: len(levels)]
        heads: npt.NDArray[np.bool_] = drawn < bound
        ties = np.flatnonzero(drawn == bound)
        heads[ties] = rng.random(len(ties)) < self.scaled.take(levels[ties]) - bound[ties]
        return heads


def _safe_threshold(scores: Vector, count: int) -> float:
    """A score that a few more than `count` of the scores reach, guessed from a sample."""
    sample = strided_sample(scores)
    share = count / len(scores)
    share += 4 * sqrt(share * (1 - share) / len(sample)) + 1 / len(sample)
    rank = len(sample) - int(np.ceil(share * len(sample)))
    return float(np.partition(sample, rank)[rank]) if rank > 0 else -inf


def _largest(scores: npt.NDArray[np.floating], count: int) -> _Places:
    """The places of the `count` largest, ascending; among equals the first."""
    rank = len(scores) - count
    threshold = np.partition(scores, rank)[rank]
    chosen = scores > threshold
    equals = np.flatnonzero(scores == threshold)
    chosen[equals[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _places(masks: Iterable[npt.NDArray[np.bool_]]) -> _Places:
    """Where consecutive blocks of a mask are true."""
    return np.concatenate([np.flatnonzero(mask) + number * BLOCK for number, mask in enumerate(masks)])


def _check_count(count: int, size: int) -> None:
    if not 0 <= count <= size:
        raise ConfigError(f"{count} parameters cannot be selected out of {size}: choose a share from 0 to 1")
