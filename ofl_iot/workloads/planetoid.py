"""The citation graphs Cora, CiteSeer and PubMed, read by torch_geometric from verified files."""

from __future__ import annotations

import functools
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.splits import stratified

Nodes: TypeAlias = npt.NDArray[np.int64]
Sparse: TypeAlias = Any
"""A matrix of scipy in compressed rows; scipy ships no types."""

Labelled: TypeAlias = Literal["full", "public", "random"]
FEATURE_LENGTH = np.float32(10)
"""Length of a node's features: with length 1, plain gradient descent takes several times as many steps."""
_RANDOM_SHARES = (0.6, 0.2, 0.2)
_RANDOM_SEED = 20_240


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph whose nodes have features and one of `classes` labels.

    `features` has one row a node; `links` holds a 1 for each pair of linked nodes, both ways, none to
    itself. `parts` are the published nodes to train on, to choose settings by and to test on.
    """

    features: Sparse
    links: Sparse
    labels: npt.NDArray[np.int64]
    classes: int
    parts: tuple[Nodes, Nodes, Nodes]

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.labels)

    def labelled(self, which: Labelled) -> tuple[Nodes, Nodes, Nodes]:
        """The nodes to train on, to choose settings by, to test on.

        "public": 20 of each class, 500, 1,000, as published. "full": the published ones to choose by and to test on,
        all others to train on. "random": 60, 20 and 20 % of each class, always the same. Nodes without any feature,
        which have no label of their own in the published files, are not trained on.
        """
        public, validation, test = self.parts
        known = np.flatnonzero(np.diff(self.features.indptr) > 0)
        if which == "public":
            return public, validation, test
        if which == "full":
            return np.setdiff1d(known, np.concatenate([validation, test])), validation, test
        if which == "random":
            train, choose, report = stratified(self.labels[known], _RANDOM_SHARES, _RANDOM_SEED)
            return known[train], known[choose], known[report]
        raise ConfigError(f"unknown choice of labelled nodes {which!r}: use one of {', '.join(get_args(Labelled))}")


@functools.lru_cache(maxsize=3)
def load_graph(name: str, folder: Path | None) -> Graph:
    """Read a citation graph from the data folder.

    The files are pickles: a private copy of what was verified is read, so that nobody can change it in between.
    """
    blobs = DATA_SETS[name].read(folder)
    with tempfile.TemporaryDirectory(prefix="ofl-planetoid-") as private:
        for file, blob in blobs.items():
            (Path(private) / file).write_bytes(blob)
        data = _reader()(private, name)
    from scipy.sparse import csr_matrix

    features = csr_matrix(data.x.numpy().astype(np.float32))
    lengths = np.maximum(np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel()), np.float32(1e-9))
    features.data *= np.repeat(FEATURE_LENGTH / lengths, np.diff(features.indptr))
    sources, targets = data.edge_index.numpy()
    apart = sources != targets
    ends = (np.concatenate([sources[apart], targets[apart]]), np.concatenate([targets[apart], sources[apart]]))
    links = csr_matrix((np.ones(len(ends[0]), np.float32), ends), shape=(len(features.indptr) - 1,) * 2)
    links.data[:] = 1
    labels = data.y.numpy()
    train, validation, test = (
        np.flatnonzero(mask.numpy()) for mask in (data.train_mask, data.val_mask, data.test_mask)
    )
    return Graph(features, links, labels, int(labels.max()) + 1, (train, validation, test))


def _reader() -> Any:
    """The function of torch_geometric that reads a folder of Planetoid files."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import alone warns of what torch will drop
            from torch_geometric.io import read_planetoid_data
    except ImportError as error:
        raise ConfigError(
            f"citation graphs need torch_geometric, which cannot be imported ({error}): pip install '.[graph]' in "
            "a checkout"
        ) from error
    return read_planetoid_data
