"""Ways to train a network for some steps on one batch: plain, with privacy by this library, and by Opacus."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

from ofl_iot.torch_training.job import EngineName
from ofl_iot.torch_training.trainer import FlatModel, Job, PrivateTrainer
from ofl_research.benches.training_networks import made

CLIP, NOISE, RATE, MOMENTUM = 1.0, 1.0, 0.05, 0.9
OpacusMode = Literal["hooks", "functorch", "ghost"]


class Contender(Protocol):
    """Something that trains."""

    def train(self, x: Any, y: Any, steps: int) -> None:
        """Take some steps on one batch."""
        ...


class Plain:
    """Ordinary training, as everybody writes it."""

    def __init__(self, name: str) -> None:
        self._net = made(name)
        self._optimiser = torch.optim.SGD(self._net.parameters(), RATE, MOMENTUM)

    def train(self, x: Any, y: Any, steps: int) -> None:
        """Take some steps on one batch."""
        for _ in range(steps):
            self._optimiser.zero_grad()
            F.cross_entropy(self._net(x), y).backward()
            self._optimiser.step()


class Ours:
    """`PrivateTrainer` as agents use it, with every record in every batch; the probe is not measured."""

    def __init__(self, name: str, batch: tuple[Any, Any]) -> None:
        self._model = FlatModel(made(name), device="cpu")
        self._trainer = PrivateTrainer(self._model, F.cross_entropy)
        self._rng = np.random.default_rng(0)
        self.engine = self._trainer.probe(*batch).engine

    def train(self, x: Any, y: Any, steps: int) -> None:
        """Take some steps on one batch."""
        job = Job(steps, len(y), RATE, MOMENTUM, clip_norm=CLIP, noise_multiplier=NOISE, sampling_rate=1.0)
        self._trainer.train(x, y, job, self._rng)


def gap_to_loop(name: str, batch: tuple[Any, Any]) -> float:
    """Return how far our step without noise is from one record after the other, relative to the step."""
    steps = []
    engines: tuple[EngineName, ...] = ("auto", "loop")
    for engine in engines:
        model = FlatModel(made(name), device="cpu")
        before = model.vector.copy()
        trainer = PrivateTrainer(model, F.cross_entropy, engine)
        job = Job(1, len(batch[1]), 1.0, clip_norm=CLIP, noise_multiplier=0.0, sampling_rate=1.0)
        trainer.train(*batch, job, np.random.default_rng(0))
        steps.append((model.vector - before).astype(np.float64))
    return float(np.linalg.norm(steps[0] - steps[1]) / np.linalg.norm(steps[1]))


class Opacus:
    """Opacus 1.6 with its own recurrent and attention layers in place of torch's, and torch's noise."""

    def __init__(self, name: str, mode: OpacusMode) -> None:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from opacus.validators import ModuleValidator

        net = ModuleValidator.fix(made(name)).train()
        options: dict[str, Any] = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": 64}
        self._loss: Any = nn.CrossEntropyLoss()
        if mode == "ghost":
            self._net = GradSampleModuleFastGradientClipping(net, max_grad_norm=CLIP, use_ghost_clipping=True)
            self._optimiser = DPOptimizerFastGradientClipping(self._sgd(), **options)
            self._loss = DPLossFastGradientClipping(self._net, self._optimiser, self._loss, "mean")
        else:
            self._net = GradSampleModule(net, force_functorch=mode == "functorch")
            self._optimiser = DPOptimizer(self._sgd(), **options)

    def _sgd(self) -> Any:
        return torch.optim.SGD(self._net.parameters(), RATE, MOMENTUM)

    def train(self, x: Any, y: Any, steps: int) -> None:
        """Take some steps on one batch."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks that torch will treat otherwise some day
            for _ in range(steps):
                self._optimiser.zero_grad()
                self._loss(self._net(x), y).backward()
                self._optimiser.step()
