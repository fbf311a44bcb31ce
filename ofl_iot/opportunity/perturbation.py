"""Laplace noise around density centroids (Algorithm 2, lines 10 and 11): the paper's mode only.

A kernel density estimate of the selected values is cut at its deepest valleys into k clusters PC_1 … PC_k with
centroids omega_i. A value of cluster i gets noise from Lap(Delta_i / eps_i) with Delta_i = 2 · max |theta - omega_i|
and the split eps_i = eps2 / k, so that the eps_i add up to eps2.

The paper's clusters and sensitivities are read off the data, so this is no formal guarantee; values that are all
alike have Delta = 0 and leave as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.blocks import Vector, strided_sample
from ofl_iot.opportunity.density import is_spread, smooth_histogram

MAX_CLUSTERS = 4
_DEPTH = 0.01  # a valley counts if it lies this share of the highest peak below both its sides
_LARGEST = float(np.finfo(np.float32).max)
_FEWEST = 8  # values below which a density says nothing


@dataclass(frozen=True)
class Clusters:
    """Intervals of values: cluster i holds the values above cuts[i - 1] and up to cuts[i]."""

    cuts: tuple[float, ...]
    centroids: npt.NDArray[np.float64]
    sensitivities: npt.NDArray[np.float64]
    """Delta_i = 2 · max |theta - omega_i|."""

    def labels(self, values: Vector) -> npt.NDArray[np.uint8]:
        """The cluster of each value."""
        return _labels(values, self.cuts)


def density_clusters(values: Vector, max_clusters: int = MAX_CLUSTERS) -> Clusters:
    """Cut the values at the deepest valleys of their density into at most `max_clusters` clusters."""
    if max_clusters < 1:
        raise ConfigError(f"max_clusters is {max_clusters}: use at least 1")
    cuts = _valleys(values, max_clusters - 1)
    labels = _labels(values, cuts)
    masks = [labels == cluster for cluster in range(len(cuts) + 1)]
    # A product with the mask: selecting by a random mask takes ten times as long.
    sums = [float((values * mask).sum(dtype=np.float64)) for mask in masks]
    sizes = [int(np.count_nonzero(mask)) for mask in masks]
    centroids = np.array([total / max(1, size) for total, size in zip(sums, sizes, strict=True)])
    distance = np.abs(values - centroids.astype(np.float32).take(labels))
    radii = [float((distance * mask).max(initial=0)) for mask in masks]
    return Clusters(cuts, centroids, 2 * np.array(radii))


def perturb(values: Vector, eps2: float, rng: np.random.Generator, *, max_clusters: int = MAX_CLUSTERS) -> Vector:
    """values + Lap(k · Delta_i / eps2), i the cluster of the value and k the number of clusters."""
    if not eps2 > 0:
        raise ConfigError(f"eps2 is {eps2}: give a positive number, or infinity for no noise")
    if not len(values):
        return np.empty(0, np.float32)
    clusters = density_clusters(values, max_clusters)
    widths = len(clusters.centroids) * clusters.sensitivities / eps2
    scales: Vector = np.minimum(widths, _LARGEST / 128).astype(np.float32)
    noise = laplace(len(values), rng)
    with np.errstate(over="ignore"):
        noise *= scales.take(clusters.labels(values))
        noise += values
    np.clip(noise, -_LARGEST, _LARGEST, out=noise)
    return noise


def laplace(count: int, rng: np.random.Generator) -> Vector:
    """Draws from Lap(1): the logarithm of a uniform number of 31 random bits, and another bit as its sign."""
    words = rng.integers(0, 2**64, size=(count + 1) // 2, dtype=np.uint64).view(np.uint32)[:count]
    noise: Vector = (words >> np.uint32(1)).astype(np.float32)
    noise += np.float32(0.5)
    noise *= np.float32(2**-31)
    np.log(noise, out=noise)
    noise.view(np.uint32)[:] ^= words << np.uint32(31)
    return noise


def _labels(values: Vector, cuts: tuple[float, ...]) -> npt.NDArray[np.uint8]:
    labels = np.zeros(len(values), np.uint8)
    for cut in cuts:
        labels += values > np.float32(cut)
    return labels


def _valleys(values: Vector, most: int) -> tuple[float, ...]:
    """The places of at most `most` deep valleys in the density of the values, ascending."""
    if len(values) < _FEWEST or most < 1:
        return ()
    low, high = float(values.min()), float(values.max())
    if not is_spread(low, high):
        return ()
    histogram = smooth_histogram(strided_sample(values), low, high)
    heights = histogram.heights
    left, right = np.maximum.accumulate(heights), np.maximum.accumulate(heights[::-1])[::-1]
    depth = (np.minimum(left, right) - heights) / heights.max()
    inner = heights[1:-1]
    low_points = np.flatnonzero((inner <= heights[:-2]) & (inner < heights[2:]) & (depth[1:-1] > _DEPTH)) + 1
    deepest = low_points[np.argsort(-depth[low_points], kind="stable")[:most]]
    return tuple(histogram.border(int(place)) for place in np.sort(deepest))
