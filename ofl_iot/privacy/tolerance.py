"""The learning rate of a plan, from how an untrained model answers to random inputs. No record is looked at.

    rate = min(36, 4 / curvature, deviation / noise of the whole plan at a rate of 1)

`curvature`: largest eigenvalue of the mean outer product of gradients of random records; steepest descent with momentum
0.9 is stable up to 2 (1 + 0.9) / curvature. `deviation`: the noise that every parameter bears until outputs change by
`MOST_CHANGE`. A linear head on inputs of length 1 learns at 36, one hidden layer at about a fifth of it, the paper's
convolutional network at a hundredth. Every party finds the same, because it depends on nobody's data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LARGEST_RATE = 36.0
STABLE = 4.0
"""Learning rate times curvature that is still stable."""
MOST_CHANGE = 1.0
"""Root mean square change of the outputs, in units of a logit or of a target."""
INPUTS = 64
"""Random records that the untrained model is shown."""
_LOWEST, _HIGHEST = 1e-6, 1e2
_CLOSE = 1.05
_TINY = 1e-12

Numbers = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Tolerance:
    """What an untrained model bears."""

    deviation: float
    """Noise of each parameter."""
    curvature: float

    def rate(self, noise_a_rate: float) -> float:
        """Return the learning rate for a plan whose noise has a deviation of `noise_a_rate` at a rate of 1."""
        stable = STABLE / max(self.curvature, _TINY)
        return min(LARGEST_RATE, stable, self.deviation / max(noise_a_rate, _TINY))


HEAD = Tolerance(deviation=MOST_CHANGE, curvature=STABLE / LARGEST_RATE)
"""Tolerance of a linear head on inputs of length 1."""
DEEP = Tolerance(deviation=0.04, curvature=16.0)
"""Tolerance that is supposed of a network that cannot be asked: that of the paper's convolutional network."""


def deviation_borne(outputs_at: Callable[[float], Numbers]) -> float:
    """Return the noise that a model bears; `outputs_at(s)` has s times one fixed draw of noise on the parameters."""
    still = outputs_at(0.0)

    def change(deviation: float) -> float:
        with np.errstate(all="ignore"):
            moved = float(np.sqrt(np.mean(np.square(outputs_at(deviation) - still, dtype=np.float64))))
        return moved if math.isfinite(moved) else math.inf

    low, high = _LOWEST, _HIGHEST
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if change(middle) <= MOST_CHANGE else (low, middle)
    return low


def curvature_of(gradients: Numbers) -> float:
    """Return the largest eigenvalue of the mean outer product of gradients, one a row."""
    return float(np.linalg.eigvalsh(gradients @ gradients.T / len(gradients))[-1])
