"""A sparse update as self-contained chunks: any of them, in any order, can be merged alone.

A chunk covers a range of the model and says which parameters of that range it holds, by the smallest of

- dense: all of them (no index bytes),
- bitmap: one bit a parameter of the range,
- gaps: per selected parameter the number of parameters skipped since the last one, in bytes; 255 means "255 skipped,
  none selected yet, read on". At gamma = 0.1 that is 1.0 byte an index (the entropy is 0.6, a bitmap takes 1.25),
- rice: the gaps by a Rice code (`protocol/rice.py`), 0.6 byte an index; with values of four bits alone, which no older
  program reads either.

Its values are coded in a precision of `protocol/values.py`. What rounding takes is not lost: a device counts as
released what `read_values` gives, unless values carry the noise of privacy mode `paper` (see `LocalModel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.protocol.lives import Account, StoreId
from ofl_iot.protocol.nibbles import MAX_SEGMENT as MOST_NIBBLES
from ofl_iot.protocol.rice import decode_gaps, encode_gaps
from ofl_iot.protocol.values import (
    MAX_SEGMENT,
    Precision,
    SparseDType,
    Values,
    bounded,
    check_values,
    count_values,
    decode_values,
    encode_values,
    segments_between,
)

Indices = npt.NDArray[np.int64]

BYTES_PER_PARAMETER: Mapping[Precision, float] = {"nibble": 1.11, "byte": 2.0, "half": 3.0, "single": 5.0}
"""What a selected parameter takes on the wire: a value and a gap."""
TARGET_CHUNK_BYTES = 32 * 1024
MAX_CHUNK_BYTES = 256 * 1024
MAX_MODEL_SIZE = 2**32
_ESCAPE = 255

_Coding = Annotated[str, msgspec.Meta(pattern=r"^[dbgr]\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk"):
    """Some parameters of one device's update."""

    term: _Count
    """The term in which it was first released; a resend to a later leader is the same bytes."""
    seq: Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
    model: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_MODEL_SIZE)]
    """Parameters of the whole model."""
    base_round: _Count
    """The global model the update was trained on."""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e12)]
    """Training steps behind the update."""
    start: _Count
    span: Annotated[int, msgspec.Meta(ge=1, le=MAX_MODEL_SIZE)]
    coding: _Coding
    index: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNK_BYTES)]
    dtype: SparseDType
    values: Annotated[bytes, msgspec.Meta(min_length=2, max_length=MAX_CHUNK_BYTES)]
    update_no: _Count = 0
    """The same for all chunks of one release: a leader that counts updates must not count chunks."""
    store: StoreId = b""
    """The store whose numbering `seq` belongs to."""
    account: Account = Account()
    """The device's ledger when the chunk was released."""

    def __post_init__(self) -> None:
        if self.start + self.span > self.size:
            raise ValueError("the range ends beyond the model")
        check_values(self.dtype, self.values)
        _check_index(self.coding, self.index, self.span, self.count)

    @property
    def count(self) -> int:
        """How many parameters it holds."""
        return count_values(self.dtype, self.values)

    def read_indices(self) -> Indices:
        """Places in the model, ascending."""
        return _decode_index(self.coding, self.index, self.span, self.count) + self.start

    def read_values(self) -> Values:
        """The update at these places."""
        return decode_values(self.dtype, self.values)


@dataclass(frozen=True)
class ChunkHead:
    """What the chunks of one release have in common."""

    term: int
    model: bytes
    size: int
    base_round: int
    weight: float
    update_no: int = 0


@dataclass(frozen=True)
class Piece:
    """A slice of a release before it gets its sequence number; pieces leave in order of `utility`."""

    utility: float
    chunk: Chunk


def split_update(
    head: ChunkHead,
    indices: npt.NDArray[np.integer],
    values: Values,
    utility: Values,
    *,
    precision: Precision = "byte",
    target_bytes: int = TARGET_CHUNK_BYTES,
    bounds: Indices | None = None,
    rng: np.random.Generator | None = None,
) -> list[Piece]:
    """Cut a sparse update (ascending `indices`) into chunks of about `target_bytes`, the most useful first.

    The sequence numbers are 1, 2, …: the outbox renumbers the chunks when they are released. `bounds` are where tensors
    begin in the model: values of different tensors then have scales of their own. Nibbles are rounded by `rng`.
    """
    _check_update(head, indices, values)
    if not len(indices):
        return []
    pieces = max(1, round(len(indices) * BYTES_PER_PARAMETER[precision] / target_bytes))
    cuts = np.linspace(0, len(indices), pieces + 1).astype(np.int64)
    parts = [slice(low, high) for low, high in pairwise(cuts)]
    worth = [float(utility[part].sum(dtype=np.float64)) for part in parts]
    order = sorted(range(pieces), key=lambda place: -worth[place])
    return [
        Piece(
            worth[place],
            _chunk_of(
                head, seq, indices[parts[place]], values[parts[place]], precision=precision, bounds=bounds, rng=rng
            ),
        )
        for seq, place in enumerate(order, 1)
    ]


def _check_update(head: ChunkHead, indices: npt.NDArray[np.integer], values: Values) -> None:
    if len(indices) != len(values):
        raise ValueError(f"{len(indices)} indices but {len(values)} values")
    if not len(indices):
        return
    if indices[0] < 0 or indices[-1] >= head.size or (np.diff(indices) <= 0).any():
        raise ValueError("indices must ascend within the model")
    if not bounded(values):
        raise ValueError("an update holds a value that is not finite or absurdly large")


def _chunk_of(
    head: ChunkHead,
    seq: int,
    indices: npt.NDArray[np.integer],
    values: Values,
    *,
    precision: Precision,
    bounds: Indices | None,
    rng: np.random.Generator | None,
) -> Chunk:
    start, span = int(indices[0]), int(indices[-1] - indices[0]) + 1
    coding, index = _encode_index(indices - start, span, tight=precision == "nibble")
    most = MOST_NIBBLES if precision == "nibble" else MAX_SEGMENT
    edges = segments_between(bounds, indices, most) if bounds is not None else None
    dtype, coded = encode_values(values, precision, edges, rng)
    return Chunk(
        term=head.term,
        seq=seq,
        model=head.model,
        size=head.size,
        base_round=head.base_round,
        weight=head.weight,
        start=start,
        span=span,
        coding=coding,
        index=index,
        dtype=dtype,
        values=coded,
        update_no=head.update_no,
    )


def _encode_index(offsets: npt.NDArray[np.integer], span: int, *, tight: bool = False) -> tuple[str, bytes]:
    if len(offsets) == span:
        return "d", b""
    gaps = np.diff(offsets, prepend=-1) - 1
    if tight:
        coded_gaps = encode_gaps(gaps.astype(np.int64))
        if len(coded_gaps) <= (span + 7) // 8:
            return "r", coded_gaps
    if gaps.max() < _ESCAPE and len(gaps) <= (span + 7) // 8:  # the usual case: no escapes, one byte a gap
        return "g", gaps.astype(np.uint8).tobytes()
    gap_ends = np.cumsum(gaps // _ESCAPE + 1)
    if gap_ends[-1] <= (span + 7) // 8:
        coded = np.full(gap_ends[-1], _ESCAPE, np.uint8)
        coded[gap_ends - 1] = gaps % _ESCAPE
        return "g", coded.tobytes()
    chosen = np.zeros(span, np.uint8)
    chosen[offsets] = 1
    return "b", np.packbits(chosen, bitorder="little").tobytes()


def _decode_index(coding: str, index: bytes, span: int, count: int) -> Indices:
    if coding == "d":
        return np.arange(span, dtype=np.int64)
    if coding == "r":
        return np.cumsum(decode_gaps(index, count) + 1) - 1
    coded = np.frombuffer(index, np.uint8)
    if coding == "b":
        return np.flatnonzero(np.unpackbits(coded, count=span, bitorder="little"))
    ends = np.flatnonzero(coded != _ESCAPE)
    return np.cumsum(coded, dtype=np.int64)[ends] + np.arange(len(ends))


def _check_index(coding: str, index: bytes, span: int, count: int) -> None:
    """Raise ValueError unless `index` names `count` places below `span`, in its one canonical form."""
    if coding == "d":
        named, fits = span, not index
    elif coding == "r":
        gaps = decode_gaps(index, count)
        # As floats first: gaps of a hostile code might add up beyond 64 bits.
        named, fits = count, gaps.sum(dtype=np.float64) + count <= span
    elif coding == "b":
        named, fits = int.from_bytes(index, "little").bit_count(), len(index) == (span + 7) // 8
        fits = fits and (span % 8 == 0 or index[-1] >> (span % 8) == 0)
    else:
        coded = np.frombuffer(index, np.uint8)
        named = int(np.count_nonzero(coded != _ESCAPE))
        fits = bool(len(coded)) and coded[-1] != _ESCAPE and int(coded.sum(dtype=np.int64)) + named <= span
    if not fits or named != count:
        raise ValueError(f"the index names {named} parameters of a range of {span}, the values are {count}")
