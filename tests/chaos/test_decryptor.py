"""A federation with an independent decryptor under faults: kills of it only take longer, and nothing is lost."""

from __future__ import annotations

import msgspec
import pytest

from ofl_iot.ids import DECRYPTOR
from ofl_iot.roles.decryption.remote import SILENT
from ofl_iot.roles.events import Event
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import AnswerDecryption
from ofl_iot.roles.reports.coordinator import LeaderReplaced, RoundAbandoned
from tests.chaos.encrypted import PROTECTION, ROUGH, STEP, CryptoToolbox, EncryptedWorld, bound, quiet
from tests.chaos.tally import TallyToolbox

ENTRUSTED = msgspec.structs.replace(PROTECTION, server_dec="decryptor")
ROUGHER = msgspec.structs.replace(ROUGH, mean_alive_s=12.0, crash_between_commands=0.01)
"""For the decryptor, which has little to do between rounds."""


def waiting(fleet: EncryptedWorld, stage: str) -> bool:
    """Whether the decryptor waits for shares of a stage."""
    return fleet.decryptor is not None and fleet.decryptor.stage == stage and fleet.decryptor._asked is not None


@pytest.mark.parametrize("block", range(2))
def test_what_was_released_is_in_the_decrypted_model_once(block: int) -> None:
    crashes = 0
    for seed in range(4 * block, 4 * block + 4):
        fleet = EncryptedWorld(devices=8, seed=seed, faults=ROUGH, protection=ENTRUSTED)
        fleet.world.parties[DECRYPTOR].faults = ROUGHER
        fleet.world.run(lambda: False, limit_s=60.0)
        crashes += fleet.world.parties[DECRYPTOR].crashes
        assert fleet.come_to_rest(limit_s=300.0), f"seed {seed} does not come to rest"
        assert fleet.coordinator is not None
        assert fleet.books() < bound(fleet.completed(), 4), f"seed {seed}: the model is not the sum of what is settled"
        assert bound(fleet.completed(), 4) < STEP / 2, "the bound must tell a lost chunk"
        assert fleet.coordinator.doubled_chunks == 0
        assert not fleet.opened_in[False], f"seed {seed}: a round with several clusters was opened in the clear"
        assert not fleet.failures, f"seed {seed}"
    assert crashes > 4


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_decryptor_killed_while_leaders_decrypt_closes_the_same_round_after_its_restart(stage: str) -> None:
    fleet = quiet(server_dec="decryptor")
    assert fleet.world.run(lambda: waiting(fleet, stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.crash(fleet.world.parties[DECRYPTOR], for_s=2.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    assert not fleet.world.told[RoundAbandoned]
    assert fleet.books() < bound(fleet.completed(), 3)


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_coordinator_killed_while_the_decryptor_works_closes_the_same_round_after_its_restart(stage: str) -> None:
    fleet = quiet(server_dec="decryptor")
    assert fleet.world.run(lambda: waiting(fleet, stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.crash(fleet.world.parties["coordinator"], for_s=2.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    assert fleet.books() < bound(fleet.completed(), 3)


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_leader_that_vanishes_while_it_decrypts_does_not_stop_the_round(stage: str) -> None:
    fleet = quiet(server_dec="decryptor")
    assert fleet.world.run(lambda: waiting(fleet, stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.cut(fleet.world.parties[fleet.leaders()[0]], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    assert fleet.books() < bound(fleet.completed(), 3)


def test_with_too_few_leaders_left_the_round_is_abandoned_and_a_later_one_closes() -> None:
    fleet = quiet(threshold="all", server_dec="decryptor")
    assert fleet.world.run(lambda: waiting(fleet, "model"), limit_s=60.0)
    before, lost = fleet.completed(), fleet.leaders()[0]
    fleet.world.cut(fleet.world.parties[lost], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 120.0)
    assert fleet.abandoned == {"the decryptor: too few leaders are left to decrypt": 1}
    assert lost not in fleet.leaders()
    assert fleet.books() < bound(fleet.completed(), 3)


def test_without_its_decryptor_a_federation_says_so_round_by_round_and_goes_on_when_it_is_back() -> None:
    fleet = quiet(server_dec="decryptor")
    assert fleet.world.run(lambda: fleet.completed() == 1, limit_s=60.0)
    fleet.world.crash(fleet.world.parties[DECRYPTOR], for_s=60.0)
    assert fleet.world.run(lambda: fleet.abandoned[SILENT] == 3, limit_s=fleet.world.now + 59.0)
    assert fleet.completed() == 1
    assert not fleet.world.told[LeaderReplaced], "it is not the leaders' fault"
    assert fleet.world.run(lambda: fleet.completed() == 3, limit_s=fleet.world.now + 60.0)
    assert fleet.come_to_rest(limit_s=60.0)
    assert fleet.books() < bound(fleet.completed(), 3)


class Witness(CryptoToolbox):
    """Notes which requests a leader was made to answer."""

    def __init__(self, tally: TallyToolbox, seed: int, fleet: EncryptedWorld) -> None:
        super().__init__(tally, seed, fleet.protection)
        self.answered: list[bytes] = []

    def run(self, job: Job) -> Event:
        if isinstance(job, AnswerDecryption):
            self.answered.append(job.request)
        return super().run(job)


def test_no_leader_computes_two_shares_of_one_ciphertext_however_often_the_decryptor_dies() -> None:
    fleet = quiet(server_dec="decryptor")
    assert fleet.world.run(lambda: fleet.completed() == 1, limit_s=60.0)
    witnesses = []
    for slot, name in enumerate(fleet.names):
        witness = Witness(TallyToolbox(8, slot, fleet), 1000 + slot, fleet)
        fleet.world.parties[name].toolbox = witness
        witnesses.append(witness)
    for completed in range(2, 5):
        for stage in ("scores", "model"):
            assert fleet.world.run(lambda stage=stage: waiting(fleet, stage), limit_s=fleet.world.now + 60.0)
            fleet.world.crash(fleet.world.parties[DECRYPTOR], for_s=0.5)
        assert fleet.world.run(
            lambda completed=completed: fleet.completed() == completed, limit_s=fleet.world.now + 60.0
        )
    assert sum(len(witness.answered) for witness in witnesses) == 3 * 2 * 3, "rounds, stages, leaders"
    assert all(len(set(witness.answered)) == len(witness.answered) for witness in witnesses)
    assert not fleet.abandoned
