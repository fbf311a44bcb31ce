"""Lean rounds between real machines with real cryptography: they close, survive losses, and name who is wrong."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.lean import sharing
from ofl_iot.crypto.lean.params import PRIMES
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.lean import LeanAnswer, LeanUpload
from ofl_iot.protocol.messages import Part
from ofl_iot.roles.events import Event, LeanAnswered
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.keys import AnswerLean
from tests.roles.circle import lossy, mean_of, names
from tests.roles.lean_circle import LEAN, UNIT, LeanCircle, lean_updates

A, B, C, D = names(4)


@pytest.fixture
def circle() -> LeanCircle:
    return LeanCircle(names(3))


def lying(circle: LeanCircle, name: str, stage: str) -> None:
    """The leader's answers of a stage are well formed and wrong."""
    honest = circle.tools[name][AnswerLean]

    def lie(job: Job) -> Event:
        event = honest(job)
        if isinstance(event, LeanAnswered) and event.stage == stage == "open":
            share = sharing.decode_share(decode_body(LeanAnswer, event.answer).data, "")
            share[0] = (share[0] + 1) % PRIMES[0]
            return replace(event, answer=encode_body(LeanAnswer(sharing.encode_share(share))))
        if isinstance(event, LeanAnswered) and event.stage == stage == "sketch":
            answer = decode_body(LeanAnswer, event.answer)
            return replace(event, answer=encode_body(msgspec.structs.replace(answer, signature=b"unsigned")))
        return event

    circle.tools[name] = {**circle.tools[name], AnswerLean: lie}


@pytest.mark.parametrize("enrolled", [True, False])
def test_a_lean_round_yields_the_mean(enrolled: bool) -> None:
    circle = LeanCircle(names(3), enrolled=enrolled)
    updates = lean_updates(3)
    result = circle.lean_round(circle.uploaded(updates))
    assert result is not None, circle.reasons("key work failed")
    assert np.abs(result.update - mean_of(updates)).max() <= UNIT
    assert result.weights == dict.fromkeys(updates, pytest.approx(1 / 3))
    assert result.failing == ()
    assert len(result.bounds) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_lossy_post_delays_a_round_and_does_not_change_it(seed: int) -> None:
    circle = LeanCircle(names(3), seed=seed)
    circle.fate = lossy(0.15, seed, twice=0.2)
    updates = lean_updates(3, seed)
    result = circle.lean_round(circle.uploaded(updates))
    assert result is not None
    assert np.abs(result.update - mean_of(updates)).max() <= UNIT


@pytest.mark.parametrize("stage", ["sketch", "scores", "open"])
def test_a_leader_that_falls_silent_does_not_stop_the_round(stage: str) -> None:
    circle = LeanCircle(names(4))
    updates = lean_updates(4)
    contributions = circle.uploaded(updates)
    circle.fate = lambda _from, to, message: int(
        not (to == D and isinstance(message, Part) and message.stage.startswith(stage))
    )
    result = circle.lean_round(contributions)
    assert result is not None
    counted = {name: update for name, update in updates.items() if stage == "open" or name != D}
    assert np.abs(result.update - mean_of(counted)).max() <= UNIT
    assert circle.office.decryption is not None
    assert circle.office.decryption.failing == {D}


def test_a_contributor_that_does_not_sign_costs_the_round_and_is_named(circle: LeanCircle) -> None:
    contributions = circle.uploaded(lean_updates(3))
    circle.fate = lambda _from, to, message: int(
        not (to == C and isinstance(message, Part) and message.stage.startswith("vouch"))
    )
    assert circle.lean_round(contributions) is None
    assert circle.office.decryption is not None
    assert circle.office.decryption.given_up == f"{C} did not sign for the sum"
    assert circle.office.decryption.failing == {C}


def test_a_restarted_leader_answers_the_same_request_with_the_same_bytes(circle: LeanCircle) -> None:
    assert circle.lean_round(circle.uploaded(lean_updates(3))) is not None
    (request,) = circle.asks(A, "open")
    answered = circle.ran(AnswerLean, A)
    first = circle.ask(A, "open", request)
    circle.restart(A)
    assert circle.ask(A, "open", request) == first is not None
    assert circle.ran(AnswerLean, A) == answered


def test_a_coordinator_that_restarts_closes_the_round_with_the_same_bodies(circle: LeanCircle) -> None:
    updates = lean_updates(3)
    contributions = circle.uploaded(updates)
    assert circle.lean_round(contributions) is not None
    circle.restart(COORDINATOR)
    again = circle.lean_round(contributions, attempt=1)
    assert again is not None
    assert np.abs(again.update - mean_of(updates)).max() <= UNIT


@pytest.mark.parametrize("leaders", [3, 4, 5])
def test_a_wrong_answer_is_named_and_the_sum_opens_without_it(leaders: int) -> None:
    """Five leaders, three open: decoding names the liar. With one answer to spare, the controls do."""
    circle = LeanCircle(names(leaders))
    lying(circle, B, "open")
    updates = lean_updates(leaders)
    result = circle.lean_round(circle.uploaded(updates))
    assert result is not None
    assert np.abs(result.update - mean_of(updates)).max() <= UNIT
    assert result.failing == (B,)


def test_with_nobody_to_spare_a_wrong_answer_costs_the_round() -> None:
    circle = LeanCircle(names(2))
    lying(circle, B, "open")
    assert circle.lean_round(circle.uploaded(lean_updates(2))) is None


def test_a_dealer_whose_shares_do_not_open_is_left_out_before_anybody_signs() -> None:
    circle = LeanCircle(names(4))
    updates = lean_updates(4)
    contributions = list(circle.uploaded(updates))
    upload = decode_body(LeanUpload, contributions[3].payload)
    spoilt = LeanUpload(upload.signed, upload.body, {name: box[:-1] + b"!" for name, box in upload.boxes.items()})
    contributions[3] = replace(contributions[3], payload=encode_body(spoilt))
    result = circle.lean_round(tuple(contributions))
    assert result is not None
    assert D not in result.weights
    assert np.abs(result.update - mean_of({n: u for n, u in updates.items() if n != D})).max() <= UNIT
    assert circle.office.decryption is not None
    assert D in circle.office.decryption.failing


def test_a_leader_that_does_not_sign_its_sketch_is_left_out_and_named() -> None:
    circle = LeanCircle(names(4))
    lying(circle, D, "sketch")
    updates = lean_updates(4)
    result = circle.lean_round(circle.uploaded(updates))
    assert result is not None
    assert D not in result.weights
    assert np.abs(result.update - mean_of({n: u for n, u in updates.items() if n != D})).max() <= UNIT
    assert circle.office.decryption is not None
    assert D in circle.office.decryption.failing


@pytest.mark.parametrize(
    ("ground", "why"),
    [
        ({"bounds": b"\x01"}, "another sender, model, base or bounds"),
        ({"base": np.zeros(40, np.float32)}, "another sender, model, base or bounds"),
    ],
)
def test_an_upload_on_other_ground_is_left_out(ground: dict[str, object], why: str) -> None:
    circle = LeanCircle(names(4))
    updates = lean_updates(4)
    contributions = [circle.contribute(name, update) for name, update in updates.items() if name != D]
    contributions.append(circle.contribute(D, updates[D], **ground))  # type: ignore[arg-type]
    result = circle.lean_round(tuple(contributions))
    assert result is not None
    assert D not in result.weights
    assert why in circle.reasons("contribution refused")[0]


def test_leaders_refuse_a_coordinator_that_asks_for_another_kind_of_rounds() -> None:
    circle = LeanCircle(names(3))
    circle.office.maker._rules = msgspec.structs.replace(LEAN, params="main")
    assert not circle.make_key(term=3)
    assert "protection.params = 'lean'" in circle.reasons("key work failed")[0]


def test_jobs_of_lean_rounds_fail_with_a_reason_and_not_with_a_crash(circle: LeanCircle) -> None:
    contributions = circle.uploaded(lean_updates(3))
    broken = tuple(replace(each, payload=b"junk") for each in contributions)
    assert circle.lean_round(broken, wait_s=5.0) is None
    assert "usable contributions" in circle.office.failures[0].reason
