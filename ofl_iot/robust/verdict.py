"""What an s-factor form says about a round's leaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ofl_iot.errors import RoundError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.scores import FloatArray, RoundScores


@dataclass(frozen=True, eq=False)
class Verdict:
    """How far each leader counts in this round.

    multipliers     s_i in [0, 1], in the order of the scores' leaders
    excluded        leaders that count for nothing because they are suspected
    evidence_after  the evidence account to journal and hand in at the next round
    reasons         one phrase for each leader that was suspected, clipped or excluded
    renormalise     whether the weights are divided by their sum; only the `literal` form says no
    """

    multipliers: FloatArray
    excluded: frozenset[DeviceId] = frozenset()
    evidence_after: Mapping[DeviceId, float] = field(default_factory=dict)
    reasons: Mapping[DeviceId, str] = field(default_factory=dict)
    renormalise: bool = True

    def __post_init__(self) -> None:
        values = self.multipliers
        if not np.isfinite(values).all() or (values < 0.0).any() or (values > 1.0).any():
            raise RoundError(f"s-factors outside [0, 1]: {values.tolist()}")


SFactor = Callable[[RoundScores, Mapping[DeviceId, float]], Verdict]


def robust_z(values: FloatArray, reference: FloatArray, floor: float) -> FloatArray:
    """z_i = (x_i - median(reference)) / max(1.4826 · MAD(reference), floor)."""
    middle = float(np.median(reference))
    spread = 1.4826 * float(np.median(np.abs(reference - middle)))
    return np.asarray((values - middle) / max(spread, floor))
