"""Keys beside the work: how much of the time rounds wait for a key, without faults and with them."""

from __future__ import annotations

import msgspec
import pytest

from ofl_iot.roles.key_coverage import KeyCoverage
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import Clustered, RoundAbandoned, RoundClosed
from ofl_iot.roles.reports.keys import JointKeyReady, KeyGenerationDisputed, KeyGenerationFailed
from ofl_iot.roles.settings import ProtectionRules, RoundRules
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.encrypted import PROTECTION, EncryptedWorld, unexpected
from tests.chaos.tally import DEFAULTS

LEAN = msgspec.structs.replace(PROTECTION, params="lean")
WEAR = Faults(
    latency_s=(0.005, 0.2),
    duplicate=0.1,
    lose_under_way=0.5,
    forget_queue=0.2,
    mean_connected_s=120.0,
    mean_away_s=4.0,
    mean_alive_s=240.0,
    mean_dead_s=4.0,
)
"""Each party loses its link every two minutes and its process every four."""


class KeyWorld(EncryptedWorld):
    """An encrypted federation whose time without a key is measured."""

    def _listen(self, name: str, told: Report, now: float) -> None:
        super()._listen(name, told, now)
        if name == "coordinator":
            self.coverage.take(told, now)

    def __post_init__(self) -> None:
        self.coverage = KeyCoverage()
        super().__post_init__()

    def without_key(self) -> float:
        return self.coverage.without_key_share(self.world.now)


@pytest.mark.parametrize("protection", [PROTECTION, LEAN], ids=["main", "lean"])
def test_without_faults_no_round_ever_waits_for_a_key(protection: ProtectionRules) -> None:
    """Re-clustering every third round, and in lean rounds keys that are used up besides."""
    fleet = KeyWorld(devices=8, seed=3, faults=Faults(), protection=protection)
    fleet.world.run(lambda: False, limit_s=45.0)
    told = fleet.world.told
    assert told[Clustered] > 2
    assert told[JointKeyReady] >= told[Clustered]
    assert told[RoundClosed] > 8
    assert told[KeyGenerationFailed] == told[RoundAbandoned] == 0
    assert fleet.without_key() == 0.0


def test_a_key_that_is_used_up_is_followed_by_the_next_without_a_pause() -> None:
    rounds = RoundRules(interval_s=2.0, deadline_s=8.0, recluster_every=0)
    fleet = KeyWorld(devices=8, seed=3, faults=Faults(), protection=LEAN, rounds=rounds)
    fleet.world.run(lambda: False, limit_s=60.0)
    assert fleet.world.told[JointKeyReady] >= 3
    assert fleet.world.told[RoundAbandoned] == 0
    assert fleet.without_key() == 0.0


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(4), marks=pytest.mark.slow)], ids=["one", "four"])
def test_with_faults_less_than_a_twentieth_of_the_time_is_without_a_key(seeds: range) -> None:
    shares = []
    for seed in seeds:
        fleet = KeyWorld(devices=8, seed=seed, faults=WEAR, protection=LEAN)
        fleet.world.run(lambda: False, limit_s=240.0)
        assert fleet.world.told[KeyGenerationDisputed] == 0
        assert not unexpected(fleet)
        assert fleet.world.told[RoundClosed] > 20
        shares.append(fleet.without_key())
    assert sum(shares) / len(shares) < 0.05, shares


def test_a_run_without_loss_needs_no_repetition() -> None:
    """With resend times of ten minutes nothing is said twice within the run: who listens was told before who speaks."""
    patient = msgspec.structs.replace(LEAN, resend_s=600.0)
    fleet = KeyWorld(devices=8, seed=5, faults=Faults(), protection=patient, rounds=DEFAULTS.rounds)
    fleet.world.run(lambda: False, limit_s=60.0)
    assert fleet.world.told[RoundClosed] > 12
    assert fleet.world.told[RoundAbandoned] == 0
