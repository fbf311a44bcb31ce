"""Threshold decryption at the coordinator: it survives who vanishes, names who cheats, yields no wrong model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.noise import error_bound
from ofl_iot.crypto.params import parameter_set
from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.jobs.toolbox import run_job
from ofl_iot.protocol.messages import Message, Part
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.decryption.requester import WRONG, Decryption
from ofl_iot.roles.events import DecryptionAnswered, DecryptionRequested, Event, JobFailed, RoundAggregated
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, KeyMaterial
from ofl_iot.roles.job_kinds.rounds import FinishRound, ScoreRound, WeighRound
from ofl_iot.roles.reports.keys import WrongShare
from ofl_iot.roles.settings import ProtectionRules
from tests.roles.circle import RULES, Circle, lossy, mean_of, names, tools_of, updates_of

A, B, C, D = names(4)


def circle_of(count: int, **options: object) -> Circle:
    circle = Circle(names(count), **options)  # type: ignore[arg-type]
    assert circle.make_key()
    return circle


def check(result: RoundAggregated | None, updates: dict[str, np.ndarray], leaders: int) -> None:
    """The mean, to the bound of the cryptography."""
    assert result is not None
    bound = error_bound(parameter_set("main"), leaders, leaders)
    assert np.abs(result.update - mean_of(updates)).max() < bound
    assert result.weights.keys() == updates.keys()


def requests(circle: Circle, stage: str) -> dict[str, set[str]]:
    """Who was asked, by the digest of the request."""
    asked: dict[str, set[str]] = {}
    for _, topic, message in circle.sent:
        if topic.kind is Kind.DECRYPT and isinstance(message, Part) and message.stage.startswith(stage):
            asked.setdefault(message.digest.hex(), set()).add(str(topic.receiver))
    return asked


def without(leader: str, stage: str) -> Callable[[str, str, Message], int]:
    """A post that a leader has left when a stage begins."""
    return lambda sender, to, message: int(
        leader not in (sender, to) or not getattr(message, "stage", stage).startswith(stage)
    )


# --- what survives


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_model_is_the_plain_mean_to_the_bound(count: int) -> None:
    circle, updates = circle_of(count), updates_of(names(count))
    check(circle.decrypt(circle.contributions(updates)), updates, count)
    assert circle.ran(AnswerDecryption) == 2 * count


def test_no_claim_of_samples_makes_a_sum_of_one_update() -> None:
    """10^12 samples were a weight of 0.999999999: the decrypted sum was one cluster's update."""
    circle = circle_of(3)
    updates = updates_of(names(3))
    honest = circle.contributions(updates)
    result = circle.decrypt(tuple(replace(each, sample_count=10**12) if each.leader == A else each for each in honest))
    assert result is not None
    assert max(result.weights.values()) == pytest.approx(0.5)
    assert sum(result.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_lost_doubled_and_reordered_messages_only_take_longer(seed: int) -> None:
    circle, updates = circle_of(3, seed=seed), updates_of(names(3), seed)
    circle.fate, circle.shuffled = lossy(0.3, seed, twice=0.3), True
    check(circle.decrypt(circle.contributions(updates)), updates, 3)


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_member_that_vanishes_leads_to_another_set_and_a_fresh_ciphertext(stage: str) -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    circle.fate = without(B, stage)
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    first, second = requests(circle, stage).values()
    assert first == {A, B, C}
    assert second == {A, C}
    assert circle.now >= RULES.decryption_deadline_s
    for other in {"scores", "model"} - {stage}:
        assert len(requests(circle, other)) == 1


def test_with_fewer_than_the_threshold_it_is_over_and_says_so() -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    circle.fate = lambda sender, to, _message: int(not {B, C} & {sender, to})
    assert circle.decrypt(circle.contributions(updates)) is None
    assert circle.office.decryption is not None
    assert circle.office.decryption.given_up == "too few leaders are left to decrypt"
    circle.fate = lambda *_: 1
    check(circle.decrypt(circle.contributions(updates, 2), 2), updates, 3)


def test_all_leaders_must_decrypt_where_the_rules_say_so() -> None:
    rules = ProtectionRules(params="main", threshold="all", s_factor="mean", resend_s=2.0)
    circle, updates = circle_of(3, rules=rules), updates_of(names(3))
    contributions = circle.contributions(updates)
    assert Decryption(circle.sealed(contributions[:2]), rules).given_up
    check(circle.decrypt(contributions), updates, 3)


def test_leaders_that_did_not_contribute_are_not_asked() -> None:
    circle = circle_of(4)
    updates = updates_of((A, B, D))
    check(circle.decrypt(circle.contributions(updates)), updates, 4)
    assert set().union(*requests(circle, "").values()) == {A, B, D}


def test_a_coordinator_killed_in_the_middle_decrypts_the_same_round_again() -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    contributions = circle.contributions(updates)
    circle.fate = lambda sender, _to, message: int(
        sender == COORDINATOR or "model" not in getattr(message, "stage", "")
    )
    assert circle.decrypt(contributions, wait_s=5.0) is None
    circle.restart(COORDINATOR)
    circle.tools[COORDINATOR] = Circle(names(3), seed=9).tools[COORDINATOR]
    circle.fate = lambda *_: 1
    check(circle.decrypt(contributions, attempt=1, wait_s=10.0), updates, 3)
    assert len(requests(circle, "model")) == 2


# --- what is refused


def test_a_share_of_someone_who_was_not_asked_is_refused() -> None:
    circle = circle_of(3)
    decryption = Decryption(circle.sealed(circle.contributions(updates_of((A, B)))), RULES)
    (part,) = split_body(b"share", 1, 1, "scores.0.1")
    with pytest.raises(RefusedError, match="leader-2 is not asked to decrypt"):
        list(decryption.receive(C, part, 0.0))


def test_a_share_for_an_earlier_request_is_confirmed_and_dropped() -> None:
    circle = circle_of(2)
    decryption = Decryption(circle.sealed(circle.contributions(updates_of((A, B)))), RULES)
    list(decryption.requested(DecryptionRequested(1, "scores", b"request"), 0.0))
    (part,) = split_body(b"share", 1, 1, "scores.0.0")
    with pytest.raises(LateError, match=r"a share for scores\.0\.0, not scores\.0\.1"):
        list(decryption.receive(A, part, 0.0))
    assert next(decryption.receive(A, part, 0.0)).message.parts == (0,)  # type: ignore[union-attr]


def test_results_of_another_round_or_stage_are_void() -> None:
    circle = circle_of(2)
    decryption = Decryption(circle.sealed(circle.contributions(updates_of((A, B)))), RULES)
    assert list(decryption.requested(DecryptionRequested(2, "scores", b"x"), 0.0)) == []
    assert list(decryption.requested(DecryptionRequested(1, "model", b"x"), 0.0)) == []


def forged(circle: Circle, cheat: str, stage: str, forge: Callable[[bytes], bytes]) -> None:
    """One leader answers a stage with something else."""
    real = circle.tools[cheat][AnswerDecryption]

    def answer(job: AnswerDecryption) -> object:
        answered = real(job)
        assert isinstance(answered, DecryptionAnswered)
        return replace(answered, share=forge(answered.share)) if job.label.startswith(stage) else answered

    circle.tools[cheat][AnswerDecryption] = answer  # type: ignore[assignment]


@pytest.mark.parametrize("stage", ["scores", "model"])
@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda share: share[:-20], "leader-1"),
        (lambda share: share[:200] + bytes([share[200] ^ 1]) + share[201:], "leader-1"),
        (lambda _: b"", "leader-1"),
    ],
    ids=["truncated", "altered", "empty"],
)
def test_a_share_that_is_none_is_named_and_the_round_goes_on_without_its_sender(
    stage: str, forge: Callable[[bytes], bytes], reason: str
) -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    forged(circle, B, stage, forge)
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    (failure,) = circle.office.failures
    assert failure.culprits == (B,)
    assert reason in failure.reason
    assert list(requests(circle, stage).values())[-1] == {A, C}


@pytest.mark.parametrize("stage", ["scores", "model"])
def test_a_replayed_share_of_another_round_is_named_and_the_round_goes_on(stage: str) -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    kept: list[bytes] = []
    forged(circle, B, stage, lambda share: kept.append(share) or kept[0])  # type: ignore[func-returns-value]
    check(circle.decrypt(circle.contributions(updates, 1), 1), updates, 3)
    check(circle.decrypt(circle.contributions(updates, 2), 2), updates, 3)
    (failure,) = circle.office.failures
    assert failure.culprits == (B,)
    assert "round 1" in failure.reason


def test_a_share_for_another_request_of_this_round_is_named() -> None:
    """Its own answer to the first request, replayed to the second."""
    circle, updates = circle_of(4), updates_of(names(4))
    kept: list[bytes] = []
    forged(circle, B, "model", lambda share: kept.append(share) or kept[0])  # type: ignore[func-returns-value]
    circle.fate = without(D, "model")
    assert circle.decrypt(circle.contributions(updates)) is None, "A and C are fewer than the threshold of 3"
    assert any("answers another request (replayed" in failure.reason for failure in circle.office.failures)
    assert all(failure.culprits == (B,) for failure in circle.office.failures)


def lying(circle: Circle, liar: str, stage: str, when: Callable[[], bool] = lambda: True) -> None:
    """A leader answers a stage with a share of another key: well formed, and wrong."""
    other = Circle(circle.leaders, seed=5, rules=circle.rules)
    assert other.make_key()
    honest, false = circle.tools[liar][AnswerDecryption], other.keepers[liar].material
    assert false is not None
    circle.tools[liar][AnswerDecryption] = lambda job: honest(
        replace(job, key=replace_share(job, false.share)) if stage in job.label and when() else job
    )


@pytest.mark.parametrize("server", ["coordinator", "decryptor"])
@pytest.mark.parametrize("stage", ["scores", "model"])
@pytest.mark.parametrize("liar", [A, B, C])
def test_a_well_formed_but_wrong_share_is_found_by_leaving_its_sender_out(stage: str, liar: str, server: str) -> None:
    circle = circle_of(3, rules=msgspec.structs.replace(RULES, server_dec=server))
    updates = updates_of(names(3))
    lying(circle, liar, stage)
    check(circle.decrypt(circle.contributions(updates)), updates, 3)
    assert circle.office.decryption is not None
    assert circle.office.decryption.failing == {liar}
    doubts = [told for _, told in circle.told if isinstance(told, WrongShare)]
    assert doubts[-1].left_out == liar
    assert circle.ran(AnswerDecryption, liar) <= 4


def test_whoever_failed_before_is_doubted_first() -> None:
    circle = circle_of(4)
    contributions = circle.contributions(updates_of(names(4)))
    assert circle.sealed(contributions, misses={C: 1}).candidates()[0] == C
    first = {circle.sealed(contributions, round_no).candidates()[0] for round_no in range(4)}
    assert first == {A, B, C, D}, "and in some round it is everyone's turn"


@pytest.mark.parametrize("server", ["coordinator", "decryptor"])
def test_when_nobody_can_be_spared_a_wrong_share_ends_the_round_without_a_culprit(server: str) -> None:
    rules = msgspec.structs.replace(RULES, threshold="all", server_dec=server)
    circle, updates = circle_of(3, rules=rules), updates_of(names(3))
    lying(circle, B, "model")
    assert circle.decrypt(circle.contributions(updates)) is None
    assert circle.office.decryption is not None
    assert circle.office.decryption.given_up
    assert not circle.office.decryption.failing
    assert circle.ran(AnswerDecryption) == 6


def test_two_liars_end_the_round_without_a_culprit_and_never_make_a_model() -> None:
    circle, updates = circle_of(5), updates_of(names(5))
    for liar in (A, B):
        lying(circle, liar, "model")
    assert circle.decrypt(circle.contributions(updates)) is None
    assert circle.office.decryption is not None
    assert circle.office.decryption.given_up == WRONG
    assert not circle.office.decryption.failing


def test_a_leader_that_vanishes_while_another_is_doubted_is_left_out_too() -> None:
    circle, updates = circle_of(5), updates_of(names(5))
    doubted: list[str] = []
    lying(circle, A, "model")
    gone = D

    def fate(sender: str, to: str, _message: Message) -> int:
        doubted[:] = [told.left_out for _, told in circle.told if isinstance(told, WrongShare)]
        return int(not doubted or gone not in (sender, to))

    circle.fate = fate
    check(circle.decrypt(circle.contributions(updates)), updates, 5)
    assert circle.office.decryption is not None
    assert circle.office.decryption.failing == {A, D}


def replace_share(job: AnswerDecryption, share: bytes) -> KeyMaterial:
    """The same key with another share in it: a valid frame, since both circles have the same names and terms."""
    return msgspec.structs.replace(job.key, share=share)


def test_too_few_shares_do_not_decrypt() -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    contributions = circle.contributions(updates)
    check(circle.decrypt(contributions), updates, 3)
    (weigh,) = [job for _, job in circle.done if isinstance(job, WeighRound)]
    (score,) = [job for _, job in circle.done if isinstance(job, ScoreRound)]
    (finish,) = [job for _, job in circle.done if isinstance(job, FinishRound)]
    tools = circle.tools[COORDINATOR]
    fresh = tools[ScoreRound](score)
    with pytest.raises(Exception, match="replayed"):  # a fresh ciphertext: not even the old shares fit
        tools[WeighRound](replace(weigh, held=fresh.held))
    with pytest.raises(Exception, match="the model was not asked for"):
        tools[FinishRound](replace(finish, held=fresh.held))
    with pytest.raises(Exception, match="round 7 was not scored"):
        tools[FinishRound](replace(finish, round_no=7, held=None))


@pytest.mark.parametrize("server", ["coordinator", "decryptor"])
def test_the_jobs_of_a_round_are_functions_of_their_arguments(server: str) -> None:
    """They can run again, in any order, and in another process that knows nothing of the round."""
    rules = msgspec.structs.replace(RULES, server_dec=server)
    circle, updates = circle_of(3, rules=rules), updates_of(names(3))
    result = circle.decrypt(circle.contributions(updates))
    check(result, updates, 3)
    assert result is not None
    (weigh,) = [job for _, job in circle.done if isinstance(job, WeighRound)]
    (finish,) = [job for _, job in circle.done if isinstance(job, FinishRound)]
    elsewhere = tools_of(99, rules)
    for tools in (elsewhere, circle.tools[COORDINATOR]):
        for _ in range(2):
            again = run_job(tools, finish)
            assert isinstance(again, RoundAggregated)
            assert np.array_equal(again.update, result.update)
            assert again.weights == result.weights
            assert isinstance(run_job(tools, weigh), DecryptionRequested)


def test_a_job_of_an_abandoned_round_that_ends_late_changes_nothing_of_the_next() -> None:
    circle, updates = circle_of(3), updates_of(names(3))
    assert circle.decrypt(circle.contributions(updates_of(names(3), seed=1), 4), 4) is not None
    late = [job for _, job in circle.done if isinstance(job, ScoreRound | WeighRound | FinishRound)]
    assert len(late) == 3
    tools = circle.tools[COORDINATOR]

    def behind_late_jobs(job: WeighRound | FinishRound) -> Event:
        for each in late:
            assert not isinstance(run_job(tools, each), JobFailed)
        return run_job(tools, job)

    circle.tools[COORDINATOR] = {**tools, WeighRound: behind_late_jobs, FinishRound: behind_late_jobs}
    check(circle.decrypt(circle.contributions(updates, 5), 5), updates, 3)
    assert not circle.office.failures


def test_the_silent_are_asked_again_at_half_time_and_the_link_back_sends_all() -> None:
    circle = circle_of(2)
    decryption = Decryption(circle.sealed(circle.contributions(updates_of((A, B)))), RULES)
    first = list(decryption.requested(DecryptionRequested(1, "scores", b"request"), 0.0))
    assert sum("DECRYPT" in str(command) for command in first) == 2
    decryption.link_lost()
    assert sum("DECRYPT" in str(command) for command in decryption.send_due(0.1)) == 2
    (share,) = split_body(b"share", 1, 1, "scores.0.1")
    list(decryption.receive(DeviceId(A), share, 1.0))
    again = list(decryption.deadline(15.0))
    assert [str(c.topic.receiver) for c in again if hasattr(c, "topic")].count(B) == 1
    list(decryption.deadline(30.0))
    assert decryption.given_up
