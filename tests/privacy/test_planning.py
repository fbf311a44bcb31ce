"""A budget is spread over a life, and never spent faster."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.accountant import epsilon
from ofl_iot.privacy.events import Budget, DpSgdSteps
from ofl_iot.privacy.planning import (
    CARRY,
    Fleet,
    Lifetime,
    Pace,
    balance_in_words,
    duration_in_words,
    plan_training,
)

BUDGET = Budget(8.0)
DAY = 86400.0


@pytest.mark.parametrize(
    ("text", "lifetime"),
    [
        ("90 d", Lifetime(seconds=90 * DAY)),
        ("12h", Lifetime(seconds=12 * 3600)),
        (" 1.5 min ", Lifetime(seconds=90)),
        ("200 rounds", Lifetime(rounds=200)),
        ("1 round", Lifetime(rounds=1)),
    ],
)
def test_a_lifetime_is_a_time_or_a_number_of_rounds(text, lifetime):
    assert Lifetime.parse(text) == lifetime


@pytest.mark.parametrize(
    "text", ["", "90", "0 d", "-3 d", "1.5 rounds", "nan d", "90 days ago", "9" * 12 + " d", "1e5 d"]
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="lifetime"):
        Lifetime.parse(text)


def test_a_lifetime_can_be_read_back():
    for text in ("90 days", "200 rounds"):
        assert str(Lifetime.parse(text.replace("days", "d"))) == text


lifetimes = st.one_of(st.builds(Lifetime, rounds=st.integers(1, 500)), st.builds(Lifetime, seconds=st.floats(1, 1e8)))


@given(
    st.integers(1, 3000),
    lifetimes,
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(-5, 200)), max_size=60),
)
def test_whatever_clock_and_rounds_do_the_plan_is_never_exceeded_and_nobody_bursts(steps, lifetime, each, moments):
    pace, spent = Pace(steps, lifetime, opened_at=1000.0, opened_round=3, each=each), 0
    for clock, round_no in moments:
        allowed = pace.allowed(spent, clock, round_no)
        assert 0 <= allowed <= CARRY * each
        spent += allowed
        assert spent <= steps


@given(st.integers(1, 300), st.integers(1, 10))
def test_who_takes_part_in_every_round_spends_the_same_in_each_and_all_at_the_end(rounds, each):
    pace, spent = Pace(rounds * each, Lifetime(rounds=rounds), 0.0, each=each), 0
    for round_no in range(rounds):
        assert pace.allowed(spent, 0.0, round_no) == each
        spent += each
    assert spent == rounds * each
    assert pace.allowed(spent, 1e12, rounds + 5) == 0


def test_who_was_away_catches_up_a_little_at_a_time():
    pace = Pace(200, Lifetime(rounds=200), 0.0)
    assert pace.allowed(1, 0.0, 0) == 0
    assert pace.allowed(1, 0.0, 100) == CARRY


def test_the_calendar_gives_a_step_when_its_time_has_come():
    pace = Pace(90, Lifetime.parse("90 d"), opened_at=1000.0)
    assert pace.allowed(0, 1000.0, 7) == 0
    assert pace.allowed(0, 1000.0 + DAY, 7) == 1
    assert pace.allowed(1, 1000.0 + DAY, 7) == 0
    assert pace.allowed(0, 999.0, 7) == 0, "a clock that stepped back gives nothing"
    due = pace.next_at(1, 1)
    assert due == pytest.approx(1000.0 + 2 * DAY)
    assert pace.allowed(1, due + 1e-3, 0) >= 1
    assert pace.next_at(90, 1) is None
    assert Pace(90, Lifetime(rounds=90), 0.0).next_at(1, 1) is None


@settings(max_examples=5, deadline=None)
@given(st.integers(20_000, 200_000), st.integers(100, 5000), st.sampled_from([2.0, 8.0]), st.integers(1, 30))
def test_a_plan_spends_at_most_the_budget(records, parameters, eps, devices):
    budget = Budget(eps)
    plan = plan_training(budget, Fleet(records, devices), parameters, most_steps=200)
    assert epsilon([DpSgdSteps(plan.noise_multiplier, plan.sampling_rate, plan.steps)], budget.delta) <= eps
    assert 5 <= plan.steps <= 200
    assert 0 < plan.learning_rate <= 12
    assert plan.sampling_rate >= min(1.0, 8192 / records)


def test_the_published_plans():
    # Cora's features, 1,208 records: 25 steps with noise once; never fewer than 20
    assert plan_training(BUDGET, Fleet(1208, 1), 10_038, 200).steps == 25
    assert plan_training(BUDGET, Fleet(1208, 16), 2_000, 200).steps == 20
    assert plan_training(BUDGET, Fleet(55_000, 16), 6_634, 200).steps == 200


def test_a_model_too_large_is_refused_with_the_size_that_is_not():
    with pytest.raises(ConfigError, match=r"At most (\d+) parameters") as refused:
        plan_training(BUDGET, Fleet(1208, 16), 23_000, 200)
    most = int(str(refused.value).split("At most ")[1].split()[0])
    plan_training(BUDGET, Fleet(1208, 16), most, 200)
    with pytest.raises(ConfigError):
        plan_training(BUDGET, Fleet(1208, 16), most + 2, 200)


def test_the_balance_is_told_in_words():
    assert balance_in_words(3.14, BUDGET, 61 * DAY, None) == "epsilon 3.1 of 8 spent, 61 days left at this pace"
    assert balance_in_words(0.5, BUDGET, None, 120.9) == "epsilon 0.5 of 8 spent, 120 rounds left at this pace"
    assert balance_in_words(8.0, BUDGET, None, None) == "epsilon 8 of 8 spent, nothing left"
    assert "infinite" in balance_in_words(math.inf, BUDGET, None, None)
    assert "without a limit" in balance_in_words(40.0, Budget(math.inf), None, None)
    assert duration_in_words(7200) == "2 hours"
    assert duration_in_words(90) == "90 seconds"
