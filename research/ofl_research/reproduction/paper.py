"""The paper's numbers and claims, each with where it stands in "OFL: Opportunistic Federated Learning …"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ofl_iot.workloads.catalogue import GRAPHS, IMAGES


@dataclass(frozen=True)
class Reported:
    """Accuracy in percent: mean and deviation."""

    mean: float
    deviation: float


DATASETS = (*GRAPHS, *IMAGES)
COMPARED = ("fedavg", "cfl", "rfl-ha", "ofl")
"""The systems of the table of accuracies; the paper calls RFL-HA "REFL" there."""

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "cora": "Cora",
        "citeseer": "CiteSeer",
        "pubmed": "PubMed",
        "mnist": "MNIST",
        "fashion-mnist": "Fashion-MNIST",
        "svhn": "SVHN",
        "digits": "Digits",
        "fedavg": "FedAvg",
        "cfl": "CFL",
        "rfl-ha": "RFL-HA",
        "ofl": "OFL",
        "fedavgm": "FedAvgM",
        "fedavg-codec": "FedAvg, OFL's codec",
        "ifca": "IFCA",
        "ahfl": "AHFL",
        "fldp": "FLDP",
        "fedphe": "FedPHE",
    }
)

ACCURACY_PLACE = 'Section "Training Performance", table "Model accuracy (%) of OFL on different datasets" (Table 3)'
ACCURACY: Mapping[tuple[str, str], Reported] = MappingProxyType(
    {
        ("cora", "fedavg"): Reported(83.41, 0.03),
        ("cora", "cfl"): Reported(81.31, 0.43),
        ("cora", "rfl-ha"): Reported(76.74, 1.55),
        ("cora", "ofl"): Reported(85.91, 0.11),
        ("citeseer", "fedavg"): Reported(71.20, 0.07),
        ("citeseer", "cfl"): Reported(69.26, 0.22),
        ("citeseer", "rfl-ha"): Reported(72.45, 1.88),
        ("citeseer", "ofl"): Reported(76.90, 0.09),
        ("pubmed", "fedavg"): Reported(80.20, 0.01),
        ("pubmed", "cfl"): Reported(78.55, 0.15),
        ("pubmed", "rfl-ha"): Reported(75.35, 2.66),
        ("pubmed", "ofl"): Reported(85.23, 0.07),
        ("mnist", "fedavg"): Reported(97.70, 0.00),
        ("mnist", "cfl"): Reported(91.77, 3.13),
        ("mnist", "rfl-ha"): Reported(91.17, 2.34),
        ("mnist", "ofl"): Reported(94.17, 0.19),
        ("fashion-mnist", "fedavg"): Reported(84.28, 0.27),
        ("fashion-mnist", "cfl"): Reported(83.15, 2.93),
        ("fashion-mnist", "rfl-ha"): Reported(73.67, 2.23),
        ("fashion-mnist", "ofl"): Reported(81.01, 0.08),
        ("svhn", "fedavg"): Reported(76.39, 0.70),
        ("svhn", "cfl"): Reported(73.65, 2.43),
        ("svhn", "rfl-ha"): Reported(67.09, 2.18),
        ("svhn", "ofl"): Reported(73.60, 0.51),
    }
)

SMALL_SCALES, LARGE_SCALES = (8, 12, 16), (100, 300, 500, 800, 1000)
"""Section "Training Performance": the testbed's and the simulation's numbers of devices."""

CLIENT_VARIANCE_POINTS = (1.0, 11.0)
"""Section "Training Performance", figure "Model accuracy and leader serving time of each client"."""


COMPLEXITY_PLACE = 'table "Comparison of recent solutions for resource-efficient FL" (Table 1)'
FEATURES_ORDER = ("C", "N", "D", "A", "P", "H", "S", "AS", "CS")
FEATURE_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "C": "computing",
        "N": "network",
        "D": "data distribution",
        "A": "availability",
        "P": "privacy budget",
        "H": "hierarchical",
        "S": "strong security",
        "AS": "asynchronous",
        "CS": "withstands collusion",
    }
)
FEATURES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "cfl": frozenset({"D"}),
        "ifca": frozenset({"D", "AS"}),
        "fldp": frozenset({"C", "A", "P", "S", "CS"}),
        "fedphe": frozenset({"D", "A", "P", "S", "AS"}),
        "rfl-ha": frozenset({"C", "N", "D", "H"}),
        "ahfl": frozenset({"C", "N", "P", "H"}),
        "ofl": frozenset(FEATURES_ORDER),
    }
)


@dataclass(frozen=True)
class Sizes:
    """What the paper's formulas are of; K = log2 N clusters of N / K devices."""

    devices: float
    parameters: float
    local_steps: float = 5.0
    gamma: float = 0.2
    """gamma_up + gamma_down."""

    @property
    def clusters(self) -> float:
        """K."""
        return math.log2(self.devices)

    @property
    def members(self) -> float:
        """N_k."""
        return self.devices / self.clusters


@dataclass(frozen=True)
class Claim:
    """How something grows: as the paper writes it, and to compute with."""

    text: str
    formula: Callable[[Sizes], float]


_MODEL = Claim("O(|θ|)", lambda s: s.parameters)
_STEPS = Claim("O(T·|θ|)", lambda s: s.local_steps * s.parameters)
_MEMBERS = Claim("O(N_k·|θ|)", lambda s: s.members * s.parameters)
_CLUSTERS = Claim("O(K·|θ|)", lambda s: s.clusters * s.parameters)

COMMUNICATION: Mapping[tuple[str, str], Claim] = MappingProxyType(
    {
        ("cfl", "worker"): _MODEL,
        ("cfl", "server"): Claim("O(N·|θ|)", lambda s: s.devices * s.parameters),
        ("ifca", "worker"): _STEPS,
        ("ifca", "server"): Claim("O((T+N)·|θ|)", lambda s: (s.local_steps + s.devices) * s.parameters),
        ("fldp", "worker"): Claim("O(N+|θ|)", lambda s: s.devices + s.parameters),
        ("fldp", "server"): Claim("O(N·|θ|+|θ|)", lambda s: (s.devices + 1) * s.parameters),
        ("fedphe", "worker"): Claim("O(|θ|+|θ|²)", lambda s: s.parameters + s.parameters**2),
        ("fedphe", "server"): Claim("O(N·|θ|+N·|θ|²)", lambda s: s.devices * (s.parameters + s.parameters**2)),
        ("rfl-ha", "worker"): _MODEL,
        ("rfl-ha", "leader"): _MEMBERS,
        ("rfl-ha", "server"): _CLUSTERS,
        ("ahfl", "worker"): _MODEL,
        ("ahfl", "leader"): _MEMBERS,
        ("ahfl", "server"): _CLUSTERS,
        ("ofl", "worker"): Claim("O((γ_up+γ_down)·|θ|)", lambda s: s.gamma * s.parameters),
        ("ofl", "leader"): Claim(
            "O((γ_up+γ_down)·N_k·|θ|+|θ|)", lambda s: s.gamma * s.members * s.parameters + s.parameters
        ),
        ("ofl", "server"): _CLUSTERS,
    }
)
COMPUTATION: Mapping[tuple[str, str], Claim] = MappingProxyType(
    {
        ("cfl", "worker"): _MODEL,
        ("cfl", "server"): Claim(
            "O((N_k²+N·log N)·|θ|)", lambda s: (s.members**2 + s.devices * math.log2(s.devices)) * s.parameters
        ),
        ("ifca", "worker"): _STEPS,
        ("ifca", "server"): Claim(
            "O(K·N+K·T·|θ|)", lambda s: s.clusters * s.devices + s.clusters * s.local_steps * s.parameters
        ),
        ("fldp", "worker"): Claim("O(N·log N+|θ|²)", lambda s: s.devices * math.log2(s.devices) + s.parameters**2),
        ("fldp", "server"): Claim(
            "O(N·(log N+|θ|)+|θ|²)", lambda s: s.devices * (math.log2(s.devices) + s.parameters) + s.parameters**2
        ),
        ("fedphe", "worker"): Claim("O(T·|θ|+|θ|²)", lambda s: s.local_steps * s.parameters + s.parameters**2),
        ("fedphe", "server"): Claim(
            "O((N+N_k)·|θ|+|θ|²)", lambda s: (s.devices + s.members) * s.parameters + s.parameters**2
        ),
        ("rfl-ha", "worker"): _MODEL,
        ("rfl-ha", "leader"): _MEMBERS,
        ("rfl-ha", "server"): Claim("O(K·|θ|+N·K)", lambda s: s.clusters * s.parameters + s.devices * s.clusters),
        ("ahfl", "worker"): _MODEL,
        ("ahfl", "leader"): _MEMBERS,
        ("ahfl", "server"): Claim("O(K·N+K·|θ|)", lambda s: s.clusters * s.devices + s.clusters * s.parameters),
        ("ofl", "worker"): _STEPS,
        ("ofl", "leader"): _MEMBERS,
        ("ofl", "server"): Claim(
            "O(N·K+K·|θ|·log|θ|)",
            lambda s: s.devices * s.clusters + s.clusters * s.parameters * math.log2(s.parameters),
        ),
    }
)


def title(name: str) -> str:
    """How a data set or system is called in tables."""
    return TITLES.get(name, name)
