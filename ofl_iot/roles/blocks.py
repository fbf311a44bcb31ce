"""The model's division into blocks, the unit of download, and their mileage.

A block's *mileage* is the sum of the absolute changes it has seen at the leader. The difference between the mileage
now and the mileage at which a device last got the block tells how much change that device has missed: its version lag.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.roles.events import Vector

Mileage = npt.NDArray[np.float32]
NEVER = np.float32(-1.0)


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of `block_size` parameters; the last one may be shorter."""

    size: int
    block_size: int

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.size // self.block_size)

    def bounds(self, block: int) -> slice:
        """The block's place in the model."""
        start = block * self.block_size
        return slice(start, min(start + self.block_size, self.size))

    def sums(self, vector: Vector) -> Mileage:
        """Sum of |vector| over each block."""
        padded = np.zeros(self.count * self.block_size, np.float32)
        np.abs(vector, out=padded[: self.size])
        sums: Mileage = padded.reshape(self.count, self.block_size).sum(axis=1, dtype=np.float32)
        return sums

    def stalest(self, mileage: Mileage, seen: Mileage, most: int) -> list[int]:
        """Up to `most` blocks, the largest lag first: those never seen, then those that changed most."""
        never = seen < 0
        lag = np.where(never, np.inf, mileage - seen)
        order = np.lexsort((-mileage, -lag))
        return [int(block) for block in order[:most] if lag[block] > 0]
