"""The inner loops on polynomials, compiled by numba (`compiled.py`).

Polynomials are rows of uint32 residues below a prime p < 2^30. Multiplications by a fixed w use Shoup's
constant floor(w·2^32/p): two multiplications, no division, result in [0, 2p). `min(v, v - p)` on unsigned
numbers is the conditional subtraction that vectorises: the wrong branch wraps to something huge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint32, uint64

from ofl_iot.crypto.compiled import BYTES_OF, inlined, kernel


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


@kernel(f"u4({BYTES_OF['u8']}, i8, u4[::1])")
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
