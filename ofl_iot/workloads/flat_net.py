"""Networks whose layers are views into one flat vector: how they are trained and judged, whatever their layers are.

There is no model object: a thousand devices in a process need the vectors that they train, and nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import CipherNoise
from ofl_iot.privacy.tolerance import DEEP
from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.training import Rows, at_rate_of, batches, check_converged, checked, sampling_rate
from ofl_iot.workloads.with_torch import load_torch

Tensor: TypeAlias = Any
"""PyTorch ships no types that hold without it."""
Labels: TypeAlias = npt.NDArray[np.int64]
Shapes: TypeAlias = Sequence[tuple[int, ...]]
"""Shapes of the weights and the biases of each layer in turn."""

_JUDGED_AT_ONCE = 1000


class Passed(msgspec.Struct, frozen=True):
    """What went into a layer and came out of it, before rectification, for each sample of a batch."""

    inputs: Any
    outputs: Tensor


def size_of(shapes: Shapes) -> int:
    """Number of parameters."""
    return sum(math.prod(shape) for shape in shapes)


def digest_of(kind: str, shapes: Shapes) -> bytes:
    """Eight bytes that identify an architecture."""
    return hashlib.blake2b(f"{kind} {list(shapes)}".encode(), digest_size=8).digest()


def layers_of(vector: Tensor, shapes: Shapes) -> list[Tensor]:
    """View a flat vector as the weights and biases of each layer."""
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(shape) for part, shape in zip(vector.split(sizes), shapes, strict=True)]


def descend(
    params: Vector,
    rows: Rows,
    job: TrainJob,
    rng: np.random.Generator,
    *,
    shapes: Shapes,
    sum_gradients: Callable[[list[Tensor], list[Tensor], Rows], float],
) -> TrainResult:
    """Train a copy of `params` on some rows by (DP-)SGD as `TrainJob` says.

    `sum_gradients(layers, gradients, batch)` writes the sum of the (clipped) gradients of a batch and returns the
    sum of its losses.
    """
    torch = load_torch()
    job = at_rate_of(job, DEEP)
    rate, size = sampling_rate(rows, job), size_of(shapes)
    trained = checked(params, size)
    flat, gradient, velocity = torch.from_numpy(trained), torch.zeros(size), torch.zeros(size)
    layers, gradients = layers_of(flat, shapes), layers_of(gradient, shapes)
    noise = CipherNoise.seeded(rng) if job.noise_multiplier else None
    loss, seen = 0.0, 0
    for batch in batches(rows, job, rng):
        loss += sum_gradients(layers, gradients, batch)
        seen += len(batch)
        if noise is not None and job.clip_norm is not None:
            noise.add_to(gradient.numpy(), job.noise_multiplier * job.clip_norm)
        count = len(batch) if job.clip_norm is None else job.batch_size
        velocity.mul_(job.momentum).add_(gradient, alpha=1 / count)
        flat.add_(velocity, alpha=-job.learning_rate)
    check_converged(trained, job)
    return TrainResult(params=trained, loss=loss / max(1, seen), steps=job.steps, sampling_rate=rate)


def judge(
    params: Vector,
    rows: Rows,
    labels: Labels,
    *,
    shapes: Shapes,
    logits_of: Callable[[list[Tensor], Rows], Tensor],
) -> Evaluation:
    """Judge `params` on some rows, given what the layers make of a batch of them."""
    if not len(rows):
        raise ConfigError("no samples to evaluate on: give this party data")
    torch = load_torch()
    loss, hits = 0.0, 0
    with torch.inference_mode():
        layers = layers_of(torch.from_numpy(checked(params, size_of(shapes))), shapes)
        for start in range(0, len(rows), _JUDGED_AT_ONCE):
            batch = rows[start : start + _JUDGED_AT_ONCE]
            wanted, logits = torch.from_numpy(labels[batch]), logits_of(layers, batch)
            loss += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
            hits += int((logits.argmax(1) == wanted).sum())
    return Evaluation(accuracy=hits / len(rows), loss=loss / len(rows), count=len(rows))


def clipping(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """By what to scale each gradient so that its norm is at most `clip_norm`."""
    return clip_norm / squared_norms.sqrt().clamp(min=clip_norm)


def dense_squares(inputs: Tensor, error: Tensor) -> Tensor:
    """Each sample's squared norm of a dense layer's gradient, the outer product of (input, 1) and error."""
    return (inputs.square().sum(1) + 1) * error.square().sum(1)
