"""The best parameters, and the exponential mechanism's draw of them."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ofl_iot.errors import ConfigError
from ofl_iot.opportunity.selection import select_private, select_top, utility_levels

scores = hnp.arrays(np.float32, st.integers(0, 300), elements=st.floats(0, 2.0**127, width=32))
few_scores = hnp.arrays(np.float32, st.integers(0, 300), elements=st.sampled_from([0.0, 1.0, 2.0]))


@given(st.one_of(scores, few_scores), st.floats(0, 1))
def test_the_top_is_what_a_stable_sort_puts_first(values, share):
    count = int(share * len(values))
    expected = np.sort(np.argsort(-values, kind="stable")[:count])
    chosen = select_top(values, count)
    assert chosen.dtype == np.int32
    np.testing.assert_array_equal(chosen, expected)


@pytest.mark.parametrize("share", [1e-5, 0.01, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("kind", ["normal", "heavy", "sorted", "equal", "periodic"])
def test_the_top_of_long_vectors_is_exact_however_the_sample_misleads(share, kind):
    rng = np.random.default_rng(5)
    values = {
        "normal": lambda: np.abs(rng.standard_normal(200_001)),
        "heavy": lambda: rng.pareto(0.3, 200_001),
        "sorted": lambda: np.arange(200_001.0),
        "equal": lambda: np.ones(200_001),
        "periodic": lambda: np.where(np.arange(200_001) % 13 == 0, 1.0, rng.random(200_001)),
    }[kind]().astype(np.float32)
    count = int(share * len(values))
    expected = np.sort(np.argsort(-values, kind="stable")[:count])
    np.testing.assert_array_equal(select_top(values, count), expected)


@given(st.one_of(scores, few_scores), st.floats(0, 1), st.floats(1e-3, 1e5), st.integers(0, 2**32))
def test_a_private_draw_is_as_many_different_places_as_asked_for(values, share, eps1, seed):
    levels = utility_levels(values)
    count = int(share * len(levels))
    chosen = select_private(levels, count, eps1, np.random.default_rng(seed))
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()
    assert not count or (chosen[0] >= 0 and chosen[-1] < len(levels))


def pick_by_pick(levels: np.ndarray, count: int, eps1: float) -> dict[frozenset[int], float]:
    """The exact chance of each set under the mechanism as the paper writes it."""
    weights = np.exp(eps1 * levels / 255 / 2)
    chances: Counter[frozenset[int]] = Counter()
    for order in permutations(range(len(levels)), count):
        chance, left = 1.0, weights.sum()
        for place in order:
            chance *= weights[place] / left
            left -= weights[place]
        chances[frozenset(order)] += chance
    return dict(chances)


@pytest.mark.parametrize("eps1", [0.5, 6.0, 25.0])
def test_the_race_draws_what_the_pick_by_pick_mechanism_draws(eps1):
    levels = np.array([0, 20, 90, 90, 180, 255], np.uint8)
    expected, draws = pick_by_pick(levels, 3, eps1), 5_000
    rng = np.random.default_rng(11)
    seen = Counter(frozenset(select_private(levels, 3, eps1, rng).tolist()) for _ in range(draws))
    assert set(seen) <= set(expected)
    sets = [chosen for chosen in expected if expected[chosen] * draws >= 5]
    squares = sum((seen[s] - draws * expected[s]) ** 2 / (draws * expected[s]) for s in sets)
    # chi-squared with at most 19 degrees of freedom exceeds 43.8 once in a thousand times
    assert squares < 43.8


def test_in_a_long_vector_each_level_is_drawn_as_often_as_by_gumbel_noise():
    rng = np.random.default_rng(12)
    levels = np.repeat(np.array([0, 60, 128, 200, 255], np.uint8), 40_000)
    count, eps1 = 20_000, 8.0
    noisy = eps1 / 2 * levels / 255 + rng.gumbel(size=len(levels))
    reference = np.bincount(levels[np.argpartition(noisy, -count)[-count:]], minlength=256)
    drawn = np.bincount(levels[select_private(levels, count, eps1, rng)], minlength=256)
    for level in (0, 60, 128, 200, 255):
        assert abs(drawn[level] - reference[level]) < 6 * np.sqrt(reference[level] + 1)


def test_a_large_epsilon_comes_near_the_top_and_a_small_one_near_chance():
    values = np.abs(np.random.default_rng(1).standard_normal(50_000)).astype(np.float32)
    levels, top = utility_levels(values), set(select_top(values, 5000).tolist())
    hits = {
        eps1: len(top & set(select_private(levels, 5000, eps1, np.random.default_rng(2)).tolist())) / 5000
        for eps1 in (0.01, 10.0, 200.0)
    }
    assert hits[0.01] == pytest.approx(0.1, abs=0.03)
    assert hits[10.0] > 0.3
    assert hits[200.0] > 0.8


def test_one_outlier_does_not_set_the_scale_of_utility():
    values = np.abs(np.random.default_rng(1).standard_normal(10_000)).astype(np.float32)
    values[3] = 1e30
    assert 40 < np.median(utility_levels(values)) < 100


def test_utility_of_equal_or_mostly_missing_scores_is_defined():
    assert set(utility_levels(np.full(10, 3e38, np.float32)).tolist()) == {255}
    assert set(utility_levels(np.zeros(10, np.float32)).tolist()) == {0}
    single = np.zeros(10_000, np.float32)
    single[5] = 1e-30
    assert utility_levels(single)[5] > 0
    assert not len(utility_levels(np.empty(0, np.float32)))


def test_the_same_seed_draws_the_same():
    levels = utility_levels(np.arange(1000, dtype=np.float32))
    first, second = (select_private(levels, 100, 1.0, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_impossible_requests_are_refused():
    levels, rng = np.zeros(3, np.uint8), np.random.default_rng(0)
    for wrong in (
        lambda: select_top(np.zeros(3, np.float32), 4),
        lambda: select_top(np.zeros(3, np.float32), -1),
        lambda: select_private(levels, 4, 1.0, rng),
        lambda: select_private(levels, 1, 0.0, rng),
        lambda: select_private(levels, 1, float("nan"), rng),
        lambda: select_private(levels, 1, float("inf"), rng),
    ):
        with pytest.raises(ConfigError):
            wrong()
