"""Vectors of parameters in four bits a value, two values a byte.

    value = scale · q, q whole from -7 to 7; one scale for at most 1,024 values

A table comes first (how many segments; length and scale of each), then the q plus 8, the first of a pair in the low
half. Values are rounded up or down at random, with the odds by which the mean is the value: rounded to the nearest,
most of what is much smaller than the largest of its segment would be zero each time.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
LEVELS: Final = 7
MAX_SEGMENT: Final = 1024
"""Values that share a scale at most."""
SEGMENT: Final = np.dtype([("length", "<u2"), ("scale", "<f4")])
"""A row of the table of segments."""
_COUNT = Struct("<I")
_OFFSET: Final = 8


def encode_nibbles(
    values: Values, lengths: npt.NDArray[np.int64], scales: Values, rng: np.random.Generator | None
) -> bytes:
    """Code segments of these lengths; without a generator values are rounded to the nearest."""
    table = np.empty(len(lengths), SEGMENT)
    table["length"], table["scale"] = lengths, scales
    steps = values / np.repeat(scales, lengths)
    levels = np.rint(steps) if rng is None else np.floor(steps + rng.random(len(steps), dtype=np.float32))
    coded = (np.clip(levels, -LEVELS, LEVELS) + _OFFSET).astype(np.uint8)
    if len(coded) % 2:
        coded = np.append(coded, np.uint8(0))
    return _COUNT.pack(len(lengths)) + table.tobytes() + (coded[::2] | coded[1::2] << 4).tobytes()


def read_table(coded: bytes) -> npt.NDArray[np.void]:
    """The table of segments, or ValueError if there is none."""
    if len(coded) < _COUNT.size:
        raise ValueError("there is no table of segments")
    (count,) = _COUNT.unpack_from(coded)
    if not 1 <= count <= (len(coded) - _COUNT.size) // SEGMENT.itemsize:
        raise ValueError(f"a table of {count} segments in {len(coded)} bytes")
    return np.frombuffer(coded, SEGMENT, count=count, offset=_COUNT.size)


def count_nibbles(coded: bytes) -> int:
    """How many values a code holds."""
    return int(read_table(coded)["length"].sum(dtype=np.int64))


def check_nibbles(coded: bytes) -> npt.NDArray[np.float32]:
    """Return the scales, which are still to be checked; ValueError unless the rest is sound."""
    table = read_table(coded)
    lengths = table["length"]
    pairs = np.frombuffer(coded, np.uint8, offset=_COUNT.size + table.nbytes)
    count = int(lengths.sum(dtype=np.int64))
    if (lengths < 1).any() or (lengths > MAX_SEGMENT).any() or len(pairs) != (count + 1) // 2:
        raise ValueError("the segments are not as long as the values")
    low, high = pairs & 15, pairs >> 4
    whole = high[:-1] if count % 2 else high
    if not low.all() or not whole.all() or (count % 2 and high[-1]):
        raise ValueError("a value is -8 scales, or there is one too many: they go from -7 to 7")
    return table["scale"].astype(np.float32)


def decode_nibbles(coded: bytes) -> Values:
    """The values of a code that `check_nibbles` accepts."""
    table = read_table(coded)
    pairs = np.frombuffer(coded, np.uint8, offset=_COUNT.size + table.nbytes)
    levels = np.empty(2 * len(pairs), np.uint8)
    levels[::2], levels[1::2] = pairs & 15, pairs >> 4
    scales = np.repeat(table["scale"].astype(np.float32), table["length"])
    values: Values = (levels[: len(scales)].astype(np.float32) - np.float32(_OFFSET)) * scales
    return values
