"""What a training is asked for and what it reports: plain values, without PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ofl_iot.errors import ConfigError

Optimiser = Literal["sgd", "adam"]
EngineName = Literal["auto", "layers", "vmap", "loop"]
ENGINES: tuple[EngineName, ...] = ("auto", "layers", "vmap", "loop")
"""Values of `training.engine`."""


@dataclass(frozen=True)
class Job:
    """How a device trains once.

    A private training (`PrivateTrainer`) needs `clip_norm` C and `noise_multiplier` σ. Every step is one of
    record-level DP-SGD: each record enters the batch with probability `sampling_rate`, independently of the others;
    its gradient is scaled to a norm of at most C; the sum gets Gaussian noise of standard deviation σ·C in every
    coordinate and is divided by `batch_size`, a public constant. The optimiser works on the noisy mean, which costs
    no privacy.
    """

    steps: int
    batch_size: int
    """Records of a batch; under privacy the expected number, by which the noisy sum is divided."""
    learning_rate: float
    momentum: float = 0.0
    """Momentum of SGD, the first beta of Adam if positive."""
    optimiser: Optimiser = "sgd"
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    sampling_rate: float | None = None
    """Chance of each record to enter a batch; by default min(1, batch_size / number of records)."""

    def __post_init__(self) -> None:
        _require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        _require(self.batch_size >= 1, f"batch_size must be at least 1, not {self.batch_size}")
        _require(0 < self.learning_rate < math.inf, f"learning_rate must be positive, not {self.learning_rate}")
        _require(0 <= self.momentum < 1, f"momentum must be in [0, 1), not {self.momentum}")
        _require(self.optimiser in ("sgd", "adam"), f"optimiser must be 'sgd' or 'adam', not {self.optimiser!r}")
        if self.clip_norm is not None:
            _require(0 < self.clip_norm < math.inf, f"clip_norm must be positive and finite, not {self.clip_norm}")
        if self.noise_multiplier is not None:
            _require(
                0 <= self.noise_multiplier < math.inf,
                f"noise_multiplier must be 0 or positive and finite, not {self.noise_multiplier}",
            )
            _require(self.clip_norm is not None, "noise_multiplier needs clip_norm: noise hides only what is bounded")
        if self.sampling_rate is not None:
            _require(0 < self.sampling_rate <= 1, f"sampling_rate must be in (0, 1], not {self.sampling_rate}")

    def rate_for(self, count: int) -> float:
        """Return the chance of each of `count` records to enter a batch."""
        return min(1.0, self.batch_size / count) if self.sampling_rate is None else self.sampling_rate


@dataclass(frozen=True)
class Trained:
    """What a training did; `sampling_rate` and `noise_multiplier` are those used, None without privacy.

    Neither `loss` nor `skipped` is protected by noise: they must not leave the device.
    """

    steps: int
    sampling_rate: float | None
    noise_multiplier: float | None
    loss: float
    """Mean over the records visited, each before its step; 0 if none was visited."""
    engine: str
    skipped: int = 0
    """Visits of records whose gradient was not finite: they contributed nothing."""


def _require(holds: bool, sentence: str) -> None:  # noqa: FBT001 - a condition, not a switch
    if not holds:
        raise ConfigError(f"training job: {sentence}")
