"""What every training shares: repeatable randomness, and a model that is as before if it fails."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import torch

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.job import Job

_LARGEST_LEARNED_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MB that a step frees for the next step.

    By default glibc returns it to the system after each step, and a fifth of a step goes into page faults. It raises
    the limit to twice the largest block, of up to 32 MB, that it saw freed; this one is never touched.
    """
    torch.empty(_LARGEST_LEARNED_BYTES, dtype=torch.uint8)


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
def seeded(rng: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Seed torch's generators (dropout, augmentation) from `rng` for the block; they are never used for noise."""
    generators = _generators(device)
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:  # not torch.manual_seed, which keeps a stack trace for each call
            generator.manual_seed(int(rng.integers(1 << 62)))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    return [torch.default_generator, torch.cuda.default_generators[device.index or 0]]


def check_finite(model: FlatModel, job: Job) -> None:
    """Refuse a result that is not finite."""
    if not math.isfinite(float(model.flat.sum())):  # one number that is not finite makes the sum so
        raise ConfigError(
            f"training diverged (learning rate {job.learning_rate}, momentum {job.momentum}): lower them, and check "
            "that inputs and the loss are finite"
        )
