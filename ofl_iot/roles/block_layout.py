"""The model's division into blocks, the unit of download.

A block's version is its *cumulative change*, the sum of the absolute changes it has seen at the leader
(`opportunity.merge`). The change since a device last got the block is its version lag.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = -1.0
"""The cumulative change seen of a block that was never seen: less than any."""


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
