"""Privacy events: what was done that costs privacy, as data. The accountant says what they cost together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from ofl_iot.errors import ConfigError


@dataclass(frozen=True)
class DpSgdSteps:
    """`steps` of DP-SGD: Poisson-sampled batches, clipped per-example gradients, Gaussian noise."""

    noise_multiplier: float
    """Standard deviation of the noise over the clipping norm."""
    sampling_rate: float
    """Chance of each example to be in a batch."""
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise ConfigError(f"noise_multiplier is {self.noise_multiplier}: it must be positive and finite")
        if not 0 < self.sampling_rate <= 1:
            raise ConfigError(f"sampling_rate is {self.sampling_rate}: it must lie in (0, 1]")
        if self.steps < 0:
            raise ConfigError(f"{self.steps} steps: there cannot be fewer than none")


@dataclass(frozen=True)
class PaperRelease:
    """`parameters` values that left in the paper's mode: picked with eps1, perturbed with eps2, each."""

    eps1: float
    eps2: float
    parameters: int

    def __post_init__(self) -> None:
        if not (self.eps1 > 0 and self.eps2 > 0):
            raise ConfigError(f"eps1 = {self.eps1}, eps2 = {self.eps2}: both must be positive")
        if self.parameters < 0:
            raise ConfigError(f"{self.parameters} parameters: there cannot be fewer than none")

    @property
    def epsilon(self) -> float:
        """gamma · |theta| · (eps1 + eps2), the sum of lemmas 1 and 2."""
        return self.parameters * (self.eps1 + self.eps2)


@dataclass(frozen=True)
class Unprotected:
    """`trainings` whose results may leave without any protection (mode `off`): their epsilon is infinite."""

    trainings: int

    def __post_init__(self) -> None:
        if self.trainings < 0:
            raise ConfigError(f"{self.trainings} trainings: there cannot be fewer than none")


Event: TypeAlias = "DpSgdSteps | PaperRelease | Unprotected"


@dataclass(frozen=True)
class Budget:
    """What a device may spend in its life: (epsilon, delta)-DP for each of its training examples."""

    epsilon: float
    """Infinity: nothing is refused, the total is only reported."""
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ConfigError(f"a budget of epsilon = {self.epsilon}: it must be zero or more")
        if not 0 < self.delta < 1:
            raise ConfigError(f"a budget of delta = {self.delta}: it must lie between 0 and 1")
