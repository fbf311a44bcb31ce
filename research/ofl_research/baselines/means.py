"""The sums that all baselines share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_research.baselines.letters import Vector


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Σ w_i·v_i / Σ w_i, the paper's Eq. 2 with w_i = |D_i|; accumulated in float64."""
    total = float(np.sum(weights))
    if not vectors or len(vectors) != len(weights) or not 0 < total < np.inf or min(weights) < 0:
        raise ConfigError(f"a mean of {len(vectors)} vectors with the weights {list(weights)[:8]} does not exist")
    mean = np.zeros(len(vectors[0]))
    for vector, weight in zip(vectors, weights, strict=True):
        mean += vector * (weight / total)
    return mean.astype(np.float32)


def mixed(model: Vector, news: Vector, share: float) -> Vector:
    """(1 - a)·θ + a·θ_k: an asynchronous server takes a share `a` of what arrives."""
    if not 0 <= share <= 1:
        raise ConfigError(f"a model is mixed in with a share in [0, 1], not {share}")
    mixture: Vector = model + np.float32(share) * (news - model)
    return mixture


def staleness_share(alpha: float, lag: int, exponent: float) -> float:
    """a = alpha·(lag + 1)^(-exponent): the polynomial discount of asynchronous averaging."""
    return float(alpha * (lag + 1) ** -exponent)
