"""The paper's network for graphs, in PyTorch: two graph convolutions, one dense layer, softmax output for each node.

"A 2-layer GCN and one 512-neuron fully connected layer", with the convolution of Kipf and Welling (ICLR 2017),
Â = D^(-1/2) (A + I) D^(-1/2):

    z1 = (Â X) W1 + b1,  z2 = (Â relu z1) W2 + b2,  z3 = (relu z2) W3 + b3,  logits = (relu z3) W4 + b4

| layer                       | outputs | parameters for Cora, CiteSeer, PubMed |
| --------------------------- | ------- | ------------------------------------- |
| graph convolution           | 64      | 91,776, 237,056, 32,064               |
| graph convolution           | 64      | 4,160                                 |
| dense, rectified            | 512     | 33,280                                |
| dense, softmax              | classes | 3,591, 3,078, 1,539                   |
| all                         |         | 132,807, 277,574, 71,043              |

Only what the nodes of a batch depend on is computed: their neighbours' first layer, their own other layers. Â X is
made once. Half of the inputs of each layer but the last is dropped at random in training.

**What a record is.** With `clip_norm` the gradient of each labelled node's loss is clipped: a record is a node *as a
target*, that is, that it was trained on and its label. Its features and links are not a record's: they also enter the
losses of its neighbours up to two links away, whose gradients are other records'. Against someone who knows the
graph the guarantee is about labels; it is not node-level privacy. The contrastive term looks at many nodes at once, so
it is left out whenever gradients are clipped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.flat_net import (
    Labels,
    Passed,
    Tensor,
    clipping,
    dense_squares,
    descend,
    digest_of,
    judge,
    size_of,
)
from ofl_iot.workloads.graph_views import View
from ofl_iot.workloads.planetoid import Nodes
from ofl_iot.workloads.with_torch import load_torch

DEFAULT_HIDDEN = 512
CONVOLUTION_UNITS = 64
DROPOUT = 0.5
_CLIPPED_AT_ONCE = 64
_SHORTEST = 0.1
"""Outputs shorter than this are not stretched to length 1 for comparison: nodes that went out would blow up a step."""


class Contrast(msgspec.Struct, frozen=True):
    """A second view of the same nodes, `nodes` to compare in both, and the weight and temperature of the comparison."""

    view: View
    nodes: Nodes
    weight: float
    temperature: float


class NodeSamples(msgspec.Struct, frozen=True):
    """One party's graph: its view, the labels of all nodes (only those of its targets are looked at), a contrast."""

    view: View
    labels: Labels
    contrast: Contrast | None = None


class GraphNet(msgspec.Struct, frozen=True):
    """A network for nodes with so many features."""

    features: int
    classes: int
    hidden: int = DEFAULT_HIDDEN

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the weights and the biases of each layer in turn."""
        widths = (self.features, CONVOLUTION_UNITS, CONVOLUTION_UNITS, self.hidden, self.classes)
        return [shape for pair in itertools.pairwise(widths) for shape in (pair, pair[1:])]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return size_of(self.shapes)

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify the architecture."""
        return digest_of("graph convolutional", self.shapes)

    def initial(self, seed: int) -> Vector:
        """Draw weights uniformly from ±sqrt(6 / (inputs + outputs)) (Glorot); biases are 0."""
        rng = np.random.default_rng(seed)
        parts = []
        for shape in self.shapes:
            bound = math.sqrt(6 / sum(shape)) if len(shape) > 1 else 0.0
            parts.append(rng.uniform(-bound, bound, math.prod(shape)))
        return np.concatenate(parts).astype(np.float32)

    def evaluate(self, params: Vector, samples: NodeSamples, nodes: Nodes) -> Evaluation:
        """Judge `params` on some nodes."""

        def logits_of(layers: list[Tensor], batch: Nodes) -> Tensor:
            return _classified(layers, _convolved(layers, samples.view, batch, None), None)[-1].outputs

        return judge(params, nodes, samples.labels, shapes=self.shapes, logits_of=logits_of)

    def train(
        self, params: Vector, samples: NodeSamples, nodes: Nodes, job: TrainJob, rng: np.random.Generator
    ) -> TrainResult:
        """Train a copy of `params` on some nodes by (DP-)SGD as `TrainJob` says."""

        def sum_gradients(layers: list[Tensor], gradients: list[Tensor], batch: Nodes) -> float:
            for gradient in gradients:
                gradient.zero_()
            if job.clip_norm is not None:
                blocks = np.array_split(batch, -(-len(batch) // _CLIPPED_AT_ONCE)) if len(batch) else []
                return sum(
                    _add_gradients(layers, gradients, samples, block, clip_norm=job.clip_norm, rng=rng)
                    for block in blocks
                )
            if samples.contrast is not None:
                _add_contrast(layers, gradients, samples.view, samples.contrast, count=len(batch), rng=rng)
            return _add_gradients(layers, gradients, samples, batch, clip_norm=None, rng=rng)

        return descend(params, nodes, job, rng, shapes=self.shapes, sum_gradients=sum_gradients)


class _Neighbourhood(msgspec.Struct, frozen=True):
    """The way of a batch of nodes through the convolutions.

    The first one works on pairs of a node and a neighbour (or itself); `owners` is the place in the batch of each
    pair's node, `weights` its entry in Â.
    """

    first: Passed
    second: Passed
    owners: Tensor
    weights: Tensor


def _convolved(layers: list[Tensor], view: View, nodes: Nodes, dropping: np.random.Generator | None) -> _Neighbourhood:
    """Outputs of the first layer are a leaf of the graph of derivatives: what is wanted is the error at each output."""
    torch = load_torch()
    mixing = view.mixing[nodes]
    pairs = view.mixed[mixing.indices]
    if dropping is not None:
        pairs.data *= _dropout(pairs.data.shape, dropping)
    owners = torch.from_numpy(np.repeat(np.arange(len(nodes)), np.diff(mixing.indptr)))
    weights = torch.from_numpy(mixing.data)[:, None]
    first = torch.from_numpy(pairs @ layers[0].numpy()).add_(layers[1])
    if not torch.is_inference_mode_enabled():
        first.requires_grad_()
    hidden = _rectified(first, dropping) * weights
    mixed = torch.zeros(len(nodes), hidden.shape[1]).index_add(0, owners, hidden)
    second = torch.addmm(layers[3], mixed, layers[2])
    return _Neighbourhood(Passed(pairs, first), Passed(mixed, second), owners, weights)


def _classified(
    layers: list[Tensor], convolved: _Neighbourhood, dropping: np.random.Generator | None
) -> tuple[Passed, Passed]:
    """The dense layers; the last outputs are the logits."""
    torch = load_torch()
    inputs = _rectified(convolved.second.outputs, dropping)
    hidden = torch.addmm(layers[5], inputs, layers[4])
    rectified = hidden.relu()
    return Passed(inputs, hidden), Passed(rectified, torch.addmm(layers[7], rectified, layers[6]))


def _rectified(outputs: Tensor, dropping: np.random.Generator | None) -> Tensor:
    if dropping is None:
        return outputs.relu()
    return outputs.relu() * load_torch().from_numpy(_dropout(tuple(outputs.shape), dropping))


def _dropout(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A factor for each input: 0 with probability `DROPOUT`, else what keeps the mean."""
    kept = rng.random(shape, dtype=np.float32) >= DROPOUT
    return np.asarray(kept / np.float32(1 - DROPOUT))


def _add_gradients(
    layers: list[Tensor],
    gradients: list[Tensor],
    samples: NodeSamples,
    nodes: Nodes,
    *,
    clip_norm: float | None,
    rng: np.random.Generator,
) -> float:
    """Add the nodes' gradients, each clipped if asked; return the sum of their losses."""
    torch = load_torch()
    convolved = _convolved(layers, samples.view, nodes, rng)
    passed = [convolved.first, convolved.second, *_classified(layers, convolved, rng)]
    labels = torch.from_numpy(samples.labels[nodes])
    losses = torch.nn.functional.cross_entropy(passed[-1].outputs, labels, reduction="sum")
    errors = torch.autograd.grad(losses, [layer.outputs for layer in passed])
    with torch.no_grad():
        if clip_norm is not None:
            squares = _pair_squares(convolved, errors[0], len(nodes))
            for layer, error in zip(passed[1:], errors[1:], strict=True):
                squares += dense_squares(layer.inputs, error)
            scale = clipping(squares, clip_norm)[:, None]
            errors = [errors[0] * scale[convolved.owners], *(error * scale for error in errors[1:])]
        _accumulate(gradients, passed, errors)
    return float(losses.detach())


def _pair_squares(convolved: _Neighbourhood, error: Tensor, count: int) -> Tensor:
    """Each node's squared norm of the gradient of the first layer.

    The gradient is the sum of outer products x_p ⊗ d_p over the node's pairs p, so the squared norm is
    Σ_pq (x_p·x_q + 1) (d_p·d_q), where the 1 stands for the bias.
    """
    torch = load_torch()
    pairs, owners = convolved.first.inputs, convolved.owners
    likeness = torch.from_numpy((pairs @ pairs.T).toarray()).add_(1).mul_(error @ error.t())
    likeness.mul_(owners[:, None] == owners)
    return torch.zeros(count).index_add_(0, owners, likeness.sum(1)).clamp_(min=0)


def _accumulate(gradients: list[Tensor], passed: list[Passed], errors: Sequence[Tensor]) -> None:
    """Add the outer products of inputs and errors to the gradients of the first layers."""
    torch = load_torch()
    for place, (layer, error) in enumerate(zip(passed, errors, strict=True)):
        if place == 0:
            gradients[0].add_(torch.from_numpy(layer.inputs.T @ error.numpy()))
        else:
            gradients[2 * place].addmm_(layer.inputs.t(), error)
        gradients[2 * place + 1].add_(error.sum(0))


def _add_contrast(
    layers: list[Tensor],
    gradients: list[Tensor],
    view: View,
    contrast: Contrast,
    *,
    count: int,
    rng: np.random.Generator,
) -> None:
    """Add the gradient of the contrastive term, for as many nodes as there are targets in the batch.

    NT-Xent as in GraphCL (Eq. 3): with z and z' a node's second layer in the two views, s the cosine and T the
    temperature, the term of node n is -s(z_n, z'_n) / T + log Σ_(m≠n) exp(s(z_n, z'_m) / T).
    """
    torch = load_torch()
    count = min(count, len(contrast.nodes))
    if count < 2:
        return
    nodes = rng.choice(contrast.nodes, count, replace=False)
    ways = [_convolved(layers, each, nodes, rng) for each in (view, contrast.view)]
    one, other = (torch.nn.functional.normalize(way.second.outputs, dim=1, eps=_SHORTEST) for way in ways)
    terms = nt_xent(one, other, contrast.temperature)
    passed = [layer for way in ways for layer in (way.first, way.second)]
    errors = torch.autograd.grad(contrast.weight * terms.sum(), [layer.outputs for layer in passed])
    with torch.no_grad():
        for way in (slice(0, 2), slice(2, 4)):
            _accumulate(gradients, passed[way], errors[way])


def nt_xent(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """The contrastive term of each row; rows have length 1, and the same row of both is the same node."""
    likeness = one @ other.t() / temperature
    same = load_torch().eye(len(one), dtype=bool)
    others = likeness.masked_fill(same, -math.inf).logsumexp(1)
    return others - likeness.diagonal()
