"""The distinguishing game against the product's own private training: with a canary record and without it.

The canary is alone in one input feature and its gradient is longer than the clipping norm, so what it adds to the
weights of that feature is all that a record can add. The score is that change, along the direction of its push.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ofl_iot.privacy.accountant import epsilon, noise_multiplier_for
from ofl_iot.privacy.audit import AuditResult, judge, play
from ofl_iot.privacy.events import Budget, DpSgdSteps
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.dense import DenseNet, Samples

NETWORKS: Mapping[str, tuple[int, ...]] = {
    "linear": (4, 2),
    "one hidden layer": (4, 8, 2),
    "two hidden layers": (4, 8, 8, 2),
}
"""Widths of the layers of the networks that play."""
_RECORDS = 50
_SMALL = 1e-3
"""A learning rate with which the canary pushes the same way in every step."""
_LOUD = 50.0
"""The canary's only feature: far beyond the clipping norm."""


@dataclass(frozen=True)
class Game:
    """One configuration to be audited."""

    budget: Budget
    clip_norm: float
    sampling_rate: float
    steps: int
    noise_share: float = 1.0
    """Share of the planned noise that is really added: below 1 only to see that the game notices."""


def audit(network: str, game: Game, runs: int, rng: np.random.Generator) -> AuditResult:
    """Play with one network; the noise is what the accountant plans for the budget."""
    noise = noise_multiplier_for(game.budget, game.sampling_rate, game.steps)
    claimed = epsilon([DpSgdSteps(noise, game.sampling_rate, game.steps)], game.budget.delta)
    net = DenseNet(NETWORKS[network])
    start = net.initial(0)
    samples, push = _loudest_canary(net, start)
    job = TrainJob(
        steps=game.steps,
        batch_size=max(1, round(game.sampling_rate * _RECORDS)),
        learning_rate=_SMALL,
        clip_norm=game.clip_norm,
        noise_multiplier=noise * game.noise_share,
    )

    def run(present: bool) -> float:  # noqa: FBT001  # the world
        rows = np.arange(_RECORDS + int(present))
        trained = net.train(start, samples, rows, job, rng).params
        return float(np.dot(trained - start, push))

    without, with_canary = play(run, runs)
    return judge(without, with_canary, claimed, game.budget.delta, gaussian=game.sampling_rate == 1)


def _records(features: int, canary_label: int) -> Samples:
    """Ordinary records that leave the last feature alone, then the canary."""
    rng = np.random.default_rng(0)
    values = np.zeros((_RECORDS + 1, features), np.float32)
    values[:_RECORDS, :-1] = rng.normal(scale=0.5, size=(_RECORDS, features - 1))
    values[_RECORDS, -1] = _LOUD
    labels = rng.integers(0, 2, _RECORDS + 1).astype(np.int64)
    labels[_RECORDS] = canary_label
    return Samples.of(values, labels)


def _loudest_canary(net: DenseNet, start: np.ndarray) -> tuple[Samples, np.ndarray]:
    """The records with the canary under the label that the untrained network denies most, and its push, of length 1."""
    job = TrainJob(steps=1, batch_size=1, learning_rate=_SMALL, clip_norm=1.0)
    best, push = _records(net.widths[0], 0), np.zeros_like(start)
    for label in (0, 1):
        samples = _records(net.widths[0], label)
        alone = net.train(start, samples, np.array([_RECORDS]), job, np.random.default_rng(0)).params - start
        if np.linalg.norm(alone) > np.linalg.norm(push):
            best, push = samples, alone
    return best, push / np.linalg.norm(push)
