"""What privacy events cost together.

DP-SGD is accounted by privacy loss distributions (`dp-accounting`), whose discretised form is an upper bound; Rényi
differential privacy, another upper bound, takes over where distributions would be too coarse. Where every record is in
every step the exact Gaussian needs neither (`privacy.gaussian`). Neighbours are *zero-out*: data sets of the same,
public size, in one of which a record is replaced by one whose gradient is zero. For them the Poisson-subsampled
Gaussian is accounted exactly; a record that is *replaced* by another costs about twice as much.

Releases of the paper's mode add up their lemmas' epsilons; what those leave out is said in `PAPER_CAVEATS`.
Work without protection costs infinity.

The packages take a second to import, so a device asks once for its settings and then only counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.events import Budget, DpSgdSteps, Event, PaperRelease, Unprotected
from ofl_iot.privacy.gaussian import epsilon_of, gaussian_multiplier

Method = Literal["tight", "rdp", "pld"]
NEIGHBOURS = "zero-out"
"""The neighbouring relation of every epsilon of DP-SGD that this package states."""

PAPER_CAVEATS = (
    "the scale of the utility and the sensitivities of the clusters are read off the private data",
    "the clusters are assumed to be the same for neighbouring data",
    "the total is what the paper's two lemmas add up to, for each single parameter released",
)
"""What the epsilon of the paper's mode does not cover."""

MAX_STEPS = 1 << 40

RENYI_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256)
"""Whole orders have a short closed form: fifteen times faster than with fractional ones, and less than 1 % looser."""

_INTERVAL = 2e-3
"""Grid of the discretised privacy losses: a hundredth of a percent above one ten times as fine, ten times as fast."""
_MOST_DISTRIBUTION_STEPS = 100_000
"""Beyond so many steps of one mechanism the grid's rounding adds up, and Rényi's bound is as good."""
_WIDEST_EPSILON = 200.0
"""Beyond it distributions take hundreds of megabytes."""
NOISE_STEP = 1.002
"""Grid of the search for a noise multiplier,"""
_NEAR, _NEAR_ENOUGH = 0.995, 0.998
"""which ends when this share of the budget is used, and aims a little higher."""
_LARGEST_NOISE = 1e6
_RDP_WASTE = 0.6
"""Distributions never needed less than this share of the noise that Rényi's bound needs."""


def epsilon(events: Iterable[Event], delta: float, method: Method = "tight") -> float:
    """Return an upper bound on the epsilon at `delta` of all events together (basic composition between modes)."""
    events = tuple(events)
    if any(isinstance(event, Unprotected) and event.trainings for event in events):
        return math.inf
    paper = math.fsum(event.epsilon for event in events if isinstance(event, PaperRelease))
    steps = tuple(event for event in events if isinstance(event, DpSgdSteps) and event.steps)
    return paper + (_steps_epsilon(steps, delta, method) if steps else 0.0)


@lru_cache(maxsize=4096)
def _steps_epsilon(steps: tuple[DpSgdSteps, ...], delta: float, method: Method) -> float:
    if method == "tight":
        if all(event.sampling_rate == 1 for event in steps):
            return epsilon_of(math.sqrt(math.fsum(event.steps / event.noise_multiplier**2 for event in steps)), delta)
        by_orders = _steps_epsilon(steps, delta, "rdp")
        if not _suits_distributions(steps, by_orders):
            return by_orders
        return min(by_orders, _steps_epsilon(steps, delta, "pld"))
    if method == "rdp":
        return _by_renyi(steps, delta)
    if method == "pld":
        return _by_distributions(steps, delta)
    raise ConfigError(f"accounting method {method!r}: use 'tight', 'pld' or 'rdp'")


@lru_cache(maxsize=1024)
def affordable_steps(
    budget: Budget, noise_multiplier: float, sampling_rate: float, spent: tuple[Event, ...] = ()
) -> int:
    """Return the most DP-SGD steps whose epsilon, on top of what was `spent`, stays within the budget."""
    step = DpSgdSteps(noise_multiplier, sampling_rate, 1)
    if math.isinf(budget.epsilon):
        return MAX_STEPS

    def fits(steps: int, method: Method) -> bool:
        return epsilon((*spent, DpSgdSteps(noise_multiplier, sampling_rate, steps)), budget.delta, method) <= (
            budget.epsilon
        )

    if not fits(1, "tight"):
        return 0
    exact = all(event.sampling_rate == 1 for event in (*spent, step) if isinstance(event, DpSgdSteps))
    rough = 1 if exact else max(1, _most(lambda steps: fits(steps, "rdp"), 1))
    return _most(lambda steps: fits(steps, "tight"), rough)


def noise_multiplier_for(budget: Budget, sampling_rate: float, steps: int) -> float:
    """Return a noise multiplier with which `steps` stay within the budget, at most half a percent above the least."""
    return _noise_multiplier_for(budget, rate_rounded_up(sampling_rate), steps)


@lru_cache(maxsize=1024)
def _noise_multiplier_for(budget: Budget, sampling_rate: float, steps: int) -> float:
    if not 0 < budget.epsilon < math.inf:
        raise ConfigError(f"no noise multiplier gives epsilon = {budget.epsilon}: choose a positive, finite one")
    if sampling_rate == 1:
        return _sensible(gaussian_multiplier(budget.epsilon, budget.delta) * math.sqrt(steps), budget, steps)
    rough = _least_noise(budget, DpSgdSteps(1.0, sampling_rate, steps), "rdp", (0.05, 1.0))
    planned = DpSgdSteps(rough, sampling_rate, steps)
    return _least_noise(budget, planned, "tight", (_RDP_WASTE * rough, rough))


def rate_rounded_up(sampling_rate: float) -> float:
    """Round a sampling rate up to two digits, so that devices with about as much data share one calibration.

    More sampling costs more, never less.
    """
    digits = 1 - math.floor(math.log10(sampling_rate))
    scale = 10.0**digits
    return min(1.0, math.ceil(round(sampling_rate * scale, 9)) / scale)


def _least_noise(budget: Budget, plan: DpSgdSteps, method: Method, bracket: tuple[float, float]) -> float:
    """The least noise with which a plan stays within the budget, by bisection."""
    low, high = bracket

    def cost(noise: float) -> float:
        return epsilon([replace(plan, noise_multiplier=noise)], budget.delta, method)

    def enough(noise: float) -> bool:
        return cost(noise) <= budget.epsilon

    while not enough(high):
        low, high = high, _sensible(2 * high, budget, plan.steps)
    while high / low > NOISE_STEP and cost(high) < _NEAR * budget.epsilon:
        middle = _between(low, high, cost, _NEAR_ENOUGH * budget.epsilon)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _between(low: float, high: float, cost: Callable[[float], float], wanted: float) -> float:
    """A noise inside the bracket at which the cost should be what is wanted, if log cost falls straight with log noise.

    Where there is no such noise, the middle of the bracket.
    """
    slope = math.log(cost(low) / cost(high)) / math.log(high / low) if cost(high) > 0 else 0.0
    guess = high * (cost(high) / wanted) ** (1 / slope) if slope > 0 else 0.0
    return guess if low < guess < high else math.sqrt(low * high)


def _sensible(noise: float, budget: Budget, steps: int) -> float:
    if noise > _LARGEST_NOISE:
        raise ConfigError(f"{steps} steps do not fit a budget of epsilon = {budget.epsilon}: plan fewer")
    return noise


def _most(fits: Callable[[int], bool], low: int) -> int:
    """The largest number of steps that fits, from one (`low`) that does."""
    high = low + max(1, low // 4)
    while high < MAX_STEPS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _suits_distributions(steps: Sequence[DpSgdSteps], by_orders: float) -> bool:
    """Whether discretised losses are neither too coarse nor too wide for these steps."""
    return by_orders < _WIDEST_EPSILON and sum(event.steps for event in steps) <= _MOST_DISTRIBUTION_STEPS


def _by_renyi(steps: Iterable[DpSgdSteps], delta: float) -> float:
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, rdp

    accountant = rdp.RdpAccountant(list(RENYI_ORDERS), NeighboringRelation.REPLACE_SPECIAL)
    for event in steps:
        accountant.compose(
            PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.noise_multiplier)), event.steps
        )
    return float(accountant.get_epsilon(delta))


def _by_distributions(steps: Sequence[DpSgdSteps], delta: float) -> float:
    composed, *others = [_losses(event) for event in steps]
    for other in others:
        composed = composed.compose(other)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=4)
def _losses(steps: DpSgdSteps) -> Any:
    """The distribution of the privacy loss of these steps; a few are kept, because searches change one mechanism."""
    return _losses_of_one(replace(steps, steps=1)).self_compose(steps.steps)


@lru_cache(maxsize=4)
def _losses_of_one(step: DpSgdSteps) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        step.noise_multiplier,
        sampling_prob=step.sampling_rate,
        value_discretization_interval=_INTERVAL,
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
    )
