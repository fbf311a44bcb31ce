"""Training with privacy for any module: sampling, clipping, noise and optimiser are the library's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import CipherNoise
from ofl_iot.torch_training.data import Records, Signature, as_records, poisson_rows
from ofl_iot.torch_training.device import fast_cipher
from ofl_iot.torch_training.engines import Engine, Loop
from ofl_iot.torch_training.flat import FlatModel, ModelCard
from ofl_iot.torch_training.job import ENGINES, EngineName, Job, Trained
from ofl_iot.torch_training.losses import Loss
from ofl_iot.torch_training.optimisers import optimiser_for
from ofl_iot.torch_training.plain import PlainTrainer
from ofl_iot.torch_training.probe import Findings, probe
from ofl_iot.torch_training.session import check_finite, keep_freed_memory, restored_on_failure, seeded
from ofl_iot.torch_training.taps import UnsupportedError

__all__ = ["FlatModel", "Job", "ModelCard", "PlainTrainer", "PrivateTrainer", "Trained"]

Progress = Callable[[int], None]
"""Called after each step with the number of steps done."""


class PrivateTrainer:
    """Trains a model in place by DP-SGD or DP-Adam, as `Job` says.

    `engine` forces one of "layers", "vmap" and "loop" (setting `training.engine`); "auto" takes what the probe finds.
    `noise` is for simulations that repeat themselves; by default it is keyed by the operating system.
    """

    def __init__(
        self, model: FlatModel, loss: Loss, engine: EngineName = "auto", noise: CipherNoise | None = None
    ) -> None:
        if engine not in ENGINES:
            raise ConfigError(f"training.engine is {engine!r}: use one of {', '.join(ENGINES)}")
        keep_freed_memory()
        self.model, self.loss = model, loss
        self._wanted: EngineName = engine
        self._noise = CipherNoise(algorithm=fast_cipher()) if noise is None else noise
        self._probed: tuple[Signature, Engine] | None = None

    def probe(self, x: Any, y: Any) -> Findings:
        """Check, before anything is paid, that records stay apart, and choose the engine; ConfigError says why not."""
        records = as_records(x, y)
        engine, findings = probe(self.model, self.loss, records, self._wanted)
        self._probed = records.signature, engine
        return findings

    def train(self, x: Any, y: Any, job: Job, rng: np.random.Generator, progress: Progress | None = None) -> Trained:
        """Train for `job.steps` steps; the result is finite, or the model is as before and ConfigError says why.

        `rng` samples the batches: seed it from the operating system where privacy matters (`noise_generator`).
        Records of a shape or type that was not probed are probed first.
        """
        if job.clip_norm is None or job.noise_multiplier is None:
            raise ConfigError("training job: a private training needs clip_norm and noise_multiplier")
        records = as_records(x, y)
        engine = self._engine_for(records)
        rate = job.rate_for(len(records))
        descent = _Descent(self.model, engine, records, job.clip_norm)
        with restored_on_failure(self.model), seeded(rng, self.model.flat.device), _unchanged_buffers(self.model):
            self.model.set_training()
            optimiser = optimiser_for(job, descent.total)
            for step in range(1, job.steps + 1):
                descent.sum_clipped(poisson_rows(len(records), rate, rng))
                self._add_noise(descent.total, job.noise_multiplier * job.clip_norm)
                with torch.no_grad():
                    optimiser.step(self.model.flat, descent.total.div_(job.batch_size))
                if progress is not None:
                    progress(step)
            check_finite(self.model, job)
        return Trained(job.steps, rate, job.noise_multiplier, descent.mean_loss, engine.name, descent.skipped)

    def _engine_for(self, records: Records) -> Engine:
        if self._probed is None or self._probed[0] != records.signature:
            engine, _ = probe(self.model, self.loss, records, self._wanted)
            self._probed = records.signature, engine
        return self._probed[1]

    def _add_noise(self, total: Tensor, deviation: float) -> None:
        if total.device.type == "cpu":
            self._noise.add_to(total.numpy(), deviation)
            return
        drawn = np.zeros(len(total), np.float32)
        self._noise.add_to(drawn, deviation)
        total.add_(torch.from_numpy(drawn).to(total.device))


class _Descent:
    """Clipped sums of one training, and what they tell on the way."""

    def __init__(self, model: FlatModel, engine: Engine, records: Records, clip_norm: float) -> None:
        self.total = torch.zeros_like(model.flat)
        self.skipped = 0
        self._engine, self._records, self._clip_norm = engine, records, clip_norm
        self._loop = Loop(model, engine.losses.loss)
        self._loss, self._counted = 0.0, 0

    @property
    def mean_loss(self) -> float:
        """Mean over the records that counted."""
        return self._loss / max(1, self._counted)

    def sum_clipped(self, rows: npt.NDArray[np.int64]) -> None:
        """Write the sum of the clipped gradients of some rows into `total`, a micro-batch at a time."""
        self.total.zero_()
        size = self._engine.micro_batch
        for start in range(0, len(rows), size):
            batch = self._records.take(torch.from_numpy(rows[start : start + size]), self.total.device)
            try:
                done = self._engine.add_clipped(self.total, batch.inputs, batch.targets, self._clip_norm)
            except UnsupportedError:  # a way that the probe did not meet; nothing was added yet
                done = self._loop.add_clipped(self.total, batch.inputs, batch.targets, self._clip_norm)
            counted = done.losses[done.squares.isfinite()]
            self._loss += float(counted.sum())
            self._counted += len(counted)
            self.skipped += len(batch) - len(counted)


@contextlib.contextmanager
def _unchanged_buffers(model: FlatModel) -> Iterator[None]:
    """Refuse a training that left traces of records in buffers, which no noise covers; put the buffers back."""
    before = {name: value.clone() for name, value in model.module.named_buffers()}
    changed: list[str] = []
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in model.module.named_buffers():
                if name in before and not torch.equal(value, before[name]):
                    changed.append(name)
                    value.copy_(before[name])
    if changed:
        raise ConfigError(f"{changed[0]} changes when records pass through: it would carry them on without noise")
