"""Tensor by tensor: how large it is, and how far two models are apart."""

from __future__ import annotations

import msgspec
import numpy as np

from ofl_iot.models.named import Array, NamedTensors


class TensorRow(msgspec.Struct, frozen=True):
    """One tensor of a model."""

    name: str
    shape: tuple[int, ...]
    norm: float
    smallest: float
    largest: float


class DifferenceRow(msgspec.Struct, frozen=True):
    """One tensor of two models; only one of them may have it, or with another shape."""

    name: str
    said: str
    """In words, why they cannot be compared; empty if they can."""
    change: float = 0.0
    """||b - a|| / ||a||; ||b|| if a is zero."""
    largest: float = 0.0
    """Largest difference of a single value."""


def describe(named: NamedTensors) -> list[TensorRow]:
    """Return one row a tensor."""
    return [
        TensorRow(
            name,
            tensor.shape,
            _norm(tensor),
            float(tensor.min()) if tensor.size else 0.0,
            float(tensor.max()) if tensor.size else 0.0,
        )
        for name, tensor in named.tensors.items()
    ]


def compare(first: NamedTensors, second: NamedTensors) -> list[DifferenceRow]:
    """Return one row for every tensor that one of the models has."""
    return [_row(name, first, second) for name in dict.fromkeys([*first.tensors, *second.tensors])]


def _row(name: str, first: NamedTensors, second: NamedTensors) -> DifferenceRow:
    if name not in second.tensors:
        return DifferenceRow(name, "only in the first")
    if name not in first.tensors:
        return DifferenceRow(name, "only in the second")
    a, b = first.tensors[name], second.tensors[name]
    if a.shape != b.shape:
        return DifferenceRow(name, f"{'x'.join(map(str, a.shape))} and {'x'.join(map(str, b.shape))}")
    apart = b.astype(np.float64) - a.astype(np.float64)
    return DifferenceRow(name, "", _norm(apart) / (_norm(a) or 1.0), float(np.abs(apart).max(initial=0.0)))


def _norm(tensor: Array) -> float:
    return float(np.linalg.norm(tensor.astype(np.float64).reshape(-1)))
