"""AHFL: clusters with heads and Gaussian noise on what devices send; here asynchronous on both levels.

Y. Guo, F. Liu, T. Zhou, Z. Cai, N. Xiao: Privacy vs. Efficiency: Achieving Both through Adaptive Hierarchical Federated
Learning, 2023 (the text of the paper gives the key guo2023privacy and the name alone; this is the work they fit). A
stand-in more than a simplification: how AHFL adapts its aggregation to budgets of resources and of privacy is left
out, and the paper does not count it among the asynchronous systems, while here heads and server take in each model
when it comes. Clusters are made as in `rfl_ha`; of the noise only what concerns learning is kept: each layer's weights
are scaled to norm 1, get noise of the given deviation, and are scaled back. The deviation is stated, not a budget:
weights are not bounded by the data, so no guarantee is claimed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ofl_iot.ids import COORDINATOR
from ofl_research.baselines.letters import BaselineMessage, Lead, Offer, Reply, Vector, pack_dense, unpack_dense
from ofl_research.baselines.means import mixed, staleness_share
from ofl_research.baselines.rfl_ha import HierarchyOptions


class AhflOptions(HierarchyOptions, frozen=True):
    """As of RFL-HA, and the noise."""

    deviation: float = 0.01
    """Size of the noise on one weight, relative to the root mean square of its layer's."""
    layers: tuple[int, ...] = ()
    """Parameters of each layer in their order; none: the model is one layer."""
    merges_per_member: int = 1
    """A head sends its model to the server when so many models came from each member, on average."""


class NoisyPacking:
    """The whole model, each layer normalised, perturbed and scaled back."""

    def __init__(self, options: AhflOptions, rng: np.random.Generator) -> None:
        self._options = options
        self._rng = rng

    def pack(self, start: Vector, trained: Vector) -> bytes:  # noqa: ARG002
        """4 bytes a parameter."""
        return pack_dense(perturbed(trained, self._options.layers, self._options.deviation, self._rng))


def perturbed(model: Vector, layers: Sequence[int], deviation: float, rng: np.random.Generator) -> Vector:
    """θ_l + ‖θ_l‖·N(0, deviation²/n_l) for each layer l of n_l weights."""
    noisy: Vector = model.copy()
    for layer in np.split(noisy, np.cumsum(layers or [len(model)])[:-1]):
        scale = deviation * float(np.linalg.norm(layer)) / np.sqrt(max(1, len(layer)))
        layer[:] += rng.normal(0.0, scale, len(layer)).astype(np.float32)
    return noisy


class AsynchronousHead:
    """Takes each member's model in when it comes and answers at once; the server gets the cluster's now and then."""

    def __init__(self, lead: Lead, options: AhflOptions) -> None:
        self._sizes = lead.members
        self._options = options
        self._model: Vector | None = None
        self._version = 0
        self._global_round = 0
        self._sent: Vector | None = None
        """What the server has not answered yet."""
        self._since = 0
        self._merged = 0

    def offered(self, offer: Offer) -> Iterator[tuple[str, BaselineMessage]]:
        """θ_cluster ← θ_global + what came in since the cluster's model was sent; members begin with the first."""
        model = unpack_dense(offer.models[0])
        self._global_round = offer.round_no
        if self._model is None or self._sent is None:
            self._model = model
            for member in self._sizes:
                yield member, self._offer()
        else:
            self._model = model + (self._model - self._sent)
        self._sent = None

    def replied(self, device: str, reply: Reply) -> Iterator[tuple[str, BaselineMessage]]:
        """θ_cluster ← (1 - a)·θ_cluster + a·θ_i with a in proportion to the device's samples, discounted by its lag."""
        if self._model is None:
            return
        share = len(self._sizes) * self._sizes[device] / sum(self._sizes.values())
        fresh = min(1.0, self._options.alpha * share)
        lag = (self._version - reply.round_no) // len(self._sizes)
        self._model = mixed(self._model, unpack_dense(reply.body), staleness_share(fresh, lag, self._options.exponent))
        self._version += 1
        self._since += 1
        self._merged += len(self._model)
        yield device, self._offer()
        if self._since >= self._options.merges_per_member * len(self._sizes) and self._sent is None:
            self._since, self._sent = 0, self._model
            yield COORDINATOR, Reply(self._global_round, pack_dense(self._model))

    @property
    def merged(self) -> int:
        """Parameters taken in since this was asked last."""
        merged, self._merged = self._merged, 0
        return merged

    def _offer(self) -> Offer:
        assert self._model is not None  # noqa: S101  # callers have one
        return Offer(self._version, (pack_dense(self._model),))
