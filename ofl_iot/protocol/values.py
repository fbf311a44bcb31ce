"""Vectors of parameters as bytes, in one of three precisions:

- byte: value = scale · q with whole q in [-127, 127] and one float32 scale a vector, largest |value| / 127 rounded
  up. A value is off by at most half a scale. The scale comes first, then the q.
- half: float16, unless one would overflow, then all of them are float32,
- single: float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from struct import Struct
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
Precision = Literal["byte", "half", "single"]
DType = Annotated[str, msgspec.Meta(pattern=r"^[bef]\Z")]
"""How a vector is coded: byte, half or single."""

BYTES_PER_VALUE: Mapping[Precision, float] = {"byte": 1.0, "half": 2.0, "single": 4.0}
MAX_VALUE = 1e15
"""No update is as large; sums of what is not larger stay finite in float32, whoever sends them."""
_FLOAT16_MAX = 65504.0
_LEVELS = 127
_SCALE = Struct("<f")
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Below it float32 loses its precision, and a vector of zeros needs a scale, too."""
_LARGEST_SCALE = float(np.nextafter(np.float32(MAX_VALUE / _LEVELS), np.float32(0)))
"""Rounded down: no value that can be written is beyond MAX_VALUE."""


def bounded(values: Values) -> bool:
    """Whether all values are finite and of a size that can be merged."""
    # Written so that NaN, for which every comparison is false, is refused too.
    return bool((np.abs(values) <= MAX_VALUE).all())


def encode_values(values: Values, precision: Precision) -> tuple[str, bytes]:
    """How the values are coded, and their code; there is at least one, and they are `bounded`."""
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


def encode_model(values: Values, precision: Precision) -> tuple[str, bytes]:
    """As `encode_values`, but bytes only where they do: nothing makes good what rounding takes from a model.

    A loud parameter makes a scale that blurs its neighbours. More than a tenth of their deviation becomes halves: of
    normal values the largest of a thousand is some 3.5 deviations, of such ones more than 12.7.
    """
    deviation = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
    if precision == "byte" and float(np.abs(values).max()) > 0.1 * _LEVELS * deviation:
        return encode_values(values, "half")
    return encode_values(values, precision)


def decode_values(dtype: str, coded: bytes) -> Values:
    """The values of a code that `check_values` accepts."""
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
    return len(coded) - _SCALE.size if dtype == "b" else len(coded) // _width(dtype)


def _width(dtype: str) -> int:
    return 2 if dtype == "e" else 4


def check_values(dtype: str, coded: bytes) -> None:
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
    elif not bounded(decode_values(dtype, coded)):
        raise ValueError("a value is not finite or absurdly large")
