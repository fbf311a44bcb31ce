"""The models of `NumpyApp`: a dense network, logistic and linear regression."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ofl_iot.apps.app import NumpyApp
from ofl_iot.apps.data import Records
from ofl_iot.apps.runner import TrainReport
from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import noise_generator
from ofl_iot.privacy.tolerance import INPUTS, Tolerance, curvature_of, deviation_borne
from ofl_iot.protocol.model_card import ModelCard, TensorCard
from ofl_iot.workloads.base import TrainJob, Vector
from ofl_iot.workloads.dense import DenseNet, Samples
from ofl_iot.workloads.training import at_rate_of

_AT_ONCE = 1000


class NumpyModel:
    """A dense network whose parameters live in a vector that is given."""

    notes: tuple[str, ...] = ()

    def __init__(self, app: NumpyApp) -> None:
        widths = (app.inputs, *app.hidden, app.outputs)
        self._net = DenseNet(widths, "linear" if app.network == "linear" else "softmax")
        self._vector: Vector = np.zeros(self._net.size, np.float32)
        self._samples: tuple[Records, Samples] | None = None
        tensors = tuple(
            TensorCard(f"layer{number}", (inputs + 1, outputs))
            for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), 1)
        )
        loss = "mean squared error" if app.network == "linear" else "cross-entropy"
        self.card = ModelCard(app=app.name, tensors=tensors, loss=loss, version=app.version)
        self.size = self._net.size

    def bind(self, vector: Vector) -> None:
        """Let the parameters live in `vector`."""
        self._vector = vector

    def initial(self, seed: int) -> None:
        """Write untrained parameters."""
        self._vector[:] = self._net.initial(seed)

    def probe(self, records: Records, *, private: bool) -> tuple[str, ...]:
        """Refuse records that do not fit the network."""
        del private
        self._prepared(records)
        return ()

    def train(
        self, records: Records, job: TrainJob, entropy: bytes | None, progress: Callable[[], None]
    ) -> TrainReport:
        """Train in place."""
        samples = self._prepared(records)
        job = at_rate_of(job, self._tolerance)
        result = self._net.train(self._vector, samples, np.arange(len(records)), job, noise_generator(entropy))
        progress()
        self._vector[:] = result.params
        return TrainReport(result.steps, result.sampling_rate, result.loss)

    @functools.cached_property
    def _tolerance(self) -> Tolerance:
        """What the untrained network bears, on random inputs."""
        net, rng = self._net, np.random.default_rng(0)
        start, noise = net.initial(0), rng.standard_normal(net.size, dtype=np.float32)
        inputs = rng.standard_normal((INPUTS, net.widths[0]), dtype=np.float32)
        if net.output == "linear":
            shown = Samples.of(inputs, rng.standard_normal((INPUTS, net.widths[-1]), dtype=np.float32))
        else:
            shown = Samples.of(inputs, rng.integers(0, net.widths[-1], INPUTS))
        borne = deviation_borne(lambda s: net.outputs(start + np.float32(s) * noise, shown.features))
        return Tolerance(borne, curvature_of(np.stack([net.gradient(start, shown, row) for row in range(INPUTS)])))

    def outputs(self, records: Records) -> tuple[Any, Any, float]:
        """Return outputs, targets in the same form, and the mean loss."""
        samples = self._prepared(records)
        outputs = np.concatenate(
            [
                self._net.outputs(self._vector, samples.features[start : start + _AT_ONCE])
                for start in range(0, len(records), _AT_ONCE)
            ]
        )
        return outputs, samples.labels, self._net.loss(outputs, samples.labels)

    def _prepared(self, records: Records) -> Samples:
        """Return the records as the network takes them; those of the last call are remembered."""
        if self._samples is None or self._samples[0] is not records:
            self._samples = records, self._as_samples(records)
        return self._samples[1]

    def _as_samples(self, records: Records) -> Samples:
        inputs, outputs = self._net.widths[0], self._net.widths[-1]
        features = np.concatenate([each.reshape(len(records), -1) for each in records.inputs], axis=1)
        if features.shape[1] != inputs:
            raise ConfigError(f"records have {features.shape[1]} numbers, the network takes {inputs}")
        targets = records.targets
        if self._net.output == "linear":
            rows = targets.reshape(len(records), -1).astype(np.float32)
            if rows.shape[1] != outputs:
                raise ConfigError(f"targets have {rows.shape[1]} numbers, the network predicts {outputs}")
            return Samples.of(features.astype(np.float32), rows)
        if targets.ndim != 1 or targets.dtype.kind not in "iub":
            raise ConfigError(f"targets must be one class number a record, not {targets.dtype} of {targets.shape}")
        if len(targets) and not 0 <= targets.min() <= targets.max() < outputs:
            raise ConfigError(f"classes must be 0 to {outputs - 1}, not {targets.min()} to {targets.max()}")
        return Samples.of(features.astype(np.float32), targets.astype(np.int64))
