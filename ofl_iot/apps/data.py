"""Records: whatever `samples` returns, checked and turned into arrays once, at the border."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

Array: TypeAlias = npt.NDArray[Any]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""Shapes of one record: those of its inputs, then that of its target."""

NOT_FINITE = "NaN or infinite"
_KINDS = "fiub"
"""Floating point, integers and truth values; texts and objects are not records."""


@dataclass(frozen=True)
class Records:
    """Records of one party: arrays with one row a record."""

    inputs: tuple[Array, ...]
    targets: Array
    set_aside: dict[str, int] = field(default_factory=dict)
    """Records or files that could not be used, by reason."""

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.targets)

    @property
    def shapes(self) -> Shapes:
        """Shapes of one record."""
        return (*(each.shape[1:] for each in self.inputs), self.targets.shape[1:])

    def take(self, rows: npt.NDArray[np.int64] | slice) -> Records:
        """Return some of the records."""
        return Records(tuple(each[rows] for each in self.inputs), self.targets[rows])

    def histogram(self) -> npt.NDArray[np.int64]:
        """Return how many records have each label; one number, all of them, where targets are no labels."""
        targets = self.targets
        if targets.ndim != 1 or targets.dtype.kind not in "iub" or not len(targets) or targets.min() < 0:
            return np.array([len(targets)], dtype=np.int64)
        if targets.max() >= 100_000:
            return np.unique(targets, return_counts=True)[1].astype(np.int64)
        return np.bincount(targets.astype(np.int64))


def joined(parts: list[Records]) -> Records:
    """Return the records of all parts, which have one shape, in order."""
    first = parts[0]
    inputs = tuple(_plain(np.concatenate([part.inputs[n] for part in parts])) for n in range(len(first.inputs)))
    aside: dict[str, int] = {}
    for part in parts:
        for reason, count in part.set_aside.items():
            aside[reason] = aside.get(reason, 0) + count
    return Records(inputs, _plain(np.concatenate([part.targets for part in parts])), aside)


def as_records(given: Any, *, what: str = "samples") -> Records:
    """Turn `(x, y)`, `x` alone or a map-style Dataset into records; those with NaN or infinity are set aside.

    ConfigError says what is wrong with values that are no records at all.
    """
    if isinstance(given, Records):
        return given
    if not isinstance(given, tuple | list) and hasattr(given, "__getitem__") and not hasattr(given, "shape"):
        given = _from_dataset(given, what)
    if isinstance(given, tuple | list) and len(given) == 2:
        inputs, targets = given
    elif hasattr(given, "shape"):
        inputs, targets = given, given
    else:
        raise ConfigError(f"{what} must return (x, y), x alone or a Dataset, not {_describe(given)}")
    several = inputs if isinstance(inputs, tuple) else (inputs,)
    arrays = tuple(_array(each, f"{what}: input {n}") for n, each in enumerate(several, 1))
    wanted = _array(targets, f"{what}: targets")
    if not arrays or any(len(each) != len(wanted) for each in arrays):
        counts = ", ".join(str(len(each)) for each in arrays)
        raise ConfigError(f"{what}: {counts} inputs for {len(wanted)} targets: each record needs both")
    return _finite(Records(arrays, wanted))


def fits(records: Records, shapes: Shapes) -> str:
    """Return why the records cannot stand beside others of these shapes; empty if they can."""
    if records.shapes == shapes:
        return ""
    mine, others = (", ".join("x".join(map(str, shape)) or "1" for shape in each) for each in (records.shapes, shapes))
    return f"records of shape {mine}, not {others}"


def _array(values: Any, what: str) -> Array:
    """Return a plain array: float32 for any floating point, int64 for integers but bytes."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"{what}: records of different shapes ({error})") from error
    if array.dtype.kind not in _KINDS:
        raise ConfigError(f"{what}: values of type {array.dtype}, not numbers")
    if array.ndim < 1:
        raise ConfigError(f"{what}: a single number, not an array with one row a record")
    return _plain(array)


def _plain(array: Array) -> Array:
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    return array if array.dtype in (np.uint8, np.bool_) else array.astype(np.int64, copy=False)


def _finite(records: Records) -> Records:
    good = np.ones(len(records), dtype=bool)
    for each in (*records.inputs, records.targets):
        if each.dtype.kind == "f":
            good &= np.isfinite(each).all(axis=tuple(range(1, each.ndim)))
    bad = int((~good).sum())
    if not bad:
        return records
    kept = records.take(np.flatnonzero(good))
    return Records(kept.inputs, kept.targets, {NOT_FINITE: bad})


def _from_dataset(dataset: Any, what: str) -> tuple[Any, Any]:
    """Read a map-style Dataset into arrays."""
    if not hasattr(dataset, "__len__"):
        raise ConfigError(f"{what}: a Dataset needs a length; streams are read by a Source of their own")
    pairs = [dataset[place] for place in range(len(dataset))]
    if not pairs:
        raise ConfigError(f"{what}: the Dataset is empty")
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise ConfigError(f"{what}: each item of a Dataset must be (input, target)")
    return _stacked([x for x, _ in pairs], what), _stacked([y for _, y in pairs], what)


def _stacked(values: list[Any], what: str) -> Any:
    if isinstance(values[0], tuple | list):
        return tuple(_stacked([value[n] for value in values], what) for n in range(len(values[0])))
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise ConfigError(f"{what}: records of different shapes ({error})") from error


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    return f"a {type(value).__name__}"
