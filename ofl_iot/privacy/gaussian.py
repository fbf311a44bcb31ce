"""The Gaussian mechanism, exactly and without any package (Balle and Wang 2018, theorem 8).

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon · Phi(-mu/2 - epsilon/mu),     mu = 1 / noise multiplier

Releases of the same records compose to one Gaussian: mu² = sum of mu_i². Where every record is in every sum (sampling
rate 1) this is all the accounting there is.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ofl_iot.errors import ConfigError

_LARGEST_EPSILON = 1e7
_TAIL = 25.0
"""Beyond so many deviations `math.erfc` loses digits: an expansion takes its place."""
_SLACK = 1e-9
"""Share by which results are rounded to the safe side: more than what floating point takes."""


def delta_at(epsilon: float, mu: float) -> float:
    """Return the smallest delta at which a Gaussian mechanism with this mu is (epsilon, delta)-DP."""
    if mu <= 0:
        return 0.0
    upper = math.exp(_log_phi(mu / 2 - epsilon / mu))
    lower = math.exp(min(0.0, epsilon + _log_phi(-mu / 2 - epsilon / mu)))
    return max(0.0, upper - lower)


def epsilon_of(mu: float, delta: float) -> float:
    """Return an epsilon, rounded up, at which a Gaussian mechanism with this mu is (epsilon, delta)-DP."""
    if delta_at(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high, mu) > delta:
        high *= 2
        if high > _LARGEST_EPSILON:
            return math.inf
    low = 0.0
    while high - low > _SLACK * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle, mu) > delta else (low, middle)
    return high * (1 + _SLACK)


@lru_cache(maxsize=256)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier, rounded up, of one release that spends the whole budget."""
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"no noise multiplier gives epsilon = {epsilon}: choose a positive, finite one")
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > _SLACK * high:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_of(middle, delta) > epsilon else (middle, high)
    if not low:
        raise ConfigError(f"a budget of epsilon = {epsilon}, delta = {delta} is too small for any release")
    return 1 / low


def _log_phi(x: float) -> float:
    """The logarithm of the normal distribution's cdf."""
    if x > -_TAIL:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    square = x * x
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4
    return -square / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)
