"""A whole federation under real encryption and under faults: what was released is in the model, once, to the bound.

As in the tally, each device owns one parameter. The coordinator computes the scores on ciphertext, decrypts them with
the leaders and judges nobody; then it sums evenly, on ciphertext, and what the leaders decrypt is the tally.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.roles.commands import (
    AnswerDecryption,
    BeginKeys,
    FinishKeys,
    FinishRound,
    Job,
    MakeKeys,
    MakeSealingKey,
    ProtectContribution,
    ScoreRound,
    Tell,
    WeighRound,
)
from ofl_iot.roles.events import ContributionProtected, Event, RoundAggregated
from ofl_iot.roles.rules import ProtectionRules
from ofl_iot.runtime.threshold import CoordinatorCrypto, LeaderCrypto, _RoundInHand
from ofl_iot.runtime.toolbox import Toolbox, run_job
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.tally import FEDERATION, TallyToolbox, TallyWorld

STEP = 1 / 64
"""Small enough that an update of many trainings can be scored, and exact in float32."""

ROUGH = Faults(
    latency_s=(0.005, 0.2),
    duplicate=0.2,
    lose_under_way=0.7,
    forget_queue=0.5,
    mean_connected_s=20.0,
    mean_away_s=3.0,
    mean_alive_s=40.0,
    mean_dead_s=4.0,
    crash_between_commands=0.001,
)


class EvenCrypto(CoordinatorCrypto):
    """Decrypts the scores as in production, then gives every contribution the same weight."""

    def _judge(self, held: _RoundInHand, job: WeighRound) -> None:
        super()._judge(held, job)
        held.weights = dict.fromkeys(held.weights, 1 / len(held.weights))

    def finish(self, job: FinishRound) -> RoundAggregated:
        result = super().finish(job)
        return replace(result, update=result.update * np.float32(len(result.weights)))


class CryptoToolbox:
    """The tally's jobs, the cryptographic ones for real."""

    def __init__(self, tally: TallyToolbox, seed: int, rules: ProtectionRules) -> None:
        self._tally = tally
        leader = LeaderCrypto(FEDERATION, rules, SeededEntropy(seed))
        coordinator = EvenCrypto(FEDERATION, rules, SeededEntropy(seed))
        self._tools = {
            MakeSealingKey: leader.make_sealing_key,
            BeginKeys: leader.begin_keys,
            FinishKeys: leader.finish_keys,
            AnswerDecryption: leader.answer,
            ProtectContribution: lambda job: ContributionProtected(job.round_no, leader.protect(job)),
            MakeKeys: coordinator.make_keys,
            ScoreRound: coordinator.score,
            WeighRound: coordinator.weigh,
            FinishRound: coordinator.finish,
        }

    def run(self, job: Job) -> Event:
        return run_job(self._tools, job) if type(job) in self._tools else self._tally.run(job)


@dataclass
class EncryptedWorld(TallyWorld):
    step: float = STEP
    protection: ProtectionRules = field(
        default_factory=lambda: ProtectionRules(
            s_factor="mean", key_deadline_s=10.0, decryption_deadline_s=6.0, resend_s=1.5
        )
    )
    failures: Counter[str] = field(default_factory=Counter)
    closed: Counter[bool] = field(default_factory=Counter)
    """Rounds opened, by whether they were encrypted."""

    def __post_init__(self) -> None:
        self.listener = self._listen
        super().__post_init__()

    def coordinator_toolbox(self) -> Toolbox:
        return CryptoToolbox(TallyToolbox(self.devices, None, self), 1000 * self.seed, self.protection)

    def device_toolbox(self, slot: int) -> Toolbox:
        tally = TallyToolbox(self.devices, slot, self)
        return CryptoToolbox(tally, 1000 * self.seed + slot + 1, self.protection)

    def _listen(self, _name: str, told: Tell, _now: float) -> None:
        if told.what in ("job failed", "key work failed", "contribution failed"):
            self.failures[str(told.fields["reason"])] += 1
        elif told.what == "round open":
            self.closed[bool(told.fields["encrypted"])] += 1

    def books(self) -> float:
        """The largest difference between the model and the sum of the chunks that the coordinator holds settled."""
        assert self.coordinator is not None
        worst = 0.0
        for slot, name in enumerate(self.names):
            settled = self.coordinator.roster.devices[name].settled
            tally = sum(value for seq, value in self.released(name).items() if seq in settled)
            worst = max(worst, abs(float(self.coordinator.model[slot]) - tally))
        return worst

    def come_to_rest(self, *, limit_s: float) -> bool:
        """No more faults; devices go on, for a cluster that speaks alone is not heard. All of the past is settled."""
        due = {name: max(self.released(name), default=0) for name in self.names}
        for party in self.world.parties.values():
            party.faults = None

        def settled() -> bool:
            devices = self.coordinator.roster.devices if self.coordinator else {}
            return all(name in devices and devices[name].settled.upto >= seq for name, seq in due.items())

        return self.world.run(settled, limit_s=self.world.now + limit_s)
