"""What privacy events cost together, by the `dp-accounting` package.

DP-SGD is accounted by Rényi differential privacy, or by privacy loss distributions (`method="pld"`): about a tenth
tighter and ten times slower. Both are upper bounds for data that differ by one example more or less. Releases of the
paper's mode add up their lemmas' epsilons; what those leave out is said in `PAPER_CAVEATS`.

The package takes a second or more to import, so a device calls `affordable_steps` once for its settings and then
only counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.events import Budget, DpSgdSteps, Event, PaperRelease

Method = Literal["rdp", "pld"]

PAPER_CAVEATS = (
    "the scale of the utility and the sensitivities of the clusters are read off the private data",
    "the clusters are assumed to be the same for neighbouring data",
    "the total is what the paper's two lemmas add up to, for each single parameter released",
)
"""What the epsilon of the paper's mode does not cover."""

MAX_STEPS = 1 << 40

RENYI_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256)
"""Whole orders have a short closed form: fifteen times faster than with fractional ones, and less than 1 % looser."""

NOISE_STEP = 1.01
"""Grid of the search for a noise multiplier."""


def epsilon(events: Iterable[Event], delta: float, method: Method = "rdp") -> float:
    """The epsilon at `delta` of all events together (basic composition between the two modes)."""
    events = tuple(events)
    paper = math.fsum(event.epsilon for event in events if isinstance(event, PaperRelease))
    steps = [event for event in events if isinstance(event, DpSgdSteps) and event.steps]
    if not steps:
        return paper
    accountant = _accountant(method)
    for event in steps:
        accountant.compose(_sampled_gaussian(event), event.steps)
    return paper + float(accountant.get_epsilon(delta))


def affordable_steps(budget: Budget, noise_multiplier: float, sampling_rate: float, spent: Sequence[Event] = ()) -> int:
    """The most DP-SGD steps whose epsilon, on top of what was `spent`, stays within the budget."""
    step = DpSgdSteps(noise_multiplier, sampling_rate, 1)
    if math.isinf(budget.epsilon):
        return MAX_STEPS
    from dp_accounting import rdp

    paper = math.fsum(event.epsilon for event in spent if isinstance(event, PaperRelease))
    past = [event for event in spent if isinstance(event, DpSgdSteps)]
    (orders, before), (_, each) = _renyi(past), _renyi([step])

    def fits(steps: int) -> bool:
        return paper + float(rdp.compute_epsilon(orders, before + steps * each, budget.delta)[0]) <= budget.epsilon

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MAX_STEPS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def noise_multiplier_for(budget: Budget, sampling_rate: float, steps: int) -> float:
    """A noise multiplier, at most 1 % above the least, with which `steps` of DP-SGD stay within the budget."""
    return _noise_multiplier_for(budget, _rounded_up(sampling_rate), steps)


@lru_cache(maxsize=4096)
def _noise_multiplier_for(budget: Budget, sampling_rate: float, steps: int) -> float:
    if not 0 < budget.epsilon < math.inf:
        raise ConfigError(f"no noise multiplier gives epsilon = {budget.epsilon}: choose a positive, finite one")

    def cost(noise_multiplier: float) -> float:
        return epsilon([DpSgdSteps(noise_multiplier, sampling_rate, steps)], budget.delta)

    low, high = 0.05, 1.0
    while cost(high) > budget.epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise ConfigError(f"{steps} steps do not fit a budget of epsilon = {budget.epsilon}: plan fewer")
    while high / low > NOISE_STEP:
        middle: float = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > budget.epsilon else (low, middle)
    return high


def _rounded_up(sampling_rate: float) -> float:
    """To two digits, so that devices with about as much data share the search; more sampling costs more, never less."""
    digits = 1 - math.floor(math.log10(sampling_rate))
    scale = 10.0**digits
    return min(1.0, math.ceil(round(sampling_rate * scale, 9)) / scale)


def _accountant(method: Method) -> Any:
    import dp_accounting.pld
    import dp_accounting.rdp

    if method == "rdp":
        return dp_accounting.rdp.RdpAccountant(list(RENYI_ORDERS))
    if method == "pld":
        return dp_accounting.pld.PLDAccountant()
    raise ConfigError(f"accounting method {method!r}: use 'rdp' or 'pld'")


def _sampled_gaussian(event: DpSgdSteps) -> Any:
    import dp_accounting

    return dp_accounting.PoissonSampledDpEvent(
        event.sampling_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
    )


def _renyi(events: Iterable[DpSgdSteps]) -> tuple[Any, Any]:
    """Rényi orders and the events' cost at each; costs add up, so one step's is computed once."""
    accountant = _accountant("rdp")
    for event in events:
        accountant.compose(_sampled_gaussian(event), event.steps)
    return accountant._orders, accountant._rdp  # noqa: SLF001  no public way; a test compares with `epsilon`
