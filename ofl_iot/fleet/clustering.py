"""Dynamic k-means: warm-started, with hysteresis and bounded sizes, so that nobody moves for nothing.

Labels are continued: label j of the result descends from label j of the previous one, and churn is the share
of devices whose label changed. Every pass is O(kN).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.report import FloatArray, IntArray

NEWCOMER = -1
"""Previous label of a device that had none."""


@dataclass(frozen=True)
class ClusteringSettings:
    """How many clusters, how large, and how reluctantly devices move."""

    clusters: int | None = None
    """None: round(log2 N), as in the paper."""
    min_size: int = 2
    """No cluster is smaller while the fleet suffices: a lone device's model would be its own."""
    balance: float | None = 2.0
    """No cluster exceeds this many average sizes; 1 makes them equal, None lets them be."""
    max_size: int | None = None
    """No leader serves more devices; more clusters are opened if need be."""
    most_clusters: int | None = None
    """Never more clusters than this, whatever the other bounds say."""
    hysteresis: float = 0.3
    """A device moves only to a centre whose squared distance is smaller by this share."""
    iterations: int = 20
    restarts: int = 4

    def __post_init__(self) -> None:
        if (self.clusters is not None and self.clusters < 1) or self.min_size < 1:
            raise ConfigError("clustering: clusters and min_size are at least 1")
        if (self.balance is not None and self.balance < 1) or not 0 <= self.hysteresis < 1:
            raise ConfigError("clustering: balance is at least 1, hysteresis lies in [0, 1)")
        if self.max_size is not None and self.max_size < 2 * self.min_size:
            raise ConfigError("clustering: max_size must be at least twice min_size, or sizes cannot be met")
        if self.iterations < 1 or self.restarts < 1:
            raise ConfigError("clustering: iterations and restarts are at least 1")


@dataclass(frozen=True)
class Clustering:
    """A label for every row, the centre of every label, and the share of known devices that moved."""

    labels: IntArray
    centres: FloatArray
    churn: float


@dataclass(frozen=True)
class _Bounds:
    low: int
    high: int


def cluster_count(n: int, settings: ClusteringSettings, previous: int | None = None) -> int:
    """k = round(log2 N), within what the size bounds allow.

    A previous k stays while |log2 N - k| <= 0.75, so that devices coming and going at the edge do not flip
    it.
    """
    k = settings.clusters
    if k is None:
        exact = math.log2(max(n, 1))
        k = previous if previous is not None and abs(exact - previous) <= 0.75 else round(exact)
    if settings.max_size is not None:
        k = max(k, math.ceil(n / settings.max_size))
    return max(1, min(k, n // settings.min_size, settings.most_clusters or n))


def capacity(n: int, k: int, settings: ClusteringSettings) -> int:
    """The greatest size a cluster may have when n devices form k clusters."""
    average = n / k
    bounds = [n]
    if settings.balance is not None:
        bounds.append(math.ceil(settings.balance * average))
    if settings.max_size is not None:
        bounds.append(settings.max_size)
    return max(min(bounds), math.ceil(average))


def cluster(
    points: FloatArray,
    k: int,
    settings: ClusteringSettings,
    rng: np.random.Generator,
    previous: IntArray | None = None,
) -> Clustering:
    """Group the rows of `points` into k clusters, starting from the `previous` labels where there are any."""
    n = len(points)
    if not 1 <= k <= n:
        raise ConfigError(f"cannot form {k} clusters of {n} devices")
    bounds = _Bounds(low=min(settings.min_size, n // k), high=capacity(n, k, settings))
    known = np.full(n, NEWCOMER, dtype=np.int64) if previous is None else _continued(previous, k)
    if np.all(known == NEWCOMER):
        centres = _cold_start(points, k, settings, rng)
    else:
        centres = _seed(points, k, rng, _means(points, known, None, int(known.max()) + 1))
    labels = known
    for _ in range(settings.iterations):
        before, labels = labels, _assign(points, centres, known, bounds, settings.hysteresis)
        centres = _means(points, labels, centres, k)
        if np.array_equal(before, labels):
            break
    return Clustering(labels, centres, _churn(known, previous, labels))


def place(points: FloatArray, centres: FloatArray, sizes: IntArray, limit: int) -> IntArray:
    """The nearest cluster with room for each late joiner; when all are full, every one takes some beyond `limit`."""
    room = np.maximum(limit - sizes, 0)
    while room.sum() < len(points):
        room = room + 1
    return _fill(_distances(points, centres), room)


def _continued(previous: IntArray, k: int) -> IntArray:
    """Previous labels renumbered 0, 1, ... without gaps; the smallest clusters beyond k are dissolved."""
    names, counts = np.unique(previous[previous != NEWCOMER], return_counts=True)
    kept = np.sort(names[np.argsort(-counts, kind="stable")[:k]])
    out = np.full(len(previous), NEWCOMER, dtype=np.int64)
    for label, name in enumerate(kept):
        out[previous == name] = label
    return out


def _churn(known: IntArray, previous: IntArray | None, labels: IntArray) -> float:
    """Share of the devices known before that left their cluster; those of a dissolved cluster all did."""
    if previous is None or not np.any(previous != NEWCOMER):
        return 0.0
    seen = previous != NEWCOMER
    return float(np.mean(known[seen] != labels[seen]))


def _distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Squared distances [N, k] by |x|^2 - 2 x c + |c|^2, rounding errors below zero cut off."""
    squares = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
    return np.asarray(np.maximum(squares - 2.0 * points @ centres.T, 0.0), dtype=np.float64)


def _means(points: FloatArray, labels: IntArray, fallback: FloatArray | None, k: int) -> FloatArray:
    """Mean of each label's rows; the fallback's row for a label that nobody bears."""
    bearers = labels != NEWCOMER
    rows, names = points[bearers], labels[bearers]
    counts = np.bincount(names, minlength=k)
    sums = np.stack([np.bincount(names, weights=column, minlength=k) for column in rows.T], axis=1)
    means = sums / np.maximum(counts, 1)[:, None]
    if fallback is not None:
        means[counts == 0] = fallback[counts == 0]
    return np.asarray(means, dtype=np.float64)


def _seed(points: FloatArray, k: int, rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    """Add centres by k-means++ until there are k: each a row drawn in proportion to its squared distance."""
    nearest = _distances(points, centres).min(axis=1)
    while len(centres) < k:
        total = nearest.sum()
        row = rng.choice(len(points), p=nearest / total) if total > 0 else rng.integers(len(points))
        centres = np.vstack([centres, points[row]])
        nearest = np.minimum(nearest, _distances(points, centres[-1:])[:, 0])
    return centres


def _cold_start(points: FloatArray, k: int, settings: ClusteringSettings, rng: np.random.Generator) -> FloatArray:
    """The best of a few k-means++ starts, judged by the sum of squared distances after a short descent."""
    best, best_cost = None, math.inf
    for _ in range(settings.restarts):
        centres = _seed(points, k, rng, points[[rng.integers(len(points))]])
        for _ in range(4):
            centres = _means(points, _distances(points, centres).argmin(axis=1), centres, k)
        cost = float(_distances(points, centres).min(axis=1).sum())
        if best is None or cost < best_cost:
            best, best_cost = centres, cost
    return points[:k] if best is None else best


def _assign(points: FloatArray, centres: FloatArray, known: IntArray, bounds: _Bounds, hysteresis: float) -> IntArray:
    """Nearest centre, the own one favoured, no cluster outside its bounds."""
    distances = _distances(points, centres)
    rows = np.flatnonzero(known != NEWCOMER)
    distances[rows, known[rows]] *= 1.0 - hysteresis
    labels = _fill(distances, np.full(len(centres), bounds.high))
    return _feed(distances, labels, bounds.low)


def _fill(distances: FloatArray, room: IntArray) -> IntArray:
    """Nearest label with room for every row; a full label keeps the rows that would lose most by leaving.

    Each pass closes at least one label, so there are at most k; the rooms must add up to N or more.
    """
    distances = np.array(distances)
    labels = distances.argmin(axis=1)
    while True:
        counts = np.bincount(labels, minlength=len(room))
        over = np.flatnonzero(counts > room)
        if not over.size:
            return np.asarray(labels, dtype=np.int64)
        leaving = []
        closed = distances.copy()
        closed[:, counts >= room] = np.inf
        for label in over:
            rows = np.flatnonzero(labels == label)
            loss = closed[rows].min(axis=1) - distances[rows, label]
            leaving.append(rows[np.argsort(loss, kind="stable")[: counts[label] - room[label]]])
        rows = np.concatenate(leaving)
        # Whoever left a full label does not return: the label is closed to them in later passes too.
        distances[rows] = closed[rows]
        labels[rows] = distances[rows].argmin(axis=1)


def _feed(distances: FloatArray, labels: IntArray, low: int) -> IntArray:
    """Give clusters below `low` the rows that lose least by moving, from clusters that can spare them."""
    counts = np.bincount(labels, minlength=distances.shape[1])
    for label in np.flatnonzero(counts < low):
        loss = distances[:, label] - distances[np.arange(len(labels)), labels]
        for row in np.argsort(loss, kind="stable"):
            if counts[label] >= low:
                break
            donor = labels[row]
            if donor != label and counts[donor] > low:
                labels[row] = label
                counts[donor] -= 1
                counts[label] += 1
    return labels
