"""Records as tensors: what a network takes and what it should answer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ofl_iot.errors import ConfigError

Signature = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Records:
    """Inputs, one tensor for each argument of the network, and targets; records are their first dimension."""

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def signature(self) -> Signature:
        """Shape and type of one record: a probe holds for records of the same signature."""
        return tuple((tuple(value.shape[1:]), value.dtype) for value in (*self.inputs, self.targets))

    def take(self, rows: Any, device: torch.device | None = None) -> Records:
        """Return some records, on a device."""
        inputs = tuple(value[rows].to(device) for value in self.inputs)
        return Records(inputs, self.targets[rows].to(device))


def as_records(x: Any, y: Any) -> Records:
    """Return arrays or tensors (a tuple or list of them if the network takes several) as records, or ConfigError."""
    inputs = tuple(map(_as_tensor, x)) if isinstance(x, list | tuple) else (_as_tensor(x),)
    targets = _as_tensor(y)
    if targets.dtype == torch.uint8:
        targets = targets.long()
    counts = {len(value) if value.dim() else -1 for value in (*inputs, targets)}
    if len(counts) != 1 or -1 in counts:
        raise ConfigError(f"inputs and targets have {sorted(counts)} records: give as many targets as inputs")
    if not len(targets):
        raise ConfigError("no records to train on: give this device data")
    return Records(inputs, targets)


def _as_tensor(value: Any) -> Tensor:
    """A tensor of float32, of bytes or of 64-bit integers, which are what layers and losses take."""
    try:
        tensor = value.detach() if isinstance(value, Tensor) else _from_array(np.ascontiguousarray(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"records must be arrays or tensors of numbers, not {type(value).__name__}") from error
    if tensor.is_floating_point():
        return tensor.to("cpu", torch.float32)
    return tensor.cpu() if tensor.dtype in (torch.uint8, torch.bool) or tensor.is_complex() else tensor.cpu().long()


def _from_array(array: npt.NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that cannot be written, such as mapped files: nobody writes them
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def poisson_rows(count: int, rate: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw the rows of one private step: each with probability `rate`; there may be none."""
    return np.flatnonzero(rng.random(count) < rate)


def shuffled_rows(count: int, batch_size: int, steps: int, rng: np.random.Generator) -> Sequence[npt.NDArray[np.int64]]:
    """Draw the rows of all steps without privacy: shuffled passes over all records, batches of equal size."""
    size = min(batch_size, count)
    passes = -(-steps * size // count)
    order = np.concatenate([rng.permutation(count) for _ in range(passes)])
    return list(order[: steps * size].reshape(steps, size))
