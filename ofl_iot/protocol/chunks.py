"""A sparse update as self-contained chunks: any of them, in any order, can be merged alone.

A chunk covers a range of the model and says which parameters of that range it holds, by the smallest of

- dense: all of them (no index bytes),
- bitmap: one bit a parameter of the range,
- gaps: per selected parameter the number of parameters skipped since the last one, in bytes; 255 means "255 skipped,
  none selected yet, read on". At gamma = 0.1 that is 1.0 byte an index (the entropy is 0.6, a bitmap takes 1.25).

Its values are coded in one of three precisions:

- byte: value = scale · q with whole q in [-127, 127] and one float32 scale a chunk, largest |value| / 127 rounded
  up. A value is off by at most half a scale. The scale comes first, then the q.
- half: float16, unless one would overflow, then the chunk's values are float32,
- single: float32.

What rounding takes is not lost: a device counts as released what `read_values` gives (`roles/local_model.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Precision = Literal["byte", "half", "single"]

BYTES_PER_PARAMETER: Mapping[Precision, float] = {"byte": 2.0, "half": 3.0, "single": 5.0}
"""What a selected parameter takes on the wire: a value and a gap."""
TARGET_CHUNK_BYTES = 32 * 1024
MAX_CHUNK_BYTES = 256 * 1024
MAX_MODEL_SIZE = 2**32
MAX_VALUE = 1e15
"""No update is as large; sums of what is not larger stay finite in float32, whoever sends them."""
_FLOAT16_MAX = 65504.0
_LEVELS = 127
_SCALE = Struct("<f")
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Below it float32 loses its precision, and a chunk of zeros needs a scale, too."""
_LARGEST_SCALE = float(np.nextafter(np.float32(MAX_VALUE / _LEVELS), np.float32(0)))
"""Rounded down: no value that can be written is beyond MAX_VALUE."""
_ESCAPE = 255

_Coding = Annotated[str, msgspec.Meta(pattern=r"^[dbg]\Z")]
_DType = Annotated[str, msgspec.Meta(pattern=r"^[bef]\Z")]
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
    dtype: _DType
    values: Annotated[bytes, msgspec.Meta(min_length=2, max_length=MAX_CHUNK_BYTES)]
    update_no: _Count = 0
    """The same for all chunks of one release: a leader that counts updates must not count chunks."""

    def __post_init__(self) -> None:
        if self.start + self.span > self.size:
            raise ValueError("the range ends beyond the model")
        _check_values(self.dtype, self.values)
        _check_index(self.coding, self.index, self.span, self.count)

    @property
    def count(self) -> int:
        """How many parameters it holds."""
        return _count_values(self.dtype, self.values)

    def read_indices(self) -> Indices:
        """Places in the model, ascending."""
        return _decode_index(self.coding, self.index, self.span) + self.start

    def read_values(self) -> Values:
        """The update at these places."""
        return _decode_values(self.dtype, self.values)


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
) -> list[Piece]:
    """Cut a sparse update (ascending `indices`) into chunks of about `target_bytes`, the most useful first.

    The sequence numbers are 1, 2, …: the outbox renumbers the chunks when they are released.
    """
    _check_update(head, indices, values)
    if not len(indices):
        return []
    pieces = max(1, round(len(indices) * BYTES_PER_PARAMETER[precision] / target_bytes))
    bounds = np.linspace(0, len(indices), pieces + 1).astype(np.int64)
    parts = [slice(low, high) for low, high in pairwise(bounds)]
    worth = [float(utility[part].sum(dtype=np.float64)) for part in parts]
    order = sorted(range(pieces), key=lambda place: -worth[place])
    return [
        Piece(
            worth[place],
            _chunk_of(head, seq, indices[parts[place]], values[parts[place]], precision),
        )
        for seq, place in enumerate(order, 1)
    ]


def join_chunks(chunks: Iterable[Chunk]) -> tuple[Indices, Values]:
    """The sparse update that these chunks of one release hold together, ascending by place."""
    parts: Sequence[Chunk] = sorted(chunks, key=lambda chunk: chunk.start)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    indices = np.concatenate([chunk.read_indices() for chunk in parts])
    values = np.concatenate([chunk.read_values() for chunk in parts])
    return indices, values


def merge_chunk(model: Values, chunk: Chunk, step: float) -> None:
    """model[indices] += step · values, in place (the update form of Algorithm 2, line 18)."""
    model[chunk.read_indices()] += np.float32(step) * chunk.read_values()


def _check_update(head: ChunkHead, indices: npt.NDArray[np.integer], values: Values) -> None:
    if len(indices) != len(values):
        raise ValueError(f"{len(indices)} indices but {len(values)} values")
    if not len(indices):
        return
    if indices[0] < 0 or indices[-1] >= head.size or (np.diff(indices) <= 0).any():
        raise ValueError("indices must ascend within the model")
    if not _bounded(values):
        raise ValueError("an update holds a value that is not finite or absurdly large")


def _chunk_of(
    head: ChunkHead, seq: int, indices: npt.NDArray[np.integer], values: Values, precision: Precision
) -> Chunk:
    start, span = int(indices[0]), int(indices[-1] - indices[0]) + 1
    coding, index = _encode_index(indices - start, span)
    dtype, coded = _encode_values(values, precision)
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


def _bounded(values: Values) -> bool:
    # Written so that NaN, for which every comparison is false, is refused too.
    return bool((np.abs(values) <= MAX_VALUE).all())


def _encode_values(values: Values, precision: Precision) -> tuple[str, bytes]:
    largest = float(np.abs(values).max())
    if precision == "byte":
        scale = _scale_for(largest)
        return "b", _SCALE.pack(scale) + np.rint(values / scale).astype(np.int8).tobytes()
    if precision == "half" and largest <= _FLOAT16_MAX:
        return "e", values.astype("<f2").tobytes()
    return "f", values.astype("<f4").tobytes()


def _scale_for(largest: float) -> float:
    """Largest value / 127, rounded up to float16's 11 bits: more would tell the low bits of a perhaps noisy value."""
    mantissa, exponent = math.frexp(largest / _LEVELS)
    rounded = math.ldexp(math.ceil(mantissa * 2**11), exponent - 11)
    return min(max(rounded, _LEAST_SCALE), _LARGEST_SCALE)


def _decode_values(dtype: str, coded: bytes) -> Values:
    if dtype == "b":
        values = np.frombuffer(coded, np.int8, offset=_SCALE.size).astype(np.float32)
        values *= _scale(coded)
        return values
    return np.frombuffer(coded, "<f2" if dtype == "e" else "<f4").astype(np.float32)


def _scale(coded: bytes) -> float:
    scale: float = _SCALE.unpack_from(coded)[0]
    return scale


def _count_values(dtype: str, coded: bytes) -> int:
    return len(coded) - _SCALE.size if dtype == "b" else len(coded) // _width(dtype)


def _width(dtype: str) -> int:
    return 2 if dtype == "e" else 4


def _check_values(dtype: str, coded: bytes) -> None:
    """Raise ValueError unless `coded` holds numbers that can be merged."""
    if dtype == "b":
        if len(coded) <= _SCALE.size:
            raise ValueError("there is no value behind the scale")
        # Written so that NaN, for which every comparison is false, is refused too.
        if not _LEAST_SCALE <= _scale(coded) <= _LARGEST_SCALE:
            raise ValueError(f"the scale is {_scale(coded)}: not positive, not finite or absurdly large")
        if coded.find(b"\x80", _SCALE.size) >= 0:
            raise ValueError("a value is -128 scales: they go from -127 to 127")
    elif len(coded) % _width(dtype):
        raise ValueError("the values are not whole numbers of floats")
    elif not _bounded(_decode_values(dtype, coded)):
        raise ValueError("a value is not finite or absurdly large")


def _encode_index(offsets: npt.NDArray[np.integer], span: int) -> tuple[str, bytes]:
    if len(offsets) == span:
        return "d", b""
    gaps = np.diff(offsets, prepend=-1) - 1
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


def _decode_index(coding: str, index: bytes, span: int) -> Indices:
    if coding == "d":
        return np.arange(span, dtype=np.int64)
    coded = np.frombuffer(index, np.uint8)
    if coding == "b":
        return np.flatnonzero(np.unpackbits(coded, count=span, bitorder="little"))
    ends = np.flatnonzero(coded != _ESCAPE)
    return np.cumsum(coded, dtype=np.int64)[ends] + np.arange(len(ends))


def _check_index(coding: str, index: bytes, span: int, count: int) -> None:
    """Raise ValueError unless `index` names `count` places below `span`, in its one canonical form."""
    if coding == "d":
        named, fits = span, not index
    elif coding == "b":
        named, fits = int.from_bytes(index, "little").bit_count(), len(index) == (span + 7) // 8
        fits = fits and (span % 8 == 0 or index[-1] >> (span % 8) == 0)
    else:
        coded = np.frombuffer(index, np.uint8)
        named = int(np.count_nonzero(coded != _ESCAPE))
        fits = bool(len(coded)) and coded[-1] != _ESCAPE and int(coded.sum(dtype=np.int64)) + named <= span
    if not fits or named != count:
        raise ValueError(f"the index names {named} parameters of a range of {span}, the values are {count}")
