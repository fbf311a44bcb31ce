"""What the members of a cluster hold: a model that a leader's changes bring closer and closer to its own.

    published[S] += rounded (model - published)[S],   S the largest differences

What is not selected, and what rounding takes, stays in the difference and comes with a later change. A device that was
handed the published model once and applied every change since holds the same numbers.
"""

from __future__ import annotations

import numpy as np

from ofl_iot.opportunity.merge import CumulativeChange, count_change
from ofl_iot.opportunity.release import count_of
from ofl_iot.opportunity.selection import select_top
from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.values import MAX_VALUE, Precision
from ofl_iot.roles.events import Vector
from ofl_iot.roles.leader.cluster_model import ClusterModel

TARGET_BYTES = 128 * 1024
"""Size of one part of a change."""


class Published:
    """One term's published model; it stands in a cluster model's place where pulls are answered."""

    def __init__(self, cluster: ClusterModel, version: int) -> None:
        self.layout = cluster.layout
        self.term = cluster.term
        self.round_no = cluster.round_no
        self.version = version
        self.since = version
        """Older versions are of a published model that was lost: what a device saw of it means nothing."""
        self.model: Vector = cluster.model.copy()
        self.cumulative_change: CumulativeChange = cluster.cumulative_change + 1.0

    def approach(self, cluster: ClusterModel, digest: bytes, gamma: float, values: Precision) -> list[Chunk]:
        """Go a step towards the leader's model; return what the members are to be told.

        Nibbles are rounded by numbers that follow from term and version: the same step again gives the same bytes.
        """
        self.version, self.round_no = self.version + 1, cluster.round_no
        head = ChunkHead(self.term, digest, self.layout.size, self.round_no, 1.0, self.version)
        difference = np.clip(cluster.model - self.model, -MAX_VALUE, MAX_VALUE)
        size = np.abs(difference)
        places = select_top(size, count_of(gamma, len(size)))
        places = places[size[places] > 0]
        pieces = split_update(
            head,
            places,
            difference[places],
            size[places],
            precision=values,
            target_bytes=TARGET_BYTES,
            bounds=np.array(self.layout.edges, np.int64) if self.layout.edges else None,
            rng=np.random.default_rng([self.term, self.version]),
        )
        chunks = [piece.chunk for piece in pieces]
        for chunk in chunks:
            self._add(chunk)
        return chunks

    def _add(self, chunk: Chunk) -> None:
        places, values = chunk.read_indices(), chunk.read_values()
        self.model[places] += values
        count_change(self.cumulative_change, places, values, block_size=self.layout.block_size)
