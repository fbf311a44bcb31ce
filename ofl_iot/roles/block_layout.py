"""The model's division into blocks, the unit of download: the only place that knows where a block begins and ends.

A block's version is its *cumulative change*, the sum of the absolute changes it has seen at the leader
(`opportunity.merge`). The change since a device last got the block is its version lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_Scalar = TypeVar("_Scalar", bound=np.generic)
BlockNumbers = npt.NDArray[np.int64]
"""Numbers of blocks, ascending."""

NEVER = -1.0
"""The cumulative change seen of a block that was never seen: less than any."""


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of `block_size` parameters; the last one may be shorter."""

    size: int
    block_size: int
    edges: tuple[int, ...] = ()
    """Where tensors begin in the model."""

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.size // self.block_size)

    def bounds(self, block: int) -> slice:
        """The block's place in the model."""
        start = block * self.block_size
        return slice(start, min(start + self.block_size, self.size))

    def lengths(self, blocks: BlockNumbers) -> npt.NDArray[np.int64]:
        """How many parameters each of the blocks has."""
        return np.minimum(self.block_size, self.size - blocks * self.block_size)

    def cuts(self, blocks: BlockNumbers) -> npt.NDArray[np.int64]:
        """The places among the gathered values of the blocks where a tensor begins within a block."""
        edges = np.array(self.edges, np.int64)
        within = edges[edges % self.block_size > 0]
        at = np.searchsorted(blocks, within // self.block_size)
        known = at < len(blocks)
        within, at = within[known], at[known]
        asked = blocks[at] == within // self.block_size
        # All blocks before the last of the model have full length.
        places: npt.NDArray[np.int64] = at[asked] * self.block_size + within[asked] % self.block_size
        return places

    def gather(self, vector: npt.NDArray[_Scalar], blocks: BlockNumbers) -> npt.NDArray[_Scalar]:
        """The values of the blocks, one block behind the other, as a copy."""
        rows, cut = self._rows(vector), self._whole_rows(blocks)
        whole = rows[blocks[:cut]].reshape(-1)
        return whole if cut == len(blocks) else np.concatenate((whole, vector[self.bounds(self.count - 1)]))

    def scatter(self, vector: npt.NDArray[_Scalar], blocks: BlockNumbers, values: npt.NDArray[_Scalar]) -> None:
        """Write the values of the blocks, one block behind the other, to their places."""
        rows, cut = self._rows(vector), self._whole_rows(blocks)
        rows[blocks[:cut]] = values[: cut * self.block_size].reshape(cut, self.block_size)
        if cut < len(blocks):
            vector[self.bounds(self.count - 1)] = values[cut * self.block_size :]

    def _rows(self, vector: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """A view of the blocks of full length."""
        whole = self.size // self.block_size
        return vector[: whole * self.block_size].reshape(whole, self.block_size)

    def _whole_rows(self, blocks: BlockNumbers) -> int:
        """How many of the blocks, from the first on, have full length."""
        return int(np.searchsorted(blocks, self.size // self.block_size))
