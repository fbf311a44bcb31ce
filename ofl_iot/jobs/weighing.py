"""How much each cluster counts in a round, from scores that were decrypted or computed in the clear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ofl_iot.errors import RoundError
from ofl_iot.ids import DeviceId
from ofl_iot.jobs.joint_key import FEWEST_CONTRIBUTORS
from ofl_iot.robust.scores import RoundScores
from ofl_iot.robust.sfactors import s_factor
from ofl_iot.robust.verdict import Verdict
from ofl_iot.robust.weights import cluster_weights
from ofl_iot.roles.job_kinds.rounds import Contributed

if TYPE_CHECKING:
    from ofl_iot.crypto.scores import Scores


def weigh(
    scores: RoundScores, contributions: Mapping[str, Contributed], evidence: Mapping[str, float], form: str
) -> tuple[dict[str, float], Verdict]:
    """Each leader's weight: data size · rarity · s-factor (Eq. 6), over those that merged anything.

    Rarity goes by training steps a device. If one leader does not tell them, it goes by chunks for all.
    """
    verdict = s_factor(form)(scores, {DeviceId(leader): value for leader, value in evidence.items()})
    rows = [contributions[leader] for leader in scores.leaders]
    sizes = [float(row.sample_count if row.updates else 0) for row in rows]
    known = all(row.effort > 0 for row in rows if row.updates)
    merges = [(row.effort if known else row.updates) / max(1, row.members) for row in rows]
    weights = cluster_weights(sizes, verdict.multipliers, merges, renormalise=verdict.renormalise)
    return {str(leader): float(weight) for leader, weight in zip(scores.leaders, weights, strict=True)}, verdict


def judge(
    scores: Scores,
    contributions: Mapping[str, Contributed],
    evidence: Mapping[str, float],
    form: str,
    unusable: Mapping[str, str] | None = None,
) -> tuple[dict[str, float], Verdict, dict[str, str]]:
    """Weights from decrypted scores, what was found about the leaders, and who cannot be scored and why."""
    wrapped = scores.wrapped()
    refused = {str(leader): "its update is too large to be scored, or made to wrap around" for leader in wrapped}
    refused |= unusable or {}
    leaders = tuple(leader for leader in scores.distance if leader not in refused)
    if scores.gram is None or len(leaders) < FEWEST_CONTRIBUTORS:
        raise RoundError(f"{len(leaders)} contributions can be scored")
    places = [list(scores.distance).index(leader) for leader in leaders]
    band = next(iter(scores.bands.values()))
    round_scores = RoundScores(
        leaders,
        np.array([max(0.0, scores.distance[leader]) for leader in leaders]),
        np.array([band[leader] for leader in leaders]),
        scores.gram[np.ix_(places, places)],
    )
    weights, verdict = weigh(round_scores, contributions, evidence, form)
    return weights, verdict, refused
