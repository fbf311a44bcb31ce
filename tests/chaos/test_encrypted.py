"""A whole federation under real encryption and under faults: what was released is in the model, once, to the bound.

As in the tally, each device owns one parameter. The coordinator computes the scores on ciphertext, decrypts them with
the leaders and judges nobody; then it sums evenly, on ciphertext, and what the leaders decrypt is the tally.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.noise import error_bound
from ofl_iot.crypto.params import parameter_set
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
from ofl_iot.roles.events import ContributionProtected, Event, JobFailed, RoundAggregated
from ofl_iot.roles.rules import ProtectionRules, RoundRules
from ofl_iot.runtime.coordinator_crypto import CoordinatorCrypto, _RoundInHand
from ofl_iot.runtime.leader_crypto import LeaderCrypto
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


PROTECTION = ProtectionRules(s_factor="mean", key_deadline_s=10.0, decryption_deadline_s=6.0, resend_s=1.5)
RARELY = RoundRules(interval_s=2.0, deadline_s=8.0, recluster_every=50)


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
    protection: ProtectionRules = PROTECTION
    failures: Counter[str] = field(default_factory=Counter)
    opened_in: Counter[bool] = field(default_factory=Counter)
    """Rounds of several clusters, by whether they were encrypted."""

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
        elif told.what == "round open" and int(str(told.fields["leaders"])) > 1:
            self.opened_in[bool(told.fields["encrypted"])] += 1

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

    def decrypting(self, stage: str) -> bool:
        """Whether the coordinator waits for shares of a stage."""
        held = self.coordinator._rounds._decryption if self.coordinator else None
        return held is not None and held._exchange is not None and held._stage == stage

    def making_a_key(self) -> set[str]:
        """The leaders, present or to come, that were called to make a key."""
        opened = self.coordinator._rounds._keys._opened if self.coordinator else None
        return {member.leader for member in opened.members} if opened else set()

    def leaders(self) -> list[str]:
        assert self.coordinator is not None
        return sorted(self.coordinator.roster.terms)

    def completed(self) -> int:
        return self.coordinator.counter.completed if self.coordinator else 0

    def opened(self) -> int:
        return self.coordinator.counter.opened if self.coordinator else 0


def bound(rounds: int, leaders: int) -> float:
    """The decrypted mean errs by at most the bound in each round, and the tally is the mean times the leaders."""
    return rounds * leaders * error_bound(parameter_set("main"), leaders, leaders)


def quiet(seed: int = 0, **rules: object) -> EncryptedWorld:
    """Three clusters on a network without faults, with their key made."""
    return EncryptedWorld(
        devices=8,
        seed=seed,
        faults=Faults(),
        rounds=RARELY,
        protection=msgspec.structs.replace(PROTECTION, **rules),
    )


@pytest.mark.parametrize("block", range(3))
def test_what_was_released_is_in_the_decrypted_model_once(block: int) -> None:
    for seed in range(4 * block, 4 * block + 4):
        fleet = EncryptedWorld(devices=8, seed=seed, faults=ROUGH)
        fleet.world.run(lambda: False, limit_s=60.0)
        assert fleet.come_to_rest(limit_s=300.0), f"seed {seed} does not come to rest"
        assert fleet.coordinator is not None
        assert fleet.books() < bound(fleet.completed(), 4), f"seed {seed}: the model is not the sum of what is settled"
        assert bound(fleet.completed(), 4) < STEP / 2, "the bound must tell a lost chunk"
        assert fleet.coordinator.doubled_chunks == 0
        assert fleet.opened_in[True] > 0
        assert not fleet.opened_in[False], f"seed {seed}: a round with several clusters was opened in the clear"
        assert not fleet.failures, f"seed {seed}"


def test_the_faults_really_happen() -> None:
    told: Counter[str] = Counter()
    for seed in range(4):
        fleet = EncryptedWorld(devices=8, seed=seed, faults=ROUGH)
        fleet.world.run(lambda: False, limit_s=60.0)
        told += fleet.world.told
    for what in ("key generation failed", "leader replaced", "round closed"):
        assert told[what] > 0, what


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_coordinator_killed_while_leaders_decrypt_closes_the_same_round_after_its_restart(stage: str) -> None:
    fleet = quiet()
    assert fleet.world.run(lambda: fleet.decrypting(stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.crash(fleet.world.parties["coordinator"], for_s=2.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    assert not fleet.world.told["round abandoned"]
    assert fleet.books() < bound(fleet.completed(), 3)


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_leader_that_vanishes_while_it_decrypts_does_not_stop_the_round(stage: str) -> None:
    fleet = quiet()
    assert fleet.world.run(lambda: fleet.decrypting(stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.cut(fleet.world.parties[fleet.leaders()[0]], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    assert fleet.books() < bound(fleet.completed(), 3)


def test_with_too_few_leaders_left_the_round_is_abandoned_and_a_later_one_closes() -> None:
    fleet = quiet(threshold="all")
    assert fleet.world.run(lambda: fleet.decrypting("model"), limit_s=60.0)
    before, lost = fleet.completed(), fleet.leaders()[0]
    fleet.world.cut(fleet.world.parties[lost], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 120.0)
    assert fleet.world.told["round abandoned"] == 1
    assert fleet.world.told["leader replaced"] == 1
    assert lost not in fleet.leaders()
    assert fleet.books() < bound(fleet.completed(), 3)


def test_a_leader_missing_while_the_key_is_made_is_replaced_and_the_key_made_anew() -> None:
    fleet = quiet()
    told = fleet.world.told
    assert fleet.world.run(lambda: told["key generation begins"] == 1, limit_s=60.0)
    lost = fleet.leaders()[1]
    fleet.world.cut(fleet.world.parties[lost], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > 0, limit_s=fleet.world.now + 60.0)
    assert told["leader replaced"] == 1
    assert lost not in fleet.leaders()
    assert told["key generation begins"] >= 2
    assert told["joint key ready"] == 1


def test_every_term_has_a_key_of_its_own_and_has_it_before_the_term_before_ends() -> None:
    fleet = EncryptedWorld(devices=8, seed=1, faults=Faults())
    told = fleet.world.told
    for term in range(2, 6):
        assert fleet.world.run(lambda term=term: told["clustered"] == term, limit_s=fleet.world.now + 60.0)
        assert told["joint key ready"] == term, "the last one is of the term that begins"
    assert told["key generation begins"] == 5
    assert told["round abandoned"] == 0


def test_leaders_to_come_who_do_not_make_a_key_do_not_come_into_office() -> None:
    fleet = EncryptedWorld(devices=8, seed=1, faults=Faults())
    told = fleet.world.told
    assert fleet.world.run(lambda: told["key generation begins"] == 2, limit_s=120.0)
    assert told["clustered"] == 1
    office = fleet.leaders()
    newcomer = fleet.world.parties[min(fleet.making_a_key() - set(office))]
    fleet.world.cut(newcomer, for_s=500.0)
    assert fleet.world.run(lambda: told["clustered"] == 2, limit_s=fleet.world.now + 60.0)
    assert newcomer.name not in fleet.leaders()
    assert told["key generation failed"] >= 1
    completed = fleet.completed()
    assert fleet.world.run(lambda: fleet.completed() > completed, limit_s=fleet.world.now + 60.0)


class Mute(CryptoToolbox):
    """A leader that contributes and cannot decrypt."""

    def run(self, job: Job) -> Event:
        return JobFailed("AnswerDecryption", "no share") if isinstance(job, AnswerDecryption) else super().run(job)


@pytest.mark.parametrize("threshold", ["majority", "all"])
def test_a_leader_that_contributes_but_never_decrypts_is_replaced(threshold: str) -> None:
    fleet = quiet(threshold=threshold)
    assert fleet.world.run(lambda: fleet.world.told["joint key ready"] == 1, limit_s=60.0)
    mute = fleet.leaders()[0]
    fleet.world.parties[mute].toolbox = Mute(TallyToolbox(8, fleet.names.index(mute), fleet), 5, fleet.protection)
    assert fleet.world.run(lambda: fleet.world.told["leader replaced"] == 1, limit_s=60.0)
    assert mute not in fleet.leaders()
    before = fleet.completed()
    assert before == (2 if threshold == "majority" else 0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 30.0)
    assert fleet.books() < bound(fleet.completed(), 3)
