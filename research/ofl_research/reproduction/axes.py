"""Scales of a chart: from numbers to places, with round numbers as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, drawn from `start` to `end` (in drawing units)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is drawn; what lies outside is drawn at the border."""
        low, high, value = self._measure(self.low), self._measure(self.high), self._measure(value)
        share = (value - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers within the scale."""
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high, about)

    def _measure(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value


def axis_for(
    values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False, pad: float = 0.04
) -> Axis:
    """An axis that holds all values; from zero on if asked."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if log:
        low, high = (low or 1.0), (high or 1.0)
        margin = (high / low) ** pad if high > low else 2.0
        return Axis(low / margin, high * margin, start, end, log=True)
    if zero:
        low = min(0.0, low)
    margin = (high - low) * pad or abs(high) * 0.1 or 1.0
    return Axis(low if zero and low == 0.0 else low - margin, high + margin, start, end)


def number(value: float) -> str:
    """Short, for a tick: 1500000 as 1.5M."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def _ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / max(1, about)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in _STEPS if factor * magnitude >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0,) if math.log10(high / low) > 2 else (1.0, 2.0, 5.0)
    ticks = [factor * 10.0**decade for decade in decades for factor in factors]
    found = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return found if len(found) <= 6 else found[:: math.ceil(len(found) / 6)]
