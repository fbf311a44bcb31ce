"""A round in the clear: the coordinator reads every cluster's update; it scores and weighs as on ciphertext."""

from __future__ import annotations

import numpy as np

from ofl_iot.errors import RoundError
from ofl_iot.ids import DeviceId
from ofl_iot.jobs.weighing import weigh
from ofl_iot.robust.scores import plain_scores
from ofl_iot.roles.events import RoundAggregated, Vector
from ofl_iot.roles.job_kinds.rounds import AggregateRound, Contributed


def aggregate_clear(job: AggregateRound, size: int, s_factor: str) -> RoundAggregated:
    """The weighted sum of what is readable and not suspected."""
    updates: dict[str, Vector] = {}
    refused: dict[str, str] = {}
    for each in job.contributions:
        fault = _fault_of(each, size)
        if fault:
            refused[each.leader] = fault
        else:
            updates[each.leader] = np.frombuffer(each.payload, "<f4").astype(np.float32)
    if not updates:
        raise RoundError("no usable contribution")
    by_leader = {each.leader: each for each in job.contributions}
    scores = plain_scores({DeviceId(leader): update for leader, update in updates.items()})
    weights, verdict = weigh(scores, by_leader, job.evidence, s_factor)
    total = np.zeros(size, np.float32)
    for leader, weight in weights.items():
        total += np.float32(weight) * updates[leader]
    return RoundAggregated(
        job.round_no,
        total,
        weights,
        refused,
        {str(leader): value for leader, value in verdict.evidence_after.items()},
        {str(leader): reason for leader, reason in verdict.reasons.items()},
        tuple(sorted(verdict.excluded)),
    )


def _fault_of(contribution: Contributed, size: int) -> str:
    if len(contribution.payload) != 4 * size:
        return f"{len(contribution.payload)} bytes, not the {4 * size} of this model"
    if not np.isfinite(np.frombuffer(contribution.payload, "<f4")).all():
        return "a value is not finite"
    return ""
