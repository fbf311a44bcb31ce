"""Unreleased work as it is stored: one byte a parameter.

    value = q · 2^e,   whole q in [-127, 127], one e for each 256 parameters

A block whose largest value would blur the others is stored exactly. What rounding takes, at most half a step of 2^e, is
lost only if the process ends before the work leaves; whole numbers up to 127 survive exactly.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ofl_iot.errors import RefusedError
from ofl_iot.protocol.values import LEVELS
from ofl_iot.roles.events import Vector

_BLOCK = 256
_LOUD = 6.0
"""Deviations of a block that its largest value may be; of 256 normal values it is some 3."""
_LEAST_EXPONENT = -126
"""Steps below are no normal numbers of float32."""


class _Coded(msgspec.Struct, frozen=True, array_like=True):
    size: int
    exponents: bytes
    """int16, one a block."""
    levels: bytes
    """int8, one a parameter; zeros in exact blocks."""
    exact_blocks: bytes
    """Numbers of the blocks stored exactly, uint32."""
    exact: bytes
    """Their values, float32."""


def encode_residual(values: Vector) -> bytes:
    """The code of finite values."""
    rows = np.zeros((-(-len(values) // _BLOCK), _BLOCK), np.float32)
    rows.reshape(-1)[: len(values)] = values
    largest = np.abs(rows).max(axis=1)
    mantissas, exponents = np.frexp(largest / np.float32(LEVELS))
    exponents = np.maximum(exponents - (mantissas == 0.5), _LEAST_EXPONENT).astype("<i2")  # ceil(log2(largest / 127))
    steps = np.ldexp(rows, -exponents[:, None].astype(np.int32))
    energy = np.einsum("ij,ij->i", steps, steps)
    loud = np.square(np.ldexp(largest, -exponents.astype(np.int32))) * _BLOCK > _LOUD**2 * energy
    steps[loud] = 0
    levels = np.rint(steps, out=steps).astype(np.int8).reshape(-1)[: len(values)]
    exact = np.flatnonzero(loud)
    return msgspec.msgpack.encode(
        _Coded(
            len(values),
            exponents.tobytes(),
            levels.tobytes(),
            exact.astype("<u4").tobytes(),
            rows[exact].astype("<f4").tobytes(),
        )
    )


def decode_residual(stored: bytes) -> Vector:
    """The values of a code, rounded; RefusedError for what is none."""
    try:
        coded = msgspec.msgpack.decode(stored, type=_Coded)
        exponents = np.frombuffer(coded.exponents, "<i2").astype(np.int32)
        rows = np.zeros((len(exponents), _BLOCK), np.float32)
        rows.reshape(-1)[: coded.size] = np.frombuffer(coded.levels, np.int8)
        rows = np.ldexp(rows, exponents[:, None])
        exact = np.frombuffer(coded.exact_blocks, "<u4")
        rows[exact] = np.frombuffer(coded.exact, "<f4").reshape(len(exact), _BLOCK)
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise RefusedError(f"stored work cannot be read: {error}") from None
    return rows.reshape(-1)[: coded.size]
