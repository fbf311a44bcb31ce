"""Eq. 4: the resource plan."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.plan import NOTHING, Cost, Costs, Limits, Plan, costs_of, label_balance, limits_of, plan

RESOURCES = [field.name for field in fields(Limits)]
amounts = st.one_of(st.just(0.0), st.floats(1e-12, 1e12))
costs = st.builds(
    lambda parameters, *pairs: Costs(parameters, *(Cost(*pair) for pair in pairs)),
    st.integers(1, 10**9),
    *[st.tuples(amounts, amounts)] * 5,
)
limits = st.builds(Limits, *[st.one_of(amounts, st.floats(1e-6, 1e24), st.just(math.inf))] * 5)
objectives = st.sampled_from(["fair", "linear"])


def worth(answer: Plan, objective: str) -> float:
    product, total = answer.gamma_up * answer.gamma_down, answer.gamma_up + answer.gamma_down
    return product if objective == "fair" else total


def used(answer: Plan, price: Costs, resource: str) -> float:
    cost: Cost = getattr(price, resource)
    return (cost.up * answer.gamma_up + cost.down * answer.gamma_down) * price.parameters


@given(costs, limits, objectives)
def test_shares_lie_between_zero_and_one_and_no_limit_is_broken(price, limit, objective):
    answer = plan(price, limit, objective)
    assert 0 <= answer.gamma_up <= 1
    assert 0 <= answer.gamma_down <= 1
    for resource in RESOURCES:
        assert used(answer, price, resource) <= getattr(limit, resource) * (1 + 1e-9)


@given(costs, limits, objectives, st.sampled_from(RESOURCES), st.floats(1, 1e6))
def test_more_of_a_resource_is_never_worse(price, limit, objective, resource, factor):
    richer = replace(limit, **{resource: getattr(limit, resource) * factor})
    before, after = worth(plan(price, limit, objective), objective), worth(plan(price, richer, objective), objective)
    assert after >= before * (1 - 1e-9)


@given(costs, limits, st.floats(0, 1))
def test_no_feasible_choice_is_better(price, limit, share):
    for objective in ("fair", "linear"):
        best = plan(price, limit, objective)
        # any up-share, with as much download as the limits leave
        bounds = [
            (getattr(limit, name) - cost.up * price.parameters * share, cost.down * price.parameters)
            for name in RESOURCES
            for cost in [getattr(price, name)]
        ]
        if any(left < 0 for left, _ in bounds):
            continue
        down = min([1.0, *(left / price_down for left, price_down in bounds if price_down > 0)])
        assert worth(Plan(share, down, ""), objective) <= worth(best, objective) * (1 + 1e-6) + 1e-12


@given(costs, limits, objectives)
def test_the_binding_resource_is_used_up_or_nothing_binds(price, limit, objective):
    answer = plan(price, limit, objective)
    if answer.binding == NOTHING:
        assert (answer.gamma_up, answer.gamma_down) == (1, 1)
    else:
        resource = next(name for name in RESOURCES if name.startswith(answer.binding))
        assert used(answer, price, resource) >= getattr(limit, resource) * (1 - 1e-6)


def test_the_linear_program_agrees_with_scipy():
    from scipy.optimize import linprog

    rng = np.random.default_rng(4)
    for _ in range(100):
        rows, bounds = 10 ** rng.uniform(-2, 2, (5, 2)), 10 ** rng.uniform(-2, 2, 5)
        answer = plan(Costs(1, *(Cost(*row) for row in rows)), Limits(*bounds), "linear")
        reference = linprog([-1, -1], A_ub=rows, b_ub=bounds, bounds=[(0, 1)] * 2)
        assert answer.gamma_up + answer.gamma_down == pytest.approx(-reference.fun, rel=1e-6)


def test_the_linear_program_starves_a_direction_that_the_fair_plan_serves():
    price = Costs(1000, communication_bytes=Cost(up=3, down=2))
    limit = Limits(communication_bytes=600)
    assert plan(price, limit, "linear").gamma_up == 0
    fair = plan(price, limit)
    assert fair.gamma_up == pytest.approx(0.1)
    assert fair.gamma_down == pytest.approx(0.15)
    assert fair.binding == "communication"


def test_a_rich_device_exchanges_everything():
    assert plan(Costs(10, computing_s=Cost(1, 1)), Limits()) == Plan(1.0, 1.0, NOTHING)


def test_an_exhausted_privacy_budget_stops_uploads_but_not_downloads():
    price = costs_of(1000, local_steps=10, batch_size=32, step_s=0.01, bytes_up=3, bytes_down=2, privacy_units=10)
    answer = plan(price, limits_of(link_bytes_per_s=1e5, contact_s=60, privacy_units_left=0))
    assert (answer.gamma_up, answer.gamma_down, answer.binding) == (0.0, 1.0, "privacy")


def test_a_short_contact_shrinks_both_directions():
    price = costs_of(100_000, local_steps=10, batch_size=32, step_s=0.01, bytes_up=3, bytes_down=2)
    long, short = (plan(price, limits_of(link_bytes_per_s=1e4, contact_s=contact)) for contact in (20, 2))
    assert 0 < short.gamma_up < long.gamma_up < 1
    assert 0 < short.gamma_down < long.gamma_down


def test_the_cost_model_charges_training_and_radio_to_the_battery():
    price = costs_of(
        100, local_steps=5, batch_size=8, step_s=2, bytes_up=4, bytes_down=2, computing_w=10, radio_j_per_byte=0.5
    )
    assert price.computing_s == Cost(0.1, 0)
    assert price.data_examples == Cost(0.4, 0)
    assert price.availability_j == Cost(1 + 2, 1)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_the_balance_of_labels_lies_between_one_class_and_all_alike(counts):
    balance = label_balance(counts)
    assert 1 / len(counts) - 1e-9 <= balance <= 1
    assert balance == pytest.approx(label_balance(sorted(counts)))


def test_the_balance_of_labels_is_the_effective_share_of_classes():
    assert label_balance([7] * 10) == pytest.approx(1)
    assert label_balance([0, 9, 0, 0]) == pytest.approx(1 / 4)
    assert label_balance([5, 5, 0, 0]) == pytest.approx(1 / 2)
    assert label_balance([0, 0]) == 1


def test_skewed_data_are_a_scarcer_resource():
    price = costs_of(1000, local_steps=10, batch_size=32, step_s=0.01, bytes_up=3, bytes_down=2)
    even, skewed = (plan(price, limits_of(examples=100, balance=balance)) for balance in (1.0, 0.5))
    assert skewed.binding == even.binding == "data"
    assert skewed.gamma_up == pytest.approx(even.gamma_up / 2)


def test_measured_amounts_below_zero_mean_nothing_left_and_unknown_means_no_limit():
    assert limits_of(energy_j=-3).availability_j == 0
    assert limits_of(link_bytes_per_s=0).communication_bytes == 0
    assert limits_of().computing_s == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Limits(computing_s=math.nan),
        lambda: Limits(computing_s=-1),
        lambda: Cost(up=math.inf),
        lambda: Cost(down=-1),
        lambda: Costs(0),
        lambda: limits_of(contact_s=math.nan),
        lambda: plan(Costs(1), Limits(), "greedy"),
        lambda: plan(Costs(10**9, computing_s=Cost(1e300, 0)), Limits(computing_s=1)),
        lambda: costs_of(0, local_steps=1, batch_size=1, step_s=1, bytes_up=1, bytes_down=1),
    ],
)
def test_what_cannot_be_planned_is_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()
