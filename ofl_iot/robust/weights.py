"""How much each cluster counts in a round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError, RoundError

FloatArray = npt.NDArray[np.float64]

RARITY_CAP = 4.0
"""A rare cluster is raised at most this much; 10 costs two points of accuracy, no cap drowns slow clusters."""


def rarity(sizes: npt.ArrayLike, merges: npt.ArrayLike, cap: float = RARITY_CAP) -> FloatArray:
    """How much rarer than usual a cluster's updates are.

    rarity_i = min(cap, r̄ / r_i) with r_i what was merged per device of cluster i since the last round and r̄ its
    mean weighted by data size. A cluster that merged nothing has nothing to say: 0.
    """
    if cap < 1.0:
        raise ConfigError(f"rarity cap {cap}: use 1 (no compensation) or more")
    shares, rates = _amounts(sizes, "data sizes"), _amounts(merges, "merge rates")
    if shares.shape != rates.shape:
        raise RoundError(f"{shares.size} data sizes for {rates.size} merge rates: give one of each per leader")
    usual = float(shares @ rates) / float(shares.sum())
    ratio = np.divide(usual, rates, out=np.zeros_like(rates), where=rates > 0.0)
    return np.minimum(cap, ratio)


def cluster_weights(
    sizes: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    merges: npt.ArrayLike | None = None,
    *,
    cap: float = RARITY_CAP,
    renormalise: bool = True,
) -> FloatArray:
    """Weights of the clusters in the weighted sum Σ w_i θ̄_i (Algorithm 4).

    w_i = size_i · rarity_i · s_i / Σ_j size_j · rarity_j · s_j. Without renormalisation, as the paper writes it, the
    denominator leaves out s_j: the weights then sum to less than one and the model shrinks.
    """
    factors = _amounts(multipliers, "s-factors")
    base = _amounts(sizes, "data sizes")
    if base.shape != factors.shape:
        raise RoundError(f"{base.size} data sizes for {factors.size} s-factors: give one of each per leader")
    if merges is not None:
        base = base * rarity(base, merges, cap)
    raw = base * factors
    total = float(raw.sum() if renormalise else base.sum())
    if total <= 0.0:
        raise RoundError("every cluster has weight 0: keep the present model and open the next round")
    return raw / total


def without_dominant(weights: Mapping[str, float]) -> dict[str, float]:
    """The weights with the same sum and none above half of it: a sum that one update dominates *is* that update.

    The largest becomes as large as all others together; a weight that is alone stays as it is.
    """
    total = sum(weights.values())
    largest = max(weights, key=lambda name: weights[name])
    others = total - weights[largest]
    if weights[largest] <= others or others <= 0.0:
        return dict(weights)
    bounded = {**weights, largest: others}
    return {name: weight * total / (2.0 * others) for name, weight in bounded.items()}


def _amounts(values: npt.ArrayLike, what: str) -> FloatArray:
    amounts = np.asarray(values, dtype=np.float64)
    if amounts.ndim != 1 or amounts.size == 0:
        raise RoundError(f"{what}: give one number per leader")
    if not np.isfinite(amounts).all() or (amounts < 0.0).any():
        raise RoundError(f"{what} must be finite and not negative: {amounts.tolist()}")
    return amounts
