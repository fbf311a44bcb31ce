"""How a graph is shared out: each device owns some nodes and sees an enhanced view of the graph around them.

The paper makes diverse data of one graph by "combining the graph splitting method and contrastive learning" with the
augmentations of GraphCL (You et al., NeurIPS 2020): nodes are dropped, links changed, features masked. A device
owns a part of the nodes; of all other nodes it sees those that were not dropped for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.planetoid import Graph, Labelled, Nodes, Sparse
from ofl_iot.workloads.splits import Split, filled_up


@dataclass(frozen=True)
class GraphSplit:
    """Which nodes have labels, how nodes are shared out, and how far each device's view differs from the graph.

    With `regions` each device owns a connected region as far as possible; otherwise labelled nodes are dealt by
    their labels and all others evenly. `node_drop` is the share of nodes of other devices that a device does not
    see, `link_change` the share of links that are taken away and as many added elsewhere, `feature_mask` the share of
    features that it does not see. `contrast` weighs the contrastive term (0: none) at `temperature`.
    """

    labelled: Labelled = "full"
    regions: bool = False
    node_drop: float = 0.2
    link_change: float = 0.05
    feature_mask: float = 0.05
    contrast: float = 0.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        for name in ("node_drop", "link_change", "feature_mask"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"graph split: {name} must be in [0, 1], not {getattr(self, name)}")
        if not (self.contrast >= 0 and self.temperature > 0):
            raise ConfigError(
                f"graph split: contrast must not be negative and temperature be positive, not {self.contrast} and "
                f"{self.temperature}"
            )


@dataclass(frozen=True, eq=False)
class View:
    """A graph as one party sees it: how a node mixes what its neighbours have, and the features mixed once.

    With Â = D^(-1/2) (A + I) D^(-1/2), the normalised links with every node linked to itself: `mixing` is Â and
    `mixed` is Â X.
    """

    mixing: Sparse
    mixed: Sparse


def view_of(links: Sparse, features: Sparse, nodes: Nodes) -> View:
    """The view of a graph as it is, as far as `nodes` depend on it; rows that do not matter are empty."""
    from scipy.sparse import diags, identity

    looped = links + identity(links.shape[0], dtype=np.float32, format="csr")
    scale = diags(1 / np.sqrt(np.asarray(looped.sum(axis=1)).ravel()))
    mixing = (scale @ looped @ scale).tocsr().astype(np.float32)
    reached = np.isin(np.arange(links.shape[0]), mixing[nodes].indices).astype(np.float32)
    return View(mixing, (diags(reached) @ mixing @ features).tocsr())


def enhanced(graph: Graph, own: Nodes, split: GraphSplit, rng: np.random.Generator) -> View:
    """A device's view by the three augmentations; its own nodes are never dropped."""
    seen = rng.random(graph.count) >= split.node_drop
    seen[own] = True
    features = graph.features.copy()
    shown = (rng.random(features.shape[1]) >= split.feature_mask).astype(np.float32)
    features.data *= shown[features.indices]
    return view_of(_changed(graph.links, seen, split.link_change, rng), features, own)


def share_out(
    graph: Graph, train: Nodes, devices: int, split: Split, *, regions: bool, seed: int
) -> list[tuple[Nodes, Nodes]]:
    """For each device the labelled nodes that it trains on, and all nodes it owns; other labels are not looked at."""
    rng = np.random.default_rng(seed)
    if not regions:
        targets = [train[rows] for rows in split.rows(graph.labels[train], devices, seed)]
        rest = rng.permutation(np.setdiff1d(np.arange(graph.count), train))
        return [
            (own, np.sort(np.concatenate([own, more])))
            for own, more in zip(targets, np.array_split(rest, devices), strict=True)
        ]
    owner = grow_regions(graph.links, devices, rng)
    targets = filled_up([train[owner[train] == device] for device in range(devices)], max(1, split.minimum))
    for device, own in enumerate(targets):
        owner[own] = device
    return [(own, np.flatnonzero(owner == device)) for device, own in enumerate(targets)]


def grow_regions(links: Sparse, regions: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The region of each node: all grow in turn, breadth first from random nodes, to sizes that differ by one at most.

    A region that is shut in goes on from a random free node.
    """
    count = links.shape[0]
    if regions > count:
        raise ConfigError(f"{count} nodes are too few for {regions} devices: use fewer devices")
    owner = np.full(count, -1, dtype=np.int64)
    spare = iter(rng.permutation(count))
    borders: list[deque[int]] = [deque() for _ in range(regions)]
    for turn in range(count):
        region = turn % regions
        border = borders[region]
        while border and owner[border[0]] >= 0:
            border.popleft()
        node = border.popleft() if border else next(node for node in spare if owner[node] < 0)
        owner[node] = region
        border.extend(links.indices[links.indptr[node] : links.indptr[node + 1]].tolist())
    return owner


def _changed(links: Sparse, seen: npt.NDArray[np.bool_], change: float, rng: np.random.Generator) -> Sparse:
    """Links between nodes that are seen; a share `change` of them is taken away and as many are added at random."""
    from scipy.sparse import coo_matrix, triu

    upper = triu(links, format="coo")
    both = seen[upper.row] & seen[upper.col]
    rows, columns = upper.row[both], upper.col[both]
    kept = rng.random(len(rows)) >= change
    ends = rng.choice(np.flatnonzero(seen), (2, np.count_nonzero(~kept))) if seen.any() else np.empty((2, 0), np.int64)
    added = ends[:, ends[0] != ends[1]]
    one, other = np.concatenate([rows[kept], added[0]]), np.concatenate([columns[kept], added[1]])
    ones = np.ones(2 * len(one), np.float32)
    ends_both_ways = (np.concatenate([one, other]), np.concatenate([other, one]))
    changed = coo_matrix((ones, ends_both_ways), shape=links.shape).tocsr()
    changed.data[:] = 1
    return changed
