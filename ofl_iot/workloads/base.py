"""What every workload offers: a model as one flat vector, trained and judged on its own samples."""

from __future__ import annotations

import math
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

Vector: TypeAlias = npt.NDArray[np.float32]
"""All parameters of a model, one after the other."""


class TrainJob(msgspec.Struct, frozen=True, kw_only=True):
    """How a device trains once.

    Without `clip_norm` the samples are visited in shuffled epochs, `batch_size` at a time. With `clip_norm`
    C (a public constant) every step is one of record-level DP-SGD: each sample enters the batch with
    probability q = min(1, batch_size / sample_count), independently of the others; its gradient is scaled to
    a norm of at most C; the sum gets Gaussian noise of standard deviation `noise_multiplier` · C in every
    coordinate and is divided by `batch_size`, which depends neither on the draw nor on how many
    samples there are. This is Poisson subsampling, not batches of fixed size: for it accountants
    state the amplification exactly, with
    neighbours that differ by one added or removed record.
    """

    steps: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    clip_norm: float | None = None
    noise_multiplier: float = 0.0
    sampling_rate: float = 0.0
    """With `clip_norm`: q itself, where it must not depend on how many samples there are; 0 = by `batch_size`."""
    noise_a_rate: float = 0.0
    """Of a plan: deviation by which its noise moves each parameter at a learning rate of 1; 0 = the rate is given."""

    def __post_init__(self) -> None:
        _require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        _require(self.batch_size >= 1, f"batch_size must be at least 1, not {self.batch_size}")
        _require(0 < self.learning_rate < math.inf, f"learning_rate must be positive, not {self.learning_rate}")
        _require(0 <= self.momentum < 1, f"momentum must be in [0, 1), not {self.momentum}")
        _require(
            0 <= self.noise_multiplier < math.inf,
            f"noise_multiplier must be 0 or positive, not {self.noise_multiplier}",
        )
        _require(0 <= self.sampling_rate <= 1, f"sampling_rate must be in [0, 1], not {self.sampling_rate}")
        if self.clip_norm is not None:
            _require(0 < self.clip_norm < math.inf, f"clip_norm must be positive, not {self.clip_norm}")
        elif self.noise_multiplier > 0:
            raise ConfigError("train job: noise_multiplier needs clip_norm, noise hides only what is bounded")


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """What training yields.

    `loss` is the mean over the samples visited, each before its step (0 if the draw visited none); it is not
    protected by noise, so it must not leave the device. `sampling_rate` is q, the chance of a sample to enter
    one step, for the accountant.
    """

    params: Vector
    loss: float
    steps: int
    sampling_rate: float


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """How well a model does on `count` samples: share of right answers, mean loss, and whatever else is measured."""

    accuracy: float
    loss: float
    count: int
    metrics: dict[str, float] | None = None
    """By name; None for models that are judged by accuracy alone."""

    @property
    def measured(self) -> dict[str, float]:
        """Everything that was measured, by name; nothing without samples."""
        metrics = {"accuracy": self.accuracy} if self.metrics is None else self.metrics
        return {**metrics, "loss": self.loss} if self.count else {}


class Workload(Protocol):
    """A model, its loss and one party's samples."""

    @property
    def name(self) -> str:
        """What is learned, for people."""
        ...

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify the architecture: equal if and only if vectors can be exchanged."""
        ...

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    @property
    def sample_count(self) -> int:
        """Number of this party's samples."""
        ...

    def initial(self, seed: int) -> Vector:
        """Return untrained parameters, the same for the same seed."""
        ...

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params`; the result is finite, or ConfigError says why it cannot be.

        `rng` shuffles, samples and draws the noise: where privacy matters, seed it from the operating system.
        """
        ...

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on this party's samples."""
        ...

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's samples have each label."""
        ...


@runtime_checkable
class LiveWorkload(Protocol):
    """A workload whose samples may come and go while the device runs."""

    @property
    def live(self) -> bool:
        """Whether they do."""
        ...


def is_live(workload: Workload) -> bool:
    """Whether a device must look at its samples before each training."""
    return isinstance(workload, LiveWorkload) and workload.live


def _require(holds: bool, sentence: str) -> None:  # noqa: FBT001 - a condition, not a switch
    if not holds:
        raise ConfigError(f"train job: {sentence}")
