"""What every training shares: repeatable randomness, and a model that is as before if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.job import Job


@contextlib.contextmanager
def restored_on_failure(model: FlatModel) -> Iterator[None]:
    """Put the parameters back if the block raises."""
    before = model.flat.clone()
    try:
        yield
    except BaseException:
        with torch.no_grad():
            model.rebind()
            model.flat.copy_(before)
        raise


@contextlib.contextmanager
def seeded(rng: np.random.Generator, model: FlatModel) -> Iterator[None]:
    """Seed torch's generator (dropout, augmentation) from `rng` for the block; never used for noise."""
    device = model.flat.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(rng.integers(1 << 62)))
        yield


def check_finite(model: FlatModel, job: Job) -> None:
    """Refuse a result that is not finite."""
    if not bool(model.flat.isfinite().all()):
        raise ConfigError(
            f"training diverged (learning rate {job.learning_rate}, momentum {job.momentum}): lower them, and check "
            "that inputs and the loss are finite"
        )
