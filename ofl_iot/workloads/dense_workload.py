"""What a party trains with a dense network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.dense import DenseNet, Samples
from ofl_iot.workloads.training import Rows


class DenseWorkload:
    """A dense network on some rows of the samples; the arrays are shared by all workloads of a process."""

    def __init__(self, name: str, net: DenseNet, samples: Samples, rows: Rows | None = None) -> None:
        """Use the given rows of the samples, or all of them."""
        self._net = net
        self._samples = samples
        self._rows = np.arange(len(samples.labels)) if rows is None else rows
        self.name = f"{name} " + "-".join(map(str, net.widths))
        self.digest = net.digest
        self.size = net.size
        self.sample_count = len(self._rows)

    def initial(self, seed: int) -> Vector:
        """Return untrained parameters, the same for the same seed."""
        return self._net.initial(seed)

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on this party's rows."""
        return self._net.train(params, self._samples, self._rows, job, rng)

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on this party's rows."""
        return self._net.evaluate(params, self._samples.features[self._rows], self._samples.labels[self._rows])

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's samples belong to each class."""
        return np.bincount(self._samples.labels[self._rows], minlength=self._net.widths[-1])
