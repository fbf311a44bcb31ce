"""Metrics: functions of outputs and targets with a direction, for arrays and for tensors alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

Better: TypeAlias = Literal["higher", "lower"]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A function `(outputs, targets) -> number` and which way is better; call it as the function."""

    function: Callable[[Any, Any], Any]
    better: Better = "higher"

    def __call__(self, outputs: Any, targets: Any) -> float:
        """Return the metric's value as a plain number."""
        return float(self.function(outputs, targets))


def metric(better: Better) -> Callable[[Callable[[Any, Any], Any]], Metric]:
    """Make a metric of a function: `@metric("lower")`."""
    return lambda function: Metric(function, better)


def as_metrics(given: Mapping[str, Callable[[Any, Any], Any]]) -> dict[str, Metric]:
    """Return the metrics by name; a plain function counts as "higher is better"."""
    for name, function in given.items():
        if not name or not callable(function):
            raise ConfigError(f"metrics: {name!r} must be the name of a function (outputs, targets) -> number")
    return {name: each if isinstance(each, Metric) else Metric(each) for name, each in given.items()}


def as_array(values: Any) -> Floats:
    """Return float64 values of an array or of a tensor on any device."""
    for step in ("detach", "cpu", "numpy"):
        values = getattr(values, step)() if hasattr(values, step) else values
    return np.asarray(values, dtype=np.float64)


def _pair(outputs: Any, targets: Any) -> tuple[Floats, Floats]:
    """Return outputs and targets in one shape: (n, 1) and (n,) are the same predictions."""
    made, wanted = as_array(outputs), as_array(targets)
    if made.shape != wanted.shape and made.size == wanted.size:
        made = made.reshape(wanted.shape)
    if made.shape != wanted.shape:
        raise ConfigError(f"outputs of shape {made.shape} cannot be compared with targets of shape {wanted.shape}")
    return made, wanted


@metric("higher")
def accuracy(outputs: Any, targets: Any) -> float:
    """Return the share of right answers: the largest of several outputs, or the sign of a single one."""
    scores, wanted = as_array(outputs), as_array(targets)
    if scores.ndim > 1 and scores.shape[1] > 1:
        chosen = scores.argmax(axis=1)
        wanted = wanted.argmax(axis=1) if wanted.shape == scores.shape else wanted
    else:
        chosen, wanted = (scores.reshape(len(scores)) > 0).astype(np.int64), wanted.reshape(len(scores))
    return float((chosen == wanted).mean())


@metric("lower")
def mse(outputs: Any, targets: Any) -> float:
    """Return the mean squared error."""
    made, wanted = _pair(outputs, targets)
    return float(np.square(made - wanted).mean())


@metric("lower")
def mae(outputs: Any, targets: Any) -> float:
    """Return the mean absolute error."""
    made, wanted = _pair(outputs, targets)
    return float(np.abs(made - wanted).mean())


@metric("higher")
def r2(outputs: Any, targets: Any) -> float:
    """Return 1 - (squared error) / (variance of the targets); 0 for targets that do not vary."""
    made, wanted = _pair(outputs, targets)
    spread = np.square(wanted - wanted.mean(axis=0)).sum()
    return float(1 - np.square(made - wanted).sum() / spread) if spread > 0 else 0.0


@metric("higher")
def auc(outputs: Any, targets: Any) -> float:
    """Return the area under the ROC curve of one score a record: P(positive above negative), ties count half.

    Two outputs a record are taken as classes, the second one positive. Without both kinds of targets it is 0.5.
    """
    scores, wanted = as_array(outputs), as_array(targets).ravel() > 0
    if scores.ndim > 1 and scores.shape[1] == 2:
        scores = scores[:, 1] - scores[:, 0]
    scores = scores.ravel()
    if scores.shape != wanted.shape:
        raise ConfigError(f"auc needs one score a record, not {scores.size} for {wanted.size} targets")
    positives, negatives = int(wanted.sum()), int((~wanted).sum())
    if not positives or not negatives:
        return 0.5
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[wanted].sum() - positives * (positives + 1) / 2) / (positives * negatives))
