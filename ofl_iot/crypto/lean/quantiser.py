"""Updates as whole numbers: public bounds a block, nearest rounding, and what rounding and clipping take.

A bound is a power of two, 2^e, for a block of 2,048 parameters; the step is 2^(e - b + 1) for values of b bits. The
coordinator derives the next bounds from the global update, which everybody sees; what was clipped or rounded off stays
with the leader and leaves later.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto.lean.params import value_bits, value_limit
from ofl_iot.errors import CryptoError

Update = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int32]

BLOCK: Final = 2048
START: Final = 0
"""Exponent of every bound before the first round: values up to 1."""
FLOOR: Final = -6
CEILING: Final = 4
_MARGIN: Final = 8.0
"""A leader's change may be so many times the global one: averages are smaller than what they are made of."""
_QUANTILE: Final = 0.999


def blocks(n_params: int) -> int:
    """How many bounds a model has."""
    return -(-n_params // BLOCK)


def first_bounds(n_params: int) -> bytes:
    """The bounds of the first round: one signed exponent a block."""
    return np.full(blocks(n_params), START, dtype=np.int8).tobytes()


def read_bounds(bounds: bytes, n_params: int) -> npt.NDArray[np.int8]:
    """The exponents; refuses another number of them than the model has blocks, or such as are out of range."""
    exponents = np.frombuffer(bounds, dtype=np.int8)
    if exponents.size != blocks(n_params):
        raise CryptoError(f"{exponents.size} quantisation bounds: {n_params} parameters have {blocks(n_params)} blocks")
    if exponents.size and not (exponents.min() >= FLOOR and exponents.max() <= CEILING):
        raise CryptoError(f"a quantisation bound outside of 2^{FLOOR} to 2^{CEILING}")
    return exponents


def bounds_digest(bounds: bytes) -> bytes:
    """What a header says of the bounds."""
    return hashlib.sha256(b"ofl-iot lean bounds v1\n" + bounds).digest()


def quantise(update: Update, bounds: bytes, precision: int) -> Whole:
    """round(update/step), clipped to ±(2^(b-1) - 2)."""
    if update.ndim != 1 or not np.isfinite(update).all():
        raise CryptoError("an update is one flat vector of finite numbers: lower the learning rate")
    limit = value_limit(precision)
    scaled = np.rint(update.astype(np.float64) / _steps(bounds, update.size, precision))
    return np.clip(scaled, -limit, limit).astype(np.int32)


def dequantise(values: npt.NDArray[np.int32], bounds: bytes, precision: int, divisor: int = 1) -> Update:
    """values·step/divisor: an update again, or the average of a sum."""
    steps = _steps(bounds, values.size, precision)
    return (values * (steps / divisor)).astype(np.float32)


def residue(update: Update, bounds: bytes, precision: int) -> Update:
    """What quantising takes from an update."""
    return update - dequantise(quantise(update, bounds, precision), bounds, precision)


def next_bounds(bounds: bytes, change: Update) -> bytes:
    """Bounds for the round after a global update: 8 times a quantile of its values, at most doubled or halved."""
    exponents = read_bounds(bounds, change.size)
    out = np.empty_like(exponents)
    for number, exponent in enumerate(exponents):
        block = np.sort(np.abs(change[number * BLOCK : (number + 1) * BLOCK]))
        reach = _MARGIN * float(block[math.ceil(_QUANTILE * block.size) - 1])
        wanted = math.ceil(math.log2(reach)) if reach > 0 else FLOOR
        out[number] = min(max(wanted, int(exponent) - 1, FLOOR), int(exponent) + 1, CEILING)
    return out.tobytes()


def _steps(bounds: bytes, n_params: int, precision: int) -> npt.NDArray[np.float64]:
    exponents = read_bounds(bounds, n_params).astype(np.int64) - (value_bits(precision) - 1)
    return np.repeat(np.ldexp(1.0, exponents), BLOCK)[:n_params]
