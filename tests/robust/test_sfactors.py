"""The five forms of the s-factor: laws all of them keep, and stories of the ledger."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, RoundError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.agreement import agreement, majority_core
from ofl_iot.robust.scores import RoundScores, plain_scores
from ofl_iot.robust.sfactors import DEFAULT_FORM, FORMS, Verdict, delta, ledger, literal, mad, s_factor
from ofl_iot.robust.suspicion import LedgerRules
from ofl_research import attacks

SIZE = 2000
seeds = st.integers(0, 2**32 - 1)
counts = st.integers(1, 12)
quick = settings(deadline=None, max_examples=40)


def honest_updates(n: int, seed: int, agreeing: float = 1.0) -> npt.NDArray[np.float64]:
    """A common direction and each leader's own, of the same norm at agreeing = 1: cosines of about a half."""
    rng = np.random.default_rng(seed)
    return agreeing * rng.normal(size=SIZE) + rng.normal(size=(n, SIZE))


def scored(rows: npt.NDArray[np.float64], base: npt.NDArray[np.float64] | None = None) -> RoundScores:
    return plain_scores({DeviceId(f"leader-{i}"): row for i, row in enumerate(rows)}, base)


def numbers(leaders: frozenset[DeviceId]) -> set[int]:
    return {int(leader.rsplit("-", maxsplit=1)[1]) for leader in leaders}


def after_rounds(rounds: list[npt.NDArray[np.float64]]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    evidence: Mapping[DeviceId, float] = {}
    for rows in rounds:
        verdicts.append(ledger(scored(rows), evidence))
        evidence = verdicts[-1].evidence_after
    return verdicts


@quick
@given(st.sampled_from(sorted(FORMS)), counts, seeds, st.floats(0.0, 3.0))
def test_every_form_gives_factors_between_nothing_and_one(form: str, n: int, seed: int, agreeing: float) -> None:
    rows = honest_updates(n, seed, agreeing) * np.random.default_rng(seed).lognormal(0.0, 2.0, size=(n, 1))
    verdict = FORMS[form](scored(rows, np.ones(SIZE)), {})
    assert verdict.multipliers.shape == (n,)
    assert ((verdict.multipliers >= 0.0) & (verdict.multipliers <= 1.0)).all()
    assert set(verdict.excluded) <= set(verdict.reasons)


@quick
@given(counts, seeds, st.lists(st.floats(0.0, 8.0), min_size=12, max_size=12))
def test_the_ledger_never_excludes_a_majority(n: int, seed: int, accounts: list[float]) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 50)) * rng.lognormal(0.0, 3.0, size=(n, 1))
    evidence = {DeviceId(f"leader-{i}"): account for i, account in enumerate(accounts)}
    verdict = ledger(scored(rows), evidence)
    assert len(verdict.excluded) <= (n - 1) // 2
    assert (verdict.multipliers > 0.0).sum() == n - len(verdict.excluded)
    assert all(0.0 <= account <= 8.0 for account in verdict.evidence_after.values())


@quick
@given(st.integers(3, 10), seeds)
def test_the_ledger_does_not_care_for_the_order_of_leaders(n: int, seed: int) -> None:
    rows = honest_updates(n, seed)
    rows[0] *= -3.0
    order = np.random.default_rng(seed + 1).permutation(n)
    names = [DeviceId(f"leader-{i}") for i in range(n)]
    straight = ledger(plain_scores(dict(zip(names, rows, strict=True))), {})
    shuffled = ledger(plain_scores({names[i]: rows[i] for i in order}), {})
    assert straight.excluded == shuffled.excluded
    for name in names:
        assert shuffled.evidence_after[name] == pytest.approx(straight.evidence_after[name])


@quick
@given(st.integers(3, 10), seeds, st.floats(1e-6, 1e6))
def test_the_ledger_does_not_care_for_the_unit_of_the_updates(n: int, seed: int, unit: float) -> None:
    rows = honest_updates(n, seed)
    one, other = ledger(scored(rows), {}), ledger(scored(unit * rows), {})
    np.testing.assert_allclose(one.multipliers, other.multipliers)


def test_honest_leaders_who_differ_are_left_alone() -> None:
    verdicts = after_rounds([honest_updates(10, seed, agreeing=0.6) for seed in range(30)])
    assert not any(verdict.excluded for verdict in verdicts)


@pytest.mark.parametrize("malicious", [2, 4])
@pytest.mark.parametrize(
    "attack",
    [
        attacks.flip_sign,
        lambda d: attacks.flip_sign(d, 3.0),
        lambda d: attacks.boost(d, 5.0),
        lambda d: attacks.gaussian(d, 5.0, np.random.default_rng(5)),
        lambda d: attacks.alternate(d, 3.0),
    ],
    ids=["sign flip", "sign flip x3", "boosted", "gaussian", "high frequency"],
)
def test_loud_and_opposed_leaders_are_out_at_once_and_stay_out(attack: object, malicious: int) -> None:
    rounds = [honest_updates(10, seed) for seed in range(5)]
    for rows in rounds:
        for i in range(malicious):
            rows[i] = attack(rows[i])  # type: ignore[operator]
    for verdict in after_rounds(rounds):
        assert numbers(verdict.excluded) == set(range(malicious))


def test_mild_opposition_takes_several_rounds() -> None:
    common = np.random.default_rng(0).normal(size=SIZE)
    rounds = [honest_updates(10, seed, 0.0) + common for seed in range(1, 9)]
    for rows in rounds:
        rows[0] -= 1.6 * common
    verdicts = after_rounds(rounds)
    assert not verdicts[0].excluded
    assert numbers(verdicts[-1].excluded) == {0}


def test_a_leader_that_behaves_again_is_forgiven() -> None:
    bad = honest_updates(10, 0)
    bad[3] *= -1.0
    verdicts = after_rounds([bad] + [honest_updates(10, seed) for seed in range(1, 12)])
    assert numbers(verdicts[0].excluded) == {3}
    assert not verdicts[-1].excluded


def test_evidence_of_absent_leaders_is_kept() -> None:
    verdict = ledger(scored(honest_updates(5, 0)), {DeviceId("elsewhere"): 3.0})
    assert verdict.evidence_after[DeviceId("elsewhere")] == 3.0


def test_a_tight_group_already_suspected_cannot_pose_as_the_majority() -> None:
    """Four colluders that agree perfectly and six honest leaders that agree a little."""
    rows = honest_updates(10, 0, agreeing=0.5)
    rows[:4] = np.random.default_rng(9).normal(size=SIZE) + 0.1 * rows[:4]
    evidence = {DeviceId(f"leader-{i}"): 4.0 for i in range(4)}
    assert numbers(ledger(scored(rows), evidence).excluded) == {0, 1, 2, 3}


def test_a_large_norm_is_weighed_down() -> None:
    rows = honest_updates(10, 0)
    rows[0] *= 1.4
    verdict = ledger(scored(rows), {})
    assert verdict.multipliers[0] == pytest.approx(1.3 / 1.4, rel=0.05)
    assert not verdict.excluded


def test_a_silent_leader_is_not_judged() -> None:
    rows = honest_updates(6, 0)
    rows[2] = 0.0
    verdict = ledger(scored(rows), {DeviceId("leader-2"): 1.0})
    assert verdict.multipliers[2] == 1.0
    assert verdict.evidence_after[DeviceId("leader-2")] == 1.0


@pytest.mark.parametrize("n", [1, 2])
def test_two_leaders_cannot_judge_each_other(n: int) -> None:
    rows = honest_updates(n, 0)
    rows[-1] *= -50.0
    assert ledger(scored(rows), {}).multipliers.tolist() == [1.0] * n


def test_a_broken_account_is_refused() -> None:
    with pytest.raises(RoundError, match="evidence account"):
        ledger(scored(honest_updates(4, 0)), {DeviceId("leader-0"): float("nan")})


def test_rules_can_be_changed() -> None:
    rows = honest_updates(6, 0)
    rows[0] *= -1.0
    assert ledger(scored(rows), {}).excluded
    assert not ledger(scored(rows), {}, LedgerRules(limit=7.0)).excluded


def test_equation_6_takes_the_farthest_and_loudest_to_zero() -> None:
    rows = honest_updates(5, 0)
    rows[1] = 10.0 * rows[1]
    verdict = delta(scored(rows), {})
    assert verdict.multipliers[1] == 0.0
    assert numbers(verdict.excluded) == {1}
    assert verdict.renormalise


def test_the_literal_form_looks_at_models_and_does_not_renormalise() -> None:
    rows, base = honest_updates(5, 0), 100.0 * np.random.default_rng(1).normal(size=SIZE)
    verdict = literal(scored(rows, base), {})
    assert not verdict.renormalise
    assert not np.allclose(verdict.multipliers, delta(scored(rows, base), {}).multipliers)
    np.testing.assert_allclose(literal(scored(rows), {}).multipliers, delta(scored(rows), {}).multipliers)


def test_the_mad_gate_drops_the_outlier_alone() -> None:
    rows = honest_updates(10, 0)
    rows[7] *= 5.0
    assert numbers(mad(scored(rows), {}).excluded) == {7}


def test_forms_are_found_by_name() -> None:
    assert s_factor(DEFAULT_FORM) is ledger
    with pytest.raises(ConfigError, match="use one of mean, literal"):
        s_factor("median")


def test_factors_outside_their_range_are_refused() -> None:
    with pytest.raises(RoundError, match="outside"):
        Verdict(np.array([1.5]))


@quick
@given(st.integers(2, 9), seeds)
def test_the_core_is_a_majority_of_the_asked_size(n: int, seed: int) -> None:
    cosines = np.corrcoef(np.random.default_rng(seed).normal(size=(n, 20)))
    least = n // 2 + 1
    assert majority_core(cosines, max(least, 2)).sum() >= least


def test_average_linkage_finds_the_two_groups() -> None:
    rows = np.random.default_rng(3).normal(size=(9, 200))
    rows[:5] += 2.0 * np.ones(200)
    rows[5:] -= 2.0 * np.ones(200)
    found = agreement(_cosines(rows), np.ones(9, dtype=bool), least=5)
    assert np.flatnonzero(found.core).tolist() == [0, 1, 2, 3, 4]
    assert found.within > 0.5
    assert (found.support[5:] < -0.5).all()


def test_a_majority_of_one_is_refused() -> None:
    with pytest.raises(RoundError, match="three or more"):
        majority_core(np.eye(3), 1)


def _cosines(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


@pytest.mark.parametrize(("n", "accused"), [(4, set()), (10, {0})])
def test_a_few_leaders_that_hardly_agree_accuse_nobody(n: int, accused: set[int]) -> None:
    """Four clusters near the end of learning: the one that alone holds a class points away from the three others."""
    rounds = [honest_updates(n, seed, agreeing=0.5) for seed in range(6)]
    for rows in rounds:
        rows[0] -= 2 * (rows[1:].mean(axis=0))
    assert numbers(after_rounds(rounds)[-1].excluded) == accused
