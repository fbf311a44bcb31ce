"""The paper's numbers and claims, each with where it stands in "OFL: Opportunistic Federated Learning …"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Reported:
    """Accuracy in percent: mean and deviation."""

    mean: float
    deviation: float


DATASETS = ("cora", "citeseer", "pubmed", "mnist", "fashion-mnist", "svhn")
IMAGES = ("mnist", "fashion-mnist", "svhn")
GRAPHS = ("cora", "citeseer", "pubmed")
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
COMMUNICATION: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("cfl", "worker"): "O(|θ|)",
        ("cfl", "server"): "O(N·|θ|)",
        ("ifca", "worker"): "O(T·|θ|)",
        ("ifca", "server"): "O((T+N)·|θ|)",
        ("fldp", "worker"): "O(N+|θ|)",
        ("fldp", "server"): "O(N·|θ|+|θ|)",
        ("fedphe", "worker"): "O(|θ|+|θ|²)",
        ("fedphe", "server"): "O(N·|θ|+N·|θ|²)",
        ("rfl-ha", "worker"): "O(|θ|)",
        ("rfl-ha", "leader"): "O(N_k·|θ|)",
        ("rfl-ha", "server"): "O(K·|θ|)",
        ("ahfl", "worker"): "O(|θ|)",
        ("ahfl", "leader"): "O(N_k·|θ|)",
        ("ahfl", "server"): "O(K·|θ|)",
        ("ofl", "worker"): "O((γ_up+γ_down)·|θ|)",
        ("ofl", "leader"): "O((γ_up+γ_down)·N_k·|θ|+|θ|)",
        ("ofl", "server"): "O(K·|θ|)",
    }
)
COMPUTATION: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("cfl", "worker"): "O(|θ|)",
        ("cfl", "server"): "O((N_k²+N·log N)·|θ|)",
        ("ifca", "worker"): "O(T·|θ|)",
        ("ifca", "server"): "O(K·N+K·T·|θ|)",
        ("fldp", "worker"): "O(N·log N+|θ|²)",
        ("fldp", "server"): "O(N·(log N+|θ|)+|θ|²)",
        ("fedphe", "worker"): "O(T·|θ|+|θ|²)",
        ("fedphe", "server"): "O((N+N_k)·|θ|+|θ|²)",
        ("rfl-ha", "worker"): "O(|θ|)",
        ("rfl-ha", "leader"): "O(N_k·|θ|)",
        ("rfl-ha", "server"): "O(K·|θ|+N·K)",
        ("ahfl", "worker"): "O(|θ|)",
        ("ahfl", "leader"): "O(N_k·|θ|)",
        ("ahfl", "server"): "O(K·N+K·|θ|)",
        ("ofl", "worker"): "O(T·|θ|)",
        ("ofl", "leader"): "O(N_k·|θ|)",
        ("ofl", "server"): "O(N·K+K·|θ|·log|θ|)",
    }
)


def title(name: str) -> str:
    """How a data set or system is called in tables."""
    return TITLES.get(name, name)
