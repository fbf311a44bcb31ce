"""The decryptor: the coordinator gets numbers and never what they were made of; kills and losses only take longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.noise import error_bound
from ofl_iot.crypto.params import parameter_set
from ofl_iot.ids import COORDINATOR, DECRYPTOR
from ofl_iot.jobs.toolbox import run_job
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.key_messages import ServerDecAnswer, ServerDecAsk
from ofl_iot.protocol.messages import Message, Part, PartReceipt
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.decryption.decryptor import TABLE
from ofl_iot.roles.decryption.remote import SILENT, RemoteDecryption, answers_of, confirm
from ofl_iot.roles.events import (
    Arrived,
    DecryptionAnswered,
    DecryptionRequested,
    FinalDecrypted,
    JobFailed,
    LinkDown,
    RoundAggregated,
    ServerDecrypted,
)
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, FinalDecrypt, ServerDecrypt
from ofl_iot.roles.job_kinds.rounds import FinishRound, ScoreRound, WeighRound
from ofl_iot.roles.reports.keys import KeyWorkFailed, WrongShare
from ofl_iot.roles.transfer import PATIENCE
from tests.roles.circle import RULES, SIZE, Circle, lossy, mean_of, names, updates_of
from tests.roles.parties import dropped, kinds, status
from tests.roles.test_decryption import lying

A, B, C, D = names(4)
ENTRUSTED = msgspec.structs.replace(RULES, server_dec="decryptor")


def circle_of(count: int = 3, **options: object) -> Circle:
    circle = Circle(names(count), rules=ENTRUSTED, **options)  # type: ignore[arg-type]
    assert circle.make_key()
    return circle


def check(result: RoundAggregated | None, updates: dict[str, np.ndarray], leaders: int) -> None:
    """The mean, to the bound of the cryptography."""
    assert result is not None
    assert np.abs(result.update - mean_of(updates)).max() < error_bound(parameter_set("main"), leaders, leaders)
    assert result.weights.keys() == updates.keys()


def requests(circle: Circle, stage: str) -> dict[str, set[str]]:
    """Whom the decryptor asked, by the digest of the request."""
    asked: dict[str, set[str]] = {}
    for sender, topic, message in circle.sent:
        to_leader = sender == DECRYPTOR and topic.receiver != COORDINATOR
        if to_leader and isinstance(message, Part) and message.stage.startswith(stage):
            asked.setdefault(message.digest.hex(), set()).add(str(topic.receiver))
    return asked


def without(leader: str, stage: str) -> Callable[[str, str, Message], int]:
    """A post that a leader has left when a stage begins."""
    return lambda sender, to, message: int(
        leader not in (sender, to) or not getattr(message, "stage", stage).startswith(stage)
    )


def reason(circle: Circle) -> str:
    assert circle.office.decryption is not None
    return circle.office.decryption.given_up


# --- who gets what


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_model_is_the_plain_mean_to_the_bound(count: int) -> None:
    circle, updates = circle_of(count), updates_of(names(count))
    check(circle.decrypt(circle.contributions(updates)), updates, count)
    assert circle.ran(AnswerDecryption) == 2 * count


def test_requests_and_shares_pass_the_coordinator_by() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    assert not [topic for _, topic, _ in circle.sent if topic.kind is Kind.DECRYPT]
    assert {who for who, job in circle.done if isinstance(job, ServerDecrypt | FinalDecrypt)} == {DECRYPTOR}
    for _, job in circle.done:
        assert not isinstance(job, WeighRound | FinishRound) or not job.shares
    assert answers_of(DECRYPTOR).sender == DECRYPTOR  # and not the topic of the shares


def test_the_scores_are_the_same_as_without_a_decryptor() -> None:
    rules = msgspec.structs.replace(RULES, s_factor="ledger")
    updates = updates_of(names(4))
    updates[B] = -4 * updates[B]
    results = []
    for server in ("coordinator", "decryptor"):
        circle = Circle(names(4), rules=msgspec.structs.replace(rules, server_dec=server))
        assert circle.make_key()
        results.append(circle.decrypt(circle.contributions(updates)))
    own, entrusted = results
    assert own is not None
    assert entrusted is not None
    assert entrusted.weights == pytest.approx(own.weights, abs=1e-3)
    assert entrusted.evidence == pytest.approx(own.evidence, abs=1e-2)


# --- what survives


@pytest.mark.parametrize("seed", range(4))
def test_lost_doubled_and_reordered_messages_only_take_longer(seed: int) -> None:
    circle, updates = circle_of(seed=seed), updates_of(names(3), seed)
    circle.fate, circle.shuffled = lossy(0.3, seed, twice=0.3), True
    check(circle.decrypt(circle.contributions(updates)), updates, 3)


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_member_that_vanishes_leads_to_another_set_and_a_fresh_ciphertext(stage: str) -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = without(B, stage)
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    first, second = requests(circle, stage).values()
    assert first == {A, B, C}
    assert second == {A, C}
    assert circle.office.decryption is not None
    assert circle.office.decryption.failing == {B}


def test_with_fewer_than_the_threshold_the_coordinator_is_told_and_the_next_round_works() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = lambda sender, to, _message: int(not {B, C} & {sender, to})
    assert circle.decrypt(circle.contributions(updates)) is None
    assert reason(circle) == "the decryptor: too few leaders are left to decrypt"
    circle.fate = lambda *_: 1
    check(circle.decrypt(circle.contributions(updates, 2), 2), updates, 3)


@pytest.mark.parametrize("stage", ["scores", "model"])
@pytest.mark.parametrize("moment", [ServerDecrypt, FinalDecrypt])
def test_a_decryptor_killed_while_it_computes_goes_on_from_its_store(stage: str, moment: type) -> None:
    circle, updates = circle_of(), updates_of(names(3))
    killed: list[str] = []
    real = circle.tools[DECRYPTOR][moment]

    def kill(job: ServerDecrypt | FinalDecrypt) -> object:
        result = real(job)
        if job.ask.stage == stage and not killed:
            killed.append(stage)
            return None  # the process that waits for it is gone
        return result

    circle.tools[DECRYPTOR][moment] = kill  # type: ignore[assignment]
    give = circle.give

    def give_or_kill(name: str, event: object) -> list[Command]:
        if event is None:
            circle.restart(DECRYPTOR)
            return []
        return give(name, event)  # type: ignore[arg-type]

    circle.give = give_or_kill  # type: ignore[method-assign, assignment]
    check(circle.decrypt(circle.contributions(updates), wait_s=20.0), updates, 3)
    assert killed
    assert circle.ran(AnswerDecryption) == 6, "every leader answered every request once"
    assert len(requests(circle, stage)) == 1


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_decryptor_killed_while_it_waits_asks_for_the_same_and_gets_the_same_shares(stage: str) -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = lambda sender, to, message: int(not (to == DECRYPTOR and sender == B and stage in message.stage))  # type: ignore[union-attr]
    assert circle.decrypt(circle.contributions(updates), wait_s=5.0) is None
    circle.fate = lambda *_: 1
    circle.restart(DECRYPTOR)
    circle.wait(6.0, lambda: circle.office.result is not None)
    check(circle.office.result, updates, 3)
    assert circle.ran(AnswerDecryption) == 6
    assert len(requests(circle, stage)) == 1
    shares = {
        (str(topic.sender), message.digest)
        for _, topic, message in circle.sent
        if topic.kind is Kind.SHARE and isinstance(message, Part) and message.stage.startswith(stage)
    }
    assert len(shares) == 3


def test_an_answer_that_was_lost_with_the_process_is_given_again() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = lambda sender, to, message: int(
        (sender, to) != (DECRYPTOR, COORDINATOR) or isinstance(message, PartReceipt) or "scores" in message.stage  # type: ignore[union-attr]
    )
    assert circle.decrypt(circle.contributions(updates), wait_s=5.0) is None
    finals = circle.ran(FinalDecrypt)
    circle.restart(DECRYPTOR)
    circle.fate = lambda *_: 1
    circle.wait(6.0, lambda: circle.office.result is not None)
    check(circle.office.result, updates, 3)
    assert circle.ran(FinalDecrypt) == finals


def unanswered(stage: str) -> Callable[[str, str, Message], int]:
    """A post that loses what the decryptor answers to a stage, but none of its receipts."""
    return lambda sender, to, message: int(
        (sender, to) != (DECRYPTOR, COORDINATOR) or isinstance(message, PartReceipt) or stage not in message.stage  # type: ignore[union-attr]
    )


def answers(circle: Circle, stage: str) -> list[bytes]:
    """What the decryptor sent to the coordinator."""
    return [
        message.body
        for sender, topic, message in circle.sent
        if sender == DECRYPTOR and topic.receiver == COORDINATOR
        if isinstance(message, Part) and message.stage.startswith(stage)
    ]


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_an_answer_that_was_given_up_is_given_again_when_it_is_asked_for_again(stage: str) -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = unanswered(stage)
    patience_s = PATIENCE * RULES.resend_s
    assert circle.decrypt(circle.contributions(updates), wait_s=3 * patience_s) is None
    assert not reason(circle), "the decryptor confirms, so the coordinator goes on asking"
    finals = sum(isinstance(job, FinalDecrypt) and job.ask.stage == stage for _, job in circle.done)
    circle.fate = lambda *_: 1
    circle.wait(patience_s + RULES.decryption_deadline_s, lambda: circle.office.result is not None)
    check(circle.office.result, updates, 3)
    assert finals == 1
    assert len(set(answers(circle, stage))) == 1, "always the same bytes"


def test_a_coordinator_killed_in_the_middle_has_the_same_round_decrypted_again() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    contributions = circle.contributions(updates)
    circle.fate = lambda sender, to, message: int(not (to == DECRYPTOR and sender == B and "model" in message.stage))  # type: ignore[union-attr]
    assert circle.decrypt(contributions, wait_s=5.0) is None
    circle.restart(COORDINATOR)
    circle.fate = lambda *_: 1
    check(circle.decrypt(contributions, attempt=1, wait_s=10.0), updates, 3)


def test_an_absent_decryptor_is_given_up_and_the_round_after_its_return_closes() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = lambda sender, to, _message: int(DECRYPTOR not in (sender, to))
    assert circle.decrypt(circle.contributions(updates), wait_s=100.0) is None
    assert reason(circle) == SILENT
    assert circle.office.decryption is not None
    assert not circle.office.decryption.failing, "it is nobody else's fault"
    circle.fate = lambda *_: 1
    check(circle.decrypt(circle.contributions(updates, 2), 2, wait_s=10.0), updates, 3)


def test_a_decryptor_that_waits_for_leaders_shows_that_it_is_alive() -> None:
    circle, updates = circle_of(5), updates_of(names(5))
    circle.fate = lambda sender, to, message: int(
        not ({B, C} & {sender, to}) or not getattr(message, "stage", "").startswith("model")
    )
    check(circle.decrypt(circle.contributions(updates), wait_s=100.0), updates, 5)
    assert circle.now >= RULES.decryption_deadline_s
    signs = [m for who, _, m in circle.sent if who == DECRYPTOR and isinstance(m, PartReceipt) and not m.parts]
    assert len(signs) >= 4


# --- what is stored


def begun(circle: Circle) -> ServerDecAsk:
    """The decryptor has got the scores of a round and computes."""
    contributions = circle.contributions(updates_of(names(3)))
    circle.fate = lambda sender, to, _message: int({sender, to} == {COORDINATOR, DECRYPTOR})
    real = circle.tools[DECRYPTOR]
    circle.tools[DECRYPTOR] = {**real, ServerDecrypt: lambda _job: LinkDown()}  # its end is still to come
    assert circle.decrypt(contributions, wait_s=1.0) is None
    circle.tools[DECRYPTOR] = real
    (ask,) = [job.ask for _, job in circle.done if isinstance(job, ServerDecrypt)]
    return ask


def parts_of(ask: ServerDecAsk) -> int:
    return len(split_body(encode_body(ask), 1, 1, ""))


def asked_again(circle: Circle, ask: ServerDecAsk) -> list[Command]:
    label = f"{ask.stage}.{ask.attempt}.{ask.turn}"
    commands: list[Command] = []
    for part in split_body(encode_body(ask), ask.opened.term, ask.round_no, label):
        commands += circle.decryptor.handle(Arrived(Topic(Kind.SERVERDEC, COORDINATOR, DECRYPTOR), part), circle.now)
    return commands


def test_each_step_is_stored_before_anything_is_said_of_it() -> None:
    circle = circle_of()
    ask = begun(circle)
    made = run_job(circle.tools[DECRYPTOR], ServerDecrypt(ask, ask.active))
    assert kinds(circle.decryptor.handle(made, circle.now))[:3] == ["Persist", "SetTimer", "Publish SERVERDEC"]
    give_up = circle.decryptor.handle(JobFailed(FinalDecrypt, "nothing fits"), circle.now)
    assert [kind for kind in kinds(give_up) if kind in ("Persist", "Publish SERVERDEC")] == [
        "Persist",
        "Publish SERVERDEC",
    ]
    newer = asked_again(circle, msgspec.structs.replace(ask, turn=ask.turn + 1))
    said = kinds(newer)
    assert said.index("Persist") < said.index("Compute") < len(said) - 1
    assert said[-1] == "Publish SERVERDEC", "the last part is confirmed when the ask is stored"


def test_what_is_answered_is_not_kept_longer() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    rows = circle.stores[DECRYPTOR].load()[TABLE]
    assert set(rows) == {"ask", "answer"}
    assert not decode_body(ServerDecAsk, rows["ask"]).ciphertext


def test_an_older_ask_is_void_and_the_same_one_gets_the_same_answer() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    check(circle.decrypt(circle.contributions(updates), 1), updates, 3)
    last = next(job.ask for _, job in reversed(circle.done) if isinstance(job, ServerDecrypt))
    answer = circle.stores[DECRYPTOR].load()[TABLE]["answer"]
    for restarted in (False, True):
        if restarted:
            circle.restart(DECRYPTOR)
            circle.deliver()
        older = asked_again(circle, msgspec.structs.replace(last, stage="scores", turn=1, public=b"!"))
        assert set(kinds(older)) <= {"Publish SERVERDEC"}
        assert all(isinstance(c, Publish) and isinstance(c.message, PartReceipt) for c in older)
    again = asked_again(circle, last)
    (sent,) = [c.message for c in again if isinstance(c, Publish) and isinstance(c.message, Part)]
    assert isinstance(sent, Part)
    assert sent.body == answer


def test_the_same_ask_is_answered_again_only_when_the_answer_was_given_up_and_once() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    circle.fate = unanswered("model")
    assert circle.decrypt(circle.contributions(updates), wait_s=1.0) is None
    scores, model = (job.ask for _, job in circle.done if isinstance(job, ServerDecrypt))
    assert kinds(asked_again(circle, model)) == ["Publish SERVERDEC"] * parts_of(model), "it is under way"
    circle.fate = lambda *_: 0
    circle.wait(PATIENCE * RULES.resend_s + RULES.resend_s)
    circle.now += RULES.resend_s
    assert all(isinstance(c.message, PartReceipt) for c in asked_again(circle, scores) if isinstance(c, Publish))
    said = [c.message for c in asked_again(circle, model) if isinstance(c, Publish)]
    (sent,) = [message for message in said if isinstance(message, Part)]
    assert sent.body == circle.stores[DECRYPTOR].load()[TABLE]["answer"]
    assert len(said) == 1 + parts_of(model), "and every part of the ask is confirmed"


def test_a_newer_ask_waits_for_the_job_in_hand_whose_result_is_then_void() -> None:
    circle = circle_of()
    ask = begun(circle)
    newer = msgspec.structs.replace(ask, attempt=1)
    assert "Compute" not in kinds(asked_again(circle, newer))
    commands = circle.decryptor.handle(ServerDecrypted(b"old", b"old"), circle.now)
    (job,) = [c.job for c in commands if hasattr(c, "job")]
    assert isinstance(job, ServerDecrypt)
    assert job.ask == newer
    assert b"old" not in circle.stores[DECRYPTOR].load()[TABLE].values()


# --- what is refused


def test_only_the_coordinator_has_something_decrypted() -> None:
    circle = circle_of()
    (part,) = split_body(b"x", 1, 1, "scores.0.1")
    report = dropped(circle.give(DECRYPTOR, Arrived(Topic(Kind.SERVERDEC, A, DECRYPTOR), part)))
    assert report.reason == "leader-0 is not the coordinator and has nothing decrypted"
    report = dropped(circle.give(DECRYPTOR, Arrived(Topic(Kind.STATUS, B), status())))
    assert report.reason == "a STATUS message is not for the decryptor"
    confirmed, report = circle.give(DECRYPTOR, Arrived(Topic(Kind.SHARE, A), part))
    assert "nothing is asked" in str(report)
    assert isinstance(confirmed, Publish)


def test_an_ask_that_contradicts_its_parts_is_refused() -> None:
    circle = circle_of()
    ask = begun(circle)
    parts = split_body(encode_body(ask), ask.opened.term, 7, "scores.0.1")
    commands = [
        c for p in parts for c in circle.give(DECRYPTOR, Arrived(Topic(Kind.SERVERDEC, COORDINATOR, DECRYPTOR), p))
    ]
    assert "another term, round or stage" in str(commands[-1])


def test_a_leader_takes_requests_from_one_of_the_two_alone() -> None:
    (part,) = split_body(b"x", 1, 1, "model.1")
    here, there = Circle(names(2)), Circle(names(2), rules=ENTRUSTED)
    for circle, kind, sender in (
        (here, Kind.SERVERDEC, DECRYPTOR),
        (there, Kind.DECRYPT, COORDINATOR),
        (there, Kind.SERVERDEC, B),
        (there, Kind.SERVERDEC, COORDINATOR),
    ):
        assert circle.make_key()
        report = dropped(circle.give(A, Arrived(Topic(kind, sender, A), part)))
        assert f"{sender} is not the {circle.rules.server}" in report.reason


def test_leaders_refuse_what_was_made_fresh_under_another_public_key() -> None:
    """A coordinator that hands out a key of its own would know what the randomness hides."""
    circle, other = circle_of(), circle_of(seed=5)
    assert other.office.maker.key is not None
    assert circle.office.maker.key is not None
    contributions = circle.contributions(updates_of(names(3)))
    false = msgspec.structs.replace(circle.office.maker.key, public=other.office.maker.key.public)
    circle.office.maker.key = false
    assert circle.decrypt(contributions, wait_s=100.0) is None
    assert circle.ran(AnswerDecryption) == 3
    reasons = {tell.reason for _, tell in circle.told if isinstance(tell, KeyWorkFailed)}
    assert reasons == {"CryptoError: the decryptor was given another public key than the leaders made"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"contributors": (A,)}, "a ciphertext of 1 contributors"),
        ({"contributors": (A, D)}, "leader-3 is no member"),
        ({"ciphertext": b"garbage"}, "not one of our frames"),
        ({"active": (A, D)}, "leader-3 is no member"),
        ({"active": (A,)}, "the threshold is 2"),
        ({"round_no": 9}, "round"),
    ],
)
def test_what_must_not_be_decrypted_is_not(change: dict[str, object], why: str) -> None:
    circle = circle_of()
    ask = msgspec.structs.replace(begun(circle), **change)
    failed = run_job(circle.tools[DECRYPTOR], ServerDecrypt(ask, ask.active))
    assert isinstance(failed, JobFailed)
    assert why in failed.reason
    circle.fate = lambda *_: 0
    commands = circle.give(DECRYPTOR, failed)
    (part,) = [c.message for c in commands if isinstance(c, Publish)]
    assert isinstance(part, Part)
    answer = decode_body(ServerDecAnswer, part.body)
    assert not answer.values
    assert why in answer.reason


def test_a_single_leaders_update_is_not_made_ready_for_decryption() -> None:
    circle = circle_of()
    ask = begun(circle)
    (mine, *_) = circle.contributions(updates_of(names(3)))
    fresh = msgspec.structs.replace(ask, stage="model", ciphertext=mine.payload)
    failed = run_job(circle.tools[DECRYPTOR], ServerDecrypt(fresh, fresh.active))
    assert isinstance(failed, JobFailed)


def forged(circle: Circle, cheat: str, stage: str, forge: Callable[[bytes], bytes]) -> None:
    """One leader answers a stage with something else."""
    real = circle.tools[cheat][AnswerDecryption]

    def answer(job: AnswerDecryption) -> object:
        answered = real(job)
        assert isinstance(answered, DecryptionAnswered)
        return replace(answered, share=forge(answered.share)) if job.label.startswith(stage) else answered

    circle.tools[cheat][AnswerDecryption] = answer  # type: ignore[assignment]


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_share_that_is_none_is_named_and_the_round_goes_on_without_its_sender(stage: str) -> None:
    circle, updates = circle_of(), updates_of(names(3))
    forged(circle, B, stage, lambda share: share[:-20])
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    assert list(requests(circle, stage).values())[-1] == {A, C}
    assert circle.office.decryption is not None
    assert circle.office.decryption.failing == {B}


def test_a_decryptor_killed_while_somebody_is_doubted_goes_on_doubting() -> None:
    circle, updates = circle_of(4), updates_of(names(4))
    lying(circle, A, "model")
    killed: list[float] = []

    def fate(sender: str, to: str, message: Message) -> int:
        doubts = [told for _, told in circle.told if isinstance(told, WrongShare)]
        return int(not doubts or killed != [] or sender == DECRYPTOR or to != DECRYPTOR)

    circle.fate = fate
    assert circle.decrypt(circle.contributions(updates), wait_s=5.0) is None
    killed.append(circle.now)
    circle.restart(DECRYPTOR)
    circle.wait(20.0, lambda: circle.office.result is not None)
    check(circle.office.result, updates, 4)
    assert circle.office.decryption is not None
    assert circle.office.decryption.failing == {A}


# --- the coordinator's side


def test_the_coordinator_takes_numbers_from_the_decryptor_alone_and_for_this_ask() -> None:
    circle = circle_of()
    sealed = circle.sealed(circle.contributions(updates_of((A, B))))
    entrusted = circle.office.decryption = RemoteDecryption(sealed, ENTRUSTED)
    circle.carry_out(COORDINATOR, list(entrusted.requested(DecryptionRequested(1, "scores", b"x", (A, B)), 0.0)))
    (part,) = split_body(encode_body(ServerDecAnswer(b"\0" * 8)), 1, 1, "scores.0.0")
    report = dropped(circle.give(COORDINATOR, Arrived(Topic(Kind.SERVERDEC, A, COORDINATOR), part)))
    assert report.reason == "leader-0 is not the decryptor"
    confirmed, report = circle.give(COORDINATOR, Arrived(Topic(Kind.SERVERDEC, DECRYPTOR, COORDINATOR), part))  # type: ignore[assignment]
    assert isinstance(confirmed, Publish)
    assert "an answer to scores.0.0, not scores.0.1" in str(report)
    assert not list(entrusted.requested(DecryptionRequested(2, "scores", b"x"), 0.0))
    list(entrusted.failed(JobFailed(WeighRound, "of leader-9", ("leader-9",))))
    assert "leader-9" in entrusted.given_up


@pytest.mark.parametrize("kind", [Kind.SHARE, Kind.SERVERDEC])
def test_what_nobody_waits_for_is_confirmed_lest_it_comes_again(kind: Kind) -> None:
    (part,) = split_body(b"x", 1, 1, "scores.0.1")
    sender = DECRYPTOR if kind is Kind.SERVERDEC else A
    receipt = confirm(kind, sender, part)
    assert receipt.topic.receiver == sender
    assert isinstance(receipt.message, PartReceipt)


@pytest.mark.parametrize("values", [b"\0" * 7, b"\0" * 8])
def test_numbers_of_another_size_than_asked_for_are_refused(values: bytes) -> None:
    circle = circle_of()
    contributions = circle.contributions(updates_of(names(3)))
    key = circle.office.maker.key
    assert key is not None
    tools = circle.tools[COORDINATOR]
    active = (A, B, C)
    scored = run_job(tools, ScoreRound(1, key, contributions, active, SIZE))
    assert isinstance(scored, DecryptionRequested)
    failed = run_job(tools, WeighRound(1, {}, active, {}, values, held=scored.held))
    assert isinstance(failed, JobFailed)
    assert "the decryptor returned a part" in failed.reason or "decrypted scores" in failed.reason


def test_a_sum_of_another_size_than_asked_for_is_refused() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    real = circle.tools[DECRYPTOR][FinalDecrypt]
    circle.tools[DECRYPTOR][FinalDecrypt] = lambda job: (
        real(job) if job.ask.stage == "scores" else FinalDecrypted(b"\0" * 12)
    )
    assert circle.decrypt(circle.contributions(updates), wait_s=5.0) is None
    (failure,) = circle.office.failures
    assert failure.reason == f"CryptoError: the decryptor returned 3 parameters, not {SIZE}"


def test_a_lost_link_sends_everything_again() -> None:
    circle, updates = circle_of(), updates_of(names(3))
    contributions = circle.contributions(updates)
    circle.fate = lambda sender, to, _message: int(DECRYPTOR not in (sender, to))
    assert circle.decrypt(contributions, wait_s=0.5) is None
    circle.fate = lambda *_: 1
    decryption = circle.office.decryption
    assert decryption is not None
    decryption.link_lost()
    circle.carry_out(COORDINATOR, list(decryption.send_due(circle.now)))
    circle.give(DECRYPTOR, LinkDown())
    circle.wait(1.0, lambda: circle.office.result is not None)
    check(circle.office.result, updates, 3)
