"""Blocks of a leader's model on the wire: one array a field, so that no work is done block by block.

Blocks of one batch share a precision of `protocol/values.py`; bytes have a scale a block or, where the edge of a tensor
lies within a block, one for each of its segments. Values stand one block behind the other, in the order of `index`. How
long a block is, is not said: whoever knows the model knows its layout.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.protocol.values import (
    FLOAT16_MAX,
    LOUD,
    SEGMENT_BYTES,
    BlockPrecision,
    Edges,
    SegmentedDType,
    Values,
    bounded,
    check_levels,
    check_scales,
    check_values,
    count_values,
    decode_values,
    join_segments,
    scales_for,
)

Index = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]
"""How many parameters each block of a batch has."""
MAX_BATCH_BYTES = 1 << 20
BLOCK_OVERHEAD = 16
"""Bytes a block takes beside its values: its number, its version and its scale."""
_VERSION_MAX = 1e30
_NO_CUTS: Edges = np.zeros(0, np.int64)
_Bytes = Annotated[bytes, msgspec.Meta(max_length=MAX_BATCH_BYTES)]


class BlockBatch(msgspec.Struct, frozen=True, array_like=True):
    """Some blocks of the leader's model, in one precision."""

    dtype: SegmentedDType
    index: Annotated[bytes, msgspec.Meta(min_length=4, max_length=MAX_BATCH_BYTES)]
    """Numbers of the blocks, ascending, uint32."""
    cumulative_change: _Bytes
    """Version of each block, float64."""
    scales: _Bytes
    """One float32 a block for values of a byte; empty otherwise."""
    values: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_BATCH_BYTES)]

    def __post_init__(self) -> None:
        index = np.frombuffer(_whole(self.index, 4, "numbers"), "<u4")
        if (index[1:] <= index[:-1]).any():
            raise ValueError("the blocks are not in ascending order")
        changes = self.read_cumulative_change()
        # Written so that NaN, for which every comparison is false, is refused too.
        if len(changes) != len(index) or not ((changes >= 0) & (changes <= _VERSION_MAX)).all():
            raise ValueError("not every block has a version")
        scales = np.frombuffer(_whole(self.scales, 4, "scales"), "<f4")
        if len(scales) != (len(index) if self.dtype == "b" else 0):
            raise ValueError(f"{len(scales)} scales for {len(index)} blocks")
        if self.dtype == "b":
            check_scales(scales)
            check_levels(self.values)
        elif self.dtype == "s":
            check_values("s", self.values)
        elif not bounded(decode_values(self.dtype, _whole(self.values, 2 if self.dtype == "e" else 4, "values"))):
            raise ValueError("a value is not finite or absurdly large")

    def read_index(self) -> npt.NDArray[np.int64]:
        """The blocks' numbers, ascending."""
        return np.frombuffer(self.index, "<u4").astype(np.int64)

    def read_cumulative_change(self) -> npt.NDArray[np.float64]:
        """The blocks' versions."""
        return np.frombuffer(_whole(self.cumulative_change, 8, "versions"), "<f8").astype(np.float64)

    @property
    def count(self) -> int:
        """How many parameters it holds."""
        return len(self.values) if self.dtype == "b" else count_values(self.dtype, self.values)

    def read_values(self, lengths: Lengths) -> Values:
        """The blocks' parameters, one block behind the other; `lengths` must add up to `count`."""
        if self.dtype != "b":
            return decode_values(self.dtype, self.values)
        values = np.frombuffer(self.values, np.int8).astype(np.float32)
        values *= np.repeat(np.frombuffer(self.scales, "<f4").astype(np.float32), lengths)
        return values


def encode_batches(
    index: npt.NDArray[np.int64],
    cumulative_change: npt.NDArray[np.float64],
    lengths: Lengths,
    values: Values,
    precision: BlockPrecision,
    *,
    cuts: Edges = _NO_CUTS,
) -> tuple[BlockBatch, ...]:
    """Blocks (ascending, at least one) as batches; one that its precision would blur or overflow takes a larger one.

    `cuts` are the places among `values` where a tensor begins within a block: bytes have a scale on either side.

    Nothing makes good what rounding takes from a model. A loud parameter makes a scale that blurs its neighbours: where
    it is more than a tenth of their deviation, the block becomes halves. Of normal values the largest of a thousand is
    some 3.5 deviations, of such ones more than 12.7.
    """
    starts = np.cumsum(lengths) - lengths
    coded, segments, scales = _choose_codes(starts, lengths, values, precision, cuts)
    batches = []
    for dtype in np.unique(coded):
        mine = coded == dtype
        inside = slice(None) if mine.all() else np.repeat(mine, lengths)
        here = slice(None) if mine.all() else mine[np.searchsorted(starts, segments, side="right") - 1]
        width = np.diff(np.append(segments, len(values)))[here]
        batches.append(
            BlockBatch(
                dtype=str(dtype),
                index=index[mine].astype("<u4").tobytes(),
                cumulative_change=cumulative_change[mine].astype("<f8").tobytes(),
                scales=scales[here].astype("<f4").tobytes() if dtype == "b" else b"",
                values=_coded(str(dtype), values[inside], width, scales[here]),
            )
        )
    return tuple(batches)


def _choose_codes(
    starts: Lengths, lengths: Lengths, values: Values, precision: BlockPrecision, cuts: Edges
) -> tuple[npt.NDArray[np.str_], Edges, Values]:
    """Return how each block is coded, where segments begin, and the scale of each segment for bytes."""
    segments = np.union1d(starts, cuts) if len(cuts) else starts
    width = np.diff(np.append(segments, len(values)))
    largest = np.maximum.reduceat(np.abs(values), segments)
    scales = scales_for(largest)
    coded = np.full(len(starts), {"byte": "b", "half": "e", "single": "f"}[precision])
    first = np.searchsorted(segments, starts)
    if precision == "byte":
        steps = np.divide(values, np.repeat(scales, width), dtype=np.float32)
        energy = np.add.reduceat(np.square(steps), segments)
        # largest > LOUD · deviation, both in scales: squares of tiny values would be lost
        loud = np.square(largest / scales) * width > LOUD**2 * energy
        count = np.diff(np.append(first, len(segments)))
        coded[count > 1] = "s"
        # Many small tensors: a table of scales would take more than halves do.
        coded[np.logical_or.reduceat(loud, first) | (SEGMENT_BYTES * count > lengths) & (count > 1)] = "e"
    coded[(coded == "e") & (np.maximum.reduceat(largest, first) > FLOAT16_MAX)] = "f"
    return coded, segments, scales


def _coded(dtype: str, values: Values, width: Lengths, scales: Values) -> bytes:
    if dtype in "ef":
        return values.astype("<f2" if dtype == "e" else "<f4").tobytes()
    if dtype == "s":
        return join_segments(values, width, scales)
    return np.rint(np.divide(values, np.repeat(scales, width), dtype=np.float32)).astype(np.int8).tobytes()


def _whole(coded: bytes, width: int, what: str) -> bytes:
    if len(coded) % width:
        raise ValueError(f"the {what} of a batch are cut")
    return coded
