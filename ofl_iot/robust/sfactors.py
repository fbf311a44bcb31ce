"""The s-factor (Eq. 6) in five forms: how far each leader's cluster model is trusted in this round.

Every form is a function (scores, evidence) -> Verdict without state of its own; the evidence account goes in and
comes out as plain numbers, so that the coordinator journals it with the round.

mean      no defence: every leader counts
literal   Eq. 6 as written, on the models, weights not renormalised: s_i = 1 - MagNorm(high band) · DistNorm(distance)
delta     Eq. 6 on the updates, weights renormalised
mad       leaders whose distance or high band is an outlier by median absolute deviation are left out
ledger    evidence per leader over rounds (the default), see `ofl_iot.robust.suspicion`

Distances are Euclidean where the paper has Manhattan's: a polynomial for |x| on ciphertext is unsound outside its
interval, and the two rank leaders alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.scores import FloatArray, RoundScores
from ofl_iot.robust.suspicion import ledger
from ofl_iot.robust.verdict import SFactor, Verdict, robust_z

__all__ = [
    "DEFAULT_FORM",
    "FORMS",
    "SFactor",
    "Verdict",
    "delta",
    "ledger",
    "literal",
    "mad",
    "mean",
    "s_factor",
]

EXCLUDED_BELOW = 0.5
"""Eq. 6 excludes nobody; for the record a leader below this s-factor counts as excluded."""

MAD_LIMIT = 3.0
MAD_FLOOR = 0.15
"""In units of log norm: honest leaders differ by this much without meaning anything."""

_TINY = 1e-12


def mean(scores: RoundScores, evidence: Mapping[DeviceId, float]) -> Verdict:
    """No defence: s_i = 1."""
    return Verdict(np.ones(len(scores.leaders)), evidence_after=dict(evidence))


def literal(scores: RoundScores, evidence: Mapping[DeviceId, float]) -> Verdict:
    """Eq. 6 as written: s_i = 1 - MagNorm(DFT(θ̄_i)) · DistNorm(||θ̄_i - θ||), weights left as they are.

    MagNorm and DistNorm are max-min normalisations over the leaders. Where only the spectrum of the updates was
    decrypted, that one is used.
    """
    band = scores.high_band if scores.model_band is None else scores.model_band
    return _equation_6(scores, band, evidence, renormalise=False)


def delta(scores: RoundScores, evidence: Mapping[DeviceId, float]) -> Verdict:
    """Eq. 6 on the updates D_i instead of the models, and the weights are renormalised."""
    return _equation_6(scores, scores.high_band, evidence, renormalise=True)


def mad(scores: RoundScores, evidence: Mapping[DeviceId, float]) -> Verdict:
    """s_i = 1 unless log ||D_i|| or log of the high band lies more than three robust deviations above the median."""
    distance = np.log(scores.norms + _TINY)
    band = np.log(np.sqrt(np.maximum(scores.high_band, 0.0)) + _TINY)
    z_distance = robust_z(distance, distance, MAD_FLOOR)
    z_band = robust_z(band, band, MAD_FLOOR)
    reasons = {}
    for leader, z_d, z_b in zip(scores.leaders, z_distance, z_band, strict=True):
        if max(z_d, z_b) >= MAD_LIMIT:
            reasons[leader] = f"outlier: distance z={z_d:.1f}, high band z={z_b:.1f}"
    kept = np.array([float(leader not in reasons) for leader in scores.leaders])
    return Verdict(kept, frozenset(reasons), dict(evidence), reasons)


FORMS: Mapping[str, SFactor] = {
    "mean": mean,
    "literal": literal,
    "delta": delta,
    "mad": mad,
    "ledger": ledger,
}
DEFAULT_FORM = "ledger"


def s_factor(form: str) -> SFactor:
    """The s-factor form of this name."""
    try:
        return FORMS[form]
    except KeyError:
        raise ConfigError(f"s-factor form {form!r}: use one of {', '.join(FORMS)}") from None


def _equation_6(
    scores: RoundScores, band: FloatArray, evidence: Mapping[DeviceId, float], *, renormalise: bool
) -> Verdict:
    magnitude = _max_min(np.sqrt(np.maximum(band, 0.0)))
    distance = _max_min(scores.norms)
    factors = 1.0 - magnitude * distance
    reasons = {
        leader: f"s-factor {s:.2f}: high band {m:.2f}, distance {d:.2f} of the largest"
        for leader, s, m, d in zip(scores.leaders, factors, magnitude, distance, strict=True)
        if s < EXCLUDED_BELOW
    }
    return Verdict(factors, frozenset(reasons), dict(evidence), reasons, renormalise)


def _max_min(values: FloatArray) -> FloatArray:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
