"""The counting federation under real encryption: the tally's jobs, with the cryptographic ones for real.

The coordinator computes the scores, has the leaders open them and judges nobody; then it sums evenly, and what the
leaders open is the tally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ofl_agents.chaos.counting import FEDERATION, TallyToolbox
from ofl_iot.crypto.entropy import Entropy, SeededEntropy, SystemEntropy
from ofl_iot.jobs.coordinator_crypto import CoordinatorCrypto, _RoundInHand
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.jobs.lean_round import LeanCoordinator
from ofl_iot.jobs.toolbox import run_job
from ofl_iot.roles.events import Event, RoundAggregated
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, AnswerLean, BeginKeys, FinishKeys, MakeKeys, MakeSealingKey
from ofl_iot.roles.job_kinds.lean import FinishLean, OpenLean, PrepareLean, ScoreLean, WeighLean
from ofl_iot.roles.job_kinds.rounds import FinishRound, ProtectContribution, ScoreRound, WeighRound
from ofl_iot.roles.settings import ProtectionRules


class EvenCrypto(CoordinatorCrypto):
    """Decrypts the scores as in production, then gives every contribution the same weight."""

    def _judge(self, held: _RoundInHand, job: WeighRound) -> None:
        super()._judge(held, job)
        held.weights = dict.fromkeys(held.weights, 1 / len(held.weights))

    def finish(self, job: FinishRound) -> RoundAggregated:
        """Return the sum instead of the mean."""
        result = super().finish(job)
        return replace(result, update=result.update * np.float32(len(result.weights)))


class EvenLean(LeanCoordinator):
    """Gives every scored contribution of a lean round the same weight, and sums instead of averaging."""

    def whole_weights(self, weights: Mapping[str, float], pinned: Mapping[str, int]) -> dict[str, int]:
        """Return 1 for each contribution that is not signed for already."""
        return dict(pinned) or dict.fromkeys(weights, 1)

    def finish(self, job: FinishLean) -> RoundAggregated:
        """Return the sum instead of the mean."""
        result = super().finish(replace(job, weighed=replace(job.weighed, factor=float(len(job.weighed.whole)))))
        return replace(result, weights={leader: 1.0 for leader, weight in result.weights.items() if weight})


class CryptoToolbox:
    """The tally's jobs, the cryptographic ones for real."""

    def __init__(self, tally: TallyToolbox, seed: int | None, rules: ProtectionRules) -> None:
        """A `seed` makes secrets that repeat themselves, for virtual time; None takes the operating system's."""

        def entropy(more: int = 0) -> Entropy:
            return SystemEntropy() if seed is None else SeededEntropy(seed + more)

        self._tally = tally
        leading = LeaderCrypto(FEDERATION, rules, entropy())
        coordinating = EvenCrypto(FEDERATION, rules, entropy())
        leaning = EvenLean(FEDERATION, rules, entropy(1))
        self._tools: dict[type, Callable[[Any], Event]] = {
            MakeSealingKey: leading.make_sealing_key,
            BeginKeys: leading.begin_keys,
            FinishKeys: leading.finish_keys,
            AnswerDecryption: leading.answer,
            ProtectContribution: leading.protect,
            AnswerLean: leading.lean.answer,
            PrepareLean: leaning.prepare,
            ScoreLean: leaning.score,
            WeighLean: leaning.weigh,
            OpenLean: leaning.open,
            FinishLean: leaning.finish,
            MakeKeys: coordinating.make_keys,
            ScoreRound: coordinating.score,
            WeighRound: coordinating.weigh,
            FinishRound: coordinating.finish,
        }

    def run(self, job: Job) -> Event:
        """Run one job."""
        return run_job(self._tools, job) if type(job) in self._tools else self._tally.run(job)
