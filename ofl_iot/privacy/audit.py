"""An empirical lower bound on epsilon: a distinguishing game against the mechanism itself.

World 0 trains without a canary record, world 1 with it. Each run yields one score that is higher where the canary took
part. A threshold on the scores is a test of which world it was; for an (epsilon, delta)-DP mechanism its error rates
obey fpr + e^epsilon · fnr >= 1 - delta and the same with the rates exchanged (Kairouz et al. 2015), so observed rates
refute every smaller epsilon. Rates are bounded by Clopper and Pearson; the threshold is chosen on one half of the
scores and judged on the other. A Gaussian mechanism's rates obey more, Phi^-1(1 - fpr) - Phi^-1(fnr) <= mu (Nasr et al.
2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.gaussian import epsilon_of

Scores = npt.NDArray[np.float64]
_THRESHOLDS = 200
FEWEST_RUNS = 40


@dataclass(frozen=True)
class AuditResult:
    """What a game showed, beside what is claimed."""

    claimed: float
    """The accountant's epsilon."""
    lower: float
    """No smaller epsilon is compatible with the scores, at `confidence`."""
    lower_gaussian: float
    """The same under the assumption that the mechanism is Gaussian: tighter, and exact without sampling."""
    delta: float
    confidence: float
    runs: int
    """Trainings in each of the two worlds."""
    gaussian: bool = False
    """Whether the mechanism is Gaussian: every record is in every step."""

    @property
    def violated(self) -> bool:
        """Whether the game refutes the claim; where records are sampled the Gaussian bound refutes nothing."""
        return max(self.lower, self.lower_gaussian if self.gaussian else 0.0) > self.claimed


def play(run: Callable[[bool], float], runs: int) -> tuple[Scores, Scores]:
    """Play both worlds; `run` trains with or without the canary and returns the score."""
    if runs < FEWEST_RUNS:
        raise ConfigError(f"{runs} runs show nothing: play at least {FEWEST_RUNS}")
    without = np.array([run(False) for _ in range(runs)])  # noqa: FBT003  # the world
    with_canary = np.array([run(True) for _ in range(runs)])  # noqa: FBT003
    return without, with_canary


def judge(
    without: Scores,
    with_canary: Scores,
    claimed: float,
    delta: float,
    *,
    gaussian: bool = False,
    confidence: float = 0.95,
) -> AuditResult:
    """Bound epsilon from below by the scores of both worlds."""
    half, other_half = len(without) // 2, len(with_canary) // 2
    choosing, judging = (without[:half], with_canary[:other_half]), (without[half:], with_canary[other_half:])
    thresholds = np.unique(np.quantile(np.concatenate(choosing), np.linspace(0.001, 0.999, _THRESHOLDS)))
    alpha = (1 - confidence) / 2
    guesses = [(_rates(*choosing, float(each), alpha), float(each)) for each in thresholds]
    best = max(guesses, key=lambda guess: _epsilon_from(guess[0], delta))[1]
    best_gaussian = max(guesses, key=lambda guess: _mu_from(guess[0]))[1]
    lower = _epsilon_from(_rates(*judging, best, alpha), delta)
    mu = _mu_from(_rates(*judging, best_gaussian, alpha))
    by_mu = epsilon_of(mu, delta) if mu > 0 else 0.0
    return AuditResult(claimed, lower, by_mu, delta, confidence, len(without), gaussian)


def upper_rate(hits: int, trials: int, alpha: float) -> float:
    """Return the largest rate at which `hits` or fewer of `trials` have a chance of `alpha` (Clopper and Pearson)."""
    if hits >= trials:
        return 1.0
    counts = np.arange(hits + 1)
    ways = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in counts])
    low, high = hits / trials, 1.0
    while high - low > 1e-12:
        rate = (low + high) / 2
        if not low < rate < high:
            break
        logs = ways + counts * math.log(rate) + (trials - counts) * math.log1p(-rate)
        chance = float(np.exp(logs).sum())
        low, high = (rate, high) if chance > alpha else (low, rate)
    return high


def _rates(without: Scores, with_canary: Scores, threshold: float, alpha: float) -> tuple[float, float]:
    """Upper bounds on the rates of false alarms and of misses."""
    alarms, misses = int((without >= threshold).sum()), int((with_canary < threshold).sum())
    return upper_rate(alarms, len(without), alpha), upper_rate(misses, len(with_canary), alpha)


def _epsilon_from(rates: tuple[float, float], delta: float) -> float:
    fpr, fnr = rates
    bounds = [(1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr]
    return max(0.0, *(math.log(bound) for bound in bounds if bound > 0))


def _mu_from(rates: tuple[float, float]) -> float:
    fpr, fnr = rates
    if not (0 < fpr < 1 and 0 < fnr < 1):
        return 0.0
    normal = NormalDist()
    return normal.inv_cdf(1 - fpr) - normal.inv_cdf(fnr)
