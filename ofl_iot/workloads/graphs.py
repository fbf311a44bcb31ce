"""Cora, CiteSeer and PubMed shared out to devices that train a `GraphNet`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.gcn import Contrast, GraphNet, NodeSamples
from ofl_iot.workloads.graph_views import GraphSplit, enhanced, view_of
from ofl_iot.workloads.planetoid import Graph, Nodes


class GraphWorkload:
    """A graph network and the labelled nodes, of the party's view of the graph, that it learns from or is judged by."""

    def __init__(self, name: str, net: GraphNet, samples: NodeSamples, targets: Nodes) -> None:
        """`targets` are the party's labelled nodes."""
        self._net = net
        self._samples = samples
        self._targets = targets
        self.name = f"{name} graph convolutional {net.features}-64-64-{net.hidden}-{net.classes}"
        self.digest = net.digest
        self.size = net.size
        self.sample_count = len(targets)

    def initial(self, seed: int) -> Vector:
        """Return untrained parameters, the same for the same seed."""
        return self._net.initial(seed)

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on this party's nodes."""
        return self._net.train(params, self._samples, self._targets, job, rng)

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on this party's nodes."""
        return self._net.evaluate(params, self._samples, self._targets)

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's nodes have each label."""
        return np.bincount(self._samples.labels[self._targets], minlength=self._net.classes)


def judges(name: str, net: GraphNet, graph: Graph, split: GraphSplit) -> tuple[GraphWorkload, GraphWorkload]:
    """Who chooses settings and who reports: both see the whole graph as it is."""
    _, validation, test = graph.labelled(split.labelled)
    view = view_of(graph.links, graph.features, np.concatenate([validation, test]))
    samples = NodeSamples(view, graph.labels)
    return GraphWorkload(name, net, samples, validation), GraphWorkload(name, net, samples, test)


def learners(
    name: str, net: GraphNet, graph: Graph, split: GraphSplit, parts: list[tuple[Nodes, Nodes]], *, seed: int
) -> list[GraphWorkload]:
    """A workload for each device's targets and own nodes."""
    workloads: list[GraphWorkload] = []
    for targets, own in parts:
        rng = np.random.default_rng([seed, len(workloads)])
        view = enhanced(graph, own, split, rng)
        contrast = None
        if split.contrast:
            contrast = Contrast(enhanced(graph, own, split, rng), own, split.contrast, split.temperature)
        workloads.append(GraphWorkload(name, net, NodeSamples(view, graph.labels, contrast), targets))
    return workloads
