"""A whole federation under real encryption: the tally's jobs, with the cryptographic ones for real.

As in the tally, each device owns one parameter. The coordinator computes the scores on ciphertext, has them decrypted
by the leaders and judges nobody; then it sums evenly, on ciphertext, and what the leaders decrypt is the tally.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from ofl_agents.chaos.encrypted import CryptoToolbox
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.noise import error_bound
from ofl_iot.crypto.params import parameter_set
from ofl_iot.ids import DECRYPTOR
from ofl_iot.jobs.decrypt import DecryptorCrypto
from ofl_iot.jobs.toolbox import DecryptorToolbox, Toolbox
from ofl_iot.roles.decryption.decryptor import DecryptorMachine
from ofl_iot.roles.reports.base import JobFailure, Report
from ofl_iot.roles.reports.coordinator import RoundAbandoned, RoundOpened
from ofl_iot.roles.reports.keys import KeyWorkFailed
from ofl_iot.roles.reports.leader import ContributionFailed
from ofl_iot.roles.settings import ProtectionRules, RoundRules
from ofl_iot.runtime.virtual import Party
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.tally import FEDERATION, EvenPace, TallyToolbox, TallyWorld

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


PROTECTION = ProtectionRules(
    params="main", s_factor="mean", key_deadline_s=10.0, decryption_deadline_s=6.0, resend_s=1.5
)
RARELY = RoundRules(interval_s=2.0, deadline_s=8.0, recluster_every=50)


@dataclass
class EncryptedWorld(TallyWorld):
    step: float = STEP
    protection: ProtectionRules = PROTECTION
    failures: Counter[str] = field(default_factory=Counter)
    abandoned: Counter[str] = field(default_factory=Counter)
    """Rounds given up, by reason."""
    decryptor: DecryptorMachine | None = None
    opened_in: Counter[bool] = field(default_factory=Counter)
    """Rounds of several clusters, by whether they were encrypted."""

    def __post_init__(self) -> None:
        self.listener = self._listen
        super().__post_init__()
        if self.protection.server == DECRYPTOR:
            toolbox = DecryptorToolbox(DecryptorCrypto(FEDERATION, SeededEntropy(1000 * self.seed + 999)))
            party = Party(DECRYPTOR, self._make_decryptor, toolbox, EvenPace(0.01), faults=self.faults)
            self.world.add(party)

    def _make_decryptor(self) -> DecryptorMachine:
        self.decryptor = DecryptorMachine(self.protection)
        return self.decryptor

    def coordinator_toolbox(self) -> Toolbox:
        return CryptoToolbox(TallyToolbox(self.devices, None, self), 1000 * self.seed, self.protection)

    def device_toolbox(self, slot: int) -> Toolbox:
        tally = TallyToolbox(self.devices, slot, self)
        return CryptoToolbox(tally, 1000 * self.seed + slot + 1, self.protection)

    def _listen(self, _name: str, told: Report, _now: float) -> None:
        if isinstance(told, JobFailure | KeyWorkFailed | ContributionFailed):
            self.failures[told.reason] += 1
        elif isinstance(told, RoundAbandoned):
            self.abandoned[told.reason] += 1
        elif isinstance(told, RoundOpened) and told.leaders > 1:
            self.opened_in[told.encrypted] += 1

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
        return held is not None and held.asked is not None and held._stage == stage

    def making_a_key(self) -> set[str]:
        """The leaders, present or to come, that were called to make a key."""
        opened = self.coordinator._rounds.key.maker._opened if self.coordinator else None
        return {member.leader for member in opened.members} if opened else set()

    def leaders(self) -> list[str]:
        assert self.coordinator is not None
        return sorted(self.coordinator.roster.terms)

    def completed(self) -> int:
        return self.coordinator.counter.completed if self.coordinator else 0

    def opened(self) -> int:
        return self.coordinator.counter.opened if self.coordinator else 0


EXPECTED = ("part of a vector that was signed before",)
"""A leader was away for which others had signed together."""


def unexpected(fleet: EncryptedWorld) -> list[str]:
    """Failed jobs that the faults do not explain."""
    return [reason for reason in fleet.failures if not any(known in reason for known in EXPECTED)]


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
