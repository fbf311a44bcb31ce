"""Density of a vector's values by a smoothed histogram: a kernel density estimate in O(n + bins)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.opportunity.blocks import Vector

BINS = 256


@dataclass(frozen=True)
class Histogram:
    """Smoothed counts over equal bins from `low` to `high`; what lies outside belongs to the outer bins."""

    low: float
    high: float
    heights: npt.NDArray[np.float64]

    def bins_of(self, values: Vector) -> npt.NDArray[np.uint16]:
        """The bin of each value."""
        return _bins_of(values, self.low, self.high, len(self.heights))

    def border(self, place: int) -> float:
        """Where bin `place` begins."""
        return self.low + (self.high - self.low) * place / len(self.heights)


def is_spread(low: float, high: float) -> bool:
    """Whether bins between `low` and `high` can be told apart in float32."""
    return max(1e-30, 1e-6 * abs(low), 1e-6 * abs(high)) < high - low < float(np.finfo(np.float32).max)


def smooth_histogram(values: Vector, low: float, high: float, bins: int = BINS) -> Histogram:
    """Gaussian kernel density estimate on a grid, bandwidth by Silverman's rule: 1.06 · spread · n^(-1/5).

    The range must be spread (`is_spread`).
    """
    counts = np.bincount(_bins_of(values, low, high, bins), minlength=bins).astype(np.float64)
    quartiles = np.quantile(values, (0.25, 0.75))
    deviation = float(values.std(dtype=np.float64))
    spread = min(deviation, float(quartiles[1] - quartiles[0]) / 1.34) or deviation
    width = max(1.06 * spread * len(values) ** -0.2 / (high - low) * bins, 0.7)
    reach = min(int(np.ceil(3 * width)), bins)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    return Histogram(low, high, np.convolve(counts, kernel / kernel.sum())[reach:-reach])


def _bins_of(values: Vector, low: float, high: float, bins: int) -> npt.NDArray[np.uint16]:
    place = (values - np.float32(low)) * np.float32(bins / (high - low))
    np.clip(place, 0, bins - 1, out=place)
    numbers: npt.NDArray[np.uint16] = place.astype(np.uint16)
    return numbers
