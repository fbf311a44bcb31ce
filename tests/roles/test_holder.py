"""The keeper answers a request to decrypt once: stored before it is sent, the same bytes for ever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofl_iot.crypto.context import Origin
from ofl_iot.crypto.params import DECRYPTION_LIMBS
from ofl_iot.crypto.ring import ring_of
from ofl_iot.crypto.threshold import DecryptionRequest
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.jobs.joint_key import context_of
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Persist, Publish
from ofl_iot.roles.events import Arrived, JobFailed, LinkDown, LinkUp, Started, TimerFired
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, BeginKeys
from ofl_iot.roles.keys.holder import SHARES, KeyHolder
from ofl_iot.roles.keys.usage import KeyUsage
from ofl_iot.roles.reports.base import LateMessageDropped, MessageDropped
from ofl_iot.roles.reports.keys import KeyWorkFailed, ShareWithheld
from tests.roles.circle import FEDERATION, SIZE, Circle, mean_of, names, updates_of
from tests.roles.parties import dropped, kinds, status, told

A, B, C = names(3)


@pytest.fixture
def circle() -> Circle:
    made = Circle(names(3))
    assert made.make_key(term=2)
    return made


def model_request(circle: Circle, round_no: int = 1) -> bytes:
    """The request for the model of an honest round, as the coordinator sends it."""
    sent: list[bytes] = []
    circle.fate = lambda _from, to, message: (
        sent.append(message.body) or 1  # type: ignore[func-returns-value]
        if isinstance(message, Part) and message.stage.startswith("model") and to == A
        else 1
    )
    updates = updates_of(circle.leaders)
    result = circle.decrypt(circle.contributions(updates, round_no), round_no)
    assert result is not None
    circle.fate = lambda *_: 1
    return sent[0]


def ask(circle: Circle, request: bytes, round_no: int = 1, label: str = "model.9", *, term: int = 2) -> list[Command]:
    commands: list[Command] = []
    for part in split_body(request, term, round_no, label):
        commands += circle.give(A, Arrived(Topic(Kind.DECRYPT, DeviceId(COORDINATOR), A), part))
    return commands


def shares_sent(circle: Circle) -> list[bytes]:
    return [m.body for _, topic, m in circle.sent if topic.kind is Kind.SHARE and isinstance(m, Part)]


def altered(circle: Circle, request: bytes, round_no: int = 1, **changes: object) -> bytes:
    material = circle.keepers[A].material
    assert material is not None
    origin = Origin(context_of(FEDERATION, material.opened), round_no, DeviceId(COORDINATOR))
    return replace(DecryptionRequest.from_bytes(request, origin), **changes).to_bytes()  # type: ignore[arg-type]


# --- once


def test_a_share_is_stored_before_it_is_sent(circle: Circle) -> None:
    request = model_request(circle)
    fresh = altered(circle, request, active=(A, B))  # as good as another request, for the same ciphertext
    circle.keepers[A]._shares.clear()  # as if nothing had been answered
    circle.keepers[A]._usage = KeyUsage()
    (job,) = [c.job for c in ask(circle, fresh) if hasattr(c, "job")]
    assert isinstance(job, AnswerDecryption)
    event = circle.tools[A][AnswerDecryption](job)
    commands = circle.keepers[A].handle(event, circle.now)
    assert kinds(commands) == ["Persist", "Publish SHARE", "SetTimer"]


def test_the_same_request_gets_the_same_bytes_also_after_a_restart(circle: Circle) -> None:
    request = model_request(circle)
    answered = circle.ran(AnswerDecryption, A)
    circle.sent.clear()
    for label in ("model.7", "model.8"):
        ask(circle, request, label=label)
        circle.deliver()
    circle.restart(A)
    ask(circle, request, label="model.9")
    circle.deliver()
    assert circle.ran(AnswerDecryption, A) == answered
    sent = shares_sent(circle)
    assert len(sent) == 3
    assert len(set(sent)) == 1


def test_a_request_under_way_is_not_computed_a_second_time(circle: Circle) -> None:
    request = altered(circle, model_request(circle), round_no=1, contributors=(A, C))
    first = circle.keepers[A].handle(arrival(request, "model.5"), 0.0)
    second = circle.keepers[A].handle(arrival(request, "model.6"), 0.0)
    assert "Compute" in kinds(first)
    assert "Compute" not in kinds(second)


def arrival(request: bytes, label: str, round_no: int = 1, term: int = 2) -> Arrived:
    (part,) = split_body(request, term, round_no, label)
    return Arrived(Topic(Kind.DECRYPT, DeviceId(COORDINATOR), A), part)


def test_one_ciphertext_is_never_answered_for_two_requests(circle: Circle) -> None:
    """With another active set the answer would differ by a known factor: the key share could be solved for."""
    request = model_request(circle)
    circle.sent.clear()
    for restarted in (False, True):
        if restarted:
            circle.restart(A)
        ask(circle, altered(circle, request, active=(A, B)), label=f"model.{restarted}")
        circle.deliver()
        assert shares_sent(circle) == []
    assert [t.reason for _, t in circle.told if isinstance(t, ShareWithheld)] == ["this ciphertext was answered"] * 2


def test_only_the_shares_of_the_last_round_are_kept_and_no_older_one_is_answered_again(circle: Circle) -> None:
    first = model_request(circle, 1)
    model_request(circle, 2)
    assert len(circle.stores[A].load()[SHARES]) == 2  # scores and model
    for restarted in (False, True):
        if restarted:
            circle.restart(A)
        (report,) = ask(circle, first, 1)
        assert isinstance(report, LateMessageDropped)
        assert "round 1, which is over" in report.reason


def test_a_leader_that_lost_its_memory_answers_when_it_is_asked_again() -> None:
    """It restarts after it confirmed the request, before it answered: half of the deadline later it is asked again."""
    circle = Circle(names(3))
    assert circle.make_key()
    real = circle.tools[B][AnswerDecryption]
    crashed: list[AnswerDecryption] = []

    def crash(job: AnswerDecryption) -> object:
        if not crashed:
            crashed.append(job)
            circle.restart(B)
            return JobFailed(AnswerDecryption, "the process died")
        return real(job)

    circle.tools[B][AnswerDecryption] = crash  # type: ignore[assignment]
    updates = updates_of(circle.leaders)
    result = circle.decrypt(circle.contributions(updates))
    assert result is not None
    assert abs(result.update - mean_of(updates)).max() < 1e-4
    assert crashed
    assert 15.0 <= circle.now < 30.0


# --- what is refused


def test_too_many_requests_of_one_round_are_refused_also_across_a_restart(circle: Circle) -> None:
    model_request(circle)
    asked = [bytes([number]) * 40 for number in range(9)]
    for number, request in enumerate(asked[:6]):
        assert "Compute" in kinds(ask(circle, request, label=f"model.{number}"))
    *_, report = ask(circle, asked[6], label="model.6")
    assert isinstance(report, MessageDropped)
    assert "more than 8 requests to decrypt in round 1" in report.reason
    assert report.sender == COORDINATOR


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"contributors": (A,)}, "an aggregate of 1 contributors is refused, at least 2 were agreed"),
        ({"contributors": (A, A)}, "an aggregate of 1 contributors is refused"),
        ({"contributors": (A, DeviceId("mallory"))}, "mallory is no member of the key"),
        ({"active": (B, C)}, "leader-0 is not in its active set"),
        ({"active": (A,)}, "the threshold is 2"),
        ({"active": (A, DeviceId("mallory"))}, "mallory is no member of the key"),
    ],
)
def test_a_request_that_must_not_be_answered_is_not(circle: Circle, change: dict[str, object], reason: str) -> None:
    request = model_request(circle)
    circle.keepers[A]._shares.clear()  # so that the ciphertext is new
    circle.sent.clear()
    ask(circle, altered(circle, request, **change))
    circle.deliver()
    assert shares_sent(circle) == []
    assert any(isinstance(t, KeyWorkFailed) and reason in t.reason for _, t in circle.told)


def test_a_request_of_another_round_under_this_rounds_number_is_not_answered(circle: Circle) -> None:
    request = model_request(circle, 1)
    circle.sent.clear()
    circle.contributed(A, 2)
    ask(circle, request, round_no=2)
    circle.deliver()
    assert shares_sent(circle) == []
    (failed,) = [t for _, t in circle.told if isinstance(t, KeyWorkFailed)]
    assert "round 1" in failed.reason


def test_a_request_of_another_term_or_before_any_key_is_late(circle: Circle) -> None:
    (report,) = ask(circle, b"x" * 40, term=3)
    assert isinstance(report, MessageDropped)
    assert "the key of term 3" in report.reason
    machine = KeyHolder(A, 2.0)
    machine.handle(Started(), 0.0)
    (report,) = machine.handle(arrival(b"x", "model.1"), 0.0)
    assert isinstance(report, LateMessageDropped)


def test_a_request_under_another_key_of_the_same_term_is_not_answered(circle: Circle) -> None:
    request = model_request(circle)
    assert circle.make_key(term=2)  # another attempt
    circle.sent.clear()
    ask(circle, request, round_no=2)
    circle.deliver()
    assert shares_sent(circle) == []


def test_nobody_but_the_coordinator_asks(circle: Circle) -> None:
    (part,) = split_body(b"x", 2, 1, "model.1")
    report = dropped(circle.give(A, Arrived(Topic(Kind.DECRYPT, B, A), part)))
    assert report.reason == "leader-1 is not the coordinator, whom this device decrypts for (server_dec)"
    report = dropped(circle.give(A, Arrived(Topic(Kind.STATUS, B, A), status())))
    assert report.reason == "a STATUS message is not for a key holder"


# --- what a dishonest coordinator or broker asks


def forged(circle: Circle, round_no: int, amplitude: int = 1 << 40) -> bytes:
    """c1 = 2^40: the shares of it add up to 2^40·s and small noise, from which the joint secret is read off."""
    material = circle.keepers[A].material
    assert material is not None
    context = context_of(FEDERATION, material.opened)
    rows = np.zeros((1, context.params.degree), np.int64)
    rows[0, 0] = amplitude
    c1 = ring_of(context.params).from_integers(rows, DECRYPTION_LIMBS)
    return DecryptionRequest(Origin(context, round_no, COORDINATOR), SIZE, (A, B), (A, B, C), c1).to_bytes()


def test_a_forged_request_of_a_round_that_was_never_opened_is_refused(circle: Circle) -> None:
    model_request(circle, 1)
    circle.sent.clear()
    for round_no in (2, 3, 10**6):
        report = dropped(ask(circle, forged(circle, round_no), round_no=round_no))
        assert report.reason == f"a request to decrypt in round {round_no}, to which this device did not contribute"
    assert shares_sent(circle) == []


def test_the_same_ciphertext_is_never_answered_again_under_the_key_in_no_round_and_after_no_restart(
    circle: Circle,
) -> None:
    """Four answers with fresh noise to one ciphertext, one a round: the noise could be averaged away."""
    circle.contributions(updates_of(circle.leaders), 1)
    ask(circle, forged(circle, 1))
    circle.deliver()
    assert len(shares_sent(circle)) == 1
    for round_no in (2, 3, 4):
        if round_no == 3:
            circle.restart(A)
        circle.contributed(A, round_no)
        ask(circle, forged(circle, round_no), round_no=round_no)
        circle.deliver()
    assert len(shares_sent(circle)) == 1
    assert [t.reason for _, t in circle.told if isinstance(t, ShareWithheld)] == ["this ciphertext was answered"] * 3


def test_sums_over_two_sets_of_contributors_in_one_round_are_not_both_answered(circle: Circle) -> None:
    model_request(circle)
    circle.sent.clear()
    ask(circle, altered(circle, forged(circle, 1, 12345), contributors=(A, B)))
    circle.deliver()
    assert shares_sent(circle) == []
    withheld = [t.reason for _, t in circle.told if isinstance(t, ShareWithheld)]
    assert withheld == ["a sum of another set of contributors was decrypted in this round"]


def test_another_size_than_the_models_is_not_decrypted(circle: Circle) -> None:
    circle.contributed(A, 1)
    ask(circle, altered(circle, forged(circle, 1), n_params=SIZE + 1))
    circle.deliver()
    assert shares_sent(circle) == []
    (failed,) = [t for _, t in circle.told if isinstance(t, KeyWorkFailed)]
    assert f"{SIZE + 1} parameters: the model has {SIZE}" in failed.reason


def test_a_key_decrypts_so_many_models_and_no_more_also_after_a_restart(circle: Circle, monkeypatch) -> None:
    monkeypatch.setattr("ofl_iot.roles.keys.usage.model_requests", lambda _rows: 2)
    for round_no in (1, 2):
        model_request(circle, round_no)
    circle.restart(A)
    circle.contributed(A, 3)
    report = dropped(ask(circle, forged(circle, 3), round_no=3)[-1:])
    assert report.reason == "the key of term 2 has decrypted 2 models: make another one"


# --- the post


def test_a_share_is_sent_again_until_it_is_confirmed_and_not_for_ever(circle: Circle) -> None:
    request = model_request(circle)
    circle.fate = lambda sender, _to, _message: int(sender != COORDINATOR)
    circle.restart(A)
    ask(circle, request)
    circle.sent.clear()
    circle.wait(1000.0)
    assert 3 < len(shares_sent(circle)) < 12
    assert len(set(shares_sent(circle))) == 1


def test_a_broken_link_makes_the_share_due_at_once_and_a_receipt_ends_it(circle: Circle) -> None:
    request = model_request(circle)
    circle.restart(A)
    machine = circle.keepers[A]
    assert "Publish SHARE" in kinds(machine.handle(arrival(request, "model.4"), 100.0))
    machine.handle(LinkDown(), 100.1)
    assert "Publish SHARE" in kinds(machine.handle(LinkUp(), 100.2))
    receipt = Arrived(Topic(Kind.RECEIPT, DeviceId(COORDINATOR), A), PartReceipt(2, 1, "model.4", (0,)))
    assert kinds(machine.handle(receipt, 100.3)) == ["CancelTimer"]
    assert kinds(machine.handle(TimerFired("keeper.shares.resend"), 200.0)) == ["CancelTimer"]


def test_an_answer_for_a_round_that_has_passed_is_dropped(circle: Circle) -> None:
    request = model_request(circle, 1)
    job = AnswerDecryption(circle.keepers[A].material, A, 1, "model.1", request, SIZE)  # type: ignore[arg-type]
    event = circle.tools[A][AnswerDecryption](job)
    model_request(circle, 2)
    assert circle.keepers[A].handle(event, 1.0) == []


def test_a_failed_job_is_told(circle: Circle) -> None:
    assert told(circle.give(A, JobFailed(AnswerDecryption, "boom"))) == [KeyWorkFailed]
    assert not [c for c in circle.give(A, JobFailed(BeginKeys, "boom")) if isinstance(c, Publish | Persist)]
