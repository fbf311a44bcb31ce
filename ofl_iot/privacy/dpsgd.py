"""The arithmetic of DP-SGD: one example can move a step by at most the clipping norm, and noise hides that it did.

    step = (sum_i g_i · min(1, C / ||g_i||) + N(0, (sigma · C)^2)) / expected batch size

over the examples i of a Poisson-sampled batch. The divisor is the expected size, because the actual one is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]
_Norms = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DenseFactors:
    """Per-example gradients of a dense layer as factors: example i has inputs_i ⊗ errors_i, its bias errors_i.

    The gradients themselves, batch × inputs × outputs numbers, never need to exist.
    """

    inputs: Matrix
    """batch × inputs: what the layer saw."""
    errors: Matrix
    """batch × outputs: the loss's derivative at the layer's outputs, for each example's own loss (not the mean)."""


def sample_batch(examples: int, sampling_rate: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A Poisson sample: each example is in it with chance `sampling_rate`, on its own; it may be empty."""
    if not 0 < sampling_rate <= 1:
        raise ConfigError(f"sampling_rate is {sampling_rate}: it must lie in (0, 1]")
    return np.flatnonzero(rng.random(examples) < sampling_rate)


def clipped_sum(gradients: Matrix, clip_norm: float) -> Vector:
    """Sum over the rows g_i of `gradients` (batch × parameters), each scaled to a norm of at most `clip_norm`."""
    squares = np.einsum("ij,ij->i", gradients, gradients, dtype=np.float64)
    total: Vector = _scales(squares, clip_norm) @ gradients
    return total


def clipped_sum_of_layers(layers: Sequence[DenseFactors], clip_norm: float) -> Vector:
    """The same from factors, flat: per layer the weights (inputs × outputs, row by row), then the biases.

    ||inputs_i ⊗ errors_i||² + ||errors_i||² = (||inputs_i||² + 1) · ||errors_i||²
    """
    squares: _Norms = np.zeros(len(layers[0].inputs) if layers else 0)
    for layer in layers:
        seen = np.einsum("ij,ij->i", layer.inputs, layer.inputs, dtype=np.float64)
        squares += (seen + 1) * np.einsum("ij,ij->i", layer.errors, layer.errors, dtype=np.float64)
    scales = _scales(squares, clip_norm)
    parts: list[Vector] = [np.empty(0, np.float32)]
    for layer in layers:
        errors = layer.errors * scales[:, np.newaxis]
        parts += [(layer.inputs.T @ errors).ravel(), errors.sum(axis=0)]
    return np.concatenate(parts)


def noisy_mean(
    total: Vector, clip_norm: float, noise_multiplier: float, expected_batch: float, rng: np.random.Generator
) -> Vector:
    """(total + N(0, (noise_multiplier · clip_norm)²)) / expected_batch: one private step's gradient."""
    if not (noise_multiplier >= 0 and expected_batch > 0):
        raise ConfigError(
            f"noise_multiplier = {noise_multiplier}, expected_batch = {expected_batch}: the first must not be "
            "negative, the second must be positive"
        )
    mean = rng.standard_normal(len(total), dtype=np.float32)
    mean *= np.float32(noise_multiplier * _positive(clip_norm))
    mean += total
    mean /= np.float32(expected_batch)
    return mean


def _scales(squares: _Norms, clip_norm: float) -> Vector:
    """min(1, C / norm) = C / max(norm, C) for each example."""
    if not np.isfinite(squares).all():
        raise ConfigError("an example's gradient is not finite: training diverged, lower the learning rate")
    scales: Vector = (_positive(clip_norm) / np.maximum(np.sqrt(squares), clip_norm)).astype(np.float32)
    return scales


def _positive(clip_norm: float) -> float:
    if not 0 < clip_norm < float("inf"):
        raise ConfigError(f"clip_norm is {clip_norm}: it must be positive and finite")
    return clip_norm
