"""IFCA: several models; each device trains the one that fits its samples best.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, the
variant that averages models. Simplified: no layers are shared between the models, and they start from the one initial
model with a little noise each, not from independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ofl_research.baselines.letters import Hello, Reply, Vector, unpack_dense
from ofl_research.baselines.means import weighted_mean
from ofl_research.baselines.server import Judged


class IfcaOptions(msgspec.Struct, frozen=True):
    """How many models, and how far apart they start."""

    clusters: int = 2
    spread: float = 0.5
    """Deviation of the noise on the initial models, relative to their own deviation."""


class Ifca:
    """k models: θ_j ← the mean over the devices that chose model j."""

    def __init__(self, initial: Vector, options: IfcaOptions, rng: np.random.Generator) -> None:
        deviation = options.spread * float(initial.std())
        noise = rng.normal(0.0, deviation, (options.clusters, len(initial)))
        self.models: list[Vector] = [(initial + row).astype(np.float32) for row in noise]
        self.choices: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def begin(self, hellos: Mapping[str, Hello]) -> None:
        """Remember how many samples each device has."""
        self._sizes = {device: hello.sample_count for device, hello in hellos.items()}

    def models_for(self, device: str) -> Sequence[Vector]:  # noqa: ARG002
        """All models: the device chooses."""
        return self.models

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:  # noqa: ARG002
        """Average what came from each model; one that nobody chose stays."""
        self.choices = {device: reply.choice for device, reply in replies.items()}
        for number in range(len(self.models)):
            own = [device for device, choice in self.choices.items() if choice == number]
            if own:
                vectors = [unpack_dense(replies[device].body) for device in own]
                self.models[number] = weighted_mean(vectors, [self._sizes[device] for device in own])
        return len(replies) * len(self.models[0])

    def judged(self) -> list[Judged]:
        """Each model that was chosen, for its share of the devices."""
        chosen = list(self.choices.values())
        return [
            Judged(model, chosen.count(number) / len(chosen))
            for number, model in enumerate(self.models)
            if number in chosen
        ]
