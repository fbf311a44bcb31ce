"""Whether a network of sensors is a ring, a star or a line, from its links and noisy readings: a graph network.

A record is one graph: readings of its twelve nodes, and its adjacency. `python sensor_graphs.py data` generates them.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ofl_iot import Folder, TorchApp, accuracy

NODES, READINGS = 12, 4


class GraphNet(nn.Module):
    """Two layers of message passing, then the mean and the largest of all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(READINGS + 1, 24)
        self.second = nn.Linear(24, 24)
        self.head = nn.Linear(48, 3)

    def forward(self, readings: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        degree = links.sum(-1, keepdim=True)
        share = (links + torch.eye(NODES)) / (degree + 1)
        nodes = torch.relu(self.first(torch.cat([readings, degree / NODES], dim=-1)))
        nodes = torch.relu(self.second(share @ nodes))
        return self.head(torch.cat([nodes.mean(1), nodes.amax(1)], dim=1))


def read(path: Path) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Readings and links of each graph, and its shape."""
    with np.load(path) as held:
        return (held["readings"], held["links"]), held["shape"]


app = TorchApp(
    name="sensor-graphs",
    model=GraphNet,
    loss=nn.functional.cross_entropy,
    samples=Folder(pattern="**/*.npz", read=read),
    judge=Folder(pattern="**/*.npz", read=read),
    metrics={"accuracy": accuracy},
)


def links_of(shape: int, rng: np.random.Generator) -> np.ndarray:
    """The adjacency of a ring (0), a star (1) or a line (2) of nodes in any order."""
    order = rng.permutation(NODES)
    pairs = [(order[0], other) for other in order[1:]] if shape == 1 else list(itertools.pairwise(order))
    pairs += [(order[-1], order[0])] if shape == 0 else []
    links = np.zeros((NODES, NODES), np.float32)
    for one, other in pairs:
        links[one, other] = links[other, one] = 1
    return links


def make(folder: Path, devices: int = 6, graphs: int = 150) -> None:
    """Write device-01.npz and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, devices + 1):
        rng = np.random.default_rng([3, number])
        shape = rng.integers(3, size=graphs)
        links = np.stack([links_of(int(each), rng) for each in shape])
        readings = rng.normal(size=(graphs, NODES, READINGS)).astype(np.float32)
        np.savez(folder / f"device-{number:02d}.npz", readings=readings, links=links, shape=shape)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
