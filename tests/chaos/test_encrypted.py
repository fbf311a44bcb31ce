"""A whole federation under real encryption and under faults: what was released is in the model, once, to the bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.context import Origin
from ofl_iot.crypto.scalars import ScalarShare
from ofl_iot.crypto.threshold import DecryptionShare
from ofl_iot.jobs.joint_key import context_of
from ofl_iot.roles.events import DecryptionAnswered, Event, JobFailed
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import AnswerDecryption
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import Clustered, LeaderReplaced, RoundAbandoned, RoundClosed
from ofl_iot.roles.reports.keys import JointKeyReady, KeyGenerationBegun, KeyGenerationFailed
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.encrypted import (
    PROTECTION,
    RARELY,
    ROUGH,
    STEP,
    CryptoToolbox,
    EncryptedWorld,
    bound,
    quiet,
    unexpected,
)
from tests.chaos.stories import a_lying_leader_is_replaced, a_mute_leader_is_replaced, long_updates_go_in_parts
from tests.chaos.tally import FEDERATION


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
        assert not unexpected(fleet), f"seed {seed}"


def test_the_faults_really_happen() -> None:
    told: Counter[type[Report]] = Counter()
    for seed in range(4):
        fleet = EncryptedWorld(devices=8, seed=seed, faults=ROUGH)
        fleet.world.run(lambda: False, limit_s=60.0)
        told += fleet.world.told
    for what in (KeyGenerationFailed, LeaderReplaced, RoundClosed):
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
    assert not fleet.world.told[RoundAbandoned]
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
    assert fleet.world.told[RoundAbandoned] == 1
    assert fleet.world.told[LeaderReplaced] == 1
    assert lost not in fleet.leaders()
    assert fleet.books() < bound(fleet.completed(), 3)


def test_a_leader_missing_while_the_key_is_made_is_replaced_and_the_key_made_anew() -> None:
    fleet = quiet()
    told = fleet.world.told
    assert fleet.world.run(lambda: told[KeyGenerationBegun] == 1, limit_s=60.0)
    lost = fleet.leaders()[1]
    fleet.world.cut(fleet.world.parties[lost], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > 0, limit_s=fleet.world.now + 60.0)
    assert told[LeaderReplaced] == 1
    assert lost not in fleet.leaders()
    assert told[KeyGenerationBegun] >= 2
    assert told[JointKeyReady] == 1


def test_every_term_has_a_key_of_its_own_and_has_it_before_the_term_before_ends() -> None:
    fleet = EncryptedWorld(devices=8, seed=1, faults=Faults())
    told = fleet.world.told
    for term in range(2, 6):
        assert fleet.world.run(lambda term=term: told[Clustered] == term, limit_s=fleet.world.now + 60.0)
        assert told[JointKeyReady] == term, "the last one is of the term that begins"
    assert told[KeyGenerationBegun] == 5
    assert told[RoundAbandoned] == 0


def test_leaders_to_come_who_do_not_make_a_key_do_not_come_into_office() -> None:
    fleet = EncryptedWorld(devices=8, seed=1, faults=Faults())
    told = fleet.world.told
    assert fleet.world.run(lambda: told[KeyGenerationBegun] == 2, limit_s=120.0)
    assert told[Clustered] == 1
    office = fleet.leaders()
    newcomer = fleet.world.parties[min(fleet.making_a_key() - set(office))]
    fleet.world.cut(newcomer, for_s=500.0)
    assert fleet.world.run(lambda: told[Clustered] == 2, limit_s=fleet.world.now + 60.0)
    assert newcomer.name not in fleet.leaders()
    assert told[KeyGenerationFailed] >= 1
    completed = fleet.completed()
    assert fleet.world.run(lambda: fleet.completed() > completed, limit_s=fleet.world.now + 60.0)


class Mute(CryptoToolbox):
    """A leader that contributes and cannot decrypt."""

    def run(self, job: Job) -> Event:
        return JobFailed(AnswerDecryption, "no share") if isinstance(job, AnswerDecryption) else super().run(job)


@pytest.mark.parametrize("threshold", ["majority", "all"])
def test_a_leader_that_contributes_but_never_decrypts_is_replaced(threshold: str) -> None:
    fleet = quiet(threshold=threshold)
    a_mute_leader_is_replaced(fleet, Mute, rounds_before=2 if threshold == "majority" else 0)
    assert fleet.books() < bound(fleet.completed(), 3)


class Liar(CryptoToolbox):
    """A leader whose decryption shares are well formed and wrong."""

    def run(self, job: Job) -> Event:
        event = super().run(job)
        if not isinstance(job, AnswerDecryption) or not isinstance(event, DecryptionAnswered):
            return event
        origin = Origin(context_of(FEDERATION, job.key.opened), job.round_no, job.me)
        if job.label.startswith("scores"):
            scores = ScalarShare.from_bytes(event.share, origin)
            share = replace(scores, values=scores.values[::-1]).to_bytes()
        else:
            model = DecryptionShare.from_bytes(event.share, origin)
            share = replace(model, values=np.roll(model.values, 1, axis=2)).to_bytes()
        return replace(event, share=share)


@pytest.mark.parametrize("server_dec", ["coordinator", "decryptor"])
def test_a_leader_whose_shares_are_wrong_is_found_and_replaced_while_rounds_go_on(server_dec: str) -> None:
    fleet = quiet(server_dec=server_dec)
    a_lying_leader_is_replaced(fleet, Liar)
    assert fleet.books() < bound(fleet.completed(), 3)


@pytest.mark.parametrize(
    ("faults", "seed"), [(Faults(), 3), (ROUGH, 3), (ROUGH, 5)], ids=["quiet", "rough", "new leader"]
)
def test_an_update_too_long_to_be_scored_is_contributed_in_parts_and_nothing_is_lost(faults: Faults, seed: int) -> None:
    short = msgspec.structs.replace(PROTECTION, max_energy=0.05)
    seldom = msgspec.structs.replace(RARELY, interval_s=25.0)
    fleet = EncryptedWorld(devices=8, seed=seed, faults=faults, protection=short, rounds=seldom)
    if not long_updates_go_in_parts(fleet, may_bound=faults is ROUGH):
        assert fleet.books() < bound(fleet.completed(), 4)
