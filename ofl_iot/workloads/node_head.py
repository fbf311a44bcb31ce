"""Graphs under node-level privacy: a linear head on each node's own features, smoothed over links when predicting.

A graph convolution mixes the features of neighbours into a node's gradient, so clipping that gradient protects the
node's label and nothing else of it. Here a node enters its own gradient alone: features *and* label are a record's.
Links are used where predictions are made, by whoever holds them, and nothing of that leaves:

    h <- alpha Â h + (1 - alpha) p,  ten times, from h = p = softmax(X W + b),  Â = D^(-1/2) (A + I) D^(-1/2)
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.tolerance import HEAD, Tolerance
from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.dense import DenseNet, Matrix, Samples
from ofl_iot.workloads.planetoid import Graph, Nodes, Sparse
from ofl_iot.workloads.training import for_head

SUFFIX = "-node"
"""Of an app's name: `cora-node` learns the graph `cora` with privacy for whole nodes."""
SMOOTHING = 0.95
PASSES = 10
LENGTH = 10.0
"""Of a node's features as the head takes them."""
BORNE = Tolerance(deviation=4.0, curvature=HEAD.curvature)
"""Smoothing averages predictions over many nodes, so that more noise is borne (chosen on Cora's validation nodes)."""
_BIAS = np.float32(1.0)


class NodeHeadWorkload:
    """A linear head on the features of some nodes; a judge's predictions are smoothed over all links."""

    def __init__(self, name: str, graph: Graph, targets: Nodes) -> None:
        """`targets` are the party's labelled nodes."""
        self._net = DenseNet((graph.features.shape[1], graph.classes))
        self._graph, self._targets = graph, targets
        self.name = f"{name} linear on nodes {graph.features.shape[1]}-{graph.classes}"
        self.digest = hashlib.blake2b(b"nodes " + self._net.digest, digest_size=8).digest()
        self.size = self._net.size
        self.sample_count = len(targets)

    @functools.cached_property
    def _samples(self) -> Samples:
        return Samples(_rows(self._graph.features[self._targets]), self._graph.labels[self._targets])

    def initial(self, seed: int) -> Vector:
        """Return zeros: a linear head needs no chance."""
        del seed
        return np.zeros(self.size, np.float32)

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on the features of this party's nodes, without any link."""
        return self._net.train(params, self._samples, np.arange(self.sample_count), for_head(job, LENGTH, BORNE), rng)

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge smoothed predictions for this party's nodes; the loss is that of the head alone."""
        if not self.sample_count:
            raise ConfigError("no samples to evaluate on: give this party data")
        outputs = self._net.outputs(params, _rows(self._graph.features))
        smooth = smoothed(_softmax(outputs), _mixing(self._graph))
        labels = self._graph.labels[self._targets]
        hits = float((smooth[self._targets].argmax(axis=1) == labels).mean())
        return Evaluation(accuracy=hits, loss=self._net.loss(outputs[self._targets], labels), count=self.sample_count)

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's nodes have each label."""
        return np.bincount(self._graph.labels[self._targets], minlength=self._graph.classes)


def smoothed(predictions: Matrix, mixing: Sparse, alpha: float = SMOOTHING, passes: int = PASSES) -> Matrix:
    """Return predictions mixed with those of linked nodes, `passes` times."""
    mixed = predictions
    for _ in range(passes):
        mixed = alpha * (mixing @ mixed) + (1 - alpha) * predictions
    return mixed


def _softmax(logits: Matrix) -> Matrix:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)


def _rows(features: Sparse) -> Matrix:
    """Return features of length `LENGTH` with the input of the bias as last column."""
    rows = np.empty((features.shape[0], features.shape[1] + 1), np.float32)
    rows[:, :-1] = features.toarray()
    rows[:, :-1] *= LENGTH / np.maximum(np.linalg.norm(rows[:, :-1], axis=1, keepdims=True), 1e-6)
    rows[:, -1] = _BIAS
    rows.setflags(write=False)
    return rows


def _mixing(graph: Graph) -> Sparse:
    from scipy.sparse import diags, identity

    closed = (graph.links + identity(graph.count, dtype=np.float32, format="csr")).tocsr()
    scale = diags(1 / np.sqrt(np.asarray(closed.sum(axis=1)).ravel()))
    return (scale @ closed @ scale).tocsr().astype(np.float32)
