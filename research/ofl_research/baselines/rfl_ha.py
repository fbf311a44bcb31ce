"""RFL-HA (the paper's REFL): synchronous within clusters of equally fast devices, asynchronous between them.

Z. Wang, H. Xu, J. Liu, H. Huang, C. Qiao, Y. Zhao: Resource-Efficient Federated Learning with Hierarchical Aggregation
in Edge Computing, INFOCOM 2021. Simplified: clusters are equal parts of the devices in the order of their pace, made
once, instead of the paper's optimisation of their number under a resource budget; the fastest member heads a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from ofl_research.baselines.letters import Hello


class HierarchyOptions(msgspec.Struct, frozen=True):
    """Clusters and what the server takes of their models."""

    clusters: int = 0
    """0 = round(log2 N), as OFL has."""
    alpha: float = 0.5
    """Share of a fresh model;"""
    exponent: float = 0.5
    """discounted by the power of its lag."""


def equal_pace(hellos: Mapping[str, Hello], clusters: int) -> dict[str, list[str]]:
    """Members by head: equal parts of the devices, the fastest first; each part's fastest is its head."""
    order = sorted(hellos, key=lambda device: (hellos[device].step_s, device))
    count = clusters or max(1, round(float(np.log2(max(2, len(order))))))
    parts = [part.tolist() for part in np.array_split(np.array(order), min(count, len(order)))]
    return {part[0]: part for part in parts}
