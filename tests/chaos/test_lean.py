"""A whole federation in lean rounds, under faults: what was released is in the model, once, to the quantiser's step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.lean import sharing
from ofl_iot.crypto.lean.budget import score_requests
from ofl_iot.crypto.lean.params import PRIMES
from ofl_iot.crypto.lean.quantiser import START
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.lean import LeanAnswer
from ofl_iot.roles.events import Event, JobFailed, LeanAnswered
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import AnswerLean
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import LeaderReplaced, RoundAbandoned, RoundClosed
from ofl_iot.roles.reports.keys import JointKeyReady
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.encrypted import PROTECTION, RARELY, ROUGH, STEP, CryptoToolbox, EncryptedWorld, quiet, unexpected
from tests.chaos.stories import a_lying_leader_is_replaced, a_mute_leader_is_replaced, long_updates_go_in_parts

LEAN = msgspec.structs.replace(PROTECTION, params="lean")


def lean_bound(rounds: int, leaders: int) -> float:
    """Half a quantiser's step for what each leader keeps back, and as much for the rounding of each sum."""
    return (rounds + 2) * leaders * 2.0 ** (START - 13)


def check(fleet: EncryptedWorld, leaders: int) -> None:
    assert fleet.coordinator is not None
    assert fleet.books() < lean_bound(fleet.completed(), leaders), "the model is not the sum of what is settled"
    assert lean_bound(fleet.completed(), leaders) < STEP, "the bound must tell a lost chunk"
    assert fleet.coordinator.doubled_chunks == 0


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_what_was_released_is_in_the_opened_model_once(block: int) -> None:
    told: Counter[type[Report]] = Counter()
    for seed in range(4 * block, 4 * block + 4):
        fleet = EncryptedWorld(devices=8, seed=seed, faults=ROUGH, protection=LEAN)
        fleet.world.run(lambda: False, limit_s=60.0)
        assert fleet.come_to_rest(limit_s=300.0), f"seed {seed} does not come to rest"
        check(fleet, 4)
        assert fleet.opened_in[True] > 0
        assert not fleet.opened_in[False], f"seed {seed}: a round with several clusters was opened in the clear"
        assert not unexpected(fleet), f"seed {seed}"
        told += fleet.world.told
    for what in (LeaderReplaced, RoundAbandoned, RoundClosed):
        assert told[what] > 0, f"{what.phrase}: the faults must really happen"


@pytest.mark.parametrize("stage", ["sketch", "scores", "vouch", "open"])
def test_a_coordinator_killed_in_any_stage_closes_the_same_round_after_its_restart(stage: str) -> None:
    fleet = quiet(params="lean")
    assert fleet.world.run(lambda: fleet.decrypting(stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.crash(fleet.world.parties["coordinator"], for_s=2.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    assert not fleet.world.told[RoundAbandoned]
    check(fleet, 3)


@pytest.mark.parametrize("stage", ["sketch", "scores", "open"])
def test_a_leader_that_vanishes_does_not_stop_the_round(stage: str) -> None:
    fleet = quiet(params="lean")
    assert fleet.world.run(lambda: fleet.decrypting(stage), limit_s=60.0)
    round_no, before = fleet.opened(), fleet.completed()
    fleet.world.cut(fleet.world.parties[fleet.leaders()[0]], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 20.0)
    assert fleet.coordinator is not None
    assert fleet.coordinator.counter.closed == round_no
    check(fleet, 3)


def test_a_leader_that_vanishes_before_it_signs_costs_a_round_and_is_replaced_and_nothing_is_lost() -> None:
    fleet = quiet(params="lean")
    assert fleet.world.run(lambda: fleet.decrypting("vouch"), limit_s=60.0)
    before, lost = fleet.completed(), fleet.leaders()[0]
    fleet.world.cut(fleet.world.parties[lost], for_s=500.0)
    assert fleet.world.run(lambda: fleet.completed() > before, limit_s=fleet.world.now + 120.0)
    assert lost not in fleet.leaders()
    assert fleet.abandoned[f"{lost} did not sign for the sum"] == 1
    check(fleet, 3)


@pytest.mark.parametrize("stage", ["vouch", "open"])
def test_a_leader_killed_after_it_signed_contributes_the_same_unit_again(stage: str) -> None:
    """The pin is durable before the signature leaves: a restart does not let it go back into what is fresh."""
    fleet = quiet(params="lean", threshold="all")
    assert fleet.world.run(lambda: fleet.decrypting(stage), limit_s=60.0)
    before = fleet.completed()
    for name in fleet.leaders()[:2]:
        fleet.world.crash(fleet.world.parties[name], for_s=3.0)
    assert fleet.world.run(lambda: fleet.completed() > before + 1, limit_s=fleet.world.now + 120.0)
    check(fleet, 3)


class Mute(CryptoToolbox):
    """A leader that contributes and answers nothing."""

    def run(self, job: Job) -> Event:
        return JobFailed(AnswerLean, "no answer") if isinstance(job, AnswerLean) else super().run(job)


def test_a_leader_that_contributes_but_never_answers_is_replaced_while_rounds_go_on() -> None:
    fleet = quiet(params="lean")
    a_mute_leader_is_replaced(fleet, Mute, rounds_before=2)
    check(fleet, 3)


class Liar(CryptoToolbox):
    """A leader whose shares of the sum's key are well formed and wrong."""

    def run(self, job: Job) -> Event:
        event = super().run(job)
        if not isinstance(event, LeanAnswered) or event.stage != "open":
            return event
        share = sharing.decode_share(decode_body(LeanAnswer, event.answer).data, "")
        share[1] = np.roll(share[1], 1) % PRIMES[1]
        return replace(event, answer=encode_body(LeanAnswer(sharing.encode_share(share))))


def test_a_leader_whose_answers_are_wrong_is_named_and_replaced_while_rounds_go_on() -> None:
    fleet = quiet(params="lean")
    a_lying_leader_is_replaced(fleet, Liar)
    check(fleet, 3)


def test_a_key_that_has_shown_all_it_may_is_replaced_and_rounds_go_on() -> None:
    fleet = quiet(params="lean")
    most = score_requests(3, 2)
    assert fleet.world.run(lambda: fleet.completed() > most, limit_s=600.0)
    assert fleet.world.told[JointKeyReady] == 2
    assert not fleet.world.told[RoundAbandoned]
    assert fleet.coordinator is not None
    assert fleet.coordinator.doubled_chunks == 0


@pytest.mark.parametrize(("faults", "seed"), [(Faults(), 3), (ROUGH, 3)], ids=["quiet", "rough"])
def test_an_update_too_long_to_be_scored_is_contributed_in_parts_and_nothing_is_lost(faults: Faults, seed: int) -> None:
    short = msgspec.structs.replace(LEAN, max_energy=0.05)
    seldom = msgspec.structs.replace(RARELY, interval_s=25.0)
    fleet = EncryptedWorld(devices=8, seed=seed, faults=faults, protection=short, rounds=seldom)
    if not long_updates_go_in_parts(fleet, may_bound=faults is ROUGH):
        check(fleet, 4)
