"""Kernels that turn uniform words into centred binomial, ternary and Gaussian samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import int8, int64, uint64

from ofl_iot.crypto.compiled import BYTES_OF, inlined, kernel


@inlined
def _ones(y: Any) -> Any:
    """Number of set bits."""
    y = y - ((y >> uint64(1)) & uint64(0x5555555555555555))
    y = (y & uint64(0x3333333333333333)) + ((y >> uint64(2)) & uint64(0x3333333333333333))
    y = (y + (y >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return int64((y * uint64(0x0101010101010101)) >> uint64(56))


@kernel(f"void({BYTES_OF['u8']}, i1[::1])")
def centred_binomial(words: Any, out: Any) -> None:
    """Difference of two binomials of 21 coins: three samples from two words, words.size = 2·ceil(out.size/3)."""
    coins = uint64((1 << 42) - 1)
    flip = uint64(((1 << 21) - 1) << 21)
    triples = words.shape[0] // 2
    n = out.shape[0]
    for i in range(triples):
        a = words[2 * i]
        b = words[2 * i + 1]
        c = (a >> uint64(43)) | ((b >> uint64(43)) << uint64(21))
        # ones(x) - ones(y) = ones(x) + ones(not y) - 21
        out[i] = int8(_ones((a & coins) ^ flip) - 21)
        if triples + i < n:
            out[triples + i] = int8(_ones((b & coins) ^ flip) - 21)
        if 2 * triples + i < n:
            out[2 * triples + i] = int8(_ones(c ^ flip) - 21)


@kernel(f"i8({BYTES_OF['u1']}, i1[::1])")
def ternary(octets: Any, out: Any) -> Any:
    """Uniform -1, 0, 1: an octet below 3^5 yields five; returns how many were made."""
    made = 0
    for i in range(octets.shape[0]):
        v = int64(octets[i])
        if v >= 243:
            continue
        for _ in range(5):
            if made == out.shape[0]:
                return made
            out[made] = int8(v % 3 - 1)
            v //= 3
            made += 1
    return made


# Box and Muller without library calls, so that it vectorises. Integers below 2^51 become doubles, and back, through
# the bits of 2^52 + m; the logarithm splits exponent and mantissa; a uniform angle is a uniform quadrant of the
# circle (swap and signs) and a uniform angle within ±π/4. Series errors stay below 1e-12.

_TWO_52 = 4503599627370496.0
_ROUND = 1.5 * _TWO_52
_BLOCK = 512


@kernel("void(u8[::1], f8, f8[::1])")
def _radii(bits: Any, sigma: Any, out: Any) -> None:
    """σ·sqrt(-2·ln(m/2^40)) for m = 1 .. 2^40 given as the bits of 2^52 + m - 1; destroys its input."""
    real = bits.view(np.float64)
    for i in range(bits.shape[0]):
        real[i] -= _TWO_52 - 1.0
    for i in range(bits.shape[0]):
        out[i] = real[i]
    for i in range(bits.shape[0]):
        bits[i] = (bits[i] >> uint64(52)) | uint64(0x4330000000000000)
    for i in range(bits.shape[0]):
        real[i] -= _TWO_52 + 1063.0  # exponent of m/2^40
    mantissa = out.view(np.uint64)
    for i in range(bits.shape[0]):
        mantissa[i] = (mantissa[i] & uint64(0x000FFFFFFFFFFFFF)) | uint64(0x3FF0000000000000)
    for i in range(bits.shape[0]):
        high = out[i] > 1.4142135623730951
        f = 0.5 * out[i] if high else out[i]
        exponent = real[i] + 1.0 if high else real[i]
        z = (f - 1.0) / (f + 1.0)
        y = z * z
        series = 1.0 + y * (
            1 / 3 + y * (1 / 5 + y * (1 / 7 + y * (1 / 9 + y * (1 / 11 + y * (1 / 13 + y * (1 / 15))))))
        )
        out[i] = sigma * math.sqrt(max(0.0, -2.0 * (exponent * 0.6931471805599453 + 2.0 * z * series)))


@kernel("void(u8[::1], u8[::1], f8[::1], i8[::1])")
def _points(bits: Any, quadrants: Any, radii: Any, out: Any) -> None:
    """Points of the circles: bits of 2^52 + m give the angle (m/2^38 - 1/2)·π/2, two more bits the quadrant."""
    real = bits.view(np.float64)
    rounded = out.view(np.float64)
    for i in range(bits.shape[0]):
        t = ((real[i] - _TWO_52) / 274877906944.0 - 0.5) * (0.5 * math.pi)
        y = t * t
        cosine = 1.0 - y * (
            1 / 2 - y * (1 / 24 - y * (1 / 720 - y * (1 / 40320 - y * (1 / 3628800 - y * (1 / 479001600)))))
        )
        sine = t * (
            1.0
            - y
            * (1 / 6 - y * (1 / 120 - y * (1 / 5040 - y * (1 / 362880 - y * (1 / 39916800 - y * (1 / 6227020800))))))
        )
        swap = (quadrants[i] & uint64(1)) != uint64(0)
        sign = 1.0 if (quadrants[i] & uint64(2)) != uint64(0) else -1.0
        r = radii[i] * sign
        rounded[2 * i] = r * (sine if swap else cosine) + _ROUND
        rounded[2 * i + 1] = r * (cosine if swap else -sine) + _ROUND
    for i in range(out.shape[0]):
        out[i] -= int64(0x4338000000000000)


@kernel(f"void({BYTES_OF['u8']}, {BYTES_OF['u2']}, f8, i8[::1])")
def gaussian(words: Any, more: Any, sigma: Any, out: Any) -> None:
    """Rounded Gaussians below 2^50: a pair from 80 uniform bits, 40 for the radius and 40 for the angle."""
    bits = np.empty(_BLOCK, dtype=np.uint64)
    quadrants = np.empty(_BLOCK, dtype=np.uint64)
    radii = np.empty(_BLOCK, dtype=np.float64)
    for start in range(0, words.shape[0], _BLOCK):
        n = min(_BLOCK, words.shape[0] - start)
        for i in range(n):
            bits[i] = (words[start + i] >> uint64(24)) | uint64(0x4330000000000000)
        _radii(bits[:n], sigma, radii[:n])
        for i in range(n):
            angle = ((words[start + i] & uint64(0xFFFFFF)) << uint64(16)) | uint64(more[start + i])
            quadrants[i] = angle & uint64(3)
            bits[i] = (angle >> uint64(2)) | uint64(0x4330000000000000)
        _points(bits[:n], quadrants[:n], radii[:n], out[2 * start : 2 * (start + n)])
