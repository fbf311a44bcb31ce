"""Trust in reports: what a device claims, held against what was observed of it.

Three quantities can be observed without asking the device: its training pace (steps between a pull and the
upload that follows), its arrival rate (bytes of chunks per second while both ends were connected) and its
contact (the share of time with a link). A claim counts only as far as it was observed; an unobserved claim
counts for no more than the fleet's median claim. So a forger gains nothing over an ordinary newcomer, and
loses its standing once it is observed.

What observation cannot tell: a device that uploads without training looks fast. Its updates give it away, not
its pace; that is the business of `ofl_iot.robust`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.report import FloatArray, IntArray, Report

LEAK = 0.1
"""How fast the best seen value falls towards what is seen now, per observation."""


class Standing(IntEnum):
    """What is known of a device's honesty, from worst to best."""

    DISTRUSTED = 0
    UNKNOWN = 1
    VERIFIED = 2


@dataclass(frozen=True)
class Observed:
    """One observed quantity and from how many observations it comes."""

    value: float = 0.0
    count: int = 0

    def with_peak(self, value: float) -> Observed:
        """A leaky maximum: waiting makes a device look slower than it is, nothing makes it look faster."""
        leaked = self.value + LEAK * (value - self.value)
        return Observed(value=max(value, leaked), count=self.count + 1)

    def with_mean(self, value: float) -> Observed:
        """A running mean that forgets at the rate `LEAK`."""
        share = max(LEAK, 1.0 / (self.count + 1))
        return Observed(value=self.value + share * (value - self.value), count=self.count + 1)


@dataclass(frozen=True)
class Evidence:
    """All that was observed of one device; plain numbers, so that it can be journalled."""

    steps_per_s: Observed = field(default_factory=Observed)
    network_mbps: Observed = field(default_factory=Observed)
    availability: Observed = field(default_factory=Observed)

    def with_training(self, steps: int, duration_s: float) -> Evidence:
        """Add a training of `steps` steps that took `duration_s` from assignment or pull to upload."""
        if steps <= 0 or duration_s <= 0:
            return self
        return replace(self, steps_per_s=self.steps_per_s.with_peak(steps / duration_s))

    def with_arrival(self, size_bytes: int, duration_s: float) -> Evidence:
        """Add `size_bytes` that arrived within `duration_s` while sender and receiver were both connected."""
        if size_bytes <= 0 or duration_s <= 0:
            return self
        mbps = size_bytes * 8e-6 / duration_s
        return replace(self, network_mbps=self.network_mbps.with_peak(mbps))

    def with_contact(self, online_s: float, window_s: float) -> Evidence:
        """Add a window of `window_s` seconds in which the device had a link for `online_s`."""
        if window_s <= 0:
            return self
        share = min(max(online_s / window_s, 0.0), 1.0)
        return replace(self, availability=self.availability.with_mean(share))


@dataclass(frozen=True)
class TrustSettings:
    """How much disagreement is forgiven, and how many observations make a verdict."""

    prior: float = 0.5
    """Trust in a device nobody has observed."""
    half_count: float = 4.0
    """Observations after which they weigh as much as the prior."""
    overclaim: float = 2.0
    """A claim up to this factor above the observation agrees with it."""
    underclaim: float = 4.0
    """A claim down to this factor below the observation agrees with it: a busy device is modest."""
    distrusted_below: float = 0.4
    verified_above: float = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.distrusted_below <= self.prior <= self.verified_above < 1:
            raise ConfigError("trust: need 0 < distrusted_below <= prior <= verified_above < 1")
        if self.overclaim < 1 or self.underclaim < 1 or self.half_count <= 0:
            raise ConfigError("trust: overclaim and underclaim are factors of at least 1, half_count is positive")


@dataclass(frozen=True)
class Trusted:
    """Each device's trust and the part of its claims that may be believed; one row per device."""

    trust: FloatArray
    steps_per_s: FloatArray
    network_mbps: FloatArray
    availability: FloatArray
    standing: IntArray


def assess(reports: Sequence[Report], evidence: Sequence[Evidence], settings: TrustSettings) -> Trusted:
    """Judge all reports of a fleet against the evidence, row by row."""
    paces = [None if r.step_s is None else 1.0 / r.step_s for r in reports]
    pace, pace_trust = _judge(paces, [e.steps_per_s for e in evidence], settings)
    rates = [r.network_mbps for r in reports]
    network, network_trust = _judge(rates, [e.network_mbps for e in evidence], settings)
    contacts = [r.availability for r in reports]
    contact, contact_trust = _judge(contacts, [e.availability for e in evidence], settings)
    trust = _overall(np.stack([pace_trust, network_trust, contact_trust]), settings.prior)
    standing = np.full(len(trust), Standing.UNKNOWN, dtype=np.int64)
    standing[trust > settings.verified_above] = Standing.VERIFIED
    standing[trust < settings.distrusted_below] = Standing.DISTRUSTED
    return Trusted(trust, pace, network, contact, standing)


def agreement(claimed: FloatArray, observed: FloatArray, settings: TrustSettings) -> FloatArray:
    """How well claims agree with observations: 1 within the forgiven factors, else 1 / (excess factor)^2.

    x = ln(claimed / observed);  agreement = exp(-2 max(0, x - ln overclaim, -x - ln underclaim)).
    """
    tiny = 1e-9
    x = np.log(np.maximum(claimed, tiny) / np.maximum(observed, tiny))
    excess = np.maximum(x - np.log(settings.overclaim), -x - np.log(settings.underclaim))
    return np.asarray(np.exp(-2.0 * np.maximum(excess, 0.0)), dtype=np.float64)


def _judge(
    claims: Sequence[float | None], seen: Sequence[Observed], settings: TrustSettings
) -> tuple[FloatArray, FloatArray]:
    """The believable part of each claim and the trust it leaves; w = n / (n + half_count).

    believed = w min(claimed, observed) + (1 - w) min(claimed, median claim);
    trust = w agreement + (1 - w) prior.
    Whoever claims nothing is taken at what was observed.
    """
    count = np.asarray([o.count for o in seen], dtype=np.float64)
    observed = np.asarray([o.value for o in seen], dtype=np.float64)
    claimed = np.asarray([np.nan if c is None else c for c in claims], dtype=np.float64)
    modest = float(np.median(claimed[~np.isnan(claimed)])) if np.any(~np.isnan(claimed)) else 0.0
    claimed = np.where(np.isnan(claimed), observed, claimed)
    weight = count / (count + settings.half_count)
    believed = weight * np.minimum(claimed, observed) + (1 - weight) * np.minimum(claimed, modest)
    trust = weight * agreement(claimed, observed, settings) + (1 - weight) * settings.prior
    return believed, trust


def _overall(judged: FloatArray, prior: float) -> FloatArray:
    """The least of the three if it is below the prior, for one lie suffices; else their mean."""
    least, mean = judged.min(axis=0), judged.mean(axis=0)
    return np.asarray(np.where(least < prior, least, mean), dtype=np.float64)
