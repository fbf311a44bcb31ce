"""Fully connected networks in plain numpy: rectified hidden layers; softmax output with cross-entropy, or linear output
with the mean squared error.

Each layer's weights have one more row than inputs, the bias, and every batch of activations one more column
of ones. So a layer is one matrix product, a gradient is written straight into its place in the flat vector,
and a step ends in operations on that vector as a whole.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.training import Rows, batches, check_converged, checked, sampling_rate

Matrix = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Targets = Labels | Matrix
Output = Literal["softmax", "linear"]


class Samples(msgspec.Struct, frozen=True):
    """Read-only samples: `features` with a last column of ones, and a label (or a row of numbers) for each row."""

    features: Matrix
    labels: Any

    @classmethod
    def of(cls, inputs: Matrix, labels: Targets) -> Samples:
        """Add the column of ones and protect the arrays from changes."""
        ones = np.ones((len(inputs), 1), dtype=np.float32)
        features, labels = np.hstack([inputs, ones], dtype=np.float32), labels.copy()
        features.setflags(write=False)
        labels.setflags(write=False)
        return cls(features, labels)


class DenseNet(msgspec.Struct, frozen=True):
    """A network given by the widths of its layers: inputs, hidden layers if any, classes."""

    widths: tuple[int, ...]
    output: Output = "softmax"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shape of each layer's weights with the bias as last row."""
        return [(inputs + 1, outputs) for inputs, outputs in itertools.pairwise(self.widths)]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(rows * columns for rows, columns in self.shapes)

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify the architecture."""
        text = f"dense relu {self.output} " + "-".join(map(str, self.widths))
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    def initial(self, seed: int) -> Vector:
        """Draw weights from N(0, 2 / inputs), of the output layer from N(0, 1 / inputs); biases are 0."""
        rng = np.random.default_rng(seed)
        params = np.zeros(self.size, dtype=np.float32)
        layers = self.layers(params)
        for weights in layers:
            inputs, outputs = len(weights) - 1, weights.shape[1]
            gain = 1.0 if weights is layers[-1] else 2.0
            weights[:-1] = rng.normal(0.0, np.sqrt(gain / inputs), (inputs, outputs))
        return params

    def layers(self, vector: Vector) -> list[Matrix]:
        """View a flat vector as the weights of each layer."""
        views, start = [], 0
        for rows, columns in self.shapes:
            views.append(vector[start : start + rows * columns].reshape(rows, columns))
            start += rows * columns
        return views

    def evaluate(self, params: Vector, features: Matrix, labels: Targets) -> Evaluation:
        """Judge `params` on samples; accuracy is 0 where nothing is classified."""
        if not len(labels):
            raise ConfigError("no samples to evaluate on: give this party data")
        outputs = self.outputs(params, features)
        hits = np.count_nonzero(outputs.argmax(axis=1) == labels) if self.output == "softmax" else 0
        return Evaluation(accuracy=float(hits / len(labels)), loss=self.loss(outputs, labels), count=len(labels))

    def outputs(self, params: Vector, features: Matrix) -> Matrix:
        """Return what the last layer gives for samples that end in a one: logits, or predicted numbers."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _forward(self.layers(checked(params, self.size)), features)[-1]

    def loss(self, outputs: Matrix, labels: Targets) -> float:
        """Return the mean loss of outputs: cross-entropy in nats, or the mean squared error."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _losses(self.output, outputs.copy(), labels)[0] / len(labels)

    def gradient(self, params: Vector, samples: Samples, row: int) -> Vector:
        """Return the gradient of one sample's loss."""
        params, gradient = checked(params, self.size), np.empty(self.size, np.float32)
        features, labels = samples.features[row : row + 1], samples.labels[row : row + 1]
        _sum_gradients(self.layers(params), self.layers(gradient), features, labels, None, output=self.output)
        return gradient

    def train(
        self, params: Vector, samples: Samples, rows: Rows, job: TrainJob, rng: np.random.Generator
    ) -> TrainResult:
        """Train a copy of `params` on some rows of the samples by (DP-)SGD as `TrainJob` says."""
        rate = sampling_rate(rows, job)
        params = checked(params, self.size)
        gradient, velocity = np.empty_like(params), np.zeros_like(params)
        layers, gradients = self.layers(params), self.layers(gradient)
        loss, seen = 0.0, 0
        with np.errstate(over="ignore", invalid="ignore"):
            for batch in batches(rows, job, rng):
                features, labels = samples.features.take(batch, axis=0), samples.labels.take(batch, axis=0)
                loss += _sum_gradients(layers, gradients, features, labels, job.clip_norm, output=self.output)
                seen += len(batch)
                if job.clip_norm is None:
                    gradient /= len(batch)
                else:
                    if job.noise_multiplier:
                        noise = rng.standard_normal(self.size, dtype=np.float32)
                        gradient += np.float32(job.noise_multiplier * job.clip_norm) * noise
                    gradient /= job.batch_size
                velocity *= job.momentum
                velocity += gradient
                params -= np.float32(job.learning_rate) * velocity
        check_converged(params, job)
        return TrainResult(params=params, loss=loss / max(1, seen), steps=job.steps, sampling_rate=rate)


def _forward(layers: list[Matrix], features: Matrix) -> list[Matrix]:
    """Return the inputs of every layer, each with its column of ones, and last the logits."""
    activations = [features]
    for weights in layers[:-1]:
        hidden = np.empty((len(features), weights.shape[1] + 1), dtype=np.float32)
        np.maximum(activations[-1] @ weights, 0.0, out=hidden[:, :-1])
        hidden[:, -1] = 1.0
        activations.append(hidden)
    return [*activations, activations[-1] @ layers[-1]]


def _softmax(logits: Matrix) -> Matrix:
    """Turn logits into probabilities, in place."""
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def _losses(output: Output, outputs: Matrix, labels: Any) -> tuple[float, Matrix]:
    """Return the summed loss of a batch and, in place of the outputs, the errors at them."""
    if output == "linear":
        outputs -= labels
        loss = float(np.square(outputs, dtype=np.float64).mean(axis=1).sum())
        outputs *= np.float32(2 / outputs.shape[1])
        return loss, outputs
    error = _softmax(outputs)
    own = (np.arange(len(labels)), labels)
    loss = -float(np.log(np.maximum(error[own], np.finfo(np.float32).tiny)).sum())
    error[own] -= 1.0
    return loss, error


def _sum_gradients(
    layers: list[Matrix],
    gradients: list[Matrix],
    features: Matrix,
    labels: Any,
    clip_norm: float | None,
    *,
    output: Output = "softmax",
) -> float:
    """Write the samples' gradients, each clipped if asked, summed into `gradients`; return the summed loss.

    A sample's gradient of a layer is the outer product of the layer's input a and the error d at its output,
    so its squared norm over all layers is Σ |a|²·|d|² and no gradient of a single sample is ever formed.
    """
    *inputs, outputs = _forward(layers, features)
    loss, error = _losses(output, outputs, labels)
    errors = [error]
    for weights, hidden in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        error = (error @ weights[:-1].T) * (hidden[:, :-1] > 0.0)
        errors.insert(0, error)
    if clip_norm is not None:
        squares = sum(_row_squares(a) * _row_squares(d) for a, d in zip(inputs, errors, strict=True))
        scale = np.float32(clip_norm) / np.maximum(np.sqrt(squares), np.float32(clip_norm))
        errors = [error * scale[:, None] for error in errors]
    for target, activation, error in zip(gradients, inputs, errors, strict=True):
        np.matmul(activation.T, error, out=target)
    return loss


def _row_squares(matrix: Matrix) -> Vector:
    squares: Vector = np.einsum("ij,ij->i", matrix, matrix)
    return squares
