"""How a privacy budget is spread over a device's life: how many noisy steps, when, and with which noise.

    lifetime  "90 d" or "200 rounds"  ─▶  plan: steps, sampling rate, noise, clip norm, learning rate  ─▶  pace

Everything here is computed from public numbers: settings, the (announced) number of records, the model's size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.accountant import noise_multiplier_for, rate_rounded_up
from ofl_iot.privacy.events import Budget, DpSgdSteps
from ofl_iot.privacy.gaussian import gaussian_multiplier

CARRY = 3
"""Rounds' worth of steps by which a device that was away may catch up; it never bursts beyond them."""
CLIP_NORM = 0.5
MOMENTUM = 0.9
SIGNAL = 4.0
"""Least ratio of a mean gradient of clipping length to its noise, in one step that spends all."""
RECORDS_A_STEP = 8192
LEARNING_RATE = 12.0
"""Learning rate of linear and one-hidden-layer nets, inputs of length 1 to sqrt(inputs)/3; deep nets need less."""
FEWEST_STEPS = 20
"""Fewer would hang on every single one that a device misses."""
ROUNDED_UP = 0.75
"""Share of an announced number of records that is expected: it is rounded up to a power of two."""
_WHOLE = 1e-6
"""Less than this part of a step is rounding."""

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LIFETIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(rounds?|s|min|h|d|w)\s*\Z")


@dataclass(frozen=True)
class Lifetime:
    """How long a budget is to last: in seconds or in rounds, one of them is 0."""

    seconds: float = 0.0
    rounds: int = 0

    def __str__(self) -> str:
        return f"{self.rounds} rounds" if self.rounds else duration_in_words(self.seconds)

    @staticmethod
    def parse(text: str) -> Lifetime:
        """Read "90 d", "12 h", "200 rounds"; ConfigError for anything else."""
        found = _LIFETIME.match(text)
        number = float(found[1]) if found else 0.0
        if not found or not 0 < number <= 1e9:
            raise ConfigError(
                f"privacy.lifetime is {text!r}: give a time (30 min, 12 h, 90 d, 26 w) or rounds (200 rounds)"
            )
        if not found[2].startswith("round"):
            return Lifetime(seconds=number * _UNITS[found[2]])
        if number != int(number):
            raise ConfigError(f"privacy.lifetime is {text!r}: rounds come whole")
        return Lifetime(rounds=int(number))


@dataclass(frozen=True)
class Fleet:
    """What the plan supposes of the federation; all of it is public."""

    records: int
    """Records of all devices together."""
    devices: int
    """That add noise each; 1 where the noise is added once, to the sum."""

    @property
    def sampling_rate(self) -> float:
        """Chance of each record, on whatever device, to enter a step."""
        return min(1.0, RECORDS_A_STEP / self.records)

    @staticmethod
    def announced(records: int, devices: int) -> Fleet:
        """Return the fleet behind announced numbers of records, each rounded up to a power of two."""
        return Fleet(max(1, round(records * ROUNDED_UP)), max(1, devices))


@dataclass(frozen=True)
class TrainingPlan:
    """How a device trains in its whole life."""

    steps: int
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    learning_rate: float
    """For a model of which no tolerance is known (`privacy.tolerance`)."""
    momentum: float
    noise_a_rate: float
    """Deviation by which the whole plan's noise moves each parameter at a learning rate of 1."""


def plan_training(budget: Budget, fleet: Fleet, parameters: int, most_steps: int) -> TrainingPlan:
    """Choose steps T, rate q, noise and learning rate for a model, or raise ConfigError if it is too large.

    T = (n / (4 g s1 sqrt d))², at least 20 and at most `most_steps`: no more noisy steps than leave the mean of
    gradients of length C four times its noise. q = 8192 / n. g = sqrt(devices), s1 the noise of one release that spends
    all. The learning rate falls with the noise nu = g sigma sqrt(d) / (q n): 12 · min(1, 1 / (nu sqrt T)).
    """
    growth = math.sqrt(fleet.devices)
    at_once = gaussian_multiplier(budget.epsilon, budget.delta)
    signal = fleet.records / (growth * at_once * math.sqrt(parameters))
    if signal < SIGNAL:
        most = int((fleet.records / (growth * at_once * SIGNAL)) ** 2)
        raise ConfigError(
            f"a model of {parameters} parameters is too large for {fleet.records} records on {fleet.devices} devices "
            f"at epsilon {budget.epsilon:g}: noise would hide what is learnt. At most {most} parameters; learn a "
            "smaller model, freeze layers, or bring more data"
        )
    steps = int(min(max((signal / SIGNAL) ** 2, FEWEST_STEPS), max(1, most_steps)))
    rate = rate_rounded_up(fleet.sampling_rate)
    noise = noise_multiplier_for(budget, rate, steps)
    return plan_under(DpSgdSteps(noise, rate, steps), fleet, parameters)


def plan_under(mechanism: DpSgdSteps, fleet: Fleet, parameters: int) -> TrainingPlan:
    """Return how to train with a mechanism that is chosen: its learning rate falls with the length of the noise.

    nu = g sigma sqrt(d) / (q n) is that length in the mean of gradients of length 1: rate · min(1, 1 / (nu sqrt T)).
    """
    steps, rate, noise = mechanism.steps, mechanism.sampling_rate, mechanism.noise_multiplier
    length = math.sqrt(fleet.devices * parameters) * noise / (rate * fleet.records)
    way = length * math.sqrt(max(1, steps))
    moved = CLIP_NORM * way / math.sqrt(parameters) / (1 - MOMENTUM)
    return TrainingPlan(steps, rate, noise, CLIP_NORM, LEARNING_RATE * min(1.0, 1 / way), MOMENTUM, moved)


@dataclass(frozen=True)
class Pace:
    """When a plan's steps may be made."""

    steps: int
    """Steps of the whole plan."""
    lifetime: Lifetime
    opened_at: float
    """When the budget was opened, in seconds since 1970."""
    opened_round: int = 0
    """Model version at which the budget was opened."""
    each: int = 1
    """Steps of one training."""

    def share(self, now: float, round_no: int) -> float:
        """Return which part of the plan may have been spent by now; a clock before the opening gives nothing."""
        if self.lifetime.rounds:
            return min(1.0, max(0, round_no - self.opened_round + 1) / self.lifetime.rounds)
        return min(1.0, max(0.0, now - self.opened_at) / self.lifetime.seconds)

    @property
    def burst(self) -> int:
        """Steps that may be made at once by who was away, or whose clock jumped."""
        return CARRY * self.each

    def allowed(self, spent: int, now: float, round_no: int) -> int:
        """Return how many steps may be made now, if `spent` were: never more than the plan has, or than a burst."""
        due = min(self.steps, math.ceil(self.steps * self.share(now, round_no) - _WHOLE))
        return max(0, min(due - spent, self.burst))

    def next_at(self, spent: int, steps: int) -> float | None:
        """Return when `steps` more are due by the calendar; None if only a round can bring them, or nothing will."""
        if not self.lifetime.seconds or spent + steps > self.steps:
            return None
        return self.opened_at + self.lifetime.seconds * (spent + steps) / self.steps


def balance_in_words(spent_epsilon: float, budget: Budget, left_s: float | None, left_rounds: float | None) -> str:
    """Return what is spent and how long the rest lasts: "epsilon 3.1 of 8 spent, 61 days left at this pace"."""
    if math.isinf(spent_epsilon):
        return "released without protection: epsilon is infinite"
    spent = f"epsilon {spent_epsilon:.2g} of {budget.epsilon:g} spent"
    if math.isinf(budget.epsilon):
        return f"epsilon {spent_epsilon:.3g} spent, without a limit"
    if left_rounds is not None:
        return f"{spent}, {max(0, math.floor(left_rounds))} rounds left at this pace"
    if left_s is not None:
        return f"{spent}, {duration_in_words(max(0.0, left_s))} left at this pace"
    return f"{spent}, nothing left"


def duration_in_words(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two: "61 days", "5 hours"."""
    for unit, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length:
            return f"{round(seconds / length)} {unit}s"
    return f"{round(seconds)} seconds"
