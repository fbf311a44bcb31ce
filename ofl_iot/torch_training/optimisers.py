"""SGD with momentum and Adam on a flat vector: importing torch.optim costs 70 MB and a second, this nothing."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ofl_iot.torch_training.job import Job

_ADAM_BETAS = (0.9, 0.999)
_ADAM_EPS = 1e-8


class FlatOptimiser(Protocol):
    """Moves a vector along a mean gradient."""

    def step(self, vector: Tensor, mean: Tensor) -> None:
        """Change `vector` in place."""
        ...


class Sgd:
    """v ← μ·v + g; w ← w - η·v."""

    def __init__(self, job: Job, like: Tensor) -> None:
        self._rate, self._momentum = job.learning_rate, job.momentum
        self._velocity = torch.zeros_like(like) if job.momentum else None

    def step(self, vector: Tensor, mean: Tensor) -> None:
        """Change `vector` in place."""
        direction = mean if self._velocity is None else self._velocity.mul_(self._momentum).add_(mean)
        vector.add_(direction, alpha=-self._rate)


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1); its first beta is the job's momentum if that is positive."""

    def __init__(self, job: Job, like: Tensor) -> None:
        self._rate, self._steps = job.learning_rate, 0
        self._betas = job.momentum or _ADAM_BETAS[0], _ADAM_BETAS[1]
        self._first, self._second = torch.zeros_like(like), torch.zeros_like(like)

    def step(self, vector: Tensor, mean: Tensor) -> None:
        """Change `vector` in place."""
        self._steps += 1
        beta, other = self._betas
        self._first.lerp_(mean, 1 - beta)
        self._second.mul_(other).addcmul_(mean, mean, value=1 - other)
        deviation = (self._second / (1 - other**self._steps)).sqrt_().add_(_ADAM_EPS)
        vector.addcdiv_(self._first, deviation, value=-self._rate / (1 - beta**self._steps))


def optimiser_for(job: Job, like: Tensor) -> FlatOptimiser:
    """Return the optimiser that a job asks for."""
    return Adam(job, like) if job.optimiser == "adam" else Sgd(job, like)
