"""With which settings each system learns each data set, in full and in quick runs.

Chosen on validation samples with seed 0; what is reported has other seeds and test samples.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agents.reproduce.plan import Plan
from ofl_iot.workloads.splits import Split

DEVICES = 16


class Dealing(msgspec.Struct, frozen=True, kw_only=True):
    """How a data set is dealt, and how much of it."""

    devices: int = DEVICES
    split: Split = Split()
    samples: int | None = None
    """Training samples, at most; None for all."""
    hidden: int | None = None
    """Units of the dense layer; None as in the paper."""


FULL_ROUNDS, QUICK_ROUNDS = 60, 6
QUICK_SAMPLES = 6_000

PLANS: dict[str, dict[str, Any]] = {"digits": {"learning_rate": 0.3}}
"""What differs from the defaults of `Plan`, by data set or by "dataset/system"."""


def plan_for(dataset: str, system: str, *, quick: bool = False) -> Plan:
    """How a system learns a data set, but for the seed."""
    plan = Plan(rounds=QUICK_ROUNDS if quick else FULL_ROUNDS)
    for name in (dataset, f"{dataset}/{system}"):
        plan = msgspec.structs.replace(plan, **PLANS.get(name, {}))
    return plan


def dealing_for(dataset: str, *, quick: bool = False) -> Dealing:
    """How a data set is dealt."""
    images = dataset in ("mnist", "fashion-mnist", "svhn")
    return Dealing(samples=QUICK_SAMPLES if quick and images else None)
