"""The form in which a cluster's update reaches the coordinator, and how it is aggregated in that form."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ofl_iot.roles.commands import AggregateRound, Contributed
from ofl_iot.roles.events import RoundAggregated, Vector


class Protection(Protocol):
    """Both ends of a contribution's way."""

    def protect(self, update: Vector) -> bytes:
        """The leader's side."""
        ...

    def aggregate(self, job: AggregateRound) -> RoundAggregated:
        """The coordinator's side."""
        ...


class Clear:
    """No protection: the coordinator reads every cluster's update.

    The sum is weighted by the clusters' sample counts: Σ n_c u_c / Σ n_c over those that merged anything (Eq. 2).
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def protect(self, update: Vector) -> bytes:
        """The update's bytes."""
        return update.astype("<f4").tobytes()

    def aggregate(self, job: AggregateRound) -> RoundAggregated:
        """The weighted mean of what is readable."""
        updates: dict[str, Vector] = {}
        refused: dict[str, str] = {}
        for each in job.contributions:
            reason = self._fault_of(each)
            if reason:
                refused[each.leader] = reason
            else:
                updates[each.leader] = np.frombuffer(each.payload, "<f4").astype(np.float32)
        raw = {c.leader: float(c.sample_count if c.updates else 0) for c in job.contributions if c.leader in updates}
        total = sum(raw.values())
        weights = {leader: value / total if total else 0.0 for leader, value in raw.items()}
        update = np.zeros(self._size, np.float32)
        for leader, weight in weights.items():
            update += np.float32(weight) * updates[leader]
        return RoundAggregated(job.round_no, update, weights, refused)

    def _fault_of(self, contribution: Contributed) -> str:
        if len(contribution.payload) != 4 * self._size:
            return f"{len(contribution.payload)} bytes, not the {4 * self._size} of this model"
        if not np.isfinite(np.frombuffer(contribution.payload, "<f4")).all():
            return "a value is not finite"
        return ""
