"""The device's model: what it trained, what it has released, what it has seen of its leader's.

    unreleased work = local - base

`base` is the leader's model as the device knows it plus what the device released since. Releasing adds to `base`,
so exactly the released part leaves the unreleased work and the rest waits (error feedback). Downloading moves both
by the same amount, so no unreleased work is lost.

Training starts from `local`, or from `base`: then the unreleased work waits apart and steers nothing before it leaves.
Where nothing was heard since the last training, the next one goes on from its result in either case: a device that
began again from the same model would send the same correction twice.
"""

from __future__ import annotations

import numpy as np

from ofl_iot.errors import RefusedError
from ofl_iot.opportunity.merge import CumulativeChange, count_change
from ofl_iot.protocol.block_batch import BlockBatch
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.roles.block_layout import NEVER, BlockLayout
from ofl_iot.roles.events import Vector


class LocalModel:
    """The vectors of one device."""

    def __init__(self, layout: BlockLayout, digest: bytes, *, residual_apart: bool = False) -> None:
        self.layout = layout
        self.digest = digest
        self.local: Vector = np.zeros(layout.size, np.float32)
        self.base: Vector = np.zeros(layout.size, np.float32)
        self.synced: Vector = np.zeros(layout.size, np.float32)
        """theta_0 of Eq. 5: the leader's model at the last sync."""
        self.synced_before: Vector = np.zeros(layout.size, np.float32)
        """theta_1 of Eq. 5: at the sync before."""
        self.seen: CumulativeChange = np.full(layout.count, NEVER)
        self.held = np.zeros(layout.count, bool)
        """Blocks that some leader has sent at least once."""
        self.round_no = 0
        self._residual_apart = residual_apart
        self._reached: Vector | None = None
        """Where the last training ended; None once something was heard since it began."""
        self._heard = False
        """Whether blocks came since the last training began."""

    @property
    def complete(self) -> bool:
        """Whether every block has been seen: training on half a model would be noise."""
        return bool(self.held.all())

    @property
    def unreleased(self) -> Vector:
        """Work that has not left the device."""
        return self.local - self.base

    @property
    def own(self) -> Vector:
        """The device's model for its own use: the leader's as last heard if the unreleased work waits apart."""
        return self.synced if self._residual_apart else self.local

    def start_training(self) -> Vector:
        """Return a copy of what the next training starts from."""
        self._heard = False
        known = self.base if self._residual_apart else self.local
        start = known if self._reached is None else self._reached
        copied: Vector = start.copy()
        return copied

    def distance(self) -> float:
        """||local - synced|| / ||synced||: how far the device is from its cluster."""
        norm = float(np.linalg.norm(self.synced))
        return min(1e9, float(np.linalg.norm(self.local - self.synced)) / norm) if norm else 0.0

    def trained(self, start: Vector, params: Vector) -> None:
        """Add what training changed; blocks downloaded meanwhile keep their new values."""
        self.local = self.local + (params - start)
        self._reached = params if self._residual_apart and not self._heard else None

    def discard_work(self) -> None:
        """Forget all work that has not left the device."""
        self.local = self.base.copy()
        self._reached, self._heard = None, True  # a training under way ends at a point that holds the dropped work

    def released(self, chunk: Chunk, *, perturbed: bool) -> None:
        """The chunk's part of the work is on its way.

        What rounding took from the values waits for the next release. Noise must not: what it took would leave
        with the next release, and with it the noise would be taken back. So perturbed parameters count as released.
        """
        places = chunk.read_indices()
        if perturbed:
            self.base[places] = self.local[places]
        else:
            self.base[places] += chunk.read_values()

    def downloaded(self, batch: BlockBatch, round_no: int) -> None:
        """Take over blocks of the leader's model without losing unreleased work."""
        layout, blocks = self.layout, batch.read_index()
        if blocks[-1] >= layout.count:
            raise RefusedError(f"block {blocks[-1]} of a model of {layout.count} blocks")
        lengths = layout.lengths(blocks)
        if batch.count != lengths.sum():
            raise RefusedError(f"{len(blocks)} blocks with {batch.count} values, not {lengths.sum()}")
        values = batch.read_values(lengths)
        layout.scatter(
            self.local, blocks, layout.gather(self.local, blocks) + (values - layout.gather(self.base, blocks))
        )
        layout.scatter(self.base, blocks, values)
        layout.scatter(self.synced_before, blocks, layout.gather(self.synced, blocks))
        layout.scatter(self.synced, blocks, values)
        self.seen[blocks] = batch.read_cumulative_change()
        self.held[blocks] = True
        self.round_no = round_no
        self._reached, self._heard = None, True

    def changed(self, chunk: Chunk) -> None:
        """Take note of a part of what the leader's published model changed by; `settle_on_synced` takes it over."""
        places, values = chunk.read_indices(), chunk.read_values()
        self.synced_before[places] = self.synced[places]
        self.synced[places] += values
        count_change(self.seen, places, values, block_size=self.layout.block_size)

    def settle_on_synced(self, round_no: int) -> None:
        """Stand on the leader's model as last heard, without losing unreleased work.

        What was released before is the leader's to tell of, as after a download.
        """
        self.local += self.synced - self.base
        self.base[:] = self.synced
        self.round_no = max(self.round_no, round_no)
        self._reached, self._heard = None, True

    def new_leader(self) -> None:
        """Another leader counts its own cumulative change: nothing of its model has been seen."""
        self.seen = np.full(self.layout.count, NEVER)
