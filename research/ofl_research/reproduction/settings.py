"""With which settings each system learns each data set, in full and in quick runs.

Every system may train each device for the same number of steps (`Budget`) or for fewer (`Choice.share`). How it uses
them was chosen on validation samples with seed 0, never on test samples, from a handful of tries and not from a grid.
They were not the same number for each system: about

| | MNIST | SVHN | Cora | CiteSeer | PubMed | |
| --- | --- | --- | --- | --- | --- | --- |
| OFL | 13 | 6 | 16 | 5 | 10 | rates 0.02 to 0.1, 5 to 40 steps, rounds, gamma_down, clusters, bytes a value |
| FedAvg | 5 | 2 | 4 | 3 | 4 | rates, momentum 0.5 and 0.9, 10 and 20 steps |
| RFL-HA | | 2 | 4 | | 4 | rates, clusters, alpha; two on Fashion-MNIST, too |
| CFL | | | 3 | | | when it splits |

Fashion-MNIST has MNIST's settings, CFL and RFL-HA otherwise FedAvg's, RFL-HA the whole budget. One validation run of a
graph differs from the next by about a point. `python -m ofl_research.reproduction.tuning` tries the
same number for each system.
"""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from ofl_iot.fleet.devices import DEVICE_TYPES
from ofl_iot.workloads.catalogue import GRAPHS, IMAGES
from ofl_iot.workloads.graph_views import GraphSplit
from ofl_iot.workloads.splits import Split
from ofl_research.reproduction.plan import Plan

DEVICES = 16


class Dealing(msgspec.Struct, frozen=True, kw_only=True):
    """How a data set is dealt, and how much of it."""

    devices: int = DEVICES
    split: Split = Split()
    samples: int | None = None
    """Training samples, at most; None for all."""
    hidden: int | None = None
    """Units of the dense layer; None as in the paper."""
    graph_split: GraphSplit = GraphSplit()
    """Applies to graphs only."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run is, whatever the system."""

    steps: int
    """Training steps of a device; of OFL's and the asynchronous systems' devices on average."""
    models: int
    """Global models that are evaluated, about; OFL evaluates all of its few."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How a system uses its steps."""

    steps: int = 10
    """Between two uploads."""
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.5
    rounds: int = 5
    """OFL: inter-cluster rounds in the whole run. Each costs every leader a ciphertext of its whole model."""
    gamma_down: float = 0.1
    share: float = 1.0
    """Of the budget, where more steps only overfit. OFL's devices also train while a round is under way, so that its
    share must be smaller than what they use."""
    options: dict[str, Any] = {}


FULL_IMAGES, FULL_GRAPHS = Budget(steps=800, models=12), Budget(steps=600, models=12)
QUICK_IMAGES, QUICK_GRAPHS = Budget(steps=200, models=4), Budget(steps=150, models=5)
QUICK_SAMPLES, QUICK_HIDDEN = 6_000, 256
QUICK_OFL_ROUNDS = 3

_OFL = {
    "leader": {"block_size": 1024},
    "merge": {"gate": False},
    "fleet": {"clusters": 3},
}
"""Larger blocks cost fewer bytes of versions; nobody is malicious here, and the paper's leaders have no gate. In a
round a leader sends eight times what a device of FedAvg sends, so there are few rounds, and only three leaders: of two,
each could tell the other's update from the sum."""
_OFL_IMAGES = Choice(steps=20, learning_rate=0.03, momentum=0.9, rounds=4, gamma_down=0.4, share=0.89, options=_OFL)
_OFL_GRAPHS = Choice(steps=10, learning_rate=0.05, momentum=0.9, rounds=4, gamma_down=0.2, options=_OFL)
_GRAPHS = Choice(steps=20, learning_rate=0.03, momentum=0.9, share=0.5)

_CFL = {"small_mean": 0.2}
"""With its default 0.4 clusters are split early and each learns from a part of the data: on Cora's
validation samples 75.5 instead of 87.0."""

CHOSEN: dict[str, Choice] = {
    "digits": Choice(learning_rate=0.3, momentum=0.0),
    **dict.fromkeys(IMAGES, Choice(steps=20, learning_rate=0.03, momentum=0.9)),
    **{f"{name}/ofl": _OFL_IMAGES for name in IMAGES},
    "svhn/ofl": msgspec.structs.replace(_OFL_IMAGES, share=0.83),
    **dict.fromkeys(GRAPHS, _GRAPHS),
    **{f"{name}/cfl": Choice(steps=20, learning_rate=0.03, momentum=0.9, options=_CFL) for name in IMAGES},
    **{f"{name}/cfl": msgspec.structs.replace(_GRAPHS, options=_CFL) for name in GRAPHS},
    **{f"{name}/rfl-ha": msgspec.structs.replace(_GRAPHS, share=1.0) for name in GRAPHS},
    **{f"{name}/ofl": _OFL_GRAPHS for name in GRAPHS},
    "pubmed/ofl": msgspec.structs.replace(_OFL_GRAPHS, gamma_down=0.4),
}
"""By data set, or by "dataset/system" where a system has its own."""


def plan_for(dataset: str, system: str, *, quick: bool = False) -> Plan:
    """How a system learns a data set, but for the seed."""
    choice = CHOSEN.get(f"{dataset}/{system}") or CHOSEN.get(dataset) or Choice()
    if quick:
        # Nobody overfits in so few steps: all use the same number.
        share = choice.share if system == "ofl" else 1.0
        choice = msgspec.structs.replace(choice, rounds=min(choice.rounds, QUICK_OFL_ROUNDS), share=share)
    return plan_of(choice, system, budget_for(dataset, quick=quick))


def budget_for(dataset: str, *, quick: bool = False) -> Budget:
    """How long a run on a data set is."""
    if quick:
        return QUICK_IMAGES if dataset in IMAGES else QUICK_GRAPHS
    return FULL_IMAGES if dataset in IMAGES else FULL_GRAPHS


def plan_of(choice: Choice, system: str, budget: Budget) -> Plan:
    """Rounds, and for OFL the time between them, such that the budget is used up."""
    steps = round(choice.share * budget.steps)
    rounds = choice.rounds if system == "ofl" else max(1, steps // choice.steps)
    plan = Plan(
        rounds=rounds,
        steps=choice.steps,
        batch_size=choice.batch_size,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        gamma_down=choice.gamma_down,
        eval_every=max(1, rounds // budget.models),
        options=choice.options,
    )
    if system != "ofl":
        return plan
    return msgspec.structs.replace(plan, round_s=steps * plan.step_s * _SLOWNESS / rounds)


_SLOWNESS = 1 / statistics.mean(kind.relative_speed for kind in DEVICE_TYPES.values())
"""Time in which devices of all types make one step on average, over that of type D."""


def dealing_for(dataset: str, *, quick: bool = False) -> Dealing:
    """How a data set is dealt."""
    small = quick and dataset in IMAGES
    return Dealing(samples=QUICK_SAMPLES if small else None, hidden=QUICK_HIDDEN if small else None)
