"""Spend before release; refuse when nothing is left; never forget."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import PrivacyError, StoreError
from ofl_iot.privacy.accountant import epsilon
from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease
from ofl_iot.privacy.ledger import Ledger

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
        ledger.spend(DpSgdSteps(3.0, 0.05, 1))
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
