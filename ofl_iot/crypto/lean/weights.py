"""Integer weights that neither single a contributor out nor use its error up.

After division by their greatest common divisor: 1 to 16 each, at most 64 together, none above half of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ofl_iot.crypto.lean.params import MAX_WEIGHT, MAX_WEIGHT_SUM
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId

MAX_CONTRIBUTORS = MAX_WEIGHT_SUM
"""Every contributor weighs at least 1."""


def check_weights(weights: Sequence[int]) -> None:
    """Refuse weights under which a sum could show one contributor's update, or its mask."""
    if len(weights) < 2:
        raise CryptoError(f"a sum of {len(weights)} contributors shows an update: at least 2 are needed")
    if any(isinstance(weight, bool) or not isinstance(weight, int) or weight < 1 for weight in weights):
        raise CryptoError("weights must be whole numbers of at least 1")
    total = sum(weights)
    if math.gcd(*weights) != 1 or max(weights) > MAX_WEIGHT or total > MAX_WEIGHT_SUM:
        raise CryptoError(
            f"weights must be 1 to {MAX_WEIGHT} without a common divisor and sum to at most {MAX_WEIGHT_SUM}"
        )
    if 2 * max(weights) > total:
        raise CryptoError(f"a weight of {max(weights)} is above half of the sum {total}: it would show one update")


def integer_weights(weights: Mapping[DeviceId, float]) -> dict[DeviceId, int]:
    """The nearest weights that `check_weights` takes; contributors of weight 0 are left out."""
    positive = {name: float(weight) for name, weight in sorted(weights.items()) if weight > 0}
    if not 2 <= len(positive) <= MAX_CONTRIBUTORS:
        raise CryptoError(f"{len(positive)} contributors count: a lean round sums 2 to {MAX_CONTRIBUTORS}")
    largest, total = max(positive.values()), math.fsum(positive.values())
    if not math.isfinite(total):
        raise CryptoError("weights must be finite")
    scale = min(MAX_WEIGHT / largest, (MAX_WEIGHT_SUM - len(positive)) / total)
    whole = {name: max(1, math.floor(weight * scale + 0.5)) for name, weight in positive.items()}
    whole = {name: min(MAX_WEIGHT, weight) for name, weight in whole.items()}
    while sum(whole.values()) > MAX_WEIGHT_SUM:
        whole[max(whole, key=lambda name: (whole[name], name))] -= 1
    heaviest = max(whole, key=lambda name: (whole[name], name))
    whole[heaviest] = min(whole[heaviest], sum(whole.values()) - whole[heaviest])
    divisor = math.gcd(*whole.values())
    return {name: weight // divisor for name, weight in whole.items()}
