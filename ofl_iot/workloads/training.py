"""What all models share when they train: which parameters they accept, how batches are drawn, what is divergence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.tolerance import HEAD, Tolerance
from ofl_iot.workloads.base import TrainJob, Vector

Rows = npt.NDArray[np.int64]


def checked(params: Vector, size: int) -> Vector:
    """Return a copy to work on, or ConfigError if `params` cannot be a state of a model of this size."""
    if params.shape != (size,) or params.dtype != np.float32:
        raise ConfigError(
            f"the model has {size} float32 parameters, not {params.dtype} of shape {params.shape}: "
            "all parties of a federation must use the same model"
        )
    if not np.isfinite(params).all():
        raise ConfigError("the parameters given are not all finite: start from another model")
    return np.array(params)


def check_converged(params: Vector, job: TrainJob) -> None:
    """Refuse a result that is not finite."""
    if not np.isfinite(params).all():
        raise ConfigError(f"training diverged (learning rate {job.learning_rate}, momentum {job.momentum}): lower them")


def at_rate_of(job: TrainJob, tolerance: Tolerance) -> TrainJob:
    """Return a planned job with the learning rate that a model of this tolerance bears; any other as it is."""
    if not job.noise_a_rate:
        return job
    return msgspec.structs.replace(job, learning_rate=tolerance.rate(job.noise_a_rate), noise_a_rate=0.0)


def for_head(job: TrainJob, length: float, tolerance: Tolerance = HEAD) -> TrainJob:
    """Return a planned job for a linear head on inputs of this length, any other as it is.

    It is that of inputs of length 1: gradients are `length` times as long, so are clipping and noise, and parameters
    move in steps that are so much shorter. Short steps fit the range of encrypted sums.
    """
    if not job.noise_a_rate:
        return job
    head = at_rate_of(job, tolerance)
    return msgspec.structs.replace(
        head, clip_norm=(head.clip_norm or 1.0) * length, learning_rate=head.learning_rate / length**2
    )


def sampling_rate(rows: Rows, job: TrainJob) -> float:
    """The chance q of a row to enter one step."""
    if not len(rows):
        raise ConfigError("no samples to train on: give this party data")
    return job.sampling_rate or min(1.0, job.batch_size / len(rows))


def batches(rows: Rows, job: TrainJob, rng: np.random.Generator) -> Iterator[Rows]:
    """The rows of each step, drawn as `TrainJob` says."""
    return _epochs(rows, job, rng) if job.clip_norm is None else _poisson(rows, job, rng)


def _epochs(rows: Rows, job: TrainJob, rng: np.random.Generator) -> Iterator[Rows]:
    """Batches of equal size from shuffled passes over all rows; always all rows if one batch holds them."""
    if len(rows) <= job.batch_size:
        return itertools.repeat(rows, job.steps)
    passes = -(-job.steps * job.batch_size // len(rows))
    order = np.concatenate([rng.permutation(rows) for _ in range(passes)])
    return iter(order[: job.steps * job.batch_size].reshape(job.steps, job.batch_size))


def _poisson(rows: Rows, job: TrainJob, rng: np.random.Generator) -> Iterator[Rows]:
    """Batches that each row enters with probability q; their size varies and may be 0."""
    rate = sampling_rate(rows, job)
    return (rows[rng.random(len(rows)) < rate] for _ in range(job.steps))
