"""Vectors of parameters as bytes, in one of four precisions:

- nibble: four bits a value (`protocol/nibbles.py`), for sparse updates alone,
- byte: value = scale · q with whole q in [-127, 127] and one float32 scale a vector, largest |value| / 127 rounded
  up. A value is off by at most half a scale. The scale comes first, then the q. A vector in segments, which do not
  cross the edges of tensors, has a scale for each: a table (how many segments; length and scale of each) comes first.
- half: float16, unless one would overflow, then all of them are float32,
- single: float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.protocol.nibbles import LEVELS as NIBBLE_LEVELS
from ofl_iot.protocol.nibbles import MAX_SEGMENT as MOST_NIBBLES
from ofl_iot.protocol.nibbles import check_nibbles, count_nibbles, decode_nibbles, encode_nibbles

Values = npt.NDArray[np.float32]
BlockPrecision = Literal["byte", "half", "single"]
"""Bound for whole blocks, where nothing restores what rounding takes."""
Precision = Literal["nibble", "byte", "half", "single"]
DType = Annotated[str, msgspec.Meta(pattern=r"^[bef]\Z")]
"""How a vector is coded: byte, half or single."""
SegmentedDType = Annotated[str, msgspec.Meta(pattern=r"^[befs]\Z")]
"""The same, or bytes in segments."""
SparseDType = Annotated[str, msgspec.Meta(pattern=r"^[befsn]\Z")]
"""The same, or nibbles in segments."""
Edges = npt.NDArray[np.int64]
"""Where segments of a vector begin, ascending from 0."""
MAX_SEGMENT = 4096
"""Values that share a scale at most."""

BYTES_PER_VALUE: Mapping[BlockPrecision, float] = {"byte": 1.0, "half": 2.0, "single": 4.0}
MAX_VALUE = 1e15
"""No update is as large; sums of what is not larger stay finite in float32, whoever sends them."""
FLOAT16_MAX = 65504.0
LEVELS = 127
LOUD = 0.1 * LEVELS
"""Deviations of a vector that its largest value may be before a byte a value blurs the others."""
_SCALE = Struct("<f")
_COUNT = Struct("<I")
_SEGMENT = np.dtype([("length", "<u2"), ("scale", "<f4")])
"""A row of the table of segments."""
SEGMENT_BYTES = _SEGMENT.itemsize
"""Bytes that a segment takes beside its values."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Below it float32 loses its precision, and a vector of zeros needs a scale, too."""
_LARGEST_SCALES = {
    levels: float(np.nextafter(np.float32(MAX_VALUE / levels), np.float32(0))) for levels in (LEVELS, NIBBLE_LEVELS)
}
"""Rounded down: no value that can be written is beyond MAX_VALUE."""


def bounded(values: Values) -> bool:
    """Whether all values are finite and of a size that can be merged."""
    # Written so that NaN, for which every comparison is false, is refused too.
    return bool((np.abs(values) <= MAX_VALUE).all())


def encode_values(
    values: Values, precision: Precision, edges: Edges | None = None, rng: np.random.Generator | None = None
) -> tuple[str, bytes]:
    """How the values are coded, and their code; there is at least one, and they are `bounded`.

    `edges` are where segments of different scale begin; they matter to bytes and nibbles only, `rng` to nibbles.
    """
    if precision == "nibble":
        cuts = np.arange(0, len(values), MOST_NIBBLES) if edges is None else edges
        lengths = np.diff(np.append(cuts, len(values)))
        scales = scales_for(np.maximum.reduceat(np.abs(values), cuts), NIBBLE_LEVELS)
        return "n", encode_nibbles(values, lengths, scales, rng)
    largest = float(np.abs(values).max())
    if precision == "byte" and edges is not None and len(edges) > 1:
        return "s", _encode_segments(values, edges)
    if precision == "byte":
        scale = float(scales_for(largest))
        return "b", _SCALE.pack(scale) + np.rint(values / scale).astype(np.int8).tobytes()
    if precision == "half" and largest <= FLOAT16_MAX:
        return "e", values.astype("<f2").tobytes()
    return "f", values.astype("<f4").tobytes()


def scales_for(largest: npt.ArrayLike, levels: int = LEVELS) -> Values:
    """Largest value / levels, rounded up to float16's 11 bits: more would tell low bits of a perhaps noisy value."""
    mantissa, exponent = np.frexp(np.asarray(largest, np.float64) / levels)
    rounded = np.ldexp(np.ceil(mantissa * 2**11), exponent - 11)
    scales: Values = np.clip(rounded, _LEAST_SCALE, _LARGEST_SCALES[levels]).astype(np.float32)
    return scales


def segments_between(bounds: Edges, indices: npt.NDArray[np.integer], most: int = MAX_SEGMENT) -> Edges:
    """Where segments of a sparse update begin, of at most so many values, none across the edge of a tensor.

    `bounds` are where tensors begin in the model, `indices` the places of the values, ascending.
    """
    inner = np.searchsorted(indices, bounds)
    cuts = np.unique(np.concatenate([[0], inner[(inner > 0) & (inner < len(indices))]]))
    lengths = np.diff(np.append(cuts, len(indices)))
    return np.concatenate([np.arange(cut, cut + length, most) for cut, length in zip(cuts, lengths, strict=True)])


def _encode_segments(values: Values, edges: Edges) -> bytes:
    lengths = np.diff(np.append(edges, len(values)))
    return join_segments(values, lengths, scales_for(np.maximum.reduceat(np.abs(values), edges)))


def join_segments(values: Values, lengths: npt.NDArray[np.int64], scales: Values) -> bytes:
    """The code of values in segments of these lengths, each at most 4,096, and scales."""
    table = np.empty(len(lengths), _SEGMENT)
    table["length"], table["scale"] = lengths, scales
    return (
        _COUNT.pack(len(lengths))
        + table.tobytes()
        + np.rint(values / np.repeat(scales, lengths)).astype(np.int8).tobytes()
    )


def _read_segments(coded: bytes) -> npt.NDArray[np.void]:
    """The table of segments, or ValueError if there is none."""
    if len(coded) < _COUNT.size:
        raise ValueError("there is no table of segments")
    (count,) = _COUNT.unpack_from(coded)
    if not 1 <= count <= (len(coded) - _COUNT.size) // _SEGMENT.itemsize:
        raise ValueError(f"a table of {count} segments in {len(coded)} bytes")
    return np.frombuffer(coded, _SEGMENT, count=count, offset=_COUNT.size)


def _check_segments(coded: bytes) -> None:
    table = _read_segments(coded)
    start = _COUNT.size + table.nbytes
    lengths = table["length"].astype(np.int64)
    if (lengths < 1).any() or (lengths > MAX_SEGMENT).any() or lengths.sum() != len(coded) - start:
        raise ValueError("the segments are not as long as the values")
    check_scales(table["scale"])
    check_levels(coded, start)


def decode_values(dtype: str, coded: bytes) -> Values:
    """The values of a code that `check_values` accepts."""
    if dtype == "n":
        return decode_nibbles(coded)
    if dtype == "s":
        table = _read_segments(coded)
        values = np.frombuffer(coded, np.int8, offset=_COUNT.size + table.nbytes).astype(np.float32)
        values *= np.repeat(table["scale"].astype(np.float32), table["length"])
        return values
    if dtype == "b":
        values = np.frombuffer(coded, np.int8, offset=_SCALE.size).astype(np.float32)
        values *= _scale(coded)
        return values
    return np.frombuffer(coded, "<f2" if dtype == "e" else "<f4").astype(np.float32)


def _scale(coded: bytes) -> float:
    scale: float = _SCALE.unpack_from(coded)[0]
    return scale


def count_values(dtype: str, coded: bytes) -> int:
    """How many values a code holds."""
    if dtype == "n":
        return count_nibbles(coded)
    if dtype == "s":
        return len(coded) - _COUNT.size - _read_segments(coded).nbytes
    return len(coded) - _SCALE.size if dtype == "b" else len(coded) // _width(dtype)


def _width(dtype: str) -> int:
    return 2 if dtype == "e" else 4


def check_values(dtype: str, coded: bytes) -> None:
    """Raise ValueError unless `coded` holds numbers that can be merged."""
    if dtype == "n":
        check_scales(check_nibbles(coded), NIBBLE_LEVELS)
    elif dtype == "s":
        _check_segments(coded)
    elif dtype == "b":
        if len(coded) <= _SCALE.size:
            raise ValueError("there is no value behind the scale")
        check_scales(np.frombuffer(coded, "<f4", count=1))
        check_levels(coded, _SCALE.size)
    elif len(coded) % _width(dtype):
        raise ValueError("the values are not whole numbers of floats")
    elif not bounded(decode_values(dtype, coded)):
        raise ValueError("a value is not finite or absurdly large")


def check_scales(scales: Values, levels: int = LEVELS) -> None:
    """Raise ValueError unless all scales can be multiplied with."""
    # Written so that NaN, for which every comparison is false, is refused too.
    wrong = scales[~((scales >= _LEAST_SCALE) & (scales <= _LARGEST_SCALES[levels]))]
    if len(wrong):
        raise ValueError(f"the scale is {wrong[0]}: not positive, not finite or absurdly large")


def check_levels(coded: bytes, start: int = 0) -> None:
    """Raise ValueError unless all bytes from `start` on are whole scales from -127 to 127."""
    if coded.find(b"\x80", start) >= 0:
        raise ValueError("a value is -128 scales: they go from -127 to 127")
