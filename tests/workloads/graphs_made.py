"""A small graph made at random, without files."""

from __future__ import annotations

import numpy as np
import pytest

from ofl_iot.workloads.planetoid import Graph

sparse = pytest.importorskip("scipy.sparse")


def graph_of(nodes: int = 40, seed: int = 0, *, features: int = 12, classes: int = 3, links: int = 80) -> Graph:
    """Random links, features and labels; a third each to train on, to choose by, to test on."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, links))
    ends = ends[:, ends[0] != ends[1]]
    joined = sparse.coo_matrix((np.ones(ends.shape[1], np.float32), ends), shape=(nodes, nodes)).tocsr()
    joined = (joined + joined.T).tocsr()
    joined.data[:] = 1
    words = sparse.csr_matrix(
        (rng.random((nodes, features)) * (rng.random((nodes, features)) < 0.4)).astype(np.float32)
    )
    train, validation, test = np.array_split(rng.permutation(nodes), 3)
    return Graph(words, joined, rng.integers(0, classes, nodes), classes, (train, validation, test))
