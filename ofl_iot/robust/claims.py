"""How many samples a device counts with: its claim, as far as the others' claims make it believable.

    count_i = min(claim_i, ratio · median of all claims)

Nobody can check a sample count. Without a bound a claim of 10^12 is a weight of 1; with it a liar gains at most
`ratio` times the voice of a usual device.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import TypeVar

from ofl_iot.errors import ConfigError

K = TypeVar("K", bound=str)
FLEET_RATIO = 4.0
"""Largest ratio of a device's claim to the median of the fleet, at the coordinator."""
CLUSTER_RATIO = 16.0
"""Largest ratio of a device's claim to the median of its cluster, at its leader: small clusters differ more."""


def believable(claims: Mapping[K, int], ratio: float) -> dict[K, int]:
    """Each claim, at most `ratio` times the median (the lower of two): half of the devices cannot raise it."""
    most = most_believable(claims.values(), ratio)
    return {device: min(claim, most) for device, claim in claims.items()}


def most_believable(claims: Collection[int], ratio: float) -> int:
    """The largest count that any of these devices may have; 0 for nobody."""
    if ratio < 1:
        raise ConfigError(f"a ratio of {ratio} to the median of sample counts: choose at least 1")
    return int(ratio * max(1, statistics.median_low(claims))) if claims else 0
