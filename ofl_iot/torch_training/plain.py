"""Training without privacy: the user's optimiser, schedule, augmentation or loop, or the library's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.data import Records, as_records, shuffled_rows
from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.job import Job, Trained
from ofl_iot.torch_training.losses import Loss
from ofl_iot.torch_training.optimisers import FlatOptimiser, optimiser_for
from ofl_iot.torch_training.session import check_finite, restored_on_failure, seeded

OptimiserFactory = Callable[[Iterable[nn.Parameter]], Any]
"""Makes a torch optimiser of parameters, such as `lambda params: torch.optim.AdamW(params, lr=1e-3)`."""
ScheduleFactory = Callable[[Any], Any]
"""Makes a learning rate scheduler of a torch optimiser; it is stepped after each step."""
Augment = Callable[..., Any]
"""augment(*inputs): the inputs of a batch, changed."""
OwnLoop = Callable[[nn.Module, Any, Any, Job], Any]
"""loop(module, inputs, targets, job): trains the module in place; may return its mean loss."""


class PlainTrainer:
    """Trains a model in place without privacy; statistics of BatchNorm change, and stay on this device."""

    def __init__(
        self,
        model: FlatModel,
        loss: Loss,
        *,
        optimiser: OptimiserFactory | None = None,
        schedule: ScheduleFactory | None = None,
        augment: Augment | None = None,
        loop: OwnLoop | None = None,
    ) -> None:
        if loop is not None and (optimiser or schedule or augment):
            raise ConfigError("a loop of your own brings its optimiser, schedule and augmentation along: give it alone")
        if schedule is not None and optimiser is None:
            raise ConfigError("a schedule needs a torch optimiser to work on: give optimiser=, too")
        self.model, self.loss = model, loss
        self._optimiser, self._schedule, self._augment, self._loop = optimiser, schedule, augment, loop

    @property
    def engine(self) -> str:
        """What trains, for the log: "plain", "torch optimiser" or "own loop"."""
        if self._loop is not None:
            return "own loop"
        return "plain" if self._optimiser is None else "torch optimiser"

    def probe(self, x: Any, y: Any) -> None:
        """Check that the records can be trained on at all; there is nothing to pay."""
        as_records(x, y)

    def train(
        self, x: Any, y: Any, job: Job, rng: np.random.Generator, progress: Callable[[int], None] | None = None
    ) -> Trained:
        """Train for `job.steps` steps; the result is finite, or the model is as before and ConfigError says why."""
        if job.clip_norm is not None or job.noise_multiplier is not None:
            raise ConfigError(
                "training job: this training has no privacy, so it takes no clip_norm or noise_multiplier"
            )
        records = as_records(x, y)
        with restored_on_failure(self.model), seeded(rng, self.model.flat.device):
            self.model.set_training()
            loss = self._descend(records, job, rng, progress) if self._loop is None else self._run_loop(records, job)
            check_finite(self.model, job)
        return Trained(job.steps, None, None, loss, self.engine)

    def _run_loop(self, records: Records, job: Job) -> float:
        assert self._loop is not None  # noqa: S101 - checked by the caller
        inputs = records.inputs if len(records.inputs) > 1 else records.inputs[0]
        loss = self._loop(self.model.module, inputs, records.targets, job)
        self.model.rebind()
        return 0.0 if loss is None else float(loss.detach() if isinstance(loss, Tensor) else loss)

    def _descend(
        self, records: Records, job: Job, rng: np.random.Generator, progress: Callable[[int], None] | None
    ) -> float:
        """Take all steps; return the mean loss."""
        step = self._torch_step() if self._optimiser is not None else self._flat_step(job)
        loss = 0.0
        for done, rows in enumerate(shuffled_rows(len(records), job.batch_size, job.steps, rng), 1):
            batch = records.take(torch.from_numpy(rows), self.model.flat.device)
            inputs = batch.inputs
            if self._augment is not None:
                changed = self._augment(*inputs)
                inputs = changed if isinstance(changed, tuple) else (changed,)
            with torch.enable_grad():
                value = self.loss(self.model.module(*inputs), batch.targets)
                value = value if value.dim() == 0 else value.mean()
            step(value)
            loss += float(value.detach())
            if progress is not None:
                progress(done)
        self.model.rebind()
        return loss / job.steps

    def _torch_step(self) -> Callable[[Tensor], None]:
        assert self._optimiser is not None  # noqa: S101 - checked by the caller
        optimiser = self._optimiser(list(self.model.params.values()))
        schedule = None if self._schedule is None else self._schedule(optimiser)

        def step(loss: Tensor) -> None:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if schedule is not None:
                schedule.step()

        return step

    def _flat_step(self, job: Job) -> Callable[[Tensor], None]:
        mean = torch.zeros_like(self.model.flat)
        optimiser: FlatOptimiser = optimiser_for(job, mean)
        params, views = list(self.model.params.values()), list(self.model.views(mean).values())

        def step(loss: Tensor) -> None:
            gradients = torch.autograd.grad(loss, params, allow_unused=True)
            with torch.no_grad():
                for gradient, view in zip(gradients, views, strict=True):
                    view.zero_() if gradient is None else view.copy_(gradient)
                optimiser.step(self.model.flat, mean)

        return step
