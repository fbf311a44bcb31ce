"""The inner loops, compiled by numba: the only module that imports it.

Polynomials are rows of uint32 residues below a prime p < 2^30. Multiplications by a fixed w use Shoup's
constant floor(w·2^32/p): two multiplications, no division, result in [0, 2p). `min(v, v - p)` on unsigned
numbers is the conditional subtraction that vectorises: the wrong branch wraps to something huge.

Every kernel has an explicit signature, so it is compiled when this module is imported or loaded from numba's
cache beside the source (or in NUMBA_CACHE_DIR, or the user's cache); never in the middle of a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import int8, int64, njit, uint32, uint64

Function = TypeVar("Function", bound=Callable[..., Any])

_BYTES_OF = {word: f"Array({word}, 1, 'C', readonly=True)" for word in ("u1", "u2", "u8")}
"""Arrays over immutable bytes, as numpy.frombuffer makes them."""

_OPTIONS: dict[str, Any] = {"boundscheck": False, "nogil": True, "error_model": "numpy"}


def kernel(signature: str) -> Callable[[Function], Function]:
    """Compile for one signature, cached on disk where some cache directory is writable."""

    def compiled(function: Function) -> Function:
        try:
            return njit(signature, cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # numba found no directory to cache in: compile at every start
            return njit(signature, **_OPTIONS)(function)  # type: ignore[no-any-return]

    return compiled


def inlined(function: Function) -> Function:
    """A helper that is compiled into each kernel that calls it."""
    return njit(inline="always")(function)  # type: ignore[no-any-return]


@inlined
def _shoup(x: Any, w: Any, w_shoup: Any, p: Any) -> Any:
    """x·w mod p, lazily: in [0, 2p)."""
    quotient = uint32((uint64(x) * uint64(w_shoup)) >> uint64(32))
    return uint32(uint32(x * w) - uint32(quotient * p))


# --- number theoretic transform: constant geometry, stage s pairs (j, j + N/2) -> (2j, 2j + 1) ---


@kernel("void(u4[::1], u4[::1], u8[::1], u4[::1], u4[::1], u4)")
def _forward_stage(low: Any, high: Any, pairs: Any, w: Any, w_shoup: Any, p: Any) -> None:  # noqa: PLR0917 - numba kernels take positions
    p2 = uint32(2 * p)
    for j in range(low.shape[0]):
        a = min(low[j], uint32(low[j] - p2))
        t = _shoup(high[j], w[j], w_shoup[j], p)
        # one 64-bit store of both outputs is what lets LLVM vectorise the interleaving
        pairs[j] = uint64(uint32(a + t)) | (uint64(uint32(a - t + p2)) << uint64(32))


@kernel("void(u8[::1], u4[::1], u4[::1], u4[::1], u4[::1], u4)")
def _inverse_stage(pairs: Any, low: Any, high: Any, w: Any, w_shoup: Any, p: Any) -> None:  # noqa: PLR0917 - numba kernels take positions
    p2 = uint32(2 * p)
    for j in range(low.shape[0]):
        a = uint32(pairs[j])
        b = uint32(pairs[j] >> uint64(32))
        total = uint32(a + b)
        low[j] = min(total, uint32(total - p2))
        high[j] = _shoup(uint32(a - b + p2), w[j], w_shoup[j], p)


@kernel("void(u4[:, ::1], u4[:, ::1], u4[:, ::1], u4)")
def ntt_forward(rows: Any, w: Any, w_shoup: Any, p: Any) -> None:
    """Coefficients to evaluations in bit-reversed order, in place; index j and N-1-j are conjugates."""
    half = rows.shape[1] >> 1
    source = np.empty(half, dtype=np.uint64)
    target = np.empty(half, dtype=np.uint64)
    p2 = uint32(2 * p)
    for r in range(rows.shape[0]):
        row = rows[r]
        _forward_stage(row[:half], row[half:], source, w[0], w_shoup[0], p)
        for s in range(1, w.shape[0]):
            flat = source.view(np.uint32)
            _forward_stage(flat[:half], flat[half:], target, w[s], w_shoup[s], p)
            source, target = target, source
        flat = source.view(np.uint32)
        for j in range(rows.shape[1]):
            v = min(flat[j], uint32(flat[j] - p2))
            row[j] = min(v, uint32(v - p))


@kernel("void(u4[:, ::1], u4[:, ::1], u4[:, ::1], u4, u4, u4)")
def ntt_inverse(rows: Any, w: Any, w_shoup: Any, p: Any, n_inv: Any, n_inv_shoup: Any) -> None:  # noqa: PLR0917 - numba kernels take positions
    """Evaluations to coefficients, in place."""
    half = rows.shape[1] >> 1
    source = np.empty(half, dtype=np.uint64)
    target = np.empty(half, dtype=np.uint64)
    last = w.shape[0] - 1
    for r in range(rows.shape[0]):
        row = rows[r]
        flat = source.view(np.uint32)
        _inverse_stage(row.view(np.uint64), flat[:half], flat[half:], w[last], w_shoup[last], p)
        for s in range(last - 1, -1, -1):
            flat = target.view(np.uint32)
            _inverse_stage(source, flat[:half], flat[half:], w[s], w_shoup[s], p)
            source, target = target, source
        flat = source.view(np.uint32)
        for j in range(rows.shape[1]):
            v = _shoup(flat[j], n_inv, n_inv_shoup, p)
            row[j] = min(v, uint32(v - p))


# --- residues ---


@kernel("void(i1[:, ::1], u4, u4[:, ::1])")
def reduce_small(values: Any, p: Any, out: Any) -> None:
    """Small signed values to residues."""
    for r in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = int64(values[r, j])
            out[r, j] = uint32(v + (int64(p) & (v >> int64(63))))


@kernel("void(i8[:, ::1], u4, u4[:, ::1])")
def reduce_wide(values: Any, p: Any, out: Any) -> None:
    """Signed values below 2^62 to residues: a floating quotient, then the exact remainder is mended."""
    prime = int64(p)
    inverse = 1.0 / float(p)
    for r in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = values[r, j]
            rest = v - int64(np.floor(float(v) * inverse)) * prime  # in [-p, 2p)
            rest += prime & (rest >> int64(63))
            rest -= prime
            rest += prime & (rest >> int64(63))
            out[r, j] = uint32(rest)


@kernel("void(u4[:, ::1], u4, u4, u4[:, ::1])")
def lift_centred(values: Any, p_from: Any, p_to: Any, out: Any) -> None:
    """Residues of one prime, read as centred integers, to residues of another below 4 times smaller."""
    half = int64(p_from) // 2
    for r in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = int64(values[r, j])
            v -= int64(p_from) & ((half - v) >> int64(63))
            v += int64(p_to) & (v >> int64(63))
            v += int64(p_to) & (v >> int64(63))
            w = v - int64(p_to)
            out[r, j] = uint32(w + (int64(p_to) & (w >> int64(63))))


@kernel("void(u4[:, ::1], u4[:, ::1], u4, u4, i8[:, ::1])")
def join_pair(first: Any, second: Any, p: Any, q: Any, out: Any) -> None:
    """Residues modulo p and q to the centred integer modulo p·q (below 2^60)."""
    modulus = int64(p) * int64(q)
    half = modulus // 2
    inverse = uint64(1)
    base = uint64(p) % uint64(q)
    exponent = uint64(q) - uint64(2)
    while exponent:  # p^(q-2) = 1/p modulo q
        if exponent & uint64(1):
            inverse = inverse * base % uint64(q)
        base = base * base % uint64(q)
        exponent >>= uint64(1)
    inverse_shoup = uint32((inverse << uint64(32)) // uint64(q))
    for r in range(first.shape[0]):
        for j in range(first.shape[1]):
            a = int64(first[r, j])
            d = (int64(second[r, j]) - a) % int64(q)
            t = _shoup(uint32(d), uint32(inverse), inverse_shoup, q)
            v = a + int64(p) * int64(min(t, uint32(t - q)))
            out[r, j] = v - (modulus & ((half - v) >> int64(63)))


# --- arithmetic on transformed rows ---


@kernel("void(u4[:, ::1], u4[::1], u4[::1], u4, u4[:, ::1])")
def multiply_add(rows: Any, w: Any, w_shoup: Any, p: Any, out: Any) -> None:
    """out += rows·w for one fixed polynomial w."""
    p2 = uint32(2 * p)
    for r in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            v = uint32(out[r, j] + _shoup(rows[r, j], w[j], w_shoup[j], p))
            v = min(v, uint32(v - p2))
            out[r, j] = min(v, uint32(v - p))


@kernel("void(u4[:, ::1], u4, u4, u4, u4[:, ::1])")
def scale_add(rows: Any, w: Any, w_shoup: Any, p: Any, out: Any) -> None:
    """out += rows·w for one number w."""
    p2 = uint32(2 * p)
    for r in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            v = uint32(out[r, j] + _shoup(rows[r, j], w, w_shoup, p))
            v = min(v, uint32(v - p2))
            out[r, j] = min(v, uint32(v - p))


@kernel("void(u4[:, ::1], u4[:, ::1], u4, u4, u4)")
def subtract_scale(rows: Any, other: Any, w: Any, w_shoup: Any, p: Any) -> None:
    """rows = (rows - other)·w for one number w."""
    for r in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            v = _shoup(uint32(rows[r, j] - other[r, j] + p), w, w_shoup, p)
            rows[r, j] = min(v, uint32(v - p))


@kernel("void(u4[::1], u4[::1], u4, u4[::1])")
def multiply(x: Any, y: Any, p: Any, out: Any) -> None:
    """out = x·y."""
    for j in range(x.shape[0]):
        out[j] = uint32(uint64(x[j]) * uint64(y[j]) % uint64(p))


@kernel("void(u4[:, ::1], u4[:, ::1], u4, u4[::1])")
def correlate(rows: Any, others: Any, p: Any, out: Any) -> None:
    """out = Σ over rows of row·conj(other): conjugation X -> 1/X is reversal of the transformed row."""
    degree = rows.shape[1]
    room = int64(0x7FFFFFFFFFFFFFFF) // (int64(p) * int64(p)) - 1  # products that fit before a reduction
    total = np.zeros(degree, dtype=np.uint64)
    back = np.empty(degree, dtype=np.uint32)
    for r in range(rows.shape[0]):
        for j in range(degree):
            back[j] = others[r, degree - 1 - j]
        for j in range(degree):
            total[j] += uint64(rows[r, j]) * uint64(back[j])
        if r % room == room - 1:
            for j in range(degree):
                total[j] %= uint64(p)
    for j in range(degree):
        out[j] = uint32(total[j] % uint64(p))


# --- sampling from uniform words ---


@inlined
def _ones(y: Any) -> Any:
    """Number of set bits."""
    y = y - ((y >> uint64(1)) & uint64(0x5555555555555555))
    y = (y & uint64(0x3333333333333333)) + ((y >> uint64(2)) & uint64(0x3333333333333333))
    y = (y + (y >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return int64((y * uint64(0x0101010101010101)) >> uint64(56))


@kernel(f"void({_BYTES_OF['u8']}, i1[::1])")
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


@kernel(f"i8({_BYTES_OF['u1']}, i1[::1])")
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


@kernel(f"void({_BYTES_OF['u8']}, {_BYTES_OF['u2']}, f8, i8[::1])")
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


# --- bit packing ---


@kernel("void(u4[::1], i8, u8[::1])")
def pack_bits(values: Any, bits: Any, out: Any) -> None:
    """Write the low `bits` of each value, least significant first; 64 values fill exactly `bits` words."""
    gathered = uint64(0)
    held = 0
    at = 0
    for i in range(values.shape[0]):
        gathered |= uint64(values[i]) << uint64(held)
        held += bits
        if held >= 64:
            out[at] = gathered
            at += 1
            held -= 64
            gathered = uint64(values[i]) >> uint64(bits - held)


@kernel(f"u4({_BYTES_OF['u8']}, i8, u4[::1])")
def unpack_bits(words: Any, bits: Any, out: Any) -> Any:
    """Read values of `bits` each; returns the largest."""
    mask = uint64((uint64(1) << uint64(bits)) - uint64(1))
    gathered = uint64(0)
    held = 0
    at = 0
    largest = uint32(0)
    for i in range(out.shape[0]):
        v = gathered
        if held < bits:
            gathered = words[at]
            at += 1
            v |= gathered << uint64(held)
            gathered >>= uint64(bits - held)
            held += 64 - bits
        else:
            gathered >>= uint64(bits)
            held -= bits
        out[i] = uint32(v & mask)
        largest = max(largest, out[i])
    return largest
