"""What rounding to bytes takes from each tensor of a release, told by name when it is much."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ofl_iot.protocol.chunks import Indices, Piece
from ofl_iot.protocol.model_card import TensorCard
from ofl_iot.protocol.values import Values

log = logging.getLogger(__name__)

MUCH = 0.2
"""Share of a tensor's update, by length, that may be lost to rounding without a word."""


class RoundingWatch:
    """Watches the releases of one device; each tensor is named once."""

    def __init__(self, tensors: Sequence[TensorCard]) -> None:
        self._names = [tensor.name for tensor in tensors]
        ends = np.cumsum([tensor.size for tensor in tensors], dtype=np.int64)
        self.bounds: Indices = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        """Where tensors begin."""
        self._told: set[str] = set()

    def check(self, indices: npt.NDArray[np.integer], values: Values, pieces: Iterable[Piece]) -> dict[str, float]:
        """Return which share of its update each tensor lost that lost much, and warn of those not told yet."""
        whole, lost = (np.zeros(len(self._names)) for _ in range(2))
        for piece in pieces:
            places = piece.chunk.read_indices()
            wanted = values[np.searchsorted(indices, places)]
            tensor = np.searchsorted(self.bounds, places, side="right") - 1
            whole += np.bincount(tensor, np.square(wanted), minlength=len(whole))
            lost += np.bincount(tensor, np.square(wanted - piece.chunk.read_values()), minlength=len(whole))
        shares = np.sqrt(np.divide(lost, whole, out=np.zeros_like(lost), where=whole > 0))
        found = {self._names[place]: float(shares[place]) for place in np.flatnonzero(shares > MUCH)}
        for name, share in found.items():
            if name not in self._told:
                log.warning("rounding takes much of an update tensor=%s share=%.2f use=upload.values=half", name, share)
        self._told |= found.keys()
        return found
