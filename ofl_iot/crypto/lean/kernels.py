"""The inner loops of the masks, compiled by numba beside those of `ofl_iot.crypto.kernels`."""

from __future__ import annotations

from typing import Any

from numba import int64, uint32, uint64

from ofl_iot.crypto.compiled import kernel


@kernel("i8(Array(u4, 1, 'C', readonly=True), i8, i8, u4[::1], u4[::1], i8)")
def expand(words: Any, p: Any, q: Any, first: Any, second: Any, made: Any) -> Any:  # noqa: PLR0917 - numba kernels take positions
    """Uniform residues modulo p and q from uniform words by rejection; returns how many there are now."""
    modulus = uint64(p) * uint64(q)
    limit = (uint64(1) << uint64(32)) // modulus * modulus
    for i in range(words.shape[0]):
        word = uint64(words[i])
        if word < limit:
            if made == first.shape[0]:
                return made
            first[made] = uint32(word % uint64(p))
            second[made] = uint32(word % uint64(q))
            made += 1
    return made


@kernel("void(u4[:, ::1], u4[::1], u4[::1], u4)")
def multiply_rows(rows: Any, w: Any, w_shoup: Any, p: Any) -> None:
    """rows *= w for one fixed polynomial w, in transformed form."""
    for r in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            x = rows[r, j]
            quotient = uint32((uint64(x) * uint64(w_shoup[j])) >> uint64(32))
            v = uint32(uint32(x * w[j]) - uint32(quotient * p))
            rows[r, j] = min(v, uint32(v - p))


@kernel("void(u4[:, ::1], u4[:, ::1], i8[:, ::1], i8, i8, i8, i8, u4[:, ::1])")
def round_to_bits(first: Any, second: Any, errors: Any, p: Any, q: Any, inverse: Any, bits: Any, out: Any) -> None:  # noqa: PLR0917 - numba kernels take positions
    """round(2^bits/(p·q)·(x + e)) modulo 2^bits for x given modulo p and q; `inverse` is 1/p modulo q."""
    modulus = int64(p) * int64(q)
    mask = (int64(1) << int64(bits)) - int64(1)
    for r in range(first.shape[0]):
        for j in range(first.shape[1]):
            a = int64(first[r, j])
            d = (int64(second[r, j]) - a) % int64(q)
            x = (a + int64(p) * (d * int64(inverse) % int64(q)) + errors[r, j]) % modulus
            out[r, j] = uint32((((x << int64(bits + 1)) + modulus) // (int64(2) * modulus)) & mask)
