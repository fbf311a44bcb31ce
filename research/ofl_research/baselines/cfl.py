"""CFL: a cluster whose devices pull in different directions is split in two.

F. Sattler, K.-R. Müller, W. Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
under Privacy Constraints, IEEE TNNLS 2020. Simplified: the thresholds are given in units of the longest update of the
first round, because absolute ones fit one model only, and the criterion gamma_max is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_research.baselines.letters import Hello, Reply, Vector, unpack_dense
from ofl_research.baselines.means import weighted_mean
from ofl_research.baselines.server import Judged

Matrix = npt.NDArray[np.float64]


class CflOptions(msgspec.Struct, frozen=True):
    """When a cluster is split."""

    small_mean: float = 0.4
    """e1: the cluster is near a stationary point when its mean update is shorter than this,"""
    large_update: float = 0.6
    """e2: and its devices are not, when the longest update is longer than this; both relative."""
    first_split_round: int = 10
    min_members: int = 3
    """Smaller clusters stay whole."""


class Cfl:
    """A tree of clusters, each with its model; at first all devices are in one."""

    def __init__(self, initial: Vector, options: CflOptions) -> None:
        self.clusters: list[list[str]] = []
        self._initial = initial
        self._models: list[Vector] = []
        self._options = options
        self._sizes: dict[str, int] = {}
        self._unit = 0.0

    def begin(self, hellos: Mapping[str, Hello]) -> None:
        """All devices in one cluster."""
        self._sizes = {device: hello.sample_count for device, hello in hellos.items()}
        self.clusters, self._models = [list(hellos)], [self._initial]

    def models_for(self, device: str) -> Sequence[Vector]:
        """The model of the device's cluster."""
        return (self._models[next(k for k, members in enumerate(self.clusters) if device in members)],)

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:
        """Average within each cluster, and split those that are torn."""
        work = 0
        clusters: list[list[str]] = []
        models: list[Vector] = []
        for members, model in zip(self.clusters, self._models, strict=True):
            updates = [unpack_dense(replies[device].body) - model for device in members]
            mean = weighted_mean(updates, [self._sizes[device] for device in members])
            work += len(members) * len(model)
            parts = [members]
            if self._is_torn(round_no, mean, updates):
                work += len(members) ** 2 * len(model)
                parts = [[members[i] for i in half] for half in bipartition(cosines(updates))]
            clusters += parts
            models += [model + mean] * len(parts)
        self.clusters, self._models = clusters, models
        return work

    def judged(self) -> list[Judged]:
        """Each cluster's model, for its share of the devices."""
        total = len(self._sizes)
        return [Judged(model, len(own) / total) for own, model in zip(self.clusters, self._models, strict=True)]

    def _is_torn(self, round_no: int, mean: Vector, updates: Sequence[Vector]) -> bool:
        """‖mean‖ < e1 and max ‖update‖ > e2."""
        longest = max(float(np.linalg.norm(update)) for update in updates)
        self._unit = self._unit or longest
        options = self._options
        return (
            round_no >= options.first_split_round
            and len(updates) >= options.min_members
            and float(np.linalg.norm(mean)) < options.small_mean * self._unit
            and longest > options.large_update * self._unit
        )


def cosines(updates: Sequence[Vector]) -> Matrix:
    """Cosine of the angle between each two updates; 0 where one has no length."""
    rows = np.array(updates, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return np.asarray(rows @ rows.T)


def bipartition(similarity: Matrix) -> list[list[int]]:
    """Two groups by complete linkage: the two whose least similar members are most alike join, until two are left."""
    groups = {i: [i] for i in range(len(similarity))}
    linkage = similarity.copy()
    np.fill_diagonal(linkage, -np.inf)
    while len(groups) > 2:
        one, other = divmod(int(linkage.argmax()), len(linkage))
        groups[one] += groups.pop(other)
        linkage[one] = linkage[:, one] = np.minimum(linkage[one], linkage[other])
        linkage[other] = linkage[:, other] = -np.inf
        linkage[one, one] = -np.inf
    return [sorted(group) for group in groups.values()]
