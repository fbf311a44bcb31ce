"""The cryptographic jobs: on ciphertext as in the clear, and whatever is not as it must be is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, encrypt
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.keygen import KEY_ROUND
from ofl_iot.crypto.noise import error_bound
from ofl_iot.crypto.params import parameter_set
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.jobs.clear_round import aggregate_clear
from ofl_iot.jobs.joint_key import CulpritError, context_of, each_of
from ofl_iot.jobs.toolbox import run_job
from ofl_iot.robust.weights import without_dominant
from ofl_iot.roles.events import ContributionProtected, JobFailed, RoundAggregated
from ofl_iot.roles.job_kinds.keys import BeginKeys, FinishKeys, MakeKeys
from ofl_iot.roles.job_kinds.rounds import AggregateRound, Contributed, ProtectContribution, ScoreRound, WeighRound
from ofl_iot.roles.settings import ProtectionRules
from tests.roles.circle import FEDERATION, SIZE, Circle, mean_of, names, updates_of

A, B, C, D = names(4)


@lru_cache(maxsize=1)
def shared_circle() -> Circle:
    """One key for all examples of a law."""
    circle = Circle(names(4))
    assert circle.make_key()
    return circle


@pytest.fixture
def made() -> Circle:
    return shared_circle()


def key_of(circle: Circle) -> KeyContext:
    assert circle.office.maker.key is not None
    return context_of(FEDERATION, circle.office.maker.key.opened)


def decrypt(circle: Circle, contributions: tuple[Contributed, ...], round_no: int) -> RoundAggregated | None:
    return circle.decrypt(contributions, round_no, wait_s=100.0)


_ROUNDS = iter(range(100, 10_000))
"""Leaders answer a round once: every test has its own."""


# --- as in the clear


@pytest.mark.parametrize("form", ["ledger", "mad", "delta", "literal", "mean"])
def test_on_ciphertext_leaders_are_judged_and_weighed_as_in_the_clear(form: str) -> None:
    circle = Circle(names(6), rules=ProtectionRules(params="main", s_factor=form, resend_s=2.0))  # type: ignore[arg-type]
    assert circle.make_key()
    rng = np.random.default_rng(3)
    common = rng.normal(0, 0.3, SIZE)
    updates = {name: (common + rng.normal(0, 0.1, SIZE)).astype(np.float32) for name in circle.leaders}
    updates[B] = -3 * updates[B]
    sizes = {name: 10 + number for number, name in enumerate(circle.leaders)}
    sealed = tuple(replace(c, sample_count=sizes[DeviceId(c.leader)]) for c in circle.contributions(updates))
    clear = tuple(replace(c, payload=updates[DeviceId(c.leader)].astype("<f4").tobytes()) for c in sealed)
    result, plain = circle.decrypt(sealed), aggregate_clear(AggregateRound(1, clear), SIZE, form)
    assert result is not None
    assert result.reasons.keys() == plain.reasons.keys()
    assert result.weights == pytest.approx(plain.weights, abs=0.01)
    assert result.evidence == pytest.approx(plain.evidence, abs=0.05)
    assert np.abs(result.update - plain.update).max() < 0.02


@settings(max_examples=5)
@given(st.integers(0, 10_000))
def test_the_weighted_sum_is_that_of_the_plain_updates_to_the_bound(seed: int) -> None:
    circle = shared_circle()
    rng = np.random.default_rng(seed)
    updates, round_no = updates_of(circle.leaders, seed), next(_ROUNDS)
    counts = rng.integers(1, 50, len(updates))
    contributions = tuple(
        replace(each, sample_count=int(count))
        for each, count in zip(circle.contributions(updates, round_no), counts, strict=True)
    )
    result = decrypt(circle, contributions, round_no)
    assert result is not None
    weights = without_dominant({leader: float(count) for leader, count in zip(updates, counts, strict=True)})
    expected = np.average(list(updates.values()), axis=0, weights=list(weights.values()))
    assert np.abs(result.update - expected).max() < error_bound(parameter_set("main"), 4, 4)


def test_a_cluster_that_merged_nothing_has_no_weight_and_two_must_speak(made: Circle) -> None:
    updates, round_no = updates_of((A, B, C)), next(_ROUNDS)
    contributions = made.contributions(updates, round_no)
    silent = replace(contributions[0], updates=0)
    result = decrypt(made, (silent, *contributions[1:]), round_no)
    assert result is not None
    assert result.weights[A] == 0.0
    assert np.abs(result.update - mean_of({B: updates[B], C: updates[C]})).max() < 1e-4
    round_no = next(_ROUNDS)
    alone = tuple(replace(each, updates=int(each.leader == A)) for each in made.contributions(updates, round_no))
    assert decrypt(made, alone, round_no) is None
    assert "1 clusters count, at least 2 must" in made.office.failures[-1].reason


# --- bad contributions


def sealed(circle: Circle, leader: str, update: np.ndarray, round_no: int, context: KeyContext | None = None) -> bytes:
    """A ciphertext under any context's name; the key itself is the circle's."""
    real = key_of(circle)
    material = circle.keepers[leader].material
    assert material is not None
    public = PublicKey.from_bytes(material.public, Origin(real, KEY_ROUND, DeviceId(COORDINATOR)))
    origin = Origin(context or real, round_no, DeviceId(leader))
    model = encrypt(public, update, replace(origin, context=real), SeededEntropy(1))
    return replace(model, origin=origin).to_bytes()


def weighted(circle: Circle, leader: str, update: np.ndarray, round_no: int) -> bytes:
    """A ciphertext that claims to be a weighted sum already."""
    data = sealed(circle, leader, update, round_no)
    model = EncryptedModel.from_bytes(data, Origin(key_of(circle), round_no, DeviceId(leader)))
    params = key_of(circle).params
    return replace(model, scale_bits=params.scale_bits + params.weight_bits).to_bytes()


def other_key(circle: Circle) -> KeyContext:
    return replace(key_of(circle), attempt=99)


def other_set(circle: Circle) -> KeyContext:
    return replace(key_of(circle), params=parameter_set("lean"))


ZERO = np.zeros(SIZE, np.float32)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda c, n: sealed(c, B, ZERO, n)[:-50], "truncated or altered"),
        (lambda c, n: sealed(c, B, ZERO, n)[:5000] + b"!" + sealed(c, B, ZERO, n)[5001:], "truncated or altered"),
        (lambda _c, _n: b"", "frame"),
        (lambda _c, _n: ZERO.tobytes(), "frame"),
        (lambda c, n: sealed(c, B, ZERO, n - 1), "round"),
        (lambda c, n: sealed(c, A, ZERO, n), "leader-0"),
        (lambda c, n: sealed(c, B, ZERO, n, other_key(c)), "key"),
        (lambda c, n: sealed(c, B, ZERO[:-1], n), "39 parameters, not the 40"),
        (lambda c, n: weighted(c, B, ZERO, n), "leader-1"),
    ],
    ids=["truncated", "altered", "empty", "clear", "old round", "another's", "other key", "other size", "weighted"],
)
def test_a_contribution_that_is_no_fresh_ciphertext_is_left_out_by_name(made: Circle, bad: object, reason: str) -> None:
    updates, round_no = updates_of(names(4)), next(_ROUNDS)
    contributions = tuple(
        replace(each, payload=bad(made, round_no)) if each.leader == B else each  # type: ignore[operator]
        for each in made.contributions(updates, round_no)
    )
    result = decrypt(made, contributions, round_no)
    assert result is not None
    assert result.refused.keys() == {B}
    assert re.search(reason, result.refused[B]), result.refused[B]
    assert B not in result.weights
    del updates[B]
    assert np.abs(result.update - mean_of(updates)).max() < 1e-4


def test_another_parameter_set_is_refused_by_name(made: Circle) -> None:
    round_no = next(_ROUNDS)
    good = made.contributions(updates_of((A, C, D)), round_no)
    data = bytearray(sealed(made, B, ZERO, round_no))
    other = replace(good[0], leader=B, payload=bytes(data).replace(b"circle", b"kreise", 1))
    result = decrypt(made, (*good, other), round_no)
    assert result is not None
    assert result.refused.keys() == {B}
    with pytest.raises(CryptoError, match=r"parameter set|another key"):
        EncryptedModel.from_bytes(bytes(data), Origin(other_set(made), round_no, B))


def test_a_round_with_one_usable_contribution_fails_and_says_why(made: Circle) -> None:
    round_no = next(_ROUNDS)
    good, bad = made.contributions(updates_of((A, B)), round_no)
    assert decrypt(made, (good, replace(bad, payload=b"junk")), round_no) is None
    (failure,) = made.office.failures
    assert failure.job is ScoreRound
    assert "1 usable contributions, at least 2 are needed" in failure.reason


@pytest.mark.parametrize("value", [16.5, -1e9, np.nan, np.inf])
def test_a_value_out_of_range_is_refused_before_it_is_encrypted(made: Circle, value: float) -> None:
    update = ZERO.copy()
    update[7] = value
    failed = run_job(made.tools[A], ProtectContribution(1, update, A, made.keepers[A].material))
    assert isinstance(failed, JobFailed)
    assert "model of leader-0: parameter 7 is" in failed.reason


def test_an_update_too_large_to_be_scored_is_left_out(made: Circle) -> None:
    updates, round_no = updates_of(names(4)), next(_ROUNDS)
    updates[B] = np.full(SIZE, 15.0, np.float32)
    result = decrypt(made, made.contributions(updates, round_no), round_no)
    assert result is None or B not in result.weights or result.weights[B] < 0.3


def test_in_the_clear_only_where_no_key_is_asked_for(made: Circle) -> None:
    update = updates_of((A,))[A]
    protected = run_job(made.tools[A], ProtectContribution(1, update, A))
    assert isinstance(protected, ContributionProtected)
    assert protected.payload == update.astype("<f4").tobytes()


# --- keys


def test_whoever_broke_a_key_generation_is_named() -> None:
    circle = Circle(names(3))
    assert circle.make_key()
    (make,) = [job for _, job in circle.done if isinstance(job, MakeKeys)]
    (finish,) = [job for name, job in circle.done if isinstance(job, FinishKeys) and name == A]
    tools = circle.tools
    for broken in (
        run_job(tools[COORDINATOR], replace(make, round2_shares={**make.round2_shares, B: make.round2_shares[B][:-1]})),
        run_job(tools[COORDINATOR], replace(make, round1_shares={**make.round1_shares, B: make.round1_shares[C]})),
        run_job(tools[A], replace(finish, round1_shares={**finish.round1_shares, B: b"\xc1"})),
        run_job(tools[A], replace(finish, deals={**finish.deals, B: finish.deals[C]})),
    ):
        assert isinstance(broken, JobFailed)
        assert broken.culprits == (B,)
        assert "leader-1" in broken.reason


def test_a_key_generation_with_an_unknown_parameter_set_fails_clearly() -> None:
    circle = Circle(names(2))
    circle.make_key()
    (begin, *_) = [job for _, job in circle.done if isinstance(job, BeginKeys)]
    failed = run_job(circle.tools[A], replace(begin, opened=msgspec.structs.replace(begin.opened, params="weak")))
    assert isinstance(failed, JobFailed)
    assert "weak" in failed.reason


def test_a_threshold_of_one_is_never_agreed_to() -> None:
    circle = Circle(names(2))
    circle.make_key()
    (begin, *_) = [job for _, job in circle.done if isinstance(job, BeginKeys)]
    failed = run_job(circle.tools[A], replace(begin, opened=msgspec.structs.replace(begin.opened, threshold=1)))
    assert isinstance(failed, JobFailed)
    assert "at least 2 leaders must decrypt" in failed.reason


def test_all_culprits_are_named_at_once() -> None:
    def read(_sender: DeviceId, data: bytes) -> int:
        if not data:
            raise CryptoError("nothing")
        return len(data)

    assert each_of({"a": b"1", "b": b"22"}, read) == {"a": 1, "b": 2}
    with pytest.raises(CulpritError, match="c: nothing; a: nothing") as caught:
        each_of({"c": b"", "a": b"", "b": b"1"}, read)
    assert caught.value.culprits == ("a", "c")


def test_without_scores_there_is_no_model(made: Circle) -> None:
    failed = run_job(made.tools[COORDINATOR], WeighRound(5, {}, (A, B), {}))
    assert isinstance(failed, JobFailed)
    assert "round 5 was not scored" in failed.reason
