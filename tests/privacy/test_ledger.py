"""Spend before release; refuse when nothing is left; never forget."""

from __future__ import annotations

import math
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import PrivacyError, StoreError
from ofl_iot.privacy.accountant import epsilon
from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease, Unprotected
from ofl_iot.privacy.ledger import MOST_ENTRIES, MOST_REFUNDS, Entry, Ledger

STEP = DpSgdSteps(2.0, 0.05, 1)
releases = st.builds(PaperRelease, st.sampled_from([0.5, 1.0]), st.sampled_from([0.5, 1.0]), st.integers(0, 50))


def steps(count: int) -> DpSgdSteps:
    return DpSgdSteps(STEP.noise_multiplier, STEP.sampling_rate, count)


@given(st.lists(releases, max_size=30), st.floats(0, 500))
def test_whatever_is_asked_for_the_total_stays_within_the_budget(events, eps):
    ledger, granted = Ledger(Budget(eps)), []
    for event in events:
        try:
            ledger = ledger.spend(event)
        except PrivacyError:
            continue
        granted.append(event)
    assert ledger.spent_epsilon() <= eps
    assert ledger.spent_epsilon() == pytest.approx(sum(event.epsilon for event in granted))
    assert Ledger.from_plain(msgpack.unpackb(msgpack.packb(ledger.to_plain()))) == ledger


@given(st.lists(st.integers(0, 40), max_size=20))
def test_steps_are_only_counted_and_never_more_than_allowed(counts):
    ledger, left = Ledger(Budget(8.0), allowance=steps(100)), 100
    for count in counts:
        if count > left:
            with pytest.raises(PrivacyError, match="uploads stop"):
                ledger.spend(steps(count))
        else:
            ledger, left = ledger.spend(steps(count)), left - count
    assert ledger.steps_left == left
    assert sum(event.steps for event in ledger.events) == 100 - left
    assert len(ledger.events) <= 1
    assert Ledger.from_plain(msgpack.unpackb(msgpack.packb(ledger.to_plain()))) == ledger


def test_a_life_of_steps_ends_within_the_budget():
    budget = Budget(2.0)
    ledger = Ledger(budget).allow(STEP.noise_multiplier, STEP.sampling_rate)
    assert ledger.steps_left > 10
    ledger = ledger.spend(steps(ledger.steps_left))
    assert 1.9 < ledger.spent_epsilon() <= 2.0
    with pytest.raises(PrivacyError):
        ledger.spend(STEP)


def test_a_changed_mechanism_gets_what_is_left():
    ledger = Ledger(Budget(4.0)).allow(2.0, 0.05)
    ledger = ledger.spend(steps(ledger.steps_left // 2))
    with pytest.raises(PrivacyError, match="allow"):
        ledger.spend(DpSgdSteps(1.9, 0.05, 1))
    changed = ledger.allow(3.0, 0.05)
    changed = changed.spend(DpSgdSteps(3.0, 0.05, changed.steps_left))
    assert epsilon(changed.events, 1e-5) <= 4.0
    assert len(changed.events) == 2


def test_a_crash_between_storing_and_releasing_only_counts_too_much():
    before = Ledger(Budget(100.0))
    stored = before.spend(PaperRelease(1, 1, 10)).to_plain()
    # crash: nothing was released
    after = Ledger.from_plain(stored)
    assert after.spent_epsilon() == 20 > before.spent_epsilon()


def test_a_discarded_training_is_paid_back_a_few_times_in_a_row_only():
    ledger = Ledger(Budget(8.0), allowance=steps(100))
    for failures in range(1, 10):
        ledger = ledger.spend(steps(10)).refund(steps(10))
        assert ledger.steps_left + ledger.steps_spent == 100
        assert ledger.steps_spent == 10 * max(0, failures - MOST_REFUNDS)
    ledger = ledger.spend(steps(10)).kept()
    again = ledger.spend(steps(10)).refund(steps(10))
    assert again.steps_left == ledger.steps_left, "a training that was kept begins the count anew"
    assert again.paid_steps == 110
    assert again.version == ledger.version + 2, "a refund is a change, too"


def test_what_was_not_paid_is_not_paid_back():
    ledger = Ledger(Budget(8.0), allowance=steps(100)).spend(steps(5))
    assert ledger.refund(steps(6)) == ledger
    assert ledger.refund(DpSgdSteps(9.0, 0.05, 1)) == ledger


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40))
def test_version_and_paid_steps_only_grow_and_nothing_kept_is_unpaid(trainings):
    ledger, kept = Ledger(Budget(8.0), allowance=steps(120)), 0
    for count, discarded in trainings:
        try:
            after = ledger.spend(steps(count))
        except PrivacyError:
            continue
        assert after.version > ledger.version
        assert after.paid_steps == ledger.paid_steps + count
        ledger = after.refund(steps(count)) if discarded else after.kept()
        kept += 0 if discarded else count
        assert kept <= ledger.steps_spent <= ledger.paid_steps
        assert ledger.steps_left + ledger.steps_spent == 120
    assert Ledger.from_plain(msgpack.unpackb(msgpack.packb(ledger.to_plain()))) == ledger


def test_more_sampling_than_planned_is_refused_and_less_is_charged_as_planned():
    ledger = Ledger(Budget(8.0), allowance=steps(100))
    with pytest.raises(PrivacyError, match="fewer records"):
        ledger.check_rate(0.06)
    with pytest.raises(PrivacyError, match="fewer records"):
        ledger.spend(DpSgdSteps(2.0, 0.06, 1))
    ledger.check_rate(0.05)
    assert ledger.spend(DpSgdSteps(2.0, 0.01, 7)).events == (steps(7),)


def test_off_is_entered_as_infinite_and_nothing_can_be_spent_after_it():
    terms = {"source": "pump", "budget": Budget(8.0), "at": 10.0}
    ledger = Ledger(Budget(8.0)).under(mode="off", **terms).spend(Unprotected(1)).spend(Unprotected(2))
    assert ledger.events == (Unprotected(3),)
    ledger = ledger.under(mode="rigorous", **terms)
    assert ledger.spent_epsilon() == math.inf
    assert ledger.allow(2.0, 0.05).steps_left == 0
    assert [entry.kind for entry in ledger.history] == ["opened", "mode"]


def test_a_new_budget_is_entered_and_forgets_nothing():
    terms = {"mode": "rigorous", "source": "pump", "budget": Budget(2.0)}
    ledger = Ledger(Budget(2.0)).under(at=1.0, **terms).allow(2.0, 0.05)
    ledger = ledger.spend(steps(ledger.steps_left))
    renewed = ledger.renewed(at=5.0, reason="the owner agreed", version=90, paid_steps=7).under(at=6.0, **terms)
    assert renewed.spent_epsilon() == 0
    assert renewed.total_epsilon() == ledger.spent_epsilon() > 1.9
    assert renewed.version == 91
    assert renewed.paid_steps == ledger.paid_steps
    assert renewed.accepted == 1
    assert renewed.history[-1] == Entry(5.0, "accepted", "the owner agreed")
    assert renewed.opened_at == 5.0
    assert Ledger.from_plain(msgpack.unpackb(msgpack.packb(renewed.to_plain()))) == renewed


def test_the_history_is_bounded_and_keeps_what_was_accepted():
    ledger = Ledger(Budget(2.0)).renewed(at=1.0, reason="agreed")
    for turn in range(2 * MOST_ENTRIES):
        mode = ("rigorous", "paper")[turn % 2]
        ledger = ledger.under(mode=mode, source="pump", budget=Budget(2.0), at=float(turn))
    assert len(ledger.history) == MOST_ENTRIES
    assert ledger.accepted == 1


def test_the_ledger_of_the_version_before_goes_on():
    stored = {
        "budget": [8.0, 1e-5],
        "events": [["dp-sgd", 2.0, 0.05, 480], ["paper", 1.0, 1.0, 3]],
        "allowance": ["dp-sgd", 2.0, 0.05, 520],
    }
    ledger = Ledger.from_plain(stored)
    assert (ledger.steps_spent, ledger.steps_left, ledger.paid_steps) == (480, 520, 480)
    assert ledger.spend(steps(20)).steps_left == 500


def test_another_source_or_budget_is_entered_and_the_spending_goes_on():
    ledger = Ledger(Budget(8.0)).under(mode="rigorous", source="pump", budget=Budget(8.0), at=1.0)
    ledger = replace(ledger, allowance=steps(100)).spend(steps(10))
    ledger = ledger.under(mode="rigorous", source="valve", budget=Budget(4.0), at=2.0)
    assert [entry.kind for entry in ledger.history] == ["opened", "source", "budget"]
    assert ledger.steps_spent == 10
    assert ledger.allowance is None, "what is left must be computed for the new budget"


def test_steps_must_be_allowed_first():
    with pytest.raises(PrivacyError, match="allow"):
        Ledger(Budget(8.0)).spend(STEP)
    assert Ledger(Budget(8.0)).steps_left == 0


def test_a_paper_release_after_steps_needs_a_new_allowance():
    ledger = Ledger(Budget(8.0)).allow(2.0, 0.05).spend(steps(10)).spend(PaperRelease(0.5, 0.5, 2))
    assert ledger.allowance is None
    assert ledger.allow(2.0, 0.05).steps_left > 0


def test_an_infinite_budget_only_reports():
    ledger = Ledger(Budget(math.inf)).spend(PaperRelease(1, 1, 10**9))
    assert ledger.spent_epsilon() == 2e9


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"budget": [1.0, 1e-5], "events": [["other", 1, 1, 1]], "allowance": None},
        {"budget": [1.0, 1e-5], "events": [["dp-sgd", 1, 1]], "allowance": None},
        {"budget": [1.0, 1e-5], "events": [], "allowance": ["paper", 1, 1, 1]},
        {"budget": [-1.0, 1e-5], "events": [], "allowance": None},
        {"budget": [1.0, 1e-5], "events": [["dp-sgd", 1.0, 0.1, -5]], "allowance": None},
    ],
)
def test_a_damaged_ledger_is_not_taken_for_a_new_one(damaged):
    with pytest.raises(StoreError, match="restore"):
        Ledger.from_plain(damaged)
