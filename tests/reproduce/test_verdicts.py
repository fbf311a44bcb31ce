"""The rules of comparison: laws of the verdict, of targets, of fits and of bytes to an accuracy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_research.reproduction.verdicts import (
    Spread,
    Target,
    ahead,
    common_level,
    compare,
    cost_to_reach,
    fitted_exponent,
    smoothed,
)

percent = st.floats(0, 100)
room = st.floats(0, 10)
curves = st.lists(percent, min_size=1, max_size=20).map(lambda ys: [(float(x), y) for x, y in enumerate(ys, 1)])
ORDER = ("not reproduced", "reproduced", "better")


@given(percent, percent, percent, room)
def test_a_higher_accuracy_never_gets_a_worse_verdict(a: float, b: float, paper: float, own: float) -> None:
    low, high = sorted((a, b))
    worse, better = (ORDER.index(compare(Spread(value, own, 3), paper)) for value in (low, high))
    assert worse <= better


@given(percent, room)
def test_the_papers_own_figure_is_reproduced(paper: float, own: float) -> None:
    assert compare(Spread(paper, own, 3), paper) == "reproduced"


@given(percent, percent, room)
def test_within_a_point_is_reproduced_however_much_our_seeds_scatter(mean: float, paper: float, own: float) -> None:
    verdict = compare(Spread(mean, own, 3), paper)
    gap = abs(mean - paper)
    if gap <= 1.0:
        assert verdict == "reproduced"
    elif gap > 1.0 + 1e-6:
        assert verdict == ("better" if mean > paper else "not reproduced")


def test_verdicts_on_the_edge() -> None:
    assert compare(Spread(93.17, 0.0, 1), 94.17) == "reproduced"
    assert compare(Spread(93.16, 0.0, 1), 94.17) == "not reproduced"
    assert compare(Spread(95.18, 0.0, 1), 94.17) == "better"
    assert compare(Spread(73.23, 8.87, 3), 78.55) == "not reproduced", "CFL on PubMed"


@given(st.lists(percent, min_size=1, max_size=6))
def test_the_mean_lies_within_and_the_deviation_of_equals_is_zero(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) - 1e-9 <= spread.mean <= max(values) + 1e-9
    assert spread.deviation >= 0
    assert Spread.of([values[0]] * 3).deviation == pytest.approx(0, abs=1e-9)


def test_a_deviation_is_the_samples_and_is_left_out_for_one_seed() -> None:
    assert Spread.of([1.0, 2.0, 3.0]).text() == "2.00 ± 1.00"
    assert Spread.of([2.0]).text() == "2.00"


@given(percent, percent, st.booleans())
def test_a_target_is_met_without_tolerance_and_says_so(value: float, bound: float, at_most: bool) -> None:
    target = Target("accuracy", value, bound, at_most=at_most)
    assert target.met == (value <= bound if at_most else value >= bound)
    assert ("; met" in target.text) == target.met


def test_a_target_that_was_not_measured_is_neither_met_nor_missed() -> None:
    target = Target("accuracy", None, 94.0)
    assert target.met is None
    assert "not measured" in target.text


@given(st.floats(-2, 3), st.floats(0.1, 100), st.lists(st.floats(1, 1e6), min_size=2, max_size=6, unique=True))
def test_the_exponent_of_a_power_is_found(exponent: float, factor: float, sizes: list[float]) -> None:
    if max(sizes) / min(sizes) < 1.1:
        return
    found = fitted_exponent(sizes, [factor * size**exponent for size in sizes])
    assert found == pytest.approx(exponent, abs=1e-6)


def test_no_exponent_from_one_size_or_from_nothing() -> None:
    assert fitted_exponent([5.0, 5.0], [1.0, 2.0]) is None
    assert fitted_exponent([1.0, 2.0], [0.0, 2.0]) is None


@given(curves, curves)
def test_both_curves_reach_the_common_level_and_one_of_them_no_more(first, second) -> None:  # type: ignore[no-untyped-def]
    level = common_level(first, second)
    assert cost_to_reach(first, level) is not None
    assert cost_to_reach(second, level) is not None
    assert level in {max(y for _, y in curve) for curve in (first, second)}


@given(curves, percent, percent)
def test_more_accuracy_never_costs_less(curve, a: float, b: float) -> None:  # type: ignore[no-untyped-def]
    low, high = sorted((a, b))
    cheap, dear = cost_to_reach(curve, low), cost_to_reach(curve, high)
    assert dear is None or (cheap is not None and cheap <= dear)


@given(curves)
def test_smoothing_stays_within_the_curve(curve) -> None:  # type: ignore[no-untyped-def]
    values = [y for _, y in curve]
    assert [x for x, _ in smoothed(curve)] == [x for x, _ in curve]
    assert all(min(values) - 1e-9 <= y <= max(values) + 1e-9 for _, y in smoothed(curve))


by_seed = st.dictionaries(st.integers(1, 6), percent, max_size=6)


@given(by_seed, by_seed)
def test_being_ahead_is_judged_on_the_seeds_that_both_have(ours: dict[int, float], theirs: dict[int, float]) -> None:
    target = ahead("ours", ours, theirs)
    both = ours.keys() & theirs.keys()
    if not both:
        assert target.met is None
        return
    assert target.value == pytest.approx(sum(ours[seed] - theirs[seed] for seed in both) / len(both))
    assert target.met == (target.value is not None and target.value > 0)
    alone = ahead("ours", {seed: ours[seed] for seed in both}, {seed: theirs[seed] for seed in both})
    assert alone == target


def test_a_lead_is_told_with_its_spread_and_its_seeds() -> None:
    lead = ahead("ours", {1: 91.0, 2: 93.0, 3: 50.0}, {1: 90.0, 2: 90.0})
    assert lead.text == "ours: more than 0 points; met with 2 points (deviation 1.4 over seeds 1, 2)"
    alone = ahead("ours", {1: 89.0}, {1: 90.0})
    assert alone.text == "ours: more than 0 points; missed with -1 points (seed 1 alone), by 1 points"
