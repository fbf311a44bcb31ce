"""Vectors of parameters as bytes, in one of three precisions:

- byte: value = scale · q with whole q in [-127, 127] and one float32 scale a vector, largest |value| / 127 rounded
  up. A value is off by at most half a scale. The scale comes first, then the q.
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

Values = npt.NDArray[np.float32]
Precision = Literal["byte", "half", "single"]
DType = Annotated[str, msgspec.Meta(pattern=r"^[bef]\Z")]
"""How a vector is coded: byte, half or single."""

BYTES_PER_VALUE: Mapping[Precision, float] = {"byte": 1.0, "half": 2.0, "single": 4.0}
MAX_VALUE = 1e15
"""No update is as large; sums of what is not larger stay finite in float32, whoever sends them."""
FLOAT16_MAX = 65504.0
LEVELS = 127
LOUD = 0.1 * LEVELS
"""Deviations of a vector that its largest value may be before a byte a value blurs the others."""
_SCALE = Struct("<f")
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Below it float32 loses its precision, and a vector of zeros needs a scale, too."""
_LARGEST_SCALE = float(np.nextafter(np.float32(MAX_VALUE / LEVELS), np.float32(0)))
"""Rounded down: no value that can be written is beyond MAX_VALUE."""


def bounded(values: Values) -> bool:
    """Whether all values are finite and of a size that can be merged."""
    # Written so that NaN, for which every comparison is false, is refused too.
    return bool((np.abs(values) <= MAX_VALUE).all())


def encode_values(values: Values, precision: Precision) -> tuple[str, bytes]:
    """How the values are coded, and their code; there is at least one, and they are `bounded`."""
    largest = float(np.abs(values).max())
    if precision == "byte":
        scale = float(scales_for(largest))
        return "b", _SCALE.pack(scale) + np.rint(values / scale).astype(np.int8).tobytes()
    if precision == "half" and largest <= FLOAT16_MAX:
        return "e", values.astype("<f2").tobytes()
    return "f", values.astype("<f4").tobytes()


def scales_for(largest: npt.ArrayLike) -> Values:
    """Largest value / 127, rounded up to float16's 11 bits: more would tell the low bits of a perhaps noisy value."""
    mantissa, exponent = np.frexp(np.asarray(largest, np.float64) / LEVELS)
    rounded = np.ldexp(np.ceil(mantissa * 2**11), exponent - 11)
    scales: Values = np.clip(rounded, _LEAST_SCALE, _LARGEST_SCALE).astype(np.float32)
    return scales


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
        check_scales(np.frombuffer(coded, "<f4", count=1))
        check_levels(coded, _SCALE.size)
    elif len(coded) % _width(dtype):
        raise ValueError("the values are not whole numbers of floats")
    elif not bounded(decode_values(dtype, coded)):
        raise ValueError("a value is not finite or absurdly large")


def check_scales(scales: Values) -> None:
    """Raise ValueError unless all scales can be multiplied with."""
    # Written so that NaN, for which every comparison is false, is refused too.
    wrong = scales[~((scales >= _LEAST_SCALE) & (scales <= _LARGEST_SCALE))]
    if len(wrong):
        raise ValueError(f"the scale is {wrong[0]}: not positive, not finite or absurdly large")


def check_levels(coded: bytes, start: int = 0) -> None:
    """Raise ValueError unless all bytes from `start` on are whole scales from -127 to 127."""
    if coded.find(b"\x80", start) >= 0:
        raise ValueError("a value is -128 scales: they go from -127 to 127")
