"""FedAvg: the mean of the devices' models, weighed by their numbers of samples.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017. Simplified: every device takes part in every round (C = 1), and the local work is a
number of steps, not of epochs, so that all systems train alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ofl_research.baselines.letters import Hello, Reply, Vector, unpack_dense
from ofl_research.baselines.means import weighted_mean
from ofl_research.baselines.server import Judged


class FedAvg:
    """One model for all: θ ← Σ |D_i|·θ_i / Σ |D_i|."""

    def __init__(self, initial: Vector) -> None:
        self.model = initial
        self._sizes: dict[str, int] = {}

    def begin(self, hellos: Mapping[str, Hello]) -> None:
        """Remember how many samples each device has."""
        self._sizes = {device: hello.sample_count for device, hello in hellos.items()}

    def models_for(self, device: str) -> Sequence[Vector]:  # noqa: ARG002
        """The model."""
        return (self.model,)

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:  # noqa: ARG002
        """Average."""
        self.model = weighted_mean(
            [unpack_dense(reply.body) for reply in replies.values()], [self._sizes[device] for device in replies]
        )
        return len(replies) * len(self.model)

    def judged(self) -> list[Judged]:
        """The model."""
        return [Judged(self.model)]
