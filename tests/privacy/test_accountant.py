"""What events cost together."""

from __future__ import annotations

import math
import subprocess
import sys
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.accountant import (
    MAX_STEPS,
    NEIGHBOURS,
    affordable_steps,
    epsilon,
    noise_multiplier_for,
    rate_rounded_up,
)
from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease, Unprotected

PAPER = PaperRelease(0.25, 0.75, 3)
mechanisms = st.tuples(st.floats(0.5, 4), st.floats(0.001, 0.3))


@settings(max_examples=3, deadline=None)
@given(mechanisms, st.floats(0.2, 20))
def test_all_affordable_steps_fit_the_budget_and_one_more_does_not(mechanism, eps):
    budget = Budget(eps)
    steps = affordable_steps(budget, *mechanism)
    assert epsilon([DpSgdSteps(*mechanism, steps)], budget.delta) <= eps
    assert epsilon([DpSgdSteps(*mechanism, steps + 1)], budget.delta) > eps


@settings(max_examples=2, deadline=None)
@given(mechanisms, mechanisms, st.integers(1, 200))
def test_what_was_spent_before_is_counted(first, second, steps):
    budget = Budget(6.0)
    spent = (DpSgdSteps(*first, min(steps, affordable_steps(budget, *first))), PAPER)
    more = affordable_steps(budget, *second, spent)
    assert not more or epsilon([*spent, DpSgdSteps(*second, more)], budget.delta) <= budget.epsilon
    assert epsilon([*spent, DpSgdSteps(*second, more + 1)], budget.delta) > budget.epsilon


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (5.0, 10), (20.0, 1000)])
def test_without_sampling_it_is_the_exact_gaussian_mechanism(noise, steps):
    sigma = noise / math.sqrt(steps)

    def delta(eps: float) -> float:  # Balle and Wang 2018, theorem 8
        normal = NormalDist().cdf
        return normal(0.5 / sigma - eps * sigma) - math.exp(eps) * normal(-0.5 / sigma - eps * sigma)

    low, high = 0.0, 50.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > 1e-5 else (low, middle)
    event = DpSgdSteps(noise, 1.0, steps)
    assert high <= epsilon([event], 1e-5) <= 1.0001 * high
    assert high <= epsilon([event], 1e-5, "pld") * 1.0001
    assert epsilon([event], 1e-5, "pld") <= 1.01 * high


def test_loss_distributions_are_tighter_than_renyi():
    event = DpSgdSteps(1.0, 0.02, 300)
    tight, loose = epsilon([event], 1e-5, "pld"), epsilon([event], 1e-5, "rdp")
    assert 0.7 * loose < tight < loose
    assert epsilon([event], 1e-5) == tight


def test_the_paper_mode_adds_up_and_nothing_costs_nothing():
    assert epsilon([], 1e-5) == 0
    assert epsilon([PAPER, PaperRelease(1, 1, 10)], 1e-5) == 23
    assert epsilon([DpSgdSteps(1, 0.1, 0)], 1e-5) == 0
    both = [PAPER, DpSgdSteps(1, 0.1, 10)]
    assert epsilon(both, 1e-5) == pytest.approx(3 + epsilon(both[1:], 1e-5))


def test_a_budget_too_small_affords_nothing_and_an_infinite_one_is_never_spent():
    assert affordable_steps(Budget(0), 1.0, 0.1) == 0
    assert affordable_steps(Budget(0.01), 0.5, 1.0) == 0
    assert affordable_steps(Budget(math.inf), 1.0, 0.1) == MAX_STEPS
    assert affordable_steps(Budget(8.0), 1.0, 0.1, (Unprotected(1),)) == 0


@settings(max_examples=6, deadline=None)
@given(mechanisms, mechanisms, st.integers(1, 300), st.integers(0, 300))
def test_more_of_anything_never_costs_less(first, second, steps, more):
    grid = 0.01  # losses are discretised
    less = epsilon([DpSgdSteps(*first, steps)], 1e-5)
    assert less <= epsilon([DpSgdSteps(*first, steps + more)], 1e-5) + grid
    assert less <= epsilon([DpSgdSteps(*first, steps), DpSgdSteps(*second, more)], 1e-5) + grid
    noise, rate = first
    assert less >= epsilon([DpSgdSteps(2 * noise, rate, steps)], 1e-5) - grid
    assert less <= epsilon([DpSgdSteps(noise, min(1.0, 2 * rate), steps)], 1e-5) + grid


@given(st.floats(1e-6, 1))
def test_a_rate_is_only_ever_rounded_up(rate):
    rounded = rate_rounded_up(rate)
    assert rate * (1 - 1e-8) <= rounded <= min(1.0, 1.1001 * rate)
    assert rate_rounded_up(rounded) == rounded


def test_work_without_protection_costs_infinity():
    assert epsilon([DpSgdSteps(1, 0.1, 1), Unprotected(1)], 1e-5) == math.inf
    assert epsilon([Unprotected(0)], 1e-5) == 0


def test_the_neighbours_are_zero_out_and_a_replaced_record_costs_more():
    from dp_accounting import GaussianDpEvent, NeighboringRelation, pld

    replaced = pld.PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3)
    replaced.compose(GaussianDpEvent(4.0), 20)
    assert NEIGHBOURS == "zero-out"
    assert epsilon([DpSgdSteps(4.0, 1.0, 20)], 1e-5) < replaced.get_epsilon(1e-5)


def test_the_noise_for_a_plan_is_enough_and_hardly_more():
    budget = Budget(8.0)
    noise = noise_multiplier_for(budget, 0.05, 400)
    assert (
        epsilon([DpSgdSteps(noise, 0.05, 400)], budget.delta)
        <= 8
        < epsilon([DpSgdSteps(noise * 0.99, 0.05, 400)], budget.delta)
    )


def test_what_cannot_be_accounted_is_refused():
    for wrong in (
        lambda: epsilon([DpSgdSteps(1, 0.1, 1)], 1e-5, "guess"),
        lambda: noise_multiplier_for(Budget(0), 0.1, 10),
        lambda: noise_multiplier_for(Budget(math.inf), 0.1, 10),
        lambda: noise_multiplier_for(Budget(1e-9, 1e-12), 1.0, 10**9),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_importing_the_package_stays_light():
    modules = "ofl_iot.privacy.ledger, ofl_iot.privacy.noise, ofl_iot.opportunity.release, ofl_iot.opportunity.plan"
    heavy = ("scipy", "numba", "dp_accounting", "sklearn")
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"
