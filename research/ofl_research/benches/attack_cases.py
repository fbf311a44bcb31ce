"""The attacks that are tried: what a malicious party does to its data and to its updates, and how many of them do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ofl_research import attacks
from ofl_research.benches.learning_data import CLASSES, Floats, Labels

BACKDOOR_TARGET = 0
"""The class that a stamped image shall be taken for."""


@dataclass(frozen=True)
class Attack:
    """What malicious parties do to their data, once, and to their update, every time."""

    name: str
    poison_data: Callable[[Floats, Labels], tuple[Any, Any]] | None = None
    poison_update: Callable[[Floats, np.random.Generator], Any] | None = None


ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("none"),
        Attack("label flip", lambda x, y: (x, attacks.flip_labels(y, CLASSES))),
        Attack("sign flip", None, lambda d, _: attacks.flip_sign(d)),
        Attack("sign flip x3", None, lambda d, _: attacks.flip_sign(d, 3.0)),
        Attack(
            "backdoor x5",
            lambda x, y: attacks.plant_backdoor(x, y, BACKDOOR_TARGET),
            lambda d, _: attacks.boost(d, 5.0),
        ),
        Attack("quiet backdoor", lambda x, y: attacks.plant_backdoor(x, y, BACKDOOR_TARGET)),
        Attack("gaussian", None, lambda d, rng: attacks.gaussian(d, 5.0, rng)),
        Attack("high frequency", None, lambda d, _: attacks.alternate(d, 3.0)),
    )
}

BY_LEADERS = ("label flip", "sign flip", "backdoor x5", "quiet backdoor", "gaussian", "high frequency")
"""Kept out by the coordinator's s-factors."""
BY_DEVICES = ("sign flip x3", "label flip", "backdoor x5")
"""Kept out by the leaders' gates."""


def leader_cases(leaders: int) -> tuple[tuple[str, int], ...]:
    """No attack, then every attack with 20 % and 40 % of the leaders malicious."""
    shares = (round(0.2 * leaders), round(0.4 * leaders))
    return (("none", 0), *((name, bad) for name in BY_LEADERS for bad in shares))
